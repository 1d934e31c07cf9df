//! Values as Python prints them, and the methods Python's strings and dicts have.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
use serde_json::Value as Json;

/// A JSON value for a template, maps in their order.
pub(super) fn template_value(value: &Json) -> Value {
    Value::from_serialize(value)
}

/// Prints a value in `{{ }}`: Python's `str`.
pub(super) fn format(out: &mut Output<'_>, _: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    out.write_str(&string(value)).map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write"))
}

/// Python's `str(value)`; nothing for an undefined value.
pub(super) fn string(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::new();
            repr(value, MAX_DEPTH, &mut out);
            out
        }
    }
}

/// Lists within lists that are written out; a template can nest them without end.
const MAX_DEPTH: usize = 64;

fn repr(value: &Value, depth: usize, out: &mut String) {
    let Some(depth) = depth.checked_sub(1) else {
        out.push_str("...");
        return;
    };
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut separator = "";
            for item in value.try_iter().into_iter().flatten() {
                out.push_str(separator);
                repr(&item, depth, out);
                separator = ", ";
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            let mut separator = "";
            for key in value.try_iter().into_iter().flatten() {
                out.push_str(separator);
                repr(&key, depth, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), depth, out);
                separator = ", ";
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// Python's `repr` of a string: single quotes unless it holds some and no double ones.
fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7F => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// Python's `repr` of a float: the shortest digits, in full from 1e-4 up to 1e16.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `join`: items as [`string`] has them.
pub(super) fn join(value: Value, joiner: Option<String>, kwargs: Kwargs) -> Result<String, Error> {
    let attribute = kwargs.get::<Option<String>>("attribute")?;
    kwargs.assert_all_used()?;
    let items = value.try_iter()?.map(|item| match &attribute {
        Some(attribute) => item.get_attr(attribute).map(|item| string(&item)),
        None => Ok(string(&item)),
    });
    Ok(items.collect::<Result<Vec<_>, _>>()?.join(joiner.as_deref().unwrap_or_default()))
}

/// `tojson` as `transformers` has it: Python's `json.dumps` without HTML escapes.
pub(super) fn tojson(value: Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() || indent.is_undefined() => None,
        Some(indent) => match (indent.as_str(), usize::try_from(indent.clone())) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Ok(spaces)) if spaces <= 64 => Some(" ".repeat(spaces)),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson: indent is 0 to 64 spaces or a text",
                ));
            }
        },
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are two texts")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let dump = Dump {
        indent,
        item,
        key,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    dump.write(&value, 0, &mut out)?;
    Ok(out)
}

struct Dump {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Dump {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > 128 {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested more than 128 deep"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.list('{', '}', &keys, depth, out, |key, out| {
                    self.text(&string(key), out);
                    out.push_str(&self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => {
                let message = format!("tojson: a value of kind {kind} is not JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn list(
        &self,
        open: char,
        close: char,
        items: &[Value],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item);
            }
            new_line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            new_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Methods minijinja's values do not have by themselves.
pub(super) fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn str_of(value: Json) -> String {
        string(&template_value(&value))
    }

    #[test]
    fn values_print_as_in_python() {
        // Each right side is `str(value)` of CPython 3.
        assert_eq!(
            str_of(json!({"b": [1, 2.0, null, true], "a": {}})),
            "{'b': [1, 2.0, None, True], 'a': {}}"
        );
        assert_eq!(
            str_of(json!(["it's", "\"", "'\"", "\\\n\u{1}é"])),
            r#"["it's", '"', '\'"', '\\\n\x01é']"#
        );
        let floats = json!([0.1, 1e16, 1e15, 1.5e-5, 0.0001, 1e22, -1e-7, 123456789.25]);
        let python = "[0.1, 1e+16, 1000000000000000.0, 1.5e-05, 0.0001, 1e+22, -1e-07, 123456789.25]";
        assert_eq!(str_of(floats), python);
        assert_eq!(str_of(json!("plain")), "plain");
    }

    #[test]
    fn json_is_that_of_python() {
        let value = template_value(&json!({"b": [1, "é<\u{1F600}\u{7}"], "a": {}, "c": []}));
        let dump = |kwargs: &[(&str, Value)]| {
            tojson(value.clone(), kwargs.iter().map(|(k, v)| (*k, v.clone())).collect()).unwrap()
        };
        assert_eq!(dump(&[]), r#"{"b": [1, "é<😀\u0007"], "a": {}, "c": []}"#);
        let sorted = dump(&[("sort_keys", true.into()), ("ensure_ascii", true.into())]);
        assert_eq!(sorted, r#"{"a": {}, "b": [1, "\u00e9<\ud83d\ude00\u0007"], "c": []}"#);
        let pretty = "{\n  \"b\": [\n    1,\n    \"é<😀\\u0007\"\n  ],\n  \"a\": {},\n  \"c\": []\n}";
        assert_eq!(dump(&[("indent", 2.into())]), pretty);
        let tight = dump(&[("separators", vec![",", ":"].into())]);
        assert_eq!(tight, r#"{"b":[1,"é<😀\u0007"],"a":{},"c":[]}"#);
    }
}
