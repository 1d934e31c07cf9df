//! A target and a drafter whose every word passes through somebody's hands: to be noted, or to be changed.

use std::{sync::Arc, time::Duration};

use specgen::{
    Result,
    cache::KvCache,
    draft::{Draft, DraftRequest, DraftState, Drafter},
    model::{Batch, Model, ModelInfo, Output},
};

/// A target.
pub(crate) struct TargetThrough<F> {
    inner: Arc<dyn Model>,
    /// Has the output of each pass.
    hands: F,
}

impl<F: Fn(&Batch<'_>, &mut Output) + Send + Sync> TargetThrough<F> {
    pub(crate) fn new(inner: Arc<dyn Model>, hands: F) -> Arc<Self> {
        Arc::new(Self { inner, hands })
    }
}

impl<F: Fn(&Batch<'_>, &mut Output) + Send + Sync> Model for TargetThrough<F> {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        self.inner.forward(batch, out)?;
        (self.hands)(batch, out);
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

    fn knows_trees(&self) -> bool {
        self.inner.knows_trees()
    }
}

/// A drafter.
pub(crate) struct DrafterThrough<F> {
    inner: Arc<dyn Drafter>,
    /// Has the drafts of each round.
    hands: F,
}

impl<F: Fn(&mut [Result<Draft>]) + Send + Sync> DrafterThrough<F> {
    pub(crate) fn new(inner: Arc<dyn Drafter>, hands: F) -> Arc<Self> {
        Arc::new(Self { inner, hands })
    }
}

impl<F: Fn(&mut [Result<Draft>]) + Send + Sync> Drafter for DrafterThrough<F> {
    fn new_state(&self) -> Box<dyn DraftState> {
        self.inner.new_state()
    }

    fn inner(&self) -> Option<&Arc<dyn Drafter>> {
        Some(&self.inner)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let mut drafts = self.inner.draft(requests)?;
        (self.hands)(&mut drafts);
        Ok(drafts)
    }
}
