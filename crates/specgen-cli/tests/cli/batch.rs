//! `batch` with the real default model.

use std::path::Path;

use serde_json::{Value, json};

use crate::{Run, real_model, run, specgen};

/// The answers of a file, whose lines are whole.
fn answers(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

struct Files {
    dir: tempfile::TempDir,
    model: &'static str,
}

impl Files {
    fn new(model: &'static str, requests: &[Value]) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap(), model };
        let lines: Vec<String> = requests.iter().map(ToString::to_string).collect();
        std::fs::write(files.path("in"), lines.join("\n")).unwrap();
        files
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Run {
        let (input, output) = (self.path("in"), self.path("out"));
        let paths = [input.to_str().unwrap(), output.to_str().unwrap()];
        run(specgen(&["batch", "-m", self.model, "-n", "10"]).args(words).args(paths))
    }
}

/// Requests, and the words that say the same to `generate`; the third is no request.
fn requests() -> Vec<(Value, Option<Vec<&'static str>>)> {
    vec![
        (
            json!({"custom_id": "a", "prompt": "Once upon a time", "temperature": 0}),
            Some(vec!["--raw", "--greedy", "Once upon a time"]),
        ),
        (
            json!({"messages": [{"role": "user", "content": "Name a star."}], "seed": 5, "max_tokens": 30, "top_k": 9}),
            Some(vec!["--seed", "5", "-n", "30", "--top-k", "9", "Name a star."]),
        ),
        (json!({"custom_id": "typo", "prompt": "x", "temprature": 1}), None),
        (
            json!({"prompt": "1 2 3 4", "temperature": 0, "stop": " 7", "logprobs": 1, "prompt_logprobs": 1}),
            Some(vec![
                "--raw",
                "--greedy",
                "--stop",
                " 7",
                "--logprobs",
                "1",
                "--prompt-logprobs",
                "1",
                "1 2 3 4",
            ]),
        ),
        (
            json!({"prompt": "Yes or no? ", "seed": 2, "regex": "(yes|no)!", "verify": "block"}),
            Some(vec!["--raw", "--seed", "2", "--regex", "(yes|no)!", "--verify", "block", "Yes or no? "]),
        ),
        (json!({"prompt": "x", "max_tokens": 0}), Some(vec!["--raw", "-n", "0", "x"])),
    ]
}

#[test]
fn every_line_is_answered_as_it_would_be_alone() {
    let Some(model) = real_model() else { return };
    let requests = requests();
    let lines: Vec<Value> = requests.iter().map(|(line, _)| line.clone()).collect();
    let files = Files::new(model, &lines);
    let found = files.run(&["--parallel", "3"]);
    assert_eq!((found.code, found.stdout.as_str()), (Some(1), ""), "{}", found.stderr);
    assert!(found.stderr.contains("5 answered, 1 failed, 0 answered before \u{b7} "), "{}", found.stderr);
    let answers = answers(&files.path("out"));
    assert_eq!(answers.len(), requests.len());
    for ((number, answer), (line, words)) in (1..).zip(&answers).zip(&requests) {
        assert_eq!((&answer["line"], &answer["custom_id"]), (&json!(number), &line["custom_id"]));
        let Some(words) = words else {
            let error = answer["error"].as_str().unwrap();
            assert!(error.contains("unknown field `temprature`") && answer["text"].is_null(), "{error}");
            continue;
        };
        let mut command = specgen(&["generate", "-m", model, "--json"]);
        if !words.contains(&"-n") {
            command.args(["-n", "10"]);
        }
        let alone = run(command.args(words)).json();
        for field in ["text", "token_ids", "finish_reason", "verify", "logprobs", "prompt_logprobs"] {
            assert_eq!(answer[field], alone[field], "{field} of {answer}");
        }
        assert!(line["seed"].is_null() || answer["seed"] == line["seed"], "{answer}");
        assert_eq!(answer["prompt_tokens"], alone["prompt_token_ids"].as_array().unwrap().len());
    }
}

#[test]
fn a_run_goes_on_where_it_was_left_unless_other_things_are_asked() {
    let Some(model) = real_model() else { return };
    let ask = |i: u32| json!({"prompt": format!("{i} times {i} is"), "custom_id": i.to_string()});
    let files = Files::new(model, &[ask(2), ask(3), json!({"prompt": ""}), ask(4)]);
    let words = ["--seed", "7", "-p", "2"];
    let first = files.run(&words);
    assert_eq!(first.code, Some(1), "{}", first.stderr);
    let whole = answers(&files.path("out"));
    assert_eq!(whole[0]["seed"], 7);
    assert!(whole[1]["seed"] != 7 && whole[2]["error"].as_str().unwrap().contains("the prompt is empty"));

    // As if the power had gone: the last is torn, and answers lie as they came.
    let lines: Vec<String> = whole.iter().map(ToString::to_string).collect();
    std::fs::write(files.path("out"), format!("{}\n{}\n{}", lines[3], lines[2], &lines[0][..20])).unwrap();
    let again = files.run(&words);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("2 answered, 1 failed, 1 answered before"), "{}", again.stderr);
    assert_eq!(answers(&files.path("out")), whole);

    let before = std::fs::read(files.path("out")).unwrap();
    let error = files.run(&["--seed", "8"]).fails(1);
    assert!(error.contains("line 1 answers something else than line 1 of the input"), "{error}");
    std::fs::write(files.path("in"), [ask(2), ask(5)].map(|line| line.to_string()).join("\n")).unwrap();
    let error = files.run(&words).fails(1);
    assert!(error.contains("line 2 answers something else than line 2 of the input"), "{error}");
    assert_eq!(std::fs::read(files.path("out")).unwrap(), before);
}

#[test]
#[cfg(unix)]
fn ctrl_c_keeps_what_is_finished() {
    use std::process::{Command, Stdio};
    let Some(model) = real_model() else { return };
    let ask = |max_tokens: usize| json!({"prompt": "Once", "ignore_eos": true, "max_tokens": max_tokens});
    let files = Files::new(model, &[ask(8000), ask(3), ask(4), ask(8000)]);
    let (input, output) = (files.path("in"), files.path("out"));
    let child = Command::new(assert_cmd::cargo::cargo_bin!("specgen"))
        .args(["batch", "-m", model, "--seed", "1", "-p", "2"])
        .args([&input, &output])
        .env("SPECGEN_OFFLINE", "1")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while std::fs::read_to_string(&output).unwrap_or_default().lines().count() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let found = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(found.stderr).unwrap();
    assert_eq!(found.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("2 answered, 0 failed, 0 answered before, 2 left: "), "{stderr}");
    let found: Vec<Value> = answers(&output).iter().map(|answer| answer["line"].clone()).collect();
    assert_eq!(found, [2, 3]);
}
