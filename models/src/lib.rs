//! Exhaustively searched models of the rules by which a cluster decides. They model the rules, not
//! the product's code.
//!
//! | module | explores |
//! |---|---|
//! | [`bootstrap`] | which process bootstraps a run |
//! | [`histories`] | forks and merging of histories |
//! | [`order`] | which of two histories wins, in isolation |
//!
//! Rounds have no model here: `chaos-tests/src/model` searches the product's own coordinator.
//! [`check`] runs these searches, and that one.

pub mod bootstrap;
pub mod check;
pub mod histories;
pub mod order;
