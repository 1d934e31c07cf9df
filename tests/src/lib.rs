//! Shared pieces of the test suites.

pub mod drafters;
pub mod faults;
pub mod features;
pub mod plans;
pub mod real;
pub mod spelled;
pub mod tiny;
pub mod toy;
pub mod vocabularies;

pub use specgen_proof::{enumeration, statistics};

/// Runs sequences of `engine` side by side, each until its text ends.
///
/// # Panics
/// If a round fails.
pub fn finish_together(engine: &specgen::Engine, sequences: &mut [specgen::Sequence]) {
    let mut rounds = engine.rounds();
    for sequence in sequences.iter_mut() {
        while rounds.prefill(sequence).expect("a prompt that can be fed") {}
    }
    loop {
        let mut live: Vec<_> = sequences.iter_mut().filter(|s| s.finish_reason().is_none()).collect();
        if live.is_empty() {
            break;
        }
        for result in rounds.step(&mut live).expect("a round for all") {
            result.expect("a round for each");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Every file that the README's section on exactness links to is there, and every test it names is in one of those of
    /// its line.
    #[test]
    fn what_the_readme_claims_is_tested() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let readme = std::fs::read_to_string(root.join("README.md")).expect("a README");
        let (_, section) = readme.split_once("## Exactness").expect("a section on exactness");
        let section = section.split("\n## ").next().unwrap_or_default();
        let mut num_tests = 0;
        for line in section.lines() {
            let links = line.split("](").skip(1).filter_map(|link| link.split(')').next());
            let paths: Vec<_> = links.map(|link| root.join(link)).collect();
            assert!(paths.iter().all(|path| path.exists()), "{paths:?}");
            let sources: String =
                paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
            for name in line.split('`').skip(1).step_by(2).filter(|name| name.contains('_')) {
                assert!(sources.contains(&format!("fn {name}(")), "{name} is in none of {paths:?}");
                num_tests += 1;
            }
        }
        assert!(num_tests > 20, "{num_tests}");
    }
}
