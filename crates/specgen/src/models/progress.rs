//! What a caller hears while a model is being fetched.

/// Listens to a fetch; every method may be called from the thread that called the store.
pub trait Progress: Sync {
    /// A step begins: `what` is a file name or a phase, `total` its size in bytes where it is known,
    /// `already` the bytes an earlier run left behind. Called again when a file has to begin anew.
    fn start(&self, what: &str, total: Option<u64>, already: u64);
    /// `bytes` more have arrived.
    fn advance(&self, bytes: u64);
    /// Something worth a line: waiting for another process, a source that failed, a retry.
    fn message(&self, text: &str);
    /// The step begun last has ended, well or not.
    fn finish(&self);
}

/// Listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _what: &str, _total: Option<u64>, _already: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn message(&self, _text: &str) {}
    fn finish(&self) {}
}
