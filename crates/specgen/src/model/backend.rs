//! `Backend`: the operations the decoder is written in, so that it is written once for every device.

use std::{ops::Range, time::Duration};

use specgen_kernels::{AttentionShape, KvType, RowKeys};

use super::{batch::Tree, config::Activation, rope::Rope};
use crate::{cache::Storage, error::Result, weights};

/// A device's tensors and operations. Activations are f32 `[rows, cols]`; a row never depends on its
/// neighbours.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Activations `[rows, cols]`.
    type Tensor: Send;
    /// A weight `[out, in]`, possibly several stacked, with their bias.
    type Linear: Send + Sync;
    /// An embedding table `[vocab_size, hidden_size]` whose rows are dequantised on use.
    type Table: Send + Sync;
    /// A norm's weight.
    type Norm: Send + Sync;
    /// One layer's keys and values of one sequence.
    type LayerKv: LayerKv;
    /// What each row of a batch may see.
    type Plan: Default + Send;

    /// Stacks `parts` (each `[out, in]`) into one weight whose outputs lie side by side.
    fn load_linear(&self, parts: &[weights::Tensor], bias: Option<Vec<f32>>) -> Result<Self::Linear>;
    fn load_table(&self, table: &weights::Tensor) -> Result<Self::Table>;
    fn load_norm(&self, weight: Vec<f32>) -> Result<Self::Norm>;
    /// Empty stores for the layers of a sequence, for rows of `kv_dim` elements.
    fn new_kv(&self, layers: usize, kv_dim: usize) -> Vec<Self::LayerKv>;
    /// How keys and values are kept.
    fn kv_type(&self) -> KvType;

    /// Bytes a pass reads of a weight.
    fn linear_bytes(&self, weight: &Self::Linear) -> u64;
    /// Reads them and does nothing with them.
    fn read_linear(&self, _weight: &Self::Linear) {}
    /// Time spent since the last call, by kind of operation, where there are clocks.
    fn op_times(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
    }

    /// Cosines and sines of rows at `positions`.
    fn angles(&self, rope: &Rope, positions: &[usize]) -> Result<[Self::Tensor; 2]>;
    /// Makes `plan` that of `spans`, whatever it was.
    fn plan<'a>(
        &self,
        spans: impl Iterator<Item = Span<'a>>,
        window: Option<usize>,
        plan: &mut Self::Plan,
    ) -> Result<()>;

    fn embed(&self, table: &Self::Table, tokens: &[u32]) -> Result<Self::Tensor>;
    fn linear(&self, weight: &Self::Linear, x: &Self::Tensor) -> Result<Self::Tensor>;
    /// What [`Self::linear`] gives, soft-capped where there is a cap, as all that `out` holds.
    fn logits(
        &self,
        weight: &Self::Linear,
        x: &Self::Tensor,
        softcap: Option<f32>,
        out: &mut Vec<f32>,
    ) -> Result<()>;
    /// RMS norm over groups of as many elements as the weight has: whole rows, or heads.
    fn norm(&self, x: &Self::Tensor, weight: &Self::Norm, eps: f32) -> Result<Self::Tensor>;
    fn rotate(&self, x: Self::Tensor, angles: &[Self::Tensor; 2], rope: RopeShape) -> Result<Self::Tensor>;
    /// `activation(gate) * up` of rows that hold gate, then up.
    fn gate(&self, gate_up: &Self::Tensor, activation: Activation) -> Result<Self::Tensor>;
    fn add(&self, x: Self::Tensor, y: &Self::Tensor) -> Result<Self::Tensor>;
    fn scale(&self, x: Self::Tensor, by: f32) -> Result<Self::Tensor>;
    fn columns(&self, x: &Self::Tensor, columns: Range<usize>) -> Result<Self::Tensor>;
    fn select_rows(&self, x: &Self::Tensor, rows: &[usize]) -> Result<Self::Tensor>;
    /// Writes each span's keys and values behind what its cache holds. `caches` are in span order.
    fn store<'a>(
        &self,
        kv: [&Self::Tensor; 2],
        caches: impl Iterator<Item = Result<&'a mut Self::LayerKv>>,
        plan: &Self::Plan,
    ) -> Result<()>;
    /// Attends to what the caches hold, the pass's own keys included.
    fn attend<'a>(
        &self,
        shape: &AttentionShape,
        q: &Self::Tensor,
        caches: impl Iterator<Item = Result<&'a mut Self::LayerKv>>,
        plan: &Self::Plan,
    ) -> Result<Self::Tensor>;
    /// Appends all elements to `out`.
    fn read(&self, x: &Self::Tensor, out: &mut Vec<f32>) -> Result<()>;
}

/// One layer's keys and values of one sequence.
pub(crate) trait LayerKv: Send + 'static {
    fn copy_slot(&mut self, from: usize, to: usize) -> Result<()>;
    fn bytes(&self) -> u64;
    /// The layers of another sequence that has the same slots.
    fn fork(layers: &[Self]) -> Result<Vec<Self>>
    where
        Self: Sized;
}

/// The keys and values of all layers of one sequence.
pub(crate) struct Layers<K>(pub(crate) Vec<K>);

impl<K: LayerKv> Storage for Layers<K> {
    fn copy_slot(&mut self, from: usize, to: usize) -> Result<()> {
        self.0.iter_mut().try_for_each(|layer| layer.copy_slot(from, to))
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(K::bytes).sum()
    }

    fn fork(&self) -> Result<Box<dyn Storage>> {
        Ok(Box::new(Self(K::fork(&self.0)?)))
    }
}

/// How heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeShape {
    pub(crate) head_dim: usize,
    pub(crate) interleaved: bool,
}

/// The rows of one sequence in a batch.
#[derive(Clone, Debug)]
pub(crate) struct Span<'a> {
    /// Rows of the batch, or of those of it that go on.
    pub(crate) rows: Range<usize>,
    /// Its sequence's rows that come before those and do not go on.
    pub(crate) skipped: usize,
    /// Slots its cache holds before this pass; row `i` takes slot `base + skipped + i`.
    pub(crate) base: usize,
    pub(crate) tree: Option<&'a Tree>,
}

impl Span<'_> {
    /// The position of the span's row `row`.
    pub(crate) fn position(&self, row: usize) -> usize {
        let node = self.skipped + row;
        self.base + self.tree.map_or(node, |tree| tree.depth(node))
    }

    /// What row `row` sees, in order of position: slots that equal their positions, then slots that a tree
    /// scattered.
    pub(crate) fn visible(&self, row: usize, window: Option<usize>) -> RowKeys {
        let end = self.position(row) + 1;
        let start = window.map_or(0, |window| end.saturating_sub(window));
        match self.tree {
            None => RowKeys { prefix: start..end, tail: Vec::new() },
            Some(tree) => {
                let hidden = start.saturating_sub(self.base);
                let tail = tree.path(self.skipped + row)[hidden..]
                    .iter()
                    .map(|&node| self.base as u32 + node)
                    .collect();
                RowKeys { prefix: start..self.base.max(start), tail }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_written_as_a_tree_sees_the_same() {
        let tree = Tree::new(&[0, 0, 1, 2]).expect("parents precede");
        let chain = Span { rows: 0..4, skipped: 0, base: 5, tree: None };
        let as_tree = Span { tree: Some(&tree), ..chain.clone() };
        for window in [None, Some(1), Some(2), Some(3), Some(7)] {
            for row in 0..4 {
                let flat = |span: &Span<'_>| {
                    let RowKeys { prefix, tail } = span.visible(row, window);
                    prefix.map(|s| s as u32).chain(tail).collect::<Vec<_>>()
                };
                assert_eq!(flat(&chain), flat(&as_tree), "row {row}, window {window:?}");
            }
        }
    }

    #[test]
    fn siblings_do_not_see_each_other() {
        let tree = Tree::new(&[0, 0, 0, 2]).expect("parents precede");
        let span = Span { rows: 0..4, skipped: 0, base: 10, tree: Some(&tree) };
        assert_eq!(span.visible(3, None), RowKeys { prefix: 0..10, tail: vec![10, 12, 13] });
        assert_eq!(span.position(3), 12);
        let last = Span { rows: 0..2, skipped: 2, ..span.clone() };
        assert_eq!(last.visible(1, None), span.visible(3, None));
        assert_eq!(last.position(1), 12);
    }
}
