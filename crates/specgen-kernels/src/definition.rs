//! What a matmul means: one output from one weight row and one activation row, in plain scalar code.
//!
//! Every path must give these bits: the scalar twins at the end of this file are what tests compare with.
//! Inside a block all sums are integers, thus exact in any order; over the blocks runs one f32 chain in
//! ascending order, of correctly rounded steps, with `fma` fused. `dx` is the activation block's scale, `x`
//! its integers, `w = q - offset`:
//!
//! - Q4_0, Q5_0, Q8_0: `S = sum w x`; `acc = fma(dx, d * S, acc)`.
//! - Q4_1, Q5_1: the same with `w = q`, then `acc = fma(dx * sum x, m, acc)`.
//! - Q3_K, Q6_K: `I = sum_s scale_s * sum w x`; `acc = fma(dx, d * I, acc)`.
//! - Q2_K, Q4_K, Q5_K: `I` as before, `M = sum_s min_s * sum x`;
//!   `acc = fma(dx, fma(d, I, -(dmin * M)), acc)`.
//! - F32, F16, BF16: f32 products in 16 lanes (element `i` in lane `i % 16`), `lane = fma(w, x, lane)`,
//!   a last run of fewer than 16 filled up with zeros; then lanes `i` and `i + 8` are added, then
//!   `i + 4`, `i + 2`, `i + 1`.

/// Lanes of a dense sum.
pub(crate) const LANES: usize = 16;

/// The fixed tree over 16 lanes: `i + 8`, `i + 4`, `i + 2`, `i + 1`.
#[inline(always)]
pub(crate) fn add_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
pub(crate) use scalar::{QuantizedBlock, dot_dense, dot_quantized};

#[cfg(test)]
mod scalar {
    use half::{bf16, f16};

    use super::{LANES, add_lanes};
    use crate::Format;
    use crate::activations::Quantized;
    use crate::blocks::Block;

    /// One block of activations.
    #[derive(Clone, Copy)]
    pub(crate) struct QuantizedBlock<'a> {
        pub(crate) q: [i8; 256],
        /// How many of them are its elements.
        pub(crate) len: usize,
        pub(crate) d: f32,
        /// Sums over runs of 16, or of the whole block where it has 32 elements.
        pub(crate) sums: &'a [i16],
    }

    /// `acc` and the product of one block of weights, `w` its integers without the offset, with one of
    /// activations.
    fn step(format: Format, block: &Block, w: &[i16; 256], x: QuantizedBlock<'_>, acc: f32) -> f32 {
        let q = &x.q[..x.len];
        if let (32, Some(q)) = (block.len, q.first_chunk::<32>()) {
            let s = dot(w.first_chunk::<32>().expect("256 are more than 32"), q);
            let acc = x.d.mul_add(block.d * s as f32, acc);
            return if matches!(format, Format::Q4_1 | Format::Q5_1) {
                (x.d * f32::from(x.sums[0])).mul_add(block.m, acc)
            } else {
                acc
            };
        }
        let (mut i, mut m) = (0i32, 0i32);
        for (s, (w, q)) in w.as_chunks::<16>().0.iter().zip(q.as_chunks::<16>().0).enumerate() {
            i += block.scale[s] * dot(w, q);
            m += block.min[s] * i32::from(x.sums[s]);
        }
        let t = if matches!(format, Format::Q3_K | Format::Q6_K) {
            block.d * i as f32
        } else {
            block.d.mul_add(i as f32, -(block.m * m as f32))
        };
        x.d.mul_add(t, acc)
    }

    fn dot<const N: usize>(w: &[i16; N], x: &[i8; N]) -> i32 {
        w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
    }

    /// The product of one quantised weight row and row `row` of `rows` activation rows.
    pub(crate) fn dot_quantized(
        format: Format,
        weights: &[u8],
        x: &Quantized,
        rows: usize,
        row: usize,
    ) -> f32 {
        let (len, bytes) = (format.block_len(), format.block_bytes());
        let mut block = Block::new();
        let mut acc = 0.0f32;
        for (b, weights) in weights.chunks_exact(bytes).enumerate() {
            block.read(format, weights);
            acc = step(format, &block, &block.signed(), x.block(len, rows, row, b), acc);
        }
        acc
    }

    /// The product of one dense weight row and one activation row.
    pub(crate) fn dot_dense(format: Format, weights: &[u8], x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for i in 0..x.len().next_multiple_of(LANES) {
            let (w, x) = if i < x.len() { (dense_at(format, weights, i), x[i]) } else { (0.0, 0.0) };
            lanes[i % LANES] = w.mul_add(x, lanes[i % LANES]);
        }
        add_lanes(lanes)
    }

    fn dense_at(format: Format, weights: &[u8], i: usize) -> f32 {
        match format {
            Format::F32 => f32::from_le_bytes(weights.as_chunks::<4>().0[i]),
            Format::F16 => f16::from_le_bytes(weights.as_chunks::<2>().0[i]).to_f32_const(),
            _ => bf16::from_le_bytes(weights.as_chunks::<2>().0[i]).to_f32_const(),
        }
    }
}
