//! Sampling parameters, and the one pure function from logits to a distribution.
