//! Crashes at every phase of a round: a node ends when it is about to send its k-th message of a
//! kind, for every kind and every k that such a round has. Whatever happens, parameters, anchor and
//! momentum of every node are, bit for bit, what one process computes from the recorded outcomes,
//! and no round has two outcomes.
//!
//! | file | holds |
//! |---|---|
//! | `drill` | a cluster in this process whose nodes crash, are cut off, come and go |
//! | `nodes` | its nodes |
//! | `points` | the phases: what a node is about to send, and the traps set there |
//! | `book` | the recorded outcomes, and the single process that follows them |
//! | the others | one flow each |

mod arrivals;
mod book;
mod crowds;
mod deaths;
mod departures;
mod drill;
mod nodes;
mod points;
mod returns;
mod scale;
mod stragglers;
