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
//! | `flows` | what the cluster does in the round in which a node fails, one function each |

mod book;
mod drill;
mod flows;
mod nodes;
mod points;
