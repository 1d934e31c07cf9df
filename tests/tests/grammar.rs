//! Constrained texts: they are what the grammar says, the same with and without speculation, and the model's own
//! proportions among what is allowed.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use proptest::prelude::*;
use specgen::{
    Engine, FinishReason, SamplingParams, Stats, Verification,
    draft::{Drafter, ForcedDrafter, ModelDrafter, NgramDrafter, NoDraft},
    grammar::{Grammar, Vocabulary},
    model::{Model, ToyModel},
    sampling::{History, Sampler},
};
use specgen_tests::{
    drafters, real,
    tiny::{self, Tiny},
};

const KS: [usize; 4] = [0, 1, 3, 7];
const END: u32 = 3;

/// Letters, digits, punctuation, pairs and longer pieces that overlap, and a hole: as many as the tiny models have.
fn pieces() -> Vec<Vec<u8>> {
    let mut pieces: Vec<&str> =
        vec!["a", "b", "c", "", "d", "\"", ":", ",", "{", "}", "[", "]", " ", "-", "."];
    pieces.extend(["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "ab", "bc", "abc", "{\"", "\"}", "\":"]);
    pieces
        .extend(["\",\"", "\": ", "cab", "ddd", "na", "name", "me", "n", "m", "e", "true", "false", "null"]);
    pieces.extend(["t", "r", "u", "f", "l", "s", "tr", "ue", "10", "00", "dd", "ba", "aa", "bb", "\":\""]);
    assert!(pieces.len() <= 61, "{}", pieces.len());
    pieces.resize(61, "");
    pieces.into_iter().map(|piece| piece.as_bytes().to_vec()).collect()
}

fn vocabulary() -> Vocabulary {
    Vocabulary::new(&pieces(), &[END]).unwrap()
}

struct Outcome {
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
    stats: Stats,
}

impl Outcome {
    fn text(&self) -> String {
        let pieces = pieces();
        let bytes: Vec<u8> = self.tokens.iter().flat_map(|&id| pieces[id as usize].clone()).collect();
        String::from_utf8(bytes).unwrap()
    }
}

fn run(engine: &Engine, params: &SamplingParams, max_tokens: usize) -> Outcome {
    let mut session = engine.session(params.clone()).unwrap();
    let mut generation = session.generate(&[5u32, 1, 4][..], max_tokens).unwrap();
    generation.by_ref().for_each(|piece| drop(piece.unwrap()));
    Outcome {
        tokens: generation.tokens().to_vec(),
        finish: generation.finish_reason(),
        stats: generation.stats().clone(),
    }
}

type Target = (&'static str, Arc<dyn Model>, Arc<dyn Model>);

fn targets() -> Vec<Target> {
    let llama = Tiny::named("llama");
    let device = tiny::cpu(1);
    vec![
        ("toy", Arc::new(ToyModel::new(61, 1, 6.0)), Arc::new(ToyModel::new(61, 2, 6.0))),
        ("llama", llama.load(&device), llama.clone().with_seed(99).load(&device)),
    ]
}

/// Greedy, and a seed whose text is to be one.
fn settings() -> [SamplingParams; 2] {
    let sampled = SamplingParams { temperature: 1.0, seed: Some(7), ..SamplingParams::greedy() };
    [SamplingParams::greedy(), sampled]
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"enum": ["abc", "cab", "dd"]},
    "me": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    "true": {"type": "boolean"}}, "required": ["name", "me", "true"], "additionalProperties": false,
    "x-guidance": {"whitespace_flexible": false}}"#;

#[test]
fn constrained_text_is_of_the_grammar_and_equals_plain_decoding() {
    let vocabulary = vocabulary();
    let grammars = [
        ("regex", Grammar::regex("(ab|ba){2,6}c?[0-9]{1,3}")),
        ("one text only", Grammar::regex("abcabc10name")),
        ("JSON", Grammar::json_schema(SCHEMA)),
        ("Lark", Grammar::lark("start: \"a\" start \"b\" | \"[\" start \"]\" | \"c\"")),
    ];
    for (name, target, other) in targets() {
        let engine = |drafter, k| Engine::from_parts(target.clone(), drafter, k, &[END]);
        for (grammar_name, grammar) in &grammars {
            for params in settings() {
                let grammar = Some(grammar.compile(&vocabulary).unwrap());
                let params = SamplingParams { grammar, ..params };
                let plain = run(&engine(Arc::new(NoDraft), 0), &params, 80);
                let text = plain.text();
                let what = format!("{name}, {grammar_name}, {text:?}");
                if plain.finish == Some(FinishReason::Eos) {
                    assert!(is_of(grammar_name, &text), "{what}");
                } else {
                    assert_eq!(*grammar_name, "Lark", "{what}: nothing else is endless");
                }
                let whole = [&[5, 1, 4], &plain.tokens[..]].concat();
                for (drafter_name, drafter) in drafters::all(&target, &other, &whole, END) {
                    for k in KS {
                        let got = run(&engine(drafter.clone(), k), &params, 80);
                        assert_eq!(got.tokens, plain.tokens, "{what}, {drafter_name}, k = {k}");
                        assert_eq!(got.finish, plain.finish, "{what}, {drafter_name}, k = {k}");
                    }
                }
            }
        }
    }
}

/// By other means than the grammar's.
fn is_of(grammar: &str, text: &str) -> bool {
    let matches = |pattern: &str| regex::Regex::new(&format!("^(?:{pattern})$")).unwrap().is_match(text);
    match grammar {
        "regex" => matches("(ab|ba){2,6}c?[0-9]{1,3}"),
        "one text only" => text == "abcabc10name",
        "JSON" => {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            let numbers = value["me"].as_array().unwrap();
            ["abc", "cab", "dd"].contains(&value["name"].as_str().unwrap())
                && numbers.len() <= 3
                && numbers.iter().all(|number| number.as_u64().is_some_and(|number| number <= 99))
                && value["true"].is_boolean()
                && value.as_object().unwrap().len() == 3
        }
        _ => {
            let mut inner = text;
            while let Some(shorter) = inner.strip_prefix('a').and_then(|rest| rest.strip_suffix('b')) {
                inner = shorter;
            }
            matches(r"[a\[]*c[b\]]*") && (inner == "c" || inner.starts_with('['))
        }
    }
}

/// Regular expressions over a few letters whose texts are short.
fn small_regex() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "[abcd]{1,3}",
        Just("[ab]".to_owned()),
        Just("[0-9]".to_owned()),
        Just("name".to_owned())
    ];
    leaf.prop_recursive(3, 10, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}{b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}|{b})")),
            inner.clone().prop_map(|a| format!("({a})?")),
            (inner, 0..2, 2..4).prop_map(|(a, least, most)| format!("({a}){{{least},{most}}}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn texts_of_random_expressions_match_them(pattern in small_regex(), seed in 0u64..1000) {
        let target: Arc<dyn Model> = Arc::new(ToyModel::new(61, 1, 6.0));
        let other: Arc<dyn Model> = Arc::new(ToyModel::new(61, 2, 6.0));
        let grammar = Grammar::regex(&pattern).compile(&vocabulary()).unwrap();
        let expression = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        for verify in Verification::ALL {
            let params = SamplingParams {
                temperature: 1.0, seed: Some(seed), verify: Some(verify), grammar: Some(grammar.clone()),
                ..SamplingParams::greedy()
            };
            let plain = run(&Engine::from_parts(target.clone(), Arc::new(NoDraft), 0, &[END]), &params, 400);
            prop_assert_eq!(plain.finish, Some(FinishReason::Eos));
            prop_assert!(expression.is_match(&plain.text()), "{} {:?}", pattern, plain.text());
            let whole = [&[5, 1, 4], &plain.tokens[..]].concat();
            for (name, drafter) in drafters::all(&target, &other, &whole, END) {
                let got = run(&Engine::from_parts(target.clone(), drafter, 3, &[END]), &params, 400);
                prop_assert_eq!(got.finish, Some(FinishReason::Eos));
                prop_assert!(expression.is_match(&got.text()), "{} {} {:?}", pattern, name, got.text());
                if verify == Verification::Coupled {
                    prop_assert_eq!(&got.tokens, &plain.tokens, "{}", name);
                }
            }
        }
    }

    /// What a sampler remembers of a text changes nothing: jumping between outputs, longer, shorter and other ones, it says
    /// what a new one says.
    #[test]
    fn a_mask_is_a_function_of_the_output(jumps in prop::collection::vec((0usize..6, 0u32..61), 1..60)) {
        let grammar = Grammar::regex("((ab|ba){1,20}c?[0-9]{1,3},?)*").compile(&vocabulary()).unwrap();
        let params = SamplingParams { temperature: 1.0, grammar: Some(grammar), ..SamplingParams::greedy() };
        let sampler = || Sampler::new(&params, 61).unwrap();
        let (old, logits) = (sampler(), [0.0; 61]);
        let mut history = History::new(&[1]);
        for (gone, id) in jumps {
            history.truncate_output(history.num_output().saturating_sub(gone));
            // Some token that is allowed, and sometimes one that is not.
            let p = sampler().distribution(&logits, &history).unwrap();
            let id = p.support().map(|(allowed, _)| allowed).find(|&allowed| allowed >= id && allowed != END);
            if let Some(id) = id {
                history.push(id);
            }
            prop_assert_eq!(old.distribution(&logits, &history).unwrap(), sampler().distribution(&logits, &history).unwrap());
            let mut illegal = history.clone();
            illegal.push(8);
            prop_assert!(old.distribution(&logits, &illegal).is_err());
        }
    }
}

/// An end is said where the grammar may end and nowhere else, and where it must end nothing else is.
#[test]
fn a_text_may_end_where_its_grammar_does() {
    let grammar = Grammar::regex("ab?").compile(&vocabulary()).unwrap();
    let params = SamplingParams { temperature: 1.0, grammar: Some(grammar), ..SamplingParams::greedy() };
    let sampler = Sampler::new(&params, 61).unwrap();
    let allowed = |output: &[u32]| {
        let mut history = History::new(&[1]);
        output.iter().for_each(|&id| history.push(id));
        let p = sampler.distribution(&[0.0; 61], &history).unwrap();
        p.support().map(|(id, _)| pieces()[id as usize].clone()).collect::<Vec<_>>()
    };
    assert_eq!(allowed(&[]), [b"a".to_vec(), b"ab".to_vec()]);
    assert_eq!(allowed(&[0]), [b"b".to_vec(), b"".to_vec()]);
    assert_eq!(allowed(&[0, 1]), [b"".to_vec()]);
    // Whoever goes on behind an end ends again.
    assert_eq!(allowed(&[0, 1, END]), [b"".to_vec()]);
}

#[test]
fn what_is_wrong_is_told() {
    let vocabulary = vocabulary();
    let message = |grammar: Grammar| grammar.named("f").compile(&vocabulary).unwrap_err().to_string();
    let cases = [
        (
            Grammar::json_schema("{\"type\":\n \"object\",}"),
            "json_schema f: is not JSON: trailing comma at line 2 column 11",
        ),
        (
            Grammar::json_schema("[1]"),
            "json_schema f: is no JSON schema; an object is wanted, such as {\"type\": \"object\"}",
        ),
        (Grammar::json_schema("{\"type\": \"word\"}"), "json_schema f: "),
        // Nothing of the grammar that an expression is wrapped in.
        (Grammar::regex("a\nb("), "regex f: unclosed group"),
        (Grammar::regex("a{3,1}/"), "regex f: invalid repetition count range, the start must be <= the end"),
        (Grammar::regex(r"\ba"), "regex f: lookarounds not supported yet; WordUnicode in regex /\\ba/"),
        (Grammar::json_schema("false"), "json_schema f: "),
        (
            Grammar::json_schema("{\"items\": {\"maxLenght\": 3}}"),
            "json_schema f: has a keyword that is not supported, at /items/maxLenght; correct it or leave it out, or \
             have such ignored by \"x-guidance\": {\"lenient\": true}",
        ),
        (Grammar::regex(" "), "regex f: is empty; it would allow nothing"),
        (
            Grammar::lark("root ::= \"a\""),
            "grammar f: is GBNF or BNF (`::=`); Lark is wanted: `start: \"yes\" | \"no\"`",
        ),
        (Grammar::lark("start: nothing"), "grammar f: "),
        (Grammar::lark("start: \"é\""), "grammar f: "),
    ];
    for (grammar, wanted) in cases {
        let message = message(grammar);
        assert!(message.starts_with(wanted) && !message.contains('\n'), "{message}");
    }
    let message = Vocabulary::new(&pieces(), &[61]).unwrap_err().to_string();
    assert_eq!(message, "the vocabulary of a grammar has no token 61, which is to end a text");

    let params = SamplingParams { grammar: Some(Grammar::regex("a")), ..SamplingParams::greedy() };
    let engine = Engine::from_parts(Arc::new(ToyModel::new(61, 1, 6.0)), Arc::new(NoDraft), 0, &[END]);
    let message = engine.session(params.clone()).unwrap_err().to_string();
    assert!(message.starts_with("the grammar is not compiled"), "{message}");
    // Bans and grammar together leave nothing: the text's error, not a hang.
    let grammar = params.grammar.unwrap().compile(&vocabulary).unwrap();
    let params = SamplingParams { min_tokens: 3, grammar: Some(grammar), ..SamplingParams::greedy() };
    let mut session = engine.session(params).unwrap();
    let mut generation = session.generate(&[1u32][..], 9).unwrap();
    let message = generation.find_map(Result::err).unwrap().to_string();
    assert!(message.starts_with("every token is banned at output token 1;"), "{message}");
}

/// Where the grammar leaves no choice, drafts are free and right.
#[test]
fn forced_tokens_are_drafted() {
    let grammar = Grammar::regex("abcabcabcabc[0-9]").compile(&vocabulary()).unwrap();
    let params = SamplingParams { grammar: Some(grammar), ..SamplingParams::greedy() };
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(61, 1, 6.0));
    let rounds = |drafter: Arc<dyn Drafter>| {
        let got = run(&Engine::from_parts(target.clone(), drafter, 8, &[END]), &params, 80);
        assert_eq!(got.finish, Some(FinishReason::Eos));
        (got.tokens.len(), got.stats.rounds)
    };
    let (tokens, plain) = rounds(Arc::new(NoDraft));
    assert_eq!(tokens, plain);
    let (same, forced) = rounds(Arc::new(ForcedDrafter::new(Arc::new(NoDraft))));
    assert!(same == tokens && forced < plain, "{forced} rounds, {plain} without drafts");
}

/// A schema of long fixed keys for a real model.
const PERSON: &str = r#"{"type": "object", "properties": {
    "name_of_the_person": {"type": "string", "maxLength": 20}, "year_of_birth": {"type": "integer"},
    "favourite_colour": {"enum": ["red", "green", "blue"]}, "is_still_alive": {"type": "boolean"}},
    "required": ["name_of_the_person", "year_of_birth", "favourite_colour", "is_still_alive"],
    "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}"#;

#[test]
fn smollm2_says_json_the_same_with_and_without_speculation() {
    let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
    let plain = builder.draft("none").num_draft_tokens(0).build().unwrap();
    let target = plain.target();
    let itself = || Arc::new(ModelDrafter::new(target.clone(), target.info().vocab_size));
    let drafters: [(&str, Arc<dyn Drafter>); 4] = [
        ("ngram", Arc::new(NgramDrafter::default())),
        ("itself", itself()),
        ("forced, then ngram", Arc::new(ForcedDrafter::new(Arc::new(NgramDrafter::default())))),
        ("forced, then itself", Arc::new(ForcedDrafter::new(itself()))),
    ];
    let prompt = "Describe Albert Einstein as JSON.\n";
    for params in [
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.8, seed: Some(3), ..SamplingParams::default() },
    ] {
        let params = SamplingParams { grammar: Some(Grammar::json_schema(PERSON)), ..params };
        let say = |engine: &Engine| {
            let mut session = engine.session(params.clone()).unwrap();
            let mut generation = session.generate(prompt, 120).unwrap();
            let text: String = generation.by_ref().map(|piece| piece.unwrap().text).collect();
            (text, generation.tokens().to_vec(), generation.finish_reason(), generation.stats().clone())
        };
        let (text, tokens, finish, _) = say(&plain);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 4, "{text}");
        assert_eq!(finish, Some(FinishReason::Eos));
        for (name, drafter) in &drafters {
            for k in [1, 4, 12] {
                let got = say(&plain.with_drafter(drafter.clone(), k));
                assert_eq!((&got.0, &got.1, got.2), (&text, &tokens, finish), "{name}, k = {k}");
                assert!(got.3.rounds <= tokens.len(), "{name}, k = {k}: {} rounds", got.3.rounds);
            }
        }
    }
}
