//! Where a text repeats itself: what followed earlier occurrences of its end.

/// For every token of `text`, the token and how long the text before it agrees with the end of the whole text: the
/// token followed that many of the tokens that now stand last. Latest first; time and memory linear in the text.
///
/// The lengths are those of the Z-function (Gusfield 1997, "Algorithms on Strings, Trees, and Sequences", 1.3) of the
/// text read backwards.
pub(super) fn continuations(text: &[u32]) -> impl Iterator<Item = (u32, usize)> + '_ {
    let len = text.len();
    let back = |i: usize| text[len - 1 - i];
    let mut agreeing = vec![0; len + 1];
    // The stretch `left..right`, counted from the end, that equals the end and reaches furthest back.
    let (mut left, mut right) = (0, 0);
    for i in 1..len {
        let mut known = if i < right { agreeing[i - left].min(right - i) } else { 0 };
        if i + known >= right {
            while i + known < len && back(i + known) == back(known) {
                known += 1;
            }
            (left, right) = (i, i + known);
        }
        agreeing[i] = known;
    }
    (1..=len).map(move |i| (text[len - i], agreeing[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_lengths_are_those_of_comparing_every_pair(text in prop::collection::vec(0_u32..3, 0..60)) {
            let naive = (0..text.len()).rev().map(|at| {
                let agree = text[..at].iter().rev().zip(text.iter().rev()).take_while(|(a, b)| a == b);
                (text[at], agree.count())
            });
            let (naive, found): (Vec<_>, Vec<_>) = (naive.collect(), continuations(&text).collect());
            prop_assert_eq!(found, naive);
        }
    }

    /// A text of one token is the worst case of a naive search.
    #[test]
    fn a_long_run_takes_no_time() {
        let text = vec![7; 1_000_000];
        assert_eq!(continuations(&text).next(), Some((7, text.len() - 1)));
    }
}
