//! Attention against the textbook, and against itself under every schedule and instruction set.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::testing::Rng;
use crate::{Arena, KvType};
use half::{bf16, f16};
use proptest::prelude::*;

struct Case {
    shape: AttentionShape,
    kind: KvType,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn case(rng: &mut Rng, m: usize, slots: usize, kv_heads: usize, group: usize, head_dim: usize) -> Case {
    let num_heads = kv_heads * group;
    let shape = AttentionShape {
        num_heads,
        num_kv_heads: kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: if rng.next().is_multiple_of(2) { Some(5.0) } else { None },
    };
    let q = rng.normals(m * num_heads * head_dim).iter().map(|x| x * 3.0).collect();
    Case {
        shape,
        kind: KvType::F32,
        q,
        k: rng.normals(slots * kv_heads * head_dim),
        v: rng.normals(slots * kv_heads * head_dim),
    }
}

impl Case {
    fn kv(&self) -> KvStore {
        let kv_dim = self.shape.num_kv_heads * self.shape.head_dim;
        let mut kv = KvStore::new(&Arena::new(), self.kind, kv_dim);
        kv.write(0, &self.k, &self.v).unwrap();
        kv
    }

    /// With keys and values kept as `kind`.
    fn kept(mut self, kind: KvType) -> Self {
        self.kind = kind;
        self
    }

    /// In f32, with the keys and values that are kept, rounded by plain code.
    fn rounded(&self) -> Self {
        let round = |x: &f32| match self.kind {
            KvType::F32 => *x,
            KvType::F16 => f16::from_f32_const(*x).to_f32_const(),
            KvType::BF16 => bf16::from_f32_const(*x).to_f32_const(),
        };
        let (k, v) = (self.k.iter().map(round).collect(), self.v.iter().map(round).collect());
        Self { kind: KvType::F32, q: self.q.clone(), k, v, ..*self }
    }

    fn run(&self, level: Level, threads: usize, rows: &[RowKeys]) -> Vec<u32> {
        let mut out = vec![f32::NAN; self.q.len()];
        attention_at(level, &Team::new(threads), &self.shape, &self.q, &self.kv(), rows, &mut out);
        out.iter().map(|x| x.to_bits()).collect()
    }

    /// Softmax by the book, in f64.
    fn naive(&self, rows: &[RowKeys]) -> Vec<f64> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, scale, softcap } = self.shape;
        let mut out = vec![0.0; self.q.len()];
        for (r, keys) in rows.iter().enumerate() {
            let slots: Vec<usize> =
                keys.prefix.clone().chain(keys.tail.iter().map(|&slot| slot as usize)).collect();
            for h in 0..num_heads {
                let at = |slot: usize| (slot * num_kv_heads + h / (num_heads / num_kv_heads)) * head_dim;
                let q = &self.q[(r * num_heads + h) * head_dim..][..head_dim];
                let scores: Vec<f64> = slots
                    .iter()
                    .map(|&slot| {
                        let dot: f64 = q
                            .iter()
                            .zip(&self.k[at(slot)..])
                            .map(|(&q, &k)| f64::from(q) * f64::from(k))
                            .sum();
                        let s = dot * f64::from(scale);
                        softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                for (&slot, s) in slots.iter().zip(&scores) {
                    for d in 0..head_dim {
                        out[(r * num_heads + h) * head_dim + d] +=
                            (s - max).exp() / sum * f64::from(self.v[at(slot) + d]);
                    }
                }
            }
        }
        out
    }
}

/// Rows `from..from + m` of a chain, each seeing itself and at most `window` positions.
fn chain(from: usize, m: usize, window: usize) -> Vec<RowKeys> {
    (from + 1..=from + m)
        .map(|end| RowKeys { prefix: end.saturating_sub(window)..end, tail: vec![] })
        .collect()
}

fn kind() -> impl Strategy<Value = KvType> {
    proptest::sample::select(&KvType::ALL)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn equals_the_textbook_and_itself(
        from in 0usize..400, m in 1usize..=19, window in prop_oneof![1usize..150, Just(1000)],
        kv_heads in 1usize..=2, group in 1usize..=6,
        head_dim in prop_oneof![Just(8), Just(24), Just(64), Just(80), Just(128)],
        threads in 1usize..=4, kind in kind(), seed: u64,
    ) {
        let mut rng = Rng::new(seed);
        let case = case(&mut rng, m, from + m, kv_heads, group, head_dim).kept(kind);
        let rows = chain(from, m, window);
        let got = case.run(Level::get(), threads, &rows);
        let rounded = case.rounded();
        prop_assert_eq!(&rounded.run(Level::Portable, 1, &rows), &got, "f32 of what is kept");
        for (got, want) in got.iter().zip(rounded.naive(&rows)) {
            let got = f64::from(f32::from_bits(*got));
            prop_assert!((got - want).abs() < 2e-5, "{} for {}", got, want);
        }
        for level in Level::available() {
            prop_assert_eq!(&case.run(level, 1, &rows), &got, "{:?}", level);
        }
        // Each row alone, from the other end.
        let width = case.shape.num_heads * head_dim;
        for r in (0..m).rev() {
            let row = r * width..(r + 1) * width;
            let one = Case { q: case.q[row.clone()].to_vec(), k: case.k.clone(), v: case.v.clone(), ..case };
            prop_assert_eq!(&one.run(Level::get(), threads, &rows[r..r + 1])[..], &got[row]);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn a_tail_equals_a_chain(
        prefix in 0usize..200, tail in 1usize..80, start in 0usize..200, group in 1usize..=3,
        head_dim in prop_oneof![Just(40), Just(64)], kind in kind(), seed: u64,
    ) {
        let mut rng = Rng::new(seed);
        let (slots, start) = (prefix + 2 * tail, start.min(prefix));
        let mut case = case(&mut rng, 1, slots, 1, group, head_dim).kept(kind);
        let chain = case.run(Level::get(), 2, &[RowKeys { prefix: start..prefix + tail, tail: vec![] }]);
        // The same keys at the same positions, in other slots; what they leave is made useless.
        let places: Vec<u32> = (0..tail).map(|i| (slots - 1 - i) as u32).collect();
        for cache in [&mut case.k, &mut case.v] {
            let old = cache.clone();
            cache[prefix * head_dim..].fill(f32::NAN);
            for (i, &slot) in places.iter().enumerate() {
                cache[slot as usize * head_dim..][..head_dim]
                    .copy_from_slice(&old[(prefix + i) * head_dim..][..head_dim]);
            }
        }
        for level in Level::available() {
            let tree = case.run(level, 2, &[RowKeys { prefix: start..prefix, tail: places.clone() }]);
            prop_assert_eq!(&chain, &tree, "{:?}", level);
        }
    }
}

#[test]
fn long_contexts_take_the_same_bits_on_both_schedules() {
    let (m, slots, group, head_dim) = if cfg!(miri) { (2, 70, 1, 5) } else { (3, 1500, 3, 32) };
    for kind in KvType::ALL {
        let case = case(&mut Rng::new(11), m, slots, 2, group, head_dim).kept(kind);
        let rows = chain(slots - 10, m, 10_000);
        let by_block = case.run(Level::get(), 3, &rows);
        let mut out = vec![0.0; case.q.len()];
        let (shape, q) = (&case.shape, &case.q);
        let cells = Cells { data: out.as_mut_ptr(), width: head_dim };
        typed!(&case.kv().0, kv => {
            let call = Call { level: Level::get(), shape, q, kv, rows: &rows, out: cells };
            Scratch::with(shape, |scratch| {
                call.by_rows(0, 0..m, scratch);
                call.by_rows(1, 0..m, scratch);
            });
        });
        assert_eq!(out.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), by_block, "{kind}");
    }
}

#[test]
fn workers_share_rows_and_heads_of_one_block() {
    for kind in KvType::ALL {
        // In Miri, more rows than go through a block together for one of the types only.
        let (m, group) = match kind {
            KvType::F16 if cfg!(miri) => (9, 1),
            _ if cfg!(miri) => (2, 2),
            _ => (9, 2),
        };
        let case = case(&mut Rng::new(2), m, 40, 2, group, 20).kept(kind);
        let mut rows = chain(20, m, 30);
        rows[m / 2].tail = vec![39, 15, 32];
        let one = case.run(Level::Portable, 1, &rows);
        for (got, want) in one.iter().zip(case.rounded().naive(&rows)) {
            assert!((f64::from(f32::from_bits(*got)) - want).abs() < 2e-5, "{got} for {want}");
        }
        for level in Level::available() {
            assert_eq!(case.run(level, 3, &rows), one, "{kind}, {level:?}");
        }
    }
}

/// A key or value beyond f16 is heard of by those who see it, and by nobody else.
#[test]
fn what_f16_cannot_hold_becomes_nan_where_it_is_seen() {
    let (head_dim, cases) = if cfg!(miri) { (4, 1..3) } else { (16, 0..4) };
    for (keys, at) in [(true, 7), (false, 7), (true, 66), (false, 66)][cases].iter().copied() {
        let mut case = case(&mut Rng::new(3), 3, 70, 2, 2, head_dim).kept(KvType::F16);
        let rows = [
            RowKeys { prefix: 0..at, tail: vec![] },
            RowKeys { prefix: 0..at + 1, tail: vec![] },
            RowKeys { prefix: 0..3, tail: vec![at as u32, 5] },
        ];
        let clean = case.run(Level::get(), 2, &rows);
        let cache = if keys { &mut case.k } else { &mut case.v };
        cache[at * 2 * head_dim + 3] = 7e4; // of the first key head
        let out = case.run(Level::get(), 2, &rows);
        let (row, head) = (4 * head_dim, head_dim);
        assert_eq!(out[..row], clean[..row], "the row before does not see it");
        for seen in [row, 2 * row] {
            let is_nan = |x: usize| f32::from_bits(out[x]).is_nan();
            assert!(if keys { (seen..seen + 2 * head).all(is_nan) } else { is_nan(seen + 3) });
            assert_eq!(out[seen + 2 * head..seen + row], clean[seen + 2 * head..seen + row], "another head");
        }
    }
}

#[test]
fn a_row_that_sees_nothing_gets_zeros_and_a_bad_number_stays_in_its_row() {
    let mut case = case(&mut Rng::new(1), 3, 70, 1, 2, 16);
    let rows = [
        RowKeys { prefix: 0..70, tail: vec![] },
        RowKeys { prefix: 5..5, tail: vec![] },
        RowKeys { prefix: 0..0, tail: vec![3, 9] },
    ];
    let clean = case.run(Level::get(), 2, &rows);
    assert!(clean[32..64].iter().all(|&x| x == 0));
    case.q[3] = f32::NAN;
    let out = case.run(Level::get(), 2, &rows);
    assert!(out[..16].iter().all(|&x| f32::from_bits(x).is_nan()));
    assert_eq!(out[16..], clean[16..]);
}
