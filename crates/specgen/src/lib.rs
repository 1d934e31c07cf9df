//! specgen: exact speculative decoding of large language models.

pub mod cache;
pub mod chat;
pub mod device;
pub mod distribution;
pub mod draft;
pub mod error;
pub mod model;
pub mod models;
pub mod rng;
pub mod sampling;
pub mod tokenizer;
pub mod verify;
pub mod weights;

pub use error::{Error, Result};
