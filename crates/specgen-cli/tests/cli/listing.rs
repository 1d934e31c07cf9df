//! `list` and `inspect`.

use serde_json::Value;

use crate::{empty_home, real_model, run, specgen};

#[test]
fn list_as_a_table() {
    let table = run(&mut specgen(&["list"])).ok();
    let mut lines = table.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["NAME", "SIZE", "LICENCE", "HERE", "TESTED", "DRAFT"]);
    let default = lines.find(|line| line.starts_with("smollm2-135m-instruct ")).unwrap();
    let cells: Vec<&str> = default.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells, ["smollm2-135m-instruct", "98.4 MB", "Apache-2.0", "no", "tested", "suffix"]);
}

#[test]
fn list_as_json() {
    let list = run(&mut specgen(&["list", "--json"])).json();
    let default =
        list.as_array().unwrap().iter().find(|entry| entry["name"] == specgen::DEFAULT_MODEL).unwrap();
    assert_eq!(default["size"], 98_362_432);
    assert_eq!(default["present"], false);
    assert_eq!(default["tested"], true);
    assert_eq!(default["problem"], Value::Null);
    assert!(default["aliases"].as_array().unwrap().contains(&"smollm2-135m".into()));
}

#[test]
fn a_broken_manifest_of_the_users_is_told_and_hides_nothing() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("manifests")).unwrap();
    std::fs::write(home.path().join("manifests/mine.toml"), "name = 3").unwrap();
    let found = run(specgen(&["list"]).env("SPECGEN_HOME", home.path()));
    assert!(found.stderr.starts_with("specgen: mine cannot be used: "), "{}", found.stderr);
    assert_eq!(found.ok(), run(&mut specgen(&["list"])).ok());
    assert!(empty_home().is_dir());
}

#[test]
fn inspect_as_text() {
    let Some(model) = real_model() else { return };
    let text = run(&mut specgen(&["inspect", model])).ok();
    for wanted in
        ["llama: 30 layers of 576", "134.5 M", "Q4_1", "8192 planned", "<|im_end|>", "chat template {%"]
    {
        assert!(text.contains(wanted), "{wanted} in\n{text}");
    }
    assert!(!text.contains("blk.0."), "tensors only when asked for");
    assert!(run(&mut specgen(&["inspect", model, "--tensors"])).ok().contains("blk.29.attn_q.weight"));
}

#[test]
fn inspect_as_json() {
    let Some(model) = real_model() else { return };
    let report =
        run(&mut specgen(&["inspect", model, "--draft", model, "--context", "1000", "--json"])).json();
    assert_eq!(report["architecture"]["name"], "llama");
    assert_eq!(report["architecture"]["num_kv_heads"], 3);
    assert_eq!(report["architecture"]["sliding_window"], Value::Null);
    let memory = &report["memory"];
    // 30 layers, keys and values, 3 heads of 64, f16.
    assert_eq!(memory["kv_type"], "f16");
    assert_eq!(memory["target"]["kv_cache_per_token"], 30 * 2 * 3 * 64 * 2);
    assert_eq!(memory["target"]["kv_cache"], 1000 * 30 * 2 * 3 * 64 * 2);
    let in_f32 = run(&mut specgen(&["inspect", model, "--kv-type", "f32", "--json"])).json();
    assert_eq!(in_f32["memory"]["target"]["kv_cache_per_token"], 30 * 2 * 3 * 64 * 4);
    assert_eq!(memory["draft"]["shared_vocab_size"], 49152);
    let (target, draft) = (memory["target"]["total"].as_u64(), memory["draft"]["total"].as_u64());
    assert_eq!(memory["total"].as_u64(), Some(target.unwrap() + draft.unwrap()));
    let types = report["tensor_types"].as_array().unwrap();
    let bytes: u64 = types.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["weight_bytes"], bytes);
    assert_eq!(report.get("tensors"), None);
}
