//! The tokens before the one being sampled, for all that looks back: counted for the penalties, in order for the bans.

use std::collections::HashMap;

/// How often a token has occurred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the prompt.
    pub prompt: u32,
    /// In the output.
    pub output: u32,
}

/// Prompt and output tokens with their counts, kept up to date token by token.
///
/// The last committed token belongs to it exactly once, whether or not the model has been fed with it. A draft
/// position is scored by pushing the drafted tokens before it and taking them off again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    tokens: Vec<u32>,
    prompt_len: usize,
    counts: HashMap<u32, Counts>,
    surprises: Vec<Surprise>,
}

/// What the output tokens up to one of them told, of those whose distribution is known.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Surprise {
    /// The length of the history with that token.
    len: usize,
    /// The sum of `-log2 p(token)`.
    bits: f64,
}

impl History {
    /// A history of `prompt` and no output.
    pub fn new(prompt: &[u32]) -> Self {
        let mut history = Self { tokens: prompt.to_vec(), prompt_len: prompt.len(), ..Self::default() };
        for &id in prompt {
            history.counts.entry(id).or_default().prompt += 1;
        }
        history
    }

    /// Appends a token to the output.
    pub fn push(&mut self, id: u32) {
        self.tokens.push(id);
        self.counts.entry(id).or_default().output += 1;
    }

    /// Appends a token whose probability was `exp(ln_p)` where it was drawn or verified, and remembers how much of a
    /// surprise that was: what mirostat steers by.
    pub fn push_drawn(&mut self, id: u32, ln_p: f32) {
        self.push(id);
        let bits = self.surprise().1 - f64::from(ln_p) / std::f64::consts::LN_2;
        self.surprises.push(Surprise { len: self.tokens.len(), bits });
    }

    /// Takes the last token off the output and returns it; `None` if there is none. The prompt stays.
    pub fn pop(&mut self) -> Option<u32> {
        if self.num_output() == 0 {
            return None;
        }
        self.surprises.pop_if(|surprise| surprise.len == self.tokens.len());
        let id = self.tokens.pop()?;
        if let Some(counts) = self.counts.get_mut(&id) {
            counts.output -= 1;
            if *counts == Counts::default() {
                self.counts.remove(&id);
            }
        }
        Some(id)
    }

    /// Shortens the output to its first `len` tokens; does nothing if it is not longer.
    pub fn truncate_output(&mut self, len: usize) {
        while self.num_output() > len {
            self.pop();
        }
    }

    /// Prompt and output.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prompt_len]
    }

    /// The output so far.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }

    /// Number of output tokens: the position, in the output, of the token to come.
    pub fn num_output(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Every token that has occurred, in no particular order.
    pub fn counts(&self) -> impl Iterator<Item = (u32, Counts)> + '_ {
        self.counts.iter().map(|(&id, &counts)| (id, counts))
    }

    /// As [`History::counts`], of the last `len` tokens only.
    pub fn counts_of_last(&self, len: usize) -> impl Iterator<Item = (u32, Counts)> + use<> {
        let mut counts = HashMap::<u32, Counts>::new();
        for at in self.tokens.len().saturating_sub(len)..self.tokens.len() {
            let counts = counts.entry(self.tokens[at]).or_default();
            *(if at < self.prompt_len { &mut counts.prompt } else { &mut counts.output }) += 1;
        }
        counts.into_iter()
    }

    /// Of how many output tokens the surprise is known, and its sum in bits.
    pub(super) fn surprise(&self) -> (usize, f64) {
        (self.surprises.len(), self.surprises.last().map_or(0.0, |surprise| surprise.bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recount(prompt: &[u32], output: &[u32]) -> History {
        let mut history = History::new(prompt);
        output.iter().for_each(|&id| history.push(id));
        history
    }

    proptest! {
        /// Any mix of pushes, pops and cuts leaves what counting afresh would give.
        #[test]
        fn counts_follow_the_output(
            prompt in prop::collection::vec(0_u32..6, 0..10),
            steps in prop::collection::vec((0_u32..4, 0_u32..6), 0..40),
        ) {
            let (mut history, mut output) = (History::new(&prompt), Vec::new());
            for (step, value) in steps {
                match step {
                    0 => prop_assert_eq!(history.pop(), output.pop()),
                    1 => {
                        history.truncate_output(value as usize);
                        output.truncate(value as usize);
                    }
                    _ => {
                        history.push(value);
                        output.push(value);
                    }
                }
                prop_assert_eq!(&history, &recount(&prompt, &output));
                prop_assert_eq!(history.num_output(), output.len());
                prop_assert_eq!((history.prompt(), history.output()), (&prompt[..], &output[..]));
                for (id, counts) in history.counts() {
                    let count = |tokens: &[u32]| tokens.iter().filter(|&&other| other == id).count() as u32;
                    prop_assert_eq!(counts, Counts { prompt: count(&prompt), output: count(&output) });
                }
            }
        }
    }

    #[test]
    fn the_prompt_cannot_be_popped() {
        let mut history = History::new(&[1, 2]);
        assert_eq!(history.pop(), None);
        assert_eq!(history, History::new(&[1, 2]));
    }

    #[test]
    fn a_window_counts_its_own_tokens() {
        let history = recount(&[1, 2, 1], &[1, 2]);
        let counts = |len| history.counts_of_last(len).collect::<HashMap<_, _>>();
        let of = |prompt, output| Counts { prompt, output };
        assert_eq!(counts(0), HashMap::new());
        assert_eq!(counts(1), HashMap::from([(2, of(0, 1))]));
        assert_eq!(counts(3), HashMap::from([(1, of(1, 1)), (2, of(0, 1))]));
        assert_eq!(counts(5), history.counts().collect());
        assert_eq!(counts(usize::MAX), counts(5));
    }

    /// Surprises come and go with their tokens, whatever else is pushed between.
    #[test]
    fn surprises_follow_the_output() {
        let mut history = History::new(&[7]);
        history.push_drawn(0, 0.5_f32.ln());
        history.push(1);
        history.push_drawn(2, 0.25_f32.ln());
        history.push(0);
        let (known, bits) = history.surprise();
        assert!(known == 2 && (bits - 3.0).abs() < 1e-6, "{known} {bits}");
        history.pop();
        assert_eq!(history.surprise().0, 2);
        history.truncate_output(2);
        let (known, bits) = history.surprise();
        assert!(known == 1 && (bits - 1.0).abs() < 1e-6, "{known} {bits}");
        history.truncate_output(0);
        assert_eq!(history, History::new(&[7]));
    }
}
