//! Small files, written whole.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{Error, Result};

/// Writes a small file so that a reader finds the old content or the new, nothing between.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    // A name of its own, since another thread or process may be writing the same file.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(format!(".{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let temporary = PathBuf::from(temporary);
    let io = |e| Error::io(path, e);
    let mut file = File::create(&temporary).map_err(io)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(io)?;
    drop(file);
    std::fs::rename(&temporary, path).map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        io(e)
    })
}
