//! Timing passes when a model is loaded, and remembering the times beside the models.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use specgen_kernels::KvType;

use super::{
    auto,
    cost::{CostCurve, Costs},
};
use crate::{
    bench::Passes,
    device::{self, Device},
    draft::Drafter,
    error::{Error, Result},
    files::write_atomically,
    model::{Model, PROMPT_CHUNK},
};

/// Rows timed of a target. The dearest come early, so that even one turn warms up for the rest.
const TARGET_ROWS: [usize; 9] = [1, 16, 2, 8, 4, 3, 6, 12, 5];
/// Rows timed of a draft: a step, a step after a fully accepted draft, and what catching up takes.
const DRAFT_ROWS: [usize; 4] = [1, 2, 16, PROMPT_CHUNK];
/// Another turn of passes is taken while all of them have taken less than this,
const ENOUGH: Duration = Duration::from_millis(140);
/// and a second one unless the first took more than this.
const SLOW: Duration = Duration::from_millis(700);
const MAX_TURNS: usize = 5;
/// Times this close, in seconds, are the same.
const TRIFLE: f64 = 1e-3;

/// Quantised products on GPUs have a fast path for 8 rows.
const MAX_GPU_TOKENS: usize = 7;

/// Guesses for a pair of which nothing was measured.
pub(crate) fn guessed(target: &dyn Model, drafter: &dyn Drafter) -> Costs {
    let is_cpu = matches!(target.info().device.as_str(), "cpu" | "reference");
    let max_tokens = if is_cpu { auto::MAX_TOKENS } else { MAX_GPU_TOKENS };
    Costs::guessed(drafter.model().is_some(), drafter.has_guesses(), max_tokens)
}

/// The times of a model's passes on one machine, as they are kept on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// What was measured where; another's times are of no use.
    key: String,
    /// Rows and seconds.
    passes: Vec<(usize, f64)>,
}

/// Which model runs where.
pub(crate) struct Place<'a> {
    /// Its files.
    pub(crate) weights: &'a [PathBuf],
    pub(crate) device: &'a Device,
    pub(crate) kv_type: KvType,
    /// The folder that times are kept in.
    pub(crate) dir: &'a Path,
}

/// A target or a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Target,
    Draft,
}

impl Role {
    fn rows(self) -> &'static [usize] {
        match self {
            Self::Target => &TARGET_ROWS,
            Self::Draft => &DRAFT_ROWS,
        }
    }
}

/// The curve of `model`, from disk if it was measured before.
///
/// # Errors
/// A failing model.
pub(crate) fn curve(model: &dyn Model, role: Role, place: &Place<'_>) -> Result<CostCurve> {
    let key = place.key(role);
    let path = place.dir.join(format!("{:016x}.json", fingerprint(&key)));
    // A short context may have had no room for all rows.
    let whole = |kept: &Measured| kept.passes.len() == role.rows().len();
    let kept = match Measured::read(&path, &key).filter(whole) {
        // A target's times are corrected as it runs; a draft that seems too dear is not run at all.
        Some(kept) if role == Role::Target || kept.is_still_so(model)? => Some(kept),
        _ => None,
    };
    let measured = match kept {
        Some(kept) => kept,
        None => {
            let measured = Measured { key, passes: measure(model, role.rows())? };
            if let Err(error) = measured.write(&path) {
                // The next load measures again; nothing else is lost.
                tracing::debug!("{}: {error}", path.display());
            }
            measured
        }
    };
    Ok(CostCurve::through(&measured.passes))
}

impl Place<'_> {
    fn key(&self, role: Role) -> String {
        let files: Vec<String> = self
            .weights
            .iter()
            .map(|path| {
                let full = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                let meta = std::fs::metadata(path).ok();
                let modified = meta.as_ref().and_then(|meta| meta.modified().ok());
                let modified = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                let size = meta.map_or(0, |meta| meta.len());
                format!("{} {size} {}", full.display(), modified.map_or(0, |at| at.as_secs()))
            })
            .collect();
        // An unoptimised build has times of its own.
        let build = (env!("CARGO_PKG_VERSION"), cfg!(debug_assertions));
        let (device, threads, isa) = (self.device.spec(), self.device.threads(), device::cpu_isa());
        format!(
            "{build:?} {role:?} {} | {} | {device} {isa} {threads} {}",
            files.join(", "),
            device::machine(),
            self.kv_type
        )
    }
}

/// FNV-1a: a file's name for a key, which the file itself repeats.
fn fingerprint(key: &str) -> u64 {
    key.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl Measured {
    /// What the file holds, if it is whole and of this very place.
    fn read(path: &Path, key: &str) -> Option<Self> {
        let measured: Self = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let is_sound = measured.key == key
            && measured.passes.first().is_some_and(|&(rows, _)| rows == 1)
            && measured.passes.iter().all(|&(rows, time)| {
                (1..=PROMPT_CHUNK).contains(&rows) && (f64::MIN_POSITIVE..1e6).contains(&time)
            });
        is_sound.then_some(measured)
    }

    /// Whether a pass of one row takes about as long as it did: the machine may have been busy then.
    fn is_still_so(&self, model: &dyn Model) -> Result<bool> {
        let mut passes = Passes::new(model)?;
        let now = passes.time(1)?.min(passes.time(1)?).as_secs_f64();
        let then = self.passes[0].1;
        Ok((now - then).abs() < TRIFLE || (0.5..2.0).contains(&(now / then)))
    }

    fn write(&self, path: &Path) -> Result<()> {
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;
        let text = serde_json::to_vec(self).map_err(|error| Error::io(path, error.into()))?;
        write_atomically(path, &text)
    }
}

/// Times passes of each of `rows` rows, in turns, and takes the fastest of each: what slows a pass down is not the pass.
/// Stops early where the model's context has no room for more rows.
fn measure(model: &dyn Model, rows: &[usize]) -> Result<Vec<(usize, f64)>> {
    let mut passes = Passes::new(model)?;
    let mut best: Vec<(usize, f64)> =
        rows.iter().filter(|&&rows| rows <= passes.room()).map(|&rows| (rows, f64::INFINITY)).collect();
    passes.time(1)?; // to warm up
    let start = Instant::now();
    for turn in 1..=MAX_TURNS {
        for (rows, time) in &mut best {
            *time = time.min(passes.time(*rows)?.as_secs_f64().max(1e-9));
        }
        let taken = start.elapsed();
        if (turn == 1 && taken > SLOW) || (turn > 1 && taken > ENOUGH) {
            break;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{device::DeviceSpec, model::ToyModel};

    #[test]
    fn times_are_measured_once_and_a_damaged_file_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let weights = [dir.path().join("model.gguf")];
        std::fs::write(&weights[0], "GGUF").unwrap();
        let device = Device::open(DeviceSpec::Cpu, 1).unwrap();
        let costs = dir.path().join("costs");
        let place = Place { weights: &weights, device: &device, kv_type: KvType::F16, dir: &costs };
        let model = ToyModel::new(50, 7, 8.0);
        let read = || {
            let mut files = std::fs::read_dir(&costs).unwrap();
            let path = files.next().unwrap().unwrap().path();
            assert!(files.next().is_none(), "one file for one place");
            (std::fs::read_to_string(&path).unwrap(), path)
        };
        curve(&model, Role::Target, &place).unwrap();
        let (first, path) = read();
        curve(&model, Role::Target, &place).unwrap();
        assert_eq!(read().0, first, "it was measured again");
        let wrong_time = first.replace("\"passes\":[[1,", "\"passes\":[[1,-");
        for damage in ["", "{}", &first[..first.len() / 2], &wrong_time, &first.replace("Target", "Draft")] {
            std::fs::write(&path, damage).unwrap();
            curve(&model, Role::Target, &place).unwrap();
            let (written, _) = read();
            assert_ne!(written, damage);
            assert!(Measured::read(&path, &place.key(Role::Target)).is_some());
        }
        // A draft timed on a busy machine is timed again.
        curve(&model, Role::Draft, &place).unwrap();
        let path = costs.join(format!("{:016x}.json", fingerprint(&place.key(Role::Draft))));
        let mut busy = Measured::read(&path, &place.key(Role::Draft)).unwrap();
        busy.passes[0].1 = 5.0;
        busy.write(&path).unwrap();
        curve(&model, Role::Draft, &place).unwrap();
        assert!(Measured::read(&path, &place.key(Role::Draft)).unwrap().passes[0].1 < 1.0);
        // Another number of threads is another place.
        let two = Device::open(DeviceSpec::Cpu, 2).unwrap();
        curve(&model, Role::Target, &Place { device: &two, ..place }).unwrap();
        assert_eq!(std::fs::read_dir(&costs).unwrap().count(), 3);
        // A folder that cannot be written is no reason to fail.
        let nowhere = weights[0].join("costs");
        curve(&model, Role::Target, &Place { dir: &nowhere, ..place }).unwrap();
    }

    #[test]
    fn a_short_context_measures_what_it_has_room_for() {
        let model = ToyModel::new(50, 7, 8.0).with_context_len(6);
        let rows: Vec<usize> =
            measure(&model, &TARGET_ROWS).unwrap().into_iter().map(|pass| pass.0).collect();
        assert_eq!(rows, [1, 2, 4, 3, 5]);
    }
}
