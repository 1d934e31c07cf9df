//! A team of long-lived threads that run one closure together and join.
//!
//! The caller is worker 0. Between runs the others spin briefly, then sleep. A run inside a run (of
//! any team) is done by the thread that asked for it, one worker index after the other, so teams
//! never wait for each other.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(100);

/// A fork-join team.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One run at a time.
    turn: Mutex<()>,
}

/// What caller and workers share.
struct Shared {
    /// Number of the run; changes when a job is ready.
    epoch: Padded<AtomicUsize>,
    /// Workers that have not finished the run.
    remaining: Padded<AtomicUsize>,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    /// Workers asleep, or about to be.
    sleepers: AtomicUsize,
    wake: Mutex<()>,
    woken: Condvar,
    done: Mutex<()>,
    finished: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A value on cache lines of its own.
#[repr(align(128))]
struct Padded<T>(T);

/// The closure of the current run, without its type and lifetime.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
}

// SAFETY: `job` is written only between runs, by the one caller that holds `turn`, and read by
// workers only during a run; `epoch` and `remaining` order the two. The closure behind it is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is followed only while the caller is inside `run`.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("epoch", &self.epoch.0).finish_non_exhaustive()
    }
}

thread_local! {
    /// Whether this thread is inside a run.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Clears `RUNNING` also when a closure panics.
struct Running;

impl Running {
    fn enter() -> Self {
        RUNNING.set(true);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(false);
    }
}

impl Team {
    /// A team of `threads` workers, the caller included; 0 means one for every physical core this
    /// process may use (affinity mask and cgroup quota respected). Where the system refuses
    /// threads, the team is smaller.
    pub fn new(threads: usize) -> Self {
        let wanted = if threads == 0 { physical_cores() } else { threads };
        let shared = Arc::new(Shared {
            epoch: Padded(AtomicUsize::new(0)),
            remaining: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            wake: Mutex::new(()),
            woken: Condvar::new(),
            done: Mutex::new(()),
            finished: Condvar::new(),
            panic: Mutex::new(None),
        });
        // Workers learn the size of the team with their first job, for the system may refuse some.
        let size = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (1..wanted)
            .map_while(|index| {
                let (shared, size) = (Arc::clone(&shared), Arc::clone(&size));
                let builder = std::thread::Builder::new().name(format!("specgen-{index}"));
                builder.spawn(move || shared.work(index, &size)).ok()
            })
            .collect();
        size.store(workers.len() + 1, Ordering::Release);
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(worker, num_workers)` once for every worker index and returns when all have finished.
    ///
    /// # Panics
    /// With the panic of a worker, after all of them have finished.
    pub fn run<F: Fn(usize, usize) + Sync>(&self, f: F) {
        let threads = self.threads();
        if threads == 1 || RUNNING.get() {
            for worker in 0..threads {
                f(worker, threads);
            }
            return;
        }
        let turn = lock(&self.turn);
        let running = Running::enter();
        let job = Job { data: (&raw const f).cast(), call: call::<F> };
        // SAFETY: no run is on (we hold `turn` and the last run joined), so nobody reads `job`.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.remaining.0.store(threads - 1, Ordering::Relaxed);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.shared.wake_sleepers();
        let own = catch_unwind(AssertUnwindSafe(|| f(0, threads)));
        self.shared.join(); // also after a panic: the workers still borrow `f`
        let theirs = lock(&self.shared.panic).take();
        drop(running);
        drop(turn);
        match (own, theirs) {
            (Err(panic), _) | (Ok(()), Some(panic)) => resume_unwind(panic),
            (Ok(()), None) => {}
        }
    }

    /// Runs `f(rows, out[rows])` over shares of the rows of `out`, `[_, cols]`, all together every row once.
    ///
    /// # Panics
    /// As [`Self::run`]; and if `out` isn't whole rows.
    pub fn share_rows<T: Send>(&self, cols: usize, out: &mut [T], f: impl Fn(Range<usize>, &mut [T]) + Sync) {
        /// Elements from which on a share pays.
        const SMALL: usize = if cfg!(miri) { 32 } else { 16_384 };
        if out.is_empty() {
            return;
        }
        assert!(cols > 0 && out.len().is_multiple_of(cols), "rows of {cols} in {}", out.len());
        let (rows, threads) = (out.len() / cols, self.threads());
        if out.len() < SMALL || rows == 1 || threads == 1 {
            return f(0..rows, out);
        }
        self.share(
            rows,
            out,
            |rest, rows| {
                let out = rest.split_off_mut(..rows.len() * cols).expect("shares add up");
                (rows, out)
            },
            |(rows, out)| f(rows, out),
        );
    }

    /// Runs `f` over `count` things in as many shares as there are workers. A worker takes the next share off
    /// the front of `rest`, by `split(rest, share)`: which one is a matter of who comes first.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub(crate) fn share<R: Send, S>(
        &self,
        count: usize,
        rest: R,
        split: impl Fn(&mut R, Range<usize>) -> S + Sync,
        f: impl Fn(S) + Sync,
    ) {
        let rest = Mutex::new((rest, 0));
        self.run(|_, workers| {
            let share = {
                let (rest, taken) = &mut *lock(&rest);
                let start = count * *taken / workers;
                *taken += 1;
                split(rest, start..count * *taken / workers)
            };
            f(share);
        });
    }
}

/// Reads `bytes`, shared out among the team, and does nothing with them.
pub fn read(team: &Team, bytes: &[u8]) {
    team.run(|worker, workers| {
        let share = bytes.len() * worker / workers..bytes.len() * (worker + 1) / workers;
        let words = bytes[share].as_chunks::<8>().0;
        std::hint::black_box(words.iter().fold(0u64, |sum, b| sum.wrapping_add(u64::from_ne_bytes(*b))));
    });
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // a worker catches its panics
        }
    }
}

impl Shared {
    /// The life of a worker.
    fn work(&self, index: usize, size: &AtomicUsize) {
        let mut seen = 0;
        loop {
            self.await_epoch(seen);
            seen += 1; // the caller waits for all before the next epoch, so none is skipped
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: the epoch was published after `job` was written, and `job` stays until all
            // workers have counted themselves out of `remaining`.
            let job = unsafe { (*self.job.get()).expect("an epoch comes with a job") };
            let running = Running::enter();
            let threads = size.load(Ordering::Acquire);
            // SAFETY: `data` is the closure `call` was made for; the caller keeps it until the join.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, index, threads) }));
            drop(running);
            if let Err(panic) = result {
                lock(&self.panic).get_or_insert(panic);
            }
            if self.remaining.0.fetch_sub(1, Ordering::AcqRel) == 1 {
                drop(lock(&self.done)); // the caller is either not yet waiting, or waiting
                self.finished.notify_one();
            }
        }
    }

    /// Waits until the epoch is no longer `seen`.
    fn await_epoch(&self, seen: usize) {
        let mut spin = Spin::new();
        while self.epoch.0.load(Ordering::Acquire) == seen {
            if spin.is_over() {
                let mut guard = lock(&self.wake);
                // Announced before the last look: a caller who does not see us has been seen by us.
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                while self.epoch.0.load(Ordering::SeqCst) == seen {
                    guard = self.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.wake));
            self.woken.notify_all();
        }
    }

    /// Waits until every worker has finished.
    fn join(&self) {
        let mut spin = Spin::new();
        while self.remaining.0.load(Ordering::Acquire) != 0 {
            if spin.is_over() {
                let mut guard = lock(&self.done);
                while self.remaining.0.load(Ordering::Acquire) != 0 {
                    guard = self.finished.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                return;
            }
        }
    }
}

/// A bounded spin. The clock is read only now and then.
struct Spin {
    turns: u32,
    start: Option<Instant>,
}

impl Spin {
    fn new() -> Self {
        Self { turns: 0, start: None }
    }

    /// Pauses for a moment; true once the time is up.
    fn is_over(&mut self) -> bool {
        std::hint::spin_loop();
        self.turns = self.turns.wrapping_add(1);
        if !self.turns.is_multiple_of(64) {
            return false;
        }
        self.start.get_or_insert_with(Instant::now).elapsed() > SPIN
    }
}

/// # Safety
/// `data` must point to a live `F`.
unsafe fn call<F: Fn(usize, usize) + Sync>(data: *const (), worker: usize, num_workers: usize) {
    // SAFETY: the caller of this function vouches for `data`.
    let f = unsafe { &*data.cast::<F>() };
    f(worker, num_workers);
}

/// Our locks guard no data that a panic could leave half written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Physical cores among the CPUs this process may use, at most what the cgroup allows.
fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    allowed_cores().map_or(logical, |cores| cores.clamp(1, logical))
}

/// Distinct cores behind the CPUs of the affinity mask, where Linux tells.
fn allowed_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse::<usize>().ok()?..=last.parse().ok()? {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            cores.push(std::fs::read_to_string(path).ok()?);
        }
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::AtomicU64;

    const RUNS: usize = if cfg!(miri) { 10 } else { 300 };

    fn count(team: &Team) -> u64 {
        let (seen, total) = (AtomicU64::new(0), AtomicU64::new(0));
        team.run(|worker, threads| {
            assert_eq!(threads, team.threads());
            seen.fetch_or(1 << worker, Ordering::Relaxed);
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), team.threads() as u64);
        seen.into_inner()
    }

    #[test]
    fn every_worker_runs_once() {
        for &threads in if cfg!(miri) { &[1, 2, 3][..] } else { &[1, 2, 3, 8, 40] } {
            let team = Team::new(threads);
            assert_eq!(team.threads(), threads);
            for _ in 0..RUNS {
                assert_eq!(count(&team), (1u64 << threads) - 1);
            }
        }
        assert!(Team::new(0).threads() >= 1);
    }

    #[test]
    fn shared_rows_come_each_once() {
        let scale = if cfg!(miri) { 1000 } else { 1 };
        for (rows, cols, threads) in [(0, 3, 2), (1, 50_000, 2), (3, 5, 4), (7, 9_000, 3), (2, 40_000, 4)] {
            let cols = if cols > 5 { cols / scale } else { cols };
            let mut out = vec![0.0; rows * cols];
            Team::new(threads).share_rows(cols, &mut out, |rows, out| {
                for (row, out) in rows.zip(out.chunks_exact_mut(cols)) {
                    out.iter_mut().for_each(|x| *x += row as f32 + 1.0);
                }
            });
            assert!(out.iter().enumerate().all(|(i, &x)| x == (i / cols) as f32 + 1.0));
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let team = Team::new(3);
        for _ in 0..if cfg!(miri) { 3 } else { 20 } {
            assert_eq!(count(&team), 7);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn several_callers_and_teams_do_not_deadlock() {
        let (a, b) = (Team::new(2), Team::new(3));
        std::thread::scope(|scope| {
            for i in 0..4 {
                let (first, second) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
                scope.spawn(move || {
                    for _ in 0..RUNS {
                        first.run(|_, _| {
                            count(second);
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn panics_reach_the_caller_and_the_team_lives_on() {
        let team = Team::new(3);
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(|worker, _| assert_ne!(worker, bad, "worker {worker} fails"));
            }));
            let message = result.unwrap_err();
            assert!(message.downcast_ref::<String>().unwrap().contains(&format!("worker {bad} fails")));
            assert_eq!(count(&team), 7);
        }
    }
}
