//! `bench` with the real default model.

use std::path::PathBuf;

use crate::{real_model, run, specgen};

fn prompts(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.jsonl");
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

const TWO: &str = r#"{"id": "a", "category": "counting", "prompt": "1 2 3 4 5 6 7 8 9 10 11"}
{"id": "b", "category": "talk", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 5}"#;

#[test]
fn texts_are_timed_by_category_and_are_plain_decodings_own() {
    let Some(model) = real_model() else { return };
    let (_folder, file) = prompts(TWO);
    let words = ["bench", "-m", model, "-n", "12", "--reps", "1", "--draft", "ngram", "-k", "3"];
    let mut command = specgen(&words);
    let json = run(command.args(["--prompts", file.to_str().unwrap(), "--json"])).json();
    let rows = json["categories"].as_array().unwrap();
    let names: Vec<_> =
        rows.iter().map(|row| (row["category"].as_str().unwrap(), row["draft"].as_str().unwrap())).collect();
    assert_eq!(names, [("counting", "none"), ("counting", "ngram"), ("talk", "none"), ("talk", "ngram")]);
    for row in rows {
        assert!(row["tokens_per_second"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!((&row["texts"], &row["identical_texts"]), (&1.into(), &1.into()), "{row}");
    }
    assert_eq!((&rows[0]["speed_up"], &rows[0]["predicted_speed_up"]), (&1.0.into(), &1.0.into()));
    assert!(rows[1]["drafted_by_position"].as_array().unwrap().len() <= 3);
    for row in rows {
        let ms = |of: &str, p: &str| row[of][p].as_f64().unwrap();
        assert!(0.0 < ms("token_ms", "p50") && ms("token_ms", "p50") <= ms("token_ms", "p99"), "{row}");
        assert!(ms("token_ms", "p95") <= ms("round_ms", "p99"), "{row}");
        let positions = row["acceptance_by_position"].as_array().unwrap();
        assert_eq!(positions.len(), row["drafted_by_position"].as_array().unwrap().len());
    }
    assert!(json["bound"]["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(json["machine"]["threads"].as_u64().unwrap() > 0 && json["machine"]["isa"].is_string());
    assert_eq!((&json["settings"]["rounds"], &json["settings"]["plans"][0]), (&1.into(), &"3".into()));
    let texts = json["texts"].as_array().unwrap();
    assert!(texts.iter().all(|text| text["tokens"].as_u64().unwrap() <= 12));

    let page = file.with_file_name("bench.html");
    let mut command = specgen(&words);
    command.args(["--prompts", file.to_str().unwrap(), "--category", "counting"]);
    let table = run(command.args(["--html", page.to_str().unwrap()])).ok();
    assert_eq!(table.lines().count(), 9, "{table}");
    assert!(table.contains("same text") && table.contains("1 of 1"), "{table}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("<svg") && !page.contains("http"), "one file with charts, and nothing to fetch");

    // What was written is compared, with what differs beside its figures.
    let (before, after) = (file.with_file_name("a.json"), file.with_file_name("b.json"));
    std::fs::write(&before, json.to_string()).unwrap();
    let mut other = json;
    other["machine"]["isa"] = "another".into();
    other["settings"]["rounds"] = 2.into();
    std::fs::write(&after, other.to_string()).unwrap();
    let words = ["bench", "--compare", before.to_str().unwrap(), after.to_str().unwrap()];
    let table = run(&mut specgen(&words)).ok();
    assert!(table.contains("isa differs") && table.contains("rounds differs: 1 before, 2 after"), "{table}");
    assert!(table.contains("1.00  ?") && table.contains("--reps"), "{table}");
    let json = run(specgen(&words).arg("--json")).json();
    assert_eq!(json[0]["rows"][3]["tokens_per_second"]["ratio"], 1.0, "{json}");
}

#[test]
fn what_is_no_result_is_not_compared() {
    let (_folder, file) = prompts("{\"engine\": \"specgen\", \"rows\": {}}");
    let passes = file.to_str().unwrap();
    let compare = |other: &str| run(&mut specgen(&["bench", "--compare", passes, other])).fails(1);
    let error = compare(passes);
    assert!(
        error.contains("prompts.jsonl: not what `specgen bench --json` writes of texts: missing"),
        "{error}"
    );
    let (_folder, file) = prompts("");
    let error = run(&mut specgen(&["bench", "--compare", file.to_str().unwrap(), passes])).fails(1);
    assert!(error.contains("prompts.jsonl: empty"), "{error}");
    let error = run(&mut specgen(&["bench", "--compare", "nowhere.json", passes])).fails(1);
    assert!(error.starts_with("nowhere.json: "), "{error}");
    for words in
        [&["a.json"][..], &["a.json", "b.json", "--draft", "ngram"], &["a.json", "b.json", "--kernels"]]
    {
        assert_eq!(run(specgen(&["bench", "--compare"]).args(words)).code, Some(2), "{words:?}");
    }
    let error = run(&mut specgen(&["bench", "--html", "no/such/folder/x.html"])).fails(1);
    assert!(error.starts_with("no/such/folder/x.html: "), "{error}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_reason() {
    let (_folder, file) = prompts("{\"id\": \"a\", \"prompt\": \"x\"}\nnothing\n");
    let file = file.to_str().unwrap();
    let error = run(&mut specgen(&["bench", "--prompts", file])).fails(1);
    assert!(error.contains("prompts.jsonl, line 2: expected"), "{error}");
    let error = run(&mut specgen(&["bench", "--prompts", "nowhere.jsonl"])).fails(1);
    assert!(error.starts_with("nowhere.jsonl: "), "{error}");
    let error = run(&mut specgen(&["bench", "--category", "poems"])).fails(1);
    assert!(error.contains("no prompt of category `poems`; there are code_edit"), "{error}");
    for words in
        [&["--kernels", "--draft", "ngram"][..], &["--rows", "4"], &["--temperature", "-1"], &["-k", "0"]]
    {
        assert_eq!(run(specgen(&["bench"]).args(words)).code, Some(2), "{words:?}");
    }
    if let Some(model) = real_model() {
        let error =
            run(&mut specgen(&["bench", "-m", model, "--draft", "one.gguf", "--draft", "two.gguf"])).fails(2);
        assert!(error.contains("one draft model"), "{error}");
    }
}
