//! CPU kernels of specgen: slices in, slices out, no tensor library.
//!
//! Every number a row yields depends on that row's inputs only: not on how many rows ran with it,
//! their order, the number of threads or the instruction set.

#![allow(clippy::needless_range_loop, reason = "indices over small arrays read like the arithmetic they do")]

mod activations;
mod attention;
mod blocks;
mod definition;
mod dense;
mod dequantize;
mod format;
mod isa;
pub mod math;
mod matmul;
mod matrix;
mod pointwise;
mod portable;
mod team;
#[doc(hidden)]
pub mod testing;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod unpack;

pub use activations::Activations;
pub use attention::{AttentionShape, RowKeys, attention};
pub use dequantize::dequantize;
pub use format::Format;
pub use matmul::matmul;
pub use matrix::MatrixRef;
pub use pointwise::{
    add_assign, add_bias, gelu_tanh_mul, rms_norm, rope_interleaved, rope_neox, scale_assign, silu_mul,
    softcap,
};
pub use team::Team;
