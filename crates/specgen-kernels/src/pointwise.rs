//! What a layer does between its matmuls: norms, rotary embedding, gates, caps and sums.

use crate::definition::{LANES, add_lanes};
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
    for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        let mut lanes = [0.0f32; LANES];
        for x in x.chunks(LANES) {
            for (lane, &x) in lanes.iter_mut().zip(x) {
                *lane = x.mul_add(x, *lane);
            }
        }
        let scale = 1.0 / (add_lanes(lanes) / n as f32 + eps).sqrt();
        for ((o, &x), &w) in out.iter_mut().zip(x).zip(weight) {
            *o = x * scale * w;
        }
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
    gate_mul(gate_up, n, out, |g| g / (1.0 + exp(-g)));
}

/// GeGLU's gate with the tanh form of GELU (Hendrycks and Gimpel 2016):
/// `out = gate / 2 * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 gate^3))) * up`. Shapes as in [`silu_mul`].
///
/// # Panics
/// If the lengths do not agree.
pub fn gelu_tanh_mul(gate_up: &[f32], n: usize, out: &mut [f32]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    gate_mul(gate_up, n, out, |g| {
        let inner = SQRT_2_OVER_PI * (0.044_715 * g * g).mul_add(g, g);
        0.5 * g * (1.0 + tanh(inner))
    });
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
    for x in x {
        *x = cap * tanh(*x / cap);
    }
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
