//! Chat templates: messages to the prompt text a model was trained on.
//!
//! Templates are Jinja, run as `transformers` runs them: blocks trimmed, `raise_exception`, `strftime_now`,
//! `tojson` without HTML escapes, and values printed as Python prints them.

mod clock;
mod python;

use std::path::Path;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use regex::Regex;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::tokenizer::Tokenizer;
use crate::weights::metadata::Metadata;
use crate::{Error, Result};

/// Steps a template may take; a real one takes some hundred a message, an endless one must end.
const FUEL: u64 = 100_000_000;
/// The names templates are kept under; `tool_use` is the one for requests with tools, where a model has two.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// One message of a conversation, in the shape of OpenAI's API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// The text. A list of text parts is read as their texts joined, an absent or null content as nothing.
    #[serde(default, deserialize_with = "text")]
    pub content: String,
    /// Everything else: `tool_calls`, `tool_call_id`, `name`, `reasoning_content`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of text alone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }
}

/// Reads a content: a string, null, or parts of which all are text.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    use serde::de::Error as _;
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Content {
        Text(String),
        Parts(Vec<Map<String, Value>>),
    }
    match Option::<Content>::deserialize(deserializer)? {
        None => Ok(String::new()),
        Some(Content::Text(text)) => Ok(text),
        Some(Content::Parts(parts)) => parts
            .iter()
            .map(|part| match part.get("text").and_then(Value::as_str) {
                Some(text) => Ok(text),
                None => {
                    let kind = part.get("type").and_then(Value::as_str).unwrap_or("unknown");
                    Err(D::Error::custom(format!(
                        "a content part of type `{kind}` is not supported; use text"
                    )))
                }
            })
            .collect(),
    }
}

/// How to render.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Ends the prompt where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// The functions on offer: a list of JSON schemas, as in OpenAI's `tools`.
    pub tools: Option<Value>,
    /// More variables for the template: `enable_thinking`, `documents`, `date_string`.
    pub extra: Map<String, Value>,
}

/// A compiled chat template. Immutable, `Send + Sync`.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are the texts of the begin and end tokens, which most templates print.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where it is no Jinja this understands.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let mut environment = environment();
        add(&mut environment, DEFAULT, source)?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            bos: bos.map(str::to_owned),
            eos: eos.map(str::to_owned),
        })
    }

    /// Whether another message gives the same prompt: such a template is none.
    pub(crate) fn ignores_messages(&self) -> bool {
        let render = |text: &str| self.render(&[Message::new("user", text)], &RenderOptions::default());
        matches!((render("a"), render("b")), (Ok(a), Ok(b)) if a == b)
    }

    /// The template in GGUF metadata (`tokenizer.chat_template`), or `None` where there is none: a base model.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_metadata(meta: &Metadata, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let Some(source) = meta.str("tokenizer.chat_template") else { return Ok(None) };
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
        let mut template = Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()))?;
        if let Some(source) = meta.str("tokenizer.chat_template.tool_use") {
            add(&mut template.environment, TOOL_USE, source)?;
        }
        Ok(Some(template))
    }

    /// The template in a model's folder, or `None` where there is none: `chat_template.jinja`, else
    /// `chat_template.json`, else `tokenizer_config.json` (one template, or several by name).
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Format`] where a file cannot be read, and as [`new`](Self::new).
    pub fn from_dir(dir: &Path) -> Result<Option<Self>> {
        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let map = read_json(&dir.join("special_tokens_map.json"))?;
        let processor = read_json(&dir.join("chat_template.json"))?;
        let token = |key: &str| {
            [&config, &map].into_iter().find_map(|file| {
                let token = file.get(key)?;
                token.as_str().or_else(|| token.get("content")?.as_str())
            })
        };
        let (bos, eos) = (token("bos_token"), token("eos_token"));
        let mut named = named_templates(config.get("chat_template"));
        named.splice(0..0, named_templates(processor.get("chat_template")));
        if let Some(source) = read_text(&dir.join("chat_template.jinja"))? {
            named.insert(0, (DEFAULT.to_owned(), source));
        }
        if let Some(source) = read_text(&dir.join("additional_chat_templates/tool_use.jinja"))? {
            named.insert(0, (TOOL_USE.to_owned(), source));
        }
        let source = |name: &str| named.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str());
        let Some(default) = source(DEFAULT).or(named.first().map(|(_, source)| source.as_str())) else {
            return Ok(None);
        };
        let mut template = Self::new(default, bos, eos)?;
        if let Some(source) = source(TOOL_USE) {
            add(&mut template.environment, TOOL_USE, source)?;
        }
        Ok(Some(template))
    }

    /// The prompt for `messages`. Encode it with special tokens parsed, and without another begin token where it
    /// already starts with one.
    ///
    /// `arguments` of tool calls that are JSON in a string, as on the wire, are given to the template as objects.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there is no message, or the template refuses them (its words are in the error);
    /// [`Error::Unsupported`] where it does what this cannot run.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::InvalidArgument(
                "the conversation is empty; it needs at least one message".into(),
            ));
        }
        let mut context = options.extra.clone();
        let messages = messages.iter().map(message_value).collect();
        context.insert("messages".to_owned(), Value::Array(messages));
        context.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        context.insert("tools".to_owned(), options.tools.clone().unwrap_or(Value::Null));
        context.entry("documents").or_insert(Value::Null);
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            if let Some(token) = token {
                context.insert(name.to_owned(), token.clone().into());
            }
        }
        let with_tools = options.tools.as_ref().is_some_and(|tools| !tools.is_null());
        let tool_use = with_tools.then(|| self.environment.get_template(TOOL_USE).ok()).flatten();
        let template = match tool_use {
            Some(template) => template,
            None => self.environment.get_template(DEFAULT).map_err(|e| failure(&e))?,
        };
        let context = python::template_value(&Value::Object(context));
        // A template is a stranger's program, and the engine below is not ours: it panics on `[][::-1]`, for one.
        let rendered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| template.render(context)));
        match rendered {
            Ok(rendered) => rendered.map_err(|e| failure(&e)),
            Err(_) => Err(Error::Unsupported(
                "the chat template cannot be run on these messages; give another one, or the prompt as text"
                    .into(),
            )),
        }
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// The message as the template sees it.
fn message_value(message: &Message) -> Value {
    let mut value = Map::new();
    value.insert("role".to_owned(), message.role.clone().into());
    value.insert("content".to_owned(), message.content.clone().into());
    for (key, extra) in &message.extra {
        value.insert(key.clone(), extra.clone());
    }
    if let Some(Value::Array(calls)) = value.get_mut("tool_calls") {
        for call in calls {
            let function = if call.get("function").is_some() { &mut call["function"] } else { call };
            if let Some(arguments) = function.get_mut("arguments")
                && let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
                && matches!(parsed, Value::Object(_))
            {
                *arguments = parsed;
            }
        }
    }
    Value::Object(value)
}

/// `chat_template` of a JSON file: one template, or a list of `{name, template}`.
fn named_templates(value: Option<&Value>) -> Vec<(String, String)> {
    match value {
        Some(Value::String(source)) => vec![(DEFAULT.to_owned(), source.clone())],
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|entry| {
                let text = |key: &str| entry.get(key)?.as_str().map(str::to_owned);
                Some((text("name")?, text("template")?))
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn read_text(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path, e)),
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let Some(text) = read_text(path)? else { return Ok(Value::Null) };
    serde_json::from_str(&text).map_err(|e| Error::format(path, format!("not JSON: {e}")))
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(python::format);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", |value: minijinja::Value| python::string(&value));
    environment.add_filter("upper", |value: minijinja::Value| python::string(&value).to_uppercase());
    environment.add_filter("lower", |value: minijinja::Value| python::string(&value).to_lowercase());
    environment.add_filter("join", python::join);
    environment.add_test("iterable", |value: minijinja::Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refused(message)))
    });
    environment.add_function("strftime_now", |format: String, _: Rest<minijinja::Value>, _: Kwargs| {
        clock::strftime(&format, clock::now())
    });
    environment
}

fn add(environment: &mut Environment<'static>, name: &'static str, source: &str) -> Result<()> {
    let safe_in_sum = Regex::new(r"\|\s*safe\s*\+|\+[^|{}]*\|\s*safe\b").expect("a valid pattern");
    if safe_in_sum.is_match(source) {
        environment.add_filter("safe", |_: minijinja::Value| -> Result<String, minijinja::Error> {
            let why = "`+` after `safe` makes Python escape the rest as HTML, which is not done here";
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
    }
    environment.add_template_owned(name, without_generation_marks(source)).map_err(|e| failure(&e))
}

/// `{% generation %}` marks the assistant's words for training; here it is a block that is always shown.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag[2..].find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let body = &tag[2..end];
        let word = body.trim_start_matches(['-', '+']).trim_end_matches('-').trim();
        match word {
            "generation" => out.push_str(&format!("{{%{}%}}", body.replace("generation", "if true"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", body.replace("endgeneration", "endif"))),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

/// What a template said no with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

fn failure(error: &minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(Refused(message)) = inner.downcast_ref() {
            return Error::InvalidArgument(format!("the chat template refuses these messages: {message}"));
        }
        source = inner.source();
    }
    let line = error.line().map(|line| format!(", line {line}")).unwrap_or_default();
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    Error::Unsupported(format!(
        "the chat template{line}: {}{detail}; give another one, or the prompt as text",
        error.kind()
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: &[Message]) -> Result<String> {
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(messages, &options)
    }

    fn hi() -> Message {
        Message::new("user", "hi")
    }

    #[test]
    fn a_template_renders_as_in_python() {
        let source = "{{ bos_token }}\n{%- for m in messages %}\n    {% generation %}\n[{{ m.role|upper }}]{{ m['content'].strip() }}\n    {%- endgeneration %}\n{% endfor %}\n{{ none }} {{ true }} {{ [1, 'it\\'s', 2.0] }} {{ {'a': 'b'} }} {{ missing }}|";
        let text = render(source, &[Message::new("user", " hi "), Message::new("assistant", "yo")]).unwrap();
        assert_eq!(text, "<s>[USER]hi[ASSISTANT]yoNone True [1, \"it's\", 2.0] {'a': 'b'} |");
    }

    #[test]
    fn a_template_that_never_looks_at_the_messages_is_known() {
        let ignores = |source: &str| ChatTemplate::new(source, None, None).unwrap().ignores_messages();
        assert!(ignores("Hi"));
        assert!(ignores("{% for m in messages %}x{% endfor %}"));
        assert!(!ignores("{{ messages[0].content }}"));
        assert!(!ignores("{{ raise_exception('needs a system message') }}"));
    }

    #[test]
    fn a_refusal_is_the_callers_fault_and_a_broken_template_is_not() {
        let refusal = render("{{ raise_exception('roles must alternate') }}", &[hi()]).unwrap_err();
        assert_eq!(refusal.to_string(), "the chat template refuses these messages: roles must alternate");
        assert!(matches!(refusal, Error::InvalidArgument(_)));
        for broken in
            ["{% if %}", "{%}", "{%", "{{ messages.nothing.more }}", "{{ x(1) }}", "{% frobnicate %}"]
        {
            let error = render(broken, &[hi()]).unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
            assert!(error.to_string().contains("line 1"), "{error}");
        }
    }

    #[test]
    fn what_python_would_escape_is_refused() {
        let error = render("{{ 'a'|safe + '<' }}", &[hi()]).unwrap_err();
        assert!(error.to_string().contains("HTML"), "{error}");
        assert_eq!(render("{{ ('<' | tojson | safe) ~ '<' }}", &[hi()]).unwrap(), "\"<\"<");
        assert_eq!(
            render("{{ ['a', true, none]|join(',') }}{{ ['x']|upper }}", &[hi()]).unwrap(),
            "a,True,None['X']"
        );
        assert_eq!(render("{{ none is iterable }}{{ 'a' is iterable }}", &[hi()]).unwrap(), "FalseTrue");
    }

    #[test]
    fn a_panic_below_is_an_error() {
        // A bug of minijinja 2.24; where a later one has it fixed, this prints nothing.
        match render("{% for x in [][::-1] %}{{ x }}{% endfor %}", &[hi()]) {
            Ok(text) => assert_eq!(text, ""),
            Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
        }
        assert!(matches!(render("x", &[]), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn an_endless_template_ends() {
        let source = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        assert!(render(source, &[hi()]).is_err());
    }

    #[test]
    fn messages_are_read_in_every_shape_of_the_api() {
        let read = |value: Value| serde_json::from_value::<Message>(value);
        let call =
            json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
        let message = read(json!({"role": "assistant", "content": null, "tool_calls": [call]})).unwrap();
        assert_eq!(message.content, "");
        let text = render("{{ messages[0].tool_calls[0].function.arguments.x }}", &[message]).unwrap();
        assert_eq!(text, "1");
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(read(json!({"role": "user", "content": parts})).unwrap().content, "ab");
        let image = json!([{"type": "image_url", "image_url": {}}]);
        assert!(
            read(json!({"role": "user", "content": image})).unwrap_err().to_string().contains("image_url")
        );
        assert!(read(json!({"content": "x"})).is_err());
    }

    #[test]
    fn a_folder_gives_its_template_and_tokens() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ChatTemplate::from_dir(dir.path()).unwrap().is_none());
        let config = json!({
            "bos_token": {"content": "<b>"},
            "chat_template": [
                {"name": "tool_use", "template": "tools"},
                {"name": "default", "template": "{{ bos_token }}default"}
            ]
        });
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let template = ChatTemplate::from_dir(dir.path()).unwrap().unwrap();
        assert_eq!(template.render(&[hi()], &RenderOptions::default()).unwrap(), "<b>default");
        let options = RenderOptions { tools: Some(json!([{}])), ..RenderOptions::default() };
        assert_eq!(template.render(&[hi()], &options).unwrap(), "tools");
        std::fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
        assert_eq!(ChatTemplate::from_dir(dir.path()).unwrap().unwrap().source(), "file");
    }
}
