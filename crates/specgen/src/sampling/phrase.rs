//! A piece of text in the parameters, as text or as token ids.

/// A piece of text that a parameter is about. Text needs an engine with a tokenizer, which turns it into token ids
/// before anything is sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phrase {
    /// As text.
    Text(String),
    /// As token ids, in order.
    Ids(Vec<u32>),
}

impl Phrase {
    /// The token ids, if it has been given as such.
    pub fn ids(&self) -> Option<&[u32]> {
        match self {
            Self::Text(_) => None,
            Self::Ids(ids) => Some(ids),
        }
    }

    /// Whether it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        }
    }
}

impl From<&str> for Phrase {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Phrase {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Phrase {
    fn from(ids: Vec<u32>) -> Self {
        Self::Ids(ids)
    }
}
