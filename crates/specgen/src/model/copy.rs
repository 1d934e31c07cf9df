//! A copy of a model in fewer bits, made from its own weights at load: to draft for it.

use std::{num::NonZero, thread};

use candle_core::{Device, Tensor, quantized::QTensor};
use specgen_kernels::{Format, Packed};

use super::candle::ggml_dtype;
use crate::{
    error::{Error, Result},
    weights::{self, TensorInfo, Weights},
};

/// What matrices can be made into, the fewest bits first.
const FORMATS: [(&str, Format); 10] = [
    ("q2_k", Format::Q2_K),
    ("q3_k", Format::Q3_K),
    ("q4_0", Format::Q4_0),
    ("q4_k", Format::Q4_K),
    ("q4_1", Format::Q4_1),
    ("q5_0", Format::Q5_0),
    ("q5_k", Format::Q5_K),
    ("q5_1", Format::Q5_1),
    ("q6_k", Format::Q6_K),
    ("q8_0", Format::Q8_0),
];

/// The format called `name`, in letters of either size.
///
/// # Errors
/// [`Error::InvalidArgument`] with the names there are.
pub(crate) fn format_named(name: &str) -> Result<Format> {
    let found = FORMATS.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
    found.map(|&(_, format)| format).ok_or_else(|| {
        let names = FORMATS.map(|(name, _)| name).join(", ");
        Error::InvalidArgument(match name {
            "" => format!("a copy of the target needs a format, as in `self:q4_0`; wanted one of {names}"),
            _ => format!("a copy of the target in `{name}`; wanted one of {names}"),
        })
    })
}

/// Bytes of the matrices of a model once they are in `format`, beside the model itself: its embedding table, called
/// `table`, is shared, unless it is the head as well.
///
/// # Errors
/// [`Error::Unsupported`] where rows are no whole blocks of the format, or no matrix would get smaller.
pub(crate) fn memory_bytes(weights: &Weights, table: &str, has_head: bool, format: Format) -> Result<u64> {
    let (mut sum, mut gets_smaller) = (0_u64, false);
    for TensorInfo { name, shape, bytes, .. } in weights.tensors() {
        let [rows, cols] = shape[..] else { continue };
        if has_head && name == table {
            continue;
        }
        let row_bytes = format.row_bytes(cols).ok_or_else(|| no_blocks(&name, cols, format))?;
        let is_smaller = (row_bytes as u64).saturating_mul(rows as u64) < bytes;
        let packed = Packed::bytes_of(format, rows, cols).map_or(u64::MAX, |bytes| bytes as u64);
        sum = sum.saturating_add(if is_smaller { packed } else { bytes });
        gets_smaller |= is_smaller;
    }
    if !gets_smaller {
        return Err(Error::Unsupported(format!(
            "a copy in {format:?} is no smaller than {} itself; choose a format of fewer bits, or another draft",
            weights.path().display()
        )));
    }
    Ok(sum)
}

fn no_blocks(name: &str, cols: usize, format: Format) -> Error {
    let fitting: Vec<&str> =
        FORMATS.iter().filter(|(_, other)| other.row_bytes(cols).is_some()).map(|&(name, _)| name).collect();
    let advice = match fitting[..] {
        [] => "no format fits; choose another draft".to_owned(),
        _ => format!("wanted one of {}", fitting.join(", ")),
    };
    Error::Unsupported(format!(
        "a copy in {format:?}: rows of tensor `{name}` have {cols} elements, no whole blocks of {}; {advice}",
        format.block_len()
    ))
}

/// Whether `matrix` takes fewer bytes in `format`.
pub(super) fn gets_smaller(matrix: &weights::Tensor, format: Format) -> bool {
    format.row_bytes(matrix.cols()).is_some_and(|bytes| bytes * matrix.rows() < matrix.bytes().len())
}

/// `matrix` in `format`, or as it is where that has no fewer bits.
///
/// # Errors
/// [`Error::Unsupported`] where its rows are no whole blocks of the format.
pub(super) fn requantized(matrix: weights::Tensor, format: Format) -> Result<weights::Tensor> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let row_bytes = format.row_bytes(cols).ok_or_else(|| no_blocks(matrix.name(), cols, format))?;
    if !gets_smaller(&matrix, format) {
        return Ok(matrix);
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let share = rows.div_ceil(threads).max(1);
    let mut bytes = vec![0; row_bytes * rows];
    thread::scope(|scope| {
        let shares = bytes.chunks_mut(share * row_bytes).enumerate();
        let workers: Vec<_> = shares
            .map(|(i, out)| {
                let matrix = &matrix;
                scope.spawn(move || quantize_rows(matrix, i * share, format, row_bytes, out))
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("quantising does not panic"))
    })?;
    matrix.release();
    Ok(matrix.replaced(format, bytes))
}

/// Fills `out` with the rows from `first` on, some at a time: as f32 they are large.
fn quantize_rows(
    matrix: &weights::Tensor,
    first: usize,
    format: Format,
    row_bytes: usize,
    out: &mut [u8],
) -> Result<()> {
    const ROWS: usize = 256;
    let cols = matrix.cols();
    let dtype = ggml_dtype(matrix.name(), format)?.expect("the formats above are quantised");
    let source_row = matrix.bytes().len() / matrix.rows();
    for (i, out) in out.chunks_mut(ROWS * row_bytes).enumerate() {
        let (start, rows) = (first + i * ROWS, out.len() / row_bytes);
        let mut values = vec![0.0; rows * cols];
        let source = &matrix.bytes()[start * source_row..(start + rows) * source_row];
        specgen_kernels::dequantize(matrix.format(), source, &mut values);
        let quantized = QTensor::quantize(&Tensor::from_vec(values, (rows, cols), &Device::Cpu)?, dtype)?;
        out.copy_from_slice(&quantized.data()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::weights::gguf_writer::GgufWriter;

    /// Matrices of f32 with these names and shapes.
    fn weights(matrices: &[(&str, [usize; 2])]) -> Weights {
        let mut writer = GgufWriter::new();
        for (name, shape) in matrices {
            let values = (0..shape[0] * shape[1]).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0);
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            writer = writer.tensor(name, Format::F32, shape, &bytes);
        }
        Weights::from_bytes("model.gguf", writer.finish()).unwrap()
    }

    #[test]
    fn every_row_is_quantised_whichever_thread_does_it() {
        // More rows than go at once, and no whole shares.
        let matrix = weights(&[("a", [1501, 64])]).tensor("a").unwrap();
        for (_, format) in FORMATS.into_iter().filter(|(_, format)| format.block_len() == 32) {
            let copy = requantized(matrix.clone(), format).unwrap();
            assert_eq!((copy.format(), copy.shape(), copy.name()), (format, matrix.shape(), "a"));
            assert_eq!(copy.bytes().len(), 1501 * format.row_bytes(64).unwrap());
            let step = 2.5 / f32::from(if format == Format::Q8_0 { 127_u8 } else { 8 });
            for (i, (x, y)) in matrix.to_f32().iter().zip(copy.to_f32()).enumerate() {
                assert!((x - y).abs() <= step, "{format:?}, element {i}: {x} became {y}");
            }
        }
    }

    #[test]
    fn what_a_copy_would_not_make_smaller_stays_as_it_is() {
        let matrix = weights(&[("a", [4, 64])]).tensor("a").unwrap();
        let small = requantized(matrix, Format::Q4_0).unwrap();
        let again = requantized(small.clone(), Format::Q8_0).unwrap();
        assert_eq!((again.format(), again.bytes()), (Format::Q4_0, small.bytes()));
    }

    #[test]
    fn a_copy_shares_the_embedding_table_unless_it_is_the_head() {
        let both = weights(&[("table", [32, 64]), ("head", [32, 64])]);
        let packed = |rows| Packed::bytes_of(Format::Q8_0, rows, 64).unwrap() as u64;
        assert_eq!(memory_bytes(&both, "table", true, Format::Q8_0).unwrap(), packed(32));
        let tied = weights(&[("table", [32, 64]), ("other", [16, 64])]);
        assert_eq!(memory_bytes(&tied, "table", false, Format::Q8_0).unwrap(), packed(32) + packed(16));
    }

    #[test]
    fn copies_that_cannot_be_are_refused_with_what_can() {
        let error = |weights: &Weights, format| {
            memory_bytes(weights, "table", false, format).unwrap_err().to_string()
        };
        assert_eq!(
            error(&weights(&[("a", [2, 96])]), Format::Q4_K),
            "a copy in Q4_K: rows of tensor `a` have 96 elements, no whole blocks of 256; wanted one of q4_0, q4_1, \
             q5_0, q5_1, q8_0"
        );
        assert!(
            error(&weights(&[("a", [2, 48])]), Format::Q4_0)
                .ends_with("no format fits; choose another draft")
        );
        let bytes = vec![0; 2 * Format::Q8_0.row_bytes(64).unwrap()];
        let stored = GgufWriter::new().tensor("a", Format::Q8_0, &[2, 64], &bytes).finish();
        let stored = Weights::from_bytes("model.gguf", stored).unwrap();
        assert!(error(&stored, Format::Q8_0).contains("no smaller than model.gguf itself"));
        assert!(memory_bytes(&stored, "table", false, Format::Q5_1).is_ok());
        assert_eq!(format_named("Q4_K").unwrap(), Format::Q4_K);
        let error = format_named("q9").unwrap_err().to_string();
        assert!(error.starts_with("a copy of the target in `q9`; wanted one of q2_k, "), "{error}");
        assert!(format_named("").unwrap_err().to_string().contains("needs a format, as in `self:q4_0`"));
    }
}
