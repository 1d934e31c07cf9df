//! Wrong usage and bad files: one line that says what is wrong, and the right exit code.

use crate::{real_model, run, specgen};

/// What clap refuses: the first line it says, and exit code 2.
#[test]
fn options_that_make_no_sense() {
    let cases: &[(&str, &str)] = &[
        ("generate x --nonsense", "error: unexpected argument '--nonsense' found"),
        ("frobnicate", "error: unrecognized subcommand 'frobnicate'"),
        (
            "generate x -k -1",
            "error: invalid value '-1' for '--num-draft-tokens <N|auto>': a whole number from 0 to 1024 is wanted, or `auto`",
        ),
        (
            "generate x -k 1025",
            "error: invalid value '1025' for '--num-draft-tokens <N|auto>': a whole number from 0 to 1024 is wanted, or `auto`",
        ),
        (
            "generate x --draft-plan 4",
            "error: invalid value '4' for '--draft-plan <PLAN>': auto, window, confidence, confidence:P with P from 0 to 1, or tree:N is wanted",
        ),
        (
            "generate x -n -1",
            "error: invalid value '-1' for '--max-tokens <N>': a whole number of at least 0 is wanted",
        ),
        (
            "generate x -n many",
            "error: invalid value 'many' for '--max-tokens <N>': a whole number of at least 0 is wanted",
        ),
        (
            "generate x --seed 1.5",
            "error: invalid value '1.5' for '--seed <N>': a whole number of at least 0 is wanted",
        ),
        (
            "generate x --context 0",
            "error: invalid value '0' for '--context <N>': a whole number of at least 1 is wanted",
        ),
        (
            "generate x --threads 9999",
            "error: invalid value '9999' for '--threads <N>': a whole number from 0 to 1024 is wanted",
        ),
        (
            "generate x --temperature warm",
            "error: invalid value 'warm' for '--temperature <F>': invalid float literal",
        ),
        (
            "generate x --logit-bias 5",
            "error: invalid value '5' for '--logit-bias <ID=F>': a token id and a number are wanted, such as 42=-1.5",
        ),
        (
            "generate x --device gpu",
            "error: invalid value 'gpu' for '--device <DEVICE>': device `gpu` is unknown; wanted cpu, cuda, cuda:INDEX, metal or reference",
        ),
        (
            "generate x --verify typical",
            "error: invalid value 'typical' for '--verify <RULE>': verification `typical` is unknown; wanted one of rejection, block, coupled",
        ),
        (
            "generate x --verify Block",
            "error: invalid value 'Block' for '--verify <RULE>': verification `Block` is unknown; wanted one of rejection, block, coupled",
        ),
        (
            "generate x --greedy --temperature 1",
            "error: the argument '--greedy' cannot be used with '--temperature <F>'",
        ),
        ("generate x --greedy --top-k 5", "error: the argument '--greedy' cannot be used with '--top-k <N>'"),
        (
            "generate x --greedy --top-p 0.5",
            "error: the argument '--greedy' cannot be used with '--top-p <F>'",
        ),
        (
            "generate x --greedy --min-p 0.5",
            "error: the argument '--greedy' cannot be used with '--min-p <F>'",
        ),
        (
            "generate x --greedy --xtc-probability 0.5",
            "error: the argument '--greedy' cannot be used with '--xtc-probability <F>'",
        ),
        (
            "generate x --mirostat-tau 5 --top-k 40",
            "error: the argument '--mirostat-tau <F>' cannot be used with '--top-k <N>'",
        ),
        (
            "generate x --regex a --grammar f",
            "error: the argument '--regex <RE>' cannot be used with '--grammar <FILE>'",
        ),
        (
            "chat --json-schema f --regex a",
            "error: the argument '--json-schema <FILE|SCHEMA>' cannot be used with '--regex <RE>'",
        ),
        ("generate x --mirostat-eta 0.1", "error: the following required arguments were not provided:"),
        ("generate x --xtc-threshold 0.1", "error: the following required arguments were not provided:"),
        ("generate x --dry-base 2", "error: the following required arguments were not provided:"),
        ("generate x --bad-words=", "error: a value is required for '--bad-words <S>' but none was supplied"),
        (
            "generate x --min-tokens -1",
            "error: invalid value '-1' for '--min-tokens <N>': a whole number of at least 0 is wanted",
        ),
        ("generate x --logprobs 5", "error: the following required arguments were not provided:"),
        (
            "generate x --json --logprobs 5 --logprobs-mode all",
            "error: invalid value 'all' for '--logprobs-mode <MODE>': log-probabilities `all` are unknown; wanted raw or processed",
        ),
        ("generate x --raw --system s", "error: the argument '--raw' cannot be used with '--system <S>'"),
        (
            "generate x --raw --chat-template f",
            "error: the argument '--raw' cannot be used with '--chat-template <FILE>'",
        ),
        (
            "generate x --tokenizer f --tokenizer-pre n",
            "error: the argument '--tokenizer <FILE>' cannot be used with '--tokenizer-pre <NAME>'",
        ),
        ("generate x y", "error: unexpected argument 'y' found"),
        ("generate x --stop=", "error: a value is required for '--stop <S>' but none was supplied"),
        ("chat --raw", "error: unexpected argument '--raw' found"),
        ("pull", "error: the following required arguments were not provided:"),
        ("inspect", "error: the following required arguments were not provided:"),
    ];
    for (words, wanted) in cases {
        let found = run(&mut specgen(&words.split(' ').collect::<Vec<_>>()));
        let first = found.stderr.lines().next().unwrap_or_default();
        assert_eq!((found.code, first, found.stdout.as_str()), (Some(2), *wanted, ""), "specgen {words}");
    }
}

/// What the library refuses before any model is touched; exit code 2 too.
#[test]
fn parameters_out_of_range() {
    let cases: &[(&str, &str)] = &[
        ("--temperature -1", "--temperature is -1, but must be a number of at least 0"),
        ("--temperature nan", "--temperature is NaN, but must be a number of at least 0"),
        ("--temperature inf", "--temperature is inf, but must be a number of at least 0"),
        ("--top-p 1.5", "--top-p is 1.5, but must be between 0 and 1"),
        ("--min-p -0.1", "--min-p is -0.1, but must be between 0 and 1"),
        ("--repeat-penalty 0", "--repeat-penalty is 0, but must be a number above 0 (1 is off)"),
        ("--presence-penalty 1000", "--presence-penalty is 1000, but must be between -100 and 100"),
        ("--frequency-penalty NaN", "--frequency-penalty is NaN, but must be between -100 and 100"),
        ("--top-n-sigma -1", "--top-n-sigma is -1, but must be a number of at least 0"),
        ("--typical-p 2", "--typical-p is 2, but must be between 0 and 1"),
        ("--xtc-probability 2", "--xtc-probability is 2, but must be between 0 and 1"),
        (
            "--xtc-probability 1 --xtc-threshold 0.6",
            "--xtc-threshold is 0.6, but must be between 0 and 0.5 (two tokens can't both be more likely)",
        ),
        ("--mirostat-tau -1", "--mirostat-tau is -1, but must be a number of at least 0"),
        (
            "--mirostat-tau 5 --temperature 0",
            "--mirostat-tau has nothing to choose from at --temperature 0, which always takes the most likely token; \
             raise the temperature or leave it out",
        ),
        (
            "--xtc-probability 1 --temperature 0",
            "--xtc-probability has nothing to choose from at --temperature 0, which always takes the most likely \
             token; raise the temperature or leave it out",
        ),
        ("--mirostat-tau 5 --mirostat-eta 2", "--mirostat-eta is 2, but must be between 0 and 1"),
        ("--dry-multiplier -1", "--dry-multiplier is -1, but must be a number of at least 0"),
        ("--dry-multiplier 1 --dry-base 0.5", "--dry-base is 0.5, but must be a number of at least 1"),
        ("--dry-multiplier 1 --dry-allowed-length 0", "--dry-allowed-length is 0, but must be at least 1"),
        (
            "--logit-bias 3=1 --logit-bias 3=2",
            "--logit-bias names token 3 twice, with 1 and 2; give each token once",
        ),
        (
            "--logit-bias 3=nan",
            "--logit-bias of token 3 is NaN, but must be a finite number, or -inf to ban the token",
        ),
    ];
    for (words, wanted) in cases {
        let words: Vec<&str> = ["generate", "x"].into_iter().chain(words.split(' ')).collect();
        assert_eq!(run(&mut specgen(&words)).fails(2), *wanted, "{words:?}");
    }
}

/// Files of grammars, as far as they can be read without a model; exit code 2 too.
#[test]
fn grammars_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("schema.json"), "{\n  \"type\": object\n}").unwrap();
    std::fs::write(path("list.json"), "[]").unwrap();
    std::fs::write(path("rules.gbnf"), "root ::= \"a\"\n").unwrap();
    std::fs::write(path("empty"), "\n").unwrap();
    let typo = "\u{feff}{\"properties\": {\"name\": {\"maxLenght\": 3}}}";
    std::fs::write(path("typo.json"), typo).unwrap();
    let cases = [
        ("--json-schema", "schema.json", "is not JSON: expected value at line 2 column 11"),
        (
            "--json-schema",
            "list.json",
            "is no JSON schema; an object is wanted, such as {\"type\": \"object\"}",
        ),
        ("--json-schema", "empty", "is empty; it would allow nothing"),
        (
            "--json-schema",
            "typo.json",
            "has a keyword that is not supported, at /properties/name/maxLenght; correct it or leave it out, or have \
             such ignored by \"x-guidance\": {\"lenient\": true}",
        ),
        ("--grammar", "rules.gbnf", "is GBNF or BNF (`::=`); Lark is wanted: `start: \"yes\" | \"no\"`"),
        ("--grammar", "nowhere", "No such file or directory (os error 2)"),
        ("--json-schema", "nowhere", "No such file or directory (os error 2)"),
    ];
    for (option, name, wanted) in cases {
        let error = run(&mut specgen(&["generate", "x", option, &path(name)])).fails(2);
        assert_eq!(error, format!("{option} {}: {wanted}", path(name)));
    }
    let error = run(&mut specgen(&["generate", "x", "--json-schema", "{\"type\"}"])).fails(2);
    assert_eq!(error, "--json-schema is not JSON: expected `:` at line 1 column 8");
    assert_eq!(
        run(&mut specgen(&["chat", "--regex", ""])).fails(2),
        "--regex is empty; it would allow nothing"
    );
}

#[test]
fn prompts_that_are_none() {
    let empty = "the prompt is empty; give at least one character";
    assert_eq!(run(&mut specgen(&["generate", ""])).fails(2), empty);
    assert_eq!(run(specgen(&["generate"]).write_stdin("")).fails(2), empty);
    assert_eq!(run(specgen(&["generate", "-"]).write_stdin("\n")).fails(2), empty);
    let error = run(specgen(&["generate", "-"]).write_stdin(&b"ab\xC3\xA9\xFF"[..])).fails(1);
    insta::assert_snapshot!(error, @"the prompt on stdin is not UTF-8: byte 4 (counted from 0) begins no character; convert it first (iconv)");
}

#[test]
fn models_that_are_not_there() {
    let error = run(&mut specgen(&["generate", "x", "-m", "smollm2-135m-instrct"])).fails(1);
    assert!(error.contains("no model is called `smollm2-135m-instrct`"), "{error}");
    assert!(error.contains("did you mean smollm2-135m-instruct"), "{error}");
    assert!(error.ends_with("; `specgen list` shows the names"), "{error}");
    let error = run(&mut specgen(&["generate", "x", "-m", "./nowhere/model.gguf"])).fails(1);
    assert!(
        error.starts_with("./nowhere/model.gguf: ") && error.matches("no such file or folder").count() == 1,
        "{error}"
    );
    let error = run(&mut specgen(&["generate", "x", "-m", ""])).fails(1);
    assert!(error.starts_with("the model is empty"), "{error}");
    // The names of the default model and of its way out.
    for words in [&["generate", "x"][..], &["chat"], &["pull", "smollm2-135m"], &["inspect", "smollm2-135m"]]
    {
        let error = run(&mut specgen(words)).fails(1);
        assert!(error.starts_with("could not fetch smollm2-135m-instruct: offline: "), "{error}");
        assert!(error.contains("is not there; pull smollm2-135m-instruct with the network on"), "{error}");
    }
}

#[test]
fn one_bad_name_does_not_keep_pull_from_the_others() {
    let found = run(&mut specgen(&["pull", "no-such-model", "smollm2-135m"]));
    assert_eq!(found.code, Some(1));
    assert!(found.stderr.contains("`no-such-model`") && found.stderr.contains("offline"), "{}", found.stderr);
    assert!(found.stderr.ends_with("specgen: error: 2 of 2 models not fetched\n"), "{}", found.stderr);
}

#[test]
fn files_that_are_no_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("text.gguf"), "Once upon a time there was a text that called itself a model.\n")
        .unwrap();
    std::fs::write(path("empty.gguf"), "").unwrap();
    std::fs::write(path("cut.gguf"), b"GGUF\x03\0\0\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F").unwrap();
    std::fs::write(path("notes.txt"), "not even the name").unwrap();
    std::fs::write(path("cut.safetensors"), b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F{").unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    for name in ["text.gguf", "empty.gguf", "cut.gguf", "notes.txt", "cut.safetensors", "folder"] {
        for words in [&["generate", "x", "-m"][..], &["inspect"]] {
            let error = run(specgen(words).arg(path(name))).fails(1);
            assert!(error.starts_with(&path(name)), "{name}: {error}");
        }
    }
    for name in [path("folder"), "./nowhere".into()] {
        let error = run(specgen(&["pull"]).arg(&name)).fails(1);
        assert_eq!(error, format!("{name} is a path; a model's name or a hub repository org/name is wanted"));
    }
    for (name, why) in [
        ("a/b/c", "`a/b/c` has 3 parts, two are wanted"),
        ("org/name@", "a branch, tag or commit is wanted after the `@`"),
    ] {
        let error = run(&mut specgen(&["pull", name])).fails(1);
        let form = "org/name[@revision][:file]";
        assert_eq!(error, format!("`{name}` is no file or folder, and no hub repository {form}: {why}"));
    }
}

#[test]
fn a_model_cut_off() {
    let Some(model) = real_model() else { return };
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(model).unwrap();
    for len in [whole.len() / 2, 100_000, 30] {
        let path = dir.path().join("cut.gguf");
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = run(specgen(&["generate", "x", "-m"]).arg(&path)).fails(1);
        assert!(error.starts_with(path.to_str().unwrap()), "{len}: {error}");
    }
}

#[test]
fn options_that_do_not_fit_the_model() {
    let Some(model) = real_model() else { return };
    let cases: &[(&[&str], &str)] = &[
        (
            &["--context", "8"],
            "but the context holds 8 with the answer; shorten it or raise the context length (--context N)",
        ),
        (&["--logit-bias", "999999=1"], "--logit-bias names token 999999, but the vocabulary ends at 49151"),
        (&["--context", "999999999"], "the model was trained on 8192"),
        (&["--tokenizer", "/nowhere/tokenizer.json"], "/nowhere/tokenizer.json"),
        (&["--tokenizer-pre", "klingon"], "`klingon` is not known, and a wrong one gives wrong ids; "),
        (
            &["--tokenizer-pre", "klingon"],
            "; --tokenizer FILE gives another, --tokenizer-pre NAME a pre-tokenizer",
        ),
        (&["--chat-template", "/nowhere/template.jinja"], "/nowhere/template.jinja"),
        (&["--draft", "/nowhere/draft.gguf"], "/nowhere/draft.gguf"),
        (&["--draft", "self:q9"], "a copy of the target in `q9`; wanted one of q2_k, "),
        (
            &["-k", "0", "--draft", "self:q4_k"],
            " have 576 elements, no whole blocks of 256; wanted one of q4_0, ",
        ),
        (&["--regex", "a(b"], "--regex "),
        (&["--json-schema", "{\"type\": \"word\"}"], "--json-schema "),
        (&["--json-schema", "false"], "--json-schema "),
        (
            &["--min-tokens", "9", "-n", "8"],
            "--min-tokens is 9, but must be at most the 8 tokens a text may have",
        ),
        (&["--logprobs", "999999", "--json"], "--logprobs is 999999, but the vocabulary has 49152 tokens"),
        (
            &["--draft", "ngrams"],
            "no model is called `ngrams`, and there is no such file; did you mean ngram?",
        ),
        (&["--draft", "None"], "did you mean none?"),
        (&["--draft", "smollm2-135m-instrct"], "did you mean smollm2-135m-instruct"),
        (&["-k", "0", "--draft", "ngrams"], "did you mean ngram?"),
        (&["-k", "0", "--draft", "/nowhere/draft.gguf"], "/nowhere/draft.gguf"),
    ];
    for (words, wanted) in cases {
        let prompt = "A prompt that has far more than eight tokens, as one counts them.";
        // What an option's value makes of the model is wrong usage, as it is where that can be told without one.
        let option = words[0];
        let is_usage = wanted.starts_with(option) && !option.starts_with("--tokenizer");
        let error =
            run(specgen(&["generate", "-m", model, prompt]).args(*words)).fails(1 + i32::from(is_usage));
        assert!(error.contains(wanted), "{words:?}: {error}");
    }
    for device in ["cuda", "metal"] {
        if let Some(error) =
            run(&mut specgen(&["generate", "x", "-m", model, "--device", device])).stderr.lines().last()
        {
            // A build with the feature, on a machine with the device, may well work.
            assert!(!error.contains("panicked"), "{error}");
        }
    }
}
