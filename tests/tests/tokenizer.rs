//! Token ids and text against what llama.cpp gives: three real models, and the vocabularies it tests itself with.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod reference;

use std::path::Path;

use serde::Deserialize;
use specgen::tokenizer::Tokenizer;
use specgen::weights::Weights;
use specgen_tests::real;

#[derive(Deserialize)]
struct Golden {
    model: String,
    tokenize: Vec<Case>,
    greedy: Vec<Greedy>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    detokenized: String,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: String,
    prompt_ids: Vec<u32>,
    text: String,
    ids: Vec<u32>,
}

fn open(path: &Path) -> specgen::Result<Tokenizer> {
    let weights = Weights::open(path).unwrap();
    Tokenizer::from_metadata(weights.metadata().expect("a GGUF file"), path, None)
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = tokenizer.stream(skip_special);
    let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text.push_str(&stream.finish());
    text
}

fn golden(name: &str) {
    let json =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.json")));
    let golden: Golden = serde_json::from_slice(&json.unwrap()).unwrap();
    assert!(golden.model.contains(name) && golden.tokenize.len() >= 10 && !golden.greedy.is_empty());
    let (model, _) = real::MODELS.iter().find(|(_, golden)| *golden == name).unwrap();
    let Some(files) = real::files(model) else { return };
    let tokenizer = open(&files.weights[0]).unwrap();
    for case in &golden.tokenize {
        assert_eq!(tokenizer.encode(&case.text, true).unwrap(), case.ids, "{:?}", case.text);
        assert_eq!(tokenizer.decode_from_start(&case.ids, false), case.detokenized);
        assert_eq!(streamed(&tokenizer, &case.ids, false), tokenizer.decode(&case.ids, false));
    }
    for case in &golden.greedy {
        let mut ids: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        ids.extend(tokenizer.encode(&case.prompt, true).unwrap());
        assert_eq!(ids, case.prompt_ids, "{:?}", case.prompt);
        let ends = tokenizer.end_of_generation();
        let text: Vec<u32> = case.ids.iter().copied().filter(|id| !ends.contains(id)).collect();
        assert_eq!(tokenizer.decode(&text, true), case.text);
    }
}

#[test]
fn smollm2() {
    golden("smollm2-135m-instruct-q4_1");
}

#[test]
fn gemma_3() {
    golden("gemma-3-270m-q4_k_m");
}

#[test]
fn qwen_2_5_coder() {
    golden("qwen2.5-coder-1.5b-instruct-q4_k_m");
}

/// Vocabularies that are refused, and words of the refusal.
const REFUSED: &[(&str, &str)] = &[
    ("aquila", "does not name its pre-tokenizer"),
    ("gpt-neox", "does not name its pre-tokenizer"),
    ("bert-bge", "tokenizer model `bert`"),
    ("nomic-bert-moe", "tokenizer model `t5`"),
];

#[test]
fn vocabularies_of_llama_cpp() {
    let folder = match reference::llama_cpp_models() {
        Ok(folder) => folder,
        Err(reason) => return real::skipped(&reason),
    };
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            Some(name.strip_prefix("ggml-vocab-")?.strip_suffix(".gguf")?.to_owned())
        })
        .collect();
    names.sort();
    assert!(names.len() >= 17, "{names:?}");
    let mut exact = 0;
    for name in &names {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let tokenizer = open(&path);
        if let Some((_, words)) = REFUSED.iter().find(|(refused, _)| refused == name) {
            let error = tokenizer.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("tokenizer.json"), "{name}: {error}");
            continue;
        }
        let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{name}: {error}"));
        let read =
            |suffix: &str| std::fs::read_to_string(folder.join(format!("ggml-vocab-{name}.gguf{suffix}")));
        // baichuan comes without texts: that it opens is all there is to check.
        let (Ok(texts), Ok(ids)) = (read(".inp"), read(".out")) else {
            assert_eq!(name, "baichuan");
            continue;
        };
        let mut texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        // The separator ends every text, in most files the last one too.
        texts.pop_if(|last| last.is_empty());
        let ids: Vec<Vec<u32>> =
            ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect();
        assert_eq!(texts.len(), ids.len(), "{name}");
        for (text, ids) in texts.iter().zip(&ids) {
            assert_eq!(&tokenizer.encode(text, false).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(streamed(&tokenizer, ids, true), tokenizer.decode(ids, true), "{name}: {text:?}");
            assert_eq!(&tokenizer.decode_from_start(ids, true), text, "{name}");
            exact += 1;
        }
    }
    eprintln!("{exact} texts of {} vocabularies are exact", names.len() - REFUSED.len());
    assert!(exact > 500);
}
