//! One file the store should hold: where it belongs, how to know it, where it comes from.

use std::path::{Path, PathBuf};

use super::manifest::{Manifest, ManifestFile, Source};
use crate::{Error, Result};

/// The longest file accepted where nobody says how long it is, in bytes: models come in shards smaller than that.
const MAX_UNKNOWN_LEN: u64 = 64 << 30;

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

    /// What is wrong with the file, as far as its size tells; the content is trusted, since a file only gets its name
    /// once checked.
    pub(super) fn fault(&self) -> Result<Option<Fault>> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => {
                Err(Error::format(&self.path, "not a file, though a model's file belongs here; move it away"))
            }
            Ok(metadata) => Ok(match self.size {
                Some(wanted) if wanted != metadata.len() => {
                    Some(Fault::Size { found: metadata.len(), wanted })
                }
                _ => None,
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Some(Fault::Absent)),
            Err(e) => Err(Error::io(&self.path, e)),
        }
    }

    /// More bytes than this are not the file, whatever a server goes on to send.
    pub(super) fn max_len(&self) -> u64 {
        let by_approximation = || self.approximate_size.map(|size| size.saturating_mul(2));
        self.size.or_else(by_approximation).unwrap_or(MAX_UNKNOWN_LEN)
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

    /// The error for a file that is missing or damaged where nothing may be fetched.
    pub(super) fn offline_error(&self, fault: &Fault) -> Error {
        let path = self.path.display();
        let why = format!(
            "offline: {path} {fault}; pull {} with the network on, or put the file there",
            self.model
        );
        Error::Fetch { name: self.model.clone(), attempts: vec![why] }
    }
}

/// Why the file at an item's path is not the one wanted; reads on from its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Absent,
    Size { found: u64, wanted: u64 },
    Checksum { found: String, wanted: String },
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => write!(f, "is not there"),
            Self::Size { found, wanted } => {
                write!(f, "is damaged: it has {found} bytes, {wanted} are wanted")
            }
            Self::Checksum { found, wanted } => {
                write!(f, "is damaged: its sha256 is {found}, {wanted} is wanted")
            }
        }
    }
}

/// The folder the files of `manifest` are in.
pub(super) fn manifest_dir(root: &Path, manifest: &Manifest) -> PathBuf {
    let models = root.join("models");
    if manifest.files.len() == 1 { models } else { models.join(&manifest.name) }
}
