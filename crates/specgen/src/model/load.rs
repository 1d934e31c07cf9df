//! From weight files to a `Decoder`: tensor names, shapes, fused projections.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use specgen_kernels::{Format, KvType, Packed};

use super::{
    Model, ModelInfo,
    backend::Backend,
    candle::Candle,
    config::{self, ArchConfig},
    copy,
    cpu::Cpu,
    decoder::{Decoder, Layer},
    rope::Rope,
    timed::Timed,
};
use crate::{
    device::{Device, DeviceKind},
    error::{Error, Result},
    weights::{Tensor, Weights},
};

/// How a model is to be loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: Device,
    /// Tokens a sequence may hold; `None`: as many as the model was trained on.
    pub context_len: Option<usize>,
    /// How keys and values are kept; `None`: as the device does unless told otherwise.
    pub kv_type: Option<KvType>,
    /// The format to bring matrices into where it has fewer bits than they have; the embedding table stays in the file.
    pub copy_as: Option<Format>,
    /// The ids to compute logits of, ascending; `None`: all. Any id can be fed all the same.
    pub head_ids: Option<Arc<[u32]>>,
}

/// Reads a model's configuration: from GGUF metadata, else from `config_json`.
///
/// # Errors
/// As [`config::from_metadata`] and [`config::from_config_json`]; [`Error::Format`] where there is neither.
pub fn read_config(
    weights: &Weights,
    config_json: Option<&Path>,
    context_len: Option<usize>,
) -> Result<ArchConfig> {
    match (weights.metadata(), config_json) {
        (Some(meta), _) => config::from_metadata(weights, meta, context_len),
        (None, Some(path)) => config::from_config_json(path, context_len),
        (None, None) => Err(Error::format(weights.path(), "no `config.json` beside the safetensors file")),
    }
}

/// Loads a model's weights onto a device.
///
/// # Errors
/// [`Error::MissingTensor`], [`Error::Format`] for a tensor of another shape than the configuration implies,
/// [`Error::Unsupported`] for a storage format, or keys and values of a type that the device doesn't keep;
/// [`Error::InvalidArgument`] for a longer context than the model knows.
pub fn load(weights: &Weights, config: ArchConfig, options: &LoadOptions) -> Result<Arc<dyn Model>> {
    let context_len = context_len(&config, options)?;
    let kv_type = options.device.spec().kv_type(options.kv_type)?;
    Ok(match &options.device.kind {
        DeviceKind::Cpu(team) => Arc::new(
            Loader::new(weights, config, Cpu::new(team.clone(), kv_type), options)
                .decoder(context_len, &options.device)?,
        ),
        DeviceKind::Candle(device) => Arc::new(
            Loader::new(weights, config, Candle::new(device.clone()), options)
                .decoder(context_len, &options.device)?,
        ),
    })
}

/// [`load`] onto the CPU, with a clock for each kind of operation: see [`Model::op_times`].
///
/// # Errors
/// As [`load`]; [`Error::Unsupported`] for other devices, which work on after a call returns.
pub fn load_with_clocks(
    weights: &Weights,
    config: ArchConfig,
    options: &LoadOptions,
) -> Result<Arc<dyn Model>> {
    let context_len = context_len(&config, options)?;
    let DeviceKind::Cpu(team) = &options.device.kind else {
        let message =
            format!("operations are timed one by one on the CPU only, not on {}", options.device.spec());
        return Err(Error::Unsupported(message));
    };
    let kv_type = options.device.spec().kv_type(options.kv_type)?;
    let backend = Timed::new(Cpu::new(team.clone(), kv_type));
    Ok(Arc::new(Loader::new(weights, config, backend, options).decoder(context_len, &options.device)?))
}

/// The context asked for, checked.
fn context_len(config: &ArchConfig, options: &LoadOptions) -> Result<usize> {
    let context_len = options.context_len.unwrap_or(config.context_len);
    check_context(context_len, config)?;
    Ok(context_len)
}

/// Refuses a context the model was not trained on.
pub(crate) fn check_context(context_len: usize, config: &ArchConfig) -> Result<()> {
    if (1..=config.context_len).contains(&context_len) {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "a context of {context_len} tokens was asked for, but the model was trained on {}; wanted 1 to {}",
        config.context_len, config.context_len
    )))
}

/// Bytes that a copy of a model with its matrices in `format` takes beside it.
///
/// # Errors
/// [`Error::Unsupported`] where rows are no whole blocks of the format, or no matrix would get smaller.
pub(crate) fn copy_bytes(weights: &Weights, config: &ArchConfig, format: Format) -> Result<u64> {
    let names = Names::new(weights, config);
    copy::memory_bytes(weights, &names.embed_tokens(), weights.contains(&names.lm_head()), format)
}

/// Bytes of a model's output head that are in no memory where only `num_logits` of its rows are loaded, into `copy_as`
/// where that has fewer bits. A head that cannot be loaded spares nothing.
pub(crate) fn bytes_spared(
    weights: &Weights,
    config: &ArchConfig,
    num_logits: usize,
    copy_as: Option<Format>,
) -> u64 {
    let Ok(head) = weights.tensor(&Names::new(weights, config).head(weights)) else { return 0 };
    let format = copy_as.filter(|&format| copy::gets_smaller(&head, format)).unwrap_or(head.format());
    let bytes_of = |rows| Packed::bytes_of(format, rows, head.cols()).unwrap_or(0) as u64;
    bytes_of(head.rows()).saturating_sub(bytes_of(num_logits))
}

struct Loader<'a, B> {
    weights: &'a Weights,
    config: ArchConfig,
    backend: B,
    copy_as: Option<Format>,
    head_ids: Option<Arc<[u32]>>,
    names: Names,
}

impl<'a, B: Backend> Loader<'a, B> {
    fn new(weights: &'a Weights, config: ArchConfig, backend: B, options: &LoadOptions) -> Self {
        let names = Names::new(weights, &config);
        let LoadOptions { copy_as, head_ids, .. } = options;
        Self { weights, config, backend, copy_as: *copy_as, head_ids: head_ids.clone(), names }
    }

    /// Stacks `parts`, in the copy's format where this is one.
    fn linear(&self, parts: Vec<Tensor>, bias: Option<Vec<f32>>) -> Result<B::Linear> {
        let parts = match self.copy_as {
            Some(format) => {
                parts.into_iter().map(|part| copy::requantized(part, format)).collect::<Result<_>>()?
            }
            None => parts,
        };
        self.backend.load_linear(&parts, bias)
    }

    fn decoder(self, context_len: usize, device: &Device) -> Result<Decoder<B>> {
        let (vocab, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let table = self.matrix(&self.names.embed_tokens(), vocab, hidden)?;
        let head = self.head()?;
        let beyond = self.names.layer(self.config.layers.len(), Role::AttnNorm);
        if self.weights.contains(&beyond) {
            let message = format!(
                "tensor `{beyond}` belongs to a layer beyond the {} of the configuration; they do not belong together",
                self.config.layers.len()
            );
            return Err(Error::format(self.weights.path(), message));
        }
        let layers = (0..self.config.layers.len()).map(|i| self.layer(i)).collect::<Result<Vec<_>>>()?;
        let info = ModelInfo {
            architecture: self.config.architecture.name().into(),
            vocab_size: vocab,
            head_ids: self.head_ids.clone(),
            context_len,
            num_layers: layers.len(),
            hidden_size: hidden,
            weight_bytes: self.weights.total_bytes(),
            pass_bytes: 0, // known once all are loaded
            kv_bytes_per_token: kv_bytes_per_token(&self.config, self.backend.kv_type()),
            device: device.spec().to_string(),
        };
        let mut decoder = Decoder {
            ropes: self.config.ropes.iter().map(Rope::new).collect(),
            embed_tokens: self.backend.load_table(&table)?,
            norm: self.norm(&self.names.norm(), hidden)?,
            lm_head: self.linear(vec![head], None)?,
            layers,
            info,
            config: self.config,
            backend: self.backend,
            spare: Mutex::default(),
        };
        decoder.info.pass_bytes = decoder.linears().map(|linear| decoder.backend.linear_bytes(linear)).sum();
        Ok(decoder)
    }

    /// The output head, or the rows of it that are wanted.
    fn head(&self) -> Result<Tensor> {
        let (vocab, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let head = self.matrix(&self.names.head(self.weights), vocab, hidden)?;
        let Some(ids) = &self.head_ids else { return Ok(head) };
        let is_ascending = ids.is_sorted_by(|a, b| a < b);
        if !is_ascending || ids.last().is_none_or(|&last| last as usize >= vocab) {
            let message = format!("logits are wanted of no ids, or not of ascending ones below {vocab}");
            return Err(Error::InvalidArgument(message));
        }
        let rows = head.select_rows(ids);
        head.release();
        Ok(rows)
    }

    fn layer(&self, i: usize) -> Result<Layer<B>> {
        let c = &self.config;
        let name = |role| self.names.layer(i, role);
        let head_norm = |role| match c.architecture.has_qk_norm() {
            true => self.norm(&name(role), c.head_dim).map(Some),
            false => Ok(None),
        };
        let post_norm = |role| match c.architecture.has_post_norms() {
            true => self.norm(&name(role), c.hidden_size).map(Some),
            false => Ok(None),
        };
        let (q, kv, hidden, ff) = (c.q_dim(), c.kv_dim(), c.hidden_size, c.intermediate_size);
        Ok(Layer {
            attn_norm: self.norm(&name(Role::AttnNorm), hidden)?,
            qkv_proj: self.stacked(
                i,
                Role::QkvProj,
                &[(Role::QProj, q), (Role::KProj, kv), (Role::VProj, kv)],
                hidden,
            )?,
            q_norm: head_norm(Role::QNorm)?,
            k_norm: head_norm(Role::KNorm)?,
            o_proj: self.stacked(i, Role::OProj, &[(Role::OProj, hidden)], q)?,
            post_attn_norm: post_norm(Role::PostAttnNorm)?,
            mlp_norm: self.norm(&name(Role::MlpNorm), hidden)?,
            gate_up_proj: self.stacked(
                i,
                Role::GateUpProj,
                &[(Role::GateProj, ff), (Role::UpProj, ff)],
                hidden,
            )?,
            down_proj: self.stacked(i, Role::DownProj, &[(Role::DownProj, hidden)], ff)?,
            post_mlp_norm: post_norm(Role::PostMlpNorm)?,
        })
    }

    /// Projections of one input side by side: from one fused tensor where the checkpoint has it, else from
    /// `parts`.
    fn stacked(&self, i: usize, fused: Role, parts: &[(Role, usize)], cols: usize) -> Result<B::Linear> {
        let fused_name = self.names.layer(i, fused);
        let total = parts.iter().map(|(_, rows)| rows).sum();
        // GGUF stores Phi-3's fused gate|up under the name of `up` alone: a fused tensor is one without its
        // parts.
        let is_fused = parts.len() > 1
            && self.weights.contains(&fused_name)
            && !self.weights.contains(&self.names.layer(i, parts[0].0));
        let named: Vec<(String, usize)> = match is_fused {
            true => vec![(fused_name, total)],
            false => parts.iter().map(|&(role, rows)| (self.names.layer(i, role), rows)).collect(),
        };
        let tensors =
            named.iter().map(|(name, rows)| self.matrix(name, *rows, cols)).collect::<Result<Vec<_>>>()?;
        let mut bias = vec![0.0; total];
        let mut biased = false;
        let mut start = 0;
        for (name, rows) in &named {
            let name = name.replace(".weight", ".bias");
            if self.weights.contains(&name) {
                biased = true;
                bias[start..start + rows].copy_from_slice(&self.vector(&name, *rows)?);
            }
            start += rows;
        }
        self.linear(tensors, biased.then_some(bias))
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor> {
        let tensor = self.weights.tensor(name)?;
        self.check_shape(&tensor, &[rows, cols])?;
        Ok(tensor)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.weights.tensor(name)?;
        self.check_shape(&tensor, &[len])?;
        Ok(tensor.to_f32())
    }

    fn norm(&self, name: &str, len: usize) -> Result<B::Norm> {
        let mut weight = self.vector(name, len)?;
        if !self.names.gguf && self.config.architecture.norms_store_offset() {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        self.backend.load_norm(weight)
    }

    fn check_shape(&self, tensor: &Tensor, wanted: &[usize]) -> Result<()> {
        if tensor.shape() == wanted {
            return Ok(());
        }
        let message = format!("tensor `{}` has shape {:?}, wanted {wanted:?}", tensor.name(), tensor.shape());
        Err(Error::format(self.weights.path(), message))
    }
}

/// Bytes of keys and values one token takes over all layers.
fn kv_bytes_per_token(config: &ArchConfig, kv_type: KvType) -> u64 {
    2 * config.kv_dim() as u64 * config.layers.len() as u64 * kv_type.bytes() as u64
}

/// What a tensor of a layer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    AttnNorm,
    QkvProj,
    QProj,
    KProj,
    VProj,
    QNorm,
    KNorm,
    OProj,
    PostAttnNorm,
    MlpNorm,
    GateUpProj,
    GateProj,
    UpProj,
    DownProj,
    PostMlpNorm,
}

/// The names a checkpoint gives its tensors.
struct Names {
    gguf: bool,
    post_norms: bool,
    /// What stands before `layers.` in a safetensors checkpoint: more where a multimodal wrapper is around
    /// the model.
    prefix: &'static str,
}

impl Names {
    fn new(weights: &Weights, config: &ArchConfig) -> Self {
        let holds = |prefix: &&str| weights.contains(&format!("{prefix}embed_tokens.weight"));
        let prefixes = ["model.", "language_model.model.", "model.language_model."];
        Self {
            gguf: weights.metadata().is_some(),
            post_norms: config.architecture.has_post_norms(),
            prefix: prefixes.into_iter().find(holds).unwrap_or("model."),
        }
    }

    fn pick(&self, gguf: &str, hf: &str) -> String {
        if self.gguf { gguf.to_owned() } else { format!("{}{hf}", self.prefix) }
    }

    fn embed_tokens(&self) -> String {
        self.pick("token_embd.weight", "embed_tokens.weight")
    }

    fn norm(&self) -> String {
        self.pick("output_norm.weight", "norm.weight")
    }

    /// The output head's: a checkpoint without one shares the embedding table ("tied").
    fn head(&self, weights: &Weights) -> String {
        let own = self.lm_head();
        if weights.contains(&own) { own } else { self.embed_tokens() }
    }

    fn lm_head(&self) -> String {
        match self.prefix {
            _ if self.gguf => "output.weight",
            "language_model.model." => "language_model.lm_head.weight",
            _ => "lm_head.weight",
        }
        .to_owned()
    }

    fn layer(&self, i: usize, role: Role) -> String {
        let (gguf, hf) = match role {
            Role::AttnNorm => ("attn_norm", "input_layernorm"),
            Role::QkvProj => ("attn_qkv", "self_attn.qkv_proj"),
            Role::QProj => ("attn_q", "self_attn.q_proj"),
            Role::KProj => ("attn_k", "self_attn.k_proj"),
            Role::VProj => ("attn_v", "self_attn.v_proj"),
            Role::QNorm => ("attn_q_norm", "self_attn.q_norm"),
            Role::KNorm => ("attn_k_norm", "self_attn.k_norm"),
            Role::OProj => ("attn_output", "self_attn.o_proj"),
            Role::PostAttnNorm => ("post_attention_norm", "post_attention_layernorm"),
            // Where sub-layers are normalised on both sides, Hugging Face names the norm before the MLP by
            // its place.
            Role::MlpNorm if self.post_norms => ("ffn_norm", "pre_feedforward_layernorm"),
            Role::MlpNorm => ("ffn_norm", "post_attention_layernorm"),
            Role::GateUpProj => ("ffn_up", "mlp.gate_up_proj"),
            Role::GateProj => ("ffn_gate", "mlp.gate_proj"),
            Role::UpProj => ("ffn_up", "mlp.up_proj"),
            Role::DownProj => ("ffn_down", "mlp.down_proj"),
            Role::PostMlpNorm => ("post_ffw_norm", "post_feedforward_layernorm"),
        };
        match self.gguf {
            true => format!("blk.{i}.{gguf}.weight"),
            false => format!("{}layers.{i}.{hf}.weight", self.prefix),
        }
    }
}
