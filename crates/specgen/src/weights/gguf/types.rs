//! GGML's numbering of tensor types.

use specgen_kernels::Format;

use crate::weights::tensor::TensorType;

/// The type GGML numbers `id`.
pub(super) fn from_id(id: u32) -> TensorType {
    TensorType::Known(match id {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        6 => Format::Q5_0,
        7 => Format::Q5_1,
        8 => Format::Q8_0,
        10 => Format::Q2_K,
        11 => Format::Q3_K,
        12 => Format::Q4_K,
        13 => Format::Q5_K,
        14 => Format::Q6_K,
        30 => Format::BF16,
        _ => {
            let name = other_name(id).map_or_else(|| format!("type {id}"), str::to_owned);
            return TensorType::Other { name, id: Some(id) };
        }
    })
}

/// The number GGML gives `format`, or `None` for a format GGUF cannot store.
pub(in crate::weights) fn id_of(format: Format) -> Option<u32> {
    (0..=u32::from(u8::MAX)).find(|&id| from_id(id) == TensorType::Known(format))
}

/// Names of the types that exist but are not supported, and of those GGML has dropped.
fn other_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return None,
    })
}
