//! A weight file in memory: mapped, or owned where the bytes came from elsewhere.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::{Error, Result};

/// A read-only file and its path.
pub(super) struct Mapping {
    path: PathBuf,
    data: Data,
}

enum Data {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Mapping {
    /// Maps the file at `path`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        // Asked before opening: opening a pipe would wait for a writer.
        let found = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if !found.is_file() {
            return Err(Error::format(path, "not a regular file; name a .gguf or .safetensors file"));
        }
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        if found.len() == 0 {
            // An empty file cannot be mapped everywhere; its reader says what is wrong with it.
            return Ok(Self::from_bytes(path.to_owned(), Vec::new()));
        }
        #[allow(unsafe_code, reason = "mapping a file is unsafe by nature; this is the only place")]
        // SAFETY: the map is read-only. What the type system cannot
        // see is another process changing the file: bytes that change under us are only ever read as
        // plain integers and floats, every offset was checked against the map's fixed length, so a change
        // gives wrong numbers, not undefined indices. A truncation ends the process (SIGBUS), as the docs
        // of `Weights` say.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        Ok(Self { path: path.to_owned(), data: Data::Mapped(map) })
    }

    /// Takes bytes that did not come from a file of their own.
    pub(super) fn from_bytes(path: PathBuf, bytes: Vec<u8>) -> Self {
        Self { path, data: Data::Owned(bytes) }
    }

    /// The file's path, or the name it was given.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets go of the pages wholly inside `range`, where they come from a file; reading brings them back.
    #[cfg_attr(not(unix), allow(unused_variables))]
    pub(super) fn release(&self, range: Range<usize>) {
        const PAGE: usize = 1 << 14; // a multiple of most page sizes; of larger ones the start is rounded down, which does no harm
        #[cfg(unix)]
        if let Data::Mapped(map) = &self.data {
            let (start, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
            if start < end {
                #[allow(unsafe_code, reason = "the mapping's own")]
                // SAFETY: the pages are a file's, never written by us: the same bytes come back when they are
                // read.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            }
        }
    }

    /// All bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Mapped(map) => map,
            Data::Owned(bytes) => bytes,
        }
    }
}
