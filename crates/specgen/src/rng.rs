//! Randomness without state: every random number is a function of (seed, stream, output position, round, index).
//!
//! Nothing depends on batch neighbours, threads or how many numbers were drawn before, so an answer replays from
//! its seed alone. The generator is Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
//! 3"); its counter holds, as four 32-bit words,
//!
//! ```text
//! key     = seed
//! counter = ( index / 4 , position low , position high | stream << 24 , round )      index % 4 selects a word
//! ```
//!
//! where `position` is the index of the token in the output and `index` is a token id wherever noise is per token.

mod coupled;
mod exponential;

pub use coupled::CoupledNoise;
use exponential::exponential;

/// What a random number is for. Streams never overlap, so no two purposes share noise.
///
/// Ratio-test verification draws from streams 1 to 3 and must never touch stream 0: sharing noise between the draft's
/// draw and the residual's draw would favour the rejected token again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stream {
    /// Noise that target and draft share in coupled sampling (its round is always 0).
    Coupled = 0,
    /// The uniforms that decide on acceptance.
    Accept = 1,
    /// Draws from the target: plain sampling, the residual, the bonus token.
    Residual = 2,
    /// The draft's own draws when its distribution is tested by ratio.
    Draft = 3,
    /// Whether top choices are excluded at a position (its round is always 0).
    Xtc = 4,
}

/// The numbers of one seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    seed: u64,
}

/// Added to a stream's number for the extra bits of [`Noise::fine_uniform`].
const FINE: u32 = 0x80;
/// Words below this get extra bits in [`Noise::fine_uniform`]: one in 65,536.
const COARSE_ENOUGH: u32 = 1 << 16;
const TWO_POW_MINUS_32: f64 = 1.0 / 4_294_967_296.0;

impl Noise {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The seed these numbers belong to.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The four words of one counter: those of the indices `4 * block` to `4 * block + 3`. Positions count modulo
    /// 2^56.
    pub fn block(&self, stream: Stream, position: u64, round: u32, block: u32) -> [u32; 4] {
        self.words(stream as u32, position, round, block)
    }

    /// A uniform number in (0, 1), never 0 and never 1: `(word + 1/2) / 2^32`.
    pub fn uniform(&self, stream: Stream, position: u64, round: u32, index: u32) -> f64 {
        let words = self.block(stream, position, round, index / 4);
        (f64::from(words[index as usize % 4]) + 0.5) * TWO_POW_MINUS_32
    }

    /// As [`Noise::uniform`] for an index whose `word` is at hand, with 32 more bits where they matter: near 0. A
    /// race over a whole vocabulary needs them, because 2^-33, the smallest coarse uniform, is more than the
    /// probability of many of its tokens.
    fn fine_uniform(&self, word: u32, stream: Stream, position: u64, round: u32, index: u32) -> f64 {
        let fraction = if word < COARSE_ENOUGH {
            let words = self.words(stream as u32 | FINE, position, round, index / 4);
            (f64::from(words[index as usize % 4]) + 0.5) * TWO_POW_MINUS_32
        } else {
            0.5
        };
        (f64::from(word) + fraction) * TWO_POW_MINUS_32
    }

    fn words(&self, stream: u32, position: u64, round: u32, block: u32) -> [u32; 4] {
        #[cfg(test)]
        STREAMS_READ.with_borrow_mut(|read| read.insert(stream & !FINE));
        let high = (position >> 32) as u32 & 0x00ff_ffff;
        philox4x32_10(
            [block, position as u32, high | stream << 24, round],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }
}

#[cfg(test)]
thread_local! {
    /// The streams that this thread has read.
    pub(crate) static STREAMS_READ: std::cell::RefCell<std::collections::BTreeSet<u32>> = Default::default();
}

/// A fresh seed from the operating system, below 2^53 so that it survives JSON readers that keep numbers as doubles.
pub fn random_seed() -> u64 {
    rand::random::<u64>() >> 11
}

/// The seed of one of several samples of a prompt, by its number: the first has the seed itself, sample `i` the `i`-th
/// output of SplitMix64 (Steele et al. 2014) from there, without its lowest 11 bits, as [`random_seed`] has none.
pub fn sample_seed(seed: u64, index: usize) -> u64 {
    if index == 0 {
        return seed;
    }
    split_mix(seed.wrapping_add((index as u64 - 1).wrapping_mul(GOLDEN))) >> 11
}

/// What SplitMix64 adds to its state.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The next output of SplitMix64 from the state `z`.
pub(crate) fn split_mix(z: u64) -> u64 {
    let z = z.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Philox4x32 with ten rounds.
fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let a = u64::from(c0) * 0xD251_1F53;
        let b = u64::from(c2) * 0xCD9E_8D57;
        (c0, c1, c2, c3) = ((b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// Draws tokens. `index` counts tokens from the start of the round: 0 is the first drafted token's position.
pub trait Picker {
    /// Draws one of `weights`, pairs of token id (ascending) and weight (not negative, not necessarily summing to 1),
    /// with probability proportional to its weight. `None` if no weight is above 0.
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32>;
}

/// Makes the random decisions of verifying by ratio: draws, and accepts. Production uses [`RoundNoise`]; a test can walk
/// through every possible outcome instead.
pub trait Chooser: Picker {
    /// Says yes with probability `min(1, exp(ln_ratio))`.
    fn accept(&mut self, index: usize, ln_ratio: f64) -> bool;

    /// As [`Chooser::accept`] for a ratio known only to within `slack` either way; `None` if that does not decide it.
    /// Whoever gets `None` works the ratio out and asks [`Chooser::accept`], whose answer this one must foretell.
    fn accept_roughly(&mut self, index: usize, ln_ratio: f64, slack: f64) -> Option<bool> {
        let _ = (index, ln_ratio, slack);
        None
    }
}

/// The random decisions of one round of one sequence, where drafts are tested by ratio: no other round has the same, and
/// nothing here is shared with [`CoupledNoise`].
#[derive(Debug, Clone)]
pub struct RoundNoise {
    noise: Noise,
    picks: Stream,
    position: u64,
    round: u32,
}

impl RoundNoise {
    /// For verification (and plain sampling): `position` is the index in the output of the round's first token,
    /// `round` the number of rounds this sequence has had.
    pub fn verify(noise: Noise, position: u64, round: u32) -> Self {
        Self { noise, picks: Stream::Residual, position, round }
    }

    /// For the draws of a drafter whose `q` is tested by ratio; arguments as in [`RoundNoise::verify`].
    pub fn draft(noise: Noise, position: u64, round: u32) -> Self {
        Self { noise, picks: Stream::Draft, position, round }
    }

    /// The same for a draft that begins `num_tokens` later.
    pub(crate) fn behind(self, num_tokens: usize) -> Self {
        Self { position: self.position + num_tokens as u64, ..self }
    }

    fn ln_accept_uniform(&self, index: usize) -> f64 {
        let u = self.noise.uniform(Stream::Accept, self.position + index as u64, self.round, 0);
        // 1 - u is exact.
        -exponential(1.0 - u)
    }

    fn track(&self, index: usize) -> Track {
        Track::new(self.noise, self.picks, self.position + index as u64, self.round)
    }
}

impl Chooser for RoundNoise {
    fn accept(&mut self, index: usize, ln_ratio: f64) -> bool {
        ln_ratio >= 0.0 || self.ln_accept_uniform(index) < ln_ratio
    }

    fn accept_roughly(&mut self, index: usize, ln_ratio: f64, slack: f64) -> Option<bool> {
        let ln_u = self.ln_accept_uniform(index);
        match (ln_u < ln_ratio - slack, ln_u > ln_ratio + slack) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

impl Picker for RoundNoise {
    /// An exponential race: every runner takes `E / weight` with its own exponential `E`, and the first one home wins,
    /// which needs no normalisation. Tokens run in groups of neighbouring ids, a group with its total weight, so that
    /// a whole vocabulary costs one number per group; then the members of the winning group run.
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        let mut track = self.track(index);
        let mut winner = Vec::new();
        let (mut group, mut members, mut total) = (0, Vec::new(), 0.0);
        let mut run = |track: &mut Track, group: u32, members: &mut Vec<(u32, f64)>, total: f64| {
            if track.beats_the_best(GROUPS | group, total) {
                std::mem::swap(members, &mut winner);
            }
            members.clear();
        };
        weights.for_each(|(id, weight)| {
            // Written so that a weight that is not a number does not run.
            if weight > 0.0 {
                if id / GROUP_LEN != group {
                    run(&mut track, group, &mut members, total);
                    (group, total) = (id / GROUP_LEN, 0.0);
                }
                members.push((id, weight));
                total += weight;
            }
        });
        run(&mut track, group, &mut members, total);

        let mut track = self.track(index);
        let mut picked = None;
        for (id, weight) in winner {
            if track.beats_the_best(id, weight) {
                picked = Some(id);
            }
        }
        picked
    }
}

/// Token ids per group of the race.
const GROUP_LEN: u32 = 64;
/// Tells the index of a group from a token id, which is smaller.
const GROUPS: u32 = 1 << 31;

/// The least number that [`Noise::fine_uniform`] gives.
const LEAST_UNIFORM: f64 = 0.5 * TWO_POW_MINUS_32 * TWO_POW_MINUS_32;

/// One race: knows the best time so far.
struct Track {
    noise: Noise,
    stream: Stream,
    position: u64,
    round: u32,
    best: f64,
    /// The block of noise at hand, and its words.
    block: (Option<u32>, [u32; 4]),
}

impl Track {
    fn new(noise: Noise, stream: Stream, position: u64, round: u32) -> Self {
        Self { noise, stream, position, round, best: f64::INFINITY, block: (None, [0; 4]) }
    }

    /// Lets `index` run with `weight`, and notes its time if it is the best.
    fn beats_the_best(&mut self, index: u32, weight: f64) -> bool {
        // E = -ln(1 - u) is at least u: most losers are known without the logarithm, some without their number.
        let needed = weight * self.best;
        if needed <= LEAST_UNIFORM {
            return false;
        }
        let Self { noise, stream, position, round, .. } = *self;
        if self.block.0 != Some(index / 4) {
            self.block = (Some(index / 4), noise.block(stream, position, round, index / 4));
        }
        let word = self.block.1[index as usize % 4];
        let u = noise.fine_uniform(word, stream, position, round, index);
        if u >= needed {
            return false;
        }
        let time = exponential(u) / weight;
        let best = time < self.best;
        if best {
            self.best = time;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::collections::HashSet;

    /// The known answers published with the Random123 library (file `kat_vectors`).
    #[test]
    fn philox_gives_the_published_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in cases {
            assert_eq!(philox4x32_10(counter, key), answer);
        }
    }

    #[test]
    fn the_counter_is_laid_out_as_documented() {
        let noise = Noise::new(0x0123_4567_89ab_cdef);
        let words = philox4x32_10([5, 0x5566_7788, 0x0200_0044, 9], [0x89ab_cdef, 0x0123_4567]);
        assert_eq!(noise.block(Stream::Residual, 0x44_5566_7788, 9, 5), words);
        for (index, word) in (20..24).zip(words) {
            let u = noise.uniform(Stream::Residual, 0x44_5566_7788, 9, index);
            assert_eq!(u, (f64::from(word) + 0.5) / 4_294_967_296.0);
        }
    }

    #[test]
    fn no_two_counters_share_their_words() {
        let noise = Noise::new(7);
        let mut seen = HashSet::new();
        for stream in [Stream::Coupled, Stream::Accept, Stream::Residual, Stream::Draft, Stream::Xtc] {
            for position in [0, 1, 2, 3, 63, 64, 1 << 32, 2 << 32] {
                for round in 0..8 {
                    for block in (0..100).chain([16_383, 16_384, 38_000]) {
                        assert!(seen.insert(noise.block(stream, position, round, block)));
                        assert!(seen.insert(noise.words(stream as u32 | FINE, position, round, block)));
                    }
                }
            }
        }
    }

    /// Neighbours in each coordinate are uncorrelated: for n pairs the correlation is within 5 / sqrt(n) of 0.
    #[test]
    fn neighbouring_numbers_are_independent() {
        let noise = Noise::new(11);
        let n = 40_000_u32;
        let at =
            |stream, position: u32, round, index| noise.uniform(stream, position.into(), round, index) - 0.5;
        type Pair<'a> = &'a dyn Fn(u32) -> (f64, f64);
        let pairs: [(&str, Pair<'_>); 5] = [
            ("index", &|i| (at(Stream::Accept, 3, 0, i), at(Stream::Accept, 3, 0, i + 1))),
            ("position", &|i| (at(Stream::Accept, i, 0, 2), at(Stream::Accept, i + 1, 0, 2))),
            ("round", &|i| (at(Stream::Accept, 3, i, 2), at(Stream::Accept, 3, i + 1, 2))),
            ("stream", &|i| (at(Stream::Residual, i, 0, 2), at(Stream::Draft, i, 0, 2))),
            ("seed", &|i| {
                let uniform = |seed: u32| Noise::new(seed.into()).uniform(Stream::Accept, 0, 0, 0) - 0.5;
                (uniform(i), uniform(i + 1))
            }),
        ];
        for (name, pair) in pairs {
            let (mut sum, mut products) = (0.0, 0.0);
            for i in 0..n {
                let (a, b) = pair(i);
                sum += a;
                products += 12.0 * a * b;
            }
            let bound = 5.0 / f64::from(n).sqrt();
            assert!((products / f64::from(n)).abs() < bound, "{name}: correlation {products} / {n}");
            assert!((sum / f64::from(n)).abs() < bound, "{name}: mean {sum} / {n}");
        }
    }

    #[test]
    fn uniforms_stay_inside_the_open_interval() {
        let noise = Noise::new(1);
        let fine = |word| noise.fine_uniform(word, Stream::Residual, 0, 0, 0);
        assert!(fine(0) > 0.0 && fine(0) < TWO_POW_MINUS_32);
        assert!(fine(u32::MAX) < 1.0);
        assert_eq!(fine(COARSE_ENOUGH), (f64::from(COARSE_ENOUGH) + 0.5) * TWO_POW_MINUS_32);
        // Near zero the extra bits differ from index to index: rare tokens do not all get the same noise.
        let zeros: HashSet<u64> =
            (0..64).map(|index| noise.fine_uniform(0, Stream::Residual, 0, 0, index).to_bits()).collect();
        assert_eq!(zeros.len(), 64);
    }

    #[test]
    fn a_pick_follows_the_weights_and_skips_what_cannot_win() {
        let weights = [(0, 0.0), (3, 1.0), (4, f64::NAN), (5, 2.0), (9, -1.0), (40, 5.0), (1000, 0.5)];
        let total: f64 = 8.5;
        let draws = 200_000;
        let mut counts = std::collections::HashMap::new();
        for position in 0..draws {
            let mut noise = RoundNoise::verify(Noise::new(2), position, 0);
            *counts.entry(noise.pick(0, weights.into_iter()).unwrap()).or_insert(0_u32) += 1;
        }
        let mut chi_square = 0.0;
        for (id, weight) in [(3, 1.0), (5, 2.0), (40, 5.0), (1000, 0.5)] {
            let expected = draws as f64 * weight / total;
            chi_square += (f64::from(counts[&id]) - expected).powi(2) / expected;
        }
        assert_eq!(counts.len(), 4);
        // 3 degrees of freedom: above 25 with probability 1.5e-5.
        assert!(chi_square < 25.0, "{chi_square}");
    }

    #[test]
    fn nothing_to_pick_from_is_none() {
        let mut noise = RoundNoise::verify(Noise::new(2), 0, 0);
        assert_eq!(noise.pick(0, std::iter::empty()), None);
        assert_eq!(noise.pick(0, [(1, 0.0), (2, f64::NAN)].into_iter()), None);
    }

    #[test]
    fn acceptance_has_the_asked_probability() {
        let draws = 200_000_u32;
        for ratio in [0.001, 0.3, 0.9] {
            let yes = (0..draws)
                .filter(|&position| {
                    RoundNoise::verify(Noise::new(3), position.into(), 1).accept(2, f64::ln(ratio))
                })
                .count();
            let (n, deviation) = (f64::from(draws), (ratio * (1.0 - ratio) / f64::from(draws)).sqrt());
            assert!((yes as f64 / n - ratio).abs() < 5.0 * deviation, "{ratio}: {yes}");
        }
        let mut undecided = 0;
        for position in 0..1000 {
            let mut noise = RoundNoise::verify(Noise::new(3), position, 1);
            let exact = noise.accept(0, -0.5);
            for rough in [-0.51, -0.5, -0.49] {
                let foretold = noise.accept_roughly(0, rough, 0.011);
                assert!(foretold.is_none_or(|foretold| foretold == exact));
                undecided += u32::from(foretold.is_none());
            }
            assert!(noise.accept(0, 0.0) && noise.accept(0, f64::INFINITY));
            assert!(!noise.accept(0, f64::NEG_INFINITY) && !noise.accept(0, f64::NAN));
        }
        assert!((1..120).contains(&undecided), "{undecided} of 3000");
    }

    /// The same seed must give the same text in the next release too.
    #[test]
    fn the_numbers_of_a_seed_are_pinned() {
        let noise = Noise::new(42);
        let uniforms: Vec<u64> =
            (0..3).map(|i| (noise.uniform(Stream::Accept, i, 0, 0) * 1e9) as u64).collect();
        let weights = || (0..1000_u32).map(|id| (id, 1.0 + f64::from(id % 7)));
        let verify = RoundNoise::verify(noise, 5, 2).pick(0, weights());
        let draft = RoundNoise::draft(noise, 5, 2).pick(0, weights());
        assert_eq!(
            (uniforms, verify, draft),
            (vec![341_824_815, 367_547_698, 399_496_703], Some(208), Some(936))
        );
    }

    #[test]
    fn random_seeds_differ_and_survive_a_double() {
        let seeds: HashSet<u64> = (0..100).map(|_| random_seed()).collect();
        assert_eq!(seeds.len(), 100);
        assert!(seeds.iter().all(|&seed| seed < 1 << 53));
    }
}
