//! Faults to plant, so that a proof is seen to fail where it should.

use std::{fmt, str::FromStr, sync::Arc};

use specgen::{
    Error, Result,
    distribution::Distribution,
    draft::Drafter,
    model::{Batch, Model, Output},
};

use crate::through::{DrafterThrough, TargetThrough};

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
            Self::RowsDiffer => TargetThrough::new(target, |batch, out| {
                each_slice(batch, out, |rows| {
                    // A nudge that grows with the row, on every third id.
                    for (i, row) in rows.iter_mut().enumerate() {
                        row.iter_mut().step_by(3).for_each(|logit| *logit += 0.3 * i as f32);
                    }
                });
            }),
            Self::ShortCache => TargetThrough::new(target, |batch, out| {
                each_slice(batch, out, |rows| {
                    // Each row says what the one before it should have.
                    if rows.len() > 1 {
                        rows.rotate_right(1);
                        rows[0] = rows[1].clone();
                    }
                });
            }),
        }
    }

    pub(crate) fn in_drafter(self, drafter: Arc<dyn Drafter>) -> Arc<dyn Drafter> {
        match self {
            Self::FalseQ => DrafterThrough::new(drafter, |drafts| {
                let all = drafts.iter_mut().flatten().flat_map(|draft| &mut draft.q);
                all.for_each(|q| *q = distorted(q));
            }),
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

/// Changes the rows of each slice.
fn each_slice(batch: &Batch<'_>, out: &mut Output, change: impl Fn(&mut Vec<Vec<f32>>)) {
    let rows_of = |slice| (0..out.num_rows(slice)).map(|row| out.logits(slice, row).to_vec()).collect();
    let mut slices: Vec<Vec<Vec<f32>>> = (0..batch.slices.len()).map(rows_of).collect();
    let Some(width) = slices.iter().flatten().next().map(Vec::len) else { return };
    slices.iter_mut().for_each(change);
    out.begin(batch, width);
    slices.iter().flatten().for_each(|row| out.push_row(row));
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
