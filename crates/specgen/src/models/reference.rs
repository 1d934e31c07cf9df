//! What a user typed to mean a model: a path, a name or a hub repository.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A reference, sorted by its form; names are looked up by the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// A file or folder that exists.
    Path(PathBuf),
    /// A name without slashes.
    Name(String),
    /// A repository of the hub.
    Hub(HubReference),
}

/// `org/name[@revision][:file]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubReference {
    /// `org/name`.
    pub(super) repo: String,
    /// A branch, tag or commit; `main` if none is given.
    pub(super) revision: String,
    /// A file of the repository, or a quantisation such as `Q8_0`.
    pub(super) file: Option<String>,
}

impl std::fmt::Display for HubReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}

impl Reference {
    /// Sorts `text`; a path that exists wins over everything else.
    pub(super) fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(Error::InvalidArgument(
                "the model is empty; a name, a path or a hub repository org/name is wanted".to_owned(),
            ));
        }
        let path = Path::new(text);
        // `exists` would hide a folder that may not be read behind "unknown name".
        match path.try_exists() {
            Ok(true) => return Ok(Self::Path(path.to_owned())),
            Ok(false) => {}
            Err(e) if is_path_like(text) => return Err(Error::io(path, e)),
            Err(_) => {}
        }
        if !text.contains(['/', '\\']) {
            return Ok(Self::Name(text.to_owned()));
        }
        if is_path_like(text) {
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file or folder");
            return Err(Error::io(path, source));
        }
        HubReference::parse(text).map(Self::Hub).map_err(|why| {
            Error::InvalidArgument(format!(
                "`{text}` is no file or folder, and no hub repository org/name[@revision][:file]: {why}"
            ))
        })
    }
}

impl HubReference {
    /// Takes `text` apart, or says in a few words which part of it is wrong.
    fn parse(text: &str) -> Result<Self, String> {
        let (head, file) = match text.split_once(':') {
            Some((head, file)) => (head, Some(file.to_owned())),
            None => (text, None),
        };
        let (repo, revision) = head.split_once('@').unwrap_or((head, "main"));
        match repo.split('/').count() {
            2 if !is_repo(repo) => {
                return Err(format!(
                    "`{repo}` may have letters, digits, `.`, `_` and `-` on either side of the `/`"
                ));
            }
            2 => {}
            parts => return Err(format!("`{repo}` has {parts} parts, two are wanted")),
        }
        if revision.is_empty() {
            return Err("a branch, tag or commit is wanted after the `@`".to_owned());
        }
        if !is_revision(revision) {
            return Err(format!("`{revision}` after the `@` is no branch, tag or commit"));
        }
        if file.as_deref() == Some("") {
            return Err("a file or a quantisation is wanted after the `:`".to_owned());
        }
        if let Some(file) = &file
            && !super::manifest::is_safe_relative_path(file)
        {
            return Err(format!("`{file}` after the `:` is no file of a repository and no quantisation"));
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.to_owned(), file })
    }
}

/// Whether `text` can only be meant as a path.
pub(super) fn is_path_like(text: &str) -> bool {
    text.starts_with(['/', '.', '~', '\\']) || text.contains('\\')
}

/// Whether `text` is `org/name` in the hub's alphabet.
pub(super) fn is_repo(text: &str) -> bool {
    let good = |part: &str| {
        part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    text.split_once('/').is_some_and(|(org, name)| good(org) && good(name))
}

/// Whether `text` can stand for a branch, tag or commit in an address.
fn is_revision(text: &str) -> bool {
    let good = |part: &str| {
        part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
            && !matches!(part, "" | "." | "..")
    };
    text.split('/').all(good)
}

/// At most five of `names` that resemble `typed`, the closest first.
pub(super) fn close_matches<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let typed = typed.to_lowercase();
    let allowed = 2.max(typed.chars().count() / 3);
    let mut scored: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let distance = edit_distance(&typed, name);
            let contained = typed.len() >= 3 && name.contains(&typed);
            (distance <= allowed || contained)
                .then_some((if contained { distance.min(1) } else { distance }, name))
        })
        .collect();
    scored.sort();
    scored.truncate(5);
    scored.into_iter().map(|(_, name)| name).collect()
}

/// Levenshtein distance: insertions, deletions and replacements that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hub(repo: &str, revision: &str, file: Option<&str>) -> Reference {
        let file = file.map(str::to_owned);
        Reference::Hub(HubReference { repo: repo.into(), revision: revision.into(), file })
    }

    #[test]
    fn forms_are_told_apart() {
        assert_eq!(Reference::parse("qwen3-8b").unwrap(), Reference::Name("qwen3-8b".into()));
        assert_eq!(Reference::parse("Qwen/Qwen3-8B").unwrap(), hub("Qwen/Qwen3-8B", "main", None));
        assert_eq!(Reference::parse("a/b@v1:Q8_0").unwrap(), hub("a/b", "v1", Some("Q8_0")));
        assert_eq!(Reference::parse("a/b@refs/pr/3").unwrap(), hub("a/b", "refs/pr/3", None));
        assert_eq!(Reference::parse("a/b:BF16/x.gguf").unwrap(), hub("a/b", "main", Some("BF16/x.gguf")));
        for missing in ["./x.gguf", "/no/such/x.gguf", r"a\b", "~/x"] {
            let error = Reference::parse(missing).unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{missing}: {error}");
        }
        for (odd, why) in [
            ("a/b/c.gguf", "`a/b/c.gguf` has 3 parts"),
            ("a/b:../x", "`../x` after the `:`"),
            ("a/b:", "wanted after the `:`"),
            ("a/b@", "wanted after the `@`"),
            ("a/b@../x", "`../x` after the `@`"),
            ("a/", "`a/` may have"),
            ("a/b c", "`a/b c` may have"),
        ] {
            let error = Reference::parse(odd).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{odd}: {error}");
            let error = error.to_string();
            assert!(error.starts_with(&format!("`{odd}` is no file or folder, and no hub")), "{error}");
            assert!(error.contains(why), "{error}");
        }
        assert!(Reference::parse(" ").is_err());
    }

    #[test]
    fn a_path_that_exists_wins() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().to_str().unwrap();
        assert_eq!(Reference::parse(text).unwrap(), Reference::Path(folder.path().to_owned()));
    }

    #[test]
    fn shown_as_typed() {
        for text in ["a/b", "a/b@v1", "a/b:x.gguf", "a/b@v1:Q8_0"] {
            let Reference::Hub(hub) = Reference::parse(text).unwrap() else {
                panic!("{text} is a repository")
            };
            assert_eq!(hub.to_string(), text);
        }
    }

    #[test]
    fn distances_and_suggestions() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        let names = ["qwen3-8b", "qwen3-0.6b", "gemma-3-270m", "smollm2-135m-instruct"];
        assert_eq!(close_matches("qwen-8b", names.into_iter())[0], "qwen3-8b");
        assert_eq!(close_matches("smollm2", names.into_iter()), ["smollm2-135m-instruct"]);
        assert!(close_matches("mistral-large-2411", names.into_iter()).is_empty());
    }
}
