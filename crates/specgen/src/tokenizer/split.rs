//! Cuts text into the words that byte-pair merges stay within, in time linear in the text.

use std::ops::Range;

use regex::Regex;

/// What `\s+(?!\S)|\s+` at the end of a pattern means for a match by `\s+` alone: white space before a word
/// leaves its last character to the word. The `regex` crate has no look-ahead, and is linear for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trailing {
    /// The pattern has no such end.
    Whole,
    /// A match that ends in white space gives its last character up, where more text follows.
    LeaveOne,
    /// The same, but a match that ends in a line break came from an earlier alternative and stays whole.
    LeaveOneUnlessNewline,
}

/// One pass over the words so far; each of them is cut further, as if it were the whole text.
pub(super) enum Stage {
    /// Matches are words, and so is what lies between them.
    Matches(Regex, Trailing),
    /// Runs of digits fall into threes from their right end.
    DigitsFromRight,
}

impl Stage {
    /// A pass by `pattern`.
    ///
    /// # Panics
    /// Where the pattern is none; every one is in the table, and a test compiles them all.
    pub(super) fn matches(pattern: &str, trailing: Trailing) -> Self {
        Self::Matches(Regex::new(pattern).expect("the table's patterns compile"), trailing)
    }

    fn cut(&self, text: &str, base: usize, out: &mut Vec<Range<usize>>) {
        let mut push = |from: usize, to: usize| {
            if from < to {
                out.push(base + from..base + to);
            }
        };
        match self {
            Self::Matches(regex, trailing) => {
                let mut done = 0;
                while let Some(found) = regex.find_at(text, done) {
                    if found.is_empty() {
                        // No pattern of the table matches nothing; never loop if one did.
                        break;
                    }
                    push(done, found.start());
                    let kept = keep(found.as_str(), found.end() == text.len(), *trailing);
                    push(found.start(), found.start() + kept);
                    done = found.start() + kept;
                }
                push(done, text.len());
            }
            Self::DigitsFromRight => {
                let mut done = 0;
                while let Some(start) = text[done..].find(char::is_numeric).map(|at| done + at) {
                    push(done, start);
                    let len = text[start..].find(|c: char| !c.is_numeric()).unwrap_or(text.len() - start);
                    let digits = &text[start..start + len];
                    let count = digits.chars().count();
                    let mut from = start;
                    for (index, (at, _)) in digits.char_indices().enumerate() {
                        if index > 0 && (count - index).is_multiple_of(3) {
                            push(from, start + at);
                            from = start + at;
                        }
                    }
                    push(from, start + len);
                    done = start + len;
                }
                push(done, text.len());
            }
        }
    }
}

/// How many bytes of a match are its word.
fn keep(matched: &str, at_end: bool, trailing: Trailing) -> usize {
    let last = matched.chars().next_back().unwrap_or('x');
    let leaves = match trailing {
        Trailing::Whole => false,
        Trailing::LeaveOne => last.is_whitespace(),
        Trailing::LeaveOneUnlessNewline => last.is_whitespace() && last != '\n' && last != '\r',
    };
    let without = matched.len() - last.len_utf8();
    if leaves && !at_end && without > 0 { without } else { matched.len() }
}

/// The words of `text`, in order, none empty, together the whole of it.
pub(super) fn words(stages: &[Stage], text: &str) -> Vec<Range<usize>> {
    let mut words = if text.is_empty() { Vec::new() } else { std::iter::once(0..text.len()).collect() };
    for stage in stages {
        let mut next = Vec::with_capacity(words.len());
        for word in words {
            stage.cut(&text[word.clone()], word.start, &mut next);
        }
        words = next;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut<'a>(stages: &[Stage], text: &'a str) -> Vec<&'a str> {
        words(stages, text).into_iter().map(|word| &text[word]).collect()
    }

    #[test]
    fn white_space_leaves_one_to_the_word() {
        let gpt2 = [Stage::matches(r" ?\p{L}+|\s+", Trailing::LeaveOne)];
        assert_eq!(cut(&gpt2, "a   b \n\nc  "), ["a", "  ", " b", " \n", "\n", "c", "  "]);
        assert_eq!(cut(&gpt2, "\tb"), ["\t", "b"]);
        let newline = [Stage::matches(r" ?\p{L}+|\s*[\r\n]+|\s+", Trailing::LeaveOneUnlessNewline)];
        assert_eq!(cut(&newline, "a   b \n\nc \n  "), ["a", "  ", " b", " \n\n", "c", " \n", "  "]);
        assert_eq!(cut(&newline, "a\u{3000}\u{3000}b"), ["a", "\u{3000}", "\u{3000}", "b"]);
    }

    #[test]
    fn digits_fall_into_threes_from_the_right() {
        let stages = [Stage::DigitsFromRight];
        assert_eq!(cut(&stages, "a1234567b12"), ["a", "1", "234", "567", "b", "12"]);
        assert_eq!(cut(&stages, "123"), ["123"]);
        assert_eq!(cut(&stages, "x"), ["x"]);
    }

    #[test]
    fn stages_see_one_word_at_a_time() {
        let stages = [Stage::matches("[\r\n]", Trailing::Whole), Stage::matches(r"\s+$", Trailing::Whole)];
        assert_eq!(cut(&stages, "a  \nb "), ["a", "  ", "\n", "b", " "]);
    }
}
