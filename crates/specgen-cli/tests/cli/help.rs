//! Help and version.

use crate::{run, specgen};

#[test]
fn without_a_subcommand_there_is_help_and_exit_code_2() {
    let found = run(&mut specgen(&[]));
    assert_eq!((found.code, found.stdout.as_str()), (Some(2), ""));
    assert_eq!(found.stderr, run(&mut specgen(&["-h"])).ok());
}

#[test]
fn the_version_names_the_features() {
    let version = run(&mut specgen(&["--version"])).ok();
    assert!(version.starts_with("specgen 0.") && version.contains(" (features: "), "{version}");
}

#[test]
fn help() {
    insta::assert_snapshot!(run(&mut specgen(&["--help"])).ok());
}

#[test]
fn help_of_generate() {
    insta::assert_snapshot!(run(&mut specgen(&["generate", "--help"])).ok());
}

#[test]
fn help_of_bench() {
    insta::assert_snapshot!(run(&mut specgen(&["bench", "--help"])).ok());
}

#[test]
fn help_of_verify() {
    insta::assert_snapshot!(run(&mut specgen(&["verify", "--help"])).ok());
}

#[test]
fn help_of_chat() {
    insta::assert_snapshot!(run(&mut specgen(&["chat", "--help"])).ok());
}

#[test]
fn help_of_pull_list_inspect_score_and_batch() {
    for name in ["pull", "list", "inspect", "score", "batch"] {
        insta::assert_snapshot!(name, run(&mut specgen(&[name, "--help"])).ok());
    }
}
