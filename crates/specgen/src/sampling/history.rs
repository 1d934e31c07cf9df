//! The tokens before the one being sampled, counted, for the penalties.

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    output: Vec<u32>,
    counts: HashMap<u32, Counts>,
}

impl History {
    /// A history of `prompt` and no output.
    pub fn new(prompt: &[u32]) -> Self {
        let mut history = Self::default();
        for &id in prompt {
            history.counts.entry(id).or_default().prompt += 1;
        }
        history
    }

    /// Appends a token to the output.
    pub fn push(&mut self, id: u32) {
        self.output.push(id);
        self.counts.entry(id).or_default().output += 1;
    }

    /// Takes the last token off the output and returns it; `None` if there is none. The prompt stays.
    pub fn pop(&mut self) -> Option<u32> {
        let id = self.output.pop()?;
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
        while self.output.len() > len {
            self.pop();
        }
    }

    /// The output so far.
    pub fn output(&self) -> &[u32] {
        &self.output
    }

    /// Number of output tokens: the position, in the output, of the token to come.
    pub fn num_output(&self) -> usize {
        self.output.len()
    }

    /// Every token that has occurred, in no particular order.
    pub fn counts(&self) -> impl Iterator<Item = (u32, Counts)> + '_ {
        self.counts.iter().map(|(&id, &counts)| (id, counts))
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
}
