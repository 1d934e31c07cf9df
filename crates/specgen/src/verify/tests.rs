#![allow(clippy::unwrap_used)]

use super::*;

/// Answers from a script, so that each branch can be forced; picks the first possible token.
#[derive(Default)]
struct Script {
    accept: Vec<bool>,
    asked: Vec<f64>,
    picked_from: Vec<Vec<(u32, f64)>>,
}

impl Chooser for Script {
    fn accept(&mut self, _index: usize, ln_ratio: f64) -> bool {
        self.asked.push(ln_ratio);
        self.accept[self.asked.len() - 1]
    }
}

impl Picker for Script {
    fn pick(&mut self, _index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        self.picked_from.push(weights.filter(|&(_, weight)| weight > 0.0).collect());
        self.picked_from.last().unwrap().first().map(|&(id, _)| id)
    }
}

fn dense(probs: &[f32]) -> Distribution {
    Distribution::Dense(probs.iter().map(|p| p.ln()).collect())
}

fn drawn(token: u32, q: &[f32]) -> Draft {
    let mut draft = Draft::default();
    draft.push(token, dense(q));
    draft
}

#[test]
fn an_empty_draft_is_plain_sampling() {
    let mut script = Script::default();
    let verdict = rejection(&Draft::default(), |_| Ok(dense(&[0.0, 1.0])), &mut script).unwrap();
    assert_eq!(verdict, Verdict { num_accepted: 0, next_token: 1, residual_underflow: false });
}

#[test]
fn the_ratio_is_p_over_q() {
    let mut script = Script { accept: vec![true], ..Script::default() };
    let rows = [dense(&[0.25, 0.75]), dense(&[0.0, 1.0])];
    let verdict = rejection(&drawn(0, &[0.5, 0.5]), |i| Ok(rows[i].clone()), &mut script).unwrap();
    assert_eq!((verdict.num_accepted, verdict.next_token), (1, 1));
    assert!((script.asked[0] - 0.5_f64.ln()).abs() < 1e-7);
}

#[test]
fn p_is_not_asked_for_past_the_first_rejection() {
    let draft = Draft::deterministic(vec![1, 2, 3]);
    let mut asked = Vec::new();
    let p = |i| {
        asked.push(i);
        Ok(Distribution::Point([1, 9, 3, 4][i]))
    };
    let verdict = rejection(&draft, p, &mut Script::default()).unwrap();
    assert_eq!((verdict.num_accepted, verdict.next_token), (1, 9));
    assert_eq!(asked, [0, 1]);
}

#[test]
fn greedy_decoding_asks_for_nothing_random() {
    let mut script = Script::default();
    let mut draft = drawn(4, &[0.2; 5]);
    draft.push(1, Distribution::Point(1));
    draft.push(3, dense(&[0.2; 5]));
    for (argmax, num_accepted, next_token) in
        [([4, 1, 3, 0], 3, 0), ([4, 1, 2, 0], 2, 2), ([4, 0, 3, 0], 1, 0), ([0, 1, 3, 0], 0, 0)]
    {
        let p = |i: usize| Ok(Distribution::Point(argmax[i]));
        let wanted = Verdict { num_accepted, next_token, residual_underflow: false };
        assert_eq!(rejection(&draft, p, &mut script).unwrap(), wanted);
        assert!(script.asked.is_empty());
        // What is asked of the chooser here has one answer.
        let mut certain = Script { accept: vec![true; 3], ..Script::default() };
        assert_eq!(block(&draft, p, &mut certain).unwrap(), wanted);
        assert!(certain.asked.iter().all(|&ln_chance| ln_chance == 0.0) && certain.picked_from.is_empty());
        assert_eq!(coupled(&draft, p, &mut CoupledNoise::new(crate::rng::Noise::new(1), 0)).unwrap(), wanted);
    }
    assert!(script.asked.is_empty() && script.picked_from.is_empty());
}

#[test]
fn names_are_read_as_they_are_written() {
    for rule in Verification::ALL {
        assert_eq!(rule.to_string().parse::<Verification>().unwrap(), rule);
    }
    let error = "typical".parse::<Verification>().unwrap_err().to_string();
    assert_eq!(error, "verification `typical` is unknown; wanted one of rejection, block, coupled");
}

/// Draft tokens 0 and 1 from `q`, judged by `rows` of the target.
fn in_block(rows: &[&[f32]; 3], script: &mut Script) -> Verdict {
    let mut draft = drawn(0, &[0.5, 0.5]);
    draft.push(1, dense(&[0.25, 0.75]));
    block(&draft, |i| Ok(dense(rows[i])), script).unwrap()
}

#[test]
fn block_chances_and_residuals_are_those_of_the_paper() {
    let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
    let rows: [&[f32]; 3] = [&[0.4, 0.6], &[0.5, 0.5], &[0.0, 1.0]];
    // w_1 = 0.4 / 0.5 = 0.8, w_2 = 0.8 * 0.5 / 0.75 = 8/15 = h_2.
    // Z_1 = 0.8 * 0.5 - 0.25 = 0.15, h_1 = 0.15 / (0.15 + 0.2) = 3/7.
    let mut script = Script { accept: vec![true], ..Script::default() };
    assert_eq!(in_block(&rows, &mut script).num_accepted, 2);
    assert_eq!(script.picked_from, [[(1, 1.0)]], "the bonus token");
    close(script.asked[0], (8.0_f64 / 15.0).ln());

    let mut script = Script { accept: vec![false, true], ..Script::default() };
    assert_eq!(in_block(&rows, &mut script).num_accepted, 1);
    close(script.asked[1], (3.0_f64 / 7.0).ln());
    let [(0, weight)] = script.picked_from[0][..] else { panic!("{:?}", script.picked_from) };
    close(weight, 0.15);

    let mut script = Script { accept: vec![false, false], ..Script::default() };
    assert_eq!(in_block(&rows, &mut script).num_accepted, 0);
    let [(1, weight)] = script.picked_from[0][..] else { panic!("{:?}", script.picked_from) };
    close(weight, 0.6 - 0.5);
}

/// A low ratio early is made good by a high one behind it.
#[test]
fn a_block_stands_where_its_second_token_is_the_targets_favourite() {
    let mut script = Script { accept: vec![true], ..Script::default() };
    assert_eq!(in_block(&[&[0.4, 0.6], &[0.0, 1.0], &[1.0, 0.0]], &mut script).num_accepted, 2);
    // w_2 = min(1, 0.8 / 0.75) = 1: certain.
    assert_eq!(script.asked, [0.0]);
}

#[test]
fn block_asks_for_nothing_behind_what_cannot_stand() {
    let mut asked = Vec::new();
    let mut draft = drawn(0, &[0.5, 0.5]);
    draft.push(1, dense(&[0.5, 0.5]));
    draft.push(1, dense(&[0.5, 0.5]));
    let rows: [&[f32]; 2] = [&[0.5, 0.5], &[1.0, 0.0]];
    let p = |i: usize| {
        asked.push(i);
        Ok(dense(rows[i]))
    };
    let mut script = Script { accept: vec![true], ..Script::default() };
    let verdict = block(&draft, p, &mut script).unwrap();
    assert_eq!((verdict.num_accepted, verdict.next_token), (1, 0));
    assert_eq!(asked, [0, 1]);
}

#[test]
fn block_counts_a_rejection_that_rounding_alone_explains() {
    let row = [0.5, 0.5];
    let mut script = Script { accept: vec![false], ..Script::default() };
    let verdict = block(&drawn(1, &row), |_| Ok(dense(&row)), &mut script).unwrap();
    assert_eq!(verdict, Verdict { num_accepted: 0, next_token: 0, residual_underflow: true });
    assert_eq!(script.asked, [0.0], "equal bits must give the ratio 1");
}

#[test]
fn coupled_looks_at_no_q_and_stops_at_the_first_other_token() {
    let noise = || CoupledNoise::new(crate::rng::Noise::new(3), 5);
    let rows = [dense(&[0.3, 0.7]), dense(&[0.6, 0.4]), Distribution::Sparse(vec![(0, -0.69), (9, -0.69)])];
    let plain: Vec<u32> = (0..3).map(|i| rows[i].draw(&mut noise(), i)).collect();
    for right in 0..=2 {
        let mut tokens = plain[..2].to_vec();
        if right < 2 {
            tokens[right] = 5;
        }
        let draft = Draft { tokens, ..Draft::default() };
        let mut asked = 0;
        let p = |i: usize| {
            asked = i;
            Ok(rows[i].clone())
        };
        let verdict = coupled(&draft, p, &mut noise()).unwrap();
        let wanted = Verdict { num_accepted: right, next_token: plain[right], residual_underflow: false };
        assert_eq!((verdict, asked), (wanted, right));
    }
    let tree = Draft { parents: Some(vec![0]), ..drawn(1, &[0.5, 0.5]) };
    assert!(coupled(&tree, |_| Ok(rows[0].clone()), &mut noise()).unwrap_err().to_string().contains("trees"));
}

/// A token drawn with the target's noise carries no `q`: nothing could be tested with it.
#[test]
fn a_draft_keeps_its_q_only_where_it_drew_by_itself() {
    use crate::rng::Noise;
    let q = dense(&[0.5, 0.5]);
    let mut draft = Draft::default();
    let (own, _) = draft.draw(q.clone(), &mut DraftNoise::Own(RoundNoise::draft(Noise::new(1), 0, 0)));
    let (shared, _) = draft.draw(q.clone(), &mut DraftNoise::Shared(CoupledNoise::new(Noise::new(1), 0)));
    assert_eq!(
        draft,
        Draft { tokens: vec![own, shared], q: vec![q, Distribution::Point(shared)], ..Draft::default() }
    );
}

#[test]
fn what_the_target_cannot_say_never_stands() {
    // Even against a chooser that always says yes.
    let mut script = Script { accept: vec![true; 4], ..Script::default() };
    let draft = drawn(0, &[1.0 - 1e-6, 1e-6]);
    let verdict = rejection(&draft, |_| Ok(dense(&[0.0, 0.5, 0.5])), &mut script).unwrap();
    assert_eq!(verdict.num_accepted, 0);
    assert_ne!(verdict.next_token, 0);
    assert!(script.asked.is_empty());
    // An id beyond the target's vocabulary is one of those things.
    let draft = drawn(3, &[0.0, 0.0, 0.0, 0.6, 0.4]);
    assert_eq!(rejection(&draft, |_| Ok(dense(&[0.5, 0.5])), &mut script).unwrap().num_accepted, 0);
}

#[test]
fn an_impossible_rejection_falls_back_to_p_and_is_counted() {
    let mut script = Script { accept: vec![false], ..Script::default() };
    let row = [0.5, 0.5];
    let verdict = rejection(&drawn(1, &row), |_| Ok(dense(&row)), &mut script).unwrap();
    assert_eq!(verdict, Verdict { num_accepted: 0, next_token: 0, residual_underflow: true });
    assert_eq!(script.asked, [0.0], "equal bits must give the ratio 1");
}

#[test]
fn a_draft_that_lies_about_q_is_refused() {
    let p = |_| Ok(dense(&[0.5, 0.5]));
    let mut script = Script { accept: vec![true; 9], ..Script::default() };
    let mut message = |draft: &Draft| {
        let by_block = block(draft, p, &mut script).unwrap_err().to_string();
        assert_eq!(rejection(draft, p, &mut script).unwrap_err().to_string(), by_block);
        by_block
    };

    let missing = Draft { tokens: vec![1], ..Draft::default() };
    assert!(message(&missing).contains("1 tokens but 0 distributions"));
    assert!(message(&drawn(1, &[1.0, 0.0])).contains("token 0 (id 1) has probability 0"));
    assert!(message(&drawn(1, &[1.0, 1.0])).contains("sum to 2"));
    assert!(message(&drawn(1, &[f32::NAN, 1.0])).contains("sum to NaN"));
    assert!(message(&drawn(0, &[f32::NAN, 1.0])).contains("token 0 (id 0) has probability NaN"));
    let tree = Draft { parents: Some(vec![0]), ..drawn(1, &[0.5, 0.5]) };
    assert!(message(&tree).contains("trees"));
}

#[test]
fn an_error_of_the_target_comes_through() {
    let p = |i| match i {
        0 => Ok(Distribution::Point(1)),
        _ => Err(Error::NanLogits { step: 5, token: 2 }),
    };
    let error = rejection(&Draft::deterministic(vec![1]), p, &mut Script::default()).unwrap_err();
    assert!(matches!(error, Error::NanLogits { step: 5, token: 2 }));
}
