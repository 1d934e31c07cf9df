//! The command line: clap types, turned into the library's.

mod grammar;
mod logprobs;
mod penalties;
mod plan;
mod sampling;
mod verify;

use std::{path::PathBuf, str::FromStr, sync::LazyLock};

use clap::{ArgAction, Args, Parser, Subcommand, builder::NonEmptyStringValueParser};
use specgen::{
    KvType, Overrides, Plan, Verification,
    device::DeviceSpec,
    models::{Store, StoreOptions},
};

pub(crate) use logprobs::LogprobsArgs;
pub(crate) use plan::PlanArgs;
pub(crate) use sampling::SamplingArgs;
pub(crate) use verify::VerifyArgs;

/// Tokens generated unless the user says otherwise.
const DEFAULT_MAX_TOKENS: usize = 512;
/// More drafted tokens a round than any draft is right about; keeps the memory plan within reason.
const MAX_DRAFT_TOKENS: usize = 1024;
/// More texts at once than any machine this runs on makes sooner than one after the other.
const MAX_SAMPLES: usize = 1024;
/// More threads than any machine this runs on has cores.
const MAX_THREADS: usize = 1024;

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

Models are kept in the user's cache folder, or in SPECGEN_HOME; `specgen pull --help` has more variables.
SPECGEN_CPU=scalar|avx2|avx512|amx|neon|dotprod forces an instruction set; the text stays the same.
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
    /// Answer a file of requests, several at once
    Batch(BatchArgs),
    /// Tell how likely a model finds a text: its log-probability and perplexity
    Score(ScoreArgs),
    /// Measure what speculation brings: texts with and without it, or the passes it lives on
    Bench(BenchArgs),
    /// Prove on a target and a draft of yours that speculation leaves the target's distribution as it is
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Texts: every prompt is decoded plainly and with each draft in turn, in one process, over one loaded target.
The speed-up is the median over texts of the rate against plain decoding's in the same round; `same text`
counts the texts that are plain decoding's own, token by token.
A file of prompts holds a JSON object a line: id, messages (or prompt), and if wanted category, max_tokens.
`predicted` is the speed-up by Leviathan et al.'s formula: E / (time of a round in plain decoding's
tokens), with E the tokens a round that follow from the lengths drafted and the share of tested
tokens that stood.
Tokens of a round come together. `ms a token` charges each an equal share of its round's time,
draft, pass and rest; `ms a round` is what a reader waits from one arrival of text to the next.
p95: 95 of 100 take no longer.
A plain read of the target's weights bounds what passes of one row can do.
--compare pairs the texts of two results by prompt; a difference is told as one (faster, slower)
where the runs of the two do not overlap, in the median over prompts; else it is within their spread.

Passes (--kernels): T(m) is the time of a pass of m rows behind 64 tokens of context. Up to 32 rows, logits
of all are computed, as a verification needs them; above, none, as in a prompt.
`read` is the time to read the same weights and do nothing with them.

Examples:
  specgen bench -m qwen2.5-coder-1.5b-instruct --draft ngram -k auto,4,7
  specgen bench --category code_edit --category rag --temperature 0.7 --json > after.json
  specgen bench --html bench.html
  specgen bench --compare before.json after.json
  specgen bench --kernels -m qwen2.5-coder-1.5b-instruct --rows 1,4,8
  SPECGEN_CPU=avx2 specgen bench --kernels"
)]
pub(crate) struct BenchArgs {
    /// The target: a name, a path, or a hub repository; may be given more than once
    #[arg(short = 'm', long = "target", visible_alias = "model", value_name = "MODEL", default_value = specgen::DEFAULT_MODEL)]
    pub(crate) targets: Vec<String>,
    /// Repetitions of each; medians are shown [default: 3 of texts, 9 of passes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: Option<u32>,
    /// CPU threads; 0: one per physical core
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 0, MAX_THREADS))]
    pub(crate) threads: usize,
    /// Print a JSON object for each model
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the results as a page with charts, too
    #[arg(long, value_name = "FILE", help_heading = "Texts")]
    pub(crate) html: Option<PathBuf>,
    /// Measure nothing, but compare two results that --json wrote
    #[arg(
        long,
        num_args = 2,
        action = ArgAction::Set,
        value_names = ["A.json", "B.json"],
        help_heading = "Texts",
        conflicts_with_all = ["reps", "threads", "html", "draft", "draft_head", "adapt", "lengths", "rules", "prompts", "category", "max_tokens", "temperature", "verify", "context", "kernels", "kind"]
    )]
    pub(crate) compare: Vec<PathBuf>,
    /// Who guesses, beside plain decoding, as for `generate`; may be given more than once [default: auto]
    #[arg(
        long,
        value_name = "auto|suffix|MODEL|suffix+MODEL|self:FORMAT|ngram|none",
        help_heading = "Texts"
    )]
    pub(crate) draft: Vec<String>,
    /// Tokens of text that a draft model can say: the N most frequent, or `all` that the target has too [default: all]
    #[arg(long, value_name = "N|all", value_parser = draft_head, help_heading = "Texts")]
    #[arg(allow_negative_numbers = true)]
    pub(crate) draft_head: Option<DraftHead>,
    /// Let a model that drafts learn from the text it drafts for; what it learned is forgotten before the next text
    #[arg(long, help_heading = "Texts")]
    pub(crate) adapt: bool,
    /// Tokens drafted per round: numbers, or `auto` for as many as save time [default: auto]
    #[arg(
        short = 'k',
        long = "num-draft-tokens",
        value_name = "N,auto,…",
        value_delimiter = ',',
        help_heading = "Texts"
    )]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| plan::length(s, 1))]
    lengths: Vec<Plan>,
    /// Rules that choose lengths, beside those of -k: auto, window, confidence[:P], tree:N
    #[arg(long = "draft-plan", value_name = "PLAN,…", value_delimiter = ',', value_parser = plan::plan, help_heading = "Texts")]
    rules: Vec<Plan>,
    /// A file of prompts instead of the built-in ones
    #[arg(long, value_name = "FILE", help_heading = "Texts")]
    pub(crate) prompts: Option<PathBuf>,
    /// Only the prompts of this category; may be given more than once
    #[arg(long, value_name = "NAME", help_heading = "Texts")]
    pub(crate) category: Vec<String>,
    /// Tokens of each text at most [default: as the prompt says, else 256]
    #[arg(short = 'n', long, value_name = "N", help_heading = "Texts")]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, usize::MAX))]
    pub(crate) max_tokens: Option<usize>,
    /// 0 is greedy; else the sampler's other settings are its defaults, and the round is the seed
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = temperature, help_heading = "Texts")]
    #[arg(allow_hyphen_values = true)]
    pub(crate) temperature: f32,
    /// How drafts are verified at a temperature above 0: rejection, block or coupled
    #[arg(long, value_name = "RULE", default_value_t = Verification::Rejection, help_heading = "Texts")]
    pub(crate) verify: Verification,
    /// Tokens a text may have, prompt included [default: 8192, or what the model was trained on if less]
    #[arg(long, value_name = "N", help_heading = "Texts")]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, usize::MAX))]
    pub(crate) context: Option<usize>,
    /// Time passes of several rows, not texts
    #[arg(
        long,
        help_heading = "Passes",
        conflicts_with_all = ["html", "draft", "draft_head", "adapt", "lengths", "rules", "prompts", "category", "max_tokens", "temperature", "verify", "context"]
    )]
    pub(crate) kernels: bool,
    /// Rows of the passes to time
    #[arg(
        long,
        value_name = "M,M,…",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6,8,12,16,32,128,512",
        help_heading = "Passes",
        requires = "kernels"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) rows: Vec<u32>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

impl BenchArgs {
    /// Repetitions.
    pub(crate) fn reps(&self) -> usize {
        self.reps.unwrap_or(if self.kernels { 9 } else { 3 }) as usize
    }

    /// The plans to compare, each once.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        let mut plans: Vec<Plan> = self.lengths.iter().chain(&self.rules).cloned().collect();
        let mut seen = std::collections::HashSet::new();
        plans.retain(|plan| seen.insert(plan.to_string()));
        if plans.is_empty() { vec![Plan::Auto] } else { plans }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Text goes to stdout, everything else to stderr.

Examples:
  specgen generate \"Why is the sky blue?\"
  specgen generate -m qwen2.5-coder-1.5b-instruct --greedy --json \"Reverse a string in C\"
  specgen generate --json-schema person.json \"Who was Ada Lovelace?\"
  specgen generate --num-samples 4 --seed 1 \"Name a star.\"
  specgen generate --raw --seed 7 -n 64 - < story.txt")]
pub(crate) struct GenerateArgs {
    /// What to say to the model; `-`, or no prompt and a pipe: read it from stdin
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "chat_template"])]
    pub(crate) raw: bool,
    /// A file with what the answer is expected to be, such as a text before an edit: what comes true is said sooner
    #[arg(long, value_name = "FILE")]
    pub(crate) prediction: Option<String>,
    /// Go on past the tokens that end a text, for measurements of a fixed length
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Generate N texts of the prompt in the same passes, each with a seed of its own that gives it again alone (they are
    /// coupled unless --verify says otherwise); each comes under a heading once it is done, with --json all are a list
    /// `choices`
    #[arg(long, value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, MAX_SAMPLES))]
    pub(crate) num_samples: Option<usize>,
    /// Print one JSON object at the end instead of the text as it comes
    #[arg(long)]
    pub(crate) json: bool,
    /// Write every round to FILE, too: what was drafted, what of it stood, and how long it took. A JSON object a line, the
    /// last with totals; to a FILE ending in .html, a page of the text with each token in the colour of who proposed it
    #[arg(long, value_name = "FILE", conflicts_with = "num_samples")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) logprobs: LogprobsArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Ctrl-C stops an answer, Ctrl-D or /quit leaves. With a pipe on stdin, each line is a turn.
What is typed is kept for the arrow keys, in the file chat_history of the models' folder.

Examples:
  specgen chat
  specgen chat -m qwen2.5-coder-1.5b-instruct --system \"Answer in one sentence.\"
  printf 'Hi!\\nWhat did I just say?\\n' | specgen chat --greedy"
)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) text: TextArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The text is taken as it is, without a chat template; special tokens in it are parsed.
Its first token (the beginning of sequence, where the model wants one) has nothing before it and
is not scored.

A text longer than the context is scored in windows of the context's length, each ending --stride
tokens after the one before. Only those last tokens of a window are scored, so windows overlap:
each token sees the context less the stride before it, or more. Figures of different contexts
and strides are not comparable; --json tells both.

Examples:
  specgen score story.txt
  specgen score --json --per-token - < story.txt
  specgen score --context 2048 --stride 512 book.txt"
)]
pub(crate) struct ScoreArgs {
    /// A file of text; `-`: read it from stdin
    pub(crate) file: String,
    /// Tokens from the end of a window to the end of the next, for texts longer than the context [default: half of it]
    #[arg(long, value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, usize::MAX))]
    pub(crate) stride: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: each token's id, text, log-probability, and rank among all tokens
    #[arg(long, requires = "json")]
    pub(crate) per_token: bool,
    /// Print nothing but the result and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The target: a name (see `specgen list`), a file or folder, or a hub repository
    #[arg(short = 'm', long, alias = "model", value_name = "MODEL", default_value = specgen::DEFAULT_MODEL)]
    #[arg(help_heading = "Model")]
    pub(crate) target: String,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A request is a JSON object on a line of its own: `prompt`, a text to continue as it is, or
`messages`, a list of {role, content} for the chat template. Beside them it may have custom_id,
max_tokens, stop, ignore_eos, and any sampling parameter by the name of its option with
underscores (temperature, top_p, seed, logprobs, json_schema, ...; but repetition_penalty and
dry_sequence_breakers; logit_bias is an object by token id, null bans). What it does not say is as
the options say; an unknown field is an error of that line. With --seed, each line has a seed of
its own, which its answer tells.

An answer has the line's number, its custom_id, a hash of all that was asked, and text, token_ids,
prompt_tokens, finish_reason, seed and verify; or an error. Answers are written as they come and
put into the order of the input at the end, by Ctrl-C too. The same command goes on where a run
was left: what is answered is skipped, what failed is tried again, changed requests are refused.

Exit codes: 0 all answered, 1 some failed (or the whole, with the reason), 2 wrong usage,
130 interrupted.

Examples:
  specgen batch questions.jsonl answers.jsonl
  specgen batch --parallel 8 --temperature 0.8 --seed 1 in.jsonl out.jsonl"
)]
pub(crate) struct BatchArgs {
    /// A file of requests; `-`: read them from stdin
    pub(crate) input: String,
    /// The file of answers, made if it is not there
    pub(crate) output: PathBuf,
    /// Requests at once; a finished one makes room for the next
    #[arg(short = 'p', long, value_name = "N", default_value_t = 4)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, MAX_SAMPLES))]
    pub(crate) parallel: usize,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Go on past the tokens that end a text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// Where an answer ends at the latest.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Tokens to generate at most, per answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = DEFAULT_MAX_TOKENS)]
    #[arg(allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) max_tokens: usize,
    /// End before this string; may be given more than once
    #[arg(long, value_name = "S", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

/// What a text looks like, for one answer or many.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
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
    /// Who guesses: `suffix` (by what was said before), a smaller model, best of the same vocabulary, `self:q4_0` (a copy
    /// of the target in that format, of q2_k to q8_0), `suffix+` one of the two, `ngram` (by the text's last words only) or
    /// `none` [default: auto, which is suffix and the model that `specgen list` recommends]
    #[arg(long, value_name = "auto|suffix|MODEL|suffix+MODEL|self:FORMAT|ngram|none")]
    pub(crate) draft: Option<String>,
    /// A text to guess from, such as documents that the answer will quote; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub(crate) draft_corpus: Vec<String>,
    /// Tokens of text that a draft model can say: the N most frequent, or `all` that the target has too. With fewer its
    /// passes are shorter and its drafts worse; in a vocabulary of many languages most of them have late tokens, and would
    /// have no drafts [default: all]
    #[arg(long, value_name = "N|all", value_parser = draft_head)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) draft_head: Option<DraftHead>,
    /// Let a model that drafts learn while it serves, from what the target says
    #[arg(long)]
    pub(crate) adapt: bool,
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Where a model runs and what replaces its files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct RunArgs {
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
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

/// How keys and values are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct KvArgs {
    /// How keys and values are kept, the draft's too: f32, f16 or bf16 [default: f16 on the CPU, else f32]
    #[arg(long = "kv-type", value_name = "TYPE")]
    pub(crate) kind: Option<KvType>,
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
#[command(
    after_help = "Files already here are read again and fetched anew if they are damaged. A name's sources are tried in turn.

Examples:
  specgen pull qwen2.5-coder-1.5b-instruct
  specgen pull Qwen/Qwen3-0.6B
  specgen pull org/name-GGUF:Q8_0

Environment:
  SPECGEN_HOME     the folder models are kept in [default: specgen in the user's cache folder]
  SPECGEN_OFFLINE  1: never use the network; so does HF_HUB_OFFLINE
  HF_ENDPOINT      another hub in place of https://huggingface.co, such as a mirror
  HF_TOKEN         the hub's access token, for gated and private repositories; else the file
                   HF_TOKEN_PATH, HF_HOME/token or ~/.cache/huggingface/token
  HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY  proxies; pip reads its own settings"
)]
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
    /// A draft to plan with; its vocabulary is compared with the target's
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
    pub(crate) kv: KvArgs,
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

fn temperature(text: &str) -> Result<f32, String> {
    let wanted = || "a number of at least 0 is wanted".to_owned();
    text.parse().ok().filter(|t: &f32| (0.0..f32::INFINITY).contains(t)).ok_or_else(wanted)
}

/// A whole number, without the words of a parser.
fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "a whole number of at least 0 is wanted".to_owned())
}

/// How many tokens a draft model can say; `None`: all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftHead(pub(crate) Option<usize>);

fn draft_head(text: &str) -> Result<DraftHead, String> {
    if text == "all" {
        return Ok(DraftHead(None));
    }
    let num_tokens = within(text, 1, usize::MAX).map_err(|wanted| format!("{wanted}, or `all`"))?;
    Ok(DraftHead(Some(num_tokens)))
}

fn within(text: &str, min: usize, max: usize) -> Result<usize, String> {
    let wanted = || match max {
        usize::MAX => format!("a whole number of at least {min} is wanted"),
        _ => format!("a whole number from {min} to {max} is wanted"),
    };
    text.parse().ok().filter(|n| (min..=max).contains(n)).ok_or_else(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_names_the_default_model() {
        let help = Cli::try_parse_from(["specgen", "generate", "--help"]).expect_err("help is no command");
        assert!(help.to_string().contains(specgen::DEFAULT_MODEL));
    }
}
