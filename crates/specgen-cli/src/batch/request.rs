//! A line of the input: what is to be said, and how it differs from what the command line says of all.

use std::collections::BTreeMap;

use serde::Deserialize;
use specgen::{
    SamplingParams, Verification,
    chat::Message,
    grammar::Grammar,
    rng::sample_seed,
    sampling::{Dry, Logprobs, LogprobsMode, Mirostat, Phrase, Xtc},
};

use crate::prompt::{Start, Turn};

/// A request as JSON. Fields have the names of the library's parameters; what is not given is as for all.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Request {
    /// Read by [`custom_id`], of lines with mistakes too.
    #[serde(rename = "custom_id")]
    _custom_id: Option<String>,
    /// Continued as it is.
    prompt: Option<String>,
    /// Through the chat template.
    messages: Option<Vec<Turn>>,
    pub(super) max_tokens: Option<usize>,
    stop: Option<Stop>,
    pub(super) ignore_eos: Option<bool>,
    temperature: Option<f32>,
    top_n_sigma: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    typical_p: Option<f32>,
    min_p: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    penalty_last_n: Option<usize>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<usize>,
    dry_penalty_last_n: Option<usize>,
    dry_sequence_breakers: Option<Vec<String>>,
    /// By token id; `null` bans it.
    logit_bias: Option<BTreeMap<u32, Option<f32>>>,
    no_repeat_ngram: Option<usize>,
    bad_words: Option<Vec<String>>,
    min_tokens: Option<usize>,
    json_schema: Option<serde_json::Value>,
    regex: Option<String>,
    grammar: Option<String>,
    seed: Option<u64>,
    verify: Option<String>,
    logprobs: Option<usize>,
    logprobs_mode: Option<String>,
    prompt_logprobs: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// The id that the user gave a line, if it can be read at all.
pub(super) fn custom_id(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(line.get("custom_id")?.as_str()?.to_owned())
}

impl Request {
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        // An array of values would do for a parser.
        if !line.trim_start().starts_with('{') {
            return Err("a JSON object is wanted".into());
        }
        // The line is told beside it.
        serde_json::from_str(line)
            .map_err(|error: serde_json::Error| error.to_string().replace("line 1 ", ""))
    }

    pub(super) fn start(&mut self) -> Result<Start, String> {
        match (self.prompt.take(), self.messages.take()) {
            (Some(text), None) => Ok(Start::Text(text)),
            (None, Some(messages)) => Ok(Start::Messages(messages.into_iter().map(Message::from).collect())),
            (None, None) => Err("neither prompt nor messages are given; one of them is wanted".into()),
            (Some(_), Some(_)) => Err("both prompt and messages are given; one of them is wanted".into()),
        }
    }

    pub(super) fn stops(&self, of_all: &[String]) -> Vec<String> {
        match &self.stop {
            None => of_all.to_vec(),
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Many(stops)) => stops.clone(),
        }
    }

    /// The parameters of all with what this request says; `index` counts requests, so that each has a seed of its own
    /// where one is given for all.
    pub(super) fn params(&self, of_all: &SamplingParams, index: usize) -> Result<SamplingParams, String> {
        let mut params = of_all.clone();
        params.seed = self.seed.or(of_all.seed.map(|seed| sample_seed(seed, index)));
        macro_rules! set {
            ($($field:ident),*) => { $(if let Some(value) = self.$field { params.$field = value; })* };
        }
        if let Some(tau) = self.mirostat_tau {
            // It does what the filters of all do, as on the command line.
            let mirostat = Some(Mirostat { tau, ..Mirostat::default() });
            params = SamplingParams { mirostat, ..params.unfiltered() };
        }
        set!(temperature, top_n_sigma, top_k, top_p, typical_p, min_p);
        set!(repetition_penalty, presence_penalty, frequency_penalty, penalty_last_n);
        set!(no_repeat_ngram, min_tokens);
        params.prompt_logprobs = self.prompt_logprobs.or(params.prompt_logprobs);
        if let Some(eta) = self.mirostat_eta {
            params.mirostat.as_mut().ok_or("mirostat_eta is given, but mirostat_tau is not")?.eta = eta;
        }
        if let Some(probability) = self.xtc_probability {
            params.xtc = Some(Xtc { probability, ..params.xtc.unwrap_or_default() });
        }
        if let Some(threshold) = self.xtc_threshold {
            params.xtc.as_mut().ok_or("xtc_threshold is given, but xtc_probability is not")?.threshold =
                threshold;
        }
        self.dry(&mut params)?;
        if let Some(bias) = &self.logit_bias {
            params.logit_bias =
                bias.iter().map(|(&id, &bias)| (id, bias.unwrap_or(f32::NEG_INFINITY))).collect();
        }
        if let Some(words) = &self.bad_words {
            params.bad_words = phrases(words);
        }
        if let Some(rule) = &self.verify {
            params.verify = Some(rule.parse::<Verification>().map_err(|error| error.to_string())?);
        }
        if let Some(num_top) = self.logprobs {
            params.logprobs = Some(Logprobs { num_top, ..params.logprobs.unwrap_or_default() });
        }
        if let Some(mode) = &self.logprobs_mode {
            let mode = mode.parse::<LogprobsMode>().map_err(|error| error.to_string())?;
            params.logprobs.as_mut().ok_or("logprobs_mode is given, but logprobs is not")?.mode = mode;
        }
        if let Some(grammar) = self.constraint()? {
            params.grammar = Some(grammar);
        }
        Ok(params)
    }

    fn dry(&self, params: &mut SamplingParams) -> Result<(), String> {
        if let Some(multiplier) = self.dry_multiplier {
            params.dry = Some(Dry { multiplier, ..params.dry.take().unwrap_or_default() });
        }
        let wanted = [
            self.dry_base.is_some(),
            self.dry_allowed_length.is_some(),
            self.dry_penalty_last_n.is_some(),
            self.dry_sequence_breakers.is_some(),
        ];
        let Some(dry) = &mut params.dry else {
            let is_alone = wanted.contains(&true);
            return if is_alone {
                Err("DRY is described, but dry_multiplier is not given".into())
            } else {
                Ok(())
            };
        };
        dry.base = self.dry_base.unwrap_or(dry.base);
        dry.allowed_length = self.dry_allowed_length.unwrap_or(dry.allowed_length);
        dry.penalty_last_n = self.dry_penalty_last_n.unwrap_or(dry.penalty_last_n);
        if let Some(breakers) = &self.dry_sequence_breakers {
            dry.sequence_breakers = phrases(breakers);
        }
        Ok(())
    }

    fn constraint(&self) -> Result<Option<Grammar>, String> {
        match (&self.json_schema, &self.regex, &self.grammar) {
            (None, None, None) => Ok(None),
            (Some(schema), None, None) => Ok(Some(Grammar::json_schema(schema.to_string()))),
            (None, Some(regex), None) => Ok(Some(Grammar::regex(regex))),
            (None, None, Some(grammar)) => Ok(Some(Grammar::lark(grammar))),
            _ => Err("more than one of json_schema, regex and grammar is given; a text has one".into()),
        }
    }
}

fn phrases(texts: &[String]) -> Vec<Phrase> {
    texts.iter().map(|text| Phrase::from(text.as_str())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn params(json: &str, of_all: &SamplingParams) -> Result<SamplingParams, String> {
        Request::parse(json)?.params(of_all, 2)
    }

    #[test]
    fn a_line_says_only_what_is_different() {
        let of_all = SamplingParams { seed: Some(3), top_k: 7, ..SamplingParams::default() };
        let found = params("{}", &of_all).unwrap();
        assert_eq!(found, SamplingParams { seed: Some(sample_seed(3, 2)), ..of_all.clone() });
        let json = r#"{"temperature": 0.5, "top_p": 0.25, "xtc_probability": 0.5, "dry_multiplier": 2, "dry_base": 3,
            "logit_bias": {"7": null, "8": -1.5}, "bad_words": ["no"], "min_tokens": 4, "seed": 9, "verify": "block",
            "regex": "a|b", "logprobs": 2, "logprobs_mode": "processed", "prompt_logprobs": 0, "penalty_last_n": 5}"#;
        let wanted = SamplingParams {
            temperature: 0.5,
            top_p: 0.25,
            xtc: Some(Xtc { probability: 0.5, ..Xtc::default() }),
            dry: Some(Dry { multiplier: 2.0, base: 3.0, ..Dry::default() }),
            logit_bias: vec![(7, f32::NEG_INFINITY), (8, -1.5)],
            bad_words: vec!["no".into()],
            min_tokens: 4,
            seed: Some(9),
            verify: Some(Verification::Block),
            grammar: Some(Grammar::regex("a|b")),
            logprobs: Some(Logprobs { num_top: 2, mode: LogprobsMode::Processed }),
            prompt_logprobs: Some(0),
            penalty_last_n: 5,
            ..of_all.clone()
        };
        assert_eq!(params(json, &of_all).unwrap(), wanted);
        let mirostat = params(r#"{"mirostat_tau": 3}"#, &of_all).unwrap();
        assert_eq!((mirostat.top_k, mirostat.mirostat.unwrap().tau), (0, 3.0));
    }

    #[test]
    fn what_a_line_cannot_mean_is_told() {
        let of_all = SamplingParams::default();
        for (json, wanted) in [
            (r#"{"tempreature": 1}"#, "unknown field `tempreature`"),
            (r#"{"temperature": "hot"}"#, "invalid type"),
            (r#"{"regex": "a", "grammar": "b"}"#, "a text has one"),
            (r#"{"xtc_threshold": 0.1}"#, "xtc_probability is not"),
            (r#"{"dry_base": 2}"#, "dry_multiplier is not"),
            (r#"{"verify": "luck"}"#, "luck"),
            (r#"["a", "b"]"#, "a JSON object is wanted"),
            ("{}x", "trailing characters at column 3"),
        ] {
            let error = params(json, &of_all).unwrap_err();
            assert!(error.contains(wanted), "{json}: {error}");
        }
        let start = |json| Request::parse(json).unwrap().start().err();
        assert!(start("{}").unwrap().contains("neither"));
        assert!(start(r#"{"prompt": "", "messages": []}"#).unwrap().contains("both"));
        assert_eq!(start(r#"{"messages": [{"role": "user", "content": "hi"}]}"#), None);
    }
}
