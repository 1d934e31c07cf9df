//! `ToyModel`: a table of logits that plays a language model, for docs and tests that download nothing.

use super::{Batch, Model, ModelInfo, Output, Rows};
use crate::{cache::KvCache, error::Result, rng::split_mix};

/// Logits that depend on the last two tokens through a seeded hash: cheap, deterministic, with the rollback
/// and row semantics of a real model.
#[derive(Clone, Debug)]
pub struct ToyModel {
    info: ModelInfo,
    seed: u64,
    sharpness: f32,
}

impl ToyModel {
    /// A model over `vocab_size` ids. Equal seeds give equal models; `sharpness` scales the logits, so that
    /// small values give near-uniform distributions and large ones near-certain.
    pub fn new(vocab_size: usize, seed: u64, sharpness: f32) -> Self {
        let info = ModelInfo {
            architecture: "toy".into(),
            vocab_size,
            head_ids: None,
            context_len: 1 << 16,
            num_layers: 0,
            hidden_size: 0,
            weight_bytes: 0,
            pass_bytes: 0,
            kv_bytes_per_token: 0,
            device: "cpu".into(),
        };
        Self { info, seed, sharpness }
    }

    /// The same model with room for `context_len` tokens only.
    pub fn with_context_len(mut self, context_len: usize) -> Self {
        self.info.context_len = context_len;
        self
    }

    /// The logits after a text that ends in `context`: `[vocab_size]`.
    pub fn logits_after(&self, context: &[u32]) -> Vec<f32> {
        let mut last = context.iter().rev().map(|&t| u64::from(t) + 1);
        let (b, a) = (last.next().unwrap_or(0), last.next().unwrap_or(0));
        let state = split_mix(self.seed ^ split_mix(a.wrapping_mul(0x9E37_79B9) ^ split_mix(b)));
        (0..self.info.vocab_size as u64)
            .map(|id| {
                let unit = (split_mix(state ^ split_mix(id + 1)) >> 40) as f32 / (1u64 << 24) as f32;
                (unit - 0.5) * self.sharpness
            })
            .collect()
    }
}

impl Model for ToyModel {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        out.begin(batch, self.info.vocab_size);
        for slice in &batch.slices {
            super::decoder::check_slice(slice, &self.info)?;
        }
        for slice in &mut batch.slices {
            let base = slice.cache.len();
            slice.cache.extend(slice.tokens);
            let len = slice.cache.len();
            let wanted = match slice.rows {
                Rows::None => 0,
                rows => rows.count(slice.tokens.len()),
            };
            for end in len - wanted + 1..=len {
                let seen = match slice.tree {
                    None => slice.cache.tokens()[..end].to_vec(),
                    Some(tree) => {
                        let path = tree.path(end - 1 - base).iter().map(|&node| slice.tokens[node as usize]);
                        slice.cache.tokens()[..base].iter().copied().chain(path).collect()
                    }
                };
                out.push_row(&self.logits_after(&seen));
            }
        }
        Ok(())
    }

    fn new_cache(&self) -> KvCache {
        KvCache::ids_only()
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn knows_trees(&self) -> bool {
        true
    }
}
