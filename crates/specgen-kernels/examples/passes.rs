//! Times all matmuls of one forward pass in the shapes of qwen2.5-coder-1.5b Q4_K_M, beside a plain read.
//!
//! `passes [threads] [rows,rows,..]`, or `passes 1 hot` for the kernels alone.
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::sync::Arc;
use std::time::Instant;

use specgen_kernels::testing::{Rng, random};
use specgen_kernels::{
    Activations, Arena, AttentionShape, Format, KvStore, KvType, MatrixRef, Packed, RowKeys, Team, Weights,
    attention, available_isas, choose_isa, isa, matmul,
};

/// Weights of one matmul, parts side by side.
type Parts = Vec<Packed>;

fn main() {
    if let Ok(isa) = std::env::var("SPECGEN_CPU") {
        assert!(choose_isa(&isa), "this CPU has {:?}, not {isa}", available_isas());
    }
    let args: Vec<String> = std::env::args().collect();
    let team = Team::new(args.get(1).map_or(0, |a| a.parse().expect("a number of threads")));
    if args.get(2).is_some_and(|a| a == "hot") {
        return hot();
    }
    let arena = Arena::new();
    let part = |format, rows, cols| part(&arena, &team, format, rows, cols);
    let rows = args.get(2).map_or("1,2,4,8,16,128", String::as_str);
    let layers: Vec<Parts> = (0..28)
        .flat_map(|layer| {
            let mixed = if layer % 2 == 0 { Format::Q6_K } else { Format::Q4_K };
            let q4 = Format::Q4_K;
            [
                vec![part(q4, 1536, 1536), part(q4, 256, 1536), part(mixed, 256, 1536)],
                vec![part(q4, 1536, 1536)],
                vec![part(q4, 8960, 1536), part(q4, 8960, 1536)],
                vec![part(mixed, 1536, 8960)],
            ]
        })
        .chain([vec![part(Format::Q6_K, 151_936, 1536)]])
        .collect();
    let bytes: usize = layers.iter().flatten().map(Packed::bytes).sum();
    println!("{:.1} MB, {} threads, {}", bytes as f64 / 1e6, team.threads(), isa());
    for rows in rows.split(',') {
        let m: usize = rows.parse().expect("a number of rows");
        let x = Rng::new(1).normals(m * 8960);
        let mut out = vec![0.0; m * 151_936];
        let mut busy = f64::MAX;
        let mut times: Vec<f64> = (0..if m > 32 { 3 } else { 7 })
            .map(|_| {
                let (start, cpu) = (Instant::now(), cpu_seconds());
                for parts in &layers {
                    let (cols, width) = (parts[0].cols(), parts.iter().map(Packed::rows).sum::<usize>());
                    let mut x = Activations::new(&x[..m * cols], m, cols);
                    matmul(&team, parts.iter().map(Weights::Packed), &mut x, &mut out[..m * width]);
                }
                busy = busy.min(cpu_seconds() - cpu);
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let read = plain_read(&team, &layers);
        println!(
            "m = {m:4}: best {:7.1} ms, median {:7.1} ms, {:6.1} rows/s; {:.1} ms of CPU; a plain read {:.1}",
            times[0] * 1e3,
            times[times.len() / 2] * 1e3,
            m as f64 / times[0],
            busy * 1e3,
            read * 1e3
        );
    }
}

fn part(arena: &Arc<Arena>, team: &Team, format: Format, rows: usize, cols: usize) -> Packed {
    // One random row, repeated: values do not matter here, and this starts in a second.
    let data = random(format, cols, 1).repeat(rows);
    let matrix = MatrixRef::new(format, rows, cols, &data).expect("sizes agree");
    Packed::new(arena, team, &matrix).expect("memory")
}

/// Seconds to read the same memory and do nothing with it.
fn plain_read(team: &Team, layers: &[Parts]) -> f64 {
    let start = Instant::now();
    for weights in layers.iter().flatten() {
        weights.read(team);
    }
    start.elapsed().as_secs_f64()
}

/// CPU time of all threads so far, where Linux tells. Unlike the clock it hardly minds busy neighbours.
fn cpu_seconds() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return f64::NAN };
    let times = tasks.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    times.sum::<f64>() * 1e-9
}

/// Best time for a block of 16 rows whose weights are in the second-level cache, in bursts so short
/// that some go undisturbed on a busy machine.
fn hot() {
    let team = Team::new(1);
    for format in [Format::Q4_K, Format::Q6_K, Format::Q4_1, Format::Q8_0, Format::Q5_K, Format::Q5_0] {
        print!("{format:?}, ns a 16 x 256 block:");
        let (rows, cols) = (64, 1536);
        let packed = part(&Arena::new(), &team, format, rows, cols);
        for m in [1, 2, 4, 8, 16, 128] {
            let x = Rng::new(1).normals(m * cols);
            let mut x = Activations::new(&x, m, cols);
            let mut out = vec![0.0; m * rows];
            let times = 1 + 20 / m;
            let bursts = (0..400).map(|_| {
                let start = Instant::now();
                for _ in 0..times {
                    matmul(&team, [Weights::Packed(&packed)], &mut x, &mut out);
                }
                start.elapsed().as_secs_f64()
            });
            let best = bursts.fold(f64::MAX, f64::min) / times as f64;
            print!("  m = {m}: {:.0}", best * 1e9 / (rows / 16 * cols / 256) as f64);
        }
        println!();
    }
    // A layer of qwen2.5-coder-1.5b over 1024 positions.
    let shape = AttentionShape { num_heads: 12, num_kv_heads: 2, head_dim: 128, scale: 0.09, softcap: None };
    let mut kv = KvStore::new(&Arena::new(), KvType::F32, 256);
    kv.write(0, &Rng::new(2).normals(1024 * 256), &Rng::new(3).normals(1024 * 256)).expect("memory");
    print!("attention over 1024 positions, us a row:");
    for m in [1, 4, 16] {
        let q = Rng::new(1).normals(m * 12 * 128);
        let mut out = vec![0.0; q.len()];
        let rows = vec![RowKeys { prefix: 0..1024, tail: Vec::new() }; m];
        let bursts = (0..100).map(|_| {
            let start = Instant::now();
            attention(&team, &shape, &q, &kv, &rows, &mut out);
            start.elapsed().as_secs_f64()
        });
        print!("  m = {m}: {:.0}", bursts.fold(f64::MAX, f64::min) / m as f64 * 1e6);
    }
    println!();
}
