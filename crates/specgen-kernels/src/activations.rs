//! The input of a matmul and its quantised forms, each made once and shared by all weights it meets.
//!
//! A row is cut into blocks of 256 (for the K formats) or 32 (for the `_0` and `_1` ones). In a
//! block, `d = amax / 127` and `q = round_ties_even(x * (127 / amax))`, so `q` is in -127..=127.
//! A block whose `amax` is under 2^-100 is all zeros. One that holds an infinity or a NaN has
//! `d = NaN` and `q = 0`: every output of the row is then NaN.

/// Activations `[rows, cols]`, f32, with their quantised forms.
#[derive(Debug)]
pub struct Activations<'a> {
    x: &'a [f32],
    rows: usize,
    cols: usize,
    by_256: Option<Quantized>,
    by_32: Option<Quantized>,
}

/// Rows quantised block by block.
#[derive(Debug)]
pub(crate) struct Quantized {
    /// Elements in a block.
    pub(crate) block_len: usize,
    /// `[rows, cols]`.
    pub(crate) q: Vec<i8>,
    /// `[rows, cols / block_len]`.
    pub(crate) d: Vec<f32>,
    /// Sums of `q` over runs of 16 (blocks of 256) or of 32 (blocks of 32): `[rows, cols / run]`.
    pub(crate) sums: Vec<i16>,
}

impl<'a> Activations<'a> {
    /// Activations `[rows, cols]` in `x`. Nothing is computed yet.
    ///
    /// # Panics
    /// If `x` isn't `rows * cols` long.
    pub fn new(x: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(rows.checked_mul(cols), Some(x.len()), "activations of {rows} rows by {cols}");
        Self { x, rows, cols, by_256: None, by_32: None }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The f32 values.
    pub(crate) fn values(&self) -> &'a [f32] {
        self.x
    }

    /// Makes the form with blocks of `block_len` (32 or 256; 1 needs none) unless it is there.
    pub(crate) fn prepare(&mut self, block_len: usize) {
        let place = match block_len {
            256 => &mut self.by_256,
            32 => &mut self.by_32,
            _ => return,
        };
        if place.is_none() {
            *place = Some(Quantized::new(self.x, block_len));
        }
    }

    /// The form with blocks of `block_len`.
    pub(crate) fn quantized(&self, block_len: usize) -> &Quantized {
        let place = if block_len == 256 { &self.by_256 } else { &self.by_32 };
        place.as_ref().expect("prepared before the threads start")
    }
}

impl Quantized {
    fn new(x: &[f32], block_len: usize) -> Self {
        let run = Self::run(block_len);
        let mut new = Self {
            block_len,
            q: vec![0; x.len()],
            d: vec![0.0; x.len() / block_len],
            sums: vec![0; x.len() / run],
        };
        let sums = new.sums.chunks_exact_mut(block_len / run);
        let parts = x.chunks_exact(block_len).zip(new.q.chunks_exact_mut(block_len));
        for (((x, q), d), sums) in parts.zip(&mut new.d).zip(sums) {
            *d = quantize_block(x, q);
            for (sum, q) in sums.iter_mut().zip(q.chunks_exact(run)) {
                *sum = q.iter().map(|&q| i16::from(q)).sum();
            }
        }
        new
    }

    /// Elements that share a sum.
    pub(crate) fn run(block_len: usize) -> usize {
        block_len.min(if block_len == 256 { 16 } else { 32 })
    }
}

/// Quantises one block and returns its `d`.
fn quantize_block(x: &[f32], q: &mut [i8]) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to a whole number, ties to even
    const SMALLEST: f32 = 7.888_609e-31; // 2^-100: 127 / amax stays finite
    // Without the sign bit, the order of the bits is that of the values, with NaN above infinity.
    let amax_bits = x.iter().fold(0, |m: u32, x| m.max(x.to_bits() & 0x7fff_ffff));
    let amax = f32::from_bits(amax_bits);
    if !amax.is_finite() || amax < SMALLEST {
        q.fill(0);
        return if amax.is_finite() { 0.0 } else { f32::NAN };
    }
    let inverse = 127.0 / amax;
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inverse + ROUND).to_bits() as u8 as i8; // the low byte of the mantissa is the integer
    }
    amax / 127.0
}
