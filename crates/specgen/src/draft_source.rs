//! `DraftSource`: who drafts, as a user says it.

use specgen_kernels::Format;

use crate::{
    error::Result,
    model::format_named,
    models::{ModelFiles, Progress, Store},
};

/// Who drafts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DraftSource {
    /// What is best for the target: guesses, and the model recommended for it, where there is one that can be had.
    #[default]
    Auto,
    /// Nobody: plain decoding.
    None,
    /// The text's own past, by its last few tokens (prompt lookup).
    Ngram,
    /// Guesses by what was said before, in this text and in others, and by what the user expects.
    Suffix,
    /// A smaller model, best of the same vocabulary: a name, a path or a hub repository.
    Model(String),
    /// A copy of the target in fewer bits, made as it is loaded: the format its matrices are brought into, such as `q4_0`.
    Copy(String),
    /// Guesses where they bring more for their time, else the model or copy.
    Both(Box<DraftSource>),
}

const AUTO: &str = "auto";
const NONE: &str = "none";
const NGRAM: &str = "ngram";
const SUFFIX: &str = "suffix";
const COPY: &str = "self";

impl From<&str> for DraftSource {
    /// `auto`, `none`, `ngram`, `suffix`, `self:FORMAT`, a model, or `suffix+` before one of the last two.
    fn from(name: &str) -> Self {
        if let Some((SUFFIX, model)) = name.split_once('+') {
            return Self::Both(Box::new(model.into()));
        }
        match (name, name.split_once(':')) {
            (AUTO, _) => Self::Auto,
            (NONE, _) => Self::None,
            (NGRAM, _) => Self::Ngram,
            (SUFFIX, _) => Self::Suffix,
            (COPY, _) => Self::Copy(String::new()),
            (_, Some((COPY, format))) => Self::Copy(format.to_owned()),
            (model, _) => Self::Model(model.to_owned()),
        }
    }
}

impl std::fmt::Display for DraftSource {
    /// As it is read.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::None => f.write_str(NONE),
            Self::Ngram => f.write_str(NGRAM),
            Self::Suffix => f.write_str(SUFFIX),
            Self::Model(name) => f.write_str(name),
            Self::Copy(format) => write!(f, "{COPY}:{format}"),
            Self::Both(model) => write!(f, "{SUFFIX}+{model}"),
        }
    }
}

impl DraftSource {
    /// What [`DraftSource::Auto`] is for a target.
    pub fn recommended(target: &ModelFiles) -> Self {
        match target.recommended_draft.as_deref().map(Self::from) {
            Some(model @ (Self::Model(_) | Self::Copy(_))) => Self::Both(Box::new(model)),
            _ => Self::Suffix,
        }
    }

    /// The model or copy that drafts, where one does.
    pub fn of_model(&self) -> Option<&Self> {
        match self {
            Self::Model(_) | Self::Copy(_) => Some(self),
            Self::Both(model) => model.of_model(),
            Self::Auto | Self::None | Self::Ngram | Self::Suffix => None,
        }
    }

    /// Whether a model drafts, which is loaded for it.
    pub fn is_model(&self) -> bool {
        self.of_model().is_some()
    }

    /// The files of the model that drafts, fetched if they are not all here; `None` where no model does.
    ///
    /// # Errors
    /// As [`Store::resolve`]; a near miss of `ngram` or `none` is told too. [`Error::InvalidArgument`](crate::Error) for
    /// guesses beside what is no model.
    pub fn resolve(&self, store: &Store, progress: &dyn Progress) -> Result<Option<ModelFiles>> {
        match self {
            Self::Model(name) => store.resolve_or(name, &[AUTO, NGRAM, SUFFIX, NONE], progress).map(Some),
            Self::Both(model) if model.is_model() => model.resolve(store, progress),
            Self::Both(other) => Err(crate::Error::InvalidArgument(format!(
                "draft `{self}`: wanted a model behind `{SUFFIX}+`, found `{other}`"
            ))),
            Self::Auto | Self::None | Self::Ngram | Self::Suffix | Self::Copy(_) => Ok(None),
        }
    }

    /// The format of a copy of the target, where one drafts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error) for one that is not known, with those that are.
    pub fn copy_format(&self) -> Result<Option<Format>> {
        match self.of_model() {
            Some(Self::Copy(format)) => format_named(format).map(Some),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_read_as_they_are_written() {
        for text in [
            "auto",
            "none",
            "ngram",
            "suffix",
            "self:q4_0",
            "some/model",
            "suffix+some-model",
            "suffix+self:q4_0",
        ] {
            assert_eq!(DraftSource::from(text).to_string(), text);
        }
        assert_eq!(DraftSource::from("/models/a+b.gguf"), DraftSource::Model("/models/a+b.gguf".into()));
        assert!(DraftSource::from("suffix+m").is_model() && !DraftSource::from("suffix").is_model());
    }
}
