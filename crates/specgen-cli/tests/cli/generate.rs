//! `generate` with the real default model.

use serde_json::Value;

use crate::{real_model, run, specgen};

const PROMPT: &str = "Count from one to twenty in words.";

/// Greedy text of 24 tokens.
fn greedy(model: &str, words: &[&str]) -> Value {
    let len: &[&str] = if words.contains(&"-n") { &[] } else { &["-n", "24"] };
    run(specgen(&["generate", "-m", model, "--greedy", "--json", PROMPT]).args(len).args(words)).json()
}

#[test]
fn text_on_stdout_and_the_closing_line_on_stderr() {
    let Some(model) = real_model() else { return };
    let found = run(&mut specgen(&["generate", "-m", model, "--greedy", "-n", "24", "Why is the sky blue?"]));
    let line = found.stderr.trim_end();
    assert!(!line.contains('\n') && line.starts_with("prompt ") && line.contains(" tok/s · "), "{line}");
    assert!(line.contains(" · text 24 tokens in ") && line.contains(" · first token after "), "{line}");
    assert!(!line.contains("seed"), "a seed plays no part in greedy text: {line}");
    let text = found.ok();
    assert!(text.trim().split(' ').count() > 5 && text.ends_with('\n'), "{text}");
    let quiet =
        run(&mut specgen(&["generate", "-m", model, "--greedy", "-n", "24", "-q", "Why is the sky blue?"]));
    assert_eq!((quiet.stderr.as_str(), quiet.stdout), ("", text));
}

#[test]
fn json_has_every_field_in_its_type() {
    let Some(model) = real_model() else { return };
    let words = ["generate", "-m", model, "--json", "-n", "8", "--seed", "18446744073709551615", PROMPT];
    let found = run(&mut specgen(&words));
    assert_eq!(found.stderr, "");
    let answer = found.json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let wanted = "text token_ids prompt_token_ids finish_reason seed verify model draft plan stats";
    assert_eq!(keys(&answer), wanted.split(' ').collect::<Vec<_>>());
    assert!(!answer["text"].as_str().unwrap().is_empty());
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["seed"], u64::MAX);
    assert_eq!(answer["verify"], "coupled");
    assert_eq!(answer["draft"], "suffix");
    let ids = |name: &str| {
        let ids = answer[name].as_array().unwrap();
        assert!(ids.iter().all(Value::is_u64), "{name}");
        ids.len()
    };
    assert_eq!(ids("token_ids"), 8);

    let stats = &answer["stats"];
    let counts = "prompt_tokens reused_tokens generated_tokens rounds drafted accepted residual_underflows \
        broken_drafts rounds_off probes";
    let fractions = "acceptance_rate mean_accepted_len prefill_seconds draft_seconds verify_seconds other_seconds \
        tokens_per_second prompt_tokens_per_second time_to_first_token_seconds";
    for name in counts.split_whitespace() {
        assert!(stats[name].is_u64(), "{name}: {}", stats[name]);
    }
    for name in fractions.split_whitespace() {
        assert!(stats[name].is_f64(), "{name}: {}", stats[name]);
    }
    for name in ["drafted_by_position", "accepted_by_position", "rounds_by_num_drafted"] {
        assert!(stats[name].is_array(), "{name}");
    }
    assert_eq!(keys(stats).len(), 22);
    assert_eq!(stats["prompt_tokens"], ids("prompt_token_ids"));
    assert_eq!(stats["generated_tokens"], 8);
}

#[test]
fn greedy_text_is_the_same_however_it_is_drafted() {
    let Some(model) = real_model() else { return };
    let plain = greedy(model, &["-k", "0"]);
    assert_eq!(plain["draft"], "none");
    let checked = greedy(model, &["-k", "0", "--draft", model]);
    assert_eq!((&checked["draft"], &checked["stats"]["drafted"]), (&"none".into(), &0.into()));
    assert_eq!(checked["token_ids"], plain["token_ids"]);
    assert_eq!(plain["stats"]["rounds"], plain["stats"]["generated_tokens"]);
    for words in [
        &["-k", "4"][..],
        &["--draft", "none"],
        &["--draft", "ngram", "-k", "7"],
        &["--draft", model, "-k", "4"],
    ] {
        let other = greedy(model, words);
        assert_eq!(other["text"], plain["text"], "{words:?}");
        assert_eq!(other["token_ids"], plain["token_ids"], "{words:?}");
        if words.contains(&model) {
            assert_eq!(other["stats"]["acceptance_rate"], 1.0, "a model agrees with itself");
        }
    }
}

/// Each token with its log-probability and the best in its place; the same however it is drafted.
#[test]
fn logprobs_are_listed_by_token() {
    let Some(model) = real_model() else { return };
    let plain = greedy(model, &["-k", "0", "--logprobs", "3"]);
    let tokens = plain["logprobs"].as_array().unwrap();
    assert_eq!(tokens.len(), plain["token_ids"].as_array().unwrap().len());
    for (token, id) in tokens.iter().zip(plain["token_ids"].as_array().unwrap()) {
        assert_eq!(&token["id"], id);
        let top = token["top"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["id"], &top[0]["logprob"]), (3, id, &token["logprob"]), "{token}");
        assert!(token["logprob"].as_f64().unwrap() < 0.0 && token["text"].is_string(), "{token}");
        assert!(top[1]["logprob"].as_f64() >= top[2]["logprob"].as_f64(), "{token}");
    }
    for words in [&["-k", "4"][..], &["--draft", model, "-k", "3"]] {
        let other = greedy(model, &[words, &["--logprobs", "3"]].concat());
        assert_eq!(other["logprobs"], plain["logprobs"], "{words:?}");
    }
    let processed = greedy(model, &["--logprobs", "3", "--logprobs-mode", "processed"]);
    let certain = |token: &Value| token["logprob"] == 0.0 && token["top"].as_array().unwrap().len() == 1;
    assert!(processed["logprobs"].as_array().unwrap().iter().all(certain), "{processed}");

    // Part of a character is no text; its bytes are given.
    let words = [
        "generate",
        "-m",
        model,
        "--greedy",
        "--json",
        "--raw",
        "--logprobs",
        "0",
        "-n",
        "8",
        "日本語日本語日本語日本語日本語",
    ];
    let found = run(&mut specgen(&words)).json();
    let tokens = found["logprobs"].as_array().unwrap();
    let part = tokens.iter().find(|token| !token["bytes"].is_null()).unwrap();
    assert!(
        part["text"].as_str().unwrap().contains('\u{fffd}') && part["top"] == Value::Array(vec![]),
        "{part}"
    );
}

#[test]
fn max_tokens_and_stop_strings_cut() {
    let Some(model) = real_model() else { return };
    let whole = greedy(model, &[]);
    let text = whole["text"].as_str().unwrap();
    for n in [0, 1, 5] {
        let some = greedy(model, &["-n", &n.to_string()]);
        assert_eq!(some["token_ids"].as_array().unwrap()[..], whole["token_ids"].as_array().unwrap()[..n]);
        assert_eq!(some["finish_reason"], "length");
    }
    // A stop string from the middle of the text, and one that never comes.
    let stop: String = text.chars().skip(20).take(6).collect();
    let cut = greedy(model, &["--stop", "@@never@@", "--stop", &stop]);
    assert_eq!(cut["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    assert_eq!(cut["finish_reason"], "stop");
}

/// What is asked of the text holds, and drafting changes nothing.
#[test]
fn penalties_and_bans_shape_the_text_the_same_however_it_is_drafted() {
    let Some(model) = real_model() else { return };
    let plain = greedy(model, &["-k", "0"]);
    // The same words, again and again.
    let text = |answer: &Value| answer["text"].as_str().unwrap().to_owned();
    assert!(text(&plain).matches("sentence").count() > 1, "{plain}");
    let options: [&[&str]; 6] = [
        &["--bad-words", "sentence"],
        &["--no-repeat-ngram", "3"],
        &["--dry-multiplier", "2", "--dry-allowed-length", "1"],
        &["--repeat-penalty", "1.5", "--penalty-last-n", "16"],
        &["--min-tokens", "24", "--bad-words", "number", "--bad-words", " words"],
        &["--dry-multiplier", "1", "--dry-sequence-breaker", "none", "--frequency-penalty", "0.5"],
    ];
    for words in options {
        let alone = greedy(model, &[words, &["-k", "0"]].concat());
        assert_ne!(alone["token_ids"], plain["token_ids"], "{words:?}");
        assert_eq!(greedy(model, words)["token_ids"], alone["token_ids"], "{words:?}");
        let banned = words.iter().zip(&words[1..]).filter(|(name, _)| **name == "--bad-words");
        for (_, word) in banned {
            assert!(!text(&alone).contains(word), "{}", text(&alone));
        }
    }
}

#[test]
fn a_text_may_be_asked_to_go_on() {
    let Some(model) = real_model() else { return };
    let ask = |words: &[&str]| {
        let command = ["generate", "-m", model, "--greedy", "--json", "Say hi and nothing else."];
        run(specgen(&command).args(words))
    };
    let short = ask(&["-n", "400"]).json();
    assert_eq!(short["finish_reason"], "eos", "{short}");
    let num = short["token_ids"].as_array().unwrap().len();
    let (least, most) = ((num + 5).to_string(), (num + 400).to_string());
    let long = ask(&["--min-tokens", &least, "-n", &most]).json();
    assert!(long["token_ids"].as_array().unwrap().len() >= num + 5);
    let error = ask(&["--min-tokens", "9", "-n", "8"]).fails(2);
    assert!(error.contains("--min-tokens is 9, but must be at most the 8 tokens a text may have"), "{error}");
}

#[test]
fn a_seed_repeats_a_text_and_other_seeds_do_not() {
    let Some(model) = real_model() else { return };
    let sample = |seed: &str| {
        let words =
            ["generate", "-m", model, "--temperature", "1.2", "--seed", seed, "--json", "-n", "24", PROMPT];
        run(&mut specgen(&words)).json()["token_ids"].clone()
    };
    let first = sample("7");
    assert_eq!(sample("7"), first);
    assert_ne!(sample("8"), first);

    // An unseeded run tells how to repeat it, where lengths of drafts do not go by the clock.
    let found = run(&mut specgen(&["generate", "-m", model, "-k", "4", "-n", "24", PROMPT]));
    let replay = found.stderr.split(" · ").find(|part| part.starts_with("--seed ")).unwrap();
    assert!(replay.ends_with(" --verify rejection"), "{replay}");
    let words = ["generate", "-m", model, "-k", "4", "-n", "24", "-q", PROMPT];
    assert_eq!(run(specgen(&words).args(replay.split(' '))).ok(), found.stdout);
}

/// A seed gives one text, whatever drafts; `--verify` chooses another rule for it.
#[test]
fn a_seeded_text_is_the_same_however_it_is_drafted() {
    let Some(model) = real_model() else { return };
    let sample = |words: &[&str]| {
        let command =
            ["generate", "-m", model, "--temperature", "0.9", "--seed", "5", "--json", "-n", "24", PROMPT];
        run(specgen(&command).args(words)).json()
    };
    let plain = sample(&["-k", "0"]);
    assert_eq!(plain["verify"], "coupled");
    for words in
        [&["-k", "4"][..], &["--draft", model, "-k", "3"], &["--draft", "none", "--verify", "coupled"]]
    {
        let other = sample(words);
        assert_eq!(
            (&other["token_ids"], &other["verify"]),
            (&plain["token_ids"], &plain["verify"]),
            "{words:?}"
        );
        if words.contains(&model) {
            assert_eq!(other["stats"]["acceptance_rate"], 1.0, "a model agrees with itself, draw by draw");
        }
    }
    for rule in ["rejection", "block"] {
        let found = sample(&["--verify", rule, "--draft", model, "-k", "4"]);
        assert_eq!(found["verify"], rule);
        assert_eq!(found["stats"]["acceptance_rate"], 1.0, "{rule}");
    }
    assert_eq!(greedy(model, &["--seed", "5"])["verify"], "rejection");
}

#[test]
fn the_prompt_may_come_from_stdin() {
    let Some(model) = real_model() else { return };
    let wanted = greedy(model, &[])["prompt_token_ids"].clone();
    for words in [&["-"][..], &[]] {
        let command = ["generate", "-m", model, "--json", "-n", "1"];
        let found = run(specgen(&command).args(words).write_stdin(format!("{PROMPT}\n"))).json();
        assert_eq!(found["prompt_token_ids"], wanted, "{words:?}");
    }
    // Raw text keeps its last line end.
    let raw = |text: &str| {
        let command = ["generate", "-m", model, "--json", "--raw", "-n", "1"];
        run(specgen(&command).write_stdin(text)).json()["prompt_token_ids"].as_array().unwrap().len()
    };
    assert_eq!(raw("Once\n"), raw("Once") + 1);
}

#[test]
fn the_system_message_and_the_template_count() {
    let Some(model) = real_model() else { return };
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("template.jinja");
    std::fs::write(&template, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").unwrap();
    let ids = |words: &[&str]| {
        let command = ["generate", "-m", model, "--json", "-n", "1", "hi"];
        run(specgen(&command).args(words)).json()["prompt_token_ids"].clone()
    };
    let template = template.to_str().unwrap();
    let templated = ids(&["--chat-template", template, "--system", "be brief"]);
    assert_eq!(templated, {
        let command = ["generate", "-m", model, "--json", "-n", "1", "--raw", "<system>be brief<user>hi"];
        run(&mut specgen(&command)).json()["prompt_token_ids"].clone()
    });
    assert_ne!(ids(&[]), ids(&["--system", "be brief"]));
}

#[test]
fn a_base_model_needs_raw_text() {
    let Some(model) = real_model() else { return };
    let dir = std::path::Path::new(model).parent().unwrap();
    let base = dir.join("gemma-3-270m-q4_k_m.gguf");
    let Some(base) = base.to_str().filter(|_| base.is_file()) else {
        return eprintln!("skipped, gemma-3-270m is not here: `specgen pull gemma-3-270m`");
    };
    let error = run(&mut specgen(&["generate", "-m", base, "Once"])).fails(1);
    assert!(error.contains("no chat template") && error.contains("--raw"), "{error}");
    let error = run(specgen(&["chat", "-m", base]).write_stdin("Hi!\n")).fails(1);
    assert!(error.contains("no chat template") && error.contains("--chat-template"), "{error}");
    assert!(!run(&mut specgen(&["generate", "-m", base, "--raw", "-n", "2", "Once"])).ok().is_empty());
}

#[test]
#[cfg(unix)]
fn a_reader_that_leaves_ends_it_quietly() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let Some(model) = real_model() else { return };
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("specgen"))
        .args(["generate", "-m", model, "--ignore-eos", "-n", "2000", PROMPT])
        .env("SPECGEN_OFFLINE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_the_text_and_keeps_the_closing_line() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let Some(model) = real_model() else { return };
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("specgen"))
        .args(["generate", "-m", model, "--ignore-eos", "-n", "4000", PROMPT])
        .env("SPECGEN_OFFLINE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains(" tokens in ") && stderr.trim_end().ends_with(" · interrupted"), "{stderr}");
    assert_eq!(output.stdout.last(), Some(&b'\n'));
}

/// What a grammar asks for is said, by drafts too, and the text ends where it does.
#[test]
fn a_text_is_what_its_grammar_says() {
    let Some(model) = real_model() else { return };
    let schema = r#"{"type": "object", "properties": {"colour_of_the_sky": {"enum": ["blue", "green"]}},
        "required": ["colour_of_the_sky"], "additionalProperties": false}"#;
    let mut texts = Vec::new();
    for k in ["0", "6"] {
        let answer = greedy(model, &["-n", "60", "-k", k, "--json-schema", schema]);
        assert_eq!(answer["finish_reason"], "eos", "{answer}");
        let text = answer["text"].as_str().unwrap().to_owned();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(["blue", "green"].contains(&value["colour_of_the_sky"].as_str().unwrap()), "{text}");
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1]);
    let answer = greedy(model, &["--regex", "(one|two), (three|four)\\."]);
    assert!(
        ["one, three.", "one, four.", "two, three.", "two, four."]
            .contains(&answer["text"].as_str().unwrap())
    );
}

/// Each sample is what its seed gives alone, in JSON and as text; the first has the seed given.
#[test]
fn samples_of_a_prompt_are_the_texts_of_their_seeds() {
    let Some(model) = real_model() else { return };
    let sample = |words: &[&str]| {
        let command = ["generate", "-m", model, "--temperature", "1.2", "-n", "12", PROMPT];
        run(specgen(&command).args(words))
    };
    let found = sample(&["--seed", "5", "--num-samples", "3", "--json", "--logprobs", "1"]).json();
    let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["choices", "prompt_token_ids", "verify", "model", "draft"]);
    let choices = found["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[0]["seed"], &found["verify"]), (3, &5.into(), &"coupled".into()));
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], i);
        let seed = choice["seed"].to_string();
        let alone = sample(&["--seed", &seed, "--json", "--logprobs", "1"]).json();
        for field in ["text", "token_ids", "finish_reason", "logprobs", "seed"] {
            assert_eq!(choice[field], alone[field], "{field} of {i}");
        }
        assert_eq!(found["prompt_token_ids"], alone["prompt_token_ids"]);
        assert_eq!(choice["stats"]["reused_tokens"] == 0, i == 0, "{choice}");
    }

    let text = sample(&["--seed", "5", "--num-samples", "3"]);
    let closing: Vec<&str> = text.stderr.lines().collect();
    assert_eq!(closing.len(), 3, "{}", text.stderr);
    let shown: Vec<String> = (0..)
        .zip(choices)
        .map(|(i, choice)| {
            let text = choice["text"].as_str().unwrap();
            let end = if text.ends_with('\n') { "" } else { "\n" };
            format!("--- sample {} of 3, seed {} ---\n{text}{end}", i + 1, choice["seed"])
        })
        .collect();
    assert!(closing.iter().zip(choices).all(|(line, c)| line.contains(&format!("--seed {} ", c["seed"]))));
    assert_eq!(text.ok(), shown.join("\n"));

    // One is a text like any other, but a list is what JSON was asked for.
    let one = sample(&["--seed", "5", "--num-samples", "1", "--json"]).json();
    assert_eq!(one["choices"].as_array().unwrap().len(), 1);
    let one = sample(&["--seed", "5", "--num-samples", "1", "-q"]).ok();
    assert_eq!(one.trim_end(), choices[0]["text"].as_str().unwrap().trim_end());
}

#[test]
fn samples_that_make_no_sense_or_have_no_room_are_refused() {
    let error = run(&mut specgen(&["generate", "--greedy", "--num-samples", "2", "x"])).fails(2);
    assert!(error.contains("--num-samples is 2, but at temperature 0 all would be the same text"), "{error}");
    let Some(model) = real_model() else { return };
    let error = run(&mut specgen(&["generate", "-m", model, "--num-samples", "1024", "x"])).fails(1);
    assert!(error.contains("bytes of memory, but only") && error.contains("fewer texts at once"), "{error}");
}

/// Its rounds add up to the text, in lines and on a page.
#[test]
fn a_trace_tells_every_round() {
    let Some(model) = real_model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (lines, page) = (folder.path().join("trace.jsonl"), folder.path().join("trace.HTML"));
    let answer = greedy(model, &["-k", "3", "--trace", lines.to_str().unwrap()]);
    let lines: Vec<Value> = std::fs::read_to_string(lines)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (totals, rounds) = lines.split_last().unwrap();
    assert_eq!(rounds.len(), answer["stats"]["rounds"].as_u64().unwrap() as usize);
    let ids = |tokens: &Value| -> Vec<Value> {
        tokens.as_array().unwrap().iter().map(|token| token["id"].clone()).collect()
    };
    let committed: Vec<Value> = rounds.iter().flat_map(|round| ids(&round["committed"])).collect();
    assert_eq!(Value::from(committed), answer["token_ids"]);
    let mut accepted = 0;
    for (i, round) in rounds.iter().enumerate() {
        // The last token has no room for a draft before it.
        let source = if round["k"] == 0 { Value::Null } else { "suffix".into() };
        assert_eq!((&round["round"], &round["source"]), (&(i + 1).into(), &source));
        let stands = round["accepted"].as_u64().unwrap() as usize;
        assert_eq!(ids(&round["drafted"])[..stands], ids(&round["committed"])[..stands], "{round}");
        assert!(round["k"].as_u64() <= Some(3) && round["verify_ms"].as_f64() > Some(0.0), "{round}");
        accepted += stands;
    }
    let totals = &totals["totals"];
    assert_eq!(
        (&totals["stats"]["accepted"], &totals["finish_reason"]),
        (&accepted.into(), &"length".into())
    );

    greedy(model, &["-k", "3", "--trace", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("class=\"t d text\"") && page.contains("class=\"t o\"") && !page.contains("http"));
}

#[test]
fn a_trace_that_cannot_be_written_is_told_first() {
    let error = run(&mut specgen(&["generate", "--trace", "no/such/folder/t.jsonl", "x"])).fails(1);
    assert!(error.starts_with("no/such/folder/t.jsonl: "), "{error}");
    let found = run(&mut specgen(&["generate", "--trace", "t.jsonl", "--num-samples", "2", "x"]));
    assert_eq!(found.code, Some(2), "{}", found.stderr);
}
