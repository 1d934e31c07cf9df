//! Rotary position embedding: inverse frequencies under each scaling scheme, and the angles of a batch's
//! rows.

use super::config::{RopeConfig, RopeScaling};

/// The frequencies of one rope, ready to give angles for any position.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians per position of each rotated pair.
    inv_freq: Vec<f64>,
    /// Multiplies cos and sin (LongRoPE's attention factor).
    magnitude: f64,
    /// Whether a pair is two neighbours (GGUF llama) or one element of each half (NeoX).
    pub(crate) interleaved: bool,
}

impl Rope {
    pub(crate) fn new(config: &RopeConfig) -> Self {
        let dim = config.dim;
        let base = (0..dim / 2).map(|i| config.theta.powf(-((2 * i) as f64) / dim as f64));
        let mut magnitude = 1.0;
        let inv_freq = match &config.scaling {
            RopeScaling::None => base.collect(),
            RopeScaling::Linear { factor } => base.map(|f| f / factor).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_len } => {
                // Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended.
                let original = *original_context_len as f64;
                base.map(|f| {
                    let wavelen = std::f64::consts::TAU / f;
                    if wavelen < original / high_freq_factor {
                        f
                    } else if wavelen > original / low_freq_factor {
                        f / factor
                    } else {
                        let smooth =
                            (original / wavelen - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect()
            }
            RopeScaling::Factors { factors, magnitude: m } => {
                magnitude = *m;
                base.zip(factors).map(|(f, factor)| f / f64::from(*factor)).collect()
            }
        };
        Self { inv_freq, magnitude, interleaved: config.interleaved }
    }

    /// Pairs of a head that are rotated.
    pub(crate) fn pairs(&self) -> usize {
        self.inv_freq.len()
    }

    /// Cosines and sines of `positions`, `[positions, pairs]`, computed in f64 so that they depend on the
    /// position alone.
    pub(crate) fn angles(&self, positions: &[usize], cos: &mut [f32], sin: &mut [f32]) {
        let of = |position: usize| self.inv_freq.iter().map(move |freq| (position as f64 * freq).sin_cos());
        let angles = positions.iter().flat_map(|&position| of(position));
        for (((s, c), cos), sin) in angles.zip(cos).zip(sin) {
            *cos = (c * self.magnitude) as f32;
            *sin = (s * self.magnitude) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope::new(&RopeConfig { theta: 10_000.0, dim: 8, interleaved: false, scaling })
    }

    fn angles(rope: &Rope, position: usize) -> [[f32; 4]; 2] {
        let mut angles = [[f32::NAN; 4]; 2];
        let [cos, sin] = &mut angles;
        rope.angles(&[position], cos, sin);
        angles
    }

    #[test]
    fn linear_scaling_is_a_slower_clock() {
        let slow = rope(RopeScaling::Linear { factor: 4.0 });
        assert_eq!(angles(&rope(RopeScaling::None), 3), angles(&slow, 12));
    }

    #[test]
    fn factors_divide_frequencies_and_magnitude_multiplies_both_angles() {
        let factors = vec![1.0, 2.0, 4.0, 8.0];
        let scaled = angles(&rope(RopeScaling::Factors { factors, magnitude: 1.5 }), 8);
        for (i, slower) in [8, 4, 2, 1].into_iter().enumerate() {
            let plain = angles(&rope(RopeScaling::None), slower);
            for (scaled, plain) in scaled.iter().zip(&plain) {
                assert!((scaled[i] - 1.5 * plain[i]).abs() < 1e-6, "pair {i}");
            }
        }
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context_len: 128,
        };
        let (plain, scaled) = (rope(RopeScaling::None), rope(scaling));
        assert_eq!(plain.inv_freq[0], scaled.inv_freq[0]);
        assert_eq!(plain.inv_freq[3] / 8.0, scaled.inv_freq[3]);
    }
}
