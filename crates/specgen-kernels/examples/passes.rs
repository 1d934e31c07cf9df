//! Times all matmuls of one forward pass in the shapes of qwen2.5-coder-1.5b Q4_K_M, beside a plain read.
//!
//! `passes [threads] [rows,rows,..]`; `passes 1 hot` for the kernels alone; `passes [threads] prompt` for
//! what binds a prompt of 512 tokens.
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::sync::Arc;
use std::time::Instant;

use specgen_kernels::testing::{Rng, fma_seconds, random};
use specgen_kernels::{
    Activations, Arena, AttentionShape, Format, KvStore, KvType, MatrixRef, Packed, RowKeys, Team, Weights,
    add_assign, attention, available_isas, choose_isa, isa, matmul, rms_norm, rope_neox, silu_mul,
};

const LAYERS: usize = 28;
/// Attention of one layer.
const SHAPE: AttentionShape =
    AttentionShape { num_heads: 12, num_kv_heads: 2, head_dim: 128, scale: 0.09, softcap: None };

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
    if args.get(2).is_some_and(|a| a == "prompt") {
        return prompt(&team);
    }
    let arena = Arena::new();
    let rows = args.get(2).map_or("1,2,4,8,16,128", String::as_str);
    let mut layers = layers(&arena, &team);
    layers.push(vec![part(&arena, &team, Format::Q6_K, 151_936, 1536)]);
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

/// Four matmuls a layer: q, k and v; o; gate and up; down.
fn layers(arena: &Arc<Arena>, team: &Team) -> Vec<Parts> {
    let part = |format, rows, cols| part(arena, team, format, rows, cols);
    let layer = |layer| {
        let mixed = if layer % 2 == 0 { Format::Q6_K } else { Format::Q4_K };
        let q4 = Format::Q4_K;
        [
            vec![part(q4, 1536, 1536), part(q4, 256, 1536), part(mixed, 256, 1536)],
            vec![part(q4, 1536, 1536)],
            vec![part(q4, 8960, 1536), part(q4, 8960, 1536)],
            vec![part(mixed, 1536, 8960)],
        ]
    };
    (0..LAYERS).flat_map(layer).collect()
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
        let packed = part(&Arena::new(), &team, format, 64, 1536);
        for m in [1, 2, 4, 8, 16, 128] {
            print!("  m = {m}: {:.0}", block_seconds(&team, &packed, m) * 1e9);
        }
        println!();
    }
    // A layer of qwen2.5-coder-1.5b over 1024 positions.
    let mut kv = KvStore::new(&Arena::new(), KvType::F32, 256);
    kv.write(0, &Rng::new(2).normals(1024 * 256), &Rng::new(3).normals(1024 * 256)).expect("memory");
    print!("attention over 1024 positions, us a row:");
    for m in [1, 4, 16] {
        let q = Rng::new(1).normals(m * 12 * 128);
        let mut out = vec![0.0; q.len()];
        let rows = vec![RowKeys { prefix: 0..1024, tail: Vec::new() }; m];
        let bursts = (0..100).map(|_| {
            let start = Instant::now();
            attention(&team, &SHAPE, &q, &kv, &rows, &mut out);
            start.elapsed().as_secs_f64()
        });
        print!("  m = {m}: {:.0}", bursts.fold(f64::MAX, f64::min) / m as f64 * 1e6);
    }
    println!();
}

/// Best time of a block of 16 x 256 weights with `m` rows.
fn block_seconds(team: &Team, packed: &Packed, m: usize) -> f64 {
    let (rows, cols) = (packed.rows(), packed.cols());
    let x = Rng::new(1).normals(m * cols);
    let mut x = Activations::new(&x, m, cols);
    let mut out = vec![0.0; m * rows];
    let times = 1 + 20 / m;
    let burst =
        |_| seconds(|| (0..times).for_each(|_| matmul(team, [Weights::Packed(packed)], &mut x, &mut out)));
    (0..400).map(burst).fold(f64::MAX, f64::min) / (times * rows / 16 * cols / 256) as f64
}

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

/// Rows of a prompt's chunk.
const CHUNK: usize = 128;
/// Chunks of a prompt.
const CHUNKS: usize = 4;

/// What a prompt of 512 tokens takes in chunks of 128, by kind of operation, beside what would bind it.
fn prompt(team: &Team) {
    let (arena, threads) = (Arena::new(), team.threads() as f64);
    let mut layers = layers(&arena, team);
    layers.truncate(4 * (LAYERS - 1) + 1); // of the last layer only keys and values matter to what follows
    let rows = Rng::new(2).normals(CHUNKS * CHUNK * 256);
    let store = |_| {
        let mut kv = KvStore::new(&arena, KvType::F16, 256);
        kv.write(0, &rows, &rows).expect("memory");
        kv
    };
    let stores: Vec<_> = (1..LAYERS).map(store).collect();
    let no_rows = [1536, 8960].map(|cols| part(&arena, team, Format::Q4_K, 0, cols));
    let (input, mut out) = (Rng::new(1).normals(CHUNK * 2 * 8960), vec![0.0; CHUNK * 8960]);

    let names = ["matmul, Q4_K", "matmul, Q6_K", "quantising", "attention", "norms, rotations, gates, sums"];
    let mut best = [f64::MAX; 5];
    for _ in 0..5 {
        let mut times = [0.0; 5];
        for (chunk, (i, parts)) in (0..CHUNKS).flat_map(|c| layers.iter().enumerate().map(move |l| (c, l))) {
            let cols = parts[0].cols();
            let mut x = Activations::new(&input[..CHUNK * cols], CHUNK, cols);
            let none = Weights::Packed(&no_rows[usize::from(cols == 8960)]);
            times[2] += seconds(|| matmul(team, [none], &mut x, &mut []));
            for part in parts {
                let out = &mut out[..CHUNK * part.rows()];
                let kind = usize::from(part.format() == Format::Q6_K);
                times[kind] += seconds(|| matmul(team, [Weights::Packed(part)], &mut x, out));
            }
            if i % 4 == 0 && i / 4 < stores.len() {
                let see = |row| RowKeys { prefix: 0..chunk * CHUNK + row + 1, tail: Vec::new() };
                let rows: Vec<_> = (0..CHUNK).map(see).collect();
                let (q, of_q) = (&input[..CHUNK * 1536], &mut out[..CHUNK * 1536]);
                times[3] += seconds(|| attention(team, &SHAPE, q, &stores[i / 4], &rows, of_q));
                times[4] += seconds(|| pointwise(team, &input, &mut out));
            }
        }
        (0..5).for_each(|i| best[i] = best[i].min(times[i]));
    }

    // What reading takes, and what computing takes with all in cache; both of the whole prompt.
    let all = || layers.iter().flatten();
    let byte = plain_read(team, &layers) / all().map(Packed::bytes).sum::<usize>() as f64;
    let of = |format| {
        let hot = part(&arena, team, format, 64, 1536);
        let block = block_seconds(&Team::new(1), &hot, CHUNK) / threads;
        let parts = || all().filter(|part| part.format() == format);
        let blocks: usize = parts().map(|part| part.rows() / 16 * part.cols() / 256).sum();
        let bytes: usize = parts().map(Packed::bytes).sum();
        [(CHUNKS * bytes) as f64 * byte, (CHUNKS * blocks) as f64 * block]
    };
    let cols: usize = layers.iter().map(|parts| parts[0].cols()).sum();
    let positions = (CHUNKS * CHUNK) * (CHUNKS * CHUNK + 1) / 2 * stores.len();
    let fmas = positions * SHAPE.num_heads * 2 * SHAPE.head_dim / 16;
    let in_layer = 4 * (2 * (2 + 3) * 1536 + 2 * 1536 + 3 * 8960);
    let bounds = [
        of(Format::Q4_K),
        of(Format::Q6_K),
        [(CHUNKS * CHUNK * cols * 5) as f64 * byte, 0.0],
        [0.0, fmas as f64 * fma_seconds() / threads],
        [(CHUNKS * CHUNK * in_layer * stores.len()) as f64 * byte, 0.0],
    ];
    let total: f64 = best.iter().sum();
    println!("{} threads, {}; a plain read {:.1} GB/s", team.threads(), isa(), 1e-9 / byte);
    println!(
        "{:30} {:>7} {:>7} {:>9} {:>14} {:>9}",
        "", "ms", "of all", "read, ms", "arithmetic, ms", "bound"
    );
    for ((name, time), [read, arithmetic]) in names.into_iter().zip(best).zip(bounds) {
        println!(
            "{name:30} {:7.1} {:5.0} % {:9.1} {:14.1} {:7.0} %",
            time * 1e3,
            100.0 * time / total,
            read * 1e3,
            arithmetic * 1e3,
            100.0 * read.max(arithmetic) / time
        );
    }
    println!("{:30} {:7.1}", "together", total * 1e3);
}

/// What a layer does besides for a chunk: two norms, two sums, rotated queries, a gate.
fn pointwise(team: &Team, x: &[f32], out: &mut [f32]) {
    let narrow = CHUNK * 1536;
    for _ in 0..2 {
        team.share_rows(1536, &mut out[..narrow], |rows, out| {
            rms_norm(&x[1536 * rows.start..1536 * rows.end], &x[..1536], 1e-6, out);
        });
        team.share_rows(1536, &mut out[..narrow], |rows, out| {
            add_assign(out, &x[1536 * rows.start..1536 * rows.end]);
        });
    }
    team.share_rows(1536, &mut out[..narrow], |rows, out| {
        let angles = &x[64 * rows.start..64 * rows.end];
        rope_neox(out, 12, 128, angles, angles);
    });
    team.share_rows(8960, out, |rows, out| {
        silu_mul(&x[2 * 8960 * rows.start..2 * 8960 * rows.end], 8960, out)
    });
}
