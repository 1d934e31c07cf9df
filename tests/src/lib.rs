//! Shared pieces of the test suites.

pub mod drafters;
pub mod enumeration;
pub mod faults;
pub mod real;
pub mod statistics;
pub mod tiny;
pub mod toy;
