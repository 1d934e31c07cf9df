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
    assert_eq!(rows[0]["speed_up"], 1.0);
    assert!(rows[1]["drafted_by_position"].as_array().unwrap().len() <= 3);
    let texts = json["texts"].as_array().unwrap();
    assert!(texts.iter().all(|text| text["tokens"].as_u64().unwrap() <= 12));

    let mut command = specgen(&words);
    let table = run(command.args(["--prompts", file.to_str().unwrap(), "--category", "counting"])).ok();
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("same text") && table.contains("1 of 1"), "{table}");
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
