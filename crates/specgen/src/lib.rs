//! specgen: exact speculative decoding of large language models.

pub mod cache;
pub mod chat;
pub mod device;
pub mod distribution;
pub mod draft;
mod engine;
mod error;
pub mod memory;
pub mod model;
pub mod models;
mod open;
pub mod rng;
mod round;
pub mod sampling;
mod sequence;
mod session;
mod stats;
mod text;
pub mod tokenizer;
pub mod verify;
pub mod weights;

pub use engine::{
    DEFAULT_CONTEXT_LEN, DEFAULT_MODEL, DEFAULT_NUM_DRAFT_TOKENS, DraftSource, Engine, EngineBuilder,
    Overrides,
};
pub use error::{Error, Result};
pub use open::OpenModel;
pub use round::Rounds;
pub use sampling::SamplingParams;
pub use sequence::{FinishReason, Memory, Piece, Request, Sequence};
pub use session::{Generation, Prompt, Session};
pub use stats::Stats;
