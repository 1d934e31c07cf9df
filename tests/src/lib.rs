//! Shared pieces of the test suites.

pub mod enumeration;
pub mod faults;
pub mod toy;
