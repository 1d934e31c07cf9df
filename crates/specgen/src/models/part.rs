//! A file on its way: `x.part` with its running checksum, and `x.part.json` with what a later run needs to go on.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::item::Item;
use crate::{Error, Result, files::write_atomically};

/// How much is read or written at once.
pub(super) const BLOCK: usize = 256 * 1024;

/// Where the bytes so far came from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PartState {
    /// The source, as it shows itself; bytes of different sources are never mixed.
    pub(super) source: String,
    /// The validator the server gave, to ask for the rest of the same content.
    pub(super) etag: Option<String>,
    /// How many packages are in it whole.
    pub(super) num_packages: usize,
    /// Where the last of these ends, in bytes.
    pub(super) packages_len: u64,
}

/// A partial file open for appending; the caller holds the item's lock.
pub(super) struct Part {
    path: PathBuf,
    state_path: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
    state: PartState,
}

impl Part {
    /// Opens what `source` left behind for `item`, if it may leave something; else an empty part.
    ///
    /// What another source left is overwritten by [`Part::begin`] only, that is, once this one has answered.
    pub(super) fn open(item: &Item, source: &str) -> Result<Self> {
        let (path, state_path) = (item.beside(".part"), item.beside(".part.json"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|e| Error::io(&path, e))?;
        let len = file.metadata().map_err(|e| Error::io(&path, e))?.len();
        // A state that cannot be read is no state: the bytes begin anew.
        let state =
            std::fs::read(&state_path).ok().and_then(|text| serde_json::from_slice::<PartState>(&text).ok());
        let state = state.filter(|state| state.source == source && state.packages_len <= len);
        let mut part =
            Self { path, state_path, file, hasher: Sha256::new(), len: 0, state: PartState::default() };
        if let Some(state) = state {
            let keep = if state.num_packages > 0 { state.packages_len } else { len };
            part.rehash(keep)?;
            part.state = state;
        }
        Ok(part)
    }

    /// Bytes held.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn state(&self) -> &PartState {
        &self.state
    }

    /// Empties the part: bytes of `source` follow.
    pub(super) fn begin(&mut self, source: &str, etag: Option<String>) -> Result<()> {
        // Emptied first: a crash in between leaves an old state without bytes, never new state over old bytes.
        self.rehash(0)?;
        self.state = PartState { source: source.to_owned(), etag, ..PartState::default() };
        self.save_state()
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, e))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Notes that one more package is in the file whole; a later run goes on after it.
    pub(super) fn package_done(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::io(&self.path, e))?;
        self.state.num_packages += 1;
        self.state.packages_len = self.len;
        self.save_state()
    }

    /// Goes back to the end of the last whole package.
    pub(super) fn back_to_package(&mut self) -> Result<()> {
        self.rehash(self.state.packages_len)
    }

    /// The SHA-256 of the bytes held, in hex.
    pub(super) fn sha256(&self) -> String {
        hex(&self.hasher.clone().finalize())
    }

    /// Gives the whole, checked file its final name.
    pub(super) fn finish(self, to: &Path) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::io(&self.path, e))?;
        // Windows renames no open file.
        drop(self.file);
        std::fs::rename(&self.path, to).map_err(|e| Error::io(to, e))?;
        sync_folder_of(to);
        // A state without its part says nothing; it does no harm if it stays.
        let _ = std::fs::remove_file(&self.state_path);
        Ok(())
    }

    /// Leaves the bytes for a later run, or nothing where there are none.
    pub(super) fn close(self) -> Result<()> {
        // By the file's own length: it may hold what another source left.
        let len = self.file.metadata().map_err(|e| Error::io(&self.path, e))?.len();
        if len == 0 { self.discard() } else { Ok(()) }
    }

    /// Deletes bytes that proved wrong.
    pub(super) fn discard(self) -> Result<()> {
        drop(self.file);
        let _ = std::fs::remove_file(&self.state_path);
        std::fs::remove_file(&self.path).map_err(|e| Error::io(&self.path, e))
    }

    /// Keeps the first `len` bytes and computes their checksum.
    fn rehash(&mut self, len: u64) -> Result<()> {
        let io = |e| Error::io(&self.path, e);
        self.file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut hasher = Sha256::new();
        let mut block = vec![0; BLOCK];
        let mut left = len;
        while left > 0 {
            let want = left.min(BLOCK as u64) as usize;
            self.file.read_exact(&mut block[..want]).map_err(io)?;
            hasher.update(&block[..want]);
            left -= want as u64;
        }
        self.hasher = hasher;
        self.len = len;
        self.file.set_len(len).map_err(io)?;
        self.file.seek(SeekFrom::Start(len)).map_err(io)?;
        Ok(())
    }

    fn save_state(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.state).expect("strings and numbers are always JSON");
        write_atomically(&self.state_path, &text)
    }
}

/// The SHA-256 of a file in hex; `advance` hears of each block.
pub(super) fn sha256_of(path: &Path, advance: &dyn Fn(u64)) -> Result<String> {
    let mut file = File::open(path).map_err(|e| Error::io(path, e))?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        let read = file.read(&mut block).map_err(|e| Error::io(path, e))?;
        if read == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&block[..read]);
        advance(read as u64);
    }
}

/// Makes a rename last through a power cut, where the system lets a folder be synced.
fn sync_folder_of(path: &Path) {
    if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn item(dir: &Path) -> Item {
        let path = dir.join("x.gguf");
        Item {
            path,
            model: "x".into(),
            size: None,
            approximate_size: None,
            sha256: None,
            sources: Vec::new(),
        }
    }

    #[test]
    fn a_part_goes_on_where_it_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let item = item(dir.path());
        let mut part = Part::open(&item, "a").unwrap();
        part.begin("a", Some("tag".into())).unwrap();
        part.write(b"ab").unwrap();
        drop(part);
        let mut part = Part::open(&item, "a").unwrap();
        assert_eq!((part.len(), part.state().etag.as_deref()), (2, Some("tag")));
        part.write(b"c").unwrap();
        assert_eq!(part.sha256(), ABC);
        part.finish(&item.path).unwrap();
        assert_eq!(std::fs::read(&item.path).unwrap(), b"abc");
        assert_eq!(sha256_of(&item.path, &|_| ()).unwrap(), ABC);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn another_source_starts_empty_but_spoils_nothing_until_it_begins() {
        let dir = tempfile::tempdir().unwrap();
        let item = item(dir.path());
        let mut part = Part::open(&item, "a").unwrap();
        part.begin("a", None).unwrap();
        part.write(b"abc").unwrap();
        drop(part);
        assert_eq!(Part::open(&item, "b").unwrap().len(), 0);
        assert_eq!(Part::open(&item, "a").unwrap().len(), 3);
        let mut part = Part::open(&item, "b").unwrap();
        part.begin("b", None).unwrap();
        part.write(b"abc").unwrap();
        assert_eq!(part.sha256(), ABC);
        assert_eq!(Part::open(&item, "a").unwrap().len(), 0);
    }

    #[test]
    fn packages_resume_at_a_boundary() {
        let dir = tempfile::tempdir().unwrap();
        let item = item(dir.path());
        let mut part = Part::open(&item, "pip").unwrap();
        part.begin("pip", None).unwrap();
        part.write(b"ab").unwrap();
        part.package_done().unwrap();
        part.write(b"half").unwrap();
        drop(part);
        let mut part = Part::open(&item, "pip").unwrap();
        assert_eq!((part.len(), part.state().num_packages), (2, 1));
        part.write(b"x").unwrap();
        part.back_to_package().unwrap();
        part.write(b"c").unwrap();
        assert_eq!(part.sha256(), ABC);
    }

    #[test]
    fn a_broken_state_is_no_state() {
        let dir = tempfile::tempdir().unwrap();
        let item = item(dir.path());
        std::fs::write(item.beside(".part"), b"ab").unwrap();
        for state in ["", "{", "{\"source\":\"a\",\"num_packages\":1,\"packages_len\":99}"] {
            std::fs::write(item.beside(".part.json"), state).unwrap();
            assert_eq!(Part::open(&item, "a").unwrap().len(), 0, "{state}");
        }
    }
}
