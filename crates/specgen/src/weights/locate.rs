//! Which files make up a model: from a file, one of its shards, or a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::shown;
use crate::{Error, Result};

/// The files of one model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// These, in order.
    Files(Vec<PathBuf>),
    /// Those a safetensors index names.
    Index(PathBuf),
}

/// Finds the files of the model at `path`.
pub(super) fn locate(path: &Path) -> Result<Found> {
    let found = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if found.is_dir() {
        return in_folder(path);
    }
    if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".safetensors.index.json")) {
        return Ok(Found::Index(path.to_owned()));
    }
    Ok(Found::Files(all_shards(path)?))
}

fn in_folder(folder: &Path) -> Result<Found> {
    let index = folder.join("model.safetensors.index.json");
    if index.is_file() {
        return Ok(Found::Index(index));
    }
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(Found::Files(vec![single]));
    }
    // One entry per model: its shards count once.
    let mut models: BTreeMap<String, PathBuf> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // A vision projector lies beside its language model; it is never the model itself.
        let weights =
            (name.ends_with(".gguf") && !name.starts_with("mmproj")) || name.ends_with(".safetensors");
        if weights && path.is_file() {
            let key = Shard::of(name).map_or_else(|| name.to_owned(), |shard| shard.name(1));
            models.entry(key).or_insert(path);
        }
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
        _ => Err(Error::format(
            folder,
            "no .gguf or .safetensors file in this folder; name a folder that holds one \
             (PyTorch .bin files must be converted first)",
        )),
    }
}

/// `path` and, where its name says that it is one of several, its siblings, in order.
fn all_shards(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(shard) = path.file_name().and_then(|name| Shard::of(name.to_str()?)) else {
        return Ok(vec![path.to_owned()]);
    };
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

/// A file name of the form `prefix-00001-of-00003.ext`.
struct Shard<'a> {
    prefix: &'a str,
    extension: &'a str,
    width: usize,
    count: u16,
    of: &'a str,
}

impl<'a> Shard<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let (stem, extension) = name.rsplit_once('.')?;
        let (rest, of) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| s.len() >= 3 && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(of) || !digits(number) {
            return None;
        }
        let (count, number): (u16, u16) = (of.parse().ok()?, number.parse().ok()?);
        (1..=count).contains(&number).then_some(Self {
            prefix,
            extension,
            width: rest.len() - prefix.len() - 1,
            count,
            of,
        })
    }

    fn name(&self, number: u16) -> String {
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
