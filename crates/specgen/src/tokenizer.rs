//! Text to token ids and back, and streaming decode.
