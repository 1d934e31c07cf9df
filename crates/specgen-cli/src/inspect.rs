//! `specgen inspect`: what a model is and the memory it needs, from the headers of its files.

mod text;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use specgen::{
    DEFAULT_CONTEXT_LEN, DraftSource, OpenModel, Overrides, Plan,
    device::DeviceSpec,
    draft::{self, DraftVocab},
    memory::{self, ModelMemory, Usage},
    model::config::{ArchConfig, RopeScaling},
    tokenizer::Tokenizer,
    weights::Format,
};

use crate::{
    args::InspectArgs,
    output::{print, print_json},
    progress,
};

pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode> {
    let store = args.files.store()?;
    let progress = progress::reporter(false);
    let target = OpenModel::open(&store.resolve(&args.model, &*progress)?, &args.files.overrides())?;
    let source = args.draft.as_deref().map_or(DraftSource::None, DraftSource::from);
    let files = source.resolve(&store, &*progress)?;
    let model = files.map(|files| OpenModel::open(&files, &Overrides::default())).transpose()?;
    let draft = match (&model, source.copy_format()?) {
        (Some(model), _) => Some(Draft::Model(model)),
        (None, Some(format)) => Some(Draft::Copy(source.to_string(), format)),
        (None, None) => None,
    };
    let report = Report::new(&target, draft.as_ref(), args)?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.text()?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What drafts, and takes memory for it.
enum Draft<'a> {
    Model(&'a OpenModel),
    /// A copy of the target: its name, and its format.
    Copy(String, Format),
}

/// Everything there is to show. Sizes in bytes, lengths in tokens.
#[derive(Serialize)]
struct Report {
    name: String,
    path: String,
    architecture: Architecture,
    parameters: u64,
    weight_bytes: u64,
    tensor_types: Vec<TensorType>,
    tokenizer: TokenizerReport,
    /// The first line of the chat template.
    chat_template: Option<String>,
    memory: MemoryPlan,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<TensorLine>>,
}

#[derive(Serialize)]
struct Architecture {
    name: &'static str,
    num_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    /// What it was trained to hold.
    context_len: usize,
    /// Layers that see only so many tokens: how many, and how far.
    sliding_window: Option<SlidingWindow>,
    rope: Vec<Rope>,
    attn_softcap: Option<f32>,
    final_softcap: Option<f32>,
}

#[derive(Serialize)]
struct SlidingWindow {
    num_layers: usize,
    tokens: usize,
}

#[derive(Serialize)]
struct Rope {
    theta: f64,
    dim: usize,
    scaling: &'static str,
}

#[derive(Serialize)]
struct TensorType {
    name: String,
    num_tensors: usize,
    parameters: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorLine {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    shape: Vec<usize>,
    bytes: u64,
}

#[derive(Serialize)]
struct TokenizerReport {
    description: String,
    vocab_size: usize,
    bos: Option<Token>,
    adds_bos: bool,
    eos: Option<Token>,
    /// What ends a text.
    ends: Vec<Token>,
}

#[derive(Serialize)]
struct Token {
    id: u32,
    text: String,
}

#[derive(Serialize)]
struct MemoryPlan {
    context_len: usize,
    /// How keys and values are kept.
    kv_type: &'static str,
    target: Memory,
    draft: Option<DraftPlan>,
    total: u64,
    /// `None` where the system does not tell.
    available: Option<u64>,
}

#[derive(Serialize)]
struct DraftPlan {
    name: String,
    /// Tokens that both models have.
    shared_vocab_size: usize,
    /// For a draft of another vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_vocabulary: Option<OtherVocabulary>,
    #[serde(flatten)]
    memory: Memory,
}

#[derive(Serialize)]
struct OtherVocabulary {
    vocab_size: usize,
    /// Of the target's tokens of ordinary text, the share the draft has too.
    text_share: f64,
    /// In words.
    #[serde(skip)]
    coverage: draft::Coverage,
}

#[derive(Serialize)]
struct Memory {
    weights: u64,
    kv_cache: u64,
    kv_cache_per_token: u64,
    buffers: u64,
    total: u64,
}

impl Report {
    /// # Errors
    /// [`specgen::Error::VocabMismatch`] for a draft that has too few of the target's tokens.
    fn new(target: &OpenModel, draft: Option<&Draft<'_>>, args: &InspectArgs) -> specgen::Result<Self> {
        let tensors: Vec<TensorLine> = target
            .weights
            .tensors()
            .map(|t| TensorLine { name: t.name, kind: t.type_name, shape: t.shape, bytes: t.bytes })
            .collect();
        let tensor_types = TensorType::of(&tensors);
        let template = match &target.chat_template {
            Ok(template) => template.as_ref().map(|template| first_line(template.source())),
            Err(broken) => Some(format!("unusable: {broken}")),
        };
        Ok(Self {
            name: target.name.clone(),
            path: target.weights.path().display().to_string(),
            architecture: Architecture::new(&target.config),
            parameters: tensor_types.iter().map(|t| t.parameters).sum(),
            weight_bytes: target.weights.total_bytes(),
            tensor_types,
            tokenizer: TokenizerReport::new(&target.tokenizer),
            chat_template: template,
            memory: MemoryPlan::new(target, draft, args)?,
            tensors: args.tensors.then_some(tensors),
        })
    }
}

impl Architecture {
    fn new(config: &ArchConfig) -> Self {
        let windows: Vec<usize> = config.layers.iter().filter_map(|layer| layer.window).collect();
        let scaling = |scaling: &RopeScaling| match scaling {
            RopeScaling::None => "none",
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Llama3 { .. } => "llama3",
            RopeScaling::Factors { .. } => "factors",
        };
        let rope = |rope: &specgen::model::config::RopeConfig| Rope {
            theta: rope.theta,
            dim: rope.dim,
            scaling: scaling(&rope.scaling),
        };
        Self {
            name: config.architecture.name(),
            num_layers: config.layers.len(),
            hidden_size: config.hidden_size,
            intermediate_size: config.intermediate_size,
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            vocab_size: config.vocab_size,
            context_len: config.context_len,
            sliding_window: windows
                .iter()
                .max()
                .map(|&tokens| SlidingWindow { num_layers: windows.len(), tokens }),
            rope: config.ropes.iter().map(rope).collect(),
            attn_softcap: config.attn_softcap,
            final_softcap: config.final_softcap,
        }
    }
}

impl TensorType {
    /// The types among `tensors`, most bytes first.
    fn of(tensors: &[TensorLine]) -> Vec<Self> {
        let mut types: Vec<Self> = Vec::new();
        for tensor in tensors {
            let index = types.iter().position(|t| t.name == tensor.kind).unwrap_or_else(|| {
                types.push(Self { name: tensor.kind.clone(), num_tensors: 0, parameters: 0, bytes: 0 });
                types.len() - 1
            });
            let t = &mut types[index];
            t.num_tensors += 1;
            t.parameters += tensor.shape.iter().map(|&n| n as u64).product::<u64>();
            t.bytes += tensor.bytes;
        }
        types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
        types
    }
}

impl TokenizerReport {
    fn new(tokenizer: &Tokenizer) -> Self {
        let token = |id: u32| Token { id, text: tokenizer.token_text(id).unwrap_or_default().to_owned() };
        Self {
            description: tokenizer.description(),
            vocab_size: tokenizer.vocab_size(),
            bos: tokenizer.bos().map(token),
            adds_bos: tokenizer.adds_bos(),
            eos: tokenizer.eos().map(token),
            ends: tokenizer.end_of_generation().iter().copied().map(token).collect(),
        }
    }
}

impl MemoryPlan {
    /// As [`specgen::EngineBuilder`] plans it.
    fn new(target: &OpenModel, draft: Option<&Draft<'_>>, args: &InspectArgs) -> specgen::Result<Self> {
        let context_len = args.context.unwrap_or(DEFAULT_CONTEXT_LEN.min(target.config.context_len));
        let kv_type = DeviceSpec::Cpu.kv_type(args.kv.kind)?;
        let rows = memory::logits_rows(Plan::default().max_tokens(), 1);
        let usage = Usage { context_len, num_sequences: 1, rows, kv_type, num_logits: None };
        let memory = target.memory(usage);
        let target_memory = Memory::new(&memory, context_len);
        // As many logits as a draft has unless told otherwise.
        let usage_of = |draft: &OpenModel, vocab: &DraftVocab| {
            let head_ids = vocab.head_ids(&draft.tokenizer, draft.config.vocab_size, None);
            let num_logits = head_ids.map(|ids| ids.len());
            Usage { context_len: context_len.min(draft.config.context_len), rows: 1, num_logits, ..usage }
        };
        let plan_draft = |draft: &Draft<'_>| -> specgen::Result<DraftPlan> {
            Ok(match draft {
                Draft::Model(draft) => {
                    let vocab = DraftVocab::between(&target.tokenizer, &draft.tokenizer)?;
                    let usage = usage_of(draft, &vocab);
                    let other = |coverage: draft::Coverage| OtherVocabulary {
                        vocab_size: coverage.draft_vocab_size,
                        text_share: (coverage.text_share * 1e4).round() / 1e4,
                        coverage,
                    };
                    DraftPlan {
                        name: draft.name.clone(),
                        shared_vocab_size: vocab.num_shared(),
                        other_vocabulary: vocab.coverage().map(other),
                        memory: Memory::new(&draft.memory(usage), usage.context_len),
                    }
                }
                Draft::Copy(name, format) => {
                    let vocab = DraftVocab::Shared(target.tokenizer.vocab_size());
                    let memory = target.memory_of_copy(name, *format, usage_of(target, &vocab))?;
                    DraftPlan {
                        name: name.clone(),
                        shared_vocab_size: vocab.num_shared(),
                        other_vocabulary: None,
                        memory: Memory::new(&memory, context_len),
                    }
                }
            })
        };
        let draft = draft.map(plan_draft).transpose()?;
        let total = target_memory.total.saturating_add(draft.as_ref().map_or(0, |draft| draft.memory.total));
        Ok(Self {
            context_len,
            kv_type: kv_type.name(),
            target: target_memory,
            draft,
            total,
            available: memory::available(),
        })
    }
}

impl Memory {
    fn new(plan: &ModelMemory, context_len: usize) -> Self {
        Self {
            weights: plan.weights,
            kv_cache: plan.kv_cache,
            kv_cache_per_token: plan.kv_cache / context_len.max(1) as u64,
            buffers: plan.buffers,
            total: plan.total(),
        }
    }
}

/// The first line with something on it, cut where it is long.
fn first_line(template: &str) -> String {
    const MAX: usize = 60;
    let line = template.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let cut: String = line.chars().take(MAX).collect();
    if cut.len() < line.len() { cut + "..." } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_summed_and_the_largest_comes_first() {
        let tensor = |kind: &str, shape: &[usize], bytes| TensorLine {
            name: "x".into(),
            kind: kind.into(),
            shape: shape.to_vec(),
            bytes,
        };
        let types =
            TensorType::of(&[tensor("F32", &[3], 12), tensor("F16", &[2, 5], 20), tensor("F32", &[], 4)]);
        let found: Vec<_> =
            types.iter().map(|t| (t.name.as_str(), t.num_tensors, t.parameters, t.bytes)).collect();
        assert_eq!(found, [("F16", 1, 10, 20), ("F32", 2, 4, 16)]);
    }

    #[test]
    fn a_template_is_cut_between_characters() {
        assert_eq!(first_line("\n  {%- if x %}\nmore"), "{%- if x %}");
        assert_eq!(first_line(&"é".repeat(61)), "é".repeat(60) + "...");
        assert_eq!(first_line(""), "");
    }
}
