//! Fetching models from servers that behave, misbehave and vanish, all on this machine.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod hub;
mod machine;
#[cfg(unix)]
mod pip;
mod place;
mod plain;
mod server;
