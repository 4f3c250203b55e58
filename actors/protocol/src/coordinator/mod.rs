//! The outer round as a state machine: reduce → slow step → publish → prepared → decide → apply.

mod outcome;

pub use outcome::{Outcome, RoundKind, Terms};
