//! `verify` with the real default model, on little text.

use crate::{real_model, run, specgen};

const PROMPTS: &str = r#"{"id": "counting", "prompt": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 1 2 3 4 5 6 7 8 9"}
{"id": "again", "messages": [{"role": "user", "content": "Repeat: a cat sat on the mat, a cat sat on the mat."}]}"#;

#[test]
fn an_exact_pair_is_green_and_a_planted_fault_is_red() {
    let Some(model) = real_model() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (prompts, page) = (folder.path().join("prompts.jsonl"), folder.path().join("proof.html"));
    std::fs::write(&prompts, PROMPTS).unwrap();
    let words = [
        "verify",
        "-m",
        model,
        "--draft",
        "ngram",
        "-k",
        "3",
        "-n",
        "24",
        "--contexts",
        "1",
        "--samples",
        "100",
    ];
    let mut command = specgen(&words);
    command.args(["--prompts", prompts.to_str().unwrap(), "--html", page.to_str().unwrap(), "--json"]);
    let json = run(&mut command).json();
    assert_eq!(json["verdict"], "green");
    assert_eq!(json["rules"].as_array().unwrap().len(), 3);
    let identity = json["identity"].as_array().unwrap();
    assert!(
        identity.iter().all(|check| check["identical"] == 2 && check["differing_logprobs"] == 0),
        "{json}"
    );
    // One place for each rule, one and two tokens.
    assert_eq!(json["outcomes"].as_array().unwrap().len(), 6, "{json}");

    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("<svg") && !page.contains("http"), "one file with charts, and nothing to fetch");

    let mut command = specgen(&words);
    command.args([
        "--prompts",
        prompts.to_str().unwrap(),
        "--verify",
        "rejection",
        "--plant-fault",
        "rows-differ",
    ]);
    let red = run(&mut command);
    assert_eq!(red.code, Some(1), "{}", red.stderr);
    assert!(
        red.stdout.contains("RED") && red.stdout.contains("planted fault: rows-differ"),
        "{}",
        red.stdout
    );
}

#[test]
fn what_cannot_be_verified_is_refused_with_a_reason() {
    let error = run(&mut specgen(&["verify", "--regex", "a+"])).fails(2);
    assert!(error.contains("cannot be verified"), "{error}");
    for words in [&["--samples", "1"][..], &["--plant-fault", "gremlins"], &["-n", "0"]] {
        assert_eq!(run(specgen(&["verify"]).args(words)).code, Some(2), "{words:?}");
    }
    let error = run(&mut specgen(&["verify", "--html", "no/such/folder/x.html"])).fails(1);
    assert!(error.starts_with("no/such/folder/x.html: "), "{error}");
    if let Some(model) = real_model() {
        let error = run(&mut specgen(&["verify", "-m", model, "--draft", "none"])).fails(2);
        assert!(error.contains("nothing drafts"), "{error}");
    }
}
