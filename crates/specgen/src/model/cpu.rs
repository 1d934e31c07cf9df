//! The CPU backend: our own kernels over plain slices. Quantised weights are repacked; dense ones stay where the file
//! mapping has them.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use specgen_kernels as kernels;
use specgen_kernels::{
    Activations, Arena, AttentionShape, KvStore, MatrixRef, Packed, RowKeys, Team, Weights,
};

use super::{
    backend::{Backend, LayerKv, RopeShape, Span},
    config::Activation,
    rope::Angles,
};
use crate::{
    error::{Error, Result},
    weights,
};

/// Runs on a thread team.
pub(crate) struct Cpu {
    team: Arc<Team>,
    /// Where the repacked weights are.
    arena: Arc<Arena>,
    pool: Arc<Pool>,
}

impl Cpu {
    pub(crate) fn new(team: Arc<Team>) -> Self {
        Self { team, arena: Arena::new(), pool: Arc::default() }
    }

    /// Rows to be written: what they hold is left over from others.
    fn rows(&self, rows: usize, cols: usize) -> Rows {
        Rows { data: self.pool.take(rows * cols), cols, pool: Arc::clone(&self.pool) }
    }

    /// Rows like `x`'s, computed from them some at a time by all threads: `f(x, out)`.
    fn map(&self, x: &Rows, cols: usize, f: impl Fn(&[f32], &mut [f32]) + Sync) -> Rows {
        let mut out = self.rows(x.rows(), cols);
        self.team.share_rows(cols, &mut out.data, |rows, out| {
            f(&x.data[rows.start * x.cols..rows.end * x.cols], out);
        });
        out
    }
}

/// Buffers between two uses: a decoding loop allocates nothing.
#[derive(Default)]
struct Pool(Mutex<Vec<Vec<f32>>>);

impl Pool {
    fn take(&self, len: usize) -> Vec<f32> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that is large enough, else the largest, which grows.
        let fit = |buffer: &Vec<f32>| match buffer.capacity() {
            capacity if capacity >= len => (0, capacity),
            capacity => (1, usize::MAX - capacity),
        };
        let best = (0..spare.len()).min_by_key(|&i| fit(&spare[i]));
        let mut buffer = best.map(|i| spare.swap_remove(i)).unwrap_or_default();
        buffer.resize(len, 0.0);
        buffer
    }
}

/// Activations `[rows, cols]`, row-major.
pub(crate) struct Rows {
    data: Vec<f32>,
    cols: usize,
    pool: Arc<Pool>,
}

impl Rows {
    fn rows(&self) -> usize {
        self.data.len() / self.cols
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.data);
        self.pool.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

/// Stacked weights that share their input.
pub(crate) struct Linear {
    parts: Vec<Part>,
    bias: Option<Vec<f32>>,
    out: usize,
}

enum Part {
    Dense(weights::Tensor),
    Packed(Packed),
}

impl Part {
    fn bytes(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.bytes().len(),
            Self::Packed(packed) => packed.bytes(),
        }
    }

    fn weights(&self) -> Result<Weights<'_>> {
        Ok(match self {
            Self::Dense(tensor) => Weights::Dense(matrix(tensor)?),
            Self::Packed(packed) => Weights::Packed(packed),
        })
    }
}

/// A tensor's bytes as the kernels take them.
fn matrix(tensor: &weights::Tensor) -> Result<MatrixRef<'_>> {
    MatrixRef::new(tensor.format(), tensor.rows(), tensor.cols(), tensor.bytes()).ok_or_else(|| {
        Error::Unsupported(format!(
            "tensor `{}`: rows of {} elements do not fit blocks of {}",
            tensor.name(),
            tensor.cols(),
            tensor.format().block_len()
        ))
    })
}

impl LayerKv for KvStore {
    fn copy_slot(&mut self, from: usize, to: usize) -> Result<()> {
        KvStore::copy_slot(self, from, to);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        KvStore::bytes(self) as u64
    }
}

/// Per span: its rows, its cache's length, and what each row sees.
pub(crate) struct Plan(Vec<SpanPlan>);

struct SpanPlan {
    rows: Range<usize>,
    base: usize,
    visible: Vec<(Range<usize>, Vec<u32>)>,
}

impl Backend for Cpu {
    type Tensor = Rows;
    type Linear = Linear;
    type Table = weights::Tensor;
    type Norm = Vec<f32>;
    type LayerKv = KvStore;
    type Angles = Angles;
    type Plan = Plan;

    fn load_linear(&self, parts: &[weights::Tensor], bias: Option<Vec<f32>>) -> Result<Linear> {
        let pack = |tensor: &weights::Tensor| {
            let matrix = matrix(tensor)?;
            if matrix.format().block_len() == 1 {
                return Ok(Part::Dense(tensor.clone()));
            }
            let packed = Packed::new(&self.arena, &self.team, &matrix)
                .map_err(|error| Error::Unsupported(format!("no memory for `{}`: {error}", tensor.name())))?;
            tensor.release();
            Ok(Part::Packed(packed))
        };
        let out = parts.iter().map(weights::Tensor::rows).sum();
        Ok(Linear { parts: parts.iter().map(pack).collect::<Result<_>>()?, bias, out })
    }

    fn load_table(&self, table: &weights::Tensor) -> Result<weights::Tensor> {
        matrix(table)?;
        Ok(table.clone())
    }

    fn load_norm(&self, weight: Vec<f32>) -> Result<Vec<f32>> {
        Ok(weight)
    }

    fn new_kv(&self, kv_dim: usize) -> KvStore {
        KvStore::new(kv_dim)
    }

    fn kv_element_bytes(&self) -> u64 {
        size_of::<f32>() as u64
    }

    fn linear_bytes(&self, weight: &Linear) -> u64 {
        weight.parts.iter().map(|part| part.bytes() as u64).sum()
    }

    fn read_linear(&self, weight: &Linear) {
        for part in &weight.parts {
            match part {
                Part::Dense(tensor) => kernels::read(&self.team, tensor.bytes()),
                Part::Packed(packed) => packed.read(&self.team),
            }
        }
    }

    fn angles(&self, angles: &Angles) -> Result<Angles> {
        Ok(angles.clone())
    }

    fn plan(&self, spans: &[Span<'_>], window: Option<usize>) -> Result<Plan> {
        let plan = |span: &Span<'_>| SpanPlan {
            rows: span.rows.clone(),
            base: span.base,
            visible: (0..span.rows.len()).map(|row| span.visible(row, window)).collect(),
        };
        Ok(Plan(spans.iter().map(plan).collect()))
    }

    fn embed(&self, table: &weights::Tensor, tokens: &[u32]) -> Result<Rows> {
        let mut x = self.rows(tokens.len(), table.cols());
        let row_bytes = table.bytes().len() / table.rows();
        for (&id, row) in tokens.iter().zip(x.data.chunks_exact_mut(table.cols())) {
            kernels::dequantize(table.format(), &table.bytes()[id as usize * row_bytes..][..row_bytes], row);
        }
        Ok(x)
    }

    fn linear(&self, weight: &Linear, x: &Rows) -> Result<Rows> {
        let mut out = self.rows(x.rows(), weight.out);
        let parts = weight.parts.iter().map(Part::weights).collect::<Result<Vec<_>>>()?;
        let mut activations = Activations::new(&x.data, x.rows(), x.cols);
        kernels::matmul(&self.team, &parts, &mut activations, &mut out.data);
        if let Some(bias) = &weight.bias {
            kernels::add_bias(&mut out.data, bias);
        }
        Ok(out)
    }

    fn norm(&self, x: &Rows, weight: &Vec<f32>, eps: f32) -> Result<Rows> {
        Ok(self.map(x, x.cols, |x, out| kernels::rms_norm(x, weight, eps, out)))
    }

    fn rotate(&self, mut x: Rows, angles: &Angles, rope: RopeShape) -> Result<Rows> {
        let (heads, half) = (x.cols / rope.head_dim, angles.cos.len() / x.rows());
        let turn = if rope.interleaved { kernels::rope_interleaved } else { kernels::rope_neox };
        self.team.share_rows(x.cols, &mut x.data, |rows, x| {
            let rows = rows.start * half..rows.end * half;
            turn(x, heads, rope.head_dim, &angles.cos[rows.clone()], &angles.sin[rows]);
        });
        Ok(x)
    }

    fn gate(&self, gate_up: &Rows, activation: Activation) -> Result<Rows> {
        let n = gate_up.cols / 2;
        let gate = match activation {
            Activation::Silu => kernels::silu_mul,
            Activation::GeluTanh => kernels::gelu_tanh_mul,
        };
        Ok(self.map(gate_up, n, |gate_up, out| gate(gate_up, n, out)))
    }

    fn add(&self, mut x: Rows, y: &Rows) -> Result<Rows> {
        self.team.share_rows(x.cols, &mut x.data, |rows, x| {
            kernels::add_assign(x, &y.data[rows.start * y.cols..rows.end * y.cols]);
        });
        Ok(x)
    }

    fn scale(&self, mut x: Rows, by: f32) -> Result<Rows> {
        kernels::scale_assign(&mut x.data, by);
        Ok(x)
    }

    fn softcap(&self, mut x: Rows, cap: f32) -> Result<Rows> {
        kernels::softcap(&mut x.data, cap);
        Ok(x)
    }

    fn columns(&self, x: &Rows, columns: Range<usize>) -> Result<Rows> {
        let mut out = self.rows(x.rows(), columns.len());
        for (x, out) in x.data.chunks_exact(x.cols).zip(out.data.chunks_exact_mut(columns.len())) {
            out.copy_from_slice(&x[columns.clone()]);
        }
        Ok(out)
    }

    fn select_rows(&self, x: &Rows, rows: &[usize]) -> Result<Rows> {
        let mut out = self.rows(rows.len(), x.cols);
        for (&row, out) in rows.iter().zip(out.data.chunks_exact_mut(x.cols)) {
            out.copy_from_slice(&x.data[row * x.cols..][..x.cols]);
        }
        Ok(out)
    }

    fn attend(
        &self,
        shape: &AttentionShape,
        [q, k, v]: [&Rows; 3],
        caches: &mut [&mut KvStore],
        plan: &Plan,
    ) -> Result<Rows> {
        let mut out = self.rows(q.rows(), q.cols);
        for (span, kv) in plan.0.iter().zip(caches) {
            let elements = |cols: usize| span.rows.start * cols..span.rows.end * cols;
            kv.write(span.base, &k.data[elements(k.cols)], &v.data[elements(v.cols)]);
            let rows: Vec<_> =
                span.visible.iter().map(|(prefix, tail)| RowKeys { prefix: prefix.clone(), tail }).collect();
            let (q, out) = (&q.data[elements(q.cols)], &mut out.data[elements(q.cols)]);
            kernels::attention(&self.team, shape, q, kv, &rows, out);
        }
        Ok(out)
    }

    fn read(&self, x: &Rows, out: &mut Vec<f32>) -> Result<()> {
        out.extend_from_slice(&x.data);
        Ok(())
    }
}
