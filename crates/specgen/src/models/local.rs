//! A file or folder on this machine as the parts of a model.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::weights::locate::{INDEX, is_weights, locate, model_name};

/// The files a model opens from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelFiles {
    /// What the model is called: the manifest's name, `org/name`, or the file's or folder's own name.
    pub name: String,
    /// The weights, all GGUF or all safetensors; the shards of a split model in their order.
    pub weights: Vec<PathBuf>,
    /// `model.safetensors.index.json`, where it says which tensors are in which of the `weights`.
    pub index: Option<PathBuf>,
    /// `config.json`, which safetensors need and GGUF does not.
    pub config: Option<PathBuf>,
    /// `tokenizer.json`, if there is one beside the weights; it wins over the tokenizer inside a GGUF.
    pub tokenizer: Option<PathBuf>,
    /// The folder all of them are in.
    pub dir: PathBuf,
    /// What to draft with: a name for [`Store::resolve`](super::Store::resolve), `ngram` or `none`.
    pub recommended_draft: Option<String>,
}

impl ModelFiles {
    /// Sorts the fetched `paths` of one model by what each is for.
    pub(super) fn from_fetched(name: &str, dir: &Path, paths: &[PathBuf], draft: Option<&str>) -> Self {
        let named =
            |wanted: &str| paths.iter().find(|path| path.file_name().is_some_and(|n| n == wanted)).cloned();
        let mut weights: Vec<PathBuf> =
            paths.iter().filter(|path| is_weights(&path.to_string_lossy())).cloned().collect();
        weights.sort();
        Self {
            name: name.to_owned(),
            weights,
            index: named(INDEX),
            config: named("config.json"),
            tokenizer: named("tokenizer.json"),
            dir: dir.to_owned(),
            recommended_draft: draft.map(str::to_owned),
        }
    }

    /// The model at `path`: a weights file, an index of such, or a folder that holds one model.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Format`] if it holds no model or several.
    ///
    /// [`Error::Io`]: crate::Error::Io
    /// [`Error::Format`]: crate::Error::Format
    pub(super) fn open(path: &Path) -> Result<Self> {
        let found = locate(path)?;
        let (dir, name) = if path.is_dir() {
            // `.` has no name of its own.
            let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            (path, full.file_name().map(|name| name.to_string_lossy().into_owned()))
        } else {
            let dir = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            (dir.unwrap_or(Path::new(".")), Some(model_name(path)))
        };
        let present = |file: &str| Some(dir.join(file)).filter(|path| path.is_file());
        Ok(Self {
            name: name.filter(|name| !name.is_empty()).unwrap_or_else(|| "model".to_owned()),
            weights: found.files(),
            index: found.index().map(Path::to_owned),
            config: present("config.json"),
            tokenizer: present("tokenizer.json"),
            dir: dir.to_owned(),
            recommended_draft: None,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_lies_beside_the_weights_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["a.gguf", "b.gguf", "tokenizer.json", "blob"] {
            std::fs::write(dir.path().join(file), b"GGUF").unwrap();
        }
        let files = ModelFiles::open(&dir.path().join("a.gguf")).unwrap();
        assert_eq!((files.name.as_str(), files.weights.len(), files.config), ("a", 1, None));
        assert_eq!((files.dir.as_path(), files.index), (dir.path(), None));
        assert_eq!(files.tokenizer, Some(dir.path().join("tokenizer.json")));
        assert_eq!(ModelFiles::open(&dir.path().join("blob")).unwrap().name, "blob");
        let error = ModelFiles::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("a.gguf") && error.contains("b.gguf"), "{error}");
    }

    #[test]
    fn a_folder_gives_the_model_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("my-model");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(INDEX), r#"{"weight_map": {"a": "s1.safetensors"}}"#).unwrap();
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        let files = ModelFiles::open(&folder).unwrap();
        assert_eq!((files.name.as_str(), &files.weights), ("my-model", &vec![folder.join("s1.safetensors")]));
        assert_eq!(files.index, Some(folder.join(INDEX)));
        assert_eq!(files.config, Some(folder.join("config.json")));
    }
}
