//! The decoder against candle-transformers on tiny random checkpoints, against itself over the two file formats, and
//! our kernels against candle's operations.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{collections::HashMap, sync::Arc};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models as oracle;
use specgen::{
    Engine, Error, KvType, SamplingParams,
    draft::NoDraft,
    model::{Batch, Model, Output, Rows, Slice},
};
use specgen_tests::tiny::{self, Tiny};

/// Logits of every row of one pass over `tokens`.
fn logits(model: &dyn Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut cache = model.new_cache();
    let mut out = Output::new();
    let slice = Slice { cache: &mut cache, tokens, rows: Rows::All, tree: None };
    model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out).unwrap();
    (0..tokens.len()).map(|row| out.logits(0, row).to_vec()).collect()
}

/// The others keep keys and values as they are computed.
const IN_F32: Option<KvType> = Some(KvType::F32);

/// candle-transformers' logits of the last position.
fn oracle_logits(tiny: &Tiny, tokens: &[u32]) -> Vec<f32> {
    let device = Device::Cpu;
    let tensors: HashMap<String, Tensor> = tiny
        .tensors()
        .into_iter()
        .map(|t| (t.name, Tensor::from_vec(t.data, t.shape, &device).unwrap()))
        .collect();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &device);
    let input = Tensor::new(tokens, &device).unwrap().unsqueeze(0).unwrap();
    let json = tiny.config.clone();
    fn config<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
        serde_json::from_value(json).unwrap()
    }
    let out = match json["model_type"].as_str().unwrap() {
        "llama" => {
            let config = config::<oracle::llama::LlamaConfig>(json).into_config(false);
            let mut cache = oracle::llama::Cache::new(true, DType::F32, &config, &device).unwrap();
            oracle::llama::Llama::load(vb, &config).unwrap().forward(&input, 0, &mut cache)
        }
        "mistral" => {
            let mut json = json;
            json["use_flash_attn"] = false.into();
            oracle::mistral::Model::new(&config(json), vb).unwrap().forward(&input, 0)
        }
        "qwen2" => oracle::qwen2::ModelForCausalLM::new(&config(json), vb).unwrap().forward(&input, 0),
        "qwen3" => oracle::qwen3::ModelForCausalLM::new(&config(json), vb).unwrap().forward(&input, 0),
        "gemma2" => oracle::gemma2::Model::new(false, &config(json), vb).unwrap().forward(&input, 0),
        "gemma3_text" => {
            // candle's sliding caches refuse the layout of a prompt of several tokens.
            let mut model = oracle::gemma3::Model::new(false, &config(json), vb).unwrap();
            let mut step = |i| model.forward(&input.narrow(1, i, 1).unwrap(), i);
            (0..tokens.len()).map(&mut step).last().unwrap()
        }
        "phi3" => oracle::phi3::Model::new(&config(json), vb).unwrap().forward(&input, 0),
        "smollm3" => {
            oracle::smol::smollm3::ModelForCausalLM::new(&config(json), vb).unwrap().forward(&input, 0)
        }
        other => panic!("no oracle for {other}"),
    };
    out.unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance, "{what}: logit {i} is {g}, wanted {w}");
    }
}

/// Some tokens; `len` stays within the tiny windows where the oracle's own window code is known to be wrong.
fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 17 + 5) % 61).collect()
}

#[test]
fn equals_candle_transformers() {
    // candle multiplies by LongRoPE's factors where the paper and the reference implementation divide, and leaves out
    // the magnitude: a unit test of the angles stands in.
    for tiny in tiny::all().into_iter().filter(|tiny| tiny.name != "phi3, longrope") {
        // candle's Mistral and Gemma 2 apply their window elsewhere than the reference implementation does.
        let len = if tiny.config["sliding_window"].as_u64().is_some_and(|w| w < 20) { 5 } else { 20 };
        let tokens = prompt(len);
        // candle scales Gemma's queries by the head's width whatever the configuration says.
        let tiny = match tiny.config["query_pre_attn_scalar"].is_null() {
            true => tiny,
            false => tiny.with_field("query_pre_attn_scalar", 16.into()),
        };
        let want = oracle_logits(&tiny, &tokens);
        for (device, name) in [(tiny::cpu(2), "our kernels"), (tiny::reference(), "candle's operations")] {
            let got = logits(tiny.load_kept(&device, IN_F32).as_ref(), &tokens).pop().unwrap();
            assert_close(&format!("{} on {name}", tiny.name), &got, &want, 2e-4);
        }
    }
}

#[test]
fn our_kernels_equal_candles_operations_past_the_window() {
    for tiny in tiny::all() {
        let tokens = prompt(40);
        let ours = logits(tiny.load_kept(&tiny::cpu(2), IN_F32).as_ref(), &tokens);
        let candles = logits(tiny.load(&tiny::reference()).as_ref(), &tokens);
        for (row, (ours, candles)) in ours.iter().zip(&candles).enumerate() {
            assert_close(&format!("{}, row {row}", tiny.name), ours, candles, 3e-4);
        }
    }
}

#[test]
fn both_file_formats_hold_the_same_model() {
    for tiny in tiny::all() {
        // These keep what GGUF cannot say of the original: scaling becomes a tensor, Mistral's window is dropped.
        if !tiny.config["rope_scaling"].is_null() || tiny.config["model_type"] == "mistral" {
            continue;
        }
        let tokens = prompt(30);
        let from_safetensors = logits(tiny.load_kept(&tiny::cpu(1), IN_F32).as_ref(), &tokens);
        let from_gguf = logits(tiny.load_gguf_kept(&tiny::cpu(1), IN_F32).as_ref(), &tokens);
        for (row, (a, b)) in from_safetensors.iter().zip(&from_gguf).enumerate() {
            assert_close(&format!("{}, row {row}", tiny.name), b, a, 2e-4);
        }
    }
}

/// Half the bits cost what their rounding costs, eight times more in bf16 than in f16, and the type asked for is the
/// type that is kept. (Random weights make sharp attention of large scores, which magnifies it.)
#[test]
fn keys_and_values_of_16_bits_stay_close() {
    for tiny in tiny::all() {
        let tokens = prompt(40);
        let kept = |kv_type| {
            let model = tiny.load_kept(&tiny::cpu(2), Some(kv_type));
            (model.info().kv_bytes_per_token, logits(model.as_ref(), &tokens))
        };
        let (bytes, want) = kept(KvType::F32);
        let distance = |kv_type| {
            let (half, got) = kept(kv_type);
            assert_eq!(2 * half, bytes, "{}", tiny.name);
            let logits = got.into_iter().flatten().zip(want.iter().flatten());
            let squares: Vec<f32> = logits.map(|(got, want)| (got - want).powi(2)).collect();
            (squares.iter().sum::<f32>() / squares.len() as f32).sqrt()
        };
        let (f16, bf16) = (distance(KvType::F16), distance(KvType::BF16));
        assert!(f16 > 0.0 && f16 < 5e-3, "{}: {f16}", tiny.name);
        assert!((4.0..16.0).contains(&(bf16 / f16)), "{}: {f16} and {bf16}", tiny.name);
    }
}

/// A key or a value beyond f16 ends the text with an error that says so; types with more range go on.
#[test]
fn what_f16_cannot_keep_is_an_error() {
    let tiny = Tiny::named("llama");
    for proj in ["layers.2.self_attn.k_proj.weight", "layers.2.self_attn.v_proj.weight"] {
        let mut tensors = tiny.tensors();
        let large = tensors.iter_mut().find(|tensor| tensor.name.ends_with(proj)).unwrap();
        large.data.iter_mut().for_each(|x| *x *= 1e6);
        for kv_type in KvType::ALL {
            let target = tiny.load_tensors(tensors.clone(), &tiny::cpu(2), kv_type);
            let engine = Engine::from_parts(target, Arc::new(NoDraft), 0, &[]);
            let mut session = engine.session(SamplingParams::greedy()).unwrap();
            let pieces: Result<Vec<_>, _> = session.generate(&prompt(12)[..], 3).unwrap().collect();
            match pieces {
                Err(error @ Error::NanLogits { step: 0, .. }) if kv_type == KvType::F16 => {
                    assert!(error.to_string().contains("beyond the 65504 of f16"), "{proj}: {error}");
                }
                Ok(_) if kv_type != KvType::F16 => {}
                other => panic!("{proj} in {kv_type}: {other:?}"),
            }
        }
    }
}

/// A one-layer model sees exactly `window` keys: the token just outside changes nothing, the one just inside does.
#[test]
fn a_window_hides_exactly_what_is_older() {
    let tiny = Tiny::named("mistral, window").with_field("num_hidden_layers", 1.into());
    for device in [tiny::cpu(1), tiny::reference()] {
        let model = tiny.load(&device);
        let last = |tokens: &[u32]| logits(model.as_ref(), tokens).pop().unwrap();
        let tokens = prompt(12);
        let (mut outside, mut inside) = (tokens.clone(), tokens.clone());
        outside[12 - 6] ^= 1;
        inside[12 - 5] ^= 1;
        assert_eq!(last(&tokens), last(&outside), "a key outside the window of 5 was seen");
        assert_ne!(last(&tokens), last(&inside), "the oldest key inside the window of 5 was not seen");
    }
}

/// Gemma 3 from 4B on hides its language model in a wrapper: other names, and a configuration one level down.
#[test]
fn a_wrapped_checkpoint_is_the_same_model() {
    let tiny = Tiny::named("gemma3");
    let want = logits(tiny.load(&tiny::cpu(1)).as_ref(), &prompt(10));
    for prefix in ["language_model.", "model.language_model."] {
        let got = logits(tiny.load_wrapped(prefix, &tiny::cpu(1)).as_ref(), &prompt(10));
        assert_eq!(got, want, "{prefix}");
    }
}
