//! Models: token ids in, next-token logits out. Weights are immutable and shared; what changes is passed in.

mod backend;
mod batch;
mod candle;
pub mod config;
mod copy;
mod cpu;
mod decoder;
mod load;
mod rope;
mod timed;
mod toy;

pub use batch::{Batch, Output, Rows, Slice, Tree};
pub(crate) use copy::format_named;
pub use load::{LoadOptions, load, load_with_clocks, read_config};
pub(crate) use load::{bytes_spared, check_context, copy_bytes};
pub use toy::ToyModel;

use std::{sync::Arc, time::Duration};

use crate::{cache::KvCache, error::Result};

/// Prompt tokens fed in one pass: enough for full speed, few enough to be interrupted between.
pub(crate) const PROMPT_CHUNK: usize = 128;

/// A causal language model. The ragged batch is its only forward: a single user is a batch of one slice, a
/// prompt is a slice of many tokens, a verification a slice of `k + 1`.
pub trait Model: Send + Sync {
    /// Runs each slice's tokens after what its cache holds, appends their keys and values to it, and writes
    /// the logits the slices asked for to `out`: `[rows wanted, num_logits]`, f32, in slice order.
    ///
    /// # Errors
    /// Ids beyond the vocabulary, a slice that would leave the context, or a failing device. The caches keep
    /// the length they had.
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()>;

    /// An empty cache for one sequence of this model.
    fn new_cache(&self) -> KvCache;

    /// What a caller needs to know of it.
    fn info(&self) -> &ModelInfo;

    /// Whether a slice may be a tree ([`Slice::tree`]). Where it may not, nobody drafts one.
    fn knows_trees(&self) -> bool {
        false
    }

    /// Reads the weights a pass reads, and does nothing with them: what the time of a pass is measured
    /// against.
    fn read_weights(&self) {}

    /// The time spent since the last call by kind of operation, where the model was loaded with clocks.
    fn op_times(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
    }
}

/// The facts of a model that its users plan with.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The architecture's name, as GGUF writes it.
    pub architecture: String,
    /// Ids that may be fed; the tokenizer may know fewer.
    pub vocab_size: usize,
    /// The id that each logit of a row is of, ascending, where the output head has only these rows; `None`: a logit for
    /// every id, in order.
    pub head_ids: Option<Arc<[u32]>>,
    /// Tokens a sequence may hold.
    pub context_len: usize,
    /// Transformer layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Bytes of all weights as stored.
    pub weight_bytes: u64,
    /// Bytes of weights a pass reads: those of all matrices, in the form they have in memory.
    pub pass_bytes: u64,
    /// Bytes of keys and values one token takes.
    pub kv_bytes_per_token: u64,
    /// Where it runs, in words.
    pub device: String,
}

impl ModelInfo {
    /// Width of a logits row.
    pub fn num_logits(&self) -> usize {
        self.head_ids.as_ref().map_or(self.vocab_size, |ids| ids.len())
    }
}

/// Feeds the next `chunk` tokens of a prompt, of which `cache` may hold a prefix; its last token is left to
/// the first round. Returns whether more is to be fed.
pub(crate) fn feed_prompt(
    model: &dyn Model,
    cache: &mut KvCache,
    prompt: &[u32],
    chunk: usize,
    out: &mut Output,
) -> Result<bool> {
    let cached = cache.retain_prefix(prompt);
    let unseen = &prompt[cached..prompt.len().saturating_sub(1)];
    let tokens = &unseen[..unseen.len().min(chunk)];
    if !tokens.is_empty() {
        let slice = Slice { cache, tokens, rows: Rows::None, tree: None };
        model.forward(&mut Batch { slices: vec![slice], taps: &[] }, out)?;
    }
    Ok(unseen.len() > tokens.len())
}
