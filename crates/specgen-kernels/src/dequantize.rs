//! Weights back to f32: whole blocks of any format, as embeddings and references need them.

use half::{bf16, f16};

use crate::Format;
use crate::blocks::Block;

/// Widens `bytes`, whole blocks of `format` in GGUF layout, into `out` (one f32 an element).
/// Rounds as ggml does: `(d * scale) * (q - offset) - dmin * min`, without fused steps.
///
/// # Panics
/// If `out` isn't exactly as long as the elements in `bytes`.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(format.row_bytes(out.len()), Some(bytes.len()), "{format:?} bytes for {} elements", out.len());
    match format {
        Format::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        Format::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = f16::from_le_bytes(*b).to_f32_const();
            }
        }
        Format::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = bf16::from_le_bytes(*b).to_f32_const();
            }
        }
        _ => {
            let mut block = Block::new();
            let chunks = out.chunks_exact_mut(format.block_len());
            for (out, bytes) in chunks.zip(bytes.chunks_exact(format.block_bytes())) {
                block.read(format, bytes);
                write_values(&block, out);
            }
        }
    }
}

fn write_values(block: &Block, out: &mut [f32]) {
    if block.len == 32 {
        for (o, &q) in out.iter_mut().zip(&block.q) {
            *o = (i32::from(q) - block.offset) as f32 * block.d + block.m;
        }
        return;
    }
    for (s, (out, q)) in out.chunks_exact_mut(16).zip(block.q.chunks_exact(16)).enumerate() {
        let scale = block.d * block.scale[s] as f32;
        let min = block.m * block.min[s] as f32;
        for (o, &q) in out.iter_mut().zip(q) {
            *o = scale * (i32::from(q) - block.offset) as f32 - min;
        }
    }
}
