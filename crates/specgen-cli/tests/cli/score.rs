//! `score` with the real default model.

use serde_json::Value;

use crate::{real_model, run, specgen};

const TEXT: &str =
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy cat.\n";

fn score(model: &str, words: &[&str], text: &str) -> Value {
    run(specgen(&["score", "-m", model, "--json", "-"]).args(words).write_stdin(text)).json()
}

fn logprobs(tokens: &Value) -> Vec<(u64, Option<f64>, Option<u64>)> {
    let of =
        |token: &Value| (token["id"].as_u64().unwrap(), token["logprob"].as_f64(), token["rank"].as_u64());
    tokens.as_array().unwrap().iter().map(of).collect()
}

#[test]
fn a_text_is_scored_as_it_would_be_as_a_prompt() {
    let Some(model) = real_model() else { return };
    let found = score(model, &["--per-token"], TEXT);
    let tokens = logprobs(&found["logprobs"]);
    let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
    let wanted = "model tokens scored_tokens scored_bytes total_logprob mean_nll perplexity bits_per_byte \
        context_len windows logprobs";
    assert_eq!(keys, wanted.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        (&found["tokens"], &found["scored_tokens"]),
        (&tokens.len().into(), &(tokens.len() - 1).into())
    );
    assert_eq!((tokens[0].1, tokens[0].2), (None, None), "nothing is before the first token");
    assert_eq!(found["scored_bytes"], TEXT.len() - "The".len(), "{found}");
    // What is said a second time is no surprise.
    let brown = tokens[12];
    assert!(brown.2 == Some(1) && brown.1.unwrap() > -1.0, "{found}");
    let total: f64 = tokens.iter().filter_map(|token| token.1).sum();
    let near = |name: &str, wanted: f64| {
        let value = found[name].as_f64().unwrap();
        assert!((value / wanted - 1.0).abs() < 1e-6, "{name}: {value}, not {wanted}");
    };
    near("total_logprob", total);
    near("mean_nll", -total / (tokens.len() - 1) as f64);
    near("perplexity", (-total / (tokens.len() - 1) as f64).exp());
    near("bits_per_byte", -total / 2f64.ln() / (TEXT.len() - 3) as f64);

    let words = ["generate", "-m", model, "--json", "--raw", "-n", "0", "--prompt-logprobs", "1", "-"];
    let prompt = run(specgen(&words).write_stdin(TEXT)).json();
    assert_eq!(logprobs(&prompt["prompt_logprobs"]), tokens);
    assert_eq!(prompt["token_ids"], Value::Array(vec![]));
    let best = prompt["prompt_logprobs"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (best["rank"] == 1, best["top"].as_array().unwrap().len()),
        (best["top"][0]["id"] == best["id"], 1)
    );

    let lines = run(specgen(&["score", "-m", model, "-"]).write_stdin(TEXT)).ok();
    let perplexity = format!("perplexity     {:.4}\n", found["perplexity"].as_f64().unwrap());
    assert!(lines.starts_with(&format!("scored         {} tokens of ", tokens.len() - 1)), "{lines}");
    assert!(lines.contains(&perplexity), "{lines}");
}

#[test]
fn a_text_longer_than_the_context_is_scored_in_windows() {
    let Some(model) = real_model() else { return };
    let text = TEXT.repeat(3);
    let whole = score(model, &[], &text);
    assert!(whole["windows"] == 1 && whole["stride"].is_null(), "{whole}");
    let halves = score(model, &["--context", "16"], &text);
    let slow = score(model, &["--context", "16", "--stride", "1"], &text);
    let len = whole["tokens"].as_u64().unwrap();
    assert_eq!((&halves["stride"], &halves["windows"]), (&8.into(), &(1 + (len - 16).div_ceil(8)).into()));
    assert_eq!(slow["windows"], 1 + len - 16);
    let nll = |found: &Value| found["mean_nll"].as_f64().unwrap();
    assert!(nll(&whole) < nll(&slow) && nll(&slow) < nll(&halves), "{whole} {slow} {halves}");
    for found in [&halves, &slow] {
        assert_eq!(found["scored_tokens"], len - 1);
    }
    let words = ["score", "-m", model, "--context", "16", "--stride", "16", "-"];
    let error = run(specgen(&words).write_stdin(text)).fails(1);
    assert!(error.contains("a stride of 16 tokens; wanted 1 to 15"), "{error}");
}

#[test]
fn what_is_no_text_cannot_be_scored() {
    let error = run(&mut specgen(&["score", "no/such/file"])).fails(1);
    assert!(error.contains("no/such/file") && error.contains("No such file"), "{error}");
    let error = run(specgen(&["score", "-"]).write_stdin(&b"ab\xff"[..])).fails(1);
    assert!(error.contains("stdin is not UTF-8: byte 2"), "{error}");
    let Some(model) = real_model() else { return };
    let error = run(specgen(&["score", "-m", model, "-"]).write_stdin("The")).fails(1);
    assert!(error.contains("1 token, but the first is not scored"), "{error}");
    let error = run(specgen(&["score", "-m", model, "-"]).write_stdin("")).fails(1);
    assert!(error.contains("0 tokens"), "{error}");
}
