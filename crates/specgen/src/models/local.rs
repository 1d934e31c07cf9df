//! A file or folder on this machine as the parts of a model.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The files a model opens from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelFiles {
    /// What the model is called: the manifest's name, `org/name`, or the file's or folder's own name.
    pub name: String,
    /// The weights, all GGUF or all safetensors; the shards of a split model in their order.
    pub weights: Vec<PathBuf>,
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
        let mut weights: Vec<PathBuf> = paths.iter().filter(|path| is_weights(path)).cloned().collect();
        weights.sort();
        Self {
            name: name.to_owned(),
            weights,
            config: named("config.json"),
            tokenizer: named("tokenizer.json"),
            dir: dir.to_owned(),
            recommended_draft: draft.map(str::to_owned),
        }
    }

    /// The model at `path`: a weights file, or a folder that holds one model.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::Format`] if it is no model or holds several.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        // `.` has no name of its own.
        let own_name = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        if metadata.is_dir() {
            let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let name =
                full.file_name().map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned());
            return Ok(Self::beside(path, name, folder_weights(path)?));
        }
        if !metadata.is_file() {
            return Err(Error::format(
                path,
                "not a regular file; a .gguf or .safetensors file or a folder is wanted",
            ));
        }
        if !is_weights(path) && !has_gguf_magic(path) {
            return Err(Error::format(
                path,
                "neither a .gguf nor a .safetensors file; one of these, or a folder with one, is wanted",
            ));
        }
        let dir = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = own_name(path).unwrap_or_else(|| "model".to_owned());
        Ok(Self::beside(dir, name, shards_of(path, dir)?))
    }

    fn beside(dir: &Path, name: String, weights: Vec<PathBuf>) -> Self {
        let present = |file: &str| Some(dir.join(file)).filter(|path| path.is_file());
        Self {
            name,
            weights,
            config: present("config.json"),
            tokenizer: present("tokenizer.json"),
            dir: dir.to_owned(),
            recommended_draft: None,
        }
    }
}

/// The weights of the one model in the folder `dir`.
fn folder_weights(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let path = entry.map_err(|e| Error::io(dir, e))?.path();
        if is_weights(&path) && path.is_file() && !is_side_file(&path) {
            found.push(path);
        }
    }
    found.sort();
    // A folder with safetensors is a checkpoint as published; a GGUF beside it is a conversion of it.
    let safetensors: Vec<PathBuf> =
        found.iter().filter(|path| has_extension(path, "safetensors")).cloned().collect();
    let candidates = if safetensors.is_empty() { found } else { safetensors };
    let Some(first) = candidates.first() else {
        return Err(Error::format(dir, "no .gguf and no .safetensors file in this folder"));
    };
    // A checkpoint may hold its shards and a consolidated copy; the index names the shards.
    let first = candidates.iter().find(|path| shard_stem(path).is_some()).unwrap_or(first);
    let whole = dir.join("model.safetensors");
    if candidates.contains(&whole) {
        return Ok(vec![whole]);
    }
    let weights = shards_of(first, dir)?;
    let is_index = dir.join("model.safetensors.index.json").is_file();
    match candidates.iter().find(|path| !weights.contains(path)) {
        Some(other) if !is_index => Err(Error::format(
            dir,
            format!(
                "several models in this folder, {} and {} among them; name one of the files",
                file_name(first),
                file_name(other)
            ),
        )),
        _ => Ok(weights),
    }
}

/// `path`, or with a name like `x-00001-of-00003.gguf` all files of that set; a missing one is an error.
fn shards_of(path: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    let Some((stem, count, extension)) = shard_stem(path) else { return Ok(vec![path.to_owned()]) };
    let shards: Vec<PathBuf> =
        (1..=count).map(|i| dir.join(format!("{stem}-{i:05}-of-{count:05}.{extension}"))).collect();
    match shards.iter().find(|shard| !shard.is_file()) {
        Some(missing) => {
            Err(Error::format(path, format!("{} of the same set is missing", file_name(missing))))
        }
        None => Ok(shards),
    }
}

/// The parts of a shard's name: `x-00002-of-00003.gguf` gives `x`, 3, `gguf`.
pub(super) fn shard_stem(path: &Path) -> Option<(String, usize, String)> {
    let extension = path.extension()?.to_str()?;
    let (head, count) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
    let (stem, index) = head.rsplit_once('-')?;
    let five_digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let good = five_digits(index) && five_digits(count);
    let count = count.parse().ok().filter(|count| (1..=10_000).contains(count))?;
    good.then(|| (stem.to_owned(), count, extension.to_owned()))
}

/// Whether a file's name says that it holds weights.
pub(super) fn is_weights(path: &Path) -> bool {
    has_extension(path, "gguf") || has_extension(path, "safetensors")
}

/// Whether weights are not a language model's own: vision towers, importance matrices, adapters, second copies.
pub(super) fn is_side_file(path: &Path) -> bool {
    let name = file_name(path).to_lowercase();
    ["mmproj", "imatrix", "adapter_"].iter().any(|word| name.contains(word))
        || name.starts_with("consolidated")
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

fn has_gguf_magic(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"GGUF"
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::write(dir.path().join(file), b"GGUF").unwrap();
        }
        dir
    }

    fn weights(dir: &Path, path: &str) -> Vec<String> {
        ModelFiles::open(&dir.join(path)).unwrap().weights.iter().map(|path| file_name(path)).collect()
    }

    #[test]
    fn a_file_alone_and_with_company() {
        let dir = folder(&["a.gguf", "b.gguf", "tokenizer.json", "blob", "notes.txt"]);
        let files = ModelFiles::open(&dir.path().join("a.gguf")).unwrap();
        assert_eq!((files.name.as_str(), files.weights.len(), files.config.is_none()), ("a", 1, true));
        assert_eq!(files.tokenizer, Some(dir.path().join("tokenizer.json")));
        assert_eq!(weights(dir.path(), "blob"), ["blob"], "the magic counts where the name says nothing");
        let error = ModelFiles::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("a.gguf") && error.contains("b.gguf"), "{error}");
        std::fs::write(dir.path().join("notes.txt"), "hello").unwrap();
        assert!(ModelFiles::open(&dir.path().join("notes.txt")).is_err());
    }

    #[test]
    fn folders() {
        let one = folder(&["a.gguf", "mmproj-a.gguf", "config.json"]);
        assert_eq!(weights(one.path(), ""), ["a.gguf"]);
        let checkpoint = folder(&["model.safetensors", "consolidated.safetensors", "a.gguf", "config.json"]);
        assert_eq!(weights(checkpoint.path(), ""), ["model.safetensors"]);
        let two = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(weights(folder(&two).path(), ""), two);
        assert_eq!(weights(folder(&two).path(), two[1]), two);
        let error = ModelFiles::open(folder(&two[1..]).path()).unwrap_err().to_string();
        assert!(error.contains("model-00001-of-00002.safetensors of the same set is missing"), "{error}");
        assert!(
            ModelFiles::open(folder(&["readme.md"]).path()).unwrap_err().to_string().contains("no .gguf")
        );
    }

    #[test]
    fn shard_names() {
        let parts = |name: &str| shard_stem(Path::new(name));
        assert_eq!(parts("x-y-00002-of-00003.gguf"), Some(("x-y".into(), 3, "gguf".into())));
        for no in [
            "x.gguf",
            "x-2-of-3.gguf",
            "x-00001-of-00000.gguf",
            "x-00001-of-99999.gguf",
            "-of-.gguf",
            "é-of-é",
        ] {
            assert_eq!(parts(no), None, "{no}");
        }
    }
}
