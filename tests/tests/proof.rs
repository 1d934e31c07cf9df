//! The proof that users run is green for what is exact, and red for each fault planted in it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use specgen::{
    Engine, SamplingParams, Verification,
    draft::{Drafter, ModelDrafter, NgramDrafter},
    model::{Model, ToyModel},
};
use specgen_proof::{Fault, Options, Proof, ProofPrompt, Report, Unwatched};
use specgen_tests::tiny::{self, Tiny};

fn prompts() -> Vec<ProofPrompt> {
    // Repetitive, so that the text's own past has something to say.
    let ids = |seed: u32| (0..24).map(|i| (seed + i % 4 * 3) % 12).collect();
    (0..4).map(|seed| ProofPrompt { name: format!("prompt-{seed}"), ids: ids(seed) }).collect()
}

fn prove(target: Arc<dyn Model>, drafter: Arc<dyn Drafter>, fault: Option<Fault>) -> Report {
    let engine = Engine::from_parts(target, drafter, 3, &[]);
    let params = SamplingParams { seed: Some(3), temperature: 0.8, ..SamplingParams::default() };
    let options = Options { tokens: 40, contexts: 2, samples: 600, fault, ..Options::default() };
    Proof { engine: &engine, params, prompts: prompts(), options }.run(&Unwatched).unwrap()
}

type Pair = (&'static str, Arc<dyn Model>, Arc<dyn Drafter>);

fn pairs() -> Vec<Pair> {
    let toy = |seed| -> Arc<dyn Model> { Arc::new(ToyModel::new(12, seed, 6.0)) };
    let tiny = Tiny::named("llama");
    let (model, other) = (tiny.load(&tiny::cpu(1)), tiny.clone().with_seed(99).load(&tiny::cpu(1)));
    vec![
        ("toy and ngram", toy(1), Arc::new(NgramDrafter::default())),
        ("toy and toy", toy(1), Arc::new(ModelDrafter::new(toy(2), 12))),
        (
            "tiny and itself",
            model.clone(),
            Arc::new(ModelDrafter::new(model.clone(), model.info().vocab_size)),
        ),
        ("tiny and another", model.clone(), Arc::new(ModelDrafter::new(other, model.info().vocab_size))),
    ]
}

#[test]
fn exact_pairs_are_green() {
    for (name, target, drafter) in pairs() {
        let report = prove(target, drafter, None);
        assert!(report.is_green(), "{name}: {report:#?}");
        assert_eq!(report.identity.len(), 2, "greedy and coupled");
        assert_eq!(report.rules.len(), Verification::ALL.len());
        assert!(report.acceptance.iter().all(|check| check.drafted > 0), "{name}: nothing was drafted");
        assert!(!report.outcomes.is_empty(), "{name}: nothing was sampled");
    }
}

#[test]
fn every_fault_is_red_where_it_must_be() {
    for fault in Fault::ALL {
        for (name, target, drafter) in pairs() {
            let report = prove(target, drafter, Some(fault));
            assert!(!report.is_green(), "{fault} in {name} was not seen");
            let identical = report.identity.iter().all(specgen_proof::identity::Identity::holds);
            let same_law = report.outcomes.iter().all(|check| report.outcome_holds(check));
            // Greedy and coupled texts ask no q; sampled ones are bent by it.
            assert_eq!(identical, fault == Fault::FalseQ, "{fault} in {name}");
            assert!(!same_law || fault != Fault::FalseQ, "{fault} in {name}: {report:#?}");
        }
    }
}

/// At a temperature of 0 nothing is drawn, and nothing is claimed of what is.
#[test]
fn greedy_proofs_check_identity_only() {
    let (_, target, drafter) = pairs().swap_remove(1);
    let engine = Engine::from_parts(target, drafter, 3, &[]);
    let proof = Proof {
        engine: &engine,
        params: SamplingParams::greedy(),
        prompts: prompts(),
        options: Options::default(),
    };
    let report = proof.run(&Unwatched).unwrap();
    assert!(report.is_green() && report.acceptance.is_empty() && report.outcomes.is_empty());
    assert_eq!(report.identity.len(), 1);
}
