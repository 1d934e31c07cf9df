//! A tokenizer from a GGUF file's metadata.

use std::collections::HashMap;
use std::path::Path;

use crate::weights::metadata::{Metadata, Value};
use crate::{Error, Result};

use super::bpe::{Bpe, read_merges};
use super::spm::Spm;
use super::vocab::{ByBytes, Kind, Spelling, Vocab, Whole, byte_token};
use super::{Engine, Inner, byte_level, ends, pre};

/// What helps where a file does not say how its tokenizer splits text.
const OVERRIDE: &str = "name it, or put the model's own tokenizer.json beside the model";

/// Reads the `tokenizer.*` keys.
pub(super) fn load(meta: &Metadata, path: &Path, pre_override: Option<&str>) -> Result<Inner> {
    let model = meta.str("tokenizer.ggml.model").ok_or_else(|| {
        let message =
            "no tokenizer: `tokenizer.ggml.model` is missing; put the model's own tokenizer.json beside it";
        Error::tokenizer(path, message)
    })?;
    match model {
        "gpt2" | "gemma4" => load_bpe(meta, path, model, pre_override),
        "llama" => load_spm(meta, path),
        other => {
            let message = format!(
                "tokenizer model `{}` is not supported (gpt2, llama and gemma4 are); put the model's own \
                 tokenizer.json beside it",
                short(other.as_bytes())
            );
            Err(Error::tokenizer(path, message))
        }
    }
}

fn load_bpe(meta: &Metadata, path: &Path, model: &str, pre_override: Option<&str>) -> Result<Inner> {
    let fail = |message: String| Error::format(path, message);
    let named = match (pre_override, model) {
        (Some(name), _) => name,
        (None, "gemma4") => "gemma4",
        (None, _) => meta.str("tokenizer.ggml.pre").unwrap_or_default(),
    };
    let pre = pre::find(named).ok_or_else(|| {
        let found = match named {
            "" => "does not name its pre-tokenizer (`tokenizer.ggml.pre`)".to_owned(),
            name => format!("pre-tokenizer `{}` is not known", short(name.as_bytes())),
        };
        let known = pre::names().join(", ");
        let message = format!("{found}, and a wrong one gives wrong ids; {OVERRIDE}; known: {known}");
        Error::tokenizer(path, message)
    })?;
    let spelling = if pre.sentencepiece { Spelling::Sentencepiece } else { Spelling::ByteLevel };

    let mut vocab = read_vocab(meta, path)?;
    let by_text = by_text(&vocab).map_err(fail)?;
    let special = Special::read(meta, &mut vocab, &by_text, None, pre.adds_bos);
    vocab.spell(spelling);
    // gemma 4 needs its BOS even where the file denies it; llama.cpp overrides it too.
    let adds_bos = special.adds_bos || named == "gemma4";

    let merges = meta.strings("tokenizer.ggml.merges").ok_or_else(|| {
        fail(
            "`tokenizer.ggml.merges` is missing or not a list of strings, and byte-pair encoding needs it"
                .into(),
        )
    })?;
    let merges = read_merges(merges, &vocab, &by_text).map_err(fail)?;

    let mut byte_ids = Box::new([None; 256]);
    let by_bytes = match spelling {
        Spelling::ByteLevel => {
            for byte in 0..=255_u8 {
                let letter = byte_level::char_of(byte).to_string();
                byte_ids[usize::from(byte)] = by_text.get(letter.as_bytes()).copied();
            }
            // Whole words are only looked up where merges are ignored.
            if pre.ignore_merges { by_decoded(by_text, &vocab) } else { ByBytes::new() }
        }
        Spelling::Sentencepiece => {
            byte_tokens(&vocab, &mut byte_ids);
            by_text.into_iter().filter(|&(_, id)| may_be_text(&vocab, id)).collect()
        }
    };
    let description = format!("byte-pair encoding, pre-tokenizer {named}, from the GGUF file");
    let bpe = Bpe {
        stages: pre.stages,
        ignore_merges: pre.ignore_merges,
        spelling,
        by_bytes,
        byte_ids,
        merges,
        unknown: special.unknown,
    };
    special.finish(vocab, Engine::Bpe(bpe), adds_bos, false, |_| false, description).map_err(fail)
}

fn load_spm(meta: &Metadata, path: &Path) -> Result<Inner> {
    let fail = |message: String| Error::format(path, message);
    let mut vocab = read_vocab(meta, path)?;
    let scores = read_scores(meta, vocab.len()).map_err(fail)?;
    let by_text = by_text(&vocab).map_err(fail)?;
    let special = Special::read(meta, &mut vocab, &by_text, Some([1, 2, 0]), true);
    vocab.spell(Spelling::Sentencepiece);
    let space_prefix = meta.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let mut byte_ids = Box::new([None; 256]);
    byte_tokens(&vocab, &mut byte_ids);
    let name = meta.str("general.name").unwrap_or_default().to_ascii_lowercase();
    // These models were trained with white space after a special token left out.
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    let keep = ["<unk>", "<s>", "<|endoftext|>"].map(|text| by_text.get(text.as_bytes()).copied());
    let by_text: ByBytes = by_text.into_iter().filter(|&(_, id)| may_be_text(&vocab, id)).collect();
    for byte in 0..=255_u8 {
        let id = &mut byte_ids[usize::from(byte)];
        *id = id.or_else(|| by_text.get(&[byte][..]).copied());
    }
    let longest = by_text.keys().map(|text| text.len()).max().unwrap_or(0);
    let description = "SentencePiece, from the GGUF file".to_owned();
    let spm = Spm { by_text, scores, byte_ids, unknown: special.unknown, space_prefix, longest };
    let strips = |id: u32| phi3 && !keep.contains(&Some(id));
    let adds_bos = special.adds_bos;
    special.finish(vocab, Engine::Spm(spm), adds_bos, space_prefix, strips, description).map_err(fail)
}

/// Texts and kinds of all tokens.
fn read_vocab(meta: &Metadata, path: &Path) -> Result<Vocab> {
    let fail = |message: String| Error::format(path, message);
    let tokens = meta
        .strings("tokenizer.ggml.tokens")
        .ok_or_else(|| fail("`tokenizer.ggml.tokens` is missing or not a list of strings".into()))?;
    if tokens.is_empty() {
        return Err(fail("`tokenizer.ggml.tokens` is empty; a vocabulary needs at least one token".into()));
    }
    if u32::try_from(tokens.len()).is_err() {
        return Err(fail(format!("`tokenizer.ggml.tokens` holds {} tokens; ids have 32 bits", tokens.len())));
    }
    let kinds = match meta.get("tokenizer.ggml.token_type") {
        None => None,
        Some(Value::Ints(kinds)) if kinds.len() >= tokens.len() => Some(kinds),
        Some(Value::Ints(kinds)) => {
            let (found, wanted) = (kinds.len(), tokens.len());
            return Err(fail(format!("`tokenizer.ggml.token_type` holds {found} types for {wanted} tokens")));
        }
        Some(_) => return Err(fail("`tokenizer.ggml.token_type` is not a list of integers".into())),
    };
    let mut vocab = Vocab::default();
    for (id, text) in tokens.iter().enumerate() {
        let kind = kinds.map_or(Kind::Normal, |kinds| Kind::from_gguf(kinds[id]));
        // As llama.cpp names them, so that their ids stay distinct.
        let hole = format!("[EMPTY_{id}]");
        let (text, kind) =
            if text.is_empty() { (hole.as_bytes(), Kind::Unused) } else { (text.as_slice(), kind) };
        vocab.texts.push(text);
        vocab.kinds.push(kind);
    }
    Ok(vocab)
}

fn read_scores(meta: &Metadata, wanted: usize) -> Result<Vec<f32>, String> {
    let scores: Vec<f32> = match meta.get("tokenizer.ggml.scores") {
        Some(Value::Floats(scores)) => scores.iter().map(|&score| score as f32).collect(),
        Some(Value::Ints(scores)) => scores.iter().map(|&score| score as f32).collect(),
        Some(_) => return Err("`tokenizer.ggml.scores` is not a list of numbers".into()),
        None => return Err("`tokenizer.ggml.scores` is missing, and SentencePiece needs it".into()),
    };
    if scores.len() < wanted {
        return Err(format!("`tokenizer.ggml.scores` holds {} scores for {wanted} tokens", scores.len()));
    }
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => Err(format!("`tokenizer.ggml.scores` holds NaN at token {id}")),
        None => Ok(scores),
    }
}

/// Ids by text; two tokens of one text would make encoding ambiguous.
fn by_text(vocab: &Vocab) -> Result<ByBytes, String> {
    let mut ids: ByBytes = HashMap::with_capacity(vocab.len());
    for id in 0..vocab.len() as u32 {
        let text = vocab.text(id).unwrap_or_default();
        if let Some(first) = ids.insert(text.into(), id) {
            return Err(format!(
                "tokens {first} and {id} of `tokenizer.ggml.tokens` are both `{}`",
                short(text)
            ));
        }
    }
    Ok(ids)
}

/// Ids by the bytes their letters stand for, of the tokens text may become.
fn by_decoded(by_text: ByBytes, vocab: &Vocab) -> ByBytes {
    let plain = by_text.into_iter().filter(|&(_, id)| may_be_text(vocab, id));
    plain
        .filter_map(|(text, id)| {
            let bytes = byte_level::decode(std::str::from_utf8(&text).ok()?)?;
            Some((bytes.into_boxed_slice(), id))
        })
        .collect()
}

fn byte_tokens(vocab: &Vocab, byte_ids: &mut [Option<u32>; 256]) {
    for id in 0..vocab.len() as u32 {
        if let Some(byte) = vocab.text(id).and_then(byte_token) {
            byte_ids[usize::from(byte)].get_or_insert(id);
        }
    }
}

/// Plain text must never become a control token, nor the letters `<0x0A>` a line break.
fn may_be_text(vocab: &Vocab, id: u32) -> bool {
    vocab.kind(id).is_some_and(|kind| !kind.is_special() && kind != Kind::Byte)
}

fn short(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(80)]).escape_debug().to_string()
}

/// The tokens with a role.
struct Special {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    adds_bos: bool,
    ends: Vec<u32>,
}

impl Special {
    /// `defaults`: begin, end, unknown, where the file names none.
    fn read(
        meta: &Metadata,
        vocab: &mut Vocab,
        by_text: &ByBytes,
        defaults: Option<[u32; 3]>,
        adds_bos: bool,
    ) -> Self {
        let len = vocab.len();
        // An id outside the vocabulary names nothing, as in llama.cpp.
        let id = |name: &str| {
            let id = meta.uint(&format!("tokenizer.ggml.{name}_token_id"))?;
            u32::try_from(id).ok().filter(|&id| (id as usize) < len)
        };
        let default = |index: usize| defaults.map(|ids| ids[index]).filter(|&id| (id as usize) < len);
        let bos = id("bos").or(default(0));
        let eos = id("eos").or(default(1));
        let unknown = id("unknown").or(default(2));
        let named: Vec<u32> = [eos, id("eot"), id("eom")].into_iter().flatten().collect();
        let ends = ends::find(vocab, &named, |text| by_text.get(text.as_bytes()).copied());
        let adds_bos = meta.bool("tokenizer.ggml.add_bos_token").unwrap_or(adds_bos);
        Self { bos, eos, unknown, adds_bos, ends }
    }

    fn finish(
        self,
        vocab: Vocab,
        engine: Engine,
        adds_bos: bool,
        drops_first_space: bool,
        strips: impl Fn(u32) -> bool,
        description: String,
    ) -> Result<Inner, String> {
        let whole = Whole::new(&vocab, strips)?;
        Ok(Inner {
            adds_bos: adds_bos && self.bos.is_some(),
            bos: self.bos,
            eos: self.eos,
            ends: self.ends,
            drops_first_space,
            engine,
            whole: Some(whole),
            description: format!("{description}, {} tokens", vocab.len()),
            vocab,
        })
    }
}
