//! Which tokens end a generation, by what files say and by what tokens are called.

use std::collections::BTreeSet;

use super::vocab::{Kind, Vocab};

/// Texts of tokens that end a turn or a text, as the models llama.cpp knows use them.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// What a token does, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Begins every text.
    Begin,
    /// Ends a turn of a conversation.
    TurnEnd,
    /// Ends a text.
    TextEnd,
}

/// Whether `text` is a name of tokens that end a turn, or a text.
pub(super) fn is_called(role: Role, text: &[u8]) -> bool {
    let names: &[&str] = match role {
        Role::Begin => &[],
        Role::TurnEnd => {
            &["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>"]
        }
        Role::TextEnd => {
            &["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]"]
        }
    };
    names.iter().any(|name| name.as_bytes() == text)
}

/// Texts of fill-in-the-middle tokens after which another file begins: nothing of the answer follows.
const FILE_ENDS: &[&str] = &[
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Channel marks of gpt-oss: the reader of the text needs them, so they are printed.
const PRINTED: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The ids that end a generation: `named` (end of text, of turn, of message, as the file names them), and every
/// token called like one. Marks those control tokens in `vocab`, whatever the file calls them.
pub(super) fn find(vocab: &mut Vocab, named: &[u32], find: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let has = |text: &str| find(text).is_some();
    let mut ends: BTreeSet<u32> = named.iter().copied().collect();
    // In these vocabularies `</s>` is an HTML tag, and `<|end|>` ends a message inside an answer.
    let tag = has("<|tool_response>") || has("<|plamo:eos|>");
    let inner_end =
        has("<|end|>") && ((has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>")));
    for &text in ENDS.iter().chain(FILE_ENDS) {
        let Some(id) = find(text) else { continue };
        let kind = match text {
            "</s>" if tag => Kind::Normal,
            "<|end|>" if inner_end => Kind::UserDefined,
            _ => Kind::Control,
        };
        vocab.kinds[id as usize] = kind;
        if kind == Kind::Control {
            ends.insert(id);
        } else {
            ends.remove(&id);
        }
    }
    for text in PRINTED {
        if let Some(id) = find(text) {
            vocab.kinds[id as usize] = Kind::UserDefined;
        }
    }
    ends.into_iter().collect()
}
