//! Progress of downloads and checks on stderr: a bar on a terminal, a line at start and end elsewhere.

use std::{
    io::IsTerminal,
    sync::{Mutex, MutexGuard},
    time::Instant,
};

use indicatif::{ProgressBar, ProgressStyle};
use specgen::models::{NoProgress, Progress};

use crate::output::{bytes, note, seconds};

/// Who tells the user how far things are; nobody where `quiet`.
pub(crate) fn reporter(quiet: bool) -> Box<dyn Progress> {
    if quiet {
        Box::new(NoProgress)
    } else if std::io::stderr().is_terminal() {
        Box::new(Bars::default())
    } else {
        Box::new(Lines::default())
    }
}

/// A bar that counts `what` up to `total`, with their rate; on a terminal only.
pub(crate) fn counter(what: &str, total: u64, quiet: bool) -> ProgressBar {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(total) };
    let style = ProgressStyle::with_template("{bar:24} {human_pos}/{human_len} {msg}, {per_sec} eta {eta}");
    let style = style.expect("the template above is well-formed").progress_chars("━╸─");
    bar.with_style(style).with_message(what.to_owned())
}

/// A count of `what` with its rate, where nobody knows how many there will be; on a terminal only.
pub(crate) fn tally(what: &str, quiet: bool) -> ProgressBar {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::no_length() };
    let style = ProgressStyle::with_template("{human_pos} {msg}, {per_sec}");
    bar.with_style(style.expect("the template above is well-formed")).with_message(what.to_owned())
}

/// Nothing here panics while it holds the lock, so what it guards is whole in any case.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A bar.
#[derive(Default)]
struct Bars(Mutex<Option<ProgressBar>>);

impl Progress for Bars {
    fn start(&self, what: &str, total: Option<u64>, already: u64) {
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{msg} {bar:24} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} eta {eta}",
            ),
            None => (ProgressBar::no_length(), "{msg} {decimal_bytes} {decimal_bytes_per_sec}"),
        };
        let style = ProgressStyle::with_template(template).expect("the templates above are well-formed");
        let bar =
            bar.with_style(style.progress_chars("━╸─")).with_message(what.to_owned()).with_position(already);
        // What an earlier run left behind is no speed of this one.
        bar.reset_eta();
        if let Some(before) = lock(&self.0).replace(bar) {
            before.finish_and_clear();
        }
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*lock(&self.0) {
            bar.inc(bytes);
        }
    }

    fn message(&self, text: &str) {
        match &*lock(&self.0) {
            Some(bar) => bar.println(text),
            None => note(format_args!("{text}")),
        }
    }

    fn finish(&self) {
        if let Some(bar) = lock(&self.0).take() {
            bar.finish_and_clear();
        }
    }
}

/// Lines, for logs.
#[derive(Default)]
struct Lines(Mutex<Option<Step>>);

struct Step {
    what: String,
    total: Option<u64>,
    done: u64,
    start: Instant,
}

impl Progress for Lines {
    fn start(&self, what: &str, total: Option<u64>, already: u64) {
        let size = total.map(|total| format!(", {}", bytes(total))).unwrap_or_default();
        let left = if already > 0 { format!(", {} already here", bytes(already)) } else { String::new() };
        note(format_args!("{what}{size}{left} ..."));
        let step = Step { what: what.to_owned(), total, done: already, start: Instant::now() };
        lock(&self.0).replace(step);
    }

    fn advance(&self, bytes: u64) {
        if let Some(step) = &mut *lock(&self.0) {
            step.done += bytes;
        }
    }

    fn message(&self, text: &str) {
        note(format_args!("{text}"));
    }

    fn finish(&self) {
        let Some(Step { what, total, done, start }) = lock(&self.0).take() else { return };
        let of = total.filter(|&total| total != done).map(|total| format!(" of {}", bytes(total)));
        note(format_args!(
            "{what}: {}{} in {}",
            bytes(done),
            of.unwrap_or_default(),
            seconds(start.elapsed())
        ));
    }
}
