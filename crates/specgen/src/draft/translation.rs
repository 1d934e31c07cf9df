//! `Translation`: a text that grows in the target's tokens, told in those of a draft of another vocabulary.

use std::sync::Arc;

use super::{twins::Twins, vocab::Coverage};
use crate::tokenizer::{Role, Tokenizer};

/// A page of prose, code and data, to count the tokens of.
const SAMPLE: &str = include_str!("sample.txt");
/// A stretch of text at least this long, in bytes, ends at the next word.
const LONG: usize = 64;
/// One this long ends at the next character: text without spaces must not be encoded again and again.
const TOO_LONG: usize = 512;

/// Two vocabularies, and which of their tokens are the same.
pub struct Translator {
    target: Tokenizer,
    draft: Tokenizer,
    twins: Twins,
    /// The draft's token of each byte, for what is no text.
    byte_ids: Box<[Option<u32>; 256]>,
    text_share: f64,
}

impl Translator {
    /// Pairs the tokens of two vocabularies.
    pub fn new(target: &Tokenizer, draft: &Tokenizer) -> Self {
        let mut byte_ids = Box::new([None; 256]);
        for id in 0..draft.vocab_size() as u32 {
            if let (Some(&[byte]), false) = (draft.piece(id), draft.is_special(id)) {
                byte_ids[usize::from(byte)].get_or_insert(id);
            }
        }
        let twins = Twins::new(target, draft);
        let sample = target.encode(SAMPLE, false).unwrap_or_default();
        let both = sample.iter().filter(|&&id| twins.of_target(id).is_some()).count();
        Self {
            text_share: both as f64 / sample.len().max(1) as f64,
            target: target.clone(),
            draft: draft.clone(),
            twins,
            byte_ids,
        }
    }

    /// How much of the target's language the draft can say.
    pub fn coverage(&self) -> Coverage {
        Coverage {
            num_twins: self.twins.len(),
            draft_vocab_size: self.draft.vocab_size(),
            text_share: self.text_share,
        }
    }

    /// The draft's `logits` `[draft vocabulary]` by the target's ids, in `row` `[target vocabulary]`: `-inf` where the draft
    /// has no such token. What the sampler makes of it is the draft's distribution over the tokens that both have.
    pub fn scatter(&self, logits: &[f32], row: &mut [f32]) {
        self.twins.scatter(logits, row);
    }

    pub(super) fn twins(&self) -> &Twins {
        &self.twins
    }

    /// The draft's ids of a stretch of text. Bytes that it has no token for are left out: it guesses the worse for it.
    fn encode(&self, stretch: &Stretch, ids: &mut Vec<u32>) {
        let bytes = &stretch.bytes[..];
        let mut begins = stretch.begins;
        // The space that the target's vocabulary puts before a text is not part of it.
        let written = begins && self.target.puts_space();
        let bytes = if written { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes };
        let byte_by_byte = |bytes: &[u8], ids: &mut Vec<u32>| {
            ids.extend(bytes.iter().filter_map(|&byte| self.byte_ids[usize::from(byte)]));
        };
        for chunk in bytes.utf8_chunks() {
            let text = chunk.valid();
            if !text.is_empty() {
                let encoded = match begins {
                    true => self.draft.encode(text, false),
                    false => self.draft.encode_within(text, false),
                };
                match encoded {
                    Ok(encoded) => ids.extend(encoded),
                    Err(_) => byte_by_byte(text.as_bytes(), ids),
                }
                begins = false;
            }
            // A character that is not complete yet, or never will be.
            byte_by_byte(chunk.invalid(), ids);
        }
    }
}

impl std::fmt::Debug for Translator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Translator").field("coverage", &self.coverage()).finish_non_exhaustive()
    }
}

/// One text in both vocabularies. It follows the text as it grows, is cut, or becomes another.
#[derive(Clone)]
pub(super) struct Translation {
    translator: Arc<Translator>,
    /// The target's tokens.
    seen: Vec<u32>,
    /// The draft's, as its own tokenizer would have them.
    ids: Vec<u32>,
    /// Ends of stretches: what lies before is final, however the text goes on.
    marks: Vec<Mark>,
}

/// A place that both vocabularies have a boundary at.
#[derive(Clone, Copy)]
struct Mark {
    num_seen: usize,
    num_ids: usize,
    begins: bool,
}

/// Text to be encoded at once.
#[derive(Default)]
struct Stretch {
    bytes: Vec<u8>,
    /// Whether it is at the beginning of the text, or behind a special token.
    begins: bool,
}

impl Stretch {
    /// Whether no token of the draft is to reach from here into `next`: its words begin with their space.
    fn ends_before(&self, next: &[u8]) -> bool {
        let after_word = self.bytes.last().is_some_and(|byte| !byte.is_ascii_whitespace());
        let is_word = matches!(next, [b' ', letter, ..] if letter.is_ascii_alphabetic());
        let is_character = next.first().is_some_and(|byte| !(0x80..0xC0).contains(byte));
        let len = self.bytes.len();
        (len >= LONG && after_word && is_word) || (len >= TOO_LONG && is_character)
    }
}

impl Translation {
    pub(super) fn new(translator: Arc<Translator>) -> Self {
        Self { translator, seen: Vec::new(), ids: Vec::new(), marks: Vec::new() }
    }

    /// The draft's ids of the text last followed.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Makes this the translation of `tokens`, from the last place on that they leave as it was.
    pub(super) fn follow(&mut self, tokens: &[u32]) {
        let common = self.seen.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if common == tokens.len() && common == self.seen.len() && !self.ids.is_empty() {
            return;
        }
        // A mark is where it is because of the token behind it.
        while self.marks.last().is_some_and(|mark| mark.num_seen >= common) {
            self.marks.pop();
        }
        let translator = self.translator.clone();
        let from = self.marks.last().copied().unwrap_or_else(|| self.begin(tokens));
        self.seen.truncate(from.num_seen);
        self.seen.extend_from_slice(&tokens[from.num_seen..]);
        self.ids.truncate(from.num_ids);

        let mut stretch = Stretch { begins: from.begins, ..Stretch::default() };
        for (i, &token) in tokens.iter().enumerate().skip(from.num_seen) {
            let special = translator.twins.of_target(token).filter(|_| translator.target.is_special(token));
            let bytes = translator.target.piece(token).unwrap_or_default();
            if special.is_some() || stretch.ends_before(bytes) {
                translator.encode(&stretch, &mut self.ids);
                stretch = Stretch::default();
                self.marks.push(Mark { num_seen: i, num_ids: self.ids.len(), begins: false });
            }
            match special {
                Some(id) => {
                    self.ids.push(id);
                    stretch.begins = true;
                    self.marks.push(Mark { num_seen: i + 1, num_ids: self.ids.len(), begins: true });
                }
                // A special token that the draft does not have is spelled out.
                None => stretch.bytes.extend_from_slice(bytes),
            }
        }
        translator.encode(&stretch, &mut self.ids);
    }

    /// The beginning of the text: the draft's own begin token where it wants one, in the place of the target's.
    fn begin(&mut self, tokens: &[u32]) -> Mark {
        let Translator { target, draft, .. } = &*self.translator;
        let begin = target.of_role(Role::Begin);
        let has_begin = begin.is_some() && tokens.first().copied() == begin;
        self.ids.clear();
        self.ids.extend(draft.of_role(Role::Begin));
        Mark { num_seen: usize::from(has_begin), num_ids: self.ids.len(), begins: true }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::{byte_pair, open, sentence_piece};

    const IM_END: u32 = 261;

    /// Byte pairs to SentencePiece, or the other way round.
    fn translator(to_sentence_piece: bool) -> Arc<Translator> {
        let (a, b) = (open(&byte_pair()).unwrap(), open(&sentence_piece()).unwrap());
        Arc::new(if to_sentence_piece { Translator::new(&a, &b) } else { Translator::new(&b, &a) })
    }

    fn translated(translator: &Arc<Translator>, tokens: &[u32]) -> Vec<u32> {
        let mut translation = Translation::new(translator.clone());
        translation.follow(tokens);
        translation.ids().to_vec()
    }

    #[test]
    fn tokens_pair_by_bytes_and_by_role() {
        let translator = translator(true);
        let Translator { target, draft, twins, .. } = &*translator;
        let twin = |text: &str| {
            let id = (0..target.vocab_size() as u32).find(|&id| target.token_text(id) == Some(text)).unwrap();
            twins.of_target(id).map(|id| draft.token_text(id).unwrap())
        };
        // The letter's own token rather than that of its byte; a byte where nothing else spells it.
        assert_eq!([twin("a"), twin("Ġ"), twin("Ã")], [Some("a"), Some("▁"), Some("<0xC3>")]);
        assert_eq!(twin("<|im_end|>"), Some("</s>"), "both end a turn");
        assert_eq!([twin("hello"), twin("<|im_start|>"), twin("<think>"), twin("[PAD]0")], [None; 4]);
        assert_eq!(translator.coverage().num_twins, 257, "every byte, and the end");

        // No token is in two pairs: what is put under the target's ids is there once.
        let logits: Vec<f32> = (0..draft.vocab_size()).map(|id| id as f32).collect();
        let mut row = vec![0.0; target.vocab_size()];
        translator.scatter(&logits, &mut row);
        let mut found: Vec<f32> = row.iter().copied().filter(|logit| *logit > f32::NEG_INFINITY).collect();
        found.sort_by(f32::total_cmp);
        found.dedup();
        assert_eq!(found.len(), 257);
    }

    #[test]
    fn a_text_reads_as_the_drafts_own_tokenizer_has_it() {
        for to_sentence_piece in [true, false] {
            let translator = translator(to_sentence_piece);
            let Translator { target, draft, .. } = &*translator;
            let begin = |tokenizer: &Tokenizer| tokenizer.of_role(Role::Begin);
            for text in
                ["ab ba abab", "hello hello", "é ab\n\n ab", &"hello ab ".repeat(40), &"abé".repeat(500)]
            {
                let tokens: Vec<u32> =
                    begin(target).into_iter().chain(target.encode(text, false).unwrap()).collect();
                let wanted: Vec<u32> =
                    begin(draft).into_iter().chain(draft.encode(text, false).unwrap()).collect();
                let got = translated(&translator, &tokens);
                // Text without spaces is cut somewhere in the end.
                let bytes = |ids: &[u32]| draft.decode(ids, true);
                assert_eq!(bytes(&got), bytes(&wanted));
                assert!(got == wanted || text.len() > TOO_LONG && !text.contains(' '), "{text}");
            }
        }
    }

    #[test]
    fn special_tokens_and_half_characters_have_their_place() {
        let translator = translator(true);
        let spelled = |tokens: &[u32]| -> Vec<String> {
            let ids = translated(&translator, tokens);
            ids.iter().map(|&id| translator.draft.token_text(id).unwrap().to_owned()).collect()
        };
        let [a, b] = [b'a', b'b']
            .map(|byte| translator.target.encode(&char::from(byte).to_string(), false).unwrap()[0]);
        let [lead, rest] = translator.target.encode("é", false).unwrap()[..] else { panic!("two bytes") };
        assert_eq!(spelled(&[a, b, IM_END, a]), ["<s>", "▁ab", "</s>", "▁a"]);
        assert_eq!(spelled(&[a, lead]), ["<s>", "▁a", "<0xC3>"]);
        assert_eq!(spelled(&[a, lead, rest, b]), ["<s>", "▁a", "<0xC3>", "<0xA9>", "b"]);
        assert_eq!(spelled(&[a, lead, b]), ["<s>", "▁a", "<0xC3>", "b"]);
        assert_eq!(spelled(&[]), ["<s>"]);
    }

    #[test]
    fn a_stretch_that_no_longer_ends_before_a_word_is_opened_again() {
        let translator = translator(true);
        let word = translator.target.encode(" hello", false).unwrap();
        let long = [&word.repeat(11)[..], &[u32::from(b'a')]].concat();
        let mut translation = Translation::new(translator.clone());
        for next in [word[0], u32::from(b'b')] {
            let tokens = [&long[..], &[next]].concat();
            translation.follow(&tokens);
            assert_eq!(translation.ids(), translated(&translator, &tokens));
        }
        assert_eq!(translator.draft.token_text(translation.ids()[translation.ids().len() - 1]), Some("ab"));
    }

    proptest! {
        /// However a text grows, is cut and grows another way: its translation is that of the text as it is.
        #[test]
        fn what_is_kept_is_what_would_be_made_anew(
            // Byte pairs: letters that merge behind a word and ` hello`, before which a stretch may end.
            steps in prop::collection::vec((0..40_usize, prop::collection::vec(prop_oneof![
                Just(u32::from(b'a')), Just(u32::from(b'b')), Just(260), Just(260), 0..265_u32
            ], 0..60)), 1..8),
            to_sentence_piece in any::<bool>(),
        ) {
            let translator = translator(to_sentence_piece);
            let mut translation = Translation::new(translator.clone());
            let mut tokens: Vec<u32> = Vec::new();
            for (num_cut, more) in steps {
                tokens.truncate(tokens.len().saturating_sub(num_cut));
                tokens.extend(more);
                translation.follow(&tokens);
                prop_assert_eq!(translation.ids(), translated(&translator, &tokens));
            }
        }
    }
}
