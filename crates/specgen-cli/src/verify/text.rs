//! A proof as a table.

use std::fmt::Write as _;

use specgen::Engine;
use specgen_proof::{
    acceptance::Acceptance,
    identity::{Divergence, Identity},
    outcomes::Outcome,
};

use super::Verified;

/// Divergences that are told; the others are counted.
const MAX_TOLD: usize = 3;

pub(super) fn text(verified: &Verified<'_>, engine: &Engine) -> String {
    let report = verified.report;
    let mut table = Table(format!(
        "{} with {}, k = {}, {}, on {} ({})\n",
        verified.target,
        verified.draft,
        verified.num_draft_tokens,
        verified.sampling,
        verified.device,
        verified.isa
    ));
    if let Some(fault) = report.planted_fault {
        table.note(&format!("planted fault: {fault}"));
    }

    let vocabulary = &verified.vocabulary;
    let shared = match (&vocabulary.coverage, vocabulary.shared_ids) {
        (Some(coverage), _) => format!("the draft's is another: {coverage}"),
        (None, Some(shared)) => {
            format!("{shared} of {} ids mean the same to the draft", vocabulary.target_ids)
        }
        (None, None) => format!("the draft uses the target's own {} ids", vocabulary.target_ids),
    };
    let kept =
        format!("{} of {} texts come back from their tokens as they were", vocabulary.kept, vocabulary.texts);
    table.row("vocabulary", vocabulary.holds(), &format!("{shared}; {kept}"));

    for check in &report.rules {
        let what = match check.rule {
            "coupled" => format!(
                "coupled: {:.0} of {} texts of toy models are not plain decoding's",
                check.error * check.runs as f64,
                check.runs
            ),
            rule => format!("{rule}: {:.0e} off the law of {} toy models at most", check.error, check.runs),
        };
        table.row("rules", check.holds(), &what);
    }
    for check in &report.identity {
        table.row("identity", check.holds(), &identity(check));
        for divergence in check.divergences.iter().take(MAX_TOLD) {
            table.note(&told(divergence, engine));
        }
    }
    for check in &report.acceptance {
        table.row("acceptance", report.acceptance_holds(check), &acceptance(check));
    }
    for check in &report.outcomes {
        table.row("outcomes", report.outcome_holds(check), &outcome(check));
    }
    if report.outcomes.is_empty() && report.acceptance.is_empty() {
        table.note("nothing was sampled: the temperature is 0, or nothing was drafted");
    }
    let verdict = match verified.verdict {
        "green" => "GREEN: as far as this proof can see, the text is the target's own",
        _ => "RED: a check failed",
    };
    table.0 + verdict + "\n"
}

fn identity(check: &Identity) -> String {
    let mut text = format!(
        "{}: {} of {} texts are plain decoding's ({} tokens, {} of {} drafted accepted)",
        check.mode, check.identical, check.texts, check.tokens, check.accepted, check.drafted
    );
    let _ = match check.differing_logprobs {
        0 => write!(text, "; log-probabilities of {} tokens the same bits", check.logprobs),
        differing => write!(
            text,
            "; {differing} of {} log-probabilities differ, by {:.1e} at most",
            check.logprobs, check.worst_logprob
        ),
    };
    text
}

fn told(divergence: &Divergence, engine: &Engine) -> String {
    let said = |id: Option<u32>| id.map_or_else(|| "the end".into(), |id| quoted(&[id], engine));
    let gap = divergence.logit_gap.map_or_else(String::new, |gap| {
        let tie = if divergence.near_tie { ", a near-tie" } else { "" };
        format!(" (logits {gap:.2e} apart, rows differ by {:.1e}{tie})", divergence.row_noise)
    });
    format!(
        "{}, token {}: plain decoding says {}, speculation {}{gap}",
        divergence.prompt,
        divergence.position + 1,
        said(divergence.plain),
        said(divergence.speculative)
    )
}

fn acceptance(check: &Acceptance) -> String {
    if check.drafted == 0 {
        return format!("{}: nothing was drafted", check.rule);
    }
    let percent = |accepted: f64| 100.0 * accepted / check.drafted as f64;
    format!(
        "{}: {:.1} % of {} drafted tokens accepted, {:.1} % predicted from p and q (p-value {})",
        check.rule,
        percent(check.accepted as f64),
        check.drafted,
        percent(check.predicted),
        p_value(check.p_value)
    )
}

fn outcome(check: &Outcome) -> String {
    let tokens = if check.len == 1 { "next token" } else { "next two" };
    let impossible = match check.impossible {
        0 => String::new(),
        n => format!("; {n} of them the target cannot say"),
    };
    format!(
        "{}: {} samples of the {tokens} after {} ({} tokens), {} cells: p-value {}; sees a bias of {:.1} %{impossible}",
        check.rule,
        check.samples,
        check.prompt,
        check.position,
        check.cells.len(),
        p_value(check.test.p_value),
        100.0 * check.test.detectable_bias
    )
}

pub(super) fn p_value(p: f64) -> String {
    match p {
        p if p < 1e-300 => "0".into(),
        p if p < 0.001 => format!("{p:.0e}"),
        p => format!("{p:.3}"),
    }
}

/// Tokens as text in quotes; an empty list stands for all others.
pub(super) fn quoted(ids: &[u32], engine: &Engine) -> String {
    let one = |&id: &u32| match engine.tokenizer() {
        Some(tokenizer) => format!("{:?}", tokenizer.decode(&[id], false)),
        None => format!("id {id}"),
    };
    ids.iter().map(one).collect::<Vec<_>>().join(" ")
}

struct Table(String);

impl Table {
    fn row(&mut self, name: &str, holds: bool, what: &str) {
        let mark = if holds { "ok " } else { "RED" };
        let _ = writeln!(self.0, "  {mark}  {name:<11} {what}");
    }

    fn note(&mut self, what: &str) {
        let _ = writeln!(self.0, "       {:<11} {what}", "");
    }
}
