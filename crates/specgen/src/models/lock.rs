//! Keeps two processes from fetching the same file at the same time.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::progress::Progress;
use crate::{Error, Result};

/// Held while one file is fetched; the system gives it back when the process ends, however it ends.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock for `file_name` in the folder `locks`, waiting for whoever holds it and saying so once.
    ///
    /// Where the file system knows no locks, as some network shares, it is taken at once: the checks of the
    /// fetch then keep a file right, only the work may be done twice.
    pub(super) fn take(locks: &Path, file_name: &str, progress: &dyn Progress) -> Result<Self> {
        std::fs::create_dir_all(locks).map_err(|e| Error::io(locks, e))?;
        let path = locks.join(format!("{file_name}.lock"));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|e| Error::io(&path, e))?;
        let waited = match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                progress.message(&format!("another process is fetching {file_name}; waiting for it"));
                file.lock()
            }
            Err(TryLockError::Error(e)) => Err(e),
        };
        match waited {
            Err(e) if e.kind() != std::io::ErrorKind::Unsupported => Err(Error::io(&path, e)),
            _ => Ok(Self { _file: file }),
        }
    }
}
