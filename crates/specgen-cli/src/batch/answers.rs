//! The file of answers: what it already holds, one more at a time, and in order at the end.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{File, OpenOptions, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::args::UsageError;

/// Answers as they are written; a record names the line of the input it answers, and a hash of what was asked.
pub(super) struct Answers {
    path: PathBuf,
    file: File,
}

/// How every record begins.
const RECORD: &str = "{\"line\":";

/// What is read of a record.
#[derive(Deserialize)]
struct Stub {
    line: usize,
    hash: String,
    error: Option<serde::de::IgnoredAny>,
}

impl Answers {
    /// Opens the file, made if it is not there, to go on with it: a torn last line is dropped, and so are the errors,
    /// to be tried again. `asked` are the hashes by line. Returns the lines that have their answers.
    ///
    /// # Errors
    /// A file that is no such file, that answers something else, or that another run is writing.
    pub(super) fn open(path: &Path, asked: &BTreeMap<usize, String>) -> Result<(Self, HashSet<usize>)> {
        let name = path.display();
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let problem =
                format!("{name} is no file; answers are read again to go on with them, so one is wanted");
            return Err(UsageError(problem).into());
        }
        let mut file = open_alone(path)?;
        let bytes = std::fs::read(path).with_context(|| name.to_string())?;
        // It may be torn within a character.
        let (whole, torn) =
            bytes.split_at(bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
        let whole =
            std::str::from_utf8(whole).with_context(|| format!("{name}: no answers of `specgen batch`"))?;
        // A record that was being written when the power went; anything else is somebody's.
        if !torn.starts_with(RECORD.as_bytes()) && !RECORD.as_bytes().starts_with(torn) {
            bail!("{name}: the last line is no answer of `specgen batch`; give another file for the answers");
        }
        let (mut kept, mut done) = (String::new(), HashSet::new());
        for (number, record) in (1..).zip(whole.lines()) {
            let Ok(stub) = serde_json::from_str::<Stub>(record) else {
                bail!(
                    "{name}: line {number} is no answer of `specgen batch`; give another file for the answers"
                );
            };
            // What failed is asked anew, mended or not.
            if stub.error.is_some() {
                continue;
            }
            match asked.get(&stub.line) {
                Some(hash) if *hash == stub.hash => {}
                Some(_) => bail!(
                    "{name}: line {number} answers something else than line {} of the input asks now: the input, the \
                     model or the options have changed; move the file away to begin anew",
                    stub.line
                ),
                None => bail!(
                    "{name}: line {number} answers line {} of the input, where there is no request now; move the file \
                     away to begin anew",
                    stub.line
                ),
            }
            if done.insert(stub.line) {
                kept = kept + record + "\n";
            }
        }
        if kept.as_bytes() != bytes {
            replace(path, &kept)?;
            file = open_alone(path)?;
        }
        Ok((Self { file, path: path.to_owned() }, done))
    }

    /// Adds a record, in one write.
    pub(super) fn write(&mut self, record: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(record).context("JSON")? + "\n";
        self.file.write_all(line.as_bytes()).with_context(|| self.path.display().to_string())
    }

    /// Puts the records into the order of the input.
    pub(super) fn close(self) -> Result<()> {
        let text = std::fs::read_to_string(&self.path).with_context(|| self.path.display().to_string())?;
        let line_of = |record: &&str| serde_json::from_str::<Stub>(record).map_or(0, |stub| stub.line);
        let mut records: Vec<&str> = text.lines().collect();
        if !records.is_sorted_by_key(line_of) {
            records.sort_by_cached_key(line_of);
            replace(&self.path, &(records.join("\n") + "\n"))?;
        }
        Ok(())
    }
}

/// Opens a file to append to, which nobody else does meanwhile.
fn open_alone(path: &Path) -> Result<File> {
    let name = || path.display().to_string();
    let file = OpenOptions::new().create(true).append(true).open(path).with_context(name)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!("{}: another `specgen batch` is writing it", name()),
        Err(TryLockError::Error(error)) => Err(error).with_context(name),
        Ok(()) => Ok(file),
    }
}

/// Writes a file anew, so that there is always a whole one.
fn replace(path: &Path, text: &str) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_is_gone_on_with_where_it_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let asked: BTreeMap<usize, String> = (1..=4).map(|line| (line, format!("h{line}"))).collect();
        let record =
            |line: usize, text: &str| json!({"line": line, "hash": format!("h{line}"), "text": text});
        let (mut answers, done) = Answers::open(&path, &asked).unwrap();
        assert!(done.is_empty());
        answers.write(&record(3, "c")).unwrap();
        answers.write(&json!({"line": 2, "hash": "h2", "error": "no"})).unwrap();
        answers.write(&record(1, "a")).unwrap();
        drop(answers);
        let torn = std::fs::read_to_string(&path).unwrap() + "{\"line\":4,\"text\":\"caf";
        // Cut within the é.
        std::fs::write(&path, [torn.as_bytes(), &[0xc3]].concat()).unwrap();

        let (mut answers, done) = Answers::open(&path, &asked).unwrap();
        assert_eq!(done, HashSet::from([1, 3]));
        answers.write(&record(2, "b")).unwrap();
        answers.close().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let found: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(found, [record(1, "a"), record(2, "b"), record(3, "c")]);

        let changed = BTreeMap::from([(1, "h1".into()), (2, "other".into()), (3, "h3".into())]);
        let error = Answers::open(&path, &changed).err().unwrap().to_string();
        assert!(error.contains("line 2 answers something else than line 2 of the input"), "{error}");
        let fewer = BTreeMap::from([(1, "h1".into())]);
        let error = Answers::open(&path, &fewer).err().unwrap().to_string();
        assert!(error.contains("answers line 2 of the input, where there is no request"), "{error}");

        // What failed may be mended and asked again.
        std::fs::write(&path, "{\"line\":1,\"hash\":\"old\",\"error\":\"no\"}\n").unwrap();
        let (answers, done) = Answers::open(&path, &asked).unwrap();
        assert!(done.is_empty());
        // One at a time.
        let error = Answers::open(&path, &asked).err().unwrap().to_string();
        assert!(error.contains("another `specgen batch` is writing it"), "{error}");
        drop(answers);
        std::fs::write(&path, "{\"prompt\": \"x\"}\n").unwrap();
        let error = Answers::open(&path, &asked).err().unwrap().to_string();
        assert!(error.contains("line 1 is no answer of `specgen batch`"), "{error}");

        // A file of one line that is nobody's torn answer stays as it is.
        std::fs::write(&path, "my notes").unwrap();
        let error = Answers::open(&path, &asked).err().unwrap().to_string();
        assert!(error.contains("the last line is no answer"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes");
        let error = Answers::open(dir.path(), &asked).err().unwrap().to_string();
        assert!(error.contains("is no file"), "{error}");
    }
}
