//! `ArchConfig` from a Hugging Face `config.json`.

use std::path::Path;

use serde::Deserialize;

use super::{
    Activation, ArchConfig, Architecture, LayerConfig, RopeConfig, RopeScaling, gemma_attn_scale,
    longrope_magnitude,
};
use crate::error::{Error, Result};

/// The fields of `config.json` that matter, under their own names.
#[derive(Deserialize)]
struct HfConfig {
    model_type: String,
    #[serde(default)]
    text_config: Option<Box<serde_json::Value>>,
    vocab_size: Option<usize>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    original_max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<HfRopeScaling>,
    rope_parameters: Option<serde_json::Value>,
    partial_rotary_factor: Option<f64>,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    mlp_bias: Option<bool>,
}

#[derive(Clone, Deserialize)]
struct HfRopeScaling {
    rope_type: Option<String>,
    /// The older name of `rope_type`; some files carry both.
    #[serde(rename = "type")]
    kind: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    short_factor: Option<Vec<f32>>,
    long_factor: Option<Vec<f32>>,
    attention_factor: Option<f64>,
    rope_theta: Option<f64>,
}

/// Reads `config.json` at `path`. `context_len` is the context that will be used, where it is known.
///
/// # Errors
/// [`Error::Io`], [`Error::Format`] for a missing or impossible field, [`Error::Unsupported`] for an unknown
/// `model_type` or rope scaling.
pub fn from_config_json(path: &Path, context_len: Option<usize>) -> Result<ArchConfig> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
    let mut hf: HfConfig = serde_json::from_str(&text).map_err(|e| Error::format(path, e.to_string()))?;
    if let Some(inner) = hf.text_config.take() {
        // Multimodal wrappers (Gemma 3 4B and up) keep the language model's fields one level down.
        let outer = hf.model_type;
        hf = serde_json::from_value(*inner).map_err(|e| Error::format(path, format!("text_config: {e}")))?;
        hf.max_position_embeddings = hf.max_position_embeddings.or((outer == "gemma3").then_some(131_072));
    }
    let reader = Reader { architecture: architecture(path, &hf.model_type)?, hf, path };
    let config = reader.config(context_len)?;
    config.check().map_err(|message| Error::format(path, message))?;
    Ok(config)
}

fn architecture(path: &Path, model_type: &str) -> Result<Architecture> {
    Ok(match model_type {
        "llama" | "mistral" => Architecture::Llama,
        "qwen2" => Architecture::Qwen2,
        "qwen3" => Architecture::Qwen3,
        "gemma2" => Architecture::Gemma2,
        "gemma3" | "gemma3_text" => Architecture::Gemma3,
        "phi3" => Architecture::Phi3,
        "smollm3" => Architecture::SmolLm3,
        other => {
            return Err(Error::Unsupported(format!(
                "{}: model_type `{other}` is not supported; supported are llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, smollm3",
                path.display()
            )));
        }
    })
}

struct Reader<'a> {
    architecture: Architecture,
    hf: HfConfig,
    path: &'a Path,
}

impl Reader<'_> {
    fn need<T: Copy>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::format(self.path, format!("field `{name}` is missing")))
    }

    fn config(&self, context_len: Option<usize>) -> Result<ArchConfig> {
        let hf = &self.hf;
        let gemma = matches!(self.architecture, Architecture::Gemma2 | Architecture::Gemma3);
        let hidden_size = self.need("hidden_size", hf.hidden_size)?;
        // Gemma 3 wrappers leave out what equals the class defaults; those of the text model fill in.
        let num_heads = self.need("num_attention_heads", hf.num_attention_heads.or(gemma.then_some(8)))?;
        let num_kv_heads = hf.num_key_value_heads.unwrap_or(if gemma { 4 } else { num_heads });
        let head_dim = match hf.head_dim {
            Some(dim) => dim,
            None if gemma => 256,
            None if self.architecture == Architecture::Qwen3 => 128,
            None => hidden_size.checked_div(num_heads).unwrap_or(0),
        };
        let trained_len = self.need("max_position_embeddings", hf.max_position_embeddings)?;
        let num_layers = self.need("num_hidden_layers", hf.num_hidden_layers)?;
        if hf.mlp_bias == Some(true) {
            return Err(self.unsupported("`mlp_bias` is true, but biases in the feed-forward layer"));
        }
        let ropes = self.ropes(head_dim, trained_len, context_len.unwrap_or(trained_len))?;
        Ok(ArchConfig {
            architecture: self.architecture,
            vocab_size: self.need("vocab_size", hf.vocab_size.or(gemma.then_some(262_208)))?,
            hidden_size,
            intermediate_size: self.need("intermediate_size", hf.intermediate_size)?,
            num_heads,
            num_kv_heads,
            head_dim,
            context_len: trained_len,
            norm_eps: self.need("rms_norm_eps", hf.rms_norm_eps.or(gemma.then_some(1e-6)))? as f32,
            attn_scale: match hf.query_pre_attn_scalar {
                Some(scalar) if gemma => gemma_attn_scale(scalar),
                None if gemma => gemma_attn_scale(256.0),
                _ => gemma_attn_scale(head_dim as f64),
            },
            attn_softcap: hf.attn_logit_softcapping.filter(|&cap| cap > 0.0),
            final_softcap: hf.final_logit_softcapping.filter(|&cap| cap > 0.0),
            embed_scale: gemma.then(|| (hidden_size as f32).sqrt()),
            activation: self.activation(gemma)?,
            layers: self.layers(num_layers, ropes.len())?,
            ropes,
        })
    }

    fn activation(&self, gemma: bool) -> Result<Activation> {
        // Gemma's first configs say "gelu" under `hidden_act` and mean the tanh form.
        match self.hf.hidden_activation.as_deref().or(self.hf.hidden_act.as_deref()) {
            _ if gemma => Ok(Activation::GeluTanh),
            None | Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            Some(other) => Err(self.unsupported(&format!("activation `{other}`"))),
        }
    }

    /// The rope entry for one kind of layer; newer configs nest them under `rope_parameters`.
    fn rope_entry(&self, layer_type: &str) -> Result<Option<HfRopeScaling>> {
        let Some(parameters) = &self.hf.rope_parameters else { return Ok(self.hf.rope_scaling.clone()) };
        let entry = parameters.get(layer_type).unwrap_or(parameters);
        serde_json::from_value(entry.clone())
            .map(Some)
            .map_err(|e| Error::format(self.path, format!("rope_parameters: {e}")))
    }

    fn ropes(&self, head_dim: usize, trained_len: usize, context_len: usize) -> Result<Vec<RopeConfig>> {
        let dim = (head_dim as f64 * self.hf.partial_rotary_factor.unwrap_or(1.0)) as usize;
        let gemma3 = self.architecture == Architecture::Gemma3;
        let entry = self.rope_entry("full_attention")?;
        let default_theta = if gemma3 { 1_000_000.0 } else { 10_000.0 };
        let theta = entry.as_ref().and_then(|e| e.rope_theta).or(self.hf.rope_theta).unwrap_or(default_theta);
        let scaling = self.scaling(entry, trained_len, context_len)?;
        let mut ropes = vec![RopeConfig { theta, dim, interleaved: false, scaling }];
        if gemma3 {
            let nested = self
                .hf
                .rope_parameters
                .as_ref()
                .and_then(|p| p.get("sliding_attention")?.get("rope_theta")?.as_f64());
            let theta = nested.or(self.hf.rope_local_base_freq).unwrap_or(10_000.0);
            ropes.push(RopeConfig { theta, dim, interleaved: false, scaling: RopeScaling::None });
        }
        Ok(ropes)
    }

    fn scaling(
        &self,
        entry: Option<HfRopeScaling>,
        trained_len: usize,
        context_len: usize,
    ) -> Result<RopeScaling> {
        let Some(entry) = entry else { return Ok(RopeScaling::None) };
        let original = entry.original_max_position_embeddings.or(self.hf.original_max_position_embeddings);
        match entry.rope_type.as_deref().or(entry.kind.as_deref()) {
            None | Some("default" | "none") => Ok(RopeScaling::None),
            Some("linear") => {
                Ok(RopeScaling::Linear { factor: self.need("rope_scaling.factor", entry.factor)? })
            }
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: self.need("rope_scaling.factor", entry.factor)?,
                low_freq_factor: self.need("rope_scaling.low_freq_factor", entry.low_freq_factor)?,
                high_freq_factor: self.need("rope_scaling.high_freq_factor", entry.high_freq_factor)?,
                original_context_len: self.need("rope_scaling.original_max_position_embeddings", original)?,
            }),
            Some("longrope" | "su") => {
                let original = original.unwrap_or(trained_len);
                let (name, factors) = match context_len > original {
                    true => ("rope_scaling.long_factor", entry.long_factor),
                    false => ("rope_scaling.short_factor", entry.short_factor),
                };
                let factors =
                    factors.ok_or_else(|| Error::format(self.path, format!("field `{name}` is missing")))?;
                let magnitude =
                    entry.attention_factor.unwrap_or_else(|| longrope_magnitude(trained_len, original));
                Ok(RopeScaling::Factors { factors, magnitude })
            }
            Some(other) => Err(self.unsupported(&format!("rope scaling `{other}`"))),
        }
    }

    /// Per layer, whether its attention is local; `None` where the file does not list its layers' kinds.
    fn listed_layers(&self, num_layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(types) = &self.hf.layer_types else { return Ok(None) };
        if types.len() != num_layers {
            let message = format!("`layer_types` lists {} layers, wanted {num_layers}", types.len());
            return Err(Error::format(self.path, message));
        }
        let is_local = |kind: &String| match kind.as_str() {
            "full_attention" => Ok(false),
            "sliding_attention" => Ok(true),
            other => Err(self.unsupported(&format!(
                "a layer of type `{}` (only full_attention and sliding_attention are known)",
                other.chars().take(80).flat_map(char::escape_debug).collect::<String>()
            ))),
        };
        types.iter().map(is_local).collect::<Result<_>>().map(Some)
    }

    fn layers(&self, num_layers: usize, num_ropes: usize) -> Result<Vec<LayerConfig>> {
        let hf = &self.hf;
        let window = hf.sliding_window.filter(|&w| w > 0);
        let listed_layers = self.listed_layers(num_layers)?;
        let layers = (0..num_layers.min(1 << 16))
            .map(|i| {
                let listed = listed_layers.as_ref().map(|layers| layers[i]);
                let local = match self.architecture {
                    Architecture::Gemma2 => listed.unwrap_or(i.is_multiple_of(2)),
                    Architecture::Gemma3 => listed.unwrap_or_else(|| {
                        let every = hf.sliding_window_pattern.filter(|&n| n > 0).unwrap_or(6);
                        !(i + 1).is_multiple_of(every)
                    }),
                    Architecture::Qwen2 | Architecture::Qwen3 | Architecture::SmolLm3 => {
                        let on = hf.use_sliding_window == Some(true);
                        on && listed.unwrap_or(i >= hf.max_window_layers.unwrap_or(0))
                    }
                    Architecture::Llama | Architecture::Phi3 => listed.unwrap_or(true),
                };
                let rope = match self.architecture {
                    Architecture::Gemma3 => Some(if local { num_ropes - 1 } else { 0 }),
                    Architecture::SmolLm3 => {
                        let every = hf.no_rope_layer_interval.filter(|&n| n > 0).unwrap_or(4);
                        let listed = hf.no_rope_layers.as_ref().and_then(|l| l.get(i)).map(|&uses| uses != 0);
                        listed.unwrap_or(!(i + 1).is_multiple_of(every)).then_some(0)
                    }
                    _ => Some(0),
                };
                LayerConfig { window: window.filter(|_| local), rope }
            })
            .collect();
        Ok(layers)
    }

    fn unsupported(&self, what: &str) -> Error {
        Error::Unsupported(format!("{}: {what} is not supported", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    /// The configuration of a tiny model of three layers, with some fields changed; a null takes one out.
    fn read(model_type: &str, changes: Value) -> Result<ArchConfig> {
        let mut config = json!({
            "model_type": model_type, "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
            "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "sliding_window": 8, "use_sliding_window": true,
        });
        for (name, value) in changes.as_object().unwrap() {
            config[name] = value.clone();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        from_config_json(&path, None)
    }

    #[test]
    fn layers_are_of_the_kinds_listed() {
        let types = json!({"layer_types": ["full_attention", "sliding_attention", "full_attention"]});
        for model_type in ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3"] {
            let config = read(model_type, types.clone()).unwrap();
            let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
            assert_eq!(windows, [None, Some(8), None], "{model_type}");
        }
    }

    #[test]
    fn kinds_that_nobody_knows_are_refused() {
        for model_type in ["llama", "qwen3", "gemma3_text"] {
            let types = ["full_attention", "chunked_attention", "full_attention"];
            let message = read(model_type, json!({ "layer_types": types })).unwrap_err().to_string();
            assert!(message.contains("a layer of type `chunked_attention`"), "{message}");
            let message =
                read(model_type, json!({"layer_types": ["full_attention"]})).unwrap_err().to_string();
            assert!(message.ends_with("config.json: `layer_types` lists 1 layers, wanted 3"), "{message}");
        }
    }

    #[test]
    fn the_norms_epsilon_is_never_guessed() {
        let message = read("llama", json!({"rms_norm_eps": null})).unwrap_err().to_string();
        assert!(message.ends_with("field `rms_norm_eps` is missing"), "{message}");
        // Gemma's multimodal wrappers leave out what equals the default of their class.
        assert_eq!(read("gemma3_text", json!({"rms_norm_eps": null})).unwrap().norm_eps, 1e-6);
    }
}
