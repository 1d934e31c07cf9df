//! specgen: exact speculative decoding of large language models.
//!
//! An [`Engine`] is loaded once and shared; a [`Session`] is one conversation with it; a [`Generation`] is a text on its
//! way, an iterator over its pieces. Models are named, found and fetched by [`models::Store`].
//!
//! Whoever extends it meets [`model::Model`], [`draft::Drafter`] and [`distribution::Distribution`]. With a model and a
//! drafter of your own, prompts are token ids:
//!
//! ```
//! use std::sync::Arc;
//!
//! use specgen::{Engine, SamplingParams, draft::NgramDrafter, model::ToyModel};
//!
//! let target = Arc::new(ToyModel::new(50, 7, 8.0));
//! let engine = Engine::from_parts(target, Arc::new(NgramDrafter::default()), 4, &[]);
//! let mut session = engine.session(SamplingParams::greedy())?;
//! let mut generation = session.generate(&[1, 2, 3][..], 20)?;
//! let ids: Vec<u32> = generation.by_ref().map(|piece| Ok(piece?.id)).collect::<specgen::Result<_>>()?;
//! assert_eq!(ids.len(), 20);
//! assert!(generation.stats().rounds <= 20);
//! # Ok::<(), specgen::Error>(())
//! ```

pub mod bench;
pub mod cache;
pub mod chat;
pub mod device;
pub mod distribution;
pub mod draft;
mod draft_source;
mod engine;
mod error;
mod files;
pub mod grammar;
pub mod memory;
pub mod model;
pub mod models;
mod open;
pub mod plan;
pub mod rng;
mod round;
mod samples;
pub mod sampling;
mod score;
mod sequence;
mod session;
mod spelling;
mod stats;
mod text;
pub mod tokenizer;
pub mod verify;
pub mod weights;

pub use draft_source::DraftSource;
pub use engine::{DEFAULT_CONTEXT_LEN, DEFAULT_MODEL, Engine, EngineBuilder, Overrides};
pub use error::{Error, Result};
pub use open::OpenModel;
pub use plan::Plan;
pub use round::Rounds;
pub use samples::Samples;
pub use sampling::SamplingParams;
pub use score::{Score, ScoreOptions, Scoring};
pub use sequence::{FinishReason, Memory, Piece, Request, RoundRecord, Sequence};
pub use session::{Generation, Prompt, Session};
pub use specgen_kernels::KvType;
pub use stats::{Round, Stats};
pub use verify::Verification;

/// The README's Rust compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
