//! A build without grammars: one can be written down, and none compiled.

use std::convert::Infallible;

use super::Language;
use crate::{Error, Result, tokenizer::Tokenizer};

/// The tokens that grammars are compiled for; in this build there are none.
#[derive(Clone, Debug)]
pub struct Vocabulary(Infallible);

impl Vocabulary {
    /// # Errors
    /// [`Error::Unsupported`], always.
    pub fn new(_tokens: &[Vec<u8>], _end_ids: &[u32]) -> Result<Self> {
        Err(Error::Unsupported("this build has no grammars; build with the feature `grammar`".into()))
    }

    pub(crate) fn of(_tokenizer: &Tokenizer) -> Result<Self> {
        Self::new(&[], &[])
    }

    pub(super) fn is(&self, _other: &Self) -> bool {
        match self.0 {}
    }

    pub(super) fn compile(&self, _language: Language, _text: &str) -> Result<Place, String> {
        match self.0 {}
    }

    pub(super) fn spell(&self, _bytes: &[u8]) -> Vec<u32> {
        match self.0 {}
    }

    pub(super) fn end(&self) -> Option<u32> {
        match self.0 {}
    }

    pub(super) fn goes_on(&self, _id: u32, _longer: u32) -> bool {
        match self.0 {}
    }
}

#[derive(Clone)]
pub(super) struct Place(Infallible);

impl Place {
    pub(super) fn own(&self) -> Self {
        match self.0 {}
    }

    pub(super) fn step(&mut self, _id: u32) -> Result<(), String> {
        match self.0 {}
    }

    pub(super) fn must_end(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn mask(&mut self) -> Result<Mask, String> {
        match self.0 {}
    }

    pub(super) fn forced_bytes(&self) -> Vec<u8> {
        match self.0 {}
    }
}

pub(super) struct Mask(Infallible);

impl Mask {
    pub(super) fn allows(&self, _id: u32) -> bool {
        match self.0 {}
    }

    pub(super) fn ids(&self) -> std::iter::Empty<u32> {
        match self.0 {}
    }

    pub(super) fn apply(&self, _logits: &mut [f32]) {
        match self.0 {}
    }
}
