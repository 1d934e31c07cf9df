//! A trace as a page: the text, each token in the colour of who proposed it.

use anyhow::Result;
use serde::Serialize;
use specgen::{draft::Source, tokenizer::DecodeStream};

use super::{Drafted, Line, Traced};
use crate::{page::Page, tokens::JsonText};

const TEMPLATE: &str = include_str!("page.html");

/// A round as it is drawn: what stands of the draft, what fell, and the target's own.
#[derive(Serialize)]
struct DrawnRound<'a> {
    accepted: Vec<Guess>,
    rejected: Vec<Guess>,
    own: Vec<DrawnToken>,
    line: Line<'a>,
}

/// A drafted token, and where it stood in its draft.
#[derive(Serialize)]
struct Guess {
    drawn: DrawnToken,
    source: &'static str,
    position: usize,
}

#[derive(Serialize)]
struct DrawnToken {
    id: u32,
    /// Its text, cut at line ends so that these can be shown; empty where it completes no character.
    lines: Vec<String>,
}

impl DrawnToken {
    fn new(id: u32, text: &str) -> Self {
        let lines = if text.is_empty() { Vec::new() } else { text.split('\n').map(str::to_owned).collect() };
        Self { id, lines }
    }

    /// Adds what is left at the end of the text.
    fn end(&mut self, rest: &str) {
        match self.lines.last_mut() {
            Some(line) => line.push_str(rest),
            None => *self = Self::new(self.id, rest),
        }
    }
}

pub(super) fn page(traced: &Traced<'_, '_>) -> Result<String> {
    let (tokenizer, prompt) = (traced.engine.tokenizer(), traced.generation.prompt_tokens());
    let mut stream = tokenizer.map(|tokenizer| tokenizer.stream(false));
    let mut rounds: Vec<_> = traced
        .generation
        .records()
        .iter()
        .enumerate()
        .map(|(i, record)| drawn(traced.line(i, record), &mut stream))
        .collect();
    // Half a character at the end of the text.
    let rest = stream.map(|mut stream| stream.finish()).unwrap_or_default();
    if let Some(round) = rounds.last_mut() {
        let accepted = round.accepted.last_mut().map(|guess| &mut guess.drawn);
        round.own.last_mut().or(accepted).into_iter().for_each(|last| last.end(&rest));
    }
    Page::new(TEMPLATE)?.render(minijinja::context! {
        rounds,
        totals => traced.totals(),
        tokens_per_round => traced.generation.stats().mean_accepted_len(),
        sources => sources(traced),
        longest => traced.generation.records().iter().map(|record| record.drafted.len()).max(),
        prompt => tokenizer.map(|tokenizer| tokenizer.decode(prompt, false)),
        version => env!("CARGO_PKG_VERSION"),
    })
}

/// The names of those who guessed anything, in a fixed order.
fn sources(traced: &Traced<'_, '_>) -> Vec<&'static str> {
    let records = traced.generation.records();
    let has_guessed = |source: &Source| records.iter().any(|record| record.sources.contains(source));
    Source::ALL.into_iter().filter(has_guessed).map(Source::name).collect()
}

fn drawn<'a>(line: Line<'a>, stream: &mut Option<DecodeStream>) -> DrawnRound<'a> {
    let in_text = |token: &JsonText| match stream {
        Some(stream) => DrawnToken::new(token.id, &stream.push(token.id)),
        None => DrawnToken::new(token.id, &token.text),
    };
    let mut committed: Vec<DrawnToken> = line.committed.iter().map(in_text).collect();
    let own = committed.split_off(line.accepted);
    let stand = line.drafted.iter().filter(|drafted| drafted.accepted);
    let accepted = committed.into_iter().zip(stand);
    let accepted =
        accepted.map(|(drawn, &Drafted { source, position, .. })| Guess { drawn, source, position });
    let alone = |Drafted { token, source, position, .. }: &Drafted| Guess {
        drawn: DrawnToken::new(token.id, &token.text),
        source,
        position: *position,
    };
    let fell = line.drafted.iter().filter(|drafted| !drafted.accepted);
    DrawnRound { accepted: accepted.collect(), rejected: fell.map(alone).collect(), own, line }
}
