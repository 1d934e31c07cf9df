//! Weights for tests: a plain quantiser for the 32-element and dense formats, random valid blocks for all.
//! And the CPU's rate, for those who time kernels.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Isa` covers what `dispatch` makes")]

use std::hint::black_box;
use std::time::Instant;

use half::{bf16, f16};

use crate::Format;
use crate::isa::{Level, dispatch};

/// Every format.
pub const FORMATS: [Format; 13] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q2_K,
    Format::Q3_K,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
];

/// Seconds that a multiplication and addition of sixteen f32 takes where none waits for another; the best of
/// some.
pub fn fma_seconds() -> f64 {
    const TIMES: usize = 20_000;
    let burst = |_| {
        let start = Instant::now();
        let x = black_box(0.5f32);
        black_box(dispatch!(Level::get(), |S| fn(x: f32) -> f32 {
            let x = S::splat_f(x);
            let mut sums = [x; 12];
            for _ in 0..TIMES {
                for sum in &mut sums {
                    *sum = S::fma(*sum, x, x);
                }
            }
            sums.into_iter().map(|sum| S::sum_f(sum)).sum()
        }));
        start.elapsed().as_secs_f64() / (12 * TIMES) as f64
    };
    (0..200).map(burst).fold(f64::MAX, f64::min)
}

/// Quantises `x` to the nearest representable values, block by block. `None` for the K formats, whose
/// scales need a search (use [`random`]), and where `x` is not whole blocks.
pub fn quantize(format: Format, x: &[f32]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(format.row_bytes(x.len())?);
    match format {
        Format::F32 => out.extend(x.iter().flat_map(|x| x.to_le_bytes())),
        Format::F16 => out.extend(x.iter().flat_map(|&x| f16::from_f32_const(x).to_le_bytes())),
        Format::BF16 => out.extend(x.iter().flat_map(|&x| bf16::from_f32_const(x).to_le_bytes())),
        Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => {
            for block in x.chunks_exact(32) {
                quantize_32(format, block, &mut out);
            }
        }
        _ => return None,
    }
    Some(out)
}

fn quantize_32(format: Format, x: &[f32], out: &mut Vec<u8>) {
    let bits = match format {
        Format::Q8_0 => 8,
        Format::Q5_0 | Format::Q5_1 => 5,
        _ => 4,
    };
    let top = ((1u32 << bits) - 1) as f32;
    let with_min = matches!(format, Format::Q4_1 | Format::Q5_1);
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(l, h), &x| (l.min(x), h.max(x)));
    let amax = high.max(-low);
    let (d, base) = if with_min { ((high - low) / top, low) } else { (2.0 * amax / (top - 1.0), 0.0) };
    let (d, base) = (f16::from_f32_const(d), f16::from_f32_const(base));
    let (df, basef) = (d.to_f32_const(), base.to_f32_const());
    let inverse = if df == 0.0 { 0.0 } else { 1.0 / df };
    let shift = if with_min { 0.0 } else { (1u32 << (bits - 1)) as f32 };
    let q: Vec<u8> =
        x.iter().map(|x| ((x - basef) * inverse + shift).round_ties_even().clamp(0.0, top) as u8).collect();
    out.extend(d.to_le_bytes());
    if with_min {
        out.extend(base.to_le_bytes());
    }
    if bits == 8 {
        out.extend(q.iter().map(|q| q ^ 0x80));
        return;
    }
    if bits == 5 {
        let high = q.iter().enumerate().fold(0u32, |bits, (i, &q)| bits | u32::from(q >> 4) << i);
        out.extend(high.to_le_bytes());
    }
    out.extend((0..16).map(|j| (q[j] & 15) | (q[j + 16] & 15) << 4));
}

/// `len` elements of random valid blocks: any bits, but finite values of a weight's usual size.
///
/// # Panics
/// If `len` is not whole blocks.
pub fn random(format: Format, len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = vec![0u8; format.row_bytes(len).expect("whole blocks")];
    match format {
        Format::F32 | Format::F16 | Format::BF16 => {
            let x: Vec<f32> = (0..len).map(|_| rng.normal() * 0.05).collect();
            return quantize(format, &x).expect("a dense format");
        }
        _ => {}
    }
    out.fill_with(|| (rng.next() >> 32) as u8);
    // Where the f16 scales lie in a block.
    let scales: &[usize] = match format {
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q2_K => &[80, 82],
        Format::Q3_K => &[108],
        Format::Q6_K => &[208],
        _ => &[0],
    };
    for block in out.chunks_exact_mut(format.block_bytes()) {
        for &at in scales {
            let size = if format.block_len() == 256 { 2e-4 } else { 5e-3 };
            let d = f16::from_f32_const((rng.uniform() + 0.1) * size);
            block[at..at + 2].copy_from_slice(&d.to_le_bytes());
        }
    }
    out
}

/// A small random number generator (SplitMix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..1`.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal, variance 1 (the sum of 12 uniforms).
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    /// `len` values of [`Self::normal`].
    pub fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }
}
