//! The memory plan: what a target and a draft will take, against what the machine has, before anything is
//! loaded.

use specgen_kernels::KvType;

use crate::{
    error::{Error, Result},
    model::{PROMPT_CHUNK, config::ArchConfig},
    score::SCORE_CHUNK,
};

/// What one model will take, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMemory {
    /// The model's name.
    pub name: String,
    /// All weights, as they lie in memory.
    pub weights: u64,
    /// Keys and values of all sequences, each of the whole context.
    pub kv_cache: u64,
    /// The logits rows of a pass over a draft, and what a prompt's chunk computes with.
    pub buffers: u64,
}

/// What a model is to be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of context.
    pub context_len: usize,
    /// Sequences at once.
    pub num_sequences: usize,
    /// Logits rows of a pass.
    pub rows: usize,
    /// How keys and values are kept.
    pub kv_type: KvType,
    /// Logits of a row; `None`: one for every id.
    pub num_logits: Option<usize>,
}

/// Logits rows of a target's largest pass: over drafts of this many tokens, one for each sequence, or over a chunk of a
/// text that is scored.
pub fn logits_rows(num_draft_tokens: usize, num_sequences: usize) -> usize {
    num_draft_tokens.saturating_add(1).saturating_mul(num_sequences).max(SCORE_CHUNK)
}

impl ModelMemory {
    /// A plan for a model whose weights take `weights` bytes. Rows of fewer logits are put where one for every id has room.
    pub fn new(name: &str, config: &ArchConfig, weights: u64, usage: Usage) -> Self {
        let Usage { context_len, num_sequences, rows, kv_type, .. } = usage;
        // Sizes come from files: no product may wrap into a small plan.
        let product = |factors: &[usize]| factors.iter().fold(1u64, |all, &f| all.saturating_mul(f as u64));
        let kv_row = [2, config.num_kv_heads, config.head_dim, config.layers.len(), kv_type.bytes()];
        let kv_bytes = [&kv_row[..], &[context_len, num_sequences]].concat();
        // The residual stream and its norms, projections with their parts, gate and up with their product:
        // buffers come in powers of two, a half more on average.
        let row = [
            (3, config.hidden_size),
            (2, config.q_dim() + 2 * config.kv_dim()),
            (3, config.intermediate_size),
        ];
        let row = row.into_iter().fold(0, |sum: usize, (n, dim)| sum.saturating_add(dim.saturating_mul(n)));
        let activations = product(&[PROMPT_CHUNK.min(context_len).max(rows), row, size_of::<f32>() * 3 / 2]);
        Self {
            name: name.to_owned(),
            weights,
            kv_cache: product(&kv_bytes),
            buffers: product(&[rows, config.vocab_size, size_of::<f32>()]).saturating_add(activations),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv_cache).saturating_add(self.buffers)
    }
}

/// Refuses a plan that the machine's free memory cannot hold. Where the system does not tell, nothing is
/// refused.
///
/// # Errors
/// [`Error::OutOfMemory`] with the numbers and what would help.
pub fn check(models: &[ModelMemory]) -> Result<()> {
    check_against(models, available())
}

fn check_against(models: &[ModelMemory], available: Option<u64>) -> Result<()> {
    let needed = models.iter().map(ModelMemory::total).fold(0, u64::saturating_add);
    match available {
        Some(available) if needed > available => Err(Error::OutOfMemory {
            what: models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(" with draft "),
            needed,
            available,
            advice: "choose a smaller model or draft, a shorter context, or fewer texts at once".into(),
        }),
        _ => Ok(()),
    }
}

/// Bytes the system could give this process now: the smaller of the machine's and the container's answer.
pub fn available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = parse_meminfo(&meminfo)?;
    Some(cgroup_room().map_or(machine, |room| room.min(machine)))
}

/// Bytes of this process that are in memory now, its mapped files' included; on Linux.
pub fn resident() -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

fn parse_meminfo(text: &str) -> Option<u64> {
    kibibytes(text, "MemAvailable:")
}

/// The value of a line such as `MemAvailable:   12 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a memory cgroup (v2) leaves; its page cache counts as free, since it can be reclaimed.
fn cgroup_room() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let max = read("memory.max")?.trim().parse::<u64>().ok()?;
    let used = read("memory.current")?.trim().parse::<u64>().ok()?;
    let cached =
        read("memory.stat")?.lines().find_map(|line| line.strip_prefix("file ")?.parse::<u64>().ok())?;
    Some(max.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kibibytes() {
        assert_eq!(parse_meminfo("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 * 1024));
        assert_eq!(parse_meminfo("MemTotal: 9 kB\n"), None);
        assert_eq!(kibibytes("VmRSS:\t  3 kB\n", "VmRSS:"), Some(3 * 1024));
    }

    #[test]
    fn sizes_beyond_all_memory_do_not_wrap_into_a_small_plan() {
        use crate::model::config::{Activation, Architecture, LayerConfig};
        let huge = 1 << 28;
        let config = ArchConfig {
            architecture: Architecture::Llama,
            vocab_size: huge,
            hidden_size: huge,
            intermediate_size: huge,
            num_heads: huge,
            num_kv_heads: huge,
            head_dim: huge,
            context_len: huge,
            norm_eps: 1e-5,
            attn_scale: 1.0,
            attn_softcap: None,
            final_softcap: None,
            embed_scale: None,
            activation: Activation::Silu,
            ropes: Vec::new(),
            layers: vec![LayerConfig { window: None, rope: None }; 100],
        };
        let usage = Usage {
            context_len: usize::MAX,
            num_sequences: usize::MAX,
            rows: usize::MAX,
            kv_type: KvType::F16,
            num_logits: None,
        };
        let plan = ModelMemory::new("huge", &config, u64::MAX, usage);
        assert_eq!((plan.kv_cache, plan.buffers, plan.total()), (u64::MAX, u64::MAX, u64::MAX));
    }

    #[test]
    fn a_plan_too_large_is_refused_with_its_numbers() {
        let plan = |name: &str, weights| ModelMemory { name: name.into(), weights, kv_cache: 10, buffers: 1 };
        let models = [plan("big", 100), plan("small", 5)];
        assert!(check_against(&models, Some(127)).is_ok());
        assert!(check_against(&models, None).is_ok());
        let error = check_against(&models, Some(126)).expect_err("one byte short").to_string();
        assert!(error.contains("big with draft small needs 127 bytes") && error.contains("126"), "{error}");
    }
}
