//! `ArchConfig` from GGUF metadata.

use super::{
    Activation, ArchConfig, Architecture, LayerConfig, RopeConfig, RopeScaling, gemma_attn_scale,
    longrope_magnitude,
};
use crate::{
    error::{Error, Result},
    weights::{Weights, metadata::Metadata},
};

/// Reads the configuration of a GGUF file. `context_len` is the context that will be used, where it is known: LongRoPE
/// has one set of factors for short contexts and one for long ones.
///
/// # Errors
/// [`Error::Unsupported`] for an unknown architecture or rope scaling, [`Error::Format`] for a missing or impossible key.
pub fn from_metadata(weights: &Weights, meta: &Metadata, context_len: Option<usize>) -> Result<ArchConfig> {
    let reader = Reader { weights, meta, arch: architecture(weights, meta)? };
    let config = reader.config(context_len)?;
    config.check().map_err(|message| Error::format(weights.path(), message))?;
    Ok(config)
}

fn architecture(weights: &Weights, meta: &Metadata) -> Result<Architecture> {
    let name = meta
        .str("general.architecture")
        .ok_or_else(|| Error::format(weights.path(), "metadata key `general.architecture` is missing"))?;
    // Mistral's own conversions name the architecture after the company; the network is Llama's.
    let known = if name == "mistral" { "llama" } else { name };
    Architecture::ALL.into_iter().find(|a| a.name() == known).ok_or_else(|| {
        let names: Vec<_> = Architecture::ALL.iter().map(|a| a.name()).collect();
        Error::Unsupported(format!(
            "{}: architecture `{name}` is not supported; supported are {}",
            weights.path().display(),
            names.join(", ")
        ))
    })
}

struct Reader<'a> {
    weights: &'a Weights,
    meta: &'a Metadata,
    arch: Architecture,
}

impl Reader<'_> {
    fn key(&self, suffix: &str) -> String {
        // The prefix is the file's own word for the architecture.
        format!("{}.{suffix}", self.meta.str("general.architecture").unwrap_or(self.arch.name()))
    }

    fn opt_uint(&self, suffix: &str) -> Option<usize> {
        let key = self.key(suffix);
        // Some files store one value per layer; they are equal in every architecture known here.
        self.meta
            .uint(&key)
            .and_then(|v| usize::try_from(v).ok())
            .or_else(|| self.meta.ints(&key).and_then(|v| usize::try_from(*v.first()?).ok()))
    }

    fn uint(&self, suffix: &str) -> Result<usize> {
        self.opt_uint(suffix).ok_or_else(|| self.missing(suffix))
    }

    fn float(&self, suffix: &str) -> Result<f64> {
        self.opt_float(suffix).ok_or_else(|| self.missing(suffix))
    }

    fn missing(&self, suffix: &str) -> Error {
        Error::format(self.weights.path(), format!("metadata key `{}` is missing", self.key(suffix)))
    }

    fn opt_float(&self, suffix: &str) -> Option<f64> {
        self.meta.float(&self.key(suffix))
    }

    fn config(&self, context_len: Option<usize>) -> Result<ArchConfig> {
        let hidden_size = self.uint("embedding_length")?;
        let num_heads = self.uint("attention.head_count")?;
        let num_kv_heads = self.opt_uint("attention.head_count_kv").unwrap_or(num_heads);
        let num_layers = self.uint("block_count")?;
        let head_dim = match self.opt_uint("attention.key_length") {
            Some(dim) => dim,
            None => hidden_size.checked_div(num_heads).unwrap_or(0),
        };
        if let Some(value_len) = self.opt_uint("attention.value_length")
            && value_len != head_dim
        {
            return Err(
                self.unsupported(format!("value heads of {value_len} beside key heads of {head_dim}"))
            );
        }
        let trained_len = self.uint("context_length")?;
        let vocab_size = match self.weights.tensor("token_embd.weight")?.shape() {
            [rows, _] => *rows,
            shape => {
                let message =
                    format!("tensor `token_embd.weight` has shape {shape:?}, wanted two dimensions");
                return Err(Error::format(self.weights.path(), message));
            }
        };
        let gemma = matches!(self.arch, Architecture::Gemma2 | Architecture::Gemma3);
        let ropes = self.ropes(head_dim, trained_len, context_len.unwrap_or(trained_len))?;
        Ok(ArchConfig {
            architecture: self.arch,
            vocab_size,
            hidden_size,
            intermediate_size: self.uint("feed_forward_length")?,
            num_heads,
            num_kv_heads,
            head_dim,
            context_len: trained_len,
            norm_eps: self.float("attention.layer_norm_rms_epsilon")? as f32,
            attn_scale: match self.arch {
                // The 27B models of both generations scale by the residual width shared over the heads.
                Architecture::Gemma2 if num_layers == 46 => {
                    gemma_attn_scale(hidden_size as f64 / num_heads as f64)
                }
                Architecture::Gemma3 if num_layers == 62 => {
                    gemma_attn_scale(hidden_size as f64 / num_heads as f64)
                }
                _ => self
                    .opt_float("attention.scale")
                    .map_or_else(|| gemma_attn_scale(head_dim as f64), |s| s as f32),
            },
            attn_softcap: self.softcap("attn_logit_softcapping", 50.0),
            final_softcap: self.softcap("final_logit_softcapping", 30.0),
            embed_scale: gemma.then(|| (hidden_size as f32).sqrt()),
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            layers: self.layers(num_layers, ropes.len()),
            ropes,
        })
    }

    /// Gemma 2 caps; older conversions of it omit the keys, so its published values stand in.
    fn softcap(&self, key: &str, gemma2: f32) -> Option<f32> {
        let default = (self.arch == Architecture::Gemma2).then_some(gemma2);
        self.opt_float(key).map(|v| v as f32).or(default).filter(|&cap| cap > 0.0)
    }

    fn ropes(&self, head_dim: usize, trained_len: usize, context_len: usize) -> Result<Vec<RopeConfig>> {
        let dim = self.opt_uint("rope.dimension_count").unwrap_or(head_dim);
        let interleaved = matches!(self.arch, Architecture::Llama | Architecture::SmolLm3);
        let default_theta = if self.arch == Architecture::Gemma3 { 1_000_000.0 } else { 10_000.0 };
        let theta = self.opt_float("rope.freq_base").unwrap_or(default_theta);
        let scaling = self.scaling(trained_len, context_len)?;
        let mut ropes = vec![RopeConfig { theta, dim, interleaved, scaling }];
        if self.arch == Architecture::Gemma3 {
            // Local layers turn by a base of their own and are never stretched.
            let theta = self.opt_float("rope.freq_base_swa").unwrap_or(10_000.0);
            ropes.push(RopeConfig { theta, dim, interleaved, scaling: RopeScaling::None });
        }
        Ok(ropes)
    }

    fn scaling(&self, trained_len: usize, context_len: usize) -> Result<RopeScaling> {
        if self.weights.contains("rope_freqs.weight") {
            let factors = self.weights.tensor("rope_freqs.weight")?.to_f32();
            return Ok(RopeScaling::Factors { factors, magnitude: 1.0 });
        }
        if self.weights.contains("rope_factors_long.weight") {
            let original = self.opt_uint("rope.scaling.original_context_length").unwrap_or(trained_len);
            let name =
                if context_len > original { "rope_factors_long.weight" } else { "rope_factors_short.weight" };
            let factors = self.weights.tensor(name)?.to_f32();
            let stored = self.opt_float("rope.scaling.attn_factor");
            let magnitude = stored.unwrap_or_else(|| longrope_magnitude(trained_len, original));
            return Ok(RopeScaling::Factors { factors, magnitude });
        }
        let factor = self.opt_float("rope.scaling.factor");
        match (self.meta.str(&self.key("rope.scaling.type")), factor) {
            (None | Some("none"), None) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(factor)) if factor > 0.0 => Ok(RopeScaling::Linear { factor }),
            (Some("none"), _) => Ok(RopeScaling::None),
            (kind, factor) => Err(self.unsupported(format!(
                "rope scaling `{}` with factor {factor:?}; supported are none, linear, llama3 and longrope factors",
                kind.unwrap_or("linear")
            ))),
        }
    }

    fn layers(&self, num_layers: usize, num_ropes: usize) -> Vec<LayerConfig> {
        let window = self.opt_uint("attention.sliding_window").filter(|&w| w > 0);
        let every = match self.arch {
            Architecture::Gemma2 => 2,
            Architecture::Gemma3 => {
                self.opt_uint("attention.sliding_window_pattern").filter(|&n| n > 0).unwrap_or(6)
            }
            _ => 1,
        };
        // A claimed count must not decide an allocation before the tensors are seen: real models stay far below.
        (0..num_layers.min(1 << 16))
            .map(|i| {
                let local = match self.arch {
                    Architecture::Gemma2 | Architecture::Gemma3 => !(i + 1).is_multiple_of(every),
                    Architecture::Phi3 => true,
                    _ => false,
                };
                LayerConfig {
                    window: window.filter(|_| local),
                    rope: match self.arch {
                        Architecture::Gemma3 => Some(if local { num_ropes - 1 } else { 0 }),
                        Architecture::SmolLm3 => (!(i + 1).is_multiple_of(4)).then_some(0),
                        _ => Some(0),
                    },
                }
            })
            .collect()
    }

    fn unsupported(&self, what: String) -> Error {
        Error::Unsupported(format!("{}: {what}", self.weights.path().display()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::weights::{Format, Value, gguf_writer::GgufWriter};

    #[test]
    fn the_norms_epsilon_is_never_guessed() {
        let file = |with_epsilon: bool| {
            let mut writer = GgufWriter::new()
                .metadata("general.architecture", Value::String(b"llama".to_vec()))
                .tensor("token_embd.weight", Format::F32, &[4, 8], &[0; 128]);
            for (key, value) in [
                ("embedding_length", 8),
                ("attention.head_count", 2),
                ("block_count", 1),
                ("context_length", 64),
                ("feed_forward_length", 16),
            ] {
                writer = writer.metadata(&format!("llama.{key}"), Value::Uint(value));
            }
            if with_epsilon {
                writer = writer.metadata("llama.attention.layer_norm_rms_epsilon", Value::Float(1e-5));
            }
            let weights = Weights::from_bytes("m.gguf", writer.finish()).unwrap();
            from_metadata(&weights, weights.metadata().unwrap(), None)
        };
        assert_eq!(file(true).unwrap().norm_eps, 1e-5);
        let message = file(false).unwrap_err().to_string();
        assert_eq!(message, "m.gguf: metadata key `llama.attention.layer_norm_rms_epsilon` is missing");
    }
}
