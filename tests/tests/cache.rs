//! Caches: any way of feeding a text, with any truncations, chunks, trees and neighbours, leaves the same logits, bit
//! for bit, on the CPU.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use specgen::{
    KvType,
    cache::KvCache,
    model::{Batch, Model, Output, Rows, Slice, Tree},
};
use specgen_tests::tiny::{self, Tiny};

/// One model per architecture, and one with each type of keys and values, on two threads.
fn models() -> &'static [(String, Arc<dyn Model>)] {
    static MODELS: OnceLock<Vec<(String, Arc<dyn Model>)>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let default = tiny::all().into_iter().map(|tiny| (tiny, None));
        let kept = KvType::ALL.map(|kv_type| (Tiny::named("gemma3"), Some(kv_type)));
        let load = |(tiny, kv_type): (Tiny, Option<KvType>)| {
            let what = kv_type.map_or("default", KvType::name);
            (format!("{}, {what}", tiny.name), tiny.load_kept(&tiny::cpu(2), kv_type))
        };
        default.chain(kept).map(load).collect()
    })
}

fn feed(model: &dyn Model, cache: &mut KvCache, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut out = Output::new();
    let slice = Slice { cache, tokens, rows: Rows::All, tree: None };
    model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out).unwrap();
    (0..tokens.len()).map(|row| out.logits(0, row).to_vec()).collect()
}

/// Logits of every position, one token at a time.
fn one_by_one(model: &dyn Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut cache = model.new_cache();
    tokens.iter().map(|&token| feed(model, &mut cache, &[token]).remove(0)).collect()
}

fn tokens(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..61, len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Chunks of any size, with wrong guesses fed and taken back between them, past every sliding window.
    #[test]
    fn any_chunks_and_rollbacks_leave_the_same_logits(
        text in tokens(1..40),
        steps in prop::collection::vec((1usize..9, tokens(0..6)), 1..40),
    ) {
        for (name, model) in models() {
            let want = one_by_one(model.as_ref(), &text);
            let mut cache = model.new_cache();
            let mut steps = steps.iter().cycle();
            while cache.len() < text.len() {
                let (chunk, wrong) = steps.next().unwrap();
                let start = cache.len();
                let end = (start + chunk).min(text.len());
                let fed = [&text[start..end], wrong].concat();
                let got = feed(model.as_ref(), &mut cache, &fed);
                cache.truncate(end);
                for (row, logits) in got[..end - start].iter().enumerate() {
                    prop_assert_eq!(logits, &want[start + row], "{}, position {}", name, start + row);
                }
            }
        }
    }

    /// Sequences that share a pass do not see each other.
    #[test]
    fn neighbours_leave_the_same_logits(a in tokens(1..20), b in tokens(1..20), at in 0usize..19) {
        for (name, model) in models() {
            let at = at.min(a.len() - 1);
            let want = one_by_one(model.as_ref(), &a);
            let (mut cache_a, mut cache_b) = (model.new_cache(), model.new_cache());
            if at > 0 {
                feed(model.as_ref(), &mut cache_a, &a[..at]);
            }
            let mut out = Output::new();
            let slices = vec![
                Slice { cache: &mut cache_b, tokens: &b, rows: Rows::Last(1), tree: None },
                Slice { cache: &mut cache_a, tokens: &a[at..], rows: Rows::Last(2), tree: None },
            ];
            model.forward(&mut Batch { slices, taps: &[] }, &mut out).unwrap();
            let rows = out.num_rows(1);
            prop_assert_eq!(out.logits(1, rows - 1), &want[a.len() - 1][..], "{}", name);
        }
    }

    /// Every node of a draft tree gets the logits of its own path, and an accepted path can be kept.
    #[test]
    fn trees_are_chains_that_share_a_pass(
        prefix in tokens(1..20),
        nodes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..61), 1..10),
        kept in any::<prop::sample::Index>(),
        after in 0u32..61,
    ) {
        let mut parents = Vec::new();
        for (i, (parent, _)) in nodes.iter().enumerate() {
            parents.push(if i == 0 { 0 } else { parent.index(i) as u32 });
        }
        let tree = Tree::new(&parents).unwrap();
        let ids: Vec<u32> = nodes.iter().map(|&(_, id)| id).collect();
        for (name, model) in models() {
            let mut cache = model.new_cache();
            feed(model.as_ref(), &mut cache, &prefix);
            let mut out = Output::new();
            let slice = Slice { cache: &mut cache, tokens: &ids, rows: Rows::All, tree: Some(&tree) };
            model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out).unwrap();
            let path_of = |node: usize| tree.path(node).iter().map(|&i| ids[i as usize]);
            for node in 0..ids.len() {
                let text: Vec<u32> = prefix.iter().copied().chain(path_of(node)).collect();
                let want = one_by_one(model.as_ref(), &text).pop().unwrap();
                prop_assert_eq!(out.logits(0, node), &want[..], "{}, node {}", name, node);
            }
            let leaf = kept.index(ids.len());
            let rows: Vec<usize> = tree.path(leaf).iter().map(|&i| i as usize).collect();
            cache.compact(prefix.len(), &rows).unwrap();
            let text: Vec<u32> = prefix.iter().copied().chain(path_of(leaf)).chain([after]).collect();
            let got = feed(model.as_ref(), &mut cache, &[after]).remove(0);
            let want = one_by_one(model.as_ref(), &text).pop().unwrap();
            prop_assert_eq!(got, want, "{}, after keeping node {}", name, leaf);
        }
    }
}

/// The reference backend keeps its caches right too; its sums may differ in the last bits.
#[test]
fn the_reference_backend_rolls_back_and_compacts() {
    let text: Vec<u32> = (0..30).map(|i| (i * 7 + 3) % 61).collect();
    for tiny in tiny::all() {
        let model = tiny.load(&tiny::reference());
        let want = feed(model.as_ref(), &mut model.new_cache(), &text);
        let mut cache = model.new_cache();
        for (start, end) in [(0, 11), (11, 12), (12, 16), (16, 30)] {
            let got = feed(model.as_ref(), &mut cache, &[&text[start..end], &[1, 2, 3]].concat());
            cache.truncate(end);
            for (row, logits) in got[..end - start].iter().enumerate() {
                let worst =
                    logits.iter().zip(&want[start + row]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-4, "{}, position {}: {worst}", tiny.name, start + row);
            }
        }
        // A tree whose second branch is kept: its rows move next to the prefix.
        cache.truncate(20);
        let tree = Tree::new(&[0, 0, 0, 2]).unwrap();
        let ids = [text[20], 60, text[21], text[22]];
        let slice = Slice { cache: &mut cache, tokens: &ids, rows: Rows::None, tree: Some(&tree) };
        model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut Output::new()).unwrap();
        cache.compact(20, &[0, 2, 3]).unwrap();
        assert_eq!(cache.tokens(), &text[..23]);
        let got = feed(model.as_ref(), &mut cache, &text[23..24]).remove(0);
        let worst = got.iter().zip(&want[23]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{}: {worst} after compaction", tiny.name);
    }
}

#[test]
fn taps_are_the_residual_stream_of_every_row() {
    for (name, model) in models() {
        let text = [4u32, 9, 16];
        let mut cache = model.new_cache();
        let mut out = Output::new();
        let slice = Slice { cache: &mut cache, tokens: &text, rows: Rows::Last(1), tree: None };
        model.forward(&mut Batch { slices: vec![slice], taps: &[0, 3] }, &mut out).unwrap();
        let width = model.info().hidden_size;
        assert_eq!(out.tap(0).len(), 3 * width, "{name}");
        assert_eq!(out.tap(1).len(), 3 * width, "{name}");
        assert_ne!(out.tap(0), out.tap(1), "{name}");
        let slice = Slice { cache: &mut cache, tokens: &[1], rows: Rows::None, tree: None };
        let error = model.forward(&mut Batch { slices: vec![slice], taps: &[4] }, &mut out).unwrap_err();
        assert!(error.to_string().contains("layer 4"), "{error}");
        assert_eq!(cache.len(), 3, "a refused pass leaves the cache alone");
    }
}

/// What a pass is asked for changes neither what it gives nor what it leaves behind, on either backend.
#[test]
fn rows_that_nobody_asks_for_leave_the_same_keys_and_values() {
    let text: Vec<u32> = (0..24).map(|i| (i * 7 + 3) % 61).collect();
    let references = tiny::all().into_iter().map(|tiny| (tiny.name, tiny.load(&tiny::reference()), 1e-4));
    let own = models().iter().map(|(name, model)| (name.as_str(), Arc::clone(model), 0.0));
    for (name, model, tolerance) in own.chain(references) {
        let same = |got: &[f32], wanted: &[f32]| {
            let worst = got.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= tolerance, "{name}: {worst}");
        };
        let wanted = feed(model.as_ref(), &mut model.new_cache(), &text);
        let last = model.info().num_layers - 1;
        for rows in [Rows::None, Rows::Last(3), Rows::All] {
            for taps in [&[][..], &[last]] {
                let (mut cache, mut out) = (model.new_cache(), Output::new());
                feed(model.as_ref(), &mut cache, &text[..5]);
                let slice = Slice { cache: &mut cache, tokens: &text[5..20], rows, tree: None };
                model.forward(&mut Batch { slices: vec![slice], taps }, &mut out).unwrap();
                let num_rows = out.num_rows(0);
                assert_eq!(num_rows, rows.count(15), "{name}");
                (0..num_rows).for_each(|row| same(out.logits(0, row), &wanted[20 - num_rows + row]));
                if !taps.is_empty() {
                    assert_eq!(out.tap(0).len(), 15 * model.info().hidden_size, "{name}");
                }
                let after = feed(model.as_ref(), &mut cache, &text[20..]);
                after.iter().zip(&wanted[20..]).for_each(|(got, wanted)| same(got, wanted));
            }
        }
    }
}

/// The residual stream after each of `layers`, as `[tokens, hidden_size]`.
fn taps(model: &dyn Model, layers: &[usize], text: &[u32]) -> Vec<Vec<f32>> {
    let (mut cache, mut out) = (model.new_cache(), Output::new());
    let slice = Slice { cache: &mut cache, tokens: text, rows: Rows::All, tree: None };
    model.forward(&mut Batch { slices: vec![slice], taps: layers }, &mut out).unwrap();
    (0..layers.len()).map(|i| out.tap(i).to_vec()).collect()
}

/// A tap is what its layer leaves, not the layer before or behind it: a model that ends there says so with its head, and
/// the layers behind change nothing. In the order asked for.
#[test]
fn a_tap_is_of_the_layer_it_names() {
    let (device, text) = (tiny::cpu(1), [4u32, 9, 16, 2]);
    for whole in tiny::all() {
        let model = whole.load(&device);
        let every = taps(model.as_ref(), &[0, 1, 2, 3], &text);
        assert!(
            every.windows(2).all(|pair| pair[0] != pair[1]),
            "{}: one layer off would be seen",
            whole.name
        );
        for (layer, wanted) in every[..3].iter().enumerate() {
            // Its weights up to there are the same.
            let short = whole.clone().with_field("num_hidden_layers", (layer + 1).into()).load(&device);
            let last = taps(short.as_ref(), &[layer], &text).remove(0);
            assert_eq!(&last, wanted, "{}, layer {layer}", whole.name);
        }
        assert_eq!(
            taps(model.as_ref(), &[3, 0], &text),
            [every[3].clone(), every[0].clone()],
            "{}",
            whole.name
        );
    }

    let llama = Tiny::named("llama");
    let model = llama.load(&device);
    let last = taps(model.as_ref(), &[3], &text).remove(0);
    let tensors = llama.tensors();
    let tensor = |name: &str| &tensors.iter().find(|tensor| tensor.name == name).unwrap().data;
    let (norm, head) = (tensor("model.norm.weight"), tensor("lm_head.weight"));
    let width = model.info().hidden_size;
    for (x, wanted) in last.chunks(width).zip(feed(model.as_ref(), &mut model.new_cache(), &text)) {
        let mean_square = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / width as f64;
        let normed: Vec<f64> = x.iter().map(|&x| f64::from(x) / (mean_square + 1e-5).sqrt()).collect();
        for (row, wanted) in head.chunks(width).zip(wanted) {
            let terms = row.iter().zip(&normed).zip(norm).map(|((w, x), norm)| f64::from(w * norm) * x);
            let found: f64 = terms.sum();
            assert!((found - f64::from(wanted)).abs() < 1e-3, "{found}, not {wanted}");
        }
    }
}

/// What makes the tests above worth having: a cache that keeps what was taken back, or loses a token more, is seen.
#[test]
fn a_cache_cut_in_the_wrong_place_is_seen() {
    let text = [4u32, 9, 16, 2, 7];
    for (name, model) in models() {
        let want = one_by_one(model.as_ref(), &text).pop().unwrap();
        let behind = |len: usize| {
            let mut cache = model.new_cache();
            feed(model.as_ref(), &mut cache, &[&text[..4], &[1, 3]].concat());
            cache.truncate(len);
            feed(model.as_ref(), &mut cache, &text[4..]).remove(0)
        };
        assert_eq!(behind(4), want, "{name}");
        for wrong in [6, 5, 3] {
            assert_ne!(behind(wrong), want, "{name}, cut at {wrong}");
        }
    }
}

#[test]
fn refused_slices_leave_the_cache_alone() {
    for (name, model) in models() {
        let mut cache = model.new_cache();
        feed(model.as_ref(), &mut cache, &[1, 2, 3]);
        let too_long = vec![1; 126];
        for bad in [&[][..], &[61], &too_long] {
            let slice = Slice { cache: &mut cache, tokens: bad, rows: Rows::All, tree: None };
            assert!(
                model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut Output::new()).is_err(),
                "{name}"
            );
            assert_eq!(cache.tokens(), [1, 2, 3], "{name}");
        }
    }
}
