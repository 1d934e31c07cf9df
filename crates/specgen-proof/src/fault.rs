//! Faults to plant, so that a proof is seen to fail where it should.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use specgen::{
    Error, Result,
    cache::KvCache,
    distribution::Distribution,
    draft::{Committed, Draft, DraftRequest, DraftState, Drafter},
    model::{Batch, Model, ModelInfo, Output},
};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Drafted tokens carry another `q` than they were drawn from: sampled text loses the target's distribution, and
    /// what is greedy or coupled does not.
    FalseQ,
    /// The target's logits depend on how many rows were scored together: no text is plain decoding's for long.
    RowsDiffer,
    /// Behind a drafted token the target does not know that token, as with a cache one too short.
    ShortCache,
}

impl Fault {
    /// Every fault there is.
    pub const ALL: [Self; 3] = [Self::FalseQ, Self::RowsDiffer, Self::ShortCache];

    /// `false-q`, `rows-differ` or `short-cache`.
    pub fn name(self) -> &'static str {
        match self {
            Self::FalseQ => "false-q",
            Self::RowsDiffer => "rows-differ",
            Self::ShortCache => "short-cache",
        }
    }

    pub(crate) fn in_target(self, target: Arc<dyn Model>) -> Arc<dyn Model> {
        match self {
            Self::FalseQ => target,
            Self::RowsDiffer | Self::ShortCache => Arc::new(FaultyTarget { inner: target, fault: self }),
        }
    }

    pub(crate) fn in_drafter(self, drafter: Arc<dyn Drafter>) -> Arc<dyn Drafter> {
        match self {
            Self::FalseQ => Arc::new(Liar(drafter)),
            Self::RowsDiffer | Self::ShortCache => drafter,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::InvalidArgument(format!("fault `{text}` is unknown; wanted one of {names}"))
        })
    }
}

/// [`Fault::RowsDiffer`] and [`Fault::ShortCache`].
struct FaultyTarget {
    inner: Arc<dyn Model>,
    fault: Fault,
}

impl Model for FaultyTarget {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        self.inner.forward(batch, out)?;
        let vocab_size = self.info().vocab_size;
        let rows: Vec<Vec<Vec<f32>>> = (0..batch.slices.len())
            .map(|slice| (0..out.num_rows(slice)).map(|row| out.logits(slice, row).to_vec()).collect())
            .collect();
        out.begin(batch, vocab_size);
        for mut slice in rows {
            match self.fault {
                // A nudge that grows with the row, on every third id.
                Fault::RowsDiffer => slice.iter_mut().enumerate().for_each(|(i, row)| {
                    row.iter_mut().step_by(3).for_each(|logit| *logit += 0.3 * i as f32);
                }),
                // Each row says what the one before it should have.
                Fault::ShortCache if slice.len() > 1 => {
                    slice.rotate_right(1);
                    slice[0] = slice[1].clone();
                }
                Fault::ShortCache | Fault::FalseQ => {}
            }
            slice.iter().for_each(|row| out.push_row(row));
        }
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

/// [`Fault::FalseQ`].
struct Liar(Arc<dyn Drafter>);

impl Drafter for Liar {
    fn new_state(&self) -> Box<dyn DraftState> {
        self.0.new_state()
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        self.0.fork_state(state)
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        self.0.model()
    }

    fn prefill(&self, state: &mut dyn DraftState, tokens: &[u32], chunk: usize) -> Result<bool> {
        self.0.prefill(state, tokens, chunk)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let mut drafts = self.0.draft(requests)?;
        for draft in drafts.iter_mut().flatten() {
            draft.q.iter_mut().for_each(|q| *q = distorted(q));
        }
        Ok(drafts)
    }

    fn observe(&self, state: &mut dyn DraftState, committed: &Committed<'_>) {
        self.0.observe(state, committed);
    }
}

/// A law that is surer than `q` was; one that was certain shares with its neighbour.
fn distorted(q: &Distribution) -> Distribution {
    let law: Vec<(u32, f64)> = match *q {
        Distribution::Point(id) => vec![(id - id % 2, 0.5), (id - id % 2 + 1, 0.5)],
        _ => q.support().map(|(id, ln_q)| (id, f64::from(2.0 * ln_q).exp())).collect(),
    };
    let total: f64 = law.iter().map(|&(_, weight)| weight).sum();
    let ln = |(id, weight): (u32, f64)| (id, (weight / total).ln() as f32);
    Distribution::Sparse(law.into_iter().map(ln).filter(|&(_, ln_q)| ln_q > f32::NEG_INFINITY).collect())
}
