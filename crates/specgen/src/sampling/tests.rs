//! The sampler against a plain reference that sorts everything and computes in f64.

#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

/// Probabilities, in f64, of every token; `None` where a cut falls so close to a boundary that rounding may decide.
fn reference(params: &SamplingParams, logits: &[f32], history: &History) -> Option<Vec<f64>> {
    // Penalties and bias are f32 by definition: ties and cuts are decided on what they leave.
    let mut x = logits.to_vec();
    for (id, counts) in history.counts() {
        let Some(x) = x.get_mut(id as usize) else { continue };
        let repetition = params.repetition_penalty;
        *x = if *x > 0.0 { *x / repetition } else { *x * repetition };
        *x -= params.frequency_penalty * counts.output as f32;
        *x -= if counts.output > 0 { params.presence_penalty } else { 0.0 };
    }
    for &(id, bias) in &params.logit_bias {
        x[id as usize] += bias;
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
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    if params.top_p < 1.0 {
        let total: f64 = order.iter().map(|&id| weight(id)).sum();
        let wanted = f64::from(params.top_p) * total;
        let (mut sum, mut cut) = (0.0, 0);
        for &id in &order {
            if cut > 0 && sum >= wanted {
                break;
            }
            if (sum - wanted).abs() < 1e-9 * total && cut > 0 {
                return None;
            }
            sum += weight(id);
            cut += 1;
        }
        if (sum - wanted).abs() < 1e-9 * total {
            return None;
        }
        order.truncate(cut);
    }
    let min_p = f64::from(params.min_p);
    if order.iter().any(|&id| min_p > 0.0 && (weight(id) - min_p).abs() < 1e-9) {
        return None;
    }
    order.retain(|&id| weight(id) >= min_p);
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    for id in order {
        probs[id] = weight(id) / total;
    }
    Some(probs)
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
    (
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
                seed: None,
                verify: None,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_distribution_is_the_reference(
        logits in prop::collection::vec(any_logit(), 20..300),
        params in any_params(20),
        prompt in prop::collection::vec(0_u32..320, 0..20),
        output in prop::collection::vec(0_u32..320, 0..20),
    ) {
        let mut history = History::new(&prompt);
        output.iter().for_each(|&id| history.push(id));
        let mut padded = logits.clone();
        padded.extend([1e9, f32::NAN]); // beyond the vocabulary: ignored
        let sampler = Sampler::new(&params, logits.len()).unwrap();
        let found = match sampler.distribution(&padded, &history) {
            Ok(found) => found,
            Err(error) => {
                let banned = |id| params.logit_bias.contains(&(id as u32, f32::NEG_INFINITY));
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
    let adjusted =
        |params: SamplingParams| Sampler::new(&params, 4).unwrap().adjusted(&row, &history).into_owned();
    assert_eq!(adjusted(SamplingParams { repetition_penalty: 2.0, ..off() }), [1.0, 1.0, -4.0, 2.0]);
    assert_eq!(adjusted(SamplingParams { presence_penalty: 0.5, ..off() }), [2.0, 1.5, -2.5, 2.0]);
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
