//! Which files make up a model: from a file, one of its shards, an index, or a folder; the one place with
//! such rules.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::safetensors::{Shards, read_index};
use super::shown;
use crate::{Error, Result};

/// The index of a checkpoint in shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// How the name of any index ends.
const INDEX_END: &str = ".safetensors.index.json";

/// The files of one model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// These, in order.
    Files(Vec<PathBuf>),
    /// Those that the safetensors index at this path names.
    Index(PathBuf, Shards),
}

impl Found {
    /// The weight files, in order.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Files(files) => files.clone(),
            Self::Index(_, shards) => shards.keys().cloned().collect(),
        }
    }

    /// The index that decides what is in them, if there is one.
    pub(crate) fn index(&self) -> Option<&Path> {
        match self {
            Self::Files(_) => None,
            Self::Index(index, _) => Some(index),
        }
    }
}

/// Finds the files of the model at `path`: a weights file, one of its shards, an index, or a folder of one
/// model.
///
/// # Errors
/// [`Error::Io`] where the system refuses, [`Error::Format`] where a shard is missing, an index is broken, or
/// a folder holds no model or several.
pub(crate) fn locate(path: &Path) -> Result<Found> {
    let found = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if found.is_dir() {
        return in_folder(path);
    }
    if !found.is_file() {
        let message = "not a regular file; a .gguf or .safetensors file or a folder is wanted";
        return Err(Error::format(path, message));
    }
    if file_name(path).ends_with(INDEX_END) {
        return from_index(path.to_owned());
    }
    // The content decides whether it holds weights, not the extension: its reader will tell.
    Ok(Found::Files(all_shards(path)?))
}

/// What to call the model in the weights file or index at `path`: the name without what is not the model's
/// own.
pub(crate) fn model_name(path: &Path) -> String {
    let name = file_name(path);
    if let Some(stem) = name.strip_suffix(INDEX_END) {
        return stem.to_owned();
    }
    match Shard::of(&name) {
        Some(shard) => shard.prefix.to_owned(),
        None => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

fn in_folder(folder: &Path) -> Result<Found> {
    // In the order in which Hugging Face's own loader looks.
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(Found::Files(vec![single]));
    }
    let index = folder.join(INDEX);
    if index.is_file() {
        return from_index(index);
    }
    // One entry per model: its shards count once.
    let mut models: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut side_files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !is_weights(name) || !path.is_file() {
            continue;
        }
        if is_side_file(name) {
            side_files.push(shown(name));
        } else {
            let key = Shard::of(name).map_or_else(|| name.to_owned(), |shard| shard.name(1));
            models.entry(key).or_insert(path);
        }
    }
    // A folder with safetensors is a checkpoint as published; a GGUF beside it is a conversion of it.
    if models.keys().any(|name| has_extension(name, "safetensors")) {
        models.retain(|name, _| has_extension(name, "safetensors"));
    }
    let mut paths = models.values();
    match (paths.next(), paths.next()) {
        (Some(only), None) => Ok(Found::Files(all_shards(only)?)),
        (Some(_), Some(_)) => {
            let names: Vec<String> = models.keys().take(4).map(|name| shown(name)).collect();
            let more = if models.len() > names.len() { ", ..." } else { "" };
            let message = format!(
                "the folder holds {} models ({}{more}); name the file",
                models.len(),
                names.join(", ")
            );
            Err(Error::format(folder, message))
        }
        _ if !side_files.is_empty() => {
            side_files.sort();
            let message = format!(
                "no language model in this folder: {} only belongs to one; name the file or folder that holds it",
                side_files[0]
            );
            Err(Error::format(folder, message))
        }
        _ => Err(Error::format(
            folder,
            "no .gguf or .safetensors file in this folder; name a folder that holds one \
             (PyTorch .bin files must be converted first)",
        )),
    }
}

fn from_index(index: PathBuf) -> Result<Found> {
    let shards = read_index(&index)?;
    Ok(Found::Index(index, shards))
}

/// `path` and, where its name says that it is one of several, its siblings, in order.
fn all_shards(path: &Path) -> Result<Vec<PathBuf>> {
    let name = file_name(path);
    let Some(shard) = Shard::of(&name) else { return Ok(vec![path.to_owned()]) };
    let mut files = Vec::new();
    for number in 1..=shard.count {
        let file = path.with_file_name(shard.name(number));
        if !file.exists() {
            let message = format!(
                "shard {number} of {}, `{}`, is not there; download it into the same folder",
                shard.count,
                shown(&shard.name(number)),
            );
            return Err(Error::format(path, message));
        }
        files.push(file);
    }
    Ok(files)
}

/// Whether a file's name, or its path in a repository, says that it holds weights.
pub(crate) fn is_weights(name: &str) -> bool {
    has_extension(name, "gguf") || has_extension(name, "safetensors")
}

/// Whether weights are not a language model's own: vision towers, importance matrices, adapters, second
/// copies.
pub(crate) fn is_side_file(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    ["mmproj", "imatrix", "adapter_"].iter().any(|word| name.contains(word))
        || name.starts_with("consolidated")
}

/// Whether `name` ends in `.extension`, in any case.
pub(crate) fn has_extension(name: &str, extension: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(stem, found)| !stem.is_empty() && found.eq_ignore_ascii_case(extension))
}

fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// A file name, or a path in a repository, of the form `prefix-00001-of-00003.ext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard<'a> {
    prefix: &'a str,
    extension: &'a str,
    width: usize,
    /// How many there are.
    pub(crate) count: u16,
    of: &'a str,
}

impl<'a> Shard<'a> {
    /// The parts of `name`, if it has that form.
    pub(crate) fn of(name: &'a str) -> Option<Self> {
        let (stem, extension) = name.rsplit_once('.')?;
        let (rest, of) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| s.len() >= 3 && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(of) || !digits(number) {
            return None;
        }
        let (count, number): (u16, u16) = (of.parse().ok()?, number.parse().ok()?);
        let width = rest.len() - prefix.len() - 1;
        (1..=count).contains(&number).then_some(Self { prefix, extension, width, count, of })
    }

    /// The name of shard `number`, counted from 1.
    pub(crate) fn name(&self, number: u16) -> String {
        format!("{}-{number:0width$}-of-{}.{}", self.prefix, self.of, self.extension, width = self.width)
    }
}

/// Says what a file that is neither GGUF nor safetensors looks like, and what to do.
pub(super) fn not_weights(bytes: &[u8]) -> String {
    let known: [(&[u8], &str); 10] = [
        (b"", "the file is empty; download it again"),
        (b"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
        (b"lmgg", "an old GGML file; convert it to GGUF"),
        (b"fmgg", "an old GGMF file; convert it to GGUF"),
        (b"tjgg", "an old GGJT file; convert it to GGUF"),
        (b"PK\x03\x04", "a zip archive, perhaps a PyTorch file; convert it to safetensors or GGUF"),
        (b"\x80\x02", "a Python pickle; convert it to safetensors or GGUF"),
        (b"<", "a web page, not a model; download the file itself"),
        (b"{", "a JSON file; name the .gguf or .safetensors file beside it"),
        (b"GGUF", "a GGUF file among others; all files of a model must be of one kind"),
    ];
    let hit = known.iter().find(
        |(start, _)| {
            if start.is_empty() { bytes.is_empty() } else { bytes.starts_with(start) }
        },
    );
    match hit {
        Some((_, what)) => (*what).to_owned(),
        None => format!(
            "neither GGUF nor safetensors: it starts with `{}`; name a .gguf or .safetensors file",
            bytes[..bytes.len().min(8)].escape_ascii()
        ),
    }
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

    fn names(path: &Path) -> Vec<String> {
        locate(path).unwrap().files().iter().map(|path| file_name(path).into_owned()).collect()
    }

    #[test]
    fn the_checkpoint_of_a_folder_is_chosen() {
        let one = folder(&["a.gguf", "mmproj-a.gguf", "config.json"]);
        assert_eq!(names(one.path()), ["a.gguf"]);
        let whole = folder(&["model.safetensors", "consolidated.safetensors", "a.gguf", INDEX]);
        assert_eq!(names(whole.path()), ["model.safetensors"]);
        let odd = folder(&["weights.SAFETENSORS", "a.gguf", "b.gguf"]);
        assert_eq!(names(odd.path()), ["weights.SAFETENSORS"], "conversions lie beside it");
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let with_copy = folder(&[shards[0], shards[1], "consolidated.safetensors"]);
        assert_eq!(names(with_copy.path()), shards);
        assert_eq!(names(&with_copy.path().join(shards[1])), shards);
    }

    #[test]
    fn an_index_names_the_files_whatever_they_are_called() {
        let dir = folder(&["one.safetensors", "two.safetensors", "other.safetensors"]);
        std::fs::write(
            dir.path().join(INDEX),
            r#"{"weight_map": {"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"}}"#,
        )
        .unwrap();
        for path in [dir.path().to_owned(), dir.path().join(INDEX)] {
            assert_eq!(names(&path), ["one.safetensors", "two.safetensors"]);
            assert_eq!(locate(&path).unwrap().index(), Some(&*dir.path().join(INDEX)));
        }
        assert_eq!(names(&dir.path().join("other.safetensors")), ["other.safetensors"]);
    }

    #[test]
    fn what_belongs_to_a_model_is_none() {
        let dir = folder(&["mmproj-a.gguf", "adapter_model.safetensors"]);
        let message = locate(dir.path()).unwrap_err().to_string();
        assert!(message.contains("no language model in this folder: adapter_model.safetensors"), "{message}");
    }

    #[test]
    fn a_model_is_called_after_its_file() {
        for (path, name) in [
            ("d/a.b.gguf", "a.b"),
            ("x-y-00002-of-00003.gguf", "x-y"),
            ("model.safetensors.index.json", "model"),
            ("blob", "blob"),
        ] {
            assert_eq!(model_name(Path::new(path)), name);
        }
    }

    #[test]
    fn names_of_shards() {
        let shard = Shard::of("q/x-y-00002-of-00003.gguf").unwrap();
        assert_eq!((shard.count, shard.name(1)), (3, "q/x-y-00001-of-00003.gguf".into()));
        assert_eq!(Shard::of("x-002-of-003.gguf").unwrap().name(3), "x-003-of-003.gguf");
        for no in [
            "x.gguf",
            "x-2-of-3.gguf",
            "x-00001-of-00000.gguf",
            "x-00001-of-99999.gguf",
            "-of-.gguf",
            "é-of-é",
        ] {
            assert_eq!(Shard::of(no), None, "{no}");
        }
        assert!(is_weights("q/x.GGUF") && !is_weights(".gguf") && !is_weights("gguf"));
        assert!(is_side_file("vision/MMPROJ-x.gguf") && !is_side_file("imatrix/x.gguf"));
    }
}
