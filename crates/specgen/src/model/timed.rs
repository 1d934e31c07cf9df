//! A backend that clocks another: where the time of a pass goes.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use specgen_kernels::{AttentionShape, KvType};

use super::{
    backend::{Backend, RopeShape, Span},
    config::Activation,
    rope::Rope,
};
use crate::{error::Result, weights};

/// What is told apart. Together they are all that happens on the device.
#[derive(Clone, Copy)]
enum Op {
    Matmul,
    Attention,
    Norm,
    Rope,
    Gate,
    Other,
}

/// In the order of [`Op`].
const NAMES: [&str; 6] = ["matmul", "attention", "norm", "rope", "gate", "other"];

/// `B`, with a clock for each kind of operation. Meant for backends that return when the work is done.
pub(crate) struct Timed<B> {
    inner: B,
    nanos: [AtomicU64; NAMES.len()],
}

impl<B> Timed<B> {
    pub(crate) fn new(inner: B) -> Self {
        Self { inner, nanos: Default::default() }
    }

    fn time<T>(&self, op: Op, f: impl FnOnce(&B) -> T) -> T {
        let start = Instant::now();
        let out = f(&self.inner);
        self.nanos[op as usize].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        out
    }
}

impl<B: Backend> Backend for Timed<B> {
    type Tensor = B::Tensor;
    type Linear = B::Linear;
    type Table = B::Table;
    type Norm = B::Norm;
    type LayerKv = B::LayerKv;
    type Plan = B::Plan;

    fn load_linear(&self, parts: &[weights::Tensor], bias: Option<Vec<f32>>) -> Result<B::Linear> {
        self.inner.load_linear(parts, bias)
    }
    fn load_table(&self, table: &weights::Tensor) -> Result<B::Table> {
        self.inner.load_table(table)
    }
    fn load_norm(&self, weight: Vec<f32>) -> Result<B::Norm> {
        self.inner.load_norm(weight)
    }
    fn new_kv(&self, layers: usize, kv_dim: usize) -> Vec<B::LayerKv> {
        self.inner.new_kv(layers, kv_dim)
    }
    fn kv_type(&self) -> KvType {
        self.inner.kv_type()
    }
    fn linear_bytes(&self, weight: &B::Linear) -> u64 {
        self.inner.linear_bytes(weight)
    }
    fn read_linear(&self, weight: &B::Linear) {
        self.inner.read_linear(weight);
    }
    fn op_times(&self) -> Vec<(&'static str, Duration)> {
        let taken = self.nanos.iter().map(|nanos| Duration::from_nanos(nanos.swap(0, Ordering::Relaxed)));
        NAMES.into_iter().zip(taken).collect()
    }

    fn angles(&self, rope: &Rope, positions: &[usize]) -> Result<[B::Tensor; 2]> {
        self.time(Op::Rope, |b| b.angles(rope, positions))
    }
    fn plan<'a>(
        &self,
        spans: impl Iterator<Item = Span<'a>>,
        window: Option<usize>,
        plan: &mut B::Plan,
    ) -> Result<()> {
        self.time(Op::Attention, |b| b.plan(spans, window, plan))
    }
    fn embed(&self, table: &B::Table, tokens: &[u32]) -> Result<B::Tensor> {
        self.time(Op::Other, |b| b.embed(table, tokens))
    }
    fn linear(&self, weight: &B::Linear, x: &B::Tensor) -> Result<B::Tensor> {
        self.time(Op::Matmul, |b| b.linear(weight, x))
    }
    fn logits(
        &self,
        weight: &B::Linear,
        x: &B::Tensor,
        softcap: Option<f32>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        self.time(Op::Matmul, |b| b.logits(weight, x, softcap, out))
    }
    fn norm(&self, x: &B::Tensor, weight: &B::Norm, eps: f32) -> Result<B::Tensor> {
        self.time(Op::Norm, |b| b.norm(x, weight, eps))
    }
    fn rotate(&self, x: B::Tensor, angles: &[B::Tensor; 2], rope: RopeShape) -> Result<B::Tensor> {
        self.time(Op::Rope, |b| b.rotate(x, angles, rope))
    }
    fn gate(&self, gate_up: &B::Tensor, activation: Activation) -> Result<B::Tensor> {
        self.time(Op::Gate, |b| b.gate(gate_up, activation))
    }
    fn add(&self, x: B::Tensor, y: &B::Tensor) -> Result<B::Tensor> {
        self.time(Op::Other, |b| b.add(x, y))
    }
    fn scale(&self, x: B::Tensor, by: f32) -> Result<B::Tensor> {
        self.time(Op::Other, |b| b.scale(x, by))
    }
    fn columns(&self, x: &B::Tensor, columns: Range<usize>) -> Result<B::Tensor> {
        self.time(Op::Other, |b| b.columns(x, columns))
    }
    fn select_rows(&self, x: &B::Tensor, rows: &[usize]) -> Result<B::Tensor> {
        self.time(Op::Other, |b| b.select_rows(x, rows))
    }
    fn store<'a>(
        &self,
        kv: [&B::Tensor; 2],
        caches: impl Iterator<Item = Result<&'a mut B::LayerKv>>,
        plan: &B::Plan,
    ) -> Result<()> {
        self.time(Op::Attention, |b| b.store(kv, caches, plan))
    }
    fn attend<'a>(
        &self,
        shape: &AttentionShape,
        q: &B::Tensor,
        caches: impl Iterator<Item = Result<&'a mut B::LayerKv>>,
        plan: &B::Plan,
    ) -> Result<B::Tensor> {
        self.time(Op::Attention, |b| b.attend(shape, q, caches, plan))
    }
    fn read(&self, x: &B::Tensor, out: &mut Vec<f32>) -> Result<()> {
        self.time(Op::Other, |b| b.read(x, out))
    }
}
