//! What weight files give back, and what broken ones say.
#![allow(clippy::unwrap_used)]

use super::gguf_writer::GgufWriter;
use super::*;

#[test]
fn real_files_open() {
    for name in ["smollm2-135m-instruct-q4_1", "gemma-3-270m-q4_k_m", "qwen2.5-coder-1.5b-instruct-q4_k_m"] {
        let Some(home) = std::env::home_dir() else { return };
        let path = home.join(format!(".cache/specgen/models/{name}.gguf"));
        if !path.exists() {
            eprintln!("skipped: {} is not there", path.display());
            continue;
        }
        let t=std::time::Instant::now();
        let weights = Weights::open(&path).unwrap();
        eprintln!("{:?} {:?}", t.elapsed(), weights);
        for t in weights.tensors().take(5) { eprintln!("{t:?}"); }
        let mut types=std::collections::BTreeMap::new();
        for t in weights.tensors() { *types.entry(t.type_name).or_insert(0)+=t.bytes; weights.tensor(&t.name).unwrap(); }
        eprintln!("{types:?} {}", weights.total_bytes());
        eprintln!("{:?}", weights.tensor("output_norm.weight").unwrap().to_f32()[..4].to_vec());
    }
}
