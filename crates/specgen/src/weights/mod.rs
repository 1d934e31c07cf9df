//! Weight files: GGUF and safetensors to named tensors; the one mmap.

pub mod metadata;
