//! Chat templates of some sixty models against Python's jinja2, set up as transformers sets it up.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod reference;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};
use specgen::chat::{ChatTemplate, Message, RenderOptions};

/// Where we refuse and Python renders, or the reverse: template, conversation (`*` for all), why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "*",
        "walks `tools` even where there are none; ours is an empty walk",
    ),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "*", "the same"),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "*", "the same"),
    ("llama-cpp-deepseek-r1", "*", "prints a generator as JSON, which Python refuses; ours is its items"),
    ("meetkai-functionary-medium-v3.1", "*", "`safe` with `+`: Python escapes the tools as HTML; refused"),
];

struct Conversation {
    name: &'static str,
    messages: Vec<Message>,
    options: RenderOptions,
}

fn message(value: Value) -> Message {
    serde_json::from_value(value).unwrap()
}

fn conversations() -> Vec<Conversation> {
    let system = || Message::new("system", "You are terse.");
    let user = |text: &str| Message::new("user", text);
    let assistant = |text: &str| Message::new("assistant", text);
    let tools = json!([{
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"here\" in é.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City"},
                    "days": {"type": "integer", "minimum": 0.5, "enum": [1, 2]},
                    "deep": {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}
                },
                "required": ["city"]
            }
        }
    }]);
    let arguments =
        json!({"city": "São Paulo", "days": 2, "exact": true, "note": null, "list": [1.5, "a'b"]});
    let call = json!({"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": arguments}});
    let called = message(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
    let said_and_called =
        message(json!({"role": "assistant", "content": "Let me see.", "tool_calls": [call, call]}));
    let result = message(json!({
        "role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{\"sky\": \"clear\"}"
    }));
    let thought =
        message(json!({"role": "assistant", "content": "4", "reasoning_content": "2 and 2\nmake 4"}));
    let options = |prompt: bool, tools: Option<&Value>, extra: Value| RenderOptions {
        add_generation_prompt: prompt,
        tools: tools.cloned(),
        extra: serde_json::from_value::<Map<String, Value>>(extra).unwrap(),
    };
    let none = || json!({});
    let odd = "  <b>\"it's\" {{ x }} {% if %} \\n \u{1F600}\u{301} </s> <think>a</think>\r\n\tline\n\n";
    let one = |name, messages, options| Conversation { name, messages, options };
    vec![
        one("user", vec![user("Hi!")], options(true, None, none())),
        one("user, no prompt", vec![user("Hi!")], options(false, None, none())),
        one("turns", vec![system(), user("1+1?"), assistant("2"), user("2+2?")], options(true, None, none())),
        one("ended", vec![system(), user("1+1?"), assistant("2")], options(false, None, none())),
        one("odd text", vec![system(), user(odd), assistant(odd), user(odd)], options(true, None, none())),
        one("empty", vec![system(), user("")], options(true, None, none())),
        one("wrong order", vec![assistant("2"), assistant("3"), system()], options(true, None, none())),
        one("unknown role", vec![user("a"), Message::new("critic", "b")], options(true, None, none())),
        one("tools", vec![user("Weather?")], options(true, Some(&tools), none())),
        one("system and tools", vec![system(), user("Weather?")], options(true, Some(&tools), none())),
        one(
            "tool call",
            vec![system(), user("Weather?"), called.clone(), result.clone()],
            options(true, Some(&tools), none()),
        ),
        one(
            "tool calls and answer",
            vec![
                user("Weather?"),
                said_and_called,
                result.clone(),
                result,
                assistant("Clear."),
                user("Thanks"),
            ],
            options(true, Some(&tools), none()),
        ),
        one("ends in a call", vec![user("Weather?"), called], options(false, Some(&tools), none())),
        one("thought", vec![user("2+2?"), thought.clone(), user("Sure?")], options(true, None, none())),
        one("thought last", vec![user("2+2?"), thought], options(false, None, none())),
        one(
            "thinking off",
            vec![system(), user("2+2?")],
            options(
                true,
                None,
                json!({"enable_thinking": false, "thinking": false, "reasoning_effort": "low"}),
            ),
        ),
        one(
            "thinking on",
            vec![user("2+2?"), assistant("<think>\nhm\n</think>\n\n4"), user("Sure?")],
            options(
                true,
                None,
                json!({"enable_thinking": true, "thinking": true, "date_string": "1 Jan 2030"}),
            ),
        ),
    ]
}

#[test]
fn templates_render_as_in_python() {
    let (folder, jinja2) = match (reference::llama_cpp_models(), reference::python_with_jinja2()) {
        (Ok(folder), Ok(jinja2)) => (folder.join("templates"), jinja2),
        (Err(reason), _) | (_, Err(reason)) => return specgen_tests::real::skipped(&reason),
    };
    let mut templates: Vec<(String, String)> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap().strip_suffix(".jinja")?.to_owned();
            Some((name, std::fs::read_to_string(entry.path()).unwrap()))
        })
        .collect();
    templates.sort();
    assert!(templates.len() >= 60, "{} templates", templates.len());
    let conversations = conversations();

    let jobs: Vec<Value> = templates
        .iter()
        .flat_map(|(_, template)| {
            conversations.iter().map(move |conversation| {
                let mut context = conversation.options.extra.clone();
                context.insert("messages".into(), serde_json::to_value(&conversation.messages).unwrap());
                context.insert("tools".into(), conversation.options.tools.clone().unwrap_or(Value::Null));
                context.insert("documents".into(), Value::Null);
                let prompt = conversation.options.add_generation_prompt;
                context.insert("add_generation_prompt".into(), prompt.into());
                context.insert("bos_token".into(), "<s>".into());
                context.insert("eos_token".into(), "</s>".into());
                json!({"template": template, "context": context})
            })
        })
        .collect();
    let expected = in_python(&jinja2, &jobs);

    let (mut same, mut refused, mut failures) = (0, 0, Vec::new());
    let mut used = BTreeSet::new();
    let mut expected = expected.iter();
    for (name, source) in &templates {
        let template = ChatTemplate::new(source, Some("<s>"), Some("</s>"));
        for conversation in &conversations {
            let expected = expected.next().unwrap();
            let excepted = EXCEPTIONS.iter().position(|(template, which, _)| {
                template == name && ["*", conversation.name].contains(which)
            });
            let found = match &template {
                Ok(template) => {
                    template.render(&conversation.messages, &conversation.options).map_err(|e| e.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let what = match (expected["text"].as_str(), found) {
                (Some(expected), Ok(found)) if expected == found => {
                    same += 1;
                    continue;
                }
                (None, Err(_)) => {
                    refused += 1;
                    continue;
                }
                // A text that differs is never excused.
                (Some(expected), Ok(found)) => difference(expected, &found),
                (Some(_), Err(_)) | (None, Ok(_)) if excepted.is_some() => {
                    used.extend(excepted);
                    continue;
                }
                (Some(_), Err(error)) => format!("refused: {error}"),
                (None, Ok(_)) => format!("rendered, but Python says {}", expected["error"]),
            };
            failures.push(format!("{name}, {}: {what}", conversation.name));
        }
    }
    eprintln!("{same} texts are the same, {refused} are refused by both, of {} templates", templates.len());
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
    assert!(same > 10 * templates.len());
    assert_eq!(used.len(), EXCEPTIONS.len(), "an exception is no longer needed");
}

fn difference(expected: &str, found: &str) -> String {
    let at = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
    let context = |text: &str| text.chars().skip(at.saturating_sub(30)).take(90).collect::<String>();
    format!("at {at}\n  python {:?}\n  ours   {:?}", context(expected), context(found))
}

/// Renders in Python, with `jinja2` from that folder.
fn in_python(jinja2: &std::path::Path, jobs: &[Value]) -> Vec<Value> {
    let mut python = Command::new("python3")
        .args(["-c", include_str!("reference/render.py")])
        .env("PYTHONPATH", jinja2)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = python.stdin.take().unwrap();
    let input = serde_json::to_vec(jobs).unwrap();
    // Python reads all of it before it writes, so this cannot block for ever.
    stdin.write_all(&input).unwrap();
    drop(stdin);
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results.len(), jobs.len());
    results
}
