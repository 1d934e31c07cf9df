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

#[cfg(test)]
mod tests {
    use super::*;

    /// A format, where its f16 scales lie, some elements, and a sum over all.
    type Known = (Format, &'static [usize], &'static [(usize, f32)], f64);

    /// Byte `i` of a block is `37 i + 11`, its scales are 1 and 1/2. The values were computed with
    /// the `gguf` Python package (0.19), which shares no code with this crate.
    #[test]
    fn known_blocks_have_known_values() {
        #[rustfmt::skip]
        let known: [Known; 10] = [
            (Format::Q4_0, &[0], &[(0, -3.0), (1, 2.0), (15, -8.0), (16, -3.0), (31, 0.0)], -518.0),
            (Format::Q4_1, &[0, 2], &[(0, 15.5), (1, 4.5), (15, 10.5), (16, 9.5), (31, 12.5)], 4247.0),
            (Format::Q5_0, &[0], &[(0, 9.0), (1, -2.0), (15, -12.0), (16, 14.0), (31, 1.0)], 112.0),
            (Format::Q5_1, &[0, 2], &[(0, 19.5), (1, 24.5), (15, 30.5), (16, 19.5), (31, 5.5)], 8165.0),
            (Format::Q8_0, &[0], &[(0, 85.0), (1, 122.0), (15, -128.0), (16, -91.0), (31, -48.0)], -8080.0),
            (Format::Q2_K, &[80, 82], &[
                (0, 33.0), (15, 22.0), (16, -1.5), (33, -2.5), (64, 10.5), (100, 20.0), (127, 42.0),
                (128, 7.5), (191, -3.0), (224, 2.5), (255, 4.5)
            ], 81916.0),
            (Format::Q3_K, &[108], &[
                (0, 81.0), (15, -54.0), (16, -96.0), (33, 44.0), (64, 34.0), (100, 0.0), (127, 72.0),
                (128, 2.0), (191, 81.0), (224, 12.0), (255, 42.0)
            ], 62006.0),
            (Format::Q4_K, &[0, 2], &[
                (0, 315.5), (15, 160.5), (16, 315.5), (33, 20.0), (64, 420.5), (100, 95.0), (127, 81.0),
                (128, 423.0), (191, 45.0), (224, 0.5), (255, 48.5)
            ], 2_716_535.0),
            (Format::Q5_K, &[0, 2], &[
                (0, 811.5), (15, 160.5), (16, 811.5), (33, -4.0), (64, 420.5), (100, 235.0), (127, -3.0),
                (128, 1047.0), (191, 645.0), (224, 60.5), (255, 108.5)
            ], 5_853_603.0),
            (Format::Q6_K, &[208], &[
                (0, -1431.0), (15, -318.0), (16, -432.0), (33, -672.0), (64, -3040.0), (100, 2523.0),
                (127, 1500.0), (128, -351.0), (191, -980.0), (224, 846.0), (255, -60.0)
            ], 561_320.0),
        ];
        for (format, scales, values, sum) in known {
            let mut block: Vec<u8> = (0..format.block_bytes()).map(|i| (37 * i + 11) as u8).collect();
            for (&at, scale) in scales.iter().zip([1.0, 0.5]) {
                block[at..at + 2].copy_from_slice(&f16::from_f32_const(scale).to_le_bytes());
            }
            let mut out = vec![0.0; format.block_len()];
            dequantize(format, &block, &mut out);
            for &(i, value) in values {
                assert_eq!(out[i], value, "{format:?} element {i}");
            }
            let weighted: f64 =
                out.iter().enumerate().map(|(i, &x)| (i % 97 + 1) as f64 * f64::from(x)).sum();
            assert_eq!(weighted, sum, "{format:?}");
        }
    }

    #[test]
    fn dense_values_come_back() {
        let x = [1.0, -0.5, 3.140_625, 65504.0, 0.0];
        for format in [Format::F32, Format::F16, Format::BF16] {
            let bytes = crate::testing::quantize(format, &x).expect("a dense format");
            let mut out = [0.0; 5];
            dequantize(format, &bytes, &mut out);
            let error = if format == Format::BF16 { 1.0 / 256.0 } else { 0.0 };
            assert!(x.iter().zip(out).all(|(x, y)| (x - y).abs() <= error * x.abs()), "{format:?}: {out:?}");
        }
    }

    #[test]
    fn the_test_quantiser_is_off_by_half_a_step() {
        let x = crate::testing::Rng::new(9).normals(320);
        for format in [Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1, Format::Q8_0] {
            let bytes = crate::testing::quantize(format, &x).expect("a 32-element format");
            let mut out = vec![0.0; x.len()];
            dequantize(format, &bytes, &mut out);
            for (bytes, (x, y)) in
                bytes.chunks_exact(format.block_bytes()).zip(x.chunks(32).zip(out.chunks(32)))
            {
                let step = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32_const();
                assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() <= 0.51 * step + 2e-3), "{format:?}");
            }
        }
    }
}
