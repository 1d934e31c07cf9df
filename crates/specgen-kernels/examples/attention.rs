//! Times the attention of one forward pass for each type of keys and values, with the caches as cold as a
//! pass's weights leave them.
//!
//! `attention [threads] [model,model,..]`
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::time::Instant;

use specgen_kernels::testing::Rng;
use specgen_kernels::{
    Arena, AttentionShape, KvStore, KvType, RowKeys, Team, attention, available_isas, choose_isa, isa, read,
};

/// Name, layers, query heads, key heads, elements of a head.
const MODELS: [(&str, usize, [usize; 3]); 3] = [
    ("qwen2.5-coder-1.5b", 28, [12, 2, 128]),
    ("smollm2-135m", 30, [9, 3, 64]),
    ("gemma-3-270m", 18, [4, 1, 256]),
];

fn main() {
    if let Ok(isa) = std::env::var("SPECGEN_CPU") {
        assert!(choose_isa(&isa), "this CPU has {:?}, not {isa}", available_isas());
    }
    let args: Vec<String> = std::env::args().collect();
    let team = Team::new(args.get(1).map_or(0, |a| a.parse().expect("a number of threads")));
    let weights = vec![1u8; 600 << 20];
    println!("{} threads, {}; ms a pass: best, median", team.threads(), isa());
    for (name, layers, [num_heads, num_kv_heads, head_dim]) in MODELS {
        if args.get(2).is_some_and(|names| !names.split(',').any(|n| name.starts_with(n))) {
            continue;
        }
        let shape = AttentionShape { num_heads, num_kv_heads, head_dim, scale: 0.09, softcap: None };
        for context in [64, 1024, 4096] {
            let stores = KvType::ALL.map(|kind| (kind, store(&shape, kind, layers, context)));
            for m in [1, 4, 16] {
                let q = Rng::new(1).normals(m * num_heads * head_dim);
                let mut out = vec![0.0; q.len()];
                let rows: Vec<_> =
                    (0..m).map(|i| RowKeys { prefix: 0..context + 1 + i, tail: Vec::new() }).collect();
                print!("{name:18} {context:5} tokens, m = {m:2}:");
                let mut times = KvType::ALL.map(|_| Vec::new());
                for _ in 0..9 {
                    for (times, (_, layers)) in times.iter_mut().zip(&stores) {
                        read(&team, &weights);
                        let start = Instant::now();
                        for kv in layers {
                            attention(&team, &shape, &q, kv, &rows, &mut out);
                        }
                        times.push(start.elapsed().as_secs_f64() * 1e3);
                    }
                }
                for (times, (kind, _)) in times.iter_mut().zip(&stores) {
                    times.sort_by(f64::total_cmp);
                    print!("  {kind} {:6.2} {:6.2}", times[0], times[times.len() / 2]);
                }
                println!();
            }
        }
    }
}

fn store(shape: &AttentionShape, kind: KvType, layers: usize, context: usize) -> Vec<KvStore> {
    let kv_dim = shape.num_kv_heads * shape.head_dim;
    let arena = Arena::new();
    let rows = Rng::new(2).normals((context + 16) * kv_dim);
    let store = |_| {
        let mut kv = KvStore::new(&arena, kind, kv_dim);
        kv.write(0, &rows, &rows).expect("memory");
        kv
    };
    (0..layers).map(store).collect()
}
