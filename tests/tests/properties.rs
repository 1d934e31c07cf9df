//! Whatever is asked for at once, a text with speculation is the text without: random stop strings, limits, penalties and
//! grammars, every drafter, greedy and by seed.
//!
//! A case that fails is printed as a line of JSON; put into [`PAST`], it is run first ever after.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{fmt, sync::Arc};

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use specgen::{
    Engine, FinishReason, SamplingParams,
    draft::NoDraft,
    grammar::Grammar,
    model::{Model, ToyModel},
    sampling::{Logprobs, TokenLogprobs},
    tokenizer::Tokenizer,
};
use specgen_tests::{drafters, spelled};

/// Cases that failed once.
const PAST: [&str; 0] = [];

const KS: [usize; 3] = [1, 3, 7];
const PROMPT: [u32; 3] = [5, 1, 4];

#[derive(Clone, Serialize, Deserialize)]
#[serde(default)]
struct Case {
    model: u64,
    /// At temperature 0 where there is none.
    seed: Option<u64>,
    stops: Vec<Stop>,
    max_tokens: usize,
    min_tokens: usize,
    ignore_eos: bool,
    context_len: usize,
    /// Repetition, presence, frequency.
    penalties: [f32; 3],
    grammar: Option<Constraint>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Stop {
    Text(String),
    /// So many characters of the text that would be said without stops, from this share of it on.
    Said {
        at: f64,
        len: usize,
    },
    /// The first characters of the stop before.
    Prefix(usize),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Constraint {
    Regex(String),
    Schema(String),
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).unwrap())
    }
}

impl Default for Case {
    fn default() -> Self {
        Self {
            model: 1,
            seed: None,
            stops: Vec::new(),
            max_tokens: 20,
            min_tokens: 0,
            ignore_eos: false,
            context_len: 100,
            penalties: [1.0, 0.0, 0.0],
            grammar: None,
        }
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let alphabet =
        prop::sample::select(vec!["a", "b", "c", "ab", " ", "\"", "1", "é", "€", "😀", "\u{fffd}"]);
    let stop = prop_oneof![
        prop::collection::vec(alphabet, 1..5).prop_map(|parts| Stop::Text(parts.concat())),
        (0.0..1.0, 1_usize..6).prop_map(|(at, len)| Stop::Said { at, len }),
        (1_usize..3).prop_map(Stop::Prefix),
    ];
    let penalties = prop_oneof![
        Just([1.0, 0.0, 0.0]),
        (0.7_f32..1.6, -0.5_f32..1.0, -0.5_f32..1.0).prop_map(|(a, b, c)| [a, b, c]),
    ];
    let limits = (
        prop_oneof![1 => 0_usize..4, 4 => 4_usize..40],
        prop_oneof![2 => Just(0_usize), 1 => 0_usize..12],
        any::<bool>(),
        prop_oneof![1 => 4_usize..30, 2 => Just(100)],
    );
    let grammar = prop_oneof![
        3 => Just(None),
        1 => small_regex().prop_map(|regex| Some(Constraint::Regex(regex))),
        1 => small_schema().prop_map(|schema| Some(Constraint::Schema(schema.to_string()))),
    ];
    (0_u64..40, prop::option::of(any::<u64>()), prop::collection::vec(stop, 0..4), limits, penalties, grammar)
        .prop_map(
            |(model, seed, stops, (max_tokens, min_tokens, ignore_eos, context_len), penalties, grammar)| {
                Case {
                    model,
                    seed,
                    stops,
                    max_tokens,
                    min_tokens,
                    ignore_eos,
                    context_len,
                    penalties,
                    grammar,
                }
            },
        )
}

fn small_regex() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec!["[abc]{1,3}", "[ab]", "é", "(ab|ba)", "[0-2]", "€?", " 😀"]);
    leaf.prop_map(str::to_owned).prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}{b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}|{b})")),
            (inner, 0..2, 2..5).prop_map(|(a, least, most)| format!("({a}){{{least},{most}}}")),
        ]
    })
}

fn small_schema() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::json;
    let leaf = prop_oneof![
        Just(json!({"enum": ["abc", "a€", 12, true, null]})),
        Just(json!({"type": "boolean"})),
        (0_i32..3, 3_i32..30)
            .prop_map(|(least, most)| json!({"type": "integer", "minimum": least, "maximum": most})),
        (1_u32..6).prop_map(|len| json!({"type": "string", "maxLength": len, "pattern": "^[abé]*$"})),
    ];
    let nested = leaf.prop_recursive(2, 6, 2, |inner| {
        prop_oneof![
            (inner.clone(), 1_u32..3)
                .prop_map(|(items, most)| json!({"type": "array", "items": items, "maxItems": most})),
            (inner.clone(), inner).prop_map(|(a, b)| {
                let properties = json!({"a": a, "bé": b});
                json!({"type": "object", "properties": properties, "required": ["a"], "additionalProperties": false})
            }),
        ]
    });
    nested.prop_map(|mut schema| {
        schema["x-guidance"] = json!({"whitespace_flexible": false});
        schema
    })
}

/// What a session says, and says next.
#[derive(Debug, PartialEq)]
struct Outcome {
    pieces: Vec<(u32, String, Option<TokenLogprobs>)>,
    finish: Option<FinishReason>,
    usage: (usize, usize),
    error: Option<String>,
    /// Of a text that goes on from there: how much of it the caches still held, and what it says.
    next: Option<(usize, Vec<u32>)>,
}

impl Outcome {
    fn ids(&self) -> Vec<u32> {
        self.pieces.iter().map(|&(id, ..)| id).collect()
    }

    fn text(&self) -> String {
        self.pieces.iter().map(|(_, text, _)| text.as_str()).collect()
    }
}

/// How a case is asked for.
struct Asked<'a> {
    case: &'a Case,
    params: SamplingParams,
    stops: Vec<String>,
}

impl Asked<'_> {
    fn of(&self, engine: &Engine) -> Outcome {
        let case = self.case;
        let session = engine.session(self.params.clone()).unwrap();
        let mut session = session.with_stops(&self.stops).with_ignore_eos(case.ignore_eos);
        let mut outcome =
            Outcome { pieces: Vec::new(), finish: None, usage: (0, 0), error: None, next: None };
        match session.generate(&PROMPT[..], case.max_tokens) {
            Err(error) => outcome.error = Some(error.to_string()),
            Ok(mut generation) => {
                for piece in generation.by_ref() {
                    match piece {
                        Ok(piece) => outcome.pieces.push((piece.id, piece.text, piece.logprobs)),
                        Err(error) => outcome.error = Some(error.to_string()),
                    }
                }
                assert_eq!(generation.tokens(), outcome.ids());
                outcome.finish = generation.finish_reason();
                outcome.usage = (generation.stats().prompt_tokens, generation.stats().generated_tokens);
            }
        }
        let longer = [&PROMPT[..], &outcome.ids(), &[0]].concat();
        if let Ok(mut generation) = session.generate(&longer[..], case.max_tokens.min(5)) {
            let ids: Vec<u32> =
                generation.by_ref().map_while(|piece| piece.ok().map(|piece| piece.id)).collect();
            outcome.next = Some((generation.stats().reused_tokens, ids));
        }
        outcome
    }
}

fn check(case: &Case) {
    let base = spelled::engine();
    let toy =
        |seed| Arc::new(ToyModel::new(spelled::VOCAB_SIZE, seed, 6.0).with_context_len(case.context_len));
    // Now and then a real network; its context is its own.
    let target: Arc<dyn Model> = if case.model == 0 { base.target().clone() } else { toy(case.model) };
    let other: Arc<dyn Model> = toy(case.model + 100);
    let plain_engine = base.with_target(target.clone()).with_drafter(Arc::new(NoDraft), 0);
    let tokenizer = plain_engine.tokenizer().unwrap();

    let [repetition_penalty, presence_penalty, frequency_penalty] = case.penalties;
    let grammar = case.grammar.as_ref().map(|constraint| match constraint {
        Constraint::Regex(regex) => Grammar::regex(regex),
        Constraint::Schema(schema) => Grammar::json_schema(schema),
    });
    let params = SamplingParams {
        temperature: if case.seed.is_some() { 1.0 } else { 0.0 },
        seed: case.seed,
        min_tokens: case.min_tokens,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        grammar,
        logprobs: Some(Logprobs { num_top: 2, ..Logprobs::default() }),
        ..SamplingParams::greedy()
    };
    // Compiled once.
    let params = plain_engine.session(params).unwrap().params().clone();
    let mut asked = Asked { case, params, stops: Vec::new() };
    let unstopped = asked.of(&plain_engine).text();
    asked.stops = stops(&case.stops, &unstopped);

    let plain = asked.of(&plain_engine);
    assert_is_what_it_should_be(&plain, &asked, tokenizer);
    let text = [&PROMPT[..], &plain.ids()].concat();
    let end_id = tokenizer.end_of_generation()[0];
    for (name, drafter) in drafters::all(&target, &other, &text, end_id) {
        for k in KS {
            let found = asked.of(&plain_engine.with_drafter(drafter.clone(), k));
            assert_eq!(found, plain, "{name}, k = {k}, stops {:?}, of {case:?}", asked.stops);
        }
    }
}

/// The stop strings of a case.
fn stops(stops: &[Stop], said: &str) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for stop in stops {
        let text: String = match stop {
            Stop::Text(text) => text.clone(),
            Stop::Said { at, len } => {
                let from = (said.chars().count() as f64 * at) as usize;
                said.chars().skip(from).take(*len).collect()
            }
            Stop::Prefix(len) => texts.last().map_or(String::new(), |last| last.chars().take(*len).collect()),
        };
        texts.extend(Some(text).filter(|text| !text.is_empty()));
    }
    texts
}

/// The text of plain decoding, from its ids by other means: all of them decoded, cut before the first stop string.
fn assert_is_what_it_should_be(plain: &Outcome, asked: &Asked<'_>, tokenizer: &Tokenizer) {
    let (case, ids) = (asked.case, plain.ids());
    let what = format!("stops {:?} of {case:?}", asked.stops);
    let whole = tokenizer.decode(&ids, true);
    let first_stop = |text: &str| asked.stops.iter().filter_map(|stop| text.find(stop.as_str())).min();
    if plain.finish == Some(FinishReason::Stop) {
        // Characters that are not complete are no text yet.
        let mut stream = tokenizer.stream(true);
        let complete: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        let before_last = complete[..complete.len() - 1].concat();
        assert_eq!(first_stop(&before_last), None, "{what}");
        let complete = complete.concat();
        assert_eq!(plain.text(), complete[..first_stop(&complete).unwrap()], "{what}");
    } else if plain.error.is_none() {
        assert_eq!(plain.text(), whole[..first_stop(&whole).unwrap_or(whole.len())], "{what}");
        let is_cut = ids.len() < case.max_tokens;
        let ends = ids.last().is_some_and(|id| tokenizer.end_of_generation().contains(id));
        match plain.finish {
            Some(FinishReason::Eos) => assert!(ends && !case.ignore_eos, "{what}"),
            Some(FinishReason::Length) => {
                assert!(!is_cut || case.model == 0 || ids.len() + 3 >= case.context_len)
            }
            other => panic!("{other:?}: {what}"),
        }
    }
    // An end that is said where it may not be is none.
    let early = ids.iter().take(case.min_tokens).any(|id| tokenizer.end_of_generation().contains(id));
    assert!(!early || case.ignore_eos, "{what}");
    assert_eq!(plain.usage, if plain.usage.0 == 0 { (0, 0) } else { (PROMPT.len(), ids.len()) }, "{what}");
    if let (Some((reused, _)), None) = (&plain.next, &plain.error) {
        let held = if ids.is_empty() { 0 } else { PROMPT.len() + ids.len() - 1 };
        assert_eq!(*reused, held, "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_text_is_plain_decodings_own_whatever_is_asked_for(case in any_case()) {
        check(&case);
    }
}

#[test]
fn cases_that_failed_once_hold() {
    for case in PAST {
        check(&serde_json::from_str(case).unwrap());
    }
    // A stop string of nothing would end every text at once.
    let mut session = spelled::engine().session(SamplingParams::greedy()).unwrap().with_stops(["a", ""]);
    let error = session.generate(&PROMPT[..], 5).err().unwrap().to_string();
    assert!(error.starts_with("a stop string is empty"), "{error}");
}
