//! CPU kernels of specgen: slices in, slices out, no tensor library.

mod format;

pub use format::Format;
