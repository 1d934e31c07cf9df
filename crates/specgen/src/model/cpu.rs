//! The CPU backend: our own kernels over plain slices. Quantised weights are repacked; dense ones stay where
//! the file mapping has them.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use specgen_kernels as kernels;
use specgen_kernels::{
    Activations, Arena, AttentionShape, KvStore, KvType, MatrixRef, Packed, Piece, RowKeys, Team, Weights,
};

use super::{
    backend::{Backend, LayerKv, RopeShape, Span},
    config::Activation,
    rope::Rope,
};
use crate::{
    error::{Error, Result},
    weights,
};

/// Runs on a thread team.
pub(crate) struct Cpu {
    team: Arc<Team>,
    /// Where the weights are.
    arena: Arc<Arena>,
    pool: Arc<Pool>,
    kv_type: KvType,
}

impl Cpu {
    pub(crate) fn new(team: Arc<Team>, kv_type: KvType) -> Self {
        let arena = Arena::new();
        let pool = Arc::new(Pool { spare: Mutex::default(), arena: Arc::clone(&arena) });
        Self { team, arena, pool, kv_type }
    }

    /// A small weight beside the large ones.
    fn vector(&self, values: &[f32]) -> Result<Piece<f32>> {
        let mut piece = self.arena.alloc(values.len()).map_err(Error::Allocation)?;
        piece.copy_from_slice(values);
        Ok(piece)
    }

    fn multiply(&self, weight: &Linear, x: &Rows, out: &mut [f32]) {
        let parts = weight.parts.iter().map(Part::weights);
        kernels::matmul(&self.team, parts, &mut Activations::new(x.data(), x.rows(), x.cols), out);
        if let Some(bias) = &weight.bias {
            self.team.share_rows(weight.out, out, |_, out| kernels::add_bias(out, bias));
        }
    }

    /// Rows to be written: what they hold is left over from others.
    fn rows(&self, rows: usize, cols: usize) -> Result<Rows> {
        let len = rows * cols;
        Ok(Rows { buffer: Some(self.pool.take(len)?), len, cols, pool: Arc::clone(&self.pool) })
    }

    /// Rows like `x`'s, computed from them some at a time by all threads: `f(x, out)`.
    fn map(&self, x: &Rows, cols: usize, f: impl Fn(&[f32], &mut [f32]) + Sync) -> Result<Rows> {
        let mut out = self.rows(x.rows(), cols)?;
        self.team.share_rows(cols, out.data_mut(), |rows, out| {
            f(&x.data()[rows.start * x.cols..rows.end * x.cols], out);
        });
        Ok(out)
    }
}

/// Buffers between two uses: a decoding loop allocates no large ones.
struct Pool {
    spare: Mutex<Vec<Piece<f32>>>,
    arena: Arc<Arena>,
}

impl Pool {
    /// At least `len` elements, the smallest buffer that has them.
    fn take(&self, len: usize) -> Result<Piece<f32>> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = (0..spare.len()).filter(|&i| spare[i].len() >= len).min_by_key(|&i| spare[i].len());
        match fits {
            Some(i) => Ok(spare.swap_remove(i)),
            // In powers of two, so that buffers outgrown are not many.
            None => self.arena.alloc(len.next_power_of_two()).map_err(Error::Allocation),
        }
    }
}

/// Activations `[rows, cols]`, row-major.
pub(crate) struct Rows {
    /// Taken from `pool`, and maybe larger. `None` only while it is dropped.
    buffer: Option<Piece<f32>>,
    len: usize,
    cols: usize,
    pool: Arc<Pool>,
}

impl Rows {
    fn rows(&self) -> usize {
        self.len / self.cols
    }

    fn data(&self) -> &[f32] {
        &self.buffer.as_ref().expect("it is not being dropped")[..self.len]
    }

    fn data_mut(&mut self) -> &mut [f32] {
        &mut self.buffer.as_mut().expect("it is not being dropped")[..self.len]
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        let mut spare = self.pool.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.extend(self.buffer.take());
    }
}

/// Stacked weights that share their input.
pub(crate) struct Linear {
    parts: Vec<Part>,
    bias: Option<Piece<f32>>,
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

    fn weights(&self) -> Weights<'_> {
        match self {
            Self::Dense(tensor) => Weights::Dense(matrix(tensor).expect("it was one when it was loaded")),
            Self::Packed(packed) => Weights::Packed(packed),
        }
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
        KvStore::copy_slot(self, from, to).map_err(Error::Allocation)
    }

    fn bytes(&self) -> u64 {
        KvStore::bytes(self) as u64
    }

    fn fork(layers: &[Self]) -> Result<Vec<Self>> {
        let arena = Arena::new();
        Ok(layers.iter().map(|layer| KvStore::fork(layer, &arena)).collect())
    }
}

/// What the rows of a batch see.
#[derive(Default)]
pub(crate) struct Plan {
    /// Per span, its rows and its cache's length.
    spans: Vec<(Range<usize>, usize)>,
    /// Per row of the batch.
    visible: Vec<RowKeys>,
}

impl Backend for Cpu {
    type Tensor = Rows;
    type Linear = Linear;
    type Table = weights::Tensor;
    type Norm = Piece<f32>;
    type LayerKv = KvStore;
    type Plan = Plan;

    fn load_linear(&self, parts: &[weights::Tensor], bias: Option<Vec<f32>>) -> Result<Linear> {
        let pack = |tensor: &weights::Tensor| {
            let matrix = matrix(tensor)?;
            if matrix.format().block_len() == 1 {
                return Ok(Part::Dense(tensor.clone()));
            }
            let packed = Packed::new(&self.arena, &self.team, &matrix).map_err(Error::Allocation)?;
            tensor.release();
            Ok(Part::Packed(packed))
        };
        let out = parts.iter().map(weights::Tensor::rows).sum();
        let bias = bias.map(|bias| self.vector(&bias)).transpose()?;
        Ok(Linear { parts: parts.iter().map(pack).collect::<Result<_>>()?, bias, out })
    }

    fn load_table(&self, table: &weights::Tensor) -> Result<weights::Tensor> {
        matrix(table)?;
        Ok(table.clone())
    }

    fn load_norm(&self, weight: Vec<f32>) -> Result<Piece<f32>> {
        self.vector(&weight)
    }

    fn new_kv(&self, layers: usize, kv_dim: usize) -> Vec<KvStore> {
        let arena = Arena::new();
        (0..layers).map(|_| KvStore::new(&arena, self.kv_type, kv_dim)).collect()
    }

    fn kv_type(&self) -> KvType {
        self.kv_type
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

    fn angles(&self, rope: &Rope, positions: &[usize]) -> Result<[Rows; 2]> {
        let rows = || self.rows(positions.len(), rope.pairs());
        let [mut cos, mut sin] = [rows()?, rows()?];
        rope.angles(positions, cos.data_mut(), sin.data_mut());
        Ok([cos, sin])
    }

    fn plan<'a>(
        &self,
        spans: impl Iterator<Item = Span<'a>>,
        window: Option<usize>,
        plan: &mut Plan,
    ) -> Result<()> {
        plan.spans.clear();
        plan.visible.clear();
        for span in spans {
            plan.visible.extend((0..span.rows.len()).map(|row| span.visible(row, window)));
            plan.spans.push((span.rows, span.base));
        }
        Ok(())
    }

    fn embed(&self, table: &weights::Tensor, tokens: &[u32]) -> Result<Rows> {
        let mut x = self.rows(tokens.len(), table.cols())?;
        let row_bytes = table.bytes().len() / table.rows();
        for (&id, row) in tokens.iter().zip(x.data_mut().chunks_exact_mut(table.cols())) {
            kernels::dequantize(table.format(), &table.bytes()[id as usize * row_bytes..][..row_bytes], row);
        }
        Ok(x)
    }

    fn linear(&self, weight: &Linear, x: &Rows) -> Result<Rows> {
        let mut out = self.rows(x.rows(), weight.out)?;
        self.multiply(weight, x, out.data_mut());
        Ok(out)
    }

    fn logits(&self, weight: &Linear, x: &Rows, softcap: Option<f32>, out: &mut Vec<f32>) -> Result<()> {
        out.resize(x.rows() * weight.out, 0.0);
        self.multiply(weight, x, out);
        if let Some(cap) = softcap {
            self.team.share_rows(weight.out, out, |_, out| kernels::softcap(out, cap));
        }
        Ok(())
    }

    fn norm(&self, x: &Rows, weight: &Piece<f32>, eps: f32) -> Result<Rows> {
        self.map(x, x.cols, |x, out| kernels::rms_norm(x, weight, eps, out))
    }

    fn rotate(&self, mut x: Rows, [cos, sin]: &[Rows; 2], rope: RopeShape) -> Result<Rows> {
        let heads = x.cols / rope.head_dim;
        let turn = if rope.interleaved { kernels::rope_interleaved } else { kernels::rope_neox };
        self.team.share_rows(x.cols, x.data_mut(), |rows, x| {
            let angles = rows.start * cos.cols..rows.end * cos.cols;
            turn(x, heads, rope.head_dim, &cos.data()[angles.clone()], &sin.data()[angles]);
        });
        Ok(x)
    }

    fn gate(&self, gate_up: &Rows, activation: Activation) -> Result<Rows> {
        let n = gate_up.cols / 2;
        let gate = match activation {
            Activation::Silu => kernels::silu_mul,
            Activation::GeluTanh => kernels::gelu_tanh_mul,
        };
        self.map(gate_up, n, |gate_up, out| gate(gate_up, n, out))
    }

    fn add(&self, mut x: Rows, y: &Rows) -> Result<Rows> {
        self.team.share_rows(x.cols, x.data_mut(), |rows, x| {
            kernels::add_assign(x, &y.data()[rows.start * y.cols..rows.end * y.cols]);
        });
        Ok(x)
    }

    fn scale(&self, mut x: Rows, by: f32) -> Result<Rows> {
        kernels::scale_assign(x.data_mut(), by);
        Ok(x)
    }

    fn columns(&self, x: &Rows, columns: Range<usize>) -> Result<Rows> {
        let mut out = self.rows(x.rows(), columns.len())?;
        self.team.share_rows(columns.len(), out.data_mut(), |rows, out| {
            for (row, out) in rows.zip(out.chunks_exact_mut(columns.len())) {
                out.copy_from_slice(&x.data()[row * x.cols..][columns.clone()]);
            }
        });
        Ok(out)
    }

    fn select_rows(&self, x: &Rows, rows: &[usize]) -> Result<Rows> {
        let mut out = self.rows(rows.len(), x.cols)?;
        for (&row, out) in rows.iter().zip(out.data_mut().chunks_exact_mut(x.cols)) {
            out.copy_from_slice(&x.data()[row * x.cols..][..x.cols]);
        }
        Ok(out)
    }

    fn store<'a>(
        &self,
        [k, v]: [&Rows; 2],
        caches: impl Iterator<Item = Result<&'a mut KvStore>>,
        plan: &Plan,
    ) -> Result<()> {
        for ((rows, base), kv) in plan.spans.iter().zip(caches) {
            let elements = rows.start * k.cols..rows.end * k.cols;
            kv?.write(*base, &k.data()[elements.clone()], &v.data()[elements]).map_err(Error::Allocation)?;
        }
        Ok(())
    }

    fn attend<'a>(
        &self,
        shape: &AttentionShape,
        q: &Rows,
        caches: impl Iterator<Item = Result<&'a mut KvStore>>,
        plan: &Plan,
    ) -> Result<Rows> {
        let mut out = self.rows(q.rows(), q.cols)?;
        for ((rows, _), kv) in plan.spans.iter().zip(caches) {
            let elements = rows.start * q.cols..rows.end * q.cols;
            let (q, out) = (&q.data()[elements.clone()], &mut out.data_mut()[elements]);
            kernels::attention(&self.team, shape, q, kv?, &plan.visible[rows.clone()], out);
        }
        Ok(out)
    }

    fn read(&self, x: &Rows, out: &mut Vec<f32>) -> Result<()> {
        out.extend_from_slice(x.data());
        Ok(())
    }
}
