//! What of a JSON schema is understood: a keyword that is not would be ignored, and the text fit less than
//! was asked for.

use serde_json::{Map, Value};

/// Keywords whose value is nothing to look into.
const PLAIN: [&str; 18] = [
    "$ref",
    "const",
    "enum",
    "type",
    "minItems",
    "maxItems",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
/// Keywords whose value is a schema, or an array of schemas.
const SCHEMAS: [&str; 7] =
    ["anyOf", "oneOf", "allOf", "items", "additionalItems", "prefixItems", "additionalProperties"];
/// Keywords whose value is schemas by name.
const NAMED_SCHEMAS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that constrain nothing.
const ANNOTATIONS: [&str; 14] = [
    "$anchor",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];

/// Where the first keyword is that would be ignored, as a path of JSON pointer form, if there is one. None
/// with the option of llguidance that asks for it, `"x-guidance": {"lenient": true}`. Keywords of one's own
/// begin with `x-`.
pub(super) fn ignored_keyword(schema: &Value) -> Option<String> {
    if schema.pointer("/x-guidance/lenient") == Some(&Value::Bool(true)) {
        return None;
    }
    let references = References(schema.to_string());
    in_schema(schema, "", &references)
}

/// All of the schema as text: a part under a name of one's own is in use if something refers to it.
struct References(String);

impl References {
    fn lead_to(&self, path: &str) -> bool {
        ["\"", "/"].into_iter().any(|end| self.0.contains(&format!("\"$ref\":\"#{path}{end}")))
    }
}

fn in_schema(schema: &Value, path: &str, references: &References) -> Option<String> {
    match schema {
        Value::Object(keywords) => {
            keywords.iter().find_map(|(keyword, value)| in_keyword(keyword, value, path, references))
        }
        Value::Array(schemas) => in_all(schemas.iter().enumerate(), path, references),
        // A value of the wrong type is told by whoever compiles it.
        _ => None,
    }
}

fn in_keyword(keyword: &str, value: &Value, path: &str, references: &References) -> Option<String> {
    let path = format!("{path}/{}", keyword.replace('~', "~0").replace('/', "~1"));
    if SCHEMAS.contains(&keyword) {
        in_schema(value, &path, references)
    } else if NAMED_SCHEMAS.contains(&keyword) {
        value.as_object().and_then(|named: &Map<_, _>| in_all(named.iter(), &path, references))
    } else {
        let is_known = PLAIN.contains(&keyword) || ANNOTATIONS.contains(&keyword);
        let is_ones_own = keyword.starts_with("x-") || references.lead_to(&path);
        (!is_known && !is_ones_own).then_some(path)
    }
}

/// In each of some schemas by name or number.
fn in_all<'a, Name: std::fmt::Display>(
    mut schemas: impl Iterator<Item = (Name, &'a Value)>,
    path: &str,
    references: &References,
) -> Option<String> {
    schemas.find_map(|(name, schema)| in_schema(schema, &format!("{path}/{name}"), references))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_keyword_that_would_be_ignored_is_named_with_its_path() {
        let found = |schema: Value| ignored_keyword(&schema);
        let known = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "x-note": {"maxLenght": 1},
            "type": "object", "required": ["maxLenght"], "default": {"maxLenght": 1}, "deprecated": true,
            "properties": {"maxLenght": {"enum": [{"maxLenght": 1}]}, "a": {"$ref": "#/parts/one"}, "b": true},
            "additionalProperties": false, "parts": {"one": {"type": "string"}},
        });
        assert_eq!(found(known), None);
        assert_eq!(found(json!(true)), None);
        let cases = [
            (json!({"maxLenght": 3}), "/maxLenght"),
            (json!({"properties": {"a": {"items": {"not": {}}}}}), "/properties/a/items/not"),
            (json!({"anyOf": [{}, {"allOf": [{"if": true}]}]}), "/anyOf/1/allOf/0/if"),
            (json!({"$defs": {"a/b": {"a~/b": 1}}}), "/$defs/a/b/a~0~1b"),
            (json!({"items": [{}, {"uniqueItems": true}]}), "/items/1/uniqueItems"),
        ];
        for (schema, wanted) in cases {
            assert_eq!(found(schema.clone()).as_deref(), Some(wanted));
            let mut lenient = schema;
            lenient["x-guidance"] = json!({"lenient": true});
            assert_eq!(found(lenient), None);
        }
    }
}
