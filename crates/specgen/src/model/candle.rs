//! The candle backend: the same decoder over candle's operations, for CUDA and Metal, and on the CPU as the
//! reference our own kernels are checked against.

use std::{borrow::Cow, ops::Range, sync::Arc};

use candle_core::{
    DType, Device, Module, Tensor,
    quantized::{GgmlDType, QMatMul, QStorage, QTensor},
};
use candle_nn::{ops, rotary_emb};
use specgen_kernels::{AttentionShape, Format, KvType, RowKeys};

use super::{
    backend::{Backend, LayerKv, RopeShape, Span},
    config::Activation,
    rope::Rope,
};
use crate::{
    error::{Error, Result},
    weights,
};

/// Runs on a candle device.
pub(crate) struct Candle {
    device: Device,
}

impl Candle {
    pub(crate) fn new(device: Device) -> Self {
        Self { device }
    }

    /// 16-bit weights stay 16-bit where the device multiplies them; candle's CPU would widen them on every
    /// call.
    fn dense(&self, tensor: &weights::Tensor) -> Result<Tensor> {
        let dtype = match tensor.format() {
            Format::F16 if !self.device.is_cpu() => DType::F16,
            Format::BF16 if !self.device.is_cpu() => DType::BF16,
            _ => DType::F32,
        };
        if dtype == DType::F32 {
            return Ok(Tensor::from_vec(tensor.to_f32(), tensor.shape(), &self.device)?);
        }
        Ok(Tensor::from_raw_buffer(tensor.bytes(), dtype, tensor.shape(), &self.device)?)
    }

    fn quantized(&self, parts: &[weights::Tensor], dtype: GgmlDType) -> Result<QMatMul> {
        let (rows, cols) = (parts.iter().map(weights::Tensor::rows).sum::<usize>(), parts[0].cols());
        let bytes = match parts {
            [one] => Cow::Borrowed(one.bytes()),
            _ => Cow::Owned(parts.iter().flat_map(|part| part.bytes()).copied().collect()),
        };
        let storage = QStorage::from_data(bytes, &self.device, dtype)?;
        Ok(QMatMul::QTensor(Arc::new(QTensor::new(storage, (rows, cols))?)))
    }
}

/// candle's name of a quantised format; `None` for a dense one.
pub(super) fn ggml_dtype(name: &str, format: Format) -> Result<Option<GgmlDType>> {
    Ok(Some(match format {
        Format::F32 | Format::F16 | Format::BF16 => return Ok(None),
        Format::Q4_0 => GgmlDType::Q4_0,
        Format::Q4_1 => GgmlDType::Q4_1,
        Format::Q5_0 => GgmlDType::Q5_0,
        Format::Q5_1 => GgmlDType::Q5_1,
        Format::Q8_0 => GgmlDType::Q8_0,
        Format::Q2_K => GgmlDType::Q2K,
        Format::Q3_K => GgmlDType::Q3K,
        Format::Q4_K => GgmlDType::Q4K,
        Format::Q5_K => GgmlDType::Q5K,
        Format::Q6_K => GgmlDType::Q6K,
        other => {
            let message = format!("tensor `{name}` is stored as {other:?}, which this device cannot read");
            return Err(Error::Unsupported(message));
        }
    }))
}

/// Stacked weights that share their input: runs of one format are fused, their outputs lie side by side.
pub(crate) struct Linear {
    runs: Vec<Run>,
    bias: Option<Tensor>,
    /// As stored.
    bytes: u64,
}

enum Run {
    Dense(Tensor),
    Quantized(QMatMul),
}

/// Keys and values `[slots, kv_dim]` of one layer; capacity grows in steps, so that pointers rarely change.
pub(crate) struct Kv {
    k: Tensor,
    v: Tensor,
    kv_dim: usize,
}

impl Kv {
    fn reserve(&mut self, slots: usize) -> Result<()> {
        const STEP: usize = 1024;
        let held = self.k.dim(0)?;
        if held >= slots {
            return Ok(());
        }
        for tensor in [&mut self.k, &mut self.v] {
            let shape = (slots.next_multiple_of(STEP), self.kv_dim);
            let grown = Tensor::zeros(shape, DType::F32, tensor.device())?;
            if held > 0 {
                grown.slice_set(tensor, 0, 0)?;
            }
            *tensor = grown;
        }
        Ok(())
    }
}

impl LayerKv for Kv {
    fn copy_slot(&mut self, from: usize, to: usize) -> Result<()> {
        for tensor in [&self.k, &self.v] {
            // candle refuses to copy within one storage, and `contiguous` of a narrowed view is that storage.
            let row = tensor.narrow(0, from, 1)?.force_contiguous()?;
            tensor.slice_set(&row, 0, to)?;
        }
        Ok(())
    }

    /// A copy: candle writes rows into the storage that clones of a tensor share.
    fn fork(layers: &[Self]) -> Result<Vec<Self>> {
        let copy = |kv: &Self| Ok(Self { k: kv.k.copy()?, v: kv.v.copy()?, kv_dim: kv.kv_dim });
        layers.iter().map(copy).collect()
    }

    fn bytes(&self) -> u64 {
        ((self.k.elem_count() + self.v.elem_count()) * size_of::<f32>()) as u64
    }
}

/// Per span: its rows, the slots before and after this pass, and the additive mask `[rows, slots]` where not
/// everything is visible.
#[derive(Default)]
pub(crate) struct Plan(Vec<SpanPlan>);

struct SpanPlan {
    rows: Range<usize>,
    base: usize,
    slots: usize,
    mask: Option<Tensor>,
}

impl Backend for Candle {
    type Tensor = Tensor;
    type Linear = Linear;
    type Table = weights::Tensor;
    type Norm = Tensor;
    type LayerKv = Kv;
    type Plan = Plan;

    fn load_linear(&self, parts: &[weights::Tensor], bias: Option<Vec<f32>>) -> Result<Linear> {
        let mut runs = Vec::new();
        for run in parts.chunk_by(|a, b| a.format() == b.format()) {
            match ggml_dtype(run[0].name(), run[0].format())? {
                Some(dtype) => runs.push(Run::Quantized(self.quantized(run, dtype)?)),
                None => {
                    let dense = run.iter().map(|part| self.dense(part)).collect::<Result<Vec<_>>>()?;
                    runs.push(Run::Dense(Tensor::cat(&dense, 0)?.t()?));
                }
            }
        }
        let bias = bias.map(|bias| Tensor::new(bias, &self.device)).transpose()?;
        let bytes = parts.iter().map(|part| part.bytes().len() as u64).sum();
        Ok(Linear { runs, bias, bytes })
    }

    fn linear_bytes(&self, weight: &Linear) -> u64 {
        weight.bytes
    }

    fn load_table(&self, table: &weights::Tensor) -> Result<weights::Tensor> {
        Ok(table.clone())
    }

    fn load_norm(&self, weight: Vec<f32>) -> Result<Tensor> {
        Ok(Tensor::new(weight, &self.device)?)
    }

    fn new_kv(&self, layers: usize, kv_dim: usize) -> Vec<Kv> {
        let empty =
            || Tensor::zeros((0, kv_dim), DType::F32, &self.device).expect("an empty tensor needs no memory");
        (0..layers).map(|_| Kv { k: empty(), v: empty(), kv_dim }).collect()
    }

    fn kv_type(&self) -> KvType {
        KvType::F32
    }

    fn angles(&self, rope: &Rope, positions: &[usize]) -> Result<[Tensor; 2]> {
        let shape = (positions.len(), rope.pairs());
        let [mut cos, mut sin] = [vec![0.0; shape.0 * shape.1], vec![0.0; shape.0 * shape.1]];
        rope.angles(positions, &mut cos, &mut sin);
        Ok([Tensor::from_vec(cos, shape, &self.device)?, Tensor::from_vec(sin, shape, &self.device)?])
    }

    fn plan<'a>(
        &self,
        spans: impl Iterator<Item = Span<'a>>,
        window: Option<usize>,
        plan: &mut Plan,
    ) -> Result<()> {
        let of = |span: Span<'_>| {
            let (rows, slots) = (span.rows.len(), span.base + span.skipped + span.rows.len());
            let mut mask = vec![f32::NEG_INFINITY; rows * slots];
            for (row, mask) in mask.chunks_exact_mut(slots).enumerate() {
                let RowKeys { prefix, tail } = span.visible(row, window);
                mask[prefix].fill(0.0);
                tail.iter().for_each(|&slot| mask[slot as usize] = 0.0);
            }
            let mask = match mask.iter().all(|&m| m == 0.0) {
                true => None,
                false => Some(Tensor::from_vec(mask, (rows, slots), &self.device)?),
            };
            Ok(SpanPlan { rows: span.rows, base: span.base, slots, mask })
        };
        plan.0 = spans.map(of).collect::<Result<_>>()?;
        Ok(())
    }

    fn embed(&self, table: &weights::Tensor, tokens: &[u32]) -> Result<Tensor> {
        let (cols, row_bytes) = (table.cols(), table.bytes().len() / table.rows());
        let mut rows = vec![0.0; tokens.len() * cols];
        for (&id, row) in tokens.iter().zip(rows.chunks_exact_mut(cols)) {
            let bytes = &table.bytes()[id as usize * row_bytes..][..row_bytes];
            specgen_kernels::dequantize(table.format(), bytes, row);
        }
        Ok(Tensor::from_vec(rows, (tokens.len(), cols), &self.device)?)
    }

    fn linear(&self, weight: &Linear, x: &Tensor) -> Result<Tensor> {
        let run = |run: &Run| match run {
            Run::Dense(w) => x.to_dtype(w.dtype())?.matmul(w)?.to_dtype(DType::F32),
            Run::Quantized(w) => w.forward(x),
        };
        let mut outs = weight.runs.iter().map(run).collect::<candle_core::Result<Vec<_>>>()?;
        let out = if outs.len() == 1 { outs.remove(0) } else { Tensor::cat(&outs, 1)? };
        Ok(match &weight.bias {
            Some(bias) => out.broadcast_add(bias)?,
            None => out,
        })
    }

    fn norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        let groups = x.reshape(((), weight.elem_count()))?;
        Ok(ops::rms_norm(&groups, weight, eps)?.reshape(x.shape())?)
    }

    fn rotate(&self, x: Tensor, [cos, sin]: &[Tensor; 2], rope: RopeShape) -> Result<Tensor> {
        let (rows, cols) = x.dims2()?;
        let heads = x.reshape((1, rows, cols / rope.head_dim, rope.head_dim))?.transpose(1, 2)?; // [1, heads, rows, head_dim]
        let pairs = cos.dim(1)?;
        let turn = if rope.interleaved { rotary_emb::rope_i } else { rotary_emb::rope };
        let turned = turn(&heads.narrow(3, 0, 2 * pairs)?.contiguous()?, cos, sin)?;
        let heads = match rope.head_dim - 2 * pairs {
            0 => turned,
            rest => Tensor::cat(&[&turned, &heads.narrow(3, 2 * pairs, rest)?.contiguous()?], 3)?,
        };
        Ok(heads.transpose(1, 2)?.contiguous()?.reshape((rows, cols))?)
    }

    fn gate(&self, gate_up: &Tensor, activation: Activation) -> Result<Tensor> {
        let n = gate_up.dim(1)? / 2;
        let gate = gate_up.narrow(1, 0, n)?.contiguous()?;
        let gate = match activation {
            Activation::Silu => ops::silu(&gate)?,
            Activation::GeluTanh => gate.gelu()?,
        };
        Ok((gate * gate_up.narrow(1, n, n)?)?)
    }

    fn add(&self, x: Tensor, y: &Tensor) -> Result<Tensor> {
        Ok((x + y)?)
    }

    fn scale(&self, x: Tensor, by: f32) -> Result<Tensor> {
        Ok((x * f64::from(by))?)
    }

    fn logits(&self, weight: &Linear, x: &Tensor, softcap: Option<f32>, out: &mut Vec<f32>) -> Result<()> {
        let mut logits = self.linear(weight, x)?;
        if let Some(cap) = softcap {
            logits = capped(logits, cap)?;
        }
        out.clear();
        self.read(&logits, out)
    }

    fn columns(&self, x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
        Ok(x.narrow(1, columns.start, columns.len())?.contiguous()?)
    }

    fn select_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        Ok(x.index_select(&Tensor::new(rows, &self.device)?, 0)?)
    }

    fn store<'a>(
        &self,
        [k, v]: [&Tensor; 2],
        caches: impl Iterator<Item = Result<&'a mut Kv>>,
        plan: &Plan,
    ) -> Result<()> {
        for (span, kv) in plan.0.iter().zip(caches) {
            let kv = kv?;
            let (start, rows) = (span.rows.start, span.rows.len());
            kv.reserve(span.slots)?;
            kv.k.slice_set(&k.narrow(0, start, rows)?.contiguous()?, 0, span.base)?;
            kv.v.slice_set(&v.narrow(0, start, rows)?.contiguous()?, 0, span.base)?;
        }
        Ok(())
    }

    fn attend<'a>(
        &self,
        shape: &AttentionShape,
        q: &Tensor,
        caches: impl Iterator<Item = Result<&'a mut Kv>>,
        plan: &Plan,
    ) -> Result<Tensor> {
        let (kv_heads, head_dim) = (shape.num_kv_heads, shape.head_dim);
        let group = shape.num_heads / kv_heads;
        let mut outs = Vec::with_capacity(plan.0.len());
        for (span, kv) in plan.0.iter().zip(caches) {
            let kv = kv?;
            let (start, rows, slots) = (span.rows.start, span.rows.len(), span.slots);
            if rows == 0 {
                continue;
            }
            let per_head = |t: &Tensor| t.narrow(0, 0, slots)?.reshape((slots, kv_heads, head_dim));
            let keys = per_head(&kv.k)?.permute((1, 2, 0))?.contiguous()?; // [kv_heads, head_dim, slots]
            let values = per_head(&kv.v)?.transpose(0, 1)?.contiguous()?; // [kv_heads, slots, head_dim]
            let queries = q
                .narrow(0, start, rows)?
                .reshape((rows, kv_heads, group, head_dim))?
                .permute((1, 2, 0, 3))?
                .contiguous()?
                .reshape((kv_heads, group * rows, head_dim))?;
            let mut scores = (queries.matmul(&keys)? * f64::from(shape.scale))?;
            if let Some(cap) = shape.softcap {
                scores = capped(scores, cap)?;
            }
            let mut scores = scores.reshape((kv_heads * group, rows, slots))?;
            if let Some(mask) = &span.mask {
                scores = scores.broadcast_add(mask)?;
            }
            let probs = ops::softmax_last_dim(&scores)?.reshape((kv_heads, group * rows, slots))?;
            let out = probs
                .matmul(&values)?
                .reshape((kv_heads, group, rows, head_dim))?
                .permute((2, 0, 1, 3))?
                .contiguous()?
                .reshape((rows, shape.num_heads * head_dim))?;
            outs.push(out);
        }
        Ok(if outs.len() == 1 { outs.remove(0) } else { Tensor::cat(&outs, 0)? })
    }

    fn read(&self, x: &Tensor, out: &mut Vec<f32>) -> Result<()> {
        out.extend(x.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }
}

/// `cap * tanh(x / cap)`.
fn capped(x: Tensor, cap: f32) -> Result<Tensor> {
    Ok(((x / f64::from(cap))?.tanh()? * f64::from(cap))?)
}
