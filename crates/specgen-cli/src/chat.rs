//! `specgen chat`: a conversation, turn by turn. Each turn renders the whole conversation; the session computes only
//! what its cache does not hold.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use specgen::{Error, Session, Stats, chat::Message};

use crate::{
    args::ChatArgs,
    input::{Input, Line},
    interrupt::{Conversation, HOW_TO_LEAVE},
    output::{ClosedOutput, chain, closing_line, counted, note, replay_of, stream},
    progress,
};

const HELP: &str = "\
/stats        what the last answer took, and how full the context is
/reset        forget the conversation, keep the system message
/system TEXT  set the system message; without TEXT, drop it
/help         this list
/quit         leave, as /exit and Ctrl-D do
Ctrl-C stops an answer. A space before / sends the line to the model.";

pub(crate) fn run(args: &ChatArgs) -> Result<ExitCode> {
    let params = args.sampling.params()?;
    let loaded = args.model.load(1, &*progress::reporter(args.text.quiet))?;
    let engine = &loaded.engine;
    engine.need_chat_template().context("cannot chat")?;
    let mut chat = Chat {
        session: engine.session(params)?.with_stops(&args.text.limits.stop),
        max_tokens: args.text.limits.max_tokens,
        system: args.text.system.clone(),
        turns: Vec::new(),
        last: None,
    };

    let mut input = Input::open(loaded.store.options().root.join("chat_history"))?;
    if input.is_terminal() && !args.text.quiet {
        note(format_args!(
            "{}, draft: {}. /help lists the commands, Ctrl-D or /quit leaves.",
            engine.name(),
            loaded.draft
        ));
    }
    // A person's Ctrl-C is about the answer; a program that sends one means the whole.
    let _conversation = input.is_terminal().then(Conversation::begin);
    let mut failed = false;
    loop {
        let line = match input.next_line()? {
            Line::End => break,
            Line::Interrupted => {
                note(format_args!("{HOW_TO_LEAVE}"));
                continue;
            }
            Line::Bad(error) => Err(error),
            Line::Text(line) => Ok(line),
        };
        match line.and_then(|line| chat.obey(&line)) {
            Ok(Next::Line) => {}
            Ok(Next::Exit) => break,
            Err(error) if error.is::<ClosedOutput>() => return Err(error),
            // One turn failed; the conversation before it stands.
            Err(error) => {
                note(format_args!("specgen: error: {}", chain(&error)));
                failed = true;
            }
        }
    }
    // A person has seen the errors and gone on; a script must hear of them.
    let failed = failed && !input.is_terminal();
    input.close();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What comes after a line.
enum Next {
    Line,
    Exit,
}

struct Chat {
    session: Session,
    /// Per answer.
    max_tokens: usize,
    system: Option<String>,
    /// User and assistant in turn.
    turns: Vec<Message>,
    /// What the last answer took, in a line.
    last: Option<Last>,
}

struct Last {
    line: String,
    /// Tokens the conversation has.
    tokens: usize,
}

impl Chat {
    fn obey(&mut self, line: &str) -> Result<Next> {
        let Some(command) = line.strip_prefix('/') else {
            match line.trim() {
                "" => {}
                text => self.say(text)?,
            }
            return Ok(Next::Line);
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match (name, rest.trim()) {
            ("help", "") => note(format_args!("{HELP}")),
            ("exit" | "quit", "") => return Ok(Next::Exit),
            ("stats", "") => self.tell_stats(),
            ("reset", "") => {
                self.turns.clear();
                self.session.reset();
                self.last = None;
                note(format_args!("a new conversation"));
            }
            ("system", "") => {
                self.system = None;
                note(format_args!("no system message"));
            }
            ("system", text) => {
                self.system = Some(text.to_owned());
                note(format_args!("system message set"));
            }
            ("help" | "exit" | "quit" | "stats" | "reset", rest) => {
                note(format_args!("/{name} stands alone; `{rest}` is too much"));
            }
            _ => note(format_args!(
                "unknown command /{name}; /help lists them, a space before / sends it to the model"
            )),
        }
        Ok(Next::Line)
    }

    /// One turn. It joins the conversation only if it was answered.
    fn say(&mut self, text: &str) -> Result<()> {
        let context_len = self.session.engine().context_len();
        let user = Message::new("user", text);
        let system = self.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain(self.turns.iter().cloned()).chain([user.clone()]).collect();

        let engine = self.session.engine().clone();
        let mut generation = self.session.generate(&messages[..], self.max_tokens).map_err(explain)?;
        let answer = stream(&mut generation, true)?;
        let stats = generation.stats();
        let line = closing_line(stats, replay_of(&generation, &engine), answer.ending);
        self.last = Some(Last { line, tokens: total(stats) });

        if total(stats) >= context_len {
            note(format_args!(
                "the context of {context_len} tokens is full; /reset starts a new conversation"
            ));
        }
        // An answer stopped before its first word would teach the model to say nothing.
        if !(answer.is_interrupted() && answer.text.is_empty()) {
            self.turns.extend([user, Message::new("assistant", answer.text)]);
        }
        Ok(())
    }

    fn tell_stats(&self) {
        match &self.last {
            None => note(format_args!("no answer yet")),
            Some(Last { line, tokens }) => note(format_args!(
                "{line}\n{}, context {tokens} of {}",
                counted(self.turns.len() / 2, "turn"),
                counted(self.session.engine().context_len(), "token"),
            )),
        }
    }
}

fn total(stats: &Stats) -> usize {
    stats.prompt_tokens + stats.generated_tokens
}

/// A prompt that is too long is, here, a conversation that has become so.
fn explain(error: Error) -> anyhow::Error {
    match error {
        Error::ContextOverflow { len, max } => anyhow::anyhow!(
            "the conversation has {len} tokens with this turn, but the context holds {max}; \
             /reset starts a new one, --context N makes room"
        ),
        other => other.into(),
    }
}
