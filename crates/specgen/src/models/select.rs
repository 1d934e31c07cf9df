//! Which files of a hub repository make the model that was asked for.

use crate::weights::locate::{INDEX, Shard, has_extension, is_side_file, is_weights};

/// Files beside safetensors that say how to run them.
const COMPANIONS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
];
/// Quantisations taken when nothing is said, the first that is there.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Chooses among the paths of a repository: `wanted` is a path, a quantisation or nothing.
///
/// Without a wish: the safetensors checkpoint with its configuration and tokenizer; else the only GGUF, the
/// one in Q4_K_M, or the one in Q8_0. A set of shards counts as one file.
///
/// # Errors
/// One line that lists the candidates when none or several are left.
pub(super) fn select<'a>(paths: &[&'a str], wanted: Option<&str>) -> Result<Vec<&'a str>, String> {
    let weights = || paths.iter().copied().filter(|path| is_weights(path));
    if let Some(wanted) = wanted {
        if let Some(&exact) = paths.iter().find(|path| **path == wanted) {
            return Ok(with_companions(paths, shards(paths, exact)?));
        }
        let sets = sets(weights().filter(|path| names_quantisation(path, wanted) && !is_side_file(path)));
        return match sets.as_slice() {
            [one] => Ok(with_companions(paths, shards(paths, one)?)),
            [] => Err(format!(
                "it holds no file and no quantisation `{wanted}`; {}",
                offer(&self::sets(weights()))
            )),
            several => Err(format!("`{wanted}` fits several files; {}", offer(several))),
        };
    }
    let own: Vec<&str> = weights().filter(|path| !is_side_file(path)).collect();
    // Checkpoints lie at the top; what lies deeper belongs to parts of a pipeline or to other formats.
    let checkpoint =
        sets(own.iter().copied().filter(|path| has_extension(path, "safetensors") && !path.contains('/')));
    match checkpoint.as_slice() {
        [] => {}
        [one] => return Ok(with_companions(paths, shards(paths, one)?)),
        several => {
            // Both the one file and its shards are published now and then.
            let whole = several.iter().find(|path| **path == "model.safetensors");
            let standard = whole.or_else(|| several.iter().find(|path| path.starts_with("model-00001-of-")));
            return match standard {
                Some(standard) => Ok(with_companions(paths, shards(paths, standard)?)),
                None => Err(format!("it holds several models; {}", offer(several))),
            };
        }
    }
    let ggufs = sets(own.iter().copied().filter(|path| has_extension(path, "gguf")));
    if let [one] = ggufs.as_slice() {
        return shards(paths, one);
    }
    for quantisation in PREFERRED {
        let fitting: Vec<&str> =
            ggufs.iter().copied().filter(|path| names_quantisation(path, quantisation)).collect();
        if let [one] = fitting.as_slice() {
            return shards(paths, one);
        }
    }
    if ggufs.is_empty() {
        return Err("it holds neither safetensors nor GGUF files".to_owned());
    }
    Err(format!("it holds several models; {}", offer(&ggufs)))
}

/// The first shard of each set, and files that are whole; sorted.
fn sets<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = std::collections::BTreeMap::new();
    for path in paths {
        let key = Shard::of(path).map_or_else(|| path.to_owned(), |shard| shard.name(1));
        let first = seen.entry(key).or_insert(path);
        *first = (*first).min(path);
    }
    let mut firsts: Vec<&str> = seen.into_values().collect();
    firsts.sort_unstable();
    firsts
}

/// `path`, or all shards of its set, each of which has to be there.
fn shards<'a>(paths: &[&'a str], path: &'a str) -> Result<Vec<&'a str>, String> {
    let Some(shard) = Shard::of(path) else { return Ok(vec![path]) };
    let find = |number| {
        let name = shard.name(number);
        let found = paths.iter().copied().find(|path| *path == name);
        found.ok_or_else(|| format!("the shard {name} is missing"))
    };
    (1..=shard.count).map(find).collect()
}

/// Adds what safetensors need beside them; a GGUF holds it all.
fn with_companions<'a>(paths: &[&'a str], mut chosen: Vec<&'a str>) -> Vec<&'a str> {
    if chosen.iter().all(|path| has_extension(path, "safetensors")) {
        let wanted = COMPANIONS.into_iter().chain((chosen.len() > 1).then_some(INDEX));
        chosen.extend(wanted.filter_map(|name| paths.iter().copied().find(|path| *path == name)));
    }
    chosen
}

/// Whether a file's name has `quantisation` in it as a word of its own: `Q4_K` is not in `x-Q4_K_M.gguf`.
fn names_quantisation(path: &str, quantisation: &str) -> bool {
    let (path, quantisation) = (path.to_lowercase(), quantisation.to_lowercase());
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    path.match_indices(&quantisation).any(|(start, found)| {
        let bytes = path.as_bytes();
        let free_before = start == 0 || !is_part(bytes[start - 1]);
        free_before && bytes.get(start + found.len()).is_none_or(|&after| !is_part(after))
    })
}

/// The candidates for a message, in the form to ask for one.
fn offer(candidates: &[&str]) -> String {
    const MOST: usize = 12;
    if candidates.is_empty() {
        return "it holds no weights at all".to_owned();
    }
    let shown: Vec<String> = candidates.iter().take(MOST).map(|path| format!(":{path}")).collect();
    let more = candidates.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("append one of {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_checkpoint_comes_with_what_it_needs() {
        let paths = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "onnx/model.onnx"];
        assert_eq!(select(&paths, None).unwrap(), ["model.safetensors", "config.json", "tokenizer.json"]);
        let sharded = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(
            select(&sharded, None).unwrap(),
            [sharded[2], sharded[3], "config.json", "model.safetensors.index.json"]
        );
        let error = select(&[sharded[0], sharded[2]], None).unwrap_err();
        assert!(error.contains("model-00002-of-00002.safetensors is missing"), "{error}");
    }

    #[test]
    fn one_gguf_is_found_among_many() {
        assert_eq!(select(&["any.gguf", "mmproj-any.gguf"], None).unwrap(), ["any.gguf"]);
        let many = ["x-Q2_K.gguf", "x-Q4_K_M.gguf", "x-Q8_0.gguf"];
        assert_eq!(select(&many, None).unwrap(), ["x-Q4_K_M.gguf"]);
        assert_eq!(select(&[many[0], many[2]], None).unwrap(), ["x-Q8_0.gguf"]);
        let error = select(&["x-Q2_K.gguf", "x-Q3_K.gguf"], None).unwrap_err();
        assert!(error.contains(":x-Q2_K.gguf, :x-Q3_K.gguf"), "{error}");
        let split = ["q/x-q4_k_m-00001-of-00002.gguf", "q/x-q4_k_m-00002-of-00002.gguf", "x-q8_0.gguf"];
        assert_eq!(select(&split, None).unwrap(), split[..2]);
    }

    #[test]
    fn a_wish_is_a_path_or_a_quantisation() {
        let many = ["x-Q4_K_M.gguf", "x-Q4_K_S.gguf", "BF16/x-BF16.gguf", "x.q8_0.gguf"];
        assert_eq!(select(&many, Some("BF16/x-BF16.gguf")).unwrap(), ["BF16/x-BF16.gguf"]);
        assert_eq!(select(&many, Some("Q8_0")).unwrap(), ["x.q8_0.gguf"]);
        assert!(select(&many, Some("Q4_K")).unwrap_err().contains("no quantisation `Q4_K`"));
        assert!(select(&["a-Q8_0.gguf", "b-Q8_0.gguf"], Some("Q8_0")).unwrap_err().contains("several"));
        assert!(select(&["README.md"], None).unwrap_err().contains("neither"));
        assert!(select(&["README.md"], Some("Q8_0")).unwrap_err().contains("no weights"));
    }
}
