//! `CoupledNoise`: the noise that target and draft share, so that they tend to draw the same token.

use super::{Noise, Picker, Stream, Track};

/// The randomness of a text under coupled sampling: every token of every output position has an exponential number `E`
/// of its own (-ln of it is its Gumbel noise), a function of (seed, position, token) alone, and the token with the least
/// `E / p` is drawn. So a draw has the law `p`, two draws at one position agree as far as their distributions do
/// (Daliri, Musco and Suresh 2024, arXiv 2408.07978), and the text depends on no round, draft or neighbour.
///
/// It draws and does no more. Testing a draft's ratio with the noise it was drawn with would favour the rejected token
/// again, so no [`Chooser`](super::Chooser) is made of it:
///
/// ```compile_fail,E0277
/// use specgen::{rng::{CoupledNoise, Noise}, verify::{Draft, rejection}};
///
/// let mut noise = CoupledNoise::new(Noise::new(1), 0);
/// rejection(&Draft::default(), |_| unreachable!(), &mut noise);
/// ```
#[derive(Debug, Clone)]
pub struct CoupledNoise {
    noise: Noise,
    position: u64,
}

impl CoupledNoise {
    /// `position` is the index in the output of the first token to draw.
    pub fn new(noise: Noise, position: u64) -> Self {
        Self { noise, position }
    }

    /// The noise from `num_tokens` later on.
    pub(crate) fn behind(self, num_tokens: usize) -> Self {
        Self { position: self.position + num_tokens as u64, ..self }
    }
}

impl Picker for CoupledNoise {
    /// Every token runs for itself: what wins depends on no token's neighbours, hence not on how a filter left them.
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        let position = self.position + index as u64;
        let mut track = Track::new(self.noise, Stream::Coupled, position, 0);
        let mut picked = None;
        weights.for_each(|(id, weight)| {
            // Written so that a weight that is not a number does not run.
            if weight > 0.0 && track.beats_the_best(id, weight) {
                picked = Some(id);
            }
        });
        picked
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn pick(seed: u64, position: u64, weights: &[(u32, f64)]) -> Option<u32> {
        CoupledNoise::new(Noise::new(seed), position).pick(0, weights.iter().copied())
    }

    #[test]
    fn a_token_has_the_noise_of_its_position() {
        let weights: Vec<_> = (0..500).map(|id| (id, 1.0 + f64::from(id % 5))).collect();
        let from = |position, index| {
            CoupledNoise::new(Noise::new(4), position).pick(index, weights.iter().copied()).unwrap()
        };
        let text: Vec<u32> = (0..50).map(|index| from(0, index)).collect();
        for (position, &id) in text.iter().enumerate() {
            assert_eq!(from(position as u64, 0), id);
        }
        assert!(text.windows(2).any(|pair| pair[0] != pair[1]));
    }

    /// The winner runs for itself: taking any loser away, or scaling all, changes nothing.
    #[test]
    fn losers_do_not_matter() {
        let weights: Vec<_> = (0..200).map(|id| (id * 3, 0.01 + f64::from(id * 37 % 101))).collect();
        for seed in 0..50 {
            let winner = pick(seed, 7, &weights).unwrap();
            let some: Vec<_> = weights
                .iter()
                .copied()
                .filter(|&(id, _)| id == winner || (id + seed as u32).is_multiple_of(4))
                .collect();
            assert_eq!(pick(seed, 7, &some), Some(winner));
            let scaled: Vec<_> = weights.iter().map(|&(id, weight)| (id, weight * 0.25)).collect();
            assert_eq!(pick(seed, 7, &scaled), Some(winner));
        }
        assert_eq!(pick(1, 0, &[(1, 0.0), (2, f64::NAN)]), None);
    }

    /// What is skipped unlooked at could not have won.
    #[test]
    fn skipping_losers_changes_no_winner() {
        for seed in 0..300_u64 {
            let weights: Vec<_> = (0..300_u32)
                .map(|id| (id, Noise::new(seed).uniform(Stream::Draft, 0, 0, id).powi(1 + seed as i32 % 60)))
                .collect();
            let time = |&(id, weight): &(u32, f64)| {
                let words = Noise::new(seed).block(Stream::Coupled, 5, 0, id / 4);
                let word = words[id as usize % 4];
                super::super::exponential(Noise::new(seed).fine_uniform(word, Stream::Coupled, 5, 0, id))
                    / weight
            };
            let first = weights.iter().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap().0;
            assert_eq!(pick(seed, 5, &weights), Some(first));
        }
    }

    /// The same seed must give the same text in the next release too, and on every platform.
    #[test]
    fn the_text_of_a_seed_is_pinned() {
        let weights: Vec<_> = (0..1000_u32).map(|id| (id, 1.0 + f64::from(id % 7))).collect();
        let text: Vec<_> = (0..4).map(|position| pick(42, position, &weights).unwrap()).collect();
        assert_eq!(text, [555, 403, 821, 874]);
    }
}
