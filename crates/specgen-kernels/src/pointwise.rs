//! What a layer does between its matmuls: norms, rotary embedding, gates, caps and sums.
#![allow(unsafe_code)]

use crate::definition::{LANES, add_lanes};
use crate::isa::{Level, dispatch};
use crate::math::{exp, tanh};

/// Root-mean-square norm of each row (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight`.
///
/// `x` and `out` are `[m, n]`, `weight` is `[n]`. Squares are summed in 16 lanes, as in a dense matmul.
///
/// # Panics
/// If the lengths do not agree.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let n = weight.len();
    assert_eq!(x.len(), out.len(), "norm of x into out");
    assert!(n > 0 && x.len().is_multiple_of(n), "rows of {n} in {}", x.len());
    dispatch!(Level::get(), |S| fn(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            norm_row(x, weight, eps, out);
        }
    });
}

#[inline(always)]
fn norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for (lane, &x) in lanes.iter_mut().zip(x) {
            *lane = x.mul_add(x, *lane);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = x.mul_add(x, *lane);
    }
    let scale = 1.0 / (add_lanes(lanes) / x.len() as f32 + eps).sqrt();
    for ((o, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * scale * w;
    }
}

/// Rotary embedding (Su et al. 2021) on pairs `(i, i + rotary / 2)`, as in GPT-NeoX and Qwen.
///
/// `x` is `[m, heads, head_dim]`; `cos` and `sin` are `[m, rotary / 2]` with `rotary <= head_dim`.
/// Elements from `rotary` on stay as they are.
///
/// # Panics
/// If the lengths do not agree.
pub fn rope_neox(x: &mut [f32], heads: usize, head_dim: usize, cos: &[f32], sin: &[f32]) {
    rope(x, heads, head_dim, cos, sin, |x, cos, sin| {
        let half = cos.len();
        let (a, b) = x.split_at_mut(half);
        for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
        }
    });
}

/// Rotary embedding on pairs `(2 i, 2 i + 1)`, as in GGUF files of the llama architecture.
/// Shapes as in [`rope_neox`].
///
/// # Panics
/// If the lengths do not agree.
pub fn rope_interleaved(x: &mut [f32], heads: usize, head_dim: usize, cos: &[f32], sin: &[f32]) {
    rope(x, heads, head_dim, cos, sin, |x, cos, sin| {
        for ((pair, c), s) in x.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
            let [a, b] = *pair;
            *pair = [a * c - b * s, a * s + b * c];
        }
    });
}

fn rope(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    rotate: impl Fn(&mut [f32], &[f32], &[f32]),
) {
    if x.is_empty() {
        return;
    }
    assert!(
        heads > 0 && head_dim > 0 && x.len().is_multiple_of(heads * head_dim),
        "rows of {heads} by {head_dim}"
    );
    let m = x.len() / (heads * head_dim);
    let half = cos.len() / m;
    assert_eq!(cos.len(), sin.len(), "cosines and sines");
    assert!(cos.len() == half * m && 2 * half <= head_dim, "{} angles for {m} rows of {head_dim}", cos.len());
    if half == 0 {
        return;
    }
    let angles = cos.chunks_exact(half).zip(sin.chunks_exact(half));
    for (x, (cos, sin)) in x.chunks_exact_mut(heads * head_dim).zip(angles) {
        for x in x.chunks_exact_mut(head_dim) {
            rotate(&mut x[..2 * half], cos, sin);
        }
    }
}

/// SwiGLU's gate (Shazeer 2020): `out = gate / (1 + exp(-gate)) * up`.
///
/// `gate_up` is `[m, 2 n]`, gate then up; `out` is `[m, n]`.
///
/// # Panics
/// If the lengths do not agree.
pub fn silu_mul(gate_up: &[f32], n: usize, out: &mut [f32]) {
    dispatch!(Level::get(), |S| fn(gate_up: &[f32], n: usize, out: &mut [f32]) {
        gate_mul(gate_up, n, out, silu);
    });
}

/// GeGLU's gate with the tanh form of GELU (Hendrycks and Gimpel 2016):
/// `out = gate / 2 * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 gate^3))) * up`. Shapes as in [`silu_mul`].
///
/// # Panics
/// If the lengths do not agree.
pub fn gelu_tanh_mul(gate_up: &[f32], n: usize, out: &mut [f32]) {
    dispatch!(Level::get(), |S| fn(gate_up: &[f32], n: usize, out: &mut [f32]) {
        gate_mul(gate_up, n, out, gelu_tanh);
    });
}

#[inline(always)]
fn silu(g: f32) -> f32 {
    g / (1.0 + exp(-g))
}

#[inline(always)]
fn gelu_tanh(g: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let inner = SQRT_2_OVER_PI * (0.044_715 * g * g).mul_add(g, g);
    0.5 * g * (1.0 + tanh(inner))
}

#[inline(always)]
fn gate_mul(gate_up: &[f32], n: usize, out: &mut [f32], activation: impl Fn(f32) -> f32) {
    assert_eq!(gate_up.len(), 2 * out.len(), "gate and up for the output");
    if n == 0 {
        return;
    }
    assert!(out.len().is_multiple_of(n), "rows of {n} in {}", out.len());
    for (gate_up, out) in gate_up.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
        let (gate, up) = gate_up.split_at(n);
        for ((o, &g), &u) in out.iter_mut().zip(gate).zip(up) {
            *o = activation(g) * u;
        }
    }
}

/// Soft cap (Gemma 2): `x = cap * tanh(x / cap)`.
pub fn softcap(x: &mut [f32], cap: f32) {
    dispatch!(Level::get(), |S| fn(x: &mut [f32], cap: f32) {
        for x in x {
            *x = cap * tanh(*x / cap);
        }
    });
}

/// `x += y`.
///
/// # Panics
/// If the lengths differ.
pub fn add_assign(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "sum of two slices");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `x *= s`.
pub fn scale_assign(x: &mut [f32], s: f32) {
    for x in x {
        *x *= s;
    }
}

/// Adds `bias`, `[n]`, to each row of `x`, `[m, n]`.
///
/// # Panics
/// If `x` isn't whole rows.
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    if x.is_empty() {
        return;
    }
    assert!(!bias.is_empty() && x.len().is_multiple_of(bias.len()), "rows of {} in {}", bias.len(), x.len());
    for x in x.chunks_exact_mut(bias.len()) {
        add_assign(x, bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn norms_by_definition_and_row_by_row() {
        for n in [1, 7, 16, 100, if cfg!(miri) { 33 } else { 1536 }] {
            let mut rng = Rng::new(n as u64);
            let (x, weight) = (rng.normals(3 * n), rng.normals(n));
            let mut out = vec![0.0; 3 * n];
            rms_norm(&x, &weight, 1e-6, &mut out);
            for r in 0..3 {
                let row = r * n..(r + 1) * n;
                let mut plain = vec![0.0; n];
                norm_row(&x[row.clone()], &weight, 1e-6, &mut plain); // without the CPU's extras
                assert_eq!(bits(&plain), bits(&out[row.clone()]));
                let mean = x[row.clone()].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
                for i in 0..n {
                    let want = f64::from(x[row.start + i]) / (mean + 1e-6).sqrt() * f64::from(weight[i]);
                    assert!((f64::from(out[row.start + i]) - want).abs() <= 1e-6 * want.abs().max(1e-3));
                }
            }
        }
    }

    #[test]
    fn rotations_turn_pairs_and_leave_the_rest() {
        let (m, heads, head_dim, half) = (2, 3, 10, 4);
        let mut rng = Rng::new(2);
        let x = rng.normals(m * heads * head_dim);
        let angles = rng.normals(m * half);
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
        for neox in [true, false] {
            let mut y = x.clone();
            let rope = if neox { rope_neox } else { rope_interleaved };
            rope(&mut y, heads, head_dim, &cos, &sin);
            for r in 0..m {
                for h in 0..heads {
                    let at = (r * heads + h) * head_dim;
                    for i in 0..half {
                        let (a, b) =
                            if neox { (at + i, at + half + i) } else { (at + 2 * i, at + 2 * i + 1) };
                        let (c, s) = (cos[r * half + i], sin[r * half + i]);
                        assert_eq!([y[a], y[b]], [x[a] * c - x[b] * s, x[a] * s + x[b] * c]);
                    }
                    assert_eq!(y[at + 2 * half..at + head_dim], x[at + 2 * half..at + head_dim]);
                }
            }
        }
        rope_neox(&mut [], 3, 10, &[], &[]);
    }

    #[test]
    fn gates_by_definition_and_close_to_the_formula() {
        let (m, n) = (2, if cfg!(miri) { 33 } else { 333 });
        let gate_up: Vec<f32> = Rng::new(3).normals(2 * m * n).iter().map(|x| x * 4.0).collect();
        let mut out = vec![0.0; m * n];
        for gelu in [false, true] {
            if gelu {
                gelu_tanh_mul(&gate_up, n, &mut out)
            } else {
                silu_mul(&gate_up, n, &mut out)
            }
            for (i, got) in out.iter().enumerate() {
                let at = i / n * 2 * n + i % n;
                let (g, u) = (gate_up[at], gate_up[at + n]);
                let plain = if gelu { gelu_tanh(g) } else { silu(g) } * u;
                assert_eq!(plain.to_bits(), got.to_bits());
                let (g, u) = (f64::from(g), f64::from(u));
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                let want = if gelu { 0.5 * g * (1.0 + inner.tanh()) } else { g / (1.0 + (-g).exp()) } * u;
                assert!((f64::from(*got) - want).abs() < 2e-6 * want.abs().max(1.0), "{got} for {want}");
            }
        }
        let mut far = [0.0; 2];
        silu_mul(&[-200.0, f32::NAN, 1.0, 1.0], 2, &mut far);
        assert!(far[0].abs() < 1e-30 && far[1].is_nan());
    }

    #[test]
    fn caps_and_sums() {
        let mut x = [0.0, 1.0, -1e4, f32::INFINITY];
        softcap(&mut x, 30.0);
        assert_eq!(bits(&x), bits(&[0.0, 30.0 * tanh(1.0 / 30.0), -30.0, 30.0]));
        let mut x = [1.0, 2.0, 3.0, 4.0];
        add_assign(&mut x, &[1.0; 4]);
        scale_assign(&mut x, 2.0);
        add_bias(&mut x, &[10.0, 20.0]);
        assert_eq!(x, [14.0, 26.0, 18.0, 30.0]);
        add_bias(&mut [], &[]);
    }
}
