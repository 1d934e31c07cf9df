//! What sampling and verification cost over a vocabulary of 152k tokens: `cargo bench -p specgen-bench --bench verify`.

#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use specgen::Verification;
use specgen::distribution::Distribution;
use specgen::rng::{CoupledNoise, Noise, RoundNoise, Stream};
use specgen::sampling::{Dry, History, Mirostat, Sampler, SamplingParams, Xtc, log_probabilities};
use specgen::verify::{Draft, DraftNoise, block, coupled, rejection};
use std::hint::black_box;

const VOCAB: usize = 151_936;
const K: usize = 4;

/// Logits shaped like a language model's: most between -5 and 5, a few dozen that stand out.
fn logits(position: u64) -> Vec<f32> {
    let noise = Noise::new(1);
    (0..VOCAB as u32)
        .map(|id| {
            let uniform = |round| noise.uniform(Stream::Coupled, position, round, id);
            let bulk = (0..4).map(uniform).sum::<f64>() * 5.0 - 10.0;
            let peak = if uniform(4) < 3e-4 { 12.0 * uniform(5) } else { 0.0 };
            (bulk + peak) as f32
        })
        .collect()
}

/// The kinds of distribution by name.
fn settings() -> [(&'static str, SamplingParams); 6] {
    let open = SamplingParams { temperature: 0.8, ..SamplingParams::greedy() };
    [
        ("greedy", SamplingParams::greedy()),
        ("default", SamplingParams::default()),
        ("top-k 40", SamplingParams { top_k: 40, ..open.clone() }),
        ("top-p 0.95", SamplingParams { top_p: 0.95, ..open.clone() }),
        ("min-p 0.05", SamplingParams { min_p: 0.05, ..open.clone() }),
        ("dense", open),
    ]
}

/// What is added to plain sampling by one feature more.
fn features() -> [(&'static str, SamplingParams); 8] {
    let open = SamplingParams { temperature: 0.8, seed: Some(1), ..SamplingParams::greedy() };
    let xtc = Some(Xtc { probability: 1.0, threshold: 0.1 });
    let dry = Some(Dry { sequence_breakers: Vec::new(), ..Dry::default() });
    let default = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    [
        ("top-n-sigma", SamplingParams { top_n_sigma: 1.0, ..open.clone() }),
        ("typical-p", SamplingParams { typical_p: 0.9, ..open.clone() }),
        ("XTC", SamplingParams { xtc, ..open.clone() }),
        ("mirostat", SamplingParams { mirostat: Some(Mirostat::default()), ..open }),
        ("default, typical-p and XTC", SamplingParams { typical_p: 0.9, xtc, ..default.clone() }),
        ("default, DRY", SamplingParams { dry, ..default.clone() }),
        ("default, n-grams", SamplingParams { no_repeat_ngram: 4, ..default.clone() }),
        ("default, bad word", SamplingParams { bad_words: vec![vec![5].into()], ..default }),
    ]
}

/// Features with a text of 8,192 tokens before them.
fn features_of_a_long_text(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("distribution after 8192 tokens");
    let noise = Noise::new(9);
    let text: Vec<u32> =
        (0..8192).map(|at| (900.0 * noise.uniform(Stream::Coupled, at, 0, 0).powi(4)) as u32).collect();
    let (row, history) = (logits(0), History::new(&text));
    for (name, params) in features() {
        let sampler = Sampler::new(&params, VOCAB).unwrap();
        group
            .bench_function(name, |bencher| bencher.iter(|| sampler.distribution(black_box(&row), &history)));
    }
    group.finish();
}

fn distribution(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("distribution");
    let (row, mut history) = (logits(0), History::new(&[]));
    (0..500).for_each(|i| history.push(i * 17 % 900));
    for (name, params) in settings() {
        let sampler = Sampler::new(&params, VOCAB).unwrap();
        group
            .bench_function(name, |bencher| bencher.iter(|| sampler.distribution(black_box(&row), &history)));
        let params = SamplingParams { repetition_penalty: 1.1, ..params };
        let sampler = Sampler::new(&params, VOCAB).unwrap();
        group.bench_function(format!("{name}, penalties"), |bencher| {
            bencher.iter(|| sampler.distribution(black_box(&row), &history))
        });
    }
    group.bench_function("log_probabilities", |bencher| bencher.iter(|| log_probabilities(black_box(&row))));
    group.finish();
}

fn draw(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("draw");
    for (name, params) in settings() {
        let sampler = Sampler::new(&params, VOCAB).unwrap();
        let p = sampler.distribution(&logits(0), &History::default()).unwrap();
        let mut position = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                position += 1;
                black_box(&p).draw(&mut RoundNoise::verify(Noise::new(3), position, 0), 0)
            })
        });
        group.bench_function(format!("{name}, coupled"), |bencher| {
            bencher.iter(|| {
                position += 1;
                black_box(&p).draw(&mut CoupledNoise::new(Noise::new(3), position), 0)
            })
        });
    }
    group.finish();
}

/// A round of four drafted tokens, distributions at hand: a drafter a little off, and one far off.
fn verify(criterion: &mut Criterion) {
    Verification::ALL.into_iter().for_each(|rule| verify_by(criterion, rule));
}

fn verify_by(criterion: &mut Criterion, rule: Verification) {
    let mut group = criterion.benchmark_group(format!("{rule}, k = {K}"));
    for (name, params) in settings() {
        let sampler = Sampler::new(&params, VOCAB).unwrap();
        let score = |row: &[f32]| sampler.distribution(row, &History::default()).unwrap();
        let rows: Vec<Vec<f32>> = (0..=K as u64).map(logits).collect();
        let p: Vec<Distribution> = rows.iter().map(|row| score(row)).collect();
        for (drafter, step) in [("near", 0.5), ("far", 4.0)] {
            let noise = Noise::new(5);
            let mut draft = Draft::default();
            for (i, row) in rows[..K].iter().enumerate() {
                let off = |id: u32| step * noise.uniform(Stream::Coupled, i as u64, 9, id) as f32;
                let q = score(&row.iter().zip(0..).map(|(logit, id)| logit + off(id)).collect::<Vec<_>>());
                draft.draw(q, &mut DraftNoise::Own(RoundNoise::draft(noise, 0, 0)));
            }
            let mut position = 0;
            group.bench_function(format!("{name}, {drafter} draft"), |bencher| {
                bencher.iter_batched(
                    || p.clone().into_iter(),
                    |mut p| {
                        position += 1;
                        let p = |_| Ok(p.next().unwrap());
                        let mut own = RoundNoise::verify(noise, position, 0);
                        match rule {
                            Verification::Rejection => rejection(&draft, p, &mut own),
                            Verification::Block => block(&draft, p, &mut own),
                            Verification::Coupled => {
                                coupled(&draft, p, &mut CoupledNoise::new(noise, position))
                            }
                        }
                        .unwrap()
                    },
                    BatchSize::LargeInput,
                )
            });
        }
    }
    group.finish();
}

criterion_group!(benches, distribution, features_of_a_long_text, draw, verify);
criterion_main!(benches);
