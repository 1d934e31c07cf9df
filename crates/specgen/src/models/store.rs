//! The local store: references to files, fetching what is missing; lists and removes what it holds.

use std::borrow::Cow;
use std::path::Path;

use super::item::{Item, manifest_dir};
use super::local::ModelFiles;
use super::manifest::Manifest;
use super::options::StoreOptions;
use super::progress::Progress;
use super::reference::{HubReference, Reference, close_matches, is_path_like};
use crate::{Error, Result};

/// Models on this machine, and the ways to get more.
#[derive(Debug, Clone)]
pub struct Store {
    options: StoreOptions,
}

/// One line of [`Store::list`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListEntry {
    /// The name to ask for.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// One sentence about it.
    pub description: String,
    /// The licence of the weights.
    pub licence: String,
    /// Number of parameters, for people.
    pub parameters: String,
    /// File format and quantisation, for people.
    pub format: String,
    /// Bytes to download, where known.
    pub size: Option<u64>,
    /// Whether `size` is exact; otherwise it is good to two or three digits.
    pub size_is_exact: bool,
    /// Whether every file is in the store.
    pub present: bool,
    /// Whether this project's tests have run it; `not yet run` otherwise.
    pub tested: bool,
    /// What to draft with.
    pub recommended_draft: Option<String>,
    /// Why this manifest of the user's cannot be used; the other fields are then empty.
    pub problem: Option<String>,
}

impl Store {
    /// A store that works as `options` say; nothing is touched before it is asked for something.
    pub fn new(options: StoreOptions) -> Self {
        Self { options }
    }

    /// How this store works.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The manifests that come with the library.
    pub fn manifests() -> &'static [Manifest] {
        super::shipped::manifests()
    }

    /// The files that `reference` stands for, fetched if they are not all here.
    ///
    /// A path that exists wins over a name, a name over a hub repository (see the [module](super)). A file
    /// in the store is trusted by its size; [`Store::pull`] reads it again. A repository of the hub, once
    /// fetched, stays at its commit until pulled again, and opens without the network.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] for an unknown name, with the names that resemble it; [`Error::Io`] or
    /// [`Error::Format`] for a path that cannot be used; [`Error::Fetch`] when no source gives the file, with
    /// a reason for each, or when it is missing offline; [`Error::Unsupported`] when it is missing and the
    /// library was built without the feature `hub`.
    pub fn resolve(&self, reference: &str, progress: &dyn Progress) -> Result<ModelFiles> {
        self.resolve_or(reference, &[], progress)
    }

    /// As [`Store::resolve`], where `words` would do in place of a model: a near miss of one is told.
    pub(crate) fn resolve_or(
        &self,
        reference: &str,
        words: &[&str],
        progress: &dyn Progress,
    ) -> Result<ModelFiles> {
        match Reference::parse(reference)? {
            Reference::Path(path) => ModelFiles::open(&path),
            Reference::Name(name) => self.named(self.find(&name, words)?, false, progress),
            Reference::Hub(hub) => self.hub(&hub, false, progress),
        }
    }

    /// Fetches a name or a hub repository, and reads files already here again to check them.
    /// A branch of a repository is asked for its newest commit.
    ///
    /// # Errors
    /// As for [`Store::resolve`]; [`Error::InvalidArgument`] for a path.
    pub fn pull(&self, name: &str, progress: &dyn Progress) -> Result<ModelFiles> {
        match self.named_or_hub(name)? {
            Reference::Hub(hub) => self.hub(&hub, true, progress),
            _ => self.named(self.find(name, &[])?, true, progress),
        }
    }

    /// Every model that can be asked for by name, the user's own manifests last.
    pub fn list(&self) -> Vec<ListEntry> {
        let (users, broken) = self.user_manifests();
        let shipped = Self::manifests().iter().filter(|m| !users.iter().any(|user| user.name == m.name));
        let mut entries: Vec<ListEntry> =
            shipped.chain(&users).map(|manifest| self.entry(manifest)).collect();
        entries.extend(broken.into_iter().map(|(name, error)| ListEntry::broken(name, &error)));
        entries
    }

    /// Deletes the files of a name or of a hub repository, all its revisions; returns the bytes freed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a path, [`Error::UnknownModel`] for an unknown name, [`Error::Io`] if a file cannot
    /// be deleted.
    pub fn remove(&self, name: &str) -> Result<u64> {
        match self.named_or_hub(name)? {
            Reference::Hub(hub) => {
                let dir = self.options.root.join("hub").join(hub.repo.replace('/', "--"));
                remove_folder(&dir)
            }
            _ => {
                let manifest = self.find(name, &[])?;
                let mut freed = 0;
                for item in Item::of_manifest(&self.options.root, &manifest) {
                    for path in item.all_paths() {
                        freed += remove_file(&path)?;
                    }
                    freed += remove_folder(&item.beside(".pip"))?;
                }
                if manifest.files.len() > 1 {
                    // Fails only where the user keeps more in it, which then stays.
                    let _ = std::fs::remove_dir(manifest_dir(&self.options.root, &manifest));
                }
                Ok(freed)
            }
        }
    }

    /// A reference that is not a path. A file that happens to be called like a model does not stand in its way.
    fn named_or_hub(&self, name: &str) -> Result<Reference> {
        if !name.contains(['/', '\\']) {
            return Ok(Reference::Name(name.to_owned()));
        }
        let reference = if is_path_like(name) { None } else { Some(Reference::parse(name)?) };
        match reference {
            Some(reference @ Reference::Hub(_)) => Ok(reference),
            _ => Err(Error::InvalidArgument(format!(
                "{name} is a path; a model's name or a hub repository org/name is wanted"
            ))),
        }
    }

    fn named(
        &self,
        manifest: Cow<'static, Manifest>,
        check: bool,
        progress: &dyn Progress,
    ) -> Result<ModelFiles> {
        let items = Item::of_manifest(&self.options.root, &manifest);
        self.ensure(&items, check, progress)?;
        let paths: Vec<_> = items.into_iter().map(|item| item.path).collect();
        let dir = manifest_dir(&self.options.root, &manifest);
        Ok(ModelFiles::from_fetched(&manifest.name, &dir, &paths, manifest.recommended_draft.as_deref()))
    }

    #[cfg(feature = "hub")]
    fn ensure(&self, items: &[Item], check: bool, progress: &dyn Progress) -> Result<()> {
        super::fetch::ensure_all(&self.options, items, check, progress)
    }

    #[cfg(not(feature = "hub"))]
    fn ensure(&self, items: &[Item], _check: bool, _progress: &dyn Progress) -> Result<()> {
        for item in items {
            if let Some(fault) = item.fault()? {
                return Err(Error::Unsupported(format!(
                    "{} {fault}, and this build cannot fetch {}; build with the feature `hub`, or put the file there",
                    item.path.display(),
                    item.model
                )));
            }
        }
        Ok(())
    }

    #[cfg(feature = "hub")]
    fn hub(&self, hub: &HubReference, refresh: bool, progress: &dyn Progress) -> Result<ModelFiles> {
        super::hub::resolve(&self.options, hub, refresh, progress)
    }

    #[cfg(not(feature = "hub"))]
    fn hub(&self, hub: &HubReference, _refresh: bool, _progress: &dyn Progress) -> Result<ModelFiles> {
        Err(Error::Unsupported(format!(
            "{hub} is no path here, and this build does not know the hub; build with the feature `hub`"
        )))
    }

    /// The manifest called `name`; the user's own win. `words` are suggested beside the names that resemble it.
    fn find(&self, name: &str, words: &[&str]) -> Result<Cow<'static, Manifest>> {
        let (users, broken) = self.user_manifests();
        if let Some(manifest) = users.iter().find(|manifest| manifest.answers_to(name)) {
            return Ok(Cow::Owned(manifest.clone()));
        }
        // Asked for by its file name, a broken manifest must not fall through to another model.
        if let Some((_, error)) = broken.into_iter().find(|(stem, _)| stem.eq_ignore_ascii_case(name)) {
            return Err(error);
        }
        if let Some(manifest) = Self::manifests().iter().find(|manifest| manifest.answers_to(name)) {
            return Ok(Cow::Borrowed(manifest));
        }
        let all = users.iter().chain(Self::manifests());
        let names = all.flat_map(|m| std::iter::once(&m.name).chain(&m.aliases)).map(String::as_str);
        let close = close_matches(name, words.iter().copied().chain(names));
        Err(Error::UnknownModel {
            name: name.to_owned(),
            close: close.into_iter().map(str::to_owned).collect(),
        })
    }

    /// The manifests in `manifests/` of the store, and those that are broken with their file's stem.
    fn user_manifests(&self) -> (Vec<Manifest>, Vec<(String, Error)>) {
        let dir = self.options.root.join("manifests");
        // No such folder is the usual case.
        let Ok(entries) = std::fs::read_dir(&dir) else { return (Vec::new(), Vec::new()) };
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        let (mut good, mut broken) = (Vec::new(), Vec::new());
        for path in paths {
            let text = std::fs::read_to_string(&path).map_err(|e| Error::io(&path, e));
            match text.and_then(|text| Manifest::parse(&text, &path)) {
                Ok(manifest) => good.push(manifest),
                Err(error) => {
                    broken.push((path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), error));
                }
            }
        }
        (good, broken)
    }

    fn entry(&self, manifest: &Manifest) -> ListEntry {
        let items = Item::of_manifest(&self.options.root, manifest);
        let size = manifest.size();
        ListEntry {
            name: manifest.name.clone(),
            aliases: manifest.aliases.clone(),
            description: manifest.description.clone(),
            licence: manifest.licence.clone(),
            parameters: manifest.parameters.clone(),
            format: manifest.format.clone(),
            size: size.map(|(bytes, _)| bytes),
            size_is_exact: size.is_some_and(|(_, exact)| exact),
            present: items.iter().all(|item| item.fault().is_ok_and(|fault| fault.is_none())),
            tested: manifest.tested,
            recommended_draft: manifest.recommended_draft.clone(),
            problem: None,
        }
    }
}

impl ListEntry {
    fn broken(name: String, error: &Error) -> Self {
        let empty = String::new;
        Self {
            name,
            aliases: Vec::new(),
            description: empty(),
            licence: empty(),
            parameters: empty(),
            format: empty(),
            size: None,
            size_is_exact: false,
            present: false,
            tested: false,
            recommended_draft: None,
            problem: Some(error.to_string()),
        }
    }
}

/// Deletes a file that may not be there; returns its size in bytes.
fn remove_file(path: &Path) -> Result<u64> {
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, e)),
        _ => Ok(size),
    }
}

/// Deletes a folder that may not be there; returns the bytes of its files.
fn remove_folder(dir: &Path) -> Result<u64> {
    let size = folder_size(dir)?;
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(dir, e)),
        _ => Ok(size),
    }
}

/// The bytes of all files below `dir`; 0 if it does not exist.
fn folder_size(dir: &Path) -> Result<u64> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(Error::io(dir, e)),
    };
    let mut size = 0;
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(dir, e))?;
        let metadata = entry.metadata().map_err(|e| Error::io(entry.path(), e))?;
        size += if metadata.is_dir() { folder_size(&entry.path())? } else { metadata.len() };
    }
    Ok(size)
}
