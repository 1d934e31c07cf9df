//! What passes cost: curves that hold a measurement, and are refined by every pass that follows.

use std::time::Duration;

use super::auto;
use crate::model::PROMPT_CHUNK;

/// Rows that a curve is drawn for where nothing was measured.
const GUESSED_ROWS: usize = auto::MAX_TOKENS + 1;
/// What one more row adds to a pass, in passes of one row, where nothing was measured.
const GUESSED_SLOPE: f64 = 0.1;
/// A draft step in target passes, where nothing was measured.
const GUESSED_STEP: f64 = 0.25;
/// How many passes a measurement counts for.
const MEASURED: u32 = 4;
/// No single pass moves an estimate as if it were further off than this factor: a machine hiccups.
const MOST_SURPRISE: f64 = 1.25;
const MOST_SURPRISE_AT_GUESS: f64 = 8.0;
/// How far the speed of the machine follows one pass, and how far at least the curve's shape does.
const SPEED_RATE: f64 = 0.2;
const SHAPE_RATE: f64 = 0.05;
/// What a pass leaves of those before it, where it is counted which are frequent.
const RECENT_MEMORY: f64 = 0.97;

/// T(m): the time of a pass of m rows. The machine's speed of the moment (its neighbours, the length of the text) is kept
/// apart from the curve's shape, and only the shape decides: were they one, every change of speed would look like a change
/// of what drafts cost to whoever only ever sees one length.
#[derive(Clone, Debug)]
pub(crate) struct CostCurve {
    /// T(m) / T(1) by m - 1, never falling.
    shape: Vec<f64>,
    /// Passes that each of them has seen, measurements included.
    seen: Vec<u32>,
    /// How many of the passes of late were of each.
    recent: Vec<f64>,
    /// Seconds of T(1) by the passes of late; 0 before the first.
    speed: f64,
}

impl CostCurve {
    /// A guess, soon replaced by what passes take.
    pub(crate) fn guessed() -> Self {
        let shape: Vec<f64> = (0..GUESSED_ROWS).map(|more| 1.0 + GUESSED_SLOPE * more as f64).collect();
        Self { seen: vec![0; shape.len()], recent: vec![0.0; shape.len()], shape, speed: 0.0 }
    }

    /// Through `points` (rows and seconds), straight between them.
    pub(crate) fn through(points: &[(usize, f64)]) -> Self {
        let mut points = points.to_vec();
        points.sort_by_key(|&(rows, _)| rows);
        let (Some(&(first, one)), Some(&(last, _))) = (points.first(), points.last()) else {
            return Self::guessed();
        };
        let at = |rows: usize| {
            let above = points.iter().position(|&(r, _)| r >= rows).unwrap_or(points.len() - 1);
            let ((r0, t0), (r1, t1)) = (points[above.saturating_sub(1)], points[above]);
            let share = if r1 > r0 { (rows.max(first) - r0) as f64 / (r1 - r0) as f64 } else { 1.0 };
            (t0 + share * (t1 - t0)) / one
        };
        let mut highest = 0.0;
        let rising = |rows| {
            highest = f64::max(highest, at(rows));
            highest
        };
        let shape: Vec<f64> = (1..=last).map(rising).collect();
        Self { seen: vec![MEASURED; shape.len()], recent: vec![0.0; shape.len()], shape, speed: one }
    }

    /// T(rows) / T(1), never falling with the rows; beyond what is known, straight on.
    pub(crate) fn ratio(&self, rows: usize) -> f64 {
        let known = self.shape.len();
        let ratio = match rows {
            0 => 0.0,
            _ if rows <= known => self.shape[rows - 1],
            _ => {
                let (half, full) = (self.shape[known.div_ceil(2) - 1], self.shape[known - 1]);
                let slope = (full - half) / (known / 2).max(1) as f64;
                full + slope * (rows - known) as f64
            }
        };
        ratio / self.shape[0]
    }

    /// Seconds of a pass of one row, by the passes of late; `None` before the first.
    pub(crate) fn speed(&self) -> Option<f64> {
        (self.speed > 0.0).then_some(self.speed)
    }

    /// Learns from a pass.
    pub(crate) fn observe(&mut self, rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        if rows == 0 || seconds <= 0.0 {
            return;
        }
        let now = seconds / self.ratio(rows);
        if self.speed == 0.0 {
            self.speed = now;
        }
        self.speed *= bounded(now / self.speed, MOST_SURPRISE).powf(SPEED_RATE);
        let i = rows - 1;
        if i >= self.shape.len() {
            return;
        }
        self.recent.iter_mut().for_each(|count| *count *= RECENT_MEMORY);
        self.recent[i] += 1.0;
        // The speed is that of the passes seen most. They say nothing of the shape; the others do, beside them.
        let share = self.recent[i] / self.recent.iter().sum::<f64>();
        let rate = SHAPE_RATE.max(1.0 / f64::from(self.seen[i] + 1)) * (1.0 - share);
        let most = if self.seen[i] < MEASURED { MOST_SURPRISE_AT_GUESS } else { MOST_SURPRISE };
        self.shape[i] *= bounded(seconds / (self.speed * self.shape[i]), most).powf(rate);
        self.seen[i] = self.seen[i].saturating_add(1);
        // More rows never cost less: what was seen just now moves what was not.
        let here = self.shape[i];
        self.shape[..i].iter_mut().for_each(|fewer| *fewer = fewer.min(here));
        self.shape[i..].iter_mut().for_each(|more| *more = more.max(here));
    }
}

fn bounded(surprise: f64, most: f64) -> f64 {
    surprise.clamp(1.0 / most, most)
}

/// What a drafter's work costs, in passes of one row of the target.
#[derive(Clone, Debug)]
pub(crate) struct DraftCost {
    /// One drafted token.
    pub(crate) step: f64,
    /// By rows of the draft's own passes.
    curve: CostCurve,
    seen: u32,
}

impl DraftCost {
    /// Taking in so many tokens that the drafter has not seen.
    pub(crate) fn catching_up(&self, tokens: usize) -> f64 {
        let chunk = |rows: usize| self.step * self.curve.ratio(rows);
        (tokens / PROMPT_CHUNK) as f64 * chunk(PROMPT_CHUNK) + chunk(tokens % PROMPT_CHUNK)
    }

    /// Learns from `steps` steps that took so long, where T(1) takes `speed` seconds.
    pub(crate) fn observe(&mut self, steps: usize, time: Duration, speed: f64) {
        let step = time.as_secs_f64() / (speed * steps as f64);
        let rate = 0.05f64.max(1.0 / f64::from(self.seen + 2));
        self.step += rate * (step.min(4.0 * self.step + 0.01) - self.step);
        self.seen = self.seen.saturating_add(1);
    }
}

/// All that a plan has to know of a pair.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) target: CostCurve,
    pub(crate) draft: DraftCost,
    /// Whether there are guesses that cost nothing.
    pub(crate) has_guesses: bool,
    /// The most tokens worth drafting.
    pub(crate) max_tokens: usize,
}

impl Costs {
    /// With nothing measured: a guess, until passes tell, for drafts by a model, by something that costs nothing, or both.
    pub(crate) fn guessed(has_model: bool, has_guesses: bool, max_tokens: usize) -> Self {
        let (step, seen) = if has_model { (GUESSED_STEP, 0) } else { (0.0, MEASURED) };
        let draft = DraftCost { step, curve: CostCurve::guessed(), seen };
        Self { target: CostCurve::guessed(), draft, has_guesses, max_tokens }
    }

    /// With the target's curve.
    pub(crate) fn with_target(self, curve: &CostCurve) -> Self {
        Self { target: curve.clone(), ..self }
    }

    /// With the curve of the model that drafts, after the target's.
    pub(crate) fn with_draft(self, curve: &CostCurve) -> Self {
        let step = match (curve.speed(), self.target.speed()) {
            (Some(draft), Some(target)) => draft / target,
            _ => self.draft.step,
        };
        Self { draft: DraftCost { step, curve: curve.clone(), seen: MEASURED }, ..self }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn millis(time: f64) -> Duration {
        Duration::from_secs_f64(time * 1e-3)
    }

    #[test]
    fn a_curve_goes_through_its_points_and_never_falls() {
        let curve = CostCurve::through(&[(1, 2.0), (8, 3.0), (4, 2.6), (12, 2.8)]);
        let ratios: Vec<f64> = [1, 2, 4, 6, 8, 12].into_iter().map(|rows| curve.ratio(rows)).collect();
        for (got, wanted) in ratios.into_iter().zip([1.0, 1.1, 1.3, 1.4, 1.5, 1.5]) {
            assert!((got - wanted).abs() < 1e-9, "{got} is not {wanted}");
        }
        let rising = CostCurve::through(&[(1, 1.0), (16, 4.0)]);
        assert!((rising.ratio(32) - 7.2).abs() < 1e-9);
    }

    /// The machine gets three times slower; then passes of 5 rows turn out to cost less than was measured.
    #[test]
    fn a_slower_machine_is_not_a_dearer_draft() {
        let mut curve = CostCurve::through(&[(1, 0.010), (5, 0.020)]);
        for _ in 0..100 {
            curve.observe(5, millis(60.0));
        }
        assert!((curve.speed().unwrap() - 0.030).abs() < 0.006, "{curve:?}");
        assert!((curve.ratio(5) - 2.0).abs() < 0.4, "{curve:?}");
        for _ in 0..100 {
            curve.observe(1, millis(30.0));
            curve.observe(5, millis(36.0));
        }
        assert!((curve.ratio(5) - 1.2).abs() < 0.15, "{curve:?}");
    }

    #[test]
    fn a_guess_is_soon_replaced() {
        let mut curve = CostCurve::guessed();
        for _ in 0..10 {
            curve.observe(1, millis(1.0));
            curve.observe(4, millis(3.0));
        }
        assert!((curve.ratio(4) - 3.0).abs() < 0.6, "{}", curve.ratio(4));
    }

    proptest! {
        #[test]
        fn no_times_break_a_curve(passes in prop::collection::vec((0usize..40, 0u64..10_000_000), 0..200)) {
            let mut curve = CostCurve::guessed();
            for (rows, micros) in passes {
                curve.observe(rows, Duration::from_micros(micros));
            }
            let ratios: Vec<f64> = (1..40).map(|rows| curve.ratio(rows)).collect();
            prop_assert!(ratios.iter().all(|ratio| ratio.is_finite() && *ratio >= 1.0) && ratios.is_sorted());
        }
    }
}
