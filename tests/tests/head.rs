//! Models with some rows of their output head: the logits they have are those of the whole head, bit for bit, and each is
//! put under its own id.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use specgen::{
    Engine, SamplingParams, Verification,
    draft::{DraftVocab, ModelDrafter, Translator},
    model::{Batch, Model, Output, Rows, Slice, ToyModel},
    weights::Format,
};
use specgen_tests::{
    drafters::SmallHead,
    tiny::{self, Tiny},
    vocabularies::{self, Reversed},
};

/// Neither whole tiles of rows, nor a run of them.
fn some_ids() -> Vec<u32> {
    (0..61).filter(|id| id % 3 != 1 && id % 7 != 2).collect()
}

fn logits(model: &dyn Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let (mut cache, mut out) = (model.new_cache(), Output::new());
    let slice = Slice { cache: &mut cache, tokens, rows: Rows::All, tree: None };
    model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out).unwrap();
    (0..tokens.len()).map(|row| out.logits(0, row).to_vec()).collect()
}

/// `small` has the logits that `whole` has of `ids`, and takes any token.
fn assert_rows_of(small: &dyn Model, whole: &dyn Model, ids: &[u32], what: &str) {
    assert_eq!(small.info().vocab_size, whole.info().vocab_size, "{what}");
    assert_eq!(small.info().head_ids.as_deref(), Some(ids), "{what}");
    assert!(small.info().pass_bytes < whole.info().pass_bytes, "{what}");
    let text: Vec<u32> = (0..20).map(|i| i * 7 % 61).collect();
    let picked = |row: &Vec<f32>| ids.iter().map(|&id| row[id as usize].to_bits()).collect::<Vec<_>>();
    let wanted: Vec<_> = logits(whole, &text).iter().map(picked).collect();
    let bits = |row: &Vec<f32>| row.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
    assert_eq!(logits(small, &text).iter().map(bits).collect::<Vec<_>>(), wanted, "{what}");
}

#[test]
fn every_architecture_has_the_logits_of_its_whole_head() {
    let device = tiny::cpu(2);
    for tiny in tiny::all() {
        let [whole, small] = [None, Some(&some_ids()[..])].map(|ids| tiny.load_heads(&device, ids, None));
        for ((whole, small), file) in whole.iter().zip(&small).zip(["safetensors", "GGUF"]) {
            assert_rows_of(&**small, &**whole, &some_ids(), &format!("{}, {file}", tiny.name));
        }
    }
}

#[test]
fn every_format_has_the_logits_of_its_whole_head() {
    use Format::{Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    let device = tiny::cpu(2);
    for name in ["llama", "llama3 rope, tied"] {
        let wide = Tiny::named(name).with_field("hidden_size", 256.into());
        let wide = wide.with_field("intermediate_size", 256.into()).with_field("num_hidden_layers", 1.into());
        for format in [Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0] {
            let load = |ids: Option<&[u32]>| wide.load_heads(&device, ids, Some(format));
            for (whole, small) in load(None).iter().zip(&load(Some(&some_ids()))) {
                assert_rows_of(&**small, &**whole, &some_ids(), &format!("{name}, {format:?}"));
            }
        }
    }
}

/// candle multiplies whole matrices, whose sums may be in another order.
#[test]
fn candle_has_the_logits_of_its_whole_head() {
    let device = tiny::reference();
    let tiny = Tiny::named("gemma2");
    let [whole, small] = [None, Some(&some_ids()[..])].map(|ids| tiny.load_heads(&device, ids, None));
    for (whole, small) in whole.iter().zip(&small) {
        assert_eq!(small.info().head_ids.as_deref(), Some(&some_ids()[..]));
        let [whole, small] = [whole, small].map(|model| logits(&**model, &[5, 1, 4]));
        for (whole, small) in whole.iter().zip(&small) {
            assert_eq!(small.len(), some_ids().len());
            for (&id, logit) in some_ids().iter().zip(small) {
                assert!((whole[id as usize] - logit).abs() < 1e-4, "id {id}");
            }
        }
    }
}

#[test]
fn ids_that_are_not_there_or_in_no_order_are_refused() {
    let tiny = Tiny::named("llama");
    for ids in [&[][..], &[3, 2], &[2, 2], &[60, 61]] {
        let error = tiny.try_load_head(&tiny::cpu(1), ids).err().unwrap().to_string();
        assert!(error.contains("ascending ones below 61"), "{ids:?}: {error}");
    }
}

/// All of what it drafts, where the target may say no more than the draft can.
fn acceptance(target: &Arc<dyn Model>, drafter: ModelDrafter, ids: &[u32], verify: Verification) -> f64 {
    let vocab_size = target.info().vocab_size as u32;
    let others = (0..vocab_size).filter(|id| !ids.contains(id));
    let params = SamplingParams {
        temperature: 1.5,
        repetition_penalty: 1.2,
        seed: Some(3),
        verify: Some(verify),
        logit_bias: others.map(|id| (id, f32::NEG_INFINITY)).collect(),
        ..SamplingParams::default()
    };
    let engine = Engine::from_parts(target.clone(), Arc::new(drafter), 4, &[]);
    let mut session = engine.session(params).unwrap();
    let mut generation = session.generate(&[5u32, 1][..], 100).unwrap();
    generation.by_ref().for_each(|piece| drop(piece.unwrap()));
    generation.stats().acceptance_rate()
}

/// A model that drafts for itself is right every time: each logit is put under its own id.
#[test]
fn a_model_agrees_with_itself_as_far_as_its_head_goes() {
    let ids = some_ids();
    let [target, _] = Tiny::named("llama").load_heads(&tiny::cpu(1), None, None);
    let [small, _] = Tiny::named("llama").load_heads(&tiny::cpu(1), Some(&ids), None);
    for verify in Verification::ALL {
        let drafter = ModelDrafter::new(small.clone(), 61);
        assert_eq!(acceptance(&target, drafter, &ids, verify), 1.0, "{verify}");
    }
}

/// The same where its ids are others.
#[test]
fn a_model_agrees_with_itself_in_other_ids_as_far_as_its_head_goes() {
    let (ids, toy) = (some_ids(), ToyModel::new(61, 1, 6.0));
    let (target_vocab, draft_vocab) = vocabularies::reversed(61);
    let vocab = DraftVocab::Other(Arc::new(Translator::new(&target_vocab, &draft_vocab)));
    let own_ids: Vec<u32> = ids.iter().rev().map(|id| 60 - id).collect();
    let small: Arc<dyn Model> = Arc::new(SmallHead::new(Arc::new(Reversed(toy.clone())), &own_ids));
    let target: Arc<dyn Model> = Arc::new(toy);
    for verify in Verification::ALL {
        let drafter = ModelDrafter::with_vocab(small.clone(), vocab.clone());
        assert_eq!(acceptance(&target, drafter, &ids, verify), 1.0, "{verify}");
    }
}
