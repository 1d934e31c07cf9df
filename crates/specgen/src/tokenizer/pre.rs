//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`: what each name means.
//!
//! The patterns are those of the models' own tokenizer.json; the names and which of them mean the same are
//! llama.cpp's (`llama-vocab.cpp`). `(?!\S)` is in [`Trailing`].

use super::split::{Stage, Trailing};

/// What a name in `tokenizer.ggml.pre` stands for.
pub(super) struct Pre {
    /// How text is cut before merges.
    pub(super) stages: Vec<Stage>,
    /// A word that is a token is taken whole, without merges.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added where the file does not say.
    pub(super) adds_bos: bool,
    /// Spaces are `▁`, and merges run over characters, with `<0xXX>` for what is left; not the byte alphabet.
    pub(super) sentencepiece: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##;
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+"##;
const HAN_AND_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
/// Han, Samaritan to before Hiragana-free CJK, and Hangul, as DeepSeek's first tokenizers have it.
const DEEPSEEK_CJK: &str = "[一-龥\u{0800}-一가-\u{D7FF}]+";
/// Letters with case, spelled out: several of them turn into others when text is normalised.
const DEEPSEEK_LETTERS: &str = "\
    \\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\
    \u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\
    \u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\
    \u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\
    \u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\
    \u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\
    \u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\
    \u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\
    \u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\
    \u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\
    \u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\
    \u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\
    \u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\
    \u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+";
const AFMOE_SCRIPTS: &str = "[一-鿿㐀-䶿豈-\u{FAFF}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2FDF}เ-\u{0E7F}\u{0E80}-\u{0EFF}ក-\u{17FF}က-႟ꩠ-ꩿꧠ-\u{A9FF}가-\u{D7AF}ᄀ-ᇿ]+";
const YOUTU_SCRIPTS: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+";
const BLOOM: &str = " ?[^(\\s|.,!?…。，、।۔،)]+";
const NEWLINES: &str = "[^\\n]+|[\\n]+";

/// Every name this knows, one line for each pattern; the names of a line mean the same but for the flags below.
const NAMES: &[(&[&str], Family)] = &[
    (
        &["gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0"],
        Family::Gpt2,
    ),
    (&["mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4"], Family::Gpt2),
    (&["mpt", "olmo", "jais", "trillion", "granite-docling"], Family::Gpt2),
    (
        &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        Family::Llama3,
    ),
    (&["jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"], Family::Llama3),
    (&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"], Family::Qwen2),
    (&["hunyuan", "solar-open", "grok-2"], Family::Qwen2),
    (&["qwen35"], Family::Qwen35),
    (&["ufakzeka"], Family::Ufakzeka),
    (
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        Family::Digits,
    ),
    (&["tekken"], Family::Tekken),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], Family::Gpt4o),
    (&["tiny_aya", "cohere2moe"], Family::TinyAya),
    (&["kimi-k2"], Family::Kimi),
    (&["deepseek-llm"], Family::DeepseekLlm),
    (&["deepseek-coder"], Family::DeepseekCoder),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], Family::Deepseek3),
    (&["spark2_5"], Family::Spark),
    (&["youtu"], Family::Youtu),
    (&["falcon"], Family::Falcon),
    (&["bloom", "poro-chat", "gpt3-finnish"], Family::Bloom),
    (&["viking"], Family::Viking),
    (&["superbpe"], Family::Superbpe),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], Family::Bailing),
    (&["seed-coder"], Family::SeedCoder),
    (&["afmoe"], Family::Afmoe),
    (&["laguna"], Family::Laguna),
    (&["exaone-moe"], Family::ExaoneMoe),
    (&["minicpm5"], Family::Minicpm5),
    (&["gemma4", "granite-embed-multi-311m", "sarvam-moe"], Family::Sentencepiece),
];

#[derive(Clone, Copy)]
enum Family {
    Gpt2,
    Llama3,
    Qwen2,
    Qwen35,
    Ufakzeka,
    Digits,
    Tekken,
    Gpt4o,
    TinyAya,
    Kimi,
    DeepseekLlm,
    DeepseekCoder,
    Deepseek3,
    Spark,
    Youtu,
    Falcon,
    Bloom,
    Viking,
    Superbpe,
    Bailing,
    SeedCoder,
    Afmoe,
    Laguna,
    ExaoneMoe,
    Minicpm5,
    Sentencepiece,
}

const IGNORE_MERGES: &[&str] = &[
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "glm4",
    "glm5",
    "tekken",
    "youtu",
    "minicpm5",
];
const ADDS_BOS: &[&str] = &[
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
    "gemma4",
    "granite-embed-multi-311m",
];

/// Every known name, sorted.
pub(super) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = NAMES.iter().flat_map(|(names, _)| names.iter().copied()).collect();
    names.sort_unstable();
    names
}

/// What `name` stands for, or `None` where it is not in the table.
pub(super) fn find(name: &str) -> Option<Pre> {
    let (_, family) = NAMES.iter().find(|(names, _)| names.contains(&name))?;
    Some(Pre {
        stages: family.stages(),
        ignore_merges: IGNORE_MERGES.contains(&name),
        adds_bos: ADDS_BOS.contains(&name),
        sentencepiece: matches!(family, Family::Sentencepiece),
    })
}

impl Family {
    fn stages(self) -> Vec<Stage> {
        let whole = |pattern: &str| Stage::matches(pattern, Trailing::Whole);
        let gpt2 = |pattern: &str| Stage::matches(pattern, Trailing::LeaveOne);
        let newline = |pattern: &str| Stage::matches(pattern, Trailing::LeaveOneUnlessNewline);
        match self {
            Self::Gpt2 => vec![gpt2(GPT2)],
            Self::Llama3 => vec![newline(LLAMA3)],
            Self::Qwen2 => vec![newline(QWEN2)],
            Self::Qwen35 => vec![newline(QWEN35)],
            Self::Ufakzeka => vec![newline(UFAKZEKA)],
            Self::Digits => vec![whole(r"\p{N}"), gpt2(GPT2)],
            Self::Tekken => vec![newline(TEKKEN)],
            Self::Gpt4o => vec![newline(GPT4O)],
            Self::TinyAya => vec![Stage::DigitsFromRight, newline(GPT4O)],
            Self::Kimi => vec![newline(KIMI)],
            Self::DeepseekLlm => vec![
                whole("[\r\n]"),
                whole(DEEPSEEK_LETTERS),
                whole("\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+"),
                whole(r"\s+$"),
                whole(DEEPSEEK_CJK),
                whole(r"\p{N}+"),
            ],
            Self::DeepseekCoder => vec![
                whole("[\r\n]"),
                whole(r"\s?\p{L}+"),
                whole(r"\s?\p{P}+"),
                whole(DEEPSEEK_CJK),
                whole(r"\p{N}"),
            ],
            Self::Deepseek3 => vec![whole(r"\p{N}{1,3}"), whole(HAN_AND_KANA), newline(DEEPSEEK3)],
            Self::Spark => {
                vec![whole(r"\p{N}{1,3}"), whole(HAN_AND_KANA), gpt2(SPARK), whole(r"\p{N}")]
            }
            Self::Youtu => vec![whole(YOUTU_SCRIPTS), newline(&GPT4O.replace(r"\p{N}{1,3}", r"\p{N}"))],
            Self::Falcon => vec![whole(r"[\p{P}$+<=>^~|`]+"), gpt2(GPT2), whole("[0-9][0-9][0-9]")],
            Self::Bloom => vec![whole(BLOOM)],
            Self::Viking => vec![whole(BLOOM), whole(r"\p{N}")],
            Self::Superbpe => vec![whole(r"\p{N}+"), Stage::DigitsFromRight],
            Self::Bailing => {
                vec![newline(&QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"))]
            }
            Self::SeedCoder => {
                vec![newline(&QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"))]
            }
            Self::Afmoe => vec![Stage::DigitsFromRight, whole(AFMOE_SCRIPTS), newline(DEEPSEEK3)],
            Self::Laguna => vec![whole(NEWLINES), newline(QWEN2)],
            Self::ExaoneMoe => vec![newline(
                &QWEN2
                    .replace(r"]?\p{L}+", r"]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+")
                    .replace(r"[\r\n]*", r"[\r\n/]?")
                    .replace(r"\s*[\r\n]+", r"\s*[\r\n]"),
            )],
            Self::Minicpm5 => vec![whole(r"\p{N}{1,3}"), newline(&QWEN2.replace(r"\p{N}|", r"\p{N}+|"))],
            Self::Sentencepiece => vec![whole(NEWLINES)],
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::split::words;
    use super::*;

    fn cut<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        words(&find(name).unwrap().stages, text).into_iter().map(|word| &text[word]).collect()
    }

    #[test]
    fn every_name_compiles_and_covers_any_text() {
        let text = "I'm  WE'LL héLLo 1234567 \u{3000}中文かな한국\r\n\n\t x__y!?  😀\u{301} ༀ \u{85}z ";
        let names = names();
        for name in &names {
            let pre = find(name).unwrap();
            let mut end = 0;
            for word in words(&pre.stages, text) {
                assert_eq!(word.start, end, "{name}");
                assert!(word.end > word.start, "{name}");
                end = word.end;
            }
            assert_eq!(end, text.len(), "{name}");
        }
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for name in IGNORE_MERGES.iter().chain(ADDS_BOS) {
            assert!(names.contains(name), "{name}");
        }
        assert!(find("default").is_none() && find("").is_none());
    }

    #[test]
    fn derived_patterns_differ_from_their_base() {
        // `replace` that finds nothing would silently give the base pattern.
        assert_eq!(cut("bailingmoe", "a!\n\n\nb"), ["a", "!\n\n\n", "b"]);
        assert_eq!(cut("seed-coder", "a!\n\nb"), ["a", "!", "\n\n", "b"]);
        assert_eq!(cut("qwen2", "a!\n\nb"), ["a", "!\n\n", "b"]);
        assert_eq!(cut("exaone-moe", "a b!\n\nc"), ["a b", "!\n", "\n", "c"]);
        assert_eq!(cut("minicpm5", "12345"), ["123", "45"]);
        assert_eq!(cut("youtu", "12한국x"), ["1", "2", "한국", "x"]);
    }

    #[test]
    fn families_cut_as_their_models_do() {
        assert_eq!(cut("gpt-2", "I'm 12345,  ok"), ["I", "'m", " 12345", ",", " ", " ok"]);
        assert_eq!(cut("llama-bpe", "I'M 12345,\nok"), ["I", "'M", " ", "123", "45", ",\n", "ok"]);
        assert_eq!(cut("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(cut("tekken", "HelloWorld"), ["Hello", "World"]);
        assert_eq!(cut("gpt-4o", "ThatsIt's"), ["Thats", "It's"]);
        assert_eq!(cut("kimi-k2", "中文abc"), ["中文", "abc"]);
        assert_eq!(cut("superbpe", "1234567 a"), ["1", "234", "567", " a"]);
    }

    #[test]
    fn long_runs_take_linear_time() {
        let runs = ["a".repeat(200_000), " ".repeat(200_000), "\n".repeat(200_000), "1".repeat(200_000)];
        let start = std::time::Instant::now();
        for name in ["gpt-2", "llama-bpe", "qwen2", "tekken", "deepseek-llm", "deepseek-v3", "gemma4"] {
            let stages = find(name).unwrap().stages;
            for run in &runs {
                assert!(!words(&stages, run).is_empty());
                assert!(!words(&stages, &format!("{run}x")).is_empty());
            }
        }
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
