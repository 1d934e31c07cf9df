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
        let high = (position >> 32) as u32 & 0x00ff_ffff;
        philox4x32_10(
            [block, position as u32, high | stream << 24, round],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }
}

/// A fresh seed from the operating system, below 2^53 so that it survives JSON readers that keep numbers as doubles.
pub fn random_seed() -> u64 {
    rand::random::<u64>() >> 11
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

/// Makes the random decisions of drafting and verifying. Production uses [`RoundNoise`]; a test can walk through
/// every possible outcome instead.
///
/// `index` counts tokens from the start of the round: 0 is the first drafted token's position.
pub trait Chooser {
    /// Says yes with probability `min(1, exp(ln_ratio))`.
    fn accept(&mut self, index: usize, ln_ratio: f64) -> bool;

    /// Draws one of `weights`, pairs of token id (ascending) and weight (not negative, not necessarily summing to 1),
    /// with probability proportional to its weight. `None` if no weight is above 0.
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32>;
}

/// The random decisions of one round of one sequence.
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
}

/// No uniform of [`Noise::fine_uniform`] is smaller.
const SMALLEST: f64 = 0.5 * TWO_POW_MINUS_32 * TWO_POW_MINUS_32;

impl Chooser for RoundNoise {
    fn accept(&mut self, index: usize, ln_ratio: f64) -> bool {
        let position = self.position + index as u64;
        ln_ratio >= 0.0 || self.noise.uniform(Stream::Accept, position, self.round, 0).ln() < ln_ratio
    }

    /// An exponential race: every token runs `E / weight` with its own exponential `E`, the shortest wins. It needs
    /// no normalisation, and a token's noise does not depend on which other tokens run.
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        let position = self.position + index as u64;
        let (mut winner, mut best) = (None, f64::INFINITY);
        let (mut block, mut words) = (None, [0; 4]);
        for (id, weight) in weights {
            // E = -ln(1 - u) >= u >= SMALLEST: most losers are known before their noise, most others before its log.
            // (Written so that a weight that is not a number loses too.)
            if !(weight > 0.0 && weight * best > SMALLEST) {
                continue;
            }
            if block != Some(id / 4) {
                block = Some(id / 4);
                words = self.noise.block(self.picks, position, self.round, id / 4);
            }
            let word = words[id as usize % 4];
            let u = self.noise.fine_uniform(word, self.picks, position, self.round, id);
            if u >= weight * best {
                continue;
            }
            let time = -(-u).ln_1p() / weight;
            if time < best {
                (winner, best) = (Some(id), time);
            }
        }
        winner
    }
}
