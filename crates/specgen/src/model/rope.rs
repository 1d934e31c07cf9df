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

/// Angles of a batch's rows: cos and sin `[rows, rotary_dim / 2]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Angles {
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
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

    /// The angles of `positions`, computed in f64 so that they depend on the position alone.
    pub(crate) fn angles(&self, positions: &[usize]) -> Angles {
        let mut angles = Angles::default();
        for &position in positions {
            for freq in &self.inv_freq {
                let (sin, cos) = (position as f64 * freq).sin_cos();
                angles.cos.push((cos * self.magnitude) as f32);
                angles.sin.push((sin * self.magnitude) as f32);
            }
        }
        angles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope::new(&RopeConfig { theta: 10_000.0, dim: 8, interleaved: false, scaling })
    }

    #[test]
    fn linear_scaling_is_a_slower_clock() {
        let plain = rope(RopeScaling::None).angles(&[3]);
        let slow = rope(RopeScaling::Linear { factor: 4.0 }).angles(&[12]);
        assert_eq!(plain.cos, slow.cos);
        assert_eq!(plain.sin, slow.sin);
    }

    #[test]
    fn factors_divide_frequencies_and_magnitude_multiplies_both_angles() {
        let factors = vec![1.0, 2.0, 4.0, 8.0];
        let scaled = rope(RopeScaling::Factors { factors, magnitude: 1.5 }).angles(&[8]);
        for (i, slower) in [8, 4, 2, 1].into_iter().enumerate() {
            let plain = rope(RopeScaling::None).angles(&[slower]);
            assert!((scaled.cos[i] - 1.5 * plain.cos[i]).abs() < 1e-6, "pair {i}");
            assert!((scaled.sin[i] - 1.5 * plain.sin[i]).abs() < 1e-6, "pair {i}");
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
