//! Exhaustively searched models of the rules by which a cluster decides. They model the rules, not
//! the product's code.
//!
//! | module | explores |
//! |---|---|
//! | [`round`] | rounds: terms, attempts, votes, views, crashes, wrong verdicts, restarts |
//! | [`bootstrap`] | which process bootstraps a run |
//! | [`histories`] | forks and merging of histories |
//! | [`order`] | which of two histories wins, in isolation |
//!
//! [`check`] runs a search and reports how far it got.

pub mod bootstrap;
pub mod check;
pub mod histories;
pub mod order;
pub mod round;
