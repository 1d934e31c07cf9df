//! The report for people.

use std::fmt::Write;

use super::{Memory, MemoryPlan, Report, Token};
use crate::output::{bytes, counted};

impl Report {
    pub(super) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let a = &self.architecture;
        writeln!(out, "{}", self.name)?;
        writeln!(out, "  file          {}", self.path)?;
        writeln!(
            out,
            "  architecture  {}: {} layers of {}, feed-forward {}, {} heads of {} over {} key/value heads",
            a.name, a.num_layers, a.hidden_size, a.intermediate_size, a.num_heads, a.head_dim, a.num_kv_heads
        )?;
        for rope in &a.rope {
            writeln!(
                out,
                "  rope          base {}, {} elements, scaling {}",
                rope.theta, rope.dim, rope.scaling
            )?;
        }
        if let Some(window) = &a.sliding_window {
            writeln!(
                out,
                "  window        {} tokens in {} of {} layers",
                window.tokens, window.num_layers, a.num_layers
            )?;
        }
        for (what, cap) in [("attention", a.attn_softcap), ("logits", a.final_softcap)] {
            if let Some(cap) = cap {
                writeln!(out, "  soft cap      {cap} on {what}")?;
            }
        }
        writeln!(
            out,
            "  context       {} tokens trained, {} planned",
            a.context_len, self.memory.context_len
        )?;
        writeln!(out, "  parameters    {} in {}", millions(self.parameters), bytes(self.weight_bytes))?;
        for t in &self.tensor_types {
            let (count, size) = (millions(t.parameters), bytes(t.bytes));
            let tensors = counted(t.num_tensors, "tensor");
            writeln!(out, "    {:<8}  {tensors:>11}  {count:>8}  {size:>9}", t.name)?;
        }

        let t = &self.tokenizer;
        writeln!(out, "  tokenizer     {}", t.description)?;
        if t.vocab_size != a.vocab_size {
            writeln!(out, "                {} ids for {} logits", t.vocab_size, a.vocab_size)?;
        }
        let bos = if t.adds_bos { "before every text" } else { "not added" };
        writeln!(out, "  begin         {} ({bos})", named(t.bos.as_ref()))?;
        writeln!(out, "  end           {}", named(&t.ends))?;
        let template = self.chat_template.as_deref().unwrap_or("none: a base model, use --raw");
        writeln!(out, "  chat template {template}")?;

        out += &self.memory.text()?;
        for tensor in self.tensors.iter().flatten() {
            writeln!(
                out,
                "{:<40}  {:<5}  {:?}  {}",
                tensor.name,
                tensor.kind,
                tensor.shape,
                bytes(tensor.bytes)
            )?;
        }
        Ok(out)
    }
}

impl MemoryPlan {
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let mut line = |who: &str, m: &Memory| {
            writeln!(
                out,
                "  {who:<12}  {} weights + {} keys and values ({} a token in {}) + {} buffers = {}",
                bytes(m.weights),
                bytes(m.kv_cache),
                bytes(m.kv_cache_per_token),
                self.kv_type,
                bytes(m.buffers),
                bytes(m.total)
            )
        };
        line("memory", &self.target)?;
        if let Some(draft) = &self.draft {
            line("  draft", &draft.memory)?;
            let name = &draft.name;
            match &draft.other_vocabulary {
                None => writeln!(
                    out,
                    "                {name} shares {} ids with the target",
                    draft.shared_vocab_size
                )?,
                Some(other) => {
                    writeln!(out, "                {name} has another vocabulary: {}", other.coverage)?;
                }
            }
        }
        let room = match self.available {
            Some(available) if available < self.total => {
                format!("too much for the {} available", bytes(available))
            }
            Some(available) => format!("fits into the {} available", bytes(available)),
            None => "the system does not tell what is available".into(),
        };
        writeln!(out, "  total         {}, {room}", bytes(self.total))?;
        Ok(out)
    }
}

fn named<'a>(tokens: impl IntoIterator<Item = &'a Token>) -> String {
    let all: Vec<String> = tokens.into_iter().map(|token| format!("{} {}", token.id, token.text)).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// A number of parameters, for people.
fn millions(count: u64) -> String {
    match count as f64 {
        n if n >= 1e9 => format!("{:.2} B", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        _ => format!("{count}"),
    }
}
