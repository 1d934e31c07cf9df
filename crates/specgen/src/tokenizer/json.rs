//! A tokenizer from a Hugging Face `tokenizer.json` and the files beside it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use crate::{Error, Result};

use super::vocab::{Kind, Spelling, Vocab, byte_token};
use super::{Engine, Inner, ends};

/// The largest of these files known is 33 MB; what is far larger is no tokenizer.
const MAX_BYTES: u64 = 1 << 30;

/// The `tokenizers` crate's tokenizer; it finds special tokens itself.
pub(super) struct Json {
    special: tokenizers::Tokenizer,
    /// The same with special tokens read as text; made when first needed, for it is as large.
    plain: OnceLock<tokenizers::Tokenizer>,
}

impl Json {
    pub(super) fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>> {
        let tokenizer = if parse_special {
            &self.special
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.special.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        let encoding = tokenizer
            .encode_fast(text, false)
            .map_err(|e| Error::InvalidArgument(format!("the text cannot be encoded: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// What `tokenizers` does not tell of its file.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    model: ModelOutline,
}

#[derive(Default, Deserialize)]
struct ModelOutline {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<u32>,
}

/// Opens `path` and reads what lies beside it.
pub(super) fn load(path: &Path) -> Result<Inner> {
    let fail = |message: String| Error::format(path, message);
    let bytes = read(path)?;
    let outline: Outline =
        serde_json::from_slice(&bytes).map_err(|e| fail(format!("not a tokenizer.json: {e}")))?;
    let mut tokenizer =
        tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| fail(format!("not a tokenizer.json: {e}")))?;
    drop(bytes);
    // Files may ask for padding and truncation, which training needed and generation must not have.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| fail(e.to_string()))?;

    let spelling = outline.spelling().ok_or_else(|| {
        Error::Unsupported(format!(
            "{}: the decoder is neither byte-level nor SentencePiece's, which generative models use; found {}",
            path.display(),
            outline.decoder.get("type").unwrap_or(&Value::Null)
        ))
    })?;
    let ids = tokenizer.get_vocab(true);
    let mut vocab = read_vocab(&tokenizer, &ids, &outline).map_err(fail)?;

    let folder = path.parent().unwrap_or(Path::new(""));
    let beside = Beside::read(folder)?;
    let find = |text: &str| ids.get(text).copied();
    let in_range = |id: &u32| (*id as usize) < vocab.len();
    let bos = beside
        .token("bos_token")
        .and_then(|text| find(&text))
        .or(beside.ids("bos_token_id").first().copied());
    let stops = beside.ids("eos_token_id");
    let eos = beside.token("eos_token").and_then(|text| find(&text)).or(stops.first().copied());
    let (bos, eos) = (bos.filter(in_range), eos.filter(in_range));
    let named: Vec<u32> = eos.into_iter().chain(stops).filter(in_range).collect();
    let ends = ends::find(&mut vocab, &named, find);
    vocab.spell(spelling);

    let first =
        tokenizer.encode_fast("a", true).ok().and_then(|encoding| encoding.get_ids().first().copied());
    let adds_bos = bos.is_some() && beside.adds_bos().unwrap_or(first == bos);
    let kind = outline.model.kind.as_deref().unwrap_or("BPE");
    let description = format!("{kind}, from {}, {} tokens", path.display(), vocab.len());
    Ok(Inner {
        bos,
        eos,
        adds_bos,
        ends,
        drops_first_space: outline.drops_first_space(),
        engine: Engine::Json(Box::new(Json { special: tokenizer, plain: OnceLock::new() })),
        whole: None,
        description,
        vocab,
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let len = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.len();
    if len > MAX_BYTES {
        return Err(Error::format(
            path,
            format!("{len} bytes are too many for a tokenizer file ({MAX_BYTES} at most)"),
        ));
    }
    std::fs::read(path).map_err(|e| Error::io(path, e))
}

fn read_vocab(
    tokenizer: &tokenizers::Tokenizer,
    ids: &HashMap<String, u32>,
    outline: &Outline,
) -> Result<Vocab, String> {
    let len = ids.values().max().map_or(0, |&id| id as usize + 1);
    if len == 0 {
        return Err("the vocabulary is empty".into());
    }
    // A hostile id would ask for memory by the gigabyte.
    if len > 16 * ids.len() + 65_536 {
        return Err(format!("token id {} is far outside a vocabulary of {} tokens", len - 1, ids.len()));
    }
    let mut texts: Vec<Option<&str>> = vec![None; len];
    for (text, &id) in ids {
        texts[id as usize] = Some(text);
    }
    let added = tokenizer.get_added_tokens_decoder();
    let byte_fallback = mentions(&outline.decoder, "ByteFallback");
    let mut vocab = Vocab::default();
    for (id, text) in texts.into_iter().enumerate() {
        let id = id as u32;
        let kind = match (text, added.get(&id)) {
            (_, Some(token)) if token.special => Kind::Control,
            (_, Some(_)) => Kind::UserDefined,
            (None, None) => Kind::Unused,
            (Some(text), None) if outline.model.unk_token.as_deref() == Some(text) => Kind::Unknown,
            (Some(_), None) if outline.model.unk_id == Some(id) => Kind::Unknown,
            (Some(text), None) if byte_fallback && byte_token(text.as_bytes()).is_some() => Kind::Byte,
            (Some(_), None) => Kind::Normal,
        };
        let text = added.get(&id).map_or(text.unwrap_or_default(), |token| &token.content);
        vocab.texts.push(text.as_bytes());
        vocab.kinds.push(kind);
    }
    Ok(vocab)
}

impl Outline {
    fn spelling(&self) -> Option<Spelling> {
        let decoder = &self.decoder;
        if mentions(decoder, "ByteLevel") || (decoder.is_null() && mentions(&self.pre_tokenizer, "ByteLevel"))
        {
            return Some(Spelling::ByteLevel);
        }
        let pieces = ["ByteFallback", "Metaspace", "Replace"].iter().any(|name| mentions(decoder, name));
        pieces.then_some(Spelling::Sentencepiece)
    }

    /// Whether encoding puts a space before a text, which decoding then takes away.
    fn drops_first_space(&self) -> bool {
        let prepends = |value: &Value| {
            let scheme = find(value, "Metaspace").map(|metaspace| {
                let old = metaspace.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true);
                metaspace
                    .get("prepend_scheme")
                    .and_then(Value::as_str)
                    .map_or(old, |scheme| scheme != "never")
            });
            scheme.unwrap_or(false)
        };
        mentions(&self.decoder, "Strip")
            || mentions(&self.normalizer, "Prepend")
            || prepends(&self.pre_tokenizer)
            || prepends(&self.decoder)
    }
}

/// The first part of type `name` in `value`, which is one part or a `Sequence` of them.
fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    if value.get("type").and_then(Value::as_str) == Some(name) {
        return Some(value);
    }
    let parts =
        ["decoders", "pretokenizers", "normalizers"].iter().find_map(|key| value.get(key)?.as_array())?;
    parts.iter().find_map(|part| find(part, name))
}

fn mentions(value: &Value, name: &str) -> bool {
    find(value, name).is_some()
}

/// The files beside a `tokenizer.json`; each may be absent.
struct Beside {
    /// `tokenizer_config.json`, `special_tokens_map.json`.
    tokens: [Value; 2],
    /// `generation_config.json`, `config.json`.
    configs: [Value; 2],
}

impl Beside {
    fn read(folder: &Path) -> Result<Self> {
        let read = |name: &str| -> Result<Value> {
            let path = folder.join(name);
            if !path.is_file() {
                return Ok(Value::Null);
            }
            serde_json::from_slice(&read(&path)?).map_err(|e| Error::format(&path, format!("not JSON: {e}")))
        };
        Ok(Self {
            tokens: [read("tokenizer_config.json")?, read("special_tokens_map.json")?],
            configs: [read("generation_config.json")?, read("config.json")?],
        })
    }

    /// The text under `key`: a string, or an object with `content`.
    fn token(&self, key: &str) -> Option<String> {
        self.tokens.iter().find_map(|file| {
            let token = file.get(key)?;
            token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
        })
    }

    /// The ids under `key`: one, or a list.
    fn ids(&self, key: &str) -> Vec<u32> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let all = self.configs.iter().find_map(|file| match file.get(key)? {
            Value::Array(ids) => Some(ids.iter().filter_map(id).collect()),
            one => id(one).map(|id| vec![id]),
        });
        all.unwrap_or_default()
    }

    fn adds_bos(&self) -> Option<bool> {
        self.tokens[0].get("add_bos_token")?.as_bool()
    }
}
