//! One file the store should hold: where it belongs, how to know it, where it comes from.

use std::path::{Path, PathBuf};

use super::manifest::{Manifest, ManifestFile, Source};
use crate::{Error, Result};

/// A file of the store, present or not.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// Where it belongs.
    pub(super) path: PathBuf,
    /// What to give `pull` to get it.
    pub(super) model: String,
    /// Its size in bytes, where known.
    pub(super) size: Option<u64>,
    /// Its size to two or three digits, for progress.
    pub(super) approximate_size: Option<u64>,
    /// Its SHA-256, where known.
    pub(super) sha256: Option<String>,
    /// Where to get it, in the order to try.
    pub(super) sources: Vec<Source>,
}

/// What is found at an item's path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Nothing.
    Absent,
    /// A file of the right size, or of any where the right one is not known.
    Present,
    /// A file of another size, in bytes.
    WrongSize(u64),
}

impl Item {
    /// The items of a manifest: a single file lies in `models/` itself, several share a folder of their name.
    pub(super) fn of_manifest(root: &Path, manifest: &Manifest) -> Vec<Self> {
        let dir = manifest_dir(root, manifest);
        let item = |file: &ManifestFile| Self {
            path: dir.join(&file.name),
            model: manifest.name.clone(),
            size: file.size,
            approximate_size: file.approximate_size,
            sha256: file.sha256.clone(),
            sources: file.sources.clone(),
        };
        manifest.files.iter().map(item).collect()
    }

    /// Looks for the file; the content is trusted, since a file only gets its name once checked.
    pub(super) fn presence(&self) -> Result<Presence> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => {
                Err(Error::format(&self.path, "not a file, though a model's file belongs here; move it away"))
            }
            Ok(metadata) => Ok(match self.size {
                Some(size) if size != metadata.len() => Presence::WrongSize(metadata.len()),
                _ => Presence::Present,
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Presence::Absent),
            Err(e) => Err(Error::io(&self.path, e)),
        }
    }

    /// The file's own name.
    pub(super) fn file_name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A file beside this one, named after it.
    pub(super) fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    }

    /// Every file the store may have written for this item.
    pub(super) fn all_paths(&self) -> Vec<PathBuf> {
        let beside = [".sha256", ".part", ".part.json"].map(|suffix| self.beside(suffix));
        std::iter::once(self.path.clone()).chain(beside).collect()
    }

    /// The error for a file that is missing where nothing may be fetched.
    pub(super) fn offline_error(&self) -> Error {
        let found = match self.presence() {
            Ok(Presence::WrongSize(found)) => {
                format!("has {found} bytes, {} are wanted", self.size.unwrap_or_default())
            }
            _ => "is not there".to_owned(),
        };
        Error::Fetch {
            name: self.model.clone(),
            attempts: vec![format!(
                "offline: {} {found}; run `specgen pull {}` with the network on, or put the file there",
                self.path.display(),
                self.model
            )],
        }
    }
}

/// The folder the files of `manifest` are in.
pub(super) fn manifest_dir(root: &Path, manifest: &Manifest) -> PathBuf {
    let models = root.join("models");
    if manifest.files.len() == 1 { models } else { models.join(&manifest.name) }
}
