//! The library's errors in the words of the command line: which option a parameter is, and which option helps.

use specgen::Error;

/// `error` in one line, with the options that have to do with it.
pub(crate) fn worded(error: &Error) -> String {
    match error {
        Error::Parameter { name, problem } => format!("{} {problem}", flag(name)),
        Error::Tokenizer { .. } => {
            format!("{error}; --tokenizer FILE gives another, --tokenizer-pre NAME a pre-tokenizer")
        }
        Error::ChatTemplate { .. } => {
            format!("{error}; --chat-template FILE gives one, `specgen generate --raw` does without")
        }
        Error::ContextOverflow { .. } | Error::OutOfMemory { .. } | Error::Allocation(_) => {
            format!("{error} (--context N)")
        }
        Error::NanLogits { .. } => {
            format!("{error} (--kv-type f32); `specgen pull NAME` checks the files of a model with a name")
        }
        Error::UnknownModel { .. } => format!("{error}; `specgen list` shows the names"),
        other => other.to_string(),
    }
}

/// The option that sets a parameter of the library.
fn flag(parameter: &str) -> String {
    match parameter {
        "repetition_penalty" => "--repeat-penalty".to_owned(),
        other => format!("--{}", other.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::CommandFactory;
    use specgen::{
        SamplingParams,
        grammar::Grammar,
        sampling::{Dry, Logprobs, Mirostat, Xtc},
    };

    use super::*;
    use crate::args::Cli;

    /// Every parameter that the library can complain about is an option that exists.
    #[test]
    fn every_parameter_has_its_option() {
        type Spoil = fn(&mut SamplingParams);
        let spoils: [Spoil; 23] = [
            |p| p.temperature = -1.0,
            |p| p.top_p = 2.0,
            |p| p.min_p = 2.0,
            |p| p.repetition_penalty = 0.0,
            |p| p.presence_penalty = 1e3,
            |p| p.frequency_penalty = 1e3,
            |p| p.logit_bias = vec![(1, f32::NAN)],
            |p| p.logit_bias = vec![(99, 1.0)],
            |p| p.top_n_sigma = -1.0,
            |p| p.typical_p = 2.0,
            |p| p.xtc = Some(Xtc { probability: 2.0, ..Xtc::default() }),
            |p| p.xtc = Some(Xtc { threshold: 2.0, ..Xtc::default() }),
            |p| p.mirostat = Some(Mirostat { tau: -1.0, ..Mirostat::default() }),
            |p| p.mirostat = Some(Mirostat { eta: -1.0, ..Mirostat::default() }),
            |p| p.dry = Some(Dry { multiplier: -1.0, ..Dry::default() }),
            |p| p.dry = Some(Dry { base: 0.0, ..Dry::default() }),
            |p| p.dry = Some(Dry { allowed_length: 0, ..Dry::default() }),
            |p| p.bad_words = vec!["".into()],
            |p| p.logprobs = Some(Logprobs { num_top: 11, ..Logprobs::default() }),
            |p| p.prompt_logprobs = Some(11),
            |p| p.grammar = Some(Grammar::json_schema("{")),
            |p| p.grammar = Some(Grammar::regex("")),
            |p| p.grammar = Some(Grammar::lark("")),
        ];
        let command = Cli::command();
        let generate = command.find_subcommand("generate").unwrap();
        for spoil in spoils {
            let mut params = SamplingParams::default();
            spoil(&mut params);
            let error = params.validate(10).unwrap_err();
            let Error::Parameter { name, .. } = error else { panic!("{error}") };
            let option = flag(name);
            assert!(
                generate.get_arguments().any(|arg| arg.get_long() == option.strip_prefix("--")),
                "{option}"
            );
            assert!(
                worded(&error).starts_with(&option) && !worded(&error).contains('_'),
                "{}",
                worded(&error)
            );
        }
    }
}
