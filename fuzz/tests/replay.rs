//! Runs the fuzz targets on seeds and on mutations of them, without libFuzzer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use specgen::weights::{Format, Value, gguf_writer::GgufWriter};

/// Counts what each thread allocates, so that a small file asking for much memory is noticed.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // While a thread ends its counters are gone, and nobody asks.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `pointer` came from `alloc` above, that is, from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A small generator (xorshift64*): mutations need variety, not quality.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
}

/// Longer than any input of a few hundred bytes may take.
const SLOW: Duration = Duration::from_secs(2);

/// Integers at the edges of what a header may hold.
const EDGES: [u64; 16] =
    [0, 1, 2, 3, 4, 7, 9, 31, 32, 255, 256, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

fn mutate(rng: &mut Rng, seeds: &[Vec<u8>], data: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        // Headers come first and are small beside the data: aim there mostly.
        let end = if rng.below(4) > 0 { data.len().min(400) } else { data.len() };
        let at = rng.below(end);
        let size = [1, 2, 4, 8][rng.below(4)].min(data.len() - at);
        match rng.below(8) {
            0 if !data.is_empty() => data[at] ^= 1 << rng.below(8),
            1 if !data.is_empty() => data[at] = rng.below(256) as u8,
            2 | 3 => {
                let edge = EDGES[rng.below(EDGES.len())].wrapping_sub(rng.below(2) as u64);
                data[at..at + size].copy_from_slice(&edge.to_le_bytes()[..size]);
            }
            4 => data.truncate(at),
            5 => {
                let slice = data[at..(at + rng.below(64)).min(data.len())].to_vec();
                let to = rng.below(data.len());
                data.splice(to..to, slice);
            }
            6 => {
                data.drain(at..(at + rng.below(16)).min(data.len()));
            }
            _ => {
                let other = &seeds[rng.below(seeds.len())];
                let from = rng.below(other.len());
                data.truncate(at);
                data.extend(&other[from..]);
            }
        }
    }
}

/// Runs `body` on `data`; a panic, much time or much memory fails the test and leaves the input behind.
fn check(target: &str, body: fn(&[u8]), data: &[u8]) {
    let held = HELD.get();
    PEAK.set(held);
    let outcome = std::panic::catch_unwind(|| body(data));
    let memory = PEAK.get() - held;
    // The worst that is honest: the elements of a 2-bit block as f32, twice while concatenating.
    let allowed = 64 * data.len() as i64 + (1 << 20);
    let fault = match outcome {
        Err(_) => "panicked",
        Ok(()) if memory > allowed => "allocated far more than its input",
        Ok(()) => return,
    };
    keep(target, fault, data);
}

/// Runs `body` again on an input that took long: a busy machine explains it once, not three times.
fn check_time(target: &str, body: fn(&[u8]), data: &[u8]) {
    let slow = || {
        let start = Instant::now();
        body(data);
        start.elapsed() > SLOW
    };
    if (0..3).all(|_| slow()) {
        keep(target, "took seconds", data);
    }
}

fn keep(target: &str, fault: &str, data: &[u8]) -> ! {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(target);
    std::fs::create_dir_all(&folder).expect("a folder for the input");
    let path = folder.join(format!("replay-{}", data.len()));
    std::fs::write(&path, data).expect("the input is kept");
    panic!("target {target} {fault} on {} bytes, kept as {}", data.len(), path.display());
}

fn run(target: &str, body: fn(&[u8]), mut seeds: Vec<Vec<u8>>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    if let Ok(files) = std::fs::read_dir(folder) {
        seeds.extend(files.filter_map(|file| std::fs::read(file.ok()?.path()).ok()));
    }
    for seed in &seeds {
        check(target, body, seed);
        for len in 0..seed.len().min(600) {
            check(target, body, &seed[..len]);
        }
    }
    let seconds = std::env::var("SPECGEN_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let end = Instant::now() + Duration::from_secs(seconds);
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let mut rng = Rng(seed.as_nanos() as u64 | 1);
    let mut runs = 0u64;
    while Instant::now() < end {
        let mut data = seeds[rng.below(seeds.len())].clone();
        mutate(&mut rng, &seeds, &mut data);
        let start = Instant::now();
        check(target, body, &data);
        if start.elapsed() > SLOW {
            check_time(target, body, &data);
        }
        runs += 1;
    }
    eprintln!("{target}: {runs} mutations of {} seeds", seeds.len());
}

#[test]
fn gguf() {
    let values = GgufWriter::new()
        .metadata("general.architecture", Value::String(b"llama".to_vec()))
        .metadata("uint", Value::Uint(1 << 40))
        .metadata("int", Value::Int(-1))
        .metadata("float", Value::Float(0.1))
        .metadata("bool", Value::Bool(true))
        .metadata("ints", Value::Ints(vec![1, -1, 1 << 40]))
        .metadata("floats", Value::Floats(vec![0.5, 1.5]))
        .metadata("bools", Value::Bools(vec![true, false]))
        .metadata("strings", Value::Strings(vec![b"a".to_vec(), b"\xff".to_vec(), vec![]]))
        .metadata("arrays", Value::Arrays(vec![Value::Ints(vec![1]), Value::Strings(vec![b"b".to_vec()])]))
        .finish();
    let tensors = GgufWriter::new()
        .version(2)
        .alignment(64)
        .tensor("f32", Format::F32, &[2, 3], &[1; 24])
        .tensor("bf16", Format::BF16, &[1, 2, 2, 2], &[2; 16])
        .tensor("f16", Format::F16, &[5], &[3; 10])
        .raw_tensor("iq4_xs", 23, &[1, 256], &[5; 136])
        .tensor("last", Format::F32, &[], &[6; 4])
        .finish();
    let quantised = GgufWriter::new()
        .tensor("q8_0", Format::Q8_0, &[2, 32], &[4; 68])
        .tensor("q4_k", Format::Q4_K, &[1, 256], &[5; 144])
        .tensor("q2_k", Format::Q2_K, &[2, 256], &[5; 168])
        .finish();
    let shard = GgufWriter::new()
        .metadata("split.no", Value::Uint(0))
        .metadata("split.count", Value::Uint(1))
        .metadata("split.tensors.count", Value::Uint(1))
        .tensor("t", Format::F32, &[1], &[0; 4])
        .finish();
    run("gguf", specgen_fuzz::gguf, vec![values, tensors, quantised, shard]);
}

#[test]
fn safetensors() {
    use ::safetensors::tensor::{Dtype, TensorView, serialize};
    let data = [7u8; 24];
    let view = |dtype, shape: &[usize], len: usize| {
        TensorView::new(dtype, shape.to_vec(), &data[..len]).expect("the bytes fit the shape")
    };
    let info = Some([("format".to_owned(), "pt".to_owned())].into());
    let file = serialize(
        [
            ("a", view(Dtype::F32, &[2, 3], 24)),
            ("b", view(Dtype::BF16, &[2, 2], 8)),
            ("c", view(Dtype::F16, &[], 2)),
            ("d", view(Dtype::I8, &[3], 3)),
            ("e", view(Dtype::F32, &[0, 4], 0)),
        ],
        info,
    )
    .expect("a valid file");
    let empty = b"\x02\0\0\0\0\0\0\0{}".to_vec();
    run("safetensors", specgen_fuzz::safetensors, vec![file, empty]);
}

#[test]
fn gguf_tokenizer() {
    let string = |text: &str| Value::String(text.as_bytes().to_vec());
    let strings =
        |texts: &[&str]| Value::Strings(texts.iter().map(|text| text.as_bytes().to_vec()).collect());
    let bpe = |pre: &str| {
        let tokens = [
            "H", "e", "l", "o", "a", "\u{120}", "1", "2", "3", "He", "ll", "Hell", "aa", "aaaa", "<s>",
            "</s>",
        ];
        GgufWriter::new()
            .metadata("tokenizer.ggml.model", string("gpt2"))
            .metadata("tokenizer.ggml.pre", string(pre))
            .metadata("tokenizer.ggml.bos_token_id", Value::Uint(14))
            .metadata("tokenizer.ggml.eos_token_id", Value::Uint(15))
            .metadata("tokenizer.ggml.token_type", Value::Ints([[1; 14].as_slice(), &[3, 4]].concat()))
            .metadata("tokenizer.ggml.merges", strings(&["H e", "l l", "He ll", "a a", "aa aa"]))
            .metadata("tokenizer.ggml.tokens", strings(&tokens))
            .finish()
    };
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["\u{2581}", "\u{2581}H", "el", "lo", "l", "aa", "aaaa"].map(str::to_owned));
    let kinds: Vec<i64> = (0..tokens.len())
        .map(|id| [2, 3, 3].get(id).copied().unwrap_or(if id < 259 { 6 } else { 1 }))
        .collect();
    let spm = GgufWriter::new()
        .metadata("general.name", string("phi-3"))
        .metadata("tokenizer.ggml.model", string("llama"))
        .metadata("tokenizer.ggml.add_space_prefix", Value::Bool(true))
        .metadata("tokenizer.ggml.scores", Value::Floats((0..tokens.len()).map(|id| -(id as f64)).collect()))
        .metadata("tokenizer.ggml.token_type", Value::Ints(kinds))
        .metadata("tokenizer.ggml.tokens", strings(&tokens.iter().map(String::as_str).collect::<Vec<_>>()))
        .finish();
    run("gguf_tokenizer", specgen_fuzz::gguf_tokenizer, vec![bpe("gpt-2"), bpe("llama-bpe"), spm]);
}
