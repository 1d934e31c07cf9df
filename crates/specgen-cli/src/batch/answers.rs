//! The file of answers: what it already holds, one more at a time, and in order at the end.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{File, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Answers as they are written; a record names the line of the input it answers, and a hash of what was asked.
pub(super) struct Answers {
    path: PathBuf,
    file: File,
}

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
    /// A file that is no such file, or that answers something else.
    pub(super) fn open(path: &Path, asked: &BTreeMap<usize, String>) -> Result<(Self, HashSet<usize>)> {
        let name = path.display();
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read.with_context(|| name.to_string())?,
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let (mut kept, mut done) = (String::new(), HashSet::new());
        for (number, record) in (1..).zip(text[..whole].lines()) {
            let Ok(stub) = serde_json::from_str::<Stub>(record) else {
                bail!(
                    "{name}: line {number} is no answer of `specgen batch`; give another file for the answers"
                );
            };
            if asked.get(&stub.line) != Some(&stub.hash) {
                bail!(
                    "{name}: line {number} answers something else than line {} of the input asks now: the input, the \
                     model or the options have changed; move the file away to begin anew",
                    stub.line
                );
            }
            if stub.error.is_none() && done.insert(stub.line) {
                kept = kept + record + "\n";
            }
        }
        if kept != text {
            replace(path, &kept)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok((Self { file: file.with_context(|| name.to_string())?, path: path.to_owned() }, done))
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
        let torn = std::fs::read_to_string(&path).unwrap() + r#"{"line": 4, "ha"#;
        std::fs::write(&path, torn).unwrap();

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
        std::fs::write(&path, "{\"prompt\": \"x\"}\n").unwrap();
        let error = Answers::open(&path, &asked).err().unwrap().to_string();
        assert!(error.contains("line 1 is no answer of `specgen batch`"), "{error}");
    }
}
