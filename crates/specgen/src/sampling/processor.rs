//! A user's own change to the logits.

use std::{fmt, ops::Deref, sync::Arc};

use super::{History, filter};
use crate::{Error, Result};

/// Changes logits by a rule of the user's own, between logit bias and bans: all else applies to what it leaves.
///
/// It is applied to every row of the target, and to every row of a draft model too. A row of a draft position comes with
/// the history of that position, hypothetical tokens included, and is scored again if a round is tried again: so the rule
/// must be **pure**, the same changes for the same arguments, whatever was asked before. A rule that counts its calls, or
/// draws at random without deriving it from the history, gives texts of another distribution than plain decoding.
///
/// ```
/// use std::sync::Arc;
/// use specgen::{SamplingParams, sampling::{History, LogitsProcessor}};
///
/// /// Never the same token twice in a row.
/// struct NoStutter;
///
/// impl LogitsProcessor for NoStutter {
///     fn name(&self) -> &str {
///         "no stutter"
///     }
///
///     fn process(&self, logits: &mut [f32], history: &History) {
///         if let Some(logit) = history.tokens().last().and_then(|&id| logits.get_mut(id as usize)) {
///             *logit = f32::NEG_INFINITY;
///         }
///     }
/// }
///
/// let params = SamplingParams { processors: vec![NoStutter.into()], ..SamplingParams::default() };
/// ```
pub trait LogitsProcessor: Send + Sync {
    /// What errors call it.
    fn name(&self) -> &str;

    /// Changes `logits` `[vocab_size]` (of a draft model, perhaps fewer), the row of the token after `history`. `-inf`
    /// bans a token; a row without a possible token, or with NaN, is an error of the text.
    fn process(&self, logits: &mut [f32], history: &History);
}

/// A shared [`LogitsProcessor`]. Two are equal if they are the same one.
#[derive(Clone)]
pub struct Processor(Arc<dyn LogitsProcessor>);

impl Deref for Processor {
    type Target = dyn LogitsProcessor;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl<P: LogitsProcessor + 'static> From<P> for Processor {
    fn from(processor: P) -> Self {
        Self(Arc::new(processor))
    }
}

impl From<Arc<dyn LogitsProcessor>> for Processor {
    fn from(processor: Arc<dyn LogitsProcessor>) -> Self {
        Self(processor)
    }
}

impl PartialEq for Processor {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Processor").field(&self.name()).finish()
    }
}

/// Applies `processor` and checks what it left.
///
/// # Errors
/// [`Error::InvalidArgument`] that names it, where the row has a NaN or lost its last possible token.
pub(super) fn apply(processor: &Processor, row: &mut [f32], history: &History) -> Result<()> {
    let was_possible = filter::argmax(row).is_some();
    processor.process(row, history);
    let step = history.num_output();
    let problem = match filter::first_nan(row) {
        Some(token) => {
            format!("made the logit of token {token} NaN at output token {step}; a logit must be a number")
        }
        None if was_possible && filter::argmax(row).is_none() => {
            format!("banned every token at output token {step}; it must leave at least one")
        }
        None => return Ok(()),
    };
    Err(Error::InvalidArgument(format!("the logits processor `{}` {problem}", processor.name())))
}
