//! The ragged batch: what one forward pass takes and gives.

use crate::{
    cache::KvCache,
    error::{Error, Result},
};

/// New tokens of several sequences, run through the weights together.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// One per sequence.
    pub slices: Vec<Slice<'a>>,
    /// Layers whose output (the residual stream after that layer, 0-based) is wanted for every row.
    pub taps: &'a [usize],
}

/// One sequence's share of a batch.
#[derive(Debug)]
pub struct Slice<'a> {
    /// What the sequence has fed so far; grows by `tokens`.
    pub cache: &'a mut KvCache,
    /// The tokens to feed, at least one.
    pub tokens: &'a [u32],
    /// Which of them need logits.
    pub rows: Rows,
    /// Where the tokens form a tree instead of a chain.
    pub tree: Option<&'a Tree>,
}

/// The rows of a slice whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// None: a prompt's chunk before the last.
    None,
    /// The last `n`.
    Last(usize),
    /// All.
    All,
}

impl Rows {
    /// Number of rows wanted of a slice of `len` tokens.
    pub fn count(self, len: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last(n) => n.min(len),
            Self::All => len,
        }
    }
}

/// A draft tree in topological order: node 0 is the pending token, every other node names an earlier one as
/// parent. Node `i` takes cache slot `base + i` and position `base + depth(i)`; it sees the committed prefix
/// and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Per node its root path as node indices, root first, itself last.
    paths: Vec<Vec<u32>>,
}

impl Tree {
    /// A tree from its parent links; `parents[0]` is ignored, node 0 being the root.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a parent does not come before its child.
    pub fn new(parents: &[u32]) -> Result<Self> {
        let mut paths: Vec<Vec<u32>> = Vec::with_capacity(parents.len());
        for (node, &parent) in parents.iter().enumerate() {
            let mut path = match node {
                0 => Vec::new(),
                _ => paths.get(parent as usize).cloned().ok_or_else(|| {
                    Error::InvalidArgument(format!(
                        "tree node {node} names parent {parent}, which comes after it"
                    ))
                })?,
            };
            path.push(node as u32);
            paths.push(path);
        }
        Ok(Self { paths })
    }

    /// Number of nodes, the root included.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether it has no node.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// A node's distance from the root.
    pub fn depth(&self, node: usize) -> usize {
        self.paths[node].len() - 1
    }

    /// The nodes from the root to `node`, both included.
    pub fn path(&self, node: usize) -> &[u32] {
        &self.paths[node]
    }
}

/// What a forward gives; its buffers are reused from pass to pass.
#[derive(Debug, Default)]
pub struct Output {
    pub(crate) logits: Vec<f32>,
    pub(crate) num_logits: usize,
    /// First logits row of each slice, and one past the last.
    pub(crate) starts: Vec<usize>,
    pub(crate) taps: Vec<Vec<f32>>,
}

impl Output {
    /// An output without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the output of a pass over `batch`; the model then pushes the rows asked for, in slice order.
    pub fn begin(&mut self, batch: &Batch<'_>, num_logits: usize) {
        self.num_logits = num_logits;
        self.starts.clear();
        let mut start = 0;
        for slice in &batch.slices {
            self.starts.push(start);
            start += slice.rows.count(slice.tokens.len());
        }
        self.starts.push(start);
        self.logits.clear();
        self.taps.clear();
    }

    /// Adds the next logits row: `[num_logits]`.
    pub fn push_row(&mut self, logits: &[f32]) {
        assert_eq!(logits.len(), self.num_logits, "a row has as many logits as `begin` was told");
        self.logits.extend_from_slice(logits);
    }

    /// Number of logits rows of a slice.
    pub fn num_rows(&self, slice: usize) -> usize {
        self.starts[slice + 1] - self.starts[slice]
    }

    /// Row `row` of the rows wanted of slice `slice`: `[num_logits]`.
    pub fn logits(&self, slice: usize, row: usize) -> &[f32] {
        assert!(row < self.num_rows(slice), "slice {slice} has {} rows, not {row}", self.num_rows(slice));
        let row = self.starts[slice] + row;
        &self.logits[row * self.num_logits..][..self.num_logits]
    }

    /// The hidden states of the `i`-th tap, all rows of the batch: `[rows, hidden_size]`.
    pub fn tap(&self, i: usize) -> &[f32] {
        &self.taps[i]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_paths_and_depths() {
        let tree = Tree::new(&[0, 0, 0, 1, 3]).expect("parents precede");
        assert_eq!(tree.path(4), [0, 1, 3, 4]);
        assert_eq!(tree.path(2), [0, 2]);
        assert_eq!(tree.depth(4), 3);
        assert!(Tree::new(&[0, 2, 0]).is_err());
    }
}
