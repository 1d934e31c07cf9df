//! `Decoder`: the one transformer of all architectures and devices. What is special per architecture is data
//! (`ArchConfig`), what is special per device is a `Backend`.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use specgen_kernels::AttentionShape;

use super::{
    Batch, Model, ModelInfo, Output, Slice,
    backend::{Backend, LayerKv, Layers, RopeShape, Span},
    config::ArchConfig,
    rope::Rope,
};
use crate::{
    cache::KvCache,
    error::{Error, Result},
};

/// A model's weights on a device.
pub(crate) struct Decoder<B: Backend> {
    pub(crate) backend: B,
    pub(crate) config: ArchConfig,
    pub(crate) info: ModelInfo,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) embed_tokens: B::Table,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) norm: B::Norm,
    pub(crate) lm_head: B::Linear,
    /// Passes that are over, for those to come: a decoding loop allocates no lists.
    pub(crate) spare: Mutex<Vec<Pass<B>>>,
}

/// One layer's weights. Norms that an architecture lacks are `None`.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attn_norm: B::Norm,
    pub(crate) qkv_proj: B::Linear,
    pub(crate) q_norm: Option<B::Norm>,
    pub(crate) k_norm: Option<B::Norm>,
    pub(crate) o_proj: B::Linear,
    pub(crate) post_attn_norm: Option<B::Norm>,
    pub(crate) mlp_norm: B::Norm,
    pub(crate) gate_up_proj: B::Linear,
    pub(crate) down_proj: B::Linear,
    pub(crate) post_mlp_norm: Option<B::Norm>,
}

/// What all layers of one pass share.
pub(crate) struct Pass<B: Backend> {
    tokens: Vec<u32>,
    positions: Vec<usize>,
    /// Rows of the batch whose logits are wanted.
    wanted: Vec<usize>,
    /// Per rope of the config, cosines and sines.
    angles: Vec<[B::Tensor; 2]>,
    /// Per window that occurs.
    plans: Vec<(Option<usize>, B::Plan)>,
    /// What the wanted rows see in the last layer, where they are some but not all.
    last: B::Plan,
}

impl<B: Backend> Pass<B> {
    /// One to be filled in.
    fn new(config: &ArchConfig) -> Self {
        let mut plans: Vec<(Option<usize>, B::Plan)> = Vec::new();
        for layer in &config.layers {
            if !plans.iter().any(|(window, _)| *window == layer.window) {
                plans.push((layer.window, B::Plan::default()));
            }
        }
        Self {
            tokens: Vec::new(),
            positions: Vec::new(),
            wanted: Vec::new(),
            angles: Vec::new(),
            plans,
            last: B::Plan::default(),
        }
    }

    fn plan(&self, window: Option<usize>) -> &B::Plan {
        let (_, plan) =
            self.plans.iter().find(|(w, _)| *w == window).expect("every layer's window has a plan");
        plan
    }
}

impl<B: Backend> Model for Decoder<B> {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        for slice in &batch.slices {
            check_slice(slice, &self.info)?;
        }
        if let Some(&layer) = batch.taps.iter().find(|&&layer| layer >= self.layers.len()) {
            let message = format!("layer {layer} has no output to tap; the model has {}", self.layers.len());
            return Err(Error::InvalidArgument(message));
        }
        out.begin(batch, self.info.num_logits());
        if batch.slices.is_empty() {
            return Ok(());
        }

        out.taps.resize(batch.taps.len(), Vec::new());
        let pass = self.pass(&batch.slices)?;
        // Whether the rows on their way are those that need logits and no others.
        let mut all = pass.wanted.len() == pass.tokens.len();
        let b = &self.backend;
        let mut x = b.embed(&self.embed_tokens, &pass.tokens)?;
        if let Some(scale) = self.config.embed_scale {
            x = b.scale(x, scale)?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let h = b.norm(&x, &layer.attn_norm, self.config.norm_eps)?;
            let qkv = b.linear(&layer.qkv_proj, &h)?;
            self.store(i, &qkv, &mut batch.slices, &pass)?;
            // Of rows that nobody asks for, the last layer's keys and values are all that later rows need.
            let narrow = i + 1 == self.layers.len() && !all && !batch.taps.contains(&i);
            if narrow && pass.wanted.is_empty() {
                break;
            }
            let mut q = self.queries(i, &qkv, &pass)?;
            let mut plan = pass.plan(self.config.layers[i].window);
            if narrow {
                (q, x) = (b.select_rows(&q, &pass.wanted)?, b.select_rows(&x, &pass.wanted)?);
                plan = &pass.last;
                all = true;
            }
            let h = b.attend(&self.attention_shape(), &q, caches(i, &mut batch.slices), plan)?;
            let h = b.linear(&layer.o_proj, &h)?;
            x = b.add(x, &self.post_norm(h, layer.post_attn_norm.as_ref())?)?;

            let h = b.norm(&x, &layer.mlp_norm, self.config.norm_eps)?;
            let h = b.gate(&b.linear(&layer.gate_up_proj, &h)?, self.config.activation)?;
            let h = b.linear(&layer.down_proj, &h)?;
            x = b.add(x, &self.post_norm(h, layer.post_mlp_norm.as_ref())?)?;

            for (tap, _) in out.taps.iter_mut().zip(batch.taps).filter(|&(_, &layer)| layer == i) {
                b.read(&x, tap)?;
            }
        }
        if !pass.wanted.is_empty() {
            // Only the rows that need logits go through the head, often the largest matrix of all.
            let h = if all { x } else { b.select_rows(&x, &pass.wanted)? };
            let h = b.norm(&h, &self.norm, self.config.norm_eps)?;
            b.logits(&self.lm_head, &h, self.config.final_softcap, &mut out.logits)?;
        }

        for slice in &mut batch.slices {
            slice.cache.extend(slice.tokens);
        }
        self.spare().push(pass);
        Ok(())
    }

    fn new_cache(&self) -> KvCache {
        let layers = self.backend.new_kv(self.layers.len(), self.config.kv_dim());
        KvCache::with_storage(Box::new(Layers::<B::LayerKv>(layers)))
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn knows_trees(&self) -> bool {
        true
    }

    fn read_weights(&self) {
        self.linears().for_each(|linear| self.backend.read_linear(linear));
    }

    fn op_times(&self) -> Vec<(&'static str, Duration)> {
        self.backend.op_times()
    }
}

impl<B: Backend> Decoder<B> {
    /// All matrices of a pass.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &B::Linear> {
        self.layers
            .iter()
            .flat_map(|layer| [&layer.qkv_proj, &layer.o_proj, &layer.gate_up_proj, &layer.down_proj])
            .chain([&self.lm_head])
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Pass<B>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, slices: &[Slice<'_>]) -> Result<Pass<B>> {
        let spare = self.spare().pop();
        let mut pass = spare.unwrap_or_else(|| Pass::new(&self.config));
        let Pass { tokens, positions, wanted, angles, plans, last } = &mut pass;
        tokens.clear();
        positions.clear();
        wanted.clear();
        angles.clear();
        for (slice, span) in slices.iter().zip(spans(slices)) {
            tokens.extend(slice.tokens);
            positions.extend((0..span.rows.len()).map(|row| span.position(row)));
            wanted.extend(span.rows.end - slice.rows.count(slice.tokens.len())..span.rows.end);
        }
        for rope in &self.ropes {
            angles.push(self.backend.angles(rope, positions)?);
        }
        for (window, plan) in plans {
            self.backend.plan(spans(slices), *window, plan)?;
        }
        if !wanted.is_empty() && wanted.len() < tokens.len() {
            let window = self.config.layers.last().and_then(|layer| layer.window);
            self.backend.plan(wanted_spans(slices), window, last)?;
        }
        Ok(pass)
    }

    /// Writes the keys and values in `qkv`, layer `i`'s, behind what the caches hold.
    fn store(&self, i: usize, qkv: &B::Tensor, slices: &mut [Slice<'_>], pass: &Pass<B>) -> Result<()> {
        let (b, config) = (&self.backend, &self.config);
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let k = b.columns(qkv, q_dim..q_dim + kv_dim)?;
        let v = b.columns(qkv, q_dim + kv_dim..q_dim + 2 * kv_dim)?;
        let k = self.turn(i, k, self.layers[i].k_norm.as_ref(), pass)?;
        b.store([&k, &v], caches(i, slices), pass.plan(config.layers[i].window))
    }

    /// Layer `i`'s queries, of `qkv`.
    fn queries(&self, i: usize, qkv: &B::Tensor, pass: &Pass<B>) -> Result<B::Tensor> {
        let q = self.backend.columns(qkv, 0..self.config.q_dim())?;
        self.turn(i, q, self.layers[i].q_norm.as_ref(), pass)
    }

    /// The heads in `x` normed and rotated, where layer `i` does so.
    fn turn(&self, i: usize, mut x: B::Tensor, norm: Option<&B::Norm>, pass: &Pass<B>) -> Result<B::Tensor> {
        let (b, config) = (&self.backend, &self.config);
        if let Some(norm) = norm {
            x = b.norm(&x, norm, config.norm_eps)?;
        }
        if let Some(rope) = config.layers[i].rope {
            let shape = RopeShape { head_dim: config.head_dim, interleaved: self.ropes[rope].interleaved };
            x = b.rotate(x, &pass.angles[rope], shape)?;
        }
        Ok(x)
    }

    fn attention_shape(&self) -> AttentionShape {
        let config = &self.config;
        AttentionShape {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            scale: config.attn_scale,
            softcap: config.attn_softcap,
        }
    }

    fn post_norm(&self, h: B::Tensor, norm: Option<&B::Norm>) -> Result<B::Tensor> {
        match norm {
            Some(norm) => self.backend.norm(&h, norm, self.config.norm_eps),
            None => Ok(h),
        }
    }
}

/// Layer `i`'s keys and values of each slice.
fn caches<'a, K: LayerKv>(i: usize, slices: &'a mut [Slice<'_>]) -> impl Iterator<Item = Result<&'a mut K>> {
    let storages = slices.iter_mut().map(|slice| slice.cache.storage_mut::<Layers<K>>());
    storages.map(move |storage| storage.map(|layers| &mut layers.0[i]))
}

/// Lays the slices' rows one behind the other.
fn spans<'a>(slices: &[Slice<'a>]) -> impl Iterator<Item = Span<'a>> {
    last_rows(slices, |slice| slice.tokens.len())
}

/// Likewise, but only those that need logits.
fn wanted_spans<'a>(slices: &[Slice<'a>]) -> impl Iterator<Item = Span<'a>> {
    last_rows(slices, |slice| slice.rows.count(slice.tokens.len()))
}

/// Lays the last rows of each slice, as many as `count` says, one behind the other.
fn last_rows<'a>(
    slices: &[Slice<'a>],
    count: impl Fn(&Slice<'a>) -> usize,
) -> impl Iterator<Item = Span<'a>> {
    slices.iter().scan(0, move |start, slice| {
        let rows = *start..*start + count(slice);
        *start = rows.end;
        let skipped = slice.tokens.len() - rows.len();
        Some(Span { rows, skipped, base: slice.cache.len(), tree: slice.tree })
    })
}

/// What every model demands of a slice before it touches anything.
pub(crate) fn check_slice(slice: &Slice<'_>, info: &ModelInfo) -> Result<()> {
    if slice.tokens.is_empty() {
        return Err(Error::InvalidArgument("a slice of a batch has no tokens".into()));
    }
    if let Some(id) = slice.tokens.iter().find(|&&id| id as usize >= info.vocab_size) {
        let message = format!("token {id} is not in the vocabulary of {} ids", info.vocab_size);
        return Err(Error::InvalidArgument(message));
    }
    if let Some(tree) = slice.tree
        && tree.len() != slice.tokens.len()
    {
        let message = format!("a tree of {} nodes over {} tokens", tree.len(), slice.tokens.len());
        return Err(Error::InvalidArgument(message));
    }
    let depth = |tree: &super::Tree| (0..tree.len()).map(|node| tree.depth(node) + 1).max().unwrap_or(0);
    let len = slice.cache.len() + slice.tree.map_or(slice.tokens.len(), depth);
    if len > info.context_len {
        return Err(Error::ContextOverflow { len, max: info.context_len });
    }
    Ok(())
}
