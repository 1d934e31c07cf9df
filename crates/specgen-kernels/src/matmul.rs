//! Activations times weights, split over a team by output rows.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::isa::Level;
use crate::layout::TILE;
use crate::tile::{self, Job};
use crate::{Activations, MatrixRef, Packed, Team, dense};

/// Weights that may lie side by side; q, k and v are three.
const MAX_PARTS: usize = 4;

/// The weights of one output: what a matmul takes.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// Dense rows (f32, f16, bf16), as they lie in the file.
    Dense(MatrixRef<'a>),
    /// Quantised tiles.
    Packed(&'a Packed),
}

impl Weights<'_> {
    /// Out features.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense(matrix) => matrix.rows(),
            Self::Packed(packed) => packed.rows(),
        }
    }

    /// In features.
    pub fn cols(&self) -> usize {
        match self {
            Self::Dense(matrix) => matrix.cols(),
            Self::Packed(packed) => packed.cols(),
        }
    }

    /// Bytes a pass reads.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dense(matrix) => matrix.bytes().len(),
            Self::Packed(packed) => packed.bytes(),
        }
    }

    fn block_len(&self) -> usize {
        match self {
            Self::Dense(matrix) => matrix.format().block_len(),
            Self::Packed(packed) => packed.format().block_len(),
        }
    }

    fn tiles(&self) -> usize {
        self.rows().div_ceil(TILE)
    }

    /// What a tile costs to read; more than nothing.
    fn tile_cost(&self) -> usize {
        (self.bytes() / self.tiles().max(1)).max(1)
    }

    /// What all tiles cost.
    fn cost(&self) -> usize {
        self.tiles() * self.tile_cost()
    }

    /// The tiles that begin in `share`, where this part's cost begins at `start`.
    fn tiles_in(&self, start: usize, share: &Range<usize>) -> Range<usize> {
        let at = |cost: usize| cost.saturating_sub(start).div_ceil(self.tile_cost()).min(self.tiles());
        at(share.start)..at(share.end)
    }
}

/// `out = x * weights^T` for several weight matrices side by side.
///
/// `x` is `[m, cols]`, each part `[rows_i, cols]`, `out` `[m, sum of rows_i]` row-major: a row of
/// `out` holds its product with the first part, then with the second. Parts may differ in format.
/// A number depends on its weight row and its activation row only (see `definition.rs`).
///
/// # Panics
/// If a part's `cols` is not `x`'s, `out` has another length, or there are more than four parts.
pub fn matmul<'a>(
    team: &Team,
    parts: impl IntoIterator<Item = Weights<'a>>,
    x: &mut Activations<'_>,
    out: &mut [f32],
) {
    matmul_at(Level::get(), team, parts, x, out);
}

/// [`matmul`] with the instructions of `level`.
pub(crate) fn matmul_at<'a>(
    level: Level,
    team: &Team,
    parts: impl IntoIterator<Item = Weights<'a>>,
    x: &mut Activations<'_>,
    out: &mut [f32],
) {
    let (mut parts, mut places) = (parts.into_iter(), [None; MAX_PARTS]);
    for (place, part) in places.iter_mut().zip(&mut parts) {
        *place = Some(part);
    }
    assert!(parts.next().is_none(), "no more than {MAX_PARTS} weight matrices side by side");
    let parts = || places.iter().flatten();
    let (m, cols) = (x.rows(), x.cols());
    let (mut width, mut total) = (0, 0);
    for part in parts() {
        assert_eq!(part.cols(), cols, "in features of a weight matrix and of its input");
        x.prepare(team, level, part.block_len());
        width += part.rows();
        total += part.cost();
    }
    assert_eq!(out.len(), m * width, "output of {m} rows by {width}");
    if out.is_empty() || cols == 0 {
        return out.fill(0.0); // sums of nothing
    }
    let x = &*x;
    let out = Output { data: out.as_mut_ptr(), width };
    team.run(|worker, workers| {
        let share = total * worker / workers..total * (worker + 1) / workers;
        let (mut start, mut column) = (0, 0);
        for part in parts() {
            let tiles = part.tiles_in(start, &share);
            match part {
                _ if tiles.is_empty() => {}
                // SAFETY: sizes are checked above, and this worker alone has these tiles' columns.
                Weights::Dense(matrix) => unsafe {
                    dense::multiply(level, matrix, tiles, x.values(), m, &out, column);
                },
                Weights::Packed(weights) => {
                    let x = x.quantized(part.block_len());
                    let job = Job { weights, x, m, out: &out, column };
                    // SAFETY: as above; a level is only made where the CPU has it.
                    unsafe { tile::multiply(level, &job, tiles) }
                }
            }
            start += part.cost();
            column += part.rows();
        }
    });
}

/// The output matrix, written by all workers at different columns.
pub(crate) struct Output {
    data: *mut f32,
    width: usize,
}

// SAFETY: workers write disjoint elements and nobody reads before they have joined.
unsafe impl Sync for Output {}

impl Output {
    /// Writes `values` into row `row`, from `column` on.
    ///
    /// # Safety
    /// The elements must exist, and no other thread may touch them.
    #[inline(always)]
    pub(crate) unsafe fn set_row(&self, row: usize, column: usize, values: &[f32]) {
        // SAFETY: the caller vouches for it.
        unsafe {
            let to = self.data.add(row * self.width + column);
            to.copy_from_nonoverlapping(values.as_ptr(), values.len());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::definition::{dot_dense, dot_quantized};
    use crate::testing::{FORMATS, Rng, random};
    use crate::{Arena, Format, dequantize};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// The outputs of one part by definition, `[m, rows]`.
    fn by_definition(part: &MatrixRef<'_>, x: &Activations<'_>) -> Vec<f32> {
        let cols = part.cols();
        let one = |r: usize, row: usize| match part.format().block_len() {
            1 => dot_dense(part.format(), part.row(row), &x.values()[r * cols..(r + 1) * cols]),
            len => dot_quantized(part.format(), part.row(row), x.quantized(len), x.rows(), r),
        };
        (0..x.rows()).flat_map(|r| (0..part.rows()).map(move |row| one(r, row))).collect()
    }

    fn pack(arena: &Arc<Arena>, team: &Team, part: &MatrixRef<'_>) -> Option<Packed> {
        (part.format().block_len() > 1).then(|| Packed::new(arena, team, part).unwrap())
    }

    fn weights<'a>(part: &MatrixRef<'a>, packed: &'a Option<Packed>) -> Weights<'a> {
        packed.as_ref().map_or(Weights::Dense(*part), Weights::Packed)
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    /// Rows of very different sizes, some elements zero.
    fn inputs(rng: &mut Rng, m: usize, cols: usize) -> Vec<f32> {
        let mut x = rng.normals(m * cols);
        for (r, x) in x.chunks_exact_mut(cols).enumerate() {
            let size = [1.0, 1e-3, 30.0, 0.0][r % 4];
            for (i, x) in x.iter_mut().enumerate() {
                *x *= if i % 7 == r % 7 { 0.0 } else { size };
            }
        }
        x
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        #[cfg_attr(miri, ignore = "slow")]
        fn every_path_gives_the_bits_of_the_definition(
            format in 0..FORMATS.len(), other in 0..FORMATS.len(),
            m in 1usize..=33, rows in 1usize..70, blocks in 1usize..4, threads in 1usize..=4, seed: u64,
        ) {
            let formats = [FORMATS[format], FORMATS[other]];
            let longest = formats[0].block_len().max(formats[1].block_len());
            let cols = if longest == 1 { 37 * blocks } else { longest * blocks };
            let mut rng = Rng::new(seed);
            let x = inputs(&mut rng, m, cols);
            let data = formats.map(|format| random(format, rows * cols, rng.next()));
            let parts = [0, 1].map(|p| MatrixRef::new(formats[p], rows, cols, &data[p]).unwrap());
            let team = Team::new(threads);
            let arena = Arena::new();
            let packed: Vec<_> = parts.iter().map(|part| pack(&arena, &team, part)).collect();
            let weights = || parts.iter().zip(&packed).map(|(part, packed)| weights(part, packed));
            let mut first: Option<Vec<u32>> = None;
            for level in Level::available() {
                let mut act = Activations::new(&x, m, cols);
                let mut out = vec![f32::NAN; m * 2 * rows];
                matmul_at(level, &team, weights(), &mut act, &mut out);
                let wanted = [by_definition(&parts[0], &act), by_definition(&parts[1], &act)];
                for r in 0..m {
                    for (p, wanted) in wanted.iter().enumerate() {
                        let got = &out[(2 * r + p) * rows..(2 * r + p + 1) * rows];
                        let wanted = &wanted[r * rows..(r + 1) * rows];
                        prop_assert_eq!(bits(got), bits(wanted), "{:?} {:?} row {}", level, formats[p], r);
                    }
                }
                prop_assert_eq!(first.get_or_insert_with(|| bits(&out)), &bits(&out), "{:?}", level);
            }
        }
    }

    #[test]
    fn small_products_are_those_of_the_definition() {
        let (team, mut rng) = (Team::new(3), Rng::new(1));
        for format in FORMATS {
            let cols = if format.block_len() == 1 { 21 } else { format.block_len() };
            let (m, rows) = match cols {
                256 if cfg!(miri) => (1, 17),
                _ if cfg!(miri) => (2, 17),
                _ => (3, 35),
            };
            let (x, data) = (inputs(&mut rng, m, cols), random(format, rows * cols, rng.next()));
            let part = MatrixRef::new(format, rows, cols, &data).unwrap();
            let packed = pack(&Arena::new(), &team, &part);
            for level in Level::available() {
                let mut act = Activations::new(&x, m, cols);
                let mut out = vec![f32::NAN; m * rows];
                matmul_at(level, &team, [weights(&part, &packed)], &mut act, &mut out);
                assert_eq!(bits(&out), bits(&by_definition(&part, &act)), "{format:?} {level:?}");
            }
        }
    }

    /// Constant and alternating inputs with the largest weights and scales make the largest sums there are.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn the_largest_sums_do_not_overflow() {
        let (team, rows) = (Team::new(1), 18); // enough for the matrix unit
        for format in FORMATS.into_iter().filter(|format| format.block_len() > 1) {
            let cols = 512;
            for largest in [0xff, 0x80, 0x7f, 0] {
                let mut data = random(format, 16 * cols, 1);
                // Where the f16 scales lie in a block, which stay; and the bytes of Q6_K's and Q3_K's integer
                // scales.
                let (floats, scales): (&[usize], _) = match format {
                    Format::Q2_K => (&[80, 81, 82, 83], 0..0),
                    Format::Q3_K => (&[108, 109], 96..108),
                    Format::Q6_K => (&[208, 209], 192..208),
                    Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => (&[0, 1], 0..0),
                    _ => (&[0, 1, 2, 3], 0..0),
                };
                for (i, b) in data.iter_mut().enumerate() {
                    let at = i % format.block_bytes();
                    match format {
                        _ if floats.contains(&at) => {}
                        Format::Q6_K if scales.contains(&at) => *b = 0x80,
                        Format::Q3_K if scales.contains(&at) => *b = if largest == 0 { 0 } else { 0xff },
                        _ => *b = largest,
                    }
                }
                let part = MatrixRef::new(format, 16, cols, &data).unwrap();
                let packed = pack(&Arena::new(), &team, &part);
                let sign = |i: usize| if i >= cols && i % 2 == 1 { -1.0 } else { 1.0 };
                let x: Vec<f32> = (0..rows * cols).map(sign).collect();
                for level in Level::available() {
                    let mut act = Activations::new(&x, rows, cols);
                    let mut out = vec![0.0; rows * 16];
                    matmul_at(level, &team, [weights(&part, &packed)], &mut act, &mut out);
                    assert_eq!(
                        bits(&out),
                        bits(&by_definition(&part, &act)),
                        "{format:?} {level:?} {largest}"
                    );
                }
            }
        }
    }

    /// Prompts are longer than what shares one reading of the weights.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn many_rows_and_none() {
        let (team, arena) = (Team::new(2), Arena::new());
        for format in FORMATS {
            for (m, rows, blocks) in [(129, 35, 2), (145, 16, 1), (256, 1, 1), (0, 20, 1), (9, 20, 0)] {
                let cols = if format.block_len() == 1 { 40 * blocks } else { format.block_len() * blocks };
                let x = inputs(&mut Rng::new(m as u64), m, cols.max(1));
                let x = &x[..m * cols];
                let data = random(format, rows * cols, 7);
                let part = MatrixRef::new(format, rows, cols, &data).unwrap();
                let packed = pack(&arena, &team, &part);
                for level in Level::available() {
                    let mut act = Activations::new(x, m, cols);
                    let mut out = vec![f32::NAN; m * rows];
                    matmul_at(level, &team, [weights(&part, &packed)], &mut act, &mut out);
                    let wanted = if cols == 0 { vec![0.0; m * rows] } else { by_definition(&part, &act) };
                    assert_eq!(bits(&out), bits(&wanted), "{format:?} {level:?} {m} rows of {cols}");
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn products_are_close_to_those_of_the_values() {
        let team = Team::new(2);
        let (rows, cols) = (24, 1024);
        for format in FORMATS {
            let mut rng = Rng::new(3);
            let x = rng.normals(cols);
            let data = random(format, rows * cols, 4);
            let mut w = vec![0.0; rows * cols];
            dequantize(format, &data, &mut w);
            let mut out = vec![0.0; rows];
            let part = MatrixRef::new(format, rows, cols, &data).unwrap();
            let packed = pack(&Arena::new(), &team, &part);
            matmul(&team, [weights(&part, &packed)], &mut Activations::new(&x, 1, cols), &mut out);
            for (w, got) in w.chunks_exact(cols).zip(out) {
                let exact: f64 = w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                // An activation is off by at most half a step of amax / 127, amax about 4, evenly spread.
                let norm = w.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>().sqrt();
                let step = if format.block_len() == 1 { 1e-6 } else { 4.5 / 127.0 / 12f64.sqrt() };
                let error = (f64::from(got) - exact).abs() / (norm * step);
                assert!(error < 5.0, "{format:?}: {got} for {exact}, {error} deviations off");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn a_bad_number_spoils_its_row_only() {
        let team = Team::new(2);
        let (m, rows, cols) = (3, 20, 512);
        let clean = Rng::new(5).normals(m * cols);
        for format in FORMATS {
            let data = random(format, rows * cols, 6);
            let part = MatrixRef::new(format, rows, cols, &data).unwrap();
            let packed = pack(&Arena::new(), &team, &part);
            let run = |x: &[f32]| {
                let mut out = vec![0.0; m * rows];
                matmul(&team, [weights(&part, &packed)], &mut Activations::new(x, m, cols), &mut out);
                out
            };
            let wanted = run(&clean);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = clean.clone();
                x[cols + 300] = bad;
                let out = run(&x);
                assert!(out[rows..2 * rows].iter().all(|x| !x.is_finite()), "{format:?} {bad}");
                for r in [0, 2] {
                    let row = r * rows..(r + 1) * rows;
                    assert_eq!(bits(&out[row.clone()]), bits(&wanted[row]), "{format:?} {bad}");
                }
            }
            // Sizes at the ends of f32 must not turn into nonsense.
            for size in [1e-38, 1e-44, 1e37] {
                let x: Vec<f32> = clean.iter().map(|x| x * size).collect();
                assert!(run(&x).iter().all(|x| x.is_finite()), "{format:?} {size}");
            }
        }
    }

    #[test]
    fn sizes_that_do_not_agree_make_no_matrix() {
        assert!(MatrixRef::new(Format::Q4_K, 2, 128, &[0; 144]).is_none());
        assert!(MatrixRef::new(Format::Q4_K, 2, 256, &[0; 287]).is_none());
        assert!(MatrixRef::new(Format::Q4_K, 2, 256, &[0; 288]).is_some());
        assert!(MatrixRef::new(Format::F32, usize::MAX, 256, &[]).is_none());
        assert!(MatrixRef::new(Format::F16, 0, 256, &[]).is_some());
    }
}
