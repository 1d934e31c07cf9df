//! Tiny random checkpoints of every architecture, in both file formats, for tests that download nothing.

use std::{path::Path, sync::Arc};

use serde_json::{Value as Json, json};
use specgen::{
    KvType, Result,
    device::{Device, DeviceSpec},
    model::{LoadOptions, Model, config::ArchConfig, load, read_config},
    weights::{Format, Weights, gguf_writer::GgufWriter, metadata::Value},
};

/// A float in [-1, 1) that depends on `state` alone, and the next state: enough randomness for weights.
pub struct Floats(pub u64);

impl Floats {
    /// The next float.
    pub fn next_float(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A tensor under its Hugging Face name.
#[derive(Clone)]
pub struct NamedTensor {
    /// The name.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Vec<f32>,
}

/// A checkpoint: a `config.json` and random tensors.
#[derive(Clone)]
pub struct Tiny {
    /// What is special about it.
    pub name: &'static str,
    /// `config.json`.
    pub config: Json,
    seed: u64,
}

/// One checkpoint per architecture, and more where an architecture has variants.
pub fn all() -> Vec<Tiny> {
    let base = |model_type: &str, extra: Json| {
        let mut config = json!({
            "model_type": model_type, "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
        });
        let (Json::Object(config_map), Json::Object(extra)) = (&mut config, extra) else {
            unreachable!("both are objects")
        };
        config_map.extend(extra);
        config
    };
    let gemma = json!({
        "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24,
        "sliding_window": 6, "tie_word_embeddings": true,
    });
    let with = |base: &Json, extra: Json| {
        let mut merged = base.clone();
        let (Json::Object(merged_map), Json::Object(extra)) = (&mut merged, extra) else {
            unreachable!("both are objects")
        };
        merged_map.extend(extra);
        merged
    };
    let llama3_rope = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    });
    let longrope = json!({
        "type": "longrope", "short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.5, 2.0, 4.0, 8.0],
    });
    vec![
        Tiny { name: "llama", config: base("llama", json!({})), seed: 1 },
        Tiny {
            name: "llama3 rope, tied",
            config: base("llama", json!({"rope_scaling": llama3_rope, "tie_word_embeddings": true})),
            seed: 2,
        },
        Tiny { name: "mistral, window", config: base("mistral", json!({"sliding_window": 5})), seed: 3 },
        Tiny {
            name: "qwen2",
            config: base(
                "qwen2",
                json!({"sliding_window": 64, "max_window_layers": 4, "use_sliding_window": false}),
            ),
            seed: 4,
        },
        Tiny {
            name: "qwen3",
            config: base(
                "qwen3",
                json!({"head_dim": 16, "max_window_layers": 4, "use_sliding_window": false}),
            ),
            seed: 5,
        },
        Tiny {
            name: "gemma2",
            config: base(
                "gemma2",
                with(&gemma, json!({"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0})),
            ),
            seed: 6,
        },
        Tiny {
            name: "gemma3",
            config: base(
                "gemma3_text",
                with(&gemma, json!({"rope_local_base_freq": 1000.0, "sliding_window_pattern": 3})),
            ),
            seed: 7,
        },
        Tiny { name: "phi3", config: base("phi3", json!({})), seed: 8 },
        Tiny {
            name: "phi3, longrope",
            config: base("phi3", json!({"rope_scaling": longrope, "original_max_position_embeddings": 32})),
            seed: 9,
        },
        Tiny { name: "smollm3", config: base("smollm3", json!({"no_rope_layer_interval": 4})), seed: 10 },
    ]
}

impl Tiny {
    /// The checkpoint with this name.
    pub fn named(name: &str) -> Self {
        all().into_iter().find(|tiny| tiny.name == name).expect("a checkpoint of this name")
    }

    /// The same architecture with other weights.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The same with one field of the configuration set.
    pub fn with_field(mut self, field: &str, value: Json) -> Self {
        self.config[field] = value;
        self
    }

    fn model_type(&self) -> &str {
        self.config["model_type"].as_str().expect("a string")
    }

    fn uint(&self, field: &str) -> usize {
        self.config[field].as_u64().expect("a number") as usize
    }

    fn head_dim(&self) -> usize {
        match self.config["head_dim"].as_u64() {
            Some(dim) => dim as usize,
            None => self.uint("hidden_size") / self.uint("num_attention_heads"),
        }
    }

    fn is_gemma(&self) -> bool {
        self.model_type().starts_with("gemma")
    }

    /// All tensors, random but for the seed.
    pub fn tensors(&self) -> Vec<NamedTensor> {
        let mut floats = Floats(self.seed);
        let (hidden, ff, vocab) =
            (self.uint("hidden_size"), self.uint("intermediate_size"), self.uint("vocab_size"));
        let (q, kv) = (
            self.uint("num_attention_heads") * self.head_dim(),
            self.uint("num_key_value_heads") * self.head_dim(),
        );
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            let len = shape.iter().product();
            let is_norm = shape.len() == 1 && name.contains("norm");
            let center = if is_norm && !self.is_gemma() { 1.0 } else { 0.0 };
            let scale = if shape.len() == 1 { 0.3 } else { 0.4 };
            let data = (0..len).map(|_| center + scale * floats.next_float()).collect();
            tensors.push(NamedTensor { name, shape: shape.to_vec(), data });
        };
        add("model.embed_tokens.weight".into(), &[vocab, hidden]);
        for i in 0..self.uint("num_hidden_layers") {
            let name = |role: &str| format!("model.layers.{i}.{role}");
            add(name("input_layernorm.weight"), &[hidden]);
            add(name("post_attention_layernorm.weight"), &[hidden]);
            if self.is_gemma() {
                add(name("pre_feedforward_layernorm.weight"), &[hidden]);
                add(name("post_feedforward_layernorm.weight"), &[hidden]);
            }
            if self.model_type() == "phi3" {
                add(name("self_attn.qkv_proj.weight"), &[q + 2 * kv, hidden]);
                add(name("mlp.gate_up_proj.weight"), &[2 * ff, hidden]);
            } else {
                for (proj, rows) in [("q", q), ("k", kv), ("v", kv)] {
                    add(name(&format!("self_attn.{proj}_proj.weight")), &[rows, hidden]);
                    if self.model_type() == "qwen2" {
                        add(name(&format!("self_attn.{proj}_proj.bias")), &[rows]);
                    }
                }
                add(name("mlp.gate_proj.weight"), &[ff, hidden]);
                add(name("mlp.up_proj.weight"), &[ff, hidden]);
            }
            if matches!(self.model_type(), "qwen3" | "gemma3_text") {
                add(name("self_attn.q_norm.weight"), &[self.head_dim()]);
                add(name("self_attn.k_norm.weight"), &[self.head_dim()]);
            }
            add(name("self_attn.o_proj.weight"), &[hidden, q]);
            add(name("mlp.down_proj.weight"), &[hidden, ff]);
        }
        add("model.norm.weight".into(), &[hidden]);
        if self.config["tie_word_embeddings"] == json!(false) {
            add("lm_head.weight".into(), &[vocab, hidden]);
        }
        tensors
    }

    /// `config.json` and `model.safetensors` in `dir`.
    pub fn write_safetensors(&self, dir: &Path) {
        write(dir, &self.config, self.tensors());
    }

    /// Loads it as the language model of a multimodal wrapper, whose tensor names begin with `prefix`.
    pub fn load_wrapped(&self, prefix: &str, device: &Device) -> Arc<dyn Model> {
        let config = json!({"model_type": "gemma3", "text_config": self.config});
        let mut tensors = self.tensors();
        for NamedTensor { name, .. } in &mut tensors {
            *name = match prefix {
                "language_model." => format!("{prefix}{name}"),
                _ => name.replacen("model.", prefix, 1),
            };
        }
        load_written(&config, tensors, device, None)
    }

    /// Loads it with these tensors for its own; `kv_type` is how keys and values are kept.
    pub fn load_tensors(
        &self,
        tensors: Vec<NamedTensor>,
        device: &Device,
        kv_type: KvType,
    ) -> Arc<dyn Model> {
        load_written(&self.config, tensors, device, Some(kv_type))
    }

    /// The same checkpoint as a GGUF converter would write it.
    pub fn gguf(&self) -> Weights {
        let arch = match self.model_type() {
            "mistral" => "llama",
            "gemma3_text" => "gemma3",
            other => other,
        };
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let uint = |value: usize| Value::Uint(value as u64);
        let mut writer = GgufWriter::new()
            .metadata("general.architecture", Value::String(arch.as_bytes().to_vec()))
            .metadata(&key("context_length"), uint(self.uint("max_position_embeddings")))
            .metadata(&key("embedding_length"), uint(self.uint("hidden_size")))
            .metadata(&key("feed_forward_length"), uint(self.uint("intermediate_size")))
            .metadata(&key("block_count"), uint(self.uint("num_hidden_layers")))
            .metadata(&key("attention.head_count"), uint(self.uint("num_attention_heads")))
            .metadata(&key("attention.head_count_kv"), uint(self.uint("num_key_value_heads")))
            .metadata(&key("attention.key_length"), uint(self.head_dim()))
            .metadata(&key("attention.value_length"), uint(self.head_dim()))
            .metadata(&key("attention.layer_norm_rms_epsilon"), Value::Float(1e-5))
            .metadata(
                &key("rope.freq_base"),
                Value::Float(self.config["rope_theta"].as_f64().expect("a number")),
            );
        if self.is_gemma() {
            writer = writer
                .metadata(&key("attention.sliding_window"), uint(self.uint("sliding_window")))
                .metadata(&key("attention.scale"), Value::Float(24f64.powf(-0.5)));
        }
        for (field, suffix) in [
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("rope_local_base_freq", "rope.freq_base_swa"),
        ] {
            if let Some(value) = self.config[field].as_f64() {
                writer = writer.metadata(&key(suffix), Value::Float(value));
            }
        }
        if let Some(pattern) = self.config["sliding_window_pattern"].as_u64() {
            writer = writer.metadata(&key("attention.sliding_window_pattern"), Value::Uint(pattern));
        }
        for tensor in self.tensors() {
            let mut data = tensor.data.clone();
            if self.is_gemma() && tensor.name.contains("norm") {
                data.iter_mut().for_each(|w| *w += 1.0);
            }
            if matches!(arch, "llama" | "smollm3")
                && (tensor.name.contains("q_proj") || tensor.name.contains("k_proj"))
            {
                data = interleave_halves(&data, self.head_dim(), tensor.shape[1]);
            }
            let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer =
                writer.tensor(&gguf_name(&tensor.name, self.is_gemma()), Format::F32, &tensor.shape, &bytes);
        }
        Weights::from_bytes("tiny.gguf", writer.finish()).expect("a valid file")
    }

    /// Loads it from safetensors.
    pub fn load(&self, device: &Device) -> Arc<dyn Model> {
        self.load_kept(device, None)
    }

    /// Loads it from safetensors; `kv_type` is how keys and values are kept.
    pub fn load_kept(&self, device: &Device, kv_type: Option<KvType>) -> Arc<dyn Model> {
        load_written(&self.config, self.tensors(), device, kv_type)
    }

    /// Loads a copy of it in fewer bits, from safetensors.
    pub fn load_copy(&self, device: &Device, format: Format) -> Arc<dyn Model> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        self.write_safetensors(dir.path());
        let weights = Weights::open(dir.path()).expect("a valid checkpoint");
        let config =
            read_config(&weights, Some(&dir.path().join("config.json")), None).expect("a valid config");
        load_copy(&weights, config, device, format)
    }

    /// Loads a copy of it in fewer bits, from GGUF.
    pub fn load_gguf_copy(&self, device: &Device, format: Format) -> Arc<dyn Model> {
        let weights = self.gguf();
        let config = read_config(&weights, None, None).expect("valid metadata");
        load_copy(&weights, config, device, format)
    }

    /// Loads it from safetensors and from GGUF, with logits of these ids only; or copies of it in `format`.
    pub fn load_heads(
        &self,
        device: &Device,
        head_ids: Option<&[u32]>,
        copy_as: Option<Format>,
    ) -> [Arc<dyn Model>; 2] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        self.write_safetensors(dir.path());
        let config = dir.path().join("config.json");
        let safetensors = Weights::open(dir.path()).expect("a valid checkpoint");
        [(safetensors, Some(&*config)), (self.gguf(), None)].map(|(weights, config)| {
            let config = read_config(&weights, config, None).expect("a valid config");
            let head_ids = head_ids.map(Into::into);
            load(&weights, config, &LoadOptions { copy_as, head_ids, ..options(device) })
                .expect("rows there are")
        })
    }

    /// Loads it from GGUF, with logits of these ids only, if they are good for it.
    ///
    /// # Errors
    /// If not.
    pub fn try_load_head(&self, device: &Device, head_ids: &[u32]) -> Result<Arc<dyn Model>> {
        let weights = self.gguf();
        let config = read_config(&weights, None, None).expect("valid metadata");
        load(&weights, config, &LoadOptions { head_ids: Some(head_ids.into()), ..options(device) })
    }

    /// Loads it from GGUF.
    pub fn load_gguf(&self, device: &Device) -> Arc<dyn Model> {
        self.load_gguf_kept(device, None)
    }

    /// Loads it from GGUF; `kv_type` is how keys and values are kept.
    pub fn load_gguf_kept(&self, device: &Device, kv_type: Option<KvType>) -> Arc<dyn Model> {
        let weights = self.gguf();
        let config = read_config(&weights, None, None).expect("valid metadata");
        load_on(&weights, config, device, kv_type)
    }
}

fn write(dir: &Path, config: &Json, tensors: Vec<NamedTensor>) {
    std::fs::write(dir.join("config.json"), config.to_string()).expect("a writable folder");
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend(tensor.data.iter().flat_map(|x| x.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(tensor.name, entry);
    }
    let mut header = Json::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    std::fs::write(dir.join("model.safetensors"), file).expect("a writable folder");
}

fn load_written(
    config: &Json,
    tensors: Vec<NamedTensor>,
    device: &Device,
    kv_type: Option<KvType>,
) -> Arc<dyn Model> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write(dir.path(), config, tensors);
    let weights = Weights::open(dir.path()).expect("a valid checkpoint");
    let config = read_config(&weights, Some(&dir.path().join("config.json")), None).expect("a valid config");
    load_on(&weights, config, device, kv_type)
}

fn load_copy(weights: &Weights, config: ArchConfig, device: &Device, format: Format) -> Arc<dyn Model> {
    let options = LoadOptions { copy_as: Some(format), ..options(device) };
    load(weights, config, &options).expect("rows of whole blocks")
}

fn load_on(
    weights: &Weights,
    config: ArchConfig,
    device: &Device,
    kv_type: Option<KvType>,
) -> Arc<dyn Model> {
    load(weights, config, &LoadOptions { kv_type, ..options(device) }).expect("a complete checkpoint")
}

/// All of a model, as it is.
fn options(device: &Device) -> LoadOptions {
    LoadOptions { device: device.clone(), context_len: None, kv_type: None, copy_as: None, head_ids: None }
}

/// The device whose numerics contract is bit identity.
pub fn cpu(threads: usize) -> Device {
    Device::open(DeviceSpec::Cpu, threads).expect("the CPU is always there")
}

/// candle's own operations.
pub fn reference() -> Device {
    Device::open(DeviceSpec::Reference, 1).expect("the CPU is always there")
}

/// llama.cpp's converter turns "one element of each half" rotation into "two neighbours" by reordering rows.
fn interleave_halves(data: &[f32], head_dim: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(data.len());
    for head in data.chunks_exact(head_dim * cols) {
        for row in 0..head_dim {
            let from = (row % 2) * (head_dim / 2) + row / 2;
            out.extend_from_slice(&head[from * cols..][..cols]);
        }
    }
    out
}

fn gguf_name(hf: &str, gemma: bool) -> String {
    let Some(rest) = hf.strip_prefix("model.layers.") else {
        return match hf {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            other => panic!("no GGUF name for {other}"),
        }
        .into();
    };
    let (layer, role) = rest.split_once('.').expect("layer and role");
    let (role, kind) = role.rsplit_once('.').expect("role and kind");
    let role = match role {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" if gemma => "post_attention_norm",
        "post_attention_layernorm" => "ffn_norm",
        "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.qkv_proj" => "attn_qkv",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("no GGUF name for {other}"),
    };
    format!("blk.{layer}.{role}.{kind}")
}
