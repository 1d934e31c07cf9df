//! Tiny vocabularies that spell the same texts in different tokens.

use std::{collections::HashMap, path::Path};

use specgen::{
    Result,
    cache::KvCache,
    model::{Batch, Model, ModelInfo, Output, Rows, Slice},
    tokenizer::Tokenizer,
    weights::metadata::{Metadata, Value},
};

/// A byte-level vocabulary of these tokens; every way to make a longer one of two others is a merge. The first is a
/// begin-of-text token where `begins`.
pub fn byte_pair(tokens: &[String], begins: bool) -> Tokenizer {
    let ids: HashMap<&str, usize> = tokens.iter().map(String::as_str).zip(0..).collect();
    let splits = |token: &'_ String| {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at)).collect::<Vec<_>>();
        cuts.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect::<Vec<_>>()
    };
    let merges =
        tokens.iter().flat_map(splits).filter(|(a, b)| ids.contains_key(&**a) && ids.contains_key(&**b));
    let merges = merges.map(|(a, b)| format!("{a} {b}").into_bytes()).collect();
    let mut kinds = vec![1; tokens.len()];
    kinds[0] = if begins { 3 } else { 1 };
    let text = |text: &str| Value::String(text.into());
    let meta = [
        ("model", text("gpt2")),
        ("pre", text("gpt-2")),
        ("tokens", Value::Strings(tokens.iter().map(|token| token.clone().into_bytes()).collect())),
        ("token_type", Value::Ints(kinds)),
        ("merges", Value::Strings(merges)),
        ("bos_token_id", Value::Uint(0)),
        ("add_bos_token", Value::Bool(begins)),
    ];
    let meta = meta.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
    Tokenizer::from_metadata(&Metadata(meta.into()), Path::new("tiny.gguf"), None)
        .expect("a valid vocabulary")
}

/// A target's `size` tokens: both bytes of an `é`, letters, then pairs and triples of them.
pub fn of_target(size: usize) -> Tokenizer {
    byte_pair(&words(&["Ã", "©", "a", "b", "c", "d"]).take(size).collect::<Vec<_>>(), false)
}

/// As many tokens, of which the target has most: a begin token, letters in another order and one the target lacks, other
/// pairs.
pub fn of_draft(size: usize) -> Tokenizer {
    let words = words(&["c", "a", "©", "Ã", "b", "x"]);
    byte_pair(&std::iter::once("<s>".to_owned()).chain(words).take(size).collect::<Vec<_>>(), true)
}

/// Every word over `letters`, shorter ones first.
fn words<'a>(letters: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
    let n = letters.len();
    (1..=3u32).flat_map(move |len| {
        (0..n.pow(len)).map(move |i| (0..len).map(|digit| letters[i / n.pow(digit) % n]).collect::<String>())
    })
}

/// The vocabulary of `size` letters, and the same with the ids reversed.
pub fn reversed(size: usize) -> (Tokenizer, Tokenizer) {
    let letters: Vec<String> = ('!'..='~').map(String::from).take(size).collect();
    let backwards: Vec<String> = letters.iter().rev().cloned().collect();
    (byte_pair(&letters, false), byte_pair(&backwards, false))
}

/// A model whose ids are another's, reversed.
pub struct Reversed<M>(pub M);

impl<M: Model> Reversed<M> {
    fn reversed(&self, ids: &[u32]) -> Vec<u32> {
        ids.iter().map(|id| self.0.info().vocab_size as u32 - 1 - id).collect()
    }
}

impl<M: Model> Model for Reversed<M> {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        let mut rows = Vec::new();
        for slice in &mut batch.slices {
            let text = self.reversed(&[slice.cache.tokens(), slice.tokens].concat());
            let (mut cache, mut own) = (self.0.new_cache(), Output::new());
            let slices = vec![Slice { cache: &mut cache, tokens: &text, rows: Rows::All, tree: None }];
            self.0.forward(&mut Batch { slices, taps: &[] }, &mut own)?;
            let wanted =
                if matches!(slice.rows, Rows::None) { 0 } else { slice.rows.count(slice.tokens.len()) };
            for row in text.len() - wanted..text.len() {
                rows.push(own.logits(0, row).iter().rev().copied().collect::<Vec<f32>>());
            }
            slice.cache.extend(slice.tokens);
        }
        out.begin(batch, self.0.info().vocab_size);
        rows.iter().for_each(|row| out.push_row(row));
        Ok(())
    }

    fn new_cache(&self) -> KvCache {
        KvCache::ids_only()
    }

    fn info(&self) -> &ModelInfo {
        self.0.info()
    }
}
