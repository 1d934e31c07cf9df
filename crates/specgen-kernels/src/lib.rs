//! CPU kernels of specgen: slices in, slices out, no tensor library.
//!
//! Every number a row yields depends on that row's inputs only: not on how many rows ran with it,
//! their order, the number of threads or the instruction set.

#![allow(clippy::needless_range_loop, reason = "indices over small arrays read like the arithmetic they do")]

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod arena;
mod attention;
mod blocks;
mod definition;
mod dense;
mod dequantize;
mod element;
mod format;
#[cfg(all(test, unix, not(miri)))]
mod guard;
mod isa;
mod kv;
mod layout;
pub mod math;
mod matmul;
mod matrix;
mod packed;
mod pointwise;
pub mod softmax;
mod team;
#[doc(hidden)]
pub mod testing;
mod tile;

pub use activations::Activations;
pub use arena::{Arena, Piece, Plain};
pub use attention::{AttentionShape, RowKeys, attention};
pub use dequantize::dequantize;
pub use format::Format;
pub use isa::{available_isas, choose_isa, isa};
pub use kv::{KvStore, KvType};
pub use matmul::{Weights, matmul};
pub use matrix::MatrixRef;
pub use packed::Packed;
pub use pointwise::{
    add_assign, add_bias, gelu_tanh_mul, rms_norm, rope_interleaved, rope_neox, scale_assign, silu_mul,
    softcap,
};
pub use team::{Team, read};
