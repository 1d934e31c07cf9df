//! The one error type of the library: what, where, found, wanted, and the way out.

use std::path::{Path, PathBuf};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, sorted by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its format demands: truncated, hostile, or of another kind.
    #[error("{}: {message}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What was found, what was wanted, and where in the file.
        message: String,
    },
    /// A tensor the architecture needs is not in the file.
    #[error("{}: tensor `{name}` is missing", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name in that file.
        name: String,
    },
    /// The system gave no memory, whatever the plan said.
    #[error("the system gives no more memory ({0}); choose a smaller model or draft, or a shorter context")]
    Allocation(std::io::Error),
    /// What was asked for cannot be done; the text says why and what would work.
    #[error("{0}")]
    Unsupported(String),
    /// An argument or parameter is out of its range; the text names it, the value and the range.
    #[error("{0}")]
    InvalidArgument(String),
    /// Target and draft do not speak the same tokens.
    #[error("the draft's vocabulary differs from the target's: {0}")]
    VocabMismatch(String),
    /// A prompt does not fit the model.
    #[error(
        "the prompt has {len} tokens, but the context holds {max} with the answer; shorten it or raise the context length"
    )]
    ContextOverflow {
        /// Tokens asked for.
        len: usize,
        /// Tokens the context holds.
        max: usize,
    },
    /// The model produced a logit that is not a number. Keys and values that f16 cannot hold end here too: they are
    /// kept as NaN, which reaches the logits of exactly those texts that see them.
    #[error(
        "the logits of step {step} hold NaN at token {token}; the weights or the backend are broken, or keys or \
         values are beyond the 65504 of f16 and want another type"
    )]
    NanLogits {
        /// 0-based index of the output token being computed.
        step: usize,
        /// The first token id whose logit is NaN.
        token: u32,
    },
    /// The memory plan does not fit.
    #[error("{what} needs {needed} bytes of memory, but only {available} are available; {advice}")]
    OutOfMemory {
        /// What was planned.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// What would make it fit.
        advice: String,
    },
    /// Every source of a model failed; each attempt says which and why.
    #[error("could not fetch {name}: {}", attempts.join("; "))]
    Fetch {
        /// The model or file asked for.
        name: String,
        /// One per source tried.
        attempts: Vec<String>,
    },
    /// The tensor library failed.
    #[error(transparent)]
    Tensor(candle_core::Error),
    /// A parameter's value makes no sense.
    #[error("{name} {problem}")]
    Parameter {
        /// The parameter, as its field is called.
        name: &'static str,
        /// The value and what is wanted in its place, to be read after the name.
        problem: String,
    },
    /// A model's tokenizer is missing or cannot be used; [`Overrides`](crate::Overrides) can give another.
    #[error("{}: {message}", path.display())]
    Tokenizer {
        /// The model's file.
        path: PathBuf,
        /// What was found and what would help.
        message: String,
    },
    /// A model's chat template is missing or cannot be used; [`Overrides`](crate::Overrides) can give
    /// another.
    #[error("{model}: {message}")]
    ChatTemplate {
        /// The model's name.
        model: String,
        /// What is wrong and what would help.
        message: String,
    },
    /// No model has this name.
    #[error(
        "no model is called `{name}`, and there is no such file{}; \
         a path to a .gguf file or a folder works too, and so does a hub repository org/name",
        did_you_mean(close)
    )]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// Names that resemble it, the closest first.
        close: Vec<String>,
    },
}

fn did_you_mean(close: &[String]) -> String {
    if close.is_empty() { String::new() } else { format!("; did you mean {}?", close.join(", ")) }
}

impl From<candle_core::Error> for Error {
    /// An error is one line: candle's backtrace, taken where `RUST_BACKTRACE` is set, stays out of it.
    fn from(error: candle_core::Error) -> Self {
        match error {
            candle_core::Error::WithBacktrace { inner, .. } => Self::from(*inner),
            error => Self::Tensor(error),
        }
    }
}

impl Error {
    /// An [`Error::Io`] at `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// An [`Error::Parameter`] called `name`.
    pub(crate) fn parameter(name: &'static str, problem: impl Into<String>) -> Self {
        Self::Parameter { name, problem: problem.into() }
    }

    /// An [`Error::Tokenizer`] of the model at `path`.
    pub(crate) fn tokenizer(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Tokenizer { path: path.as_ref().to_owned(), message: message.into() }
    }

    /// An [`Error::Format`] at `path`.
    pub fn format(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Format { path: path.as_ref().to_owned(), message: message.into() }
    }
}
