//! A repository of the hub as a model: its listing, pinned to a commit, and the files chosen from it.
//!
//! On disk: `hub/org--name/refs/<revision>` holds the commit a revision stood for when it was last asked,
//! `hub/org--name/<commit>/` that commit's files and its listing. What is there opens without the network.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::fetch::{Failure, ensure_all};
use super::http::Client;
use super::item::Item;
use super::local::ModelFiles;
use super::manifest::{Source, is_safe_relative_path, is_sha256};
use super::options::StoreOptions;
use super::progress::Progress;
use super::reference::HubReference;
use super::select::select;
use crate::files::write_atomically;
use crate::{Error, Result};

/// The longest listing read, in bytes; the largest known are under one megabyte.
const LISTING_LIMIT: u64 = 16 << 20;
/// Where a commit's listing is kept, a name no repository uses.
const LISTING_FILE: &str = ".specgen-listing.json";

/// What the hub says about a revision: the part of its answer used here, and the form it is kept in.
#[derive(Debug, Serialize, Deserialize)]
struct Listing {
    /// The commit.
    sha: String,
    siblings: Vec<Sibling>,
}

/// One file of a repository.
#[derive(Debug, Serialize, Deserialize)]
struct Sibling {
    /// The path inside the repository.
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

/// What the hub knows of a large file.
#[derive(Debug, Serialize, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// The files of `hub`, fetched if they are not here; `refresh` asks the hub what the revision is now and checks the files.
pub(super) fn resolve(
    options: &StoreOptions,
    hub: &HubReference,
    refresh: bool,
    progress: &dyn Progress,
) -> Result<ModelFiles> {
    let repo_dir = options.root.join("hub").join(hub.repo.replace('/', "--"));
    let known = kept_listing(&repo_dir, hub);
    let listing = match known {
        Some(listing) if !refresh || options.offline => listing,
        _ if options.offline => {
            return Err(failed(
                hub,
                format!(
                    "offline: {} holds nothing of it; pull {hub} with the network on",
                    repo_dir.display()
                ),
            ));
        }
        _ => match ask(options, hub) {
            Ok(listing) => listing,
            Err(Failure::Local(error)) => return Err(error),
            Err(Failure::Source(why)) => {
                return Err(failed(hub, format!("hub {}: {why}", options.hf_endpoint)));
            }
        },
    };
    let paths: Vec<&str> = listing.siblings.iter().map(|sibling| sibling.rfilename.as_str()).collect();
    let chosen =
        select(&paths, hub.file.as_deref()).map_err(|why| Error::InvalidArgument(format!("{hub}: {why}")))?;
    keep_listing(&repo_dir, hub, &listing)?;
    let dir = repo_dir.join(&listing.sha);
    let items: Vec<Item> = chosen.iter().map(|path| item(hub, &listing, &dir, path)).collect();
    ensure_all(options, &items, refresh, progress)?;
    let paths: Vec<PathBuf> = items.into_iter().map(|item| item.path).collect();
    Ok(ModelFiles::from_fetched(&hub.repo, &dir, &paths, None))
}

/// The address of a file's content.
pub(super) fn file_url(options: &StoreOptions, repo: &str, revision: &str, file: &str) -> String {
    format!("{}/{repo}/resolve/{}/{}", options.hf_endpoint, escape(revision, false), escape(file, true))
}

fn item(hub: &HubReference, listing: &Listing, dir: &Path, path: &str) -> Item {
    let sibling = listing.siblings.iter().find(|sibling| sibling.rfilename == path);
    let lfs = sibling.and_then(|sibling| sibling.lfs.as_ref());
    Item {
        path: dir.join(path),
        model: hub.to_string(),
        // A sibling's own size may be that of the pointer to a large file.
        size: lfs.map_or_else(|| sibling.and_then(|sibling| sibling.size), |lfs| lfs.size),
        approximate_size: None,
        sha256: lfs.and_then(|lfs| lfs.sha256.clone()).filter(|sha256| is_sha256(sha256)),
        sources: vec![Source::Hub {
            repo: hub.repo.clone(),
            revision: listing.sha.clone(),
            file: path.to_owned(),
        }],
    }
}

/// Asks the hub what is in a revision.
fn ask(options: &StoreOptions, hub: &HubReference) -> Result<Listing, Failure> {
    let (repo, revision) = (&hub.repo, escape(&hub.revision, false));
    let url = format!("{}/api/models/{repo}/revision/{revision}?blobs=true", options.hf_endpoint);
    let text = Client::new(options)?.get_text(&url, options.hf_token.as_deref(), LISTING_LIMIT)?;
    let mut listing: Listing = serde_json::from_str(&text)
        .map_err(|e| Failure::Source(format!("its answer is not the listing of a repository: {e}")))?;
    if !is_commit(&listing.sha) {
        return Err(Failure::Source(format!("its answer names the commit `{}`", listing.sha)));
    }
    // Whatever the hub says, nothing is written outside the commit's folder.
    listing.siblings.retain(|sibling| is_safe_relative_path(&sibling.rfilename));
    Ok(listing)
}

/// The listing kept from an earlier answer, if there is one that can be read.
fn kept_listing(repo_dir: &Path, hub: &HubReference) -> Option<Listing> {
    let commit = if is_commit(&hub.revision) {
        hub.revision.clone()
    } else {
        std::fs::read_to_string(reference_path(repo_dir, hub)).ok()?.trim().to_owned()
    };
    if !is_commit(&commit) {
        return None;
    }
    let text = std::fs::read(repo_dir.join(&commit).join(LISTING_FILE)).ok()?;
    let listing: Listing = serde_json::from_slice(&text).ok()?;
    let safe = listing.siblings.iter().all(|sibling| is_safe_relative_path(&sibling.rfilename));
    (safe && listing.sha == commit).then_some(listing)
}

fn keep_listing(repo_dir: &Path, hub: &HubReference, listing: &Listing) -> Result<()> {
    let write = |path: &Path, content: &[u8]| {
        // What is kept already is not written again, so that a store that may only be read opens too.
        if std::fs::read(path).is_ok_and(|old| old == content) {
            return Ok(());
        }
        let dir = path.parent().expect("the path was joined to a folder");
        std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
        write_atomically(path, content)
    };
    let text = serde_json::to_vec(listing).expect("strings and numbers are always JSON");
    write(&repo_dir.join(&listing.sha).join(LISTING_FILE), &text)?;
    write(&reference_path(repo_dir, hub), listing.sha.as_bytes())
}

fn reference_path(repo_dir: &Path, hub: &HubReference) -> PathBuf {
    repo_dir.join("refs").join(hub.revision.replace('/', "--"))
}

fn failed(hub: &HubReference, why: String) -> Error {
    let why = why.replace(['\n', '\r'], " ");
    Error::Fetch { name: hub.to_string(), attempts: vec![why, format!("path {hub}: no such file or folder")] }
}

/// Whether `text` is a git commit in full.
fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Escapes a path for an address; slashes stay where they separate folders.
fn escape(text: &str, keep_slashes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slashes && byte == b'/') {
            escaped.push(byte as char);
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses() {
        let mut options = StoreOptions::at("/x");
        options.hf_endpoint = "https://hub".into();
        let url = file_url(&options, "a/b", "refs/pr/1", "BF16/x y#.gguf");
        assert_eq!(url, "https://hub/a/b/resolve/refs%2Fpr%2F1/BF16/x%20y%23.gguf");
    }

    #[test]
    fn the_hubs_answer_gives_size_and_checksum() {
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let text = format!(
            r#"{{"_id": "1", "sha": "{}", "siblings": [{{"rfilename": "x.gguf", "size": 3, "blobId": "b",
                "lfs": {{"sha256": "{sha256}", "size": 3, "pointerSize": 134}}}}, {{"rfilename": "config.json"}}]}}"#,
            "a".repeat(40)
        );
        let listing: Listing = serde_json::from_str(&text).unwrap();
        let hub = HubReference { repo: "o/n".into(), revision: "main".into(), file: None };
        let large = item(&hub, &listing, Path::new("/d"), "x.gguf");
        assert_eq!((large.size, large.sha256.as_deref()), (Some(3), Some(sha256)));
        let small = item(&hub, &listing, Path::new("/d"), "config.json");
        assert_eq!((small.size, small.sha256), (None, None));
    }
}
