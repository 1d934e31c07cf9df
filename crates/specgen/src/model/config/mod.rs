//! `ArchConfig`: everything that distinguishes one supported architecture from another, as data.

mod gguf;
mod hf;

pub use gguf::from_metadata;
pub use hf::from_config_json;

/// The architectures the decoder knows, named as GGUF names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Architecture {
    /// Llama 1 to 3.x, Mistral, SmolLM2 and everything else that calls itself one.
    Llama,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Phi3,
    SmolLm3,
}

impl Architecture {
    /// Every one of them.
    pub const ALL: [Self; 7] =
        [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma2, Self::Gemma3, Self::Phi3, Self::SmolLm3];

    /// The name GGUF files carry under `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
            Self::SmolLm3 => "smollm3",
        }
    }

    /// Whether a sub-layer's output is normalised before it joins the residual stream.
    pub fn has_post_norms(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Whether queries and keys are normalised per head.
    pub fn has_qk_norm(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma3)
    }

    /// Whether a norm's weight is stored as its difference from one in Hugging Face checkpoints.
    pub fn norms_store_offset(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }
}

/// The gate's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ArchConfig {
    /// Which architecture.
    pub architecture: Architecture,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens the model was trained to hold.
    pub context_len: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Multiplies the query-key product.
    pub attn_scale: f32,
    /// Attention scores pass through `cap · tanh(x / cap)`.
    pub attn_softcap: Option<f32>,
    /// Logits pass through `cap · tanh(x / cap)`.
    pub final_softcap: Option<f32>,
    /// Multiplies the embeddings.
    pub embed_scale: Option<f32>,
    /// The gate's activation.
    pub activation: Activation,
    /// The ropes that `layers` index.
    pub ropes: Vec<RopeConfig>,
    /// What differs from layer to layer.
    pub layers: Vec<LayerConfig>,
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// Keys a query sees, itself included; `None`: all before it.
    pub window: Option<usize>,
    /// Index into [`ArchConfig::ropes`]; `None`: no position embedding.
    pub rope: Option<usize>,
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the frequencies.
    pub theta: f64,
    /// Rotated elements of a head.
    pub dim: usize,
    /// Whether neighbours are rotated together (GGUF llama) or halves (NeoX).
    pub interleaved: bool,
    /// How the frequencies are stretched for long contexts.
    pub scaling: RopeScaling,
}

/// How rope frequencies are stretched.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1's rule: by wavelength.
    Llama3 {
        /// Divisor of the long waves.
        factor: f64,
        /// Waves longer than `original_context_len / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Waves shorter than `original_context_len / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context the model was first trained on.
        original_context_len: usize,
    },
    /// One divisor per pair (GGUF `rope_freqs`, LongRoPE), and a factor for cos and sin.
    Factors {
        /// Divisors, `dim / 2` of them.
        factors: Vec<f32>,
        /// Multiplies cos and sin.
        magnitude: f64,
    },
}

impl ArchConfig {
    /// Query heads × head width.
    pub fn q_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Key/value heads × head width.
    pub fn kv_dim(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Says in one line what is impossible in these numbers, if anything.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let positive = [
            ("vocabulary", self.vocab_size),
            ("hidden size", self.hidden_size),
            ("feed-forward size", self.intermediate_size),
            ("number of heads", self.num_heads),
            ("number of key/value heads", self.num_kv_heads),
            ("head size", self.head_dim),
            ("context length", self.context_len),
            ("number of layers", self.layers.len()),
        ];
        // Far above any real model, far below what overflows when two are multiplied.
        const LIMIT: usize = 1 << 28;
        for (what, value) in positive {
            if !(1..=LIMIT).contains(&value) {
                return Err(format!("the {what} is {value}, wanted 1 to {LIMIT}"));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return Err(format!(
                "{} query heads cannot share {} key/value heads evenly",
                self.num_heads, self.num_kv_heads
            ));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return Err(format!("the norm epsilon is {}, wanted above 0", self.norm_eps));
        }
        for rope in &self.ropes {
            if rope.dim == 0 || rope.dim > self.head_dim || !rope.dim.is_multiple_of(2) {
                return Err(format!("rope turns {} of {} head elements", rope.dim, self.head_dim));
            }
            if !(rope.theta.is_finite() && rope.theta > 0.0) {
                return Err(format!("the rope base is {}, wanted above 0", rope.theta));
            }
            if let RopeScaling::Factors { factors, .. } = &rope.scaling
                && factors.len() != rope.dim / 2
            {
                return Err(format!("{} rope factors for {} pairs", factors.len(), rope.dim / 2));
            }
        }
        Ok(())
    }
}

/// Gemma's attention scale: by the configured width, but for the 27B models, whose query heads are narrower.
fn gemma_attn_scale(query_pre_attn: f64) -> f32 {
    query_pre_attn.powf(-0.5) as f32
}

/// LongRoPE's factor for cos and sin (Ding et al. 2024, 2402.13753; as the Phi-3 models define it).
fn longrope_magnitude(context_len: usize, original_context_len: usize) -> f64 {
    let factor = context_len as f64 / original_context_len as f64;
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original_context_len as f64).ln()).sqrt() }
}
