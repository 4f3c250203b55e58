//! Models of the rules by which a cluster decides, searched exhaustively: of the rules, not of the
//! product's code.
//!
//! | module | explores |
//! |---|---|
//! | [`round`] | rounds: terms, attempts, votes, take-over, views that change, crashes, wrong verdicts, restarts |
//! | [`bootstrap`] | who founds a run |
//! | [`histories`] | forks and how histories come together again |
//! | [`order`] | which of two histories goes on, by itself |
//!
//! [`check`] runs a search and says how far it got.

pub mod bootstrap;
pub mod check;
pub mod histories;
pub mod order;
pub mod round;
