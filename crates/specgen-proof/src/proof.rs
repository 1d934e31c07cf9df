//! The checks in their order, and what came of them.

use serde::Serialize;
use specgen::{Engine, Error, Result, SamplingParams, Verification};

use crate::{
    Fault, Watch,
    acceptance::{self, Acceptance},
    identity::{self, Identity, Pair},
    outcomes::{self, Outcome},
    rules::{self, RuleCheck},
};

/// What texts start from.
#[derive(Clone, Debug)]
pub struct ProofPrompt {
    /// What a report calls it.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// How much is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The rules, each checked on its own.
    pub rules: Vec<Verification>,
    /// Tokens of each text.
    pub tokens: usize,
    /// Places at which next tokens are sampled.
    pub contexts: usize,
    /// How often, at each of them.
    pub samples: usize,
    /// The chance that an exact pair fails any of the statistical tests.
    pub false_alarm: f64,
    /// A fault to plant.
    pub fault: Option<Fault>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rules: Verification::ALL.to_vec(),
            tokens: 128,
            contexts: 3,
            samples: 1000,
            false_alarm: 1e-4,
            fault: None,
        }
    }
}

/// A pair on trial.
#[derive(Debug)]
pub struct Proof<'a> {
    /// Target and draft.
    pub engine: &'a Engine,
    /// How tokens are chosen; at a temperature of 0 nothing is drawn, and only identity is checked. The seed is the
    /// first of many.
    pub params: SamplingParams,
    /// What texts start from.
    pub prompts: Vec<ProofPrompt>,
    /// How much is run.
    pub options: Options,
}

/// What came of a proof.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The rules on toy models.
    pub rules: Vec<RuleCheck>,
    /// Greedy and coupled texts.
    pub identity: Vec<Identity>,
    /// Accepted tokens of sampled texts.
    pub acceptance: Vec<Acceptance>,
    /// Next tokens at a few places.
    pub outcomes: Vec<Outcome>,
    /// A test fails whose p-value is below: the false alarm allowed for all, shared among them.
    pub significance: f64,
    /// The fault that was planted.
    pub planted_fault: Option<&'static str>,
}

impl Report {
    /// Whether the target's distribution was left as it is, as far as this proof can see.
    pub fn is_green(&self) -> bool {
        self.rules.iter().all(RuleCheck::holds)
            && self.identity.iter().all(Identity::holds)
            && self.acceptance.iter().all(|check| self.acceptance_holds(check))
            && self.outcomes.iter().all(|check| self.outcome_holds(check))
    }

    /// Whether as many tokens stood as had to.
    pub fn acceptance_holds(&self, check: &Acceptance) -> bool {
        check.p_value >= self.significance
    }

    /// Whether the samples may be the target's.
    pub fn outcome_holds(&self, check: &Outcome) -> bool {
        check.impossible == 0 && check.test.p_value >= self.significance
    }
}

impl Proof<'_> {
    /// Texts that run side by side: what a memory plan has to have room for.
    pub const NUM_SEQUENCES: usize = outcomes::MAX_WIDTH;

    /// Runs every check.
    ///
    /// # Errors
    /// A failing model; parameters out of range; prompts beyond the context; a plan that goes by time, of which no two
    /// proofs would be alike.
    pub fn run(&self, watch: &dyn Watch) -> Result<Report> {
        let options = &self.options;
        if self.engine.plan().goes_by_time() {
            let problem =
                "a proof is of drafts of the same lengths every time; choose another plan than `auto`";
            return Err(Error::InvalidArgument(problem.into()));
        }
        let plain = identity::plain(self.engine);
        let faulty = options.fault.map(|fault| {
            let target = fault.in_target(self.engine.target().clone());
            let drafter = fault.in_drafter(self.engine.drafter().clone());
            self.engine.with_target(target).with_drafter(drafter, self.engine.plan().clone())
        });
        let engine = faulty.as_ref().unwrap_or(self.engine);
        let drawn = self.params.temperature > 0.0;

        let mut report = Report {
            rules: rules::check(&options.rules, watch),
            identity: Vec::new(),
            acceptance: Vec::new(),
            outcomes: Vec::new(),
            significance: 0.0,
            planted_fault: options.fault.map(Fault::name),
        };

        let pair = Pair { engine, plain: &plain };
        let greedy = SamplingParams { temperature: 0.0, ..self.params.clone() };
        report.identity.push(identity::check(&pair, &greedy, &self.prompts, options.tokens, watch)?);
        let under = |rule| SamplingParams { verify: Some(rule), ..self.params.clone() };
        if drawn && options.rules.contains(&Verification::Coupled) {
            let coupled = under(Verification::Coupled);
            report.identity.push(identity::check(&pair, &coupled, &self.prompts, options.tokens, watch)?);
        }

        let rules = options.rules.iter().filter(|_| drawn);
        for &rule in rules {
            let params = under(rule);
            let (accepted, mut places) =
                acceptance::check(engine, &params, &self.prompts, options.tokens, watch)?;
            // The most open places have the most to tell apart.
            places.sort_by(|a, b| b.entropy.total_cmp(&a.entropy));
            for place in places.iter().take(options.contexts) {
                report.outcomes.extend(outcomes::check(
                    (engine, &plain),
                    &params,
                    place,
                    options.samples,
                    watch,
                )?);
            }
            // Coupled, a drafted token stands or falls by the noise it was drawn with: nothing is left to predict.
            report.acceptance.extend((rule != Verification::Coupled).then_some(accepted));
        }
        let tests = report.outcomes.len() + report.acceptance.len();
        report.significance = options.false_alarm / tests.max(1) as f64;
        Ok(report)
    }
}
