//! Drafters: guesses at what comes next. A bad guess costs time, never correctness.
