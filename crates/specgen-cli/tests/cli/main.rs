//! The command as a user meets it: what it prints, where, and with which exit code.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "these are tests")]

mod bad_input;
mod batch;
mod bench;
mod chat;
mod generate;
mod help;
mod listing;
mod score;
mod verify;

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use specgen::models::{NoProgress, Store, StoreOptions};

/// The command, blind to the environment it is tested in: no network, no models but those named by path.
fn specgen(words: &[&str]) -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("specgen");
    for variable in ["COLUMNS", "HF_ENDPOINT", "HF_TOKEN", "HF_HOME", "HF_HUB_OFFLINE"] {
        command.env_remove(variable);
    }
    command.env("SPECGEN_OFFLINE", "1").env("SPECGEN_HOME", empty_home()).args(words);
    command
}

/// A store with nothing in it.
fn empty_home() -> &'static Path {
    static HOME: std::sync::LazyLock<tempfile::TempDir> =
        std::sync::LazyLock::new(|| tempfile::tempdir().unwrap());
    HOME.path()
}

/// What a run left: exit code, stdout, stderr.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Run {
    /// Its stdout, of a run that must have gone well.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    #[track_caller]
    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Its stderr, of a run that must have failed with `code`, in one line, and without a word on stdout.
    #[track_caller]
    fn fails(self, code: i32) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{}", self.stderr);
        let line = self.stderr.strip_suffix('\n').unwrap_or_default();
        assert!(!line.contains('\n') && line.starts_with("specgen: error: "), "{}", self.stderr);
        line["specgen: error: ".len()..].to_owned()
    }
}

/// The file of the default model, fetched if need be; where no source has it, the reason is printed.
fn real_model() -> Option<&'static str> {
    static PATH: std::sync::LazyLock<Result<PathBuf, String>> = std::sync::LazyLock::new(|| {
        let store = StoreOptions::from_env().map(Store::new).map_err(|error| error.to_string())?;
        let files = store.resolve(specgen::DEFAULT_MODEL, &NoProgress).map_err(|error| error.to_string())?;
        Ok(files.weights[0].clone())
    });
    match &*PATH {
        Ok(path) => path.to_str(),
        Err(reason) => {
            eprintln!("skipped, the model is not here: {reason}");
            None
        }
    }
}
