//! The sampler against a plain reference that sorts everything and computes in f64.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::rng::{CoupledNoise, RoundNoise};
use crate::verify::{Draft, DraftNoise, block, coupled, rejection};
use proptest::prelude::*;

/// Probabilities, in f64, of every token; `None` where a cut falls so close to a boundary that rounding may decide.
fn reference(params: &SamplingParams, logits: &[f32], history: &History) -> Option<Vec<f64>> {
    // Penalties and bias are f32 by definition: ties and cuts are decided on what they leave.
    let mut x = logits.to_vec();
    let window = if params.penalty_last_n == 0 { usize::MAX } else { params.penalty_last_n };
    for (id, counts) in history.counts_of_last(window) {
        let Some(x) = x.get_mut(id as usize) else { continue };
        let repetition = params.repetition_penalty;
        *x = if *x > 0.0 { *x / repetition } else { *x * repetition };
        *x -= params.frequency_penalty * counts.output as f32;
        *x -= if counts.output > 0 { params.presence_penalty } else { 0.0 };
    }
    for &(id, bias) in &params.logit_bias {
        x[id as usize] += bias;
    }
    for word in params.bad_words.iter().filter_map(Phrase::ids) {
        let (last, before) = word.split_last().unwrap();
        if history.tokens().ends_with(before) {
            x[*last as usize] = f32::NEG_INFINITY;
        }
    }
    let x: Vec<f64> = x.into_iter().map(f64::from).collect();

    let mut order: Vec<usize> = (0..x.len()).filter(|&id| x[id] > f64::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| x[b].partial_cmp(&x[a]).unwrap().then(a.cmp(&b))); // 0 and -0 tie
    let max = x[order[0]];
    let mut probs = vec![0.0; x.len()];
    if params.temperature == 0.0 {
        probs[order[0]] = 1.0;
        return Some(probs);
    }
    let weight = |id: usize| ((x[id] - max) / f64::from(params.temperature)).exp();
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    if params.top_n_sigma > 0.0 {
        let num = order.len() as f64;
        let mean = order.iter().map(|&id| x[id]).sum::<f64>() / num;
        let sigma = (order.iter().map(|&id| (x[id] - mean).powi(2)).sum::<f64>() / num).sqrt();
        let floor = max - f64::from(params.top_n_sigma) * sigma;
        if order.iter().any(|&id| close(x[id], floor)) {
            return None;
        }
        order.retain(|&id| x[id] >= floor);
    }
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    if params.top_p < 1.0 {
        let cut = fewest(&order, f64::from(params.top_p), weight)?;
        order.truncate(cut);
    }
    let total = |order: &[usize]| order.iter().map(|&id| weight(id)).sum::<f64>();
    if params.typical_p < 1.0 {
        let total = total(&order);
        let surprise = |id: usize| -(weight(id) / total).ln();
        let likely = order.iter().filter(|&&id| weight(id) > 0.0);
        let entropy: f64 = likely.map(|&id| weight(id) / total * surprise(id)).sum();
        let distance = |id: usize| (surprise(id) - entropy).abs();
        order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(a.cmp(&b)));
        let cut = fewest(&order, f64::from(params.typical_p), weight)?;
        let tied = |pair: &[usize]| x[pair[0]] != x[pair[1]] && close(distance(pair[0]), distance(pair[1]));
        if order[cut.saturating_sub(2)..(cut + 1).min(order.len())].windows(2).any(tied) {
            return None;
        }
        order.truncate(cut);
        order.sort_by(|&a, &b| x[b].partial_cmp(&x[a]).unwrap().then(a.cmp(&b)));
    }
    let min_p = f64::from(params.min_p);
    let best = weight(order[0]);
    if order.iter().any(|&id| min_p > 0.0 && close(weight(id), min_p * best)) {
        return None;
    }
    order.retain(|&id| weight(id) >= min_p * best);
    if let Some(Xtc { probability, threshold }) = params.xtc {
        assert!(probability == 0.0 || probability == 1.0, "chance has no place in a reference");
        let total = total(&order);
        if order.iter().any(|&id| close(weight(id) / total, threshold.into())) {
            return None;
        }
        let num = order.iter().filter(|&&id| weight(id) / total >= f64::from(threshold)).count();
        if probability == 1.0 && num > 1 {
            order.drain(..num - 1);
        }
    }
    if let Some(Mirostat { tau, eta }) = params.mirostat {
        let (tau, eta) = (f64::from(tau), f64::from(eta));
        let mut mu = 2.0 * tau;
        (0..history.num_output()).for_each(|_| mu -= eta * (SURPRISE - tau));
        let total = total(&order);
        let surprise = |id: usize| -(weight(id) / total).log2();
        if order.iter().any(|&id| close(surprise(id), mu)) {
            return None;
        }
        let num = order.iter().filter(|&&id| surprise(id) <= mu).count();
        order.truncate(num.max(1));
    }
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    for id in order {
        probs[id] = weight(id) / total;
    }
    Some(probs)
}

/// How many of `order` are the fewest whose weights reach the share `wanted`.
fn fewest(order: &[usize], wanted: f64, weight: impl Fn(usize) -> f64) -> Option<usize> {
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let wanted = wanted * total;
    let (mut sum, mut cut) = (0.0_f64, 0);
    for &id in order {
        if cut > 0 && (sum - wanted).abs() < 1e-9 * total {
            return None;
        }
        if cut > 0 && sum >= wanted {
            break;
        }
        sum += weight(id);
        cut += 1;
    }
    ((sum - wanted).abs() >= 1e-9 * total).then_some(cut)
}

/// What each output token tells, in bits, in the histories of these tests.
const SURPRISE: f64 = 2.0;

fn history(prompt: &[u32], output: &[u32]) -> History {
    let mut history = History::new(prompt);
    for &id in output {
        history.push_drawn(id, 0.25_f32.ln());
    }
    history
}

fn probs(distribution: &Distribution, len: usize) -> Vec<f64> {
    (0..len as u32).map(|id| f64::from(distribution.log_prob(id)).exp()).collect()
}

/// Logits on a coarse grid (many ties), fine ones, flat ones, and impossible ones.
fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => (-8_i32..8).prop_map(|step| step as f32 / 2.0),
        4 => -20.0_f32..20.0,
        2 => -0.01_f32..0.01,
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-0.0_f32),
    ]
}

fn any_params(vocab: u32) -> impl Strategy<Value = SamplingParams> {
    let off_or = |range: std::ops::Range<f32>, off: f32| prop_oneof![Just(off), range];
    let basic = (
        prop_oneof![1 => Just(0.0_f32), 1 => Just(1.0), 4 => 0.05_f32..3.0],
        prop_oneof![Just(0_usize), 1_usize..60, Just(1000)],
        off_or(0.0..1.0, 1.0),
        off_or(0.0..1.0, 0.0),
        off_or(0.5..2.0, 1.0),
        off_or(-2.0..2.0, 0.0),
        off_or(-2.0..2.0, 0.0),
        prop::collection::btree_map(0..vocab, prop_oneof![-5.0_f32..5.0, Just(f32::NEG_INFINITY)], 0..4),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, repetition, presence, frequency, logit_bias)| {
            SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: repetition,
                presence_penalty: presence,
                frequency_penalty: frequency,
                logit_bias: logit_bias.into_iter().collect(),
                ..SamplingParams::greedy()
            }
        });
    let others = (
        off_or(0.0..3.0, 0.0),
        off_or(0.0..1.0, 1.0),
        prop::option::of((prop_oneof![Just(0.0_f32), Just(1.0)], 0.0_f32..0.5)),
        prop::option::of((0.0_f32..8.0, 0.0_f32..1.0)),
        prop_oneof![Just(0_usize), 1_usize..30],
        prop::collection::vec(prop::collection::vec(0..vocab, 1..3), 0..3),
    );
    // All of them at once leave little to see: mostly some are off.
    (basic, others, 0_u8..64).prop_map(|(basic, others, on)| {
        let (top_n_sigma, typical_p, xtc, mirostat, penalty_last_n, bad_words) = others;
        let on = |bit: u8| on & 1 << bit != 0;
        let filters = SamplingParams {
            top_n_sigma,
            typical_p,
            xtc: xtc.map(|(probability, threshold)| Xtc { probability, threshold }),
            mirostat: mirostat.map(|(tau, eta)| Mirostat { tau, eta }),
            penalty_last_n,
            bad_words: bad_words.into_iter().map(Phrase::Ids).collect(),
            ..basic
        };
        SamplingParams {
            top_n_sigma: if on(0) { filters.top_n_sigma } else { 0.0 },
            typical_p: if on(1) { filters.typical_p } else { 1.0 },
            xtc: filters.xtc.filter(|_| on(2)),
            mirostat: filters.mirostat.filter(|_| on(3)),
            top_k: if on(4) { filters.top_k } else { 0 },
            top_p: if on(5) { filters.top_p } else { 1.0 },
            ..filters
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_distribution_is_the_reference(
        logits in prop::collection::vec(any_logit(), 20..300),
        params in any_params(20),
        prompt in prop::collection::vec(0_u32..320, 0..20),
        output in prop::collection::vec(0_u32..320, 0..20),
    ) {
        let history = history(&prompt, &output);
        let mut padded = logits.clone();
        padded.extend([1e9, f32::NAN]); // beyond the vocabulary: ignored
        let sampler = Sampler::new(&params, logits.len()).unwrap();
        let found = match sampler.distribution(&padded, &history) {
            Ok(found) => found,
            Err(error) => {
                let banned = |id| {
                    let id = id as u32;
                    params.logit_bias.contains(&(id, f32::NEG_INFINITY))
                        || params.bad_words.iter().any(|word| word.ids().unwrap().last() == Some(&id))
                };
                prop_assert!(logits.iter().enumerate().all(|(id, &x)| x == f32::NEG_INFINITY || banned(id)), "{error}");
                return Ok(());
            }
        };
        let Some(wanted) = reference(&params, &logits, &history) else { return Ok(()) };
        if let Distribution::Sparse(tokens) = &found {
            prop_assert!(tokens.len() > 1 && tokens.is_sorted_by(|a, b| a.0 < b.0));
        }
        prop_assert!(found.ln_mass().abs() < 1e-5);
        let found = probs(&found, logits.len());
        for (id, (&found, &wanted)) in found.iter().zip(&wanted).enumerate() {
            prop_assert!(found == 0.0 || wanted > 0.0, "token {id} is let through");
        }
        for (id, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            prop_assert!((found - wanted).abs() < 1e-5 * wanted + 1e-6, "token {id}: {found}, not {wanted}");
        }
    }

    /// Rows long enough for every filter to work in several steps.
    #[test]
    fn so_it_is_for_long_rows(
        logits in prop::collection::vec(-20.0_f32..20.0, 300..2000),
        params in any_params(20),
    ) {
        let history = History::default();
        let found = Sampler::new(&params, logits.len()).unwrap().distribution(&logits, &history).unwrap();
        let Some(wanted) = reference(&params, &logits, &history) else { return Ok(()) };
        for (id, (found, wanted)) in probs(&found, logits.len()).iter().zip(&wanted).enumerate() {
            prop_assert!((found - wanted).abs() < 1e-5 * wanted + 1e-6, "token {id}: {found}, not {wanted}");
        }
    }
}

fn off() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::greedy() }
}

fn score(params: &SamplingParams, logits: &[f32], history: &History) -> Distribution {
    Sampler::new(params, logits.len()).unwrap().distribution(logits, history).unwrap()
}

#[test]
fn ties_go_to_the_lower_id() {
    let row = [1.0, 3.0, 3.0, -0.0, 0.0, 3.0];
    let history = History::default();
    assert_eq!(score(&SamplingParams::greedy(), &row, &history), Distribution::Point(1));
    let support = |params: SamplingParams| -> Vec<u32> {
        score(&params, &row, &history).support().map(|(id, _)| id).collect()
    };
    assert_eq!(support(SamplingParams { top_k: 2, ..off() }), [1, 2]);
    assert_eq!(support(SamplingParams { top_k: 5, ..off() }), [0, 1, 2, 3, 5]);
    assert_eq!(support(SamplingParams { top_p: 0.5, ..off() }), [1, 2]);
    assert_eq!(support(SamplingParams { min_p: 1.0, ..off() }), [1, 2, 5]);
    assert_eq!(support(SamplingParams { top_p: 0.0, ..off() }), [1]);
    assert_eq!(score(&SamplingParams { top_k: 1, ..off() }, &row, &history), Distribution::Point(1));
}

#[test]
fn the_nucleus_is_the_fewest_tokens_that_reach_top_p() {
    let support =
        |top_p| score(&SamplingParams { top_p, ..off() }, &[0.0; 4], &History::default()).support().count();
    assert_eq!([0.25, 0.250_001, 0.5, 0.75, 0.76].map(support), [1, 2, 2, 3, 4]);
}

#[test]
fn without_filters_the_distribution_is_the_softmax() {
    let row = [0.5, -1.0, f32::NEG_INFINITY, 2.0];
    let Distribution::Dense(found) = score(&off(), &row, &History::default()) else { panic!("not dense") };
    assert_eq!(found, log_probabilities(&row));
    assert_eq!(found[2], f32::NEG_INFINITY);
    let total: f64 = found.iter().map(|&lp| f64::from(lp).exp()).sum();
    assert!((total - 1.0).abs() < 1e-6);
    assert_eq!(log_probabilities(&[f32::NEG_INFINITY; 2]), [f32::NEG_INFINITY; 2]);
}

/// vLLM's meaning: repetition looks at prompt and output, presence and frequency at the output only.
#[test]
fn penalties_look_where_they_should() {
    let row = [2.0, 2.0, -2.0, 2.0];
    let mut history = History::new(&[0, 0, 9]);
    [1, 1, 2].into_iter().for_each(|id| history.push(id));
    let adjusted = |params: SamplingParams| {
        Sampler::new(&params, 4).unwrap().adjusted(&row, &history).unwrap().into_owned()
    };
    assert_eq!(adjusted(SamplingParams { repetition_penalty: 2.0, ..off() }), [1.0, 1.0, -4.0, 2.0]);
    assert_eq!(adjusted(SamplingParams { presence_penalty: 0.5, ..off() }), [2.0, 1.5, -2.5, 2.0]);
    let last_two = SamplingParams { repetition_penalty: 2.0, penalty_last_n: 2, ..off() };
    assert_eq!(adjusted(last_two), [2.0, 1.0, -4.0, 2.0]);
    assert_eq!(adjusted(SamplingParams { frequency_penalty: 0.5, ..off() }), [2.0, 1.0, -2.5, 2.0]);
    let bias = vec![(3, -0.75), (0, f32::NEG_INFINITY)];
    assert_eq!(adjusted(SamplingParams { logit_bias: bias, ..off() }), [f32::NEG_INFINITY, 2.0, -2.0, 1.25]);
}

/// The row of draft token i sees the draft tokens before it, and the history is itself again afterwards.
#[test]
fn a_draft_position_is_scored_on_its_own_prefix() {
    let params = SamplingParams { frequency_penalty: 1.0, presence_penalty: 0.5, ..off() };
    let row = [1.0, 0.5, 0.0];
    let draft = [0, 0, 2, 1];
    let mut hypothetical = History::new(&[1]);
    hypothetical.push(0);
    let before = hypothetical.clone();
    for i in 0..=draft.len() {
        let mut plain = before.clone();
        draft[..i].iter().for_each(|&id| plain.push(id));
        assert_eq!(score(&params, &row, &hypothetical), score(&params, &row, &plain));
        if let Some(&id) = draft.get(i) {
            hypothetical.push(id);
        }
    }
    hypothetical.truncate_output(1);
    assert_eq!(hypothetical, before);
}

#[test]
fn a_broken_row_is_an_error_that_names_the_step() {
    let sampler =
        Sampler::new(&SamplingParams { logit_bias: vec![(200, f32::NEG_INFINITY)], ..off() }, 300).unwrap();
    let mut history = History::new(&[1, 2]);
    history.push(3);
    let mut row = vec![0.0; 301];
    row[200] = f32::NAN; // banned, but still the sign of a broken model
    let error = sampler.distribution(&row, &history).unwrap_err();
    assert!(matches!(error, Error::NanLogits { step: 1, token: 200 }), "{error}");
    let error = sampler.distribution(&row[..299], &history).unwrap_err().to_string();
    assert!(error.contains("299 logits") && error.contains("300"), "{error}");
}

#[test]
fn infinities_are_certainties_and_bans() {
    const INF: f32 = f32::INFINITY;
    let history = History::default();
    for params in [off(), SamplingParams::greedy(), SamplingParams::default()] {
        assert_eq!(score(&params, &[0.0, INF, INF], &history), Distribution::Point(1));
        let banned = SamplingParams { logit_bias: vec![(1, -INF)], ..params.clone() };
        assert_eq!(score(&banned, &[0.0, INF, -INF], &history), Distribution::Point(0));
        let everything = SamplingParams { logit_bias: vec![(0, -INF), (1, -INF)], ..params };
        let sampler = Sampler::new(&everything, 2).unwrap();
        let error = sampler.distribution(&[1.0, 2.0], &history).unwrap_err().to_string();
        assert!(error.contains("every token is banned"), "{error}");
    }
}

#[test]
fn tiny_and_huge_temperatures_are_limits_not_accidents() {
    let row = [1.0, 3.0, 2.0, f32::MAX, f32::MIN];
    let history = History::default();
    for (filter, top_k) in [("dense", 0), ("sparse", 4)] {
        for temperature in [1e-45, 1e-30, 1e-3] {
            let found = score(&SamplingParams { temperature, top_k, ..off() }, &row, &history);
            assert_eq!(found.log_prob(3), 0.0, "{filter} {temperature}");
            assert_eq!(found.support().count(), 1, "{filter} {temperature}");
        }
        let found = score(&SamplingParams { temperature: f32::MAX, top_k, ..off() }, &row, &history);
        assert!(found.support().all(|(_, log_prob)| log_prob.is_finite()));
    }
}

/// The coin of XTC falls by seed and position alone, and often enough.
#[test]
fn top_choices_are_excluded_by_seed_and_position() {
    let row = [3.0, 2.9, 0.0, -1.0];
    let excluded = |seed, position: usize, row: &[f32]| {
        let xtc = Some(Xtc { probability: 0.3, threshold: 0.2 });
        let params = SamplingParams { xtc, seed: Some(seed), ..off() };
        score(&params, row, &history(&[], &vec![0; position])).log_prob(0) == f32::NEG_INFINITY
    };
    let count = (0..4000).filter(|&seed| excluded(seed, 3, &row)).count();
    assert!((1050..1350).contains(&count), "{count} of 4000");
    let count = (0..400).filter(|&position| excluded(5, position, &row)).count();
    assert!((80..160).contains(&count), "{count} of 400");
    for seed in 0..50 {
        // The logits of a draft differ; its decision doesn't.
        assert_eq!(excluded(seed, 7, &row), excluded(seed, 7, &[2.0, 1.9, 1.8, 1.7, 1.6]));
    }
}

#[test]
fn the_least_likely_top_choice_stays() {
    let logits = [0.4_f32, 0.1, 0.3, 0.2].map(f32::ln);
    let support = |threshold, row: &[f32]| -> Vec<u32> {
        let xtc = Some(Xtc { probability: 1.0, threshold });
        score(&SamplingParams { xtc, ..off() }, row, &History::default())
            .support()
            .map(|(id, _)| id)
            .collect()
    };
    assert_eq!(support(0.15, &logits), [1, 3]);
    assert_eq!(support(0.25, &logits), [1, 2, 3]);
    assert_eq!(support(0.35, &logits), [0, 1, 2, 3]);
    assert_eq!(support(0.0, &logits), [1]);
    // However little is left of all probability, it is all there is.
    let params = SamplingParams {
        xtc: Some(Xtc { probability: 1.0, threshold: 0.0 }),
        mirostat: Some(Mirostat::default()),
        temperature: 1e-3,
        ..off()
    };
    assert_eq!(score(&params, &[3.0, -9.0, 5.0], &History::default()), Distribution::Point(1));
    // Of equals the lower id counts as the more likely one.
    assert_eq!(support(0.2, &[0.0; 4]), [3]);
}

#[test]
fn typical_tokens_are_near_the_entropy() {
    // An entropy of 1.28: the token of probability 0.3 (surprise 1.20) is nearest, then 0.2 (1.61), then 0.4 (0.92).
    let logits = [0.4_f32, 0.1, 0.3, 0.2].map(f32::ln);
    let support = |typical_p| -> Vec<u32> {
        let params = SamplingParams { typical_p, ..off() };
        score(&params, &logits, &History::default()).support().map(|(id, _)| id).collect()
    };
    assert_eq!(support(0.0), [2]);
    assert_eq!(support(0.29), [2]);
    assert_eq!(support(0.49), [2, 3]);
    assert_eq!(support(0.51), [0, 2, 3]);
    assert_eq!(support(0.999), [0, 1, 2, 3]);
    // The most likely token may be gone before min-p looks: what is left is compared among itself.
    let params = SamplingParams { typical_p: 0.49, min_p: 0.6, ..off() };
    let found: Vec<u32> = score(&params, &logits, &History::default()).support().map(|(id, _)| id).collect();
    assert_eq!(found, [2, 3]);
}

/// A sampler told of each token and its row aims at `tau` bits a token.
#[test]
fn mirostat_steers_the_surprise() {
    let vocab = 50_u32;
    for tau in [1.0_f32, 3.0, 4.0] {
        let mirostat = Some(Mirostat { tau, eta: 0.2 });
        let params = SamplingParams { mirostat, temperature: 1.5, seed: Some(1), ..off() };
        let sampler = Sampler::new(&params, vocab as usize).unwrap();
        let (noise, mut history) = (Noise::new(3), History::default());
        for position in 0..600 {
            let row: Vec<f32> =
                (0..vocab).map(|id| 8.0 * noise.uniform(Stream::Coupled, position, 0, id) as f32).collect();
            let p = sampler.distribution(&row, &history).unwrap();
            let id = p.draw(&mut crate::rng::RoundNoise::verify(noise, position, 0), 0);
            sampler.push(&mut history, id, &row);
        }
        let (known, bits) = history.surprise();
        assert_eq!(known, 600);
        let mean = bits / 600.0;
        assert!((mean - f64::from(tau)).abs() < 0.1, "{mean} bits, not {tau}");
    }
    // Without mirostat, rows teach nothing.
    let mut history = History::default();
    Sampler::new(&off(), 2).unwrap().push(&mut history, 1, &[0.0, 0.0]);
    assert_eq!((history.surprise().0, history.output()), (0, &[1][..]));
}

#[test]
fn bans_hold_against_bias_and_certainty() {
    const INF: f32 = f32::INFINITY;
    let params = SamplingParams {
        logit_bias: vec![(0, 100.0), (1, 100.0), (2, 100.0)],
        bad_words: vec![vec![0].into(), vec![7, 1].into()],
        min_tokens: 2,
        ..off()
    };
    let sampler = Sampler::new(&params, 8).unwrap().with_end_ids(&[2]);
    let support = |row: &[f32], history: &History| -> Vec<u32> {
        sampler.distribution(row, history).unwrap().support().map(|(id, _)| id).collect()
    };
    assert_eq!(support(&[0.0; 8], &history(&[7], &[])), [3, 4, 5, 6, 7]);
    assert_eq!(support(&[0.0; 8], &history(&[5], &[3])), [1, 3, 4, 5, 6, 7]);
    assert_eq!(support(&[0.0; 8], &history(&[5], &[3, 3])), [1, 2, 3, 4, 5, 6, 7]);
    let row = [INF, INF, INF, 0.0, INF, 0.0, 0.0, 0.0];
    assert_eq!(support(&row, &history(&[7], &[])), [4]);
    // A draft that lacks a token cannot be told to ban it.
    let draft = sampler.over(2);
    assert_eq!(draft.distribution(&[0.0; 2], &History::default()).unwrap(), Distribution::Point(1));
}

struct Rule(&'static str, fn(&mut [f32], &History));

impl LogitsProcessor for Rule {
    fn name(&self) -> &str {
        self.0
    }

    fn process(&self, logits: &mut [f32], history: &History) {
        self.1(logits, history);
    }
}

#[test]
fn processors_come_in_order_after_the_bias_and_before_the_bans() {
    let add = Rule("add", |row, history| row[0] += history.num_output() as f32);
    let double = Rule("double", |row, _| row.iter_mut().for_each(|x| *x *= 2.0));
    let params = SamplingParams {
        logit_bias: vec![(0, 1.0)],
        processors: vec![add.into(), double.into()],
        bad_words: vec![vec![2].into()],
        ..off()
    };
    let sampler = Sampler::new(&params, 3).unwrap();
    let found = sampler.adjusted(&[1.0, 1.0, 1.0], &history(&[], &[0, 0, 0])).unwrap();
    assert_eq!(*found, [10.0, 2.0, f32::NEG_INFINITY]);
    assert_eq!(format!("{:?}", params.processors), r#"[Processor("add"), Processor("double")]"#);
    assert_eq!(params.clone(), params);
    let same_rule: Processor = Rule("add", |_, _| ()).into();
    assert_ne!(params.processors[0], same_rule);
}

#[test]
fn a_processor_that_breaks_its_contract_is_named() {
    let message = |rule: Rule, row: &[f32]| {
        let params = SamplingParams { processors: vec![rule.into()], ..off() };
        Sampler::new(&params, row.len())
            .unwrap()
            .distribution(row, &history(&[1], &[1, 1]))
            .unwrap_err()
            .to_string()
    };
    let nan = Rule("broken", |row, _| row[1] = f32::NAN);
    assert_eq!(
        message(nan, &[0.0; 3]),
        "the logits processor `broken` made the logit of token 1 NaN at output token 2; a logit must be a number"
    );
    let all = || Rule("strict", |row, _| row.fill(f32::NEG_INFINITY));
    assert_eq!(
        message(all(), &[0.0; 3]),
        "the logits processor `strict` banned every token at output token 2; it must leave at least one"
    );
    // Where nothing was left to it, it is not to blame.
    assert!(message(all(), &[f32::NEG_INFINITY; 3]).starts_with("every token is banned"));
}

#[test]
fn a_phrase_of_text_needs_a_tokenizer() {
    let message = |params: &SamplingParams| Sampler::new(params, 3).unwrap_err().to_string();
    let found = message(&SamplingParams { bad_words: vec!["no".into()], ..off() });
    assert_eq!(found, r#"the phrase "no" is text, and there is no tokenizer; give its token ids instead"#);
    assert!(message(&SamplingParams { dry: Some(Dry::default()), ..off() }).contains(r#""\n""#));
}

/// Logits at the edges of numbers.
fn edge_logit() -> impl Strategy<Value = f32> {
    let edges = [-f32::INFINITY, f32::MIN, -1.0, -1e-45, -0.0, 0.0, 1e-45, f32::MIN_POSITIVE, 1.0, f32::MAX];
    prop_oneof![60 => prop::sample::select(edges.to_vec()), 1 => Just(f32::INFINITY), 1 => Just(f32::NAN)]
}

/// Parameters at the edges of their ranges, over the usual ones.
fn edge_params(vocab: u32) -> impl Strategy<Value = SamplingParams> {
    let steep = Dry { multiplier: f32::MAX, base: f32::MAX, allowed_length: 1, ..Dry::default() };
    let steep = Dry { sequence_breakers: Vec::new(), ..steep };
    let edges = (
        prop::sample::select(vec![0.0_f32, 1e-45, 1e-9, 1.0, f32::MAX]),
        prop::option::of(prop::sample::select(vec![f32::MIN, -1e30, 1e30, f32::MAX])),
        prop::option::of(Just(steep)),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
    );
    (any_params(vocab), edges).prop_map(
        |(params, (temperature, bias, dry, (top_k, min_p, top_p, typical)))| {
            let logit_bias = bias.map_or(params.logit_bias.clone(), |bias| vec![(0, bias)]);
            SamplingParams {
                temperature,
                logit_bias,
                dry,
                top_k: if top_k { 1 } else { params.top_k },
                min_p: if min_p { 1.0 } else { params.min_p },
                top_p: if top_p { 0.0 } else { params.top_p },
                typical_p: if typical { 0.0 } else { params.typical_p },
                ..params
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Whatever a row is like, there is a distribution, or an error that says what is wrong; and from two of them every
    /// rule gets a token that the target can say.
    #[test]
    fn no_row_is_beyond_distributions_and_rules(
        rows in prop::collection::vec(prop::collection::vec(edge_logit(), 6), 3),
        params in edge_params(6),
        output in prop::collection::vec(0_u32..6, 0..8),
        seed in any::<u64>(),
    ) {
        let history = history(&[1, 2], &output);
        let sampler = Sampler::new(&SamplingParams { seed: Some(seed), ..params }, 6).unwrap();
        let mut found = Vec::new();
        for row in &rows {
            let p = match sampler.distribution(row, &history) {
                Ok(p) => p,
                Err(Error::NanLogits { step, token }) => {
                    prop_assert_eq!(step, output.len());
                    prop_assert!(row[token as usize].is_nan());
                    continue;
                }
                Err(error) => {
                    let wanted = format!("every token is banned at output token {}", output.len());
                    prop_assert!(error.to_string().starts_with(&wanted), "{error}");
                    continue;
                }
            };
            prop_assert!(row.iter().all(|logit| !logit.is_nan()));
            let possible: Vec<_> = p.support().collect();
            let total: f64 = possible.iter().map(|&(_, log_prob)| f64::from(log_prob).exp()).sum();
            prop_assert!((total - 1.0).abs() < 1e-5, "{p:?}");
            prop_assert!(possible.iter().all(|&(id, log_prob)| log_prob <= 0.0 && row[id as usize] > -f32::INFINITY));
            found.push(p);
        }
        let [q, p, bonus] = &found[..] else { return Ok(()) };
        let noise = Noise::new(seed);
        let rows = |i: usize| Ok(if i == 0 { p.clone() } else { bonus.clone() });
        let mut draft = Draft::default();
        draft.draw(q.clone(), &mut DraftNoise::Own(RoundNoise::draft(noise, 0, 0)));
        let verdicts = [
            rejection(&draft, rows, &mut RoundNoise::verify(noise, 0, 0)),
            block(&draft, rows, &mut RoundNoise::verify(noise, 0, 0)),
            coupled(&draft, rows, &mut CoupledNoise::new(noise, 0)),
        ];
        for verdict in verdicts {
            let verdict = verdict.unwrap();
            let said = if verdict.num_accepted == 0 { p } else { bonus };
            prop_assert!(said.log_prob(verdict.next_token) > -f32::INFINITY, "{verdict:?}");
            prop_assert!(verdict.num_accepted == 0 || p.log_prob(draft.tokens[0]) > -f32::INFINITY);
        }
    }
}

/// What has grown beyond numbers, times nothing, is nothing.
#[test]
fn a_dry_multiplier_of_zero_is_off() {
    let dry = Dry { multiplier: 0.0, base: f32::MAX, allowed_length: 1, ..Dry::default() };
    let dry = Some(Dry { sequence_breakers: Vec::new(), ..dry });
    let repeats = history(&[], &[1; 40]);
    let row = [1.0, 2.0];
    let with = score(&SamplingParams { dry, ..off() }, &row, &repeats);
    assert_eq!(with, score(&off(), &row, &repeats));
}
