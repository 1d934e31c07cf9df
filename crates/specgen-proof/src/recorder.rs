//! A target and a drafter that remember what they last said.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use specgen::{
    Result,
    cache::KvCache,
    draft::{Committed, Draft, DraftRequest, DraftState, Drafter},
    model::{Batch, Model, ModelInfo, Output},
};

/// What is guarded is whole whatever panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A target that remembers the logits of its last pass, of the first slice.
pub(crate) struct RecordedTarget {
    inner: Arc<dyn Model>,
    rows: Mutex<Vec<Vec<f32>>>,
}

impl RecordedTarget {
    pub(crate) fn new(inner: Arc<dyn Model>) -> Self {
        Self { inner, rows: Mutex::default() }
    }

    /// The rows of the last pass.
    pub(crate) fn take(&self) -> Vec<Vec<f32>> {
        mem::take(&mut lock(&self.rows))
    }
}

impl Model for RecordedTarget {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        self.inner.forward(batch, out)?;
        *lock(&self.rows) = (0..out.num_rows(0)).map(|row| out.logits(0, row).to_vec()).collect();
        Ok(())
    }

    fn new_cache(&self) -> KvCache {
        self.inner.new_cache()
    }

    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn read_weights(&self) {
        self.inner.read_weights();
    }

    fn op_times(&self) -> Vec<(&'static str, Duration)> {
        self.inner.op_times()
    }
}

/// A drafter that remembers its last draft, for the first request.
pub(crate) struct RecordedDrafter {
    inner: Arc<dyn Drafter>,
    draft: Mutex<Draft>,
}

impl RecordedDrafter {
    pub(crate) fn new(inner: Arc<dyn Drafter>) -> Self {
        Self { inner, draft: Mutex::default() }
    }

    /// The last draft; none if none was asked for since.
    pub(crate) fn take(&self) -> Draft {
        mem::take(&mut lock(&self.draft))
    }
}

impl Drafter for RecordedDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        self.inner.new_state()
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        self.inner.fork_state(state)
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        self.inner.model()
    }

    fn prefill(&self, state: &mut dyn DraftState, tokens: &[u32], chunk: usize) -> Result<bool> {
        self.inner.prefill(state, tokens, chunk)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let drafts = self.inner.draft(requests)?;
        if let Some(Ok(draft)) = drafts.first() {
            *lock(&self.draft) = draft.clone();
        }
        Ok(drafts)
    }

    fn observe(&self, state: &mut dyn DraftState, committed: &Committed<'_>) {
        self.inner.observe(state, committed);
    }
}
