//! `OpenModel`: a model's files read as far as a decision needs: weights mapped, configuration, tokenizer, template.

use std::path::PathBuf;

use specgen_kernels::Format;

use crate::{
    chat::ChatTemplate,
    engine::Overrides,
    error::{Error, Result},
    memory::{ModelMemory, Usage},
    model::{bytes_spared, config::ArchConfig, copy_bytes, read_config},
    models::ModelFiles,
    tokenizer::Tokenizer,
    weights::Weights,
};

/// Ids a tokenizer may know beyond the model's: tokens of multimodal siblings, which no text prompt contains.
const EXTRA_TOKENS: usize = 256;

/// A model that could be loaded.
pub struct OpenModel {
    /// As it was asked for.
    pub name: String,
    /// The mapped weights.
    pub weights: Weights,
    /// The architecture.
    pub config: ArchConfig,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, where there is one; a broken one is an error only to those who need it.
    pub chat_template: Result<Option<ChatTemplate>>,
    config_json: Option<PathBuf>,
}

impl OpenModel {
    /// Opens `files`.
    ///
    /// # Errors
    /// Anything malformed or unsupported in them; a tokenizer that does not belong to the weights.
    pub fn open(files: &ModelFiles, overrides: &Overrides) -> Result<Self> {
        let weights = match &files.index {
            Some(index) => Weights::open(index)?,
            None => Weights::from_files(&files.weights)?,
        };
        let config = read_config(&weights, files.config.as_deref(), None)?;
        let tokenizer = open_tokenizer(&weights, files, overrides)?;
        if tokenizer.vocab_size() > config.vocab_size + EXTRA_TOKENS {
            let message = format!(
                "the tokenizer has {} tokens, the model {}; they do not belong together",
                tokenizer.vocab_size(),
                config.vocab_size
            );
            return Err(Error::format(weights.path(), message));
        }
        let chat_template = open_chat_template(&weights, files, overrides, &tokenizer);
        let (name, config_json) = (files.name.clone(), files.config.clone());
        Ok(Self { name, weights, config, tokenizer, chat_template, config_json })
    }

    /// The configuration for a known context: LongRoPE models have one for short contexts and one for long ones.
    ///
    /// # Errors
    /// As [`read_config`].
    pub fn config_for(&self, context_len: usize) -> Result<ArchConfig> {
        read_config(&self.weights, self.config_json.as_deref(), Some(context_len))
    }

    /// Bytes of the matrices of a copy of it in `format`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where rows are no whole blocks of the format, or no matrix would get smaller.
    pub fn copy_bytes(&self, format: Format) -> Result<u64> {
        copy_bytes(&self.weights, &self.config, format)
    }

    /// What a copy of it called `name`, its matrices in `format`, will take in memory beside itself.
    ///
    /// # Errors
    /// As [`OpenModel::copy_bytes`].
    pub fn memory_of_copy(&self, name: &str, format: Format, usage: Usage) -> Result<ModelMemory> {
        let spared = self.bytes_spared(usage, Some(format));
        let weights = self.copy_bytes(format)?.saturating_sub(spared);
        Ok(ModelMemory::new(name, &self.config, weights, usage))
    }

    /// What it will take in memory.
    pub fn memory(&self, usage: Usage) -> ModelMemory {
        let weights = self.weights.memory_bytes().saturating_sub(self.bytes_spared(usage, None));
        ModelMemory::new(&self.name, &self.config, weights, usage)
    }

    /// Bytes of the output head that are not loaded. An embedding table that is the head as well stays in the file, to look
    /// tokens up.
    fn bytes_spared(&self, usage: Usage, copy_as: Option<Format>) -> u64 {
        usage.num_logits.map_or(0, |num| bytes_spared(&self.weights, &self.config, num, copy_as))
    }
}

fn open_tokenizer(weights: &Weights, files: &ModelFiles, overrides: &Overrides) -> Result<Tokenizer> {
    let json = overrides.tokenizer.as_ref().or(files.tokenizer.as_ref());
    match (json, weights.metadata()) {
        (Some(path), _) => Tokenizer::from_file(path),
        (None, Some(meta)) => {
            Tokenizer::from_metadata(meta, weights.path(), overrides.tokenizer_pre.as_deref())
        }
        (None, None) => Err(Error::tokenizer(
            weights.path(),
            "no `tokenizer.json` beside the model; put the model's own there",
        )),
    }
}

fn open_chat_template(
    weights: &Weights,
    files: &ModelFiles,
    overrides: &Overrides,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>> {
    let template = find_chat_template(weights, files, overrides, tokenizer)?;
    if template.as_ref().is_some_and(ChatTemplate::ignores_messages) {
        return Err(Error::InvalidArgument("it makes the same prompt of every message".into()));
    }
    Ok(template)
}

fn find_chat_template(
    weights: &Weights,
    files: &ModelFiles,
    overrides: &Overrides,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>> {
    if let Some(path) = &overrides.chat_template {
        let source = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
        return ChatTemplate::new(&source, text(tokenizer.bos()), text(tokenizer.eos())).map(Some);
    }
    if let Some(meta) = weights.metadata()
        && let Some(template) = ChatTemplate::from_metadata(meta, tokenizer)?
    {
        return Ok(Some(template));
    }
    ChatTemplate::from_dir(&files.dir)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ::safetensors::tensor::{Dtype, TensorView};

    use super::*;
    use crate::models::{NoProgress, Store, StoreOptions};

    /// An index decides what counts: the shards, whatever they are called, and only the tensors it says are in each.
    #[test]
    fn a_folder_of_shards_opens_by_its_index() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, tensors: &[&str]| {
            let view = || TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
            let bytes = ::safetensors::serialize(tensors.iter().map(|name| (*name, view())), None).unwrap();
            std::fs::write(dir.path().join(file), bytes).unwrap();
        };
        write("first.safetensors", &["a"]);
        write("second.safetensors", &["b", "a"]);
        let index = r#"{"weight_map": {"a": "first.safetensors", "b": "second.safetensors"}}"#;
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();

        let path = dir.path().to_str().unwrap();
        let files = Store::new(StoreOptions::at(dir.path())).resolve(path, &NoProgress).unwrap();
        // Without the index `a` would be there twice; with it, all that is missing is a configuration.
        let error = OpenModel::open(&files, &Overrides::default()).err().unwrap().to_string();
        assert!(error.ends_with("no `config.json` beside the safetensors file"), "{error}");
        let error = Weights::from_files(&files.weights).unwrap_err().to_string();
        assert!(error.contains("tensor `a` is in an earlier shard as well"), "{error}");
    }
}
