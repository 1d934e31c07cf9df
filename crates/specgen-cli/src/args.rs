//! The command line: clap types, turned into the library's.

use std::{path::PathBuf, str::FromStr, sync::LazyLock};

use clap::{Args, Parser, Subcommand, builder::NonEmptyStringValueParser};
use specgen::{
    DEFAULT_NUM_DRAFT_TOKENS, Overrides, SamplingParams,
    device::DeviceSpec,
    models::{Store, StoreOptions},
};

/// Tokens generated unless the user says otherwise.
const DEFAULT_MAX_TOKENS: usize = 512;
/// More drafted tokens a round than any draft is right about; keeps the memory plan within reason.
const MAX_DRAFT_TOKENS: usize = 1024;
/// More threads than any machine this runs on has cores.
const MAX_THREADS: usize = 1024;

static DEFAULTS: LazyLock<SamplingParams> = LazyLock::new(SamplingParams::default);

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        ("cuda", cfg!(feature = "cuda")),
        ("metal", cfg!(feature = "metal")),
        ("accelerate", cfg!(feature = "accelerate")),
        ("mkl", cfg!(feature = "mkl")),
    ];
    let on: Vec<_> = features.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    let on = if on.is_empty() { "none".to_owned() } else { on.join(", ") };
    format!("{} (features: {on})", env!("CARGO_PKG_VERSION"))
});

/// A mistake on the command line that clap cannot see; exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Exact speculative decoding of language models on your own machine.
///
/// A draft guesses, one pass of the target checks the guesses: the text is the target's own, in less time.
#[derive(Debug, Parser)]
#[command(name = "specgen", version = VERSION.as_str(), arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "Examples:
  specgen generate \"Why is the sky blue?\"
  specgen chat -m qwen2.5-coder-1.5b-instruct
  specgen list

Models are kept in the user's cache folder, or in SPECGEN_HOME.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate text from a prompt
    Generate(GenerateArgs),
    /// Talk with a model, turn by turn
    Chat(ChatArgs),
    /// Fetch models by name and check those already here
    Pull(PullArgs),
    /// List the models that have a name
    List(ListArgs),
    /// Show what a model is and the memory it needs, without loading it
    Inspect(InspectArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Text goes to stdout, everything else to stderr.

Examples:
  specgen generate \"Why is the sky blue?\"
  specgen generate -m qwen2.5-coder-1.5b-instruct --greedy --json \"Reverse a string in C\"
  specgen generate --raw --seed 7 -n 64 - < story.txt")]
pub(crate) struct GenerateArgs {
    /// What to say to the model; `-`, or no prompt and a pipe: read it from stdin
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "chat_template"])]
    pub(crate) raw: bool,
    /// Go on past the tokens that end a text, for measurements of a fixed length
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object at the end instead of the text as it comes
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Ctrl-C stops an answer, Ctrl-D leaves. With a pipe on stdin, each line is a turn.

Examples:
  specgen chat
  specgen chat -m qwen2.5-coder-1.5b-instruct --system \"Answer in one sentence.\"
  printf 'Hi!\\nWhat did I just say?\\n' | specgen chat --greedy")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) text: TextArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// What a text looks like, for one answer or many.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// Tokens to generate at most, per answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = DEFAULT_MAX_TOKENS)]
    #[arg(allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) max_tokens: usize,
    /// End before this string; may be given more than once
    #[arg(long, value_name = "S", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// The system message
    #[arg(long, value_name = "S")]
    pub(crate) system: Option<String>,
    /// Print nothing but the text and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// The target: a name (see `specgen list`), a file or folder, or a hub repository
    /// org/name[@revision][:file] [default: smollm2-135m-instruct]
    #[arg(short = 'm', long, value_name = "MODEL", alias = "model")]
    pub(crate) target: Option<String>,
    /// Who guesses: a smaller model of the same vocabulary, `ngram` (the text's own past) or `none`
    /// [default: as `specgen list` recommends, else ngram]
    #[arg(long, value_name = "MODEL|ngram|none")]
    pub(crate) draft: Option<String>,
    /// Tokens drafted per round; 0 is plain decoding
    #[arg(short = 'k', long, value_name = "N", default_value_t = DEFAULT_NUM_DRAFT_TOKENS)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 0, MAX_DRAFT_TOKENS))]
    pub(crate) num_draft_tokens: usize,
    /// Tokens a text may have, prompt included [default: 8192, or what the model was trained on if less]
    #[arg(long, value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, usize::MAX))]
    pub(crate) context: Option<usize>,
    /// Where to run: cpu, cuda, cuda:INDEX, metal, or reference (candle's CPU, slow, for cross-checks)
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceSpec::Cpu)]
    pub(crate) device: DeviceSpec,
    /// CPU threads; 0: one per physical core
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 0, MAX_THREADS))]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

/// What replaces a model's own files, and whether new ones may be fetched.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct FileArgs {
    /// A tokenizer.json instead of the target's own tokenizer
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The pre-tokenizer of a GGUF vocabulary, such as llama-bpe or qwen2, instead of the one the file names
    #[arg(long, value_name = "NAME", conflicts_with = "tokenizer")]
    tokenizer_pre: Option<String>,
    /// A chat template (Jinja) instead of the target's own
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Never use the network
    #[arg(long)]
    offline: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Always take the most likely token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    greedy: bool,
    /// Divides the logits; 0 is greedy, higher is more varied
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.temperature, allow_negative_numbers = true)]
    temperature: f32,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.top_k)]
    #[arg(allow_negative_numbers = true, value_parser = whole::<usize>)]
    top_k: usize,
    /// Keep the most likely tokens that together reach this probability; 1 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.top_p, allow_negative_numbers = true)]
    top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.min_p, allow_negative_numbers = true)]
    min_p: f32,
    /// Divides the logits of tokens already in prompt or text; 1 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.repetition_penalty, allow_negative_numbers = true)]
    repeat_penalty: f32,
    /// Subtracted from the logits of tokens already in the text; 0 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.presence_penalty, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtracted from a token's logit for each time the text holds it; 0 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.frequency_penalty, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Added to the logit of token ID, such as 42=-1.5; -inf bans it; may be given more than once
    #[arg(long, value_name = "ID=F", value_parser = logit_bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Makes the text repeatable [default: drawn, and told]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u64>)]
    seed: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "Files already here are read again and fetched anew if they are damaged.

Examples:
  specgen pull qwen2.5-coder-1.5b-instruct
  specgen pull Qwen/Qwen3-0.6B
  specgen pull org/name-GGUF:Q8_0")]
pub(crate) struct PullArgs {
    /// Names (see `specgen list`) or hub repositories org/name[@revision][:file]
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Never use the network: only check
    #[arg(long)]
    offline: bool,
    /// Print nothing but the paths and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "A model is `tested` if this project's tests have run its very file.

Examples:
  specgen list
  specgen list --json")]
pub(crate) struct ListArgs {
    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "A model known by name that is not here yet is fetched first.

Examples:
  specgen inspect smollm2-135m-instruct
  specgen inspect ./model.gguf --tensors
  specgen inspect qwen2.5-coder-1.5b-instruct --draft ./draft.gguf --context 32768")]
pub(crate) struct InspectArgs {
    /// A name (see `specgen list`), a file or folder, or a hub repository
    pub(crate) model: String,
    /// A draft to plan with; its vocabulary is compared
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft: Option<String>,
    /// Tokens to plan for [default: 8192, or what the model was trained on if less]
    #[arg(long, value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, usize::MAX))]
    pub(crate) context: Option<usize>,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

impl FileArgs {
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides {
            tokenizer: self.tokenizer.clone(),
            tokenizer_pre: self.tokenizer_pre.clone(),
            chat_template: self.chat_template.clone(),
        }
    }

    pub(crate) fn store(&self) -> specgen::Result<Store> {
        store(self.offline)
    }
}

impl PullArgs {
    pub(crate) fn store(&self) -> specgen::Result<Store> {
        store(self.offline)
    }
}

fn store(offline: bool) -> specgen::Result<Store> {
    let mut options = StoreOptions::from_env()?;
    options.offline |= offline;
    Ok(Store::new(options))
}

impl SamplingArgs {
    /// The library's parameters, checked as far as that is possible without a model.
    pub(crate) fn params(&self) -> Result<SamplingParams, UsageError> {
        let filters = match self.greedy {
            true => SamplingParams::greedy(),
            false => SamplingParams {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                ..SamplingParams::greedy()
            },
        };
        let params = SamplingParams {
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            ..filters
        };
        params.validate(usize::MAX).map_err(|error| UsageError(error.to_string()))?;
        Ok(params)
    }
}

/// A whole number, without the words of a parser.
fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "a whole number of at least 0 is wanted".to_owned())
}

fn within(text: &str, min: usize, max: usize) -> Result<usize, String> {
    let wanted = || match max {
        usize::MAX => format!("a whole number of at least {min} is wanted"),
        _ => format!("a whole number from {min} to {max} is wanted"),
    };
    text.parse().ok().filter(|n| (min..=max).contains(n)).ok_or_else(wanted)
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "a token id and a number are wanted, such as 42=-1.5".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn generate(words: &[&str]) -> GenerateArgs {
        match Cli::try_parse_from([&["specgen", "generate"], words].concat()).unwrap().command {
            Command::Generate(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn without_options_the_parameters_are_the_librarys() {
        assert_eq!(generate(&["x"]).sampling.params().unwrap(), SamplingParams::default());
        assert_eq!(generate(&["x", "--greedy"]).sampling.params().unwrap(), SamplingParams::greedy());
        assert!(
            format!("{:?}", Cli::try_parse_from(["specgen", "generate", "--help"]))
                .contains(specgen::DEFAULT_MODEL)
        );
    }

    #[test]
    fn every_sampling_option_reaches_its_parameter() {
        let words = "x --temperature 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --repeat-penalty 1.5 \
            --presence-penalty -2 --frequency-penalty 0.75 --logit-bias 7=-inf --logit-bias 8=2 --seed 9";
        let params = generate(&words.split_whitespace().collect::<Vec<_>>()).sampling.params().unwrap();
        let wanted = SamplingParams {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            presence_penalty: -2.0,
            frequency_penalty: 0.75,
            logit_bias: vec![(7, f32::NEG_INFINITY), (8, 2.0)],
            seed: Some(9),
        };
        assert_eq!(params, wanted);
    }
}
