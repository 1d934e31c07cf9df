//! How many drafted tokens stand under each rule, for drafts from near the target to far from it:
//! `cargo test --workspace --test acceptance -- --nocapture` prints the figures. Seeds are fixed, so they repeat.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;

use specgen::{
    Engine, Result, SamplingParams, Verification,
    cache::KvCache,
    draft::ModelDrafter,
    model::{Batch, Model, ModelInfo, Output, ToyModel},
};

const VOCAB: usize = 50;
const NUM_DRAFTED: usize = 4;
const ROUNDS: usize = 8_000;

/// The logits of two toys, mixed: `share` of the second.
struct Blend {
    first: ToyModel,
    second: ToyModel,
    share: f32,
}

impl Model for Blend {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        self.first.forward(batch, out)?;
        let mut rows = Vec::new();
        for (i, slice) in batch.slices.iter().enumerate() {
            let (text, wanted) = (slice.cache.tokens(), out.num_rows(i));
            for row in 0..wanted {
                let other = self.second.logits_after(&text[..text.len() - wanted + row + 1]);
                let mix = |(&a, &b): (&f32, &f32)| (1.0 - self.share) * a + self.share * b;
                rows.push(out.logits(i, row).iter().zip(&other).map(mix).collect::<Vec<_>>());
            }
        }
        out.begin(batch, VOCAB);
        rows.iter().for_each(|row| out.push_row(row));
        Ok(())
    }

    fn new_cache(&self) -> KvCache {
        self.first.new_cache()
    }

    fn info(&self) -> &ModelInfo {
        self.first.info()
    }
}

/// Drafted tokens that stand, on average, in a round of [`NUM_DRAFTED`].
fn mean_accepted(share: f32, params: &SamplingParams) -> f64 {
    let toy = |seed| ToyModel::new(VOCAB, seed, 10.0);
    let draft = Arc::new(Blend { first: toy(1), second: toy(2), share });
    let drafter = Arc::new(ModelDrafter::new(draft, VOCAB));
    let engine = Engine::from_parts(Arc::new(toy(1)), drafter, NUM_DRAFTED, &[]);
    let (mut accepted, mut rounds) = (0, 0);
    for seed in 0.. {
        let params = SamplingParams { seed: Some(seed), ..params.clone() };
        let mut session = engine.session(params).unwrap();
        let mut generation = session.generate(&[1u32, 2][..], 1000).unwrap();
        generation.by_ref().for_each(|piece| drop(piece.unwrap()));
        let stats = generation.stats();
        assert_eq!(stats.residual_underflows, 0);
        (accepted, rounds) = (accepted + stats.accepted, rounds + stats.rounds);
        if rounds >= ROUNDS {
            break;
        }
    }
    accepted as f64 / rounds as f64
}

#[test]
fn a_block_accepts_as_much_as_the_ratio_test_or_more() {
    let open = SamplingParams { temperature: 1.0, ..SamplingParams::greedy() };
    println!("accepted of {NUM_DRAFTED} a round   rejection  block  coupled");
    for (name, params) in [("open", open), ("default", SamplingParams::default())] {
        for share in [0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0] {
            let [rejection, block, coupled] = Verification::ALL.map(|verify| {
                mean_accepted(share, &SamplingParams { verify: Some(verify), ..params.clone() })
            });
            println!("{name:8} share {share:4.2}        {rejection:9.3} {block:6.3} {coupled:8.3}");
            assert!(block >= rejection, "{name}, {share}: {block} < {rejection}");
            if (0.2..0.6).contains(&share) {
                // Well above what chance does to such means, about 0.02.
                assert!(block > rejection + 0.03, "{name}, {share}: {block}, {rejection}");
            }
        }
    }
}
