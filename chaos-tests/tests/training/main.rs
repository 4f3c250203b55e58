//! Training jobs on several real nodes in one process: the algorithm's numbers, determinism,
//! workers, and what they are told when something is wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bootstrap;
mod buffers;
mod changing_settings;
mod determinism;
mod encoded;
mod error_chains;
mod halves;
mod hostile;
mod joiner_buffers;
mod joining;
mod killed;
mod large;
mod learning_rates;
mod leaving;
mod liars;
mod lost_peers;
mod lying_members;
mod mixed_schedules;
mod overlapped;
mod phases;
mod recorded;
mod resuming;
mod rounds;
mod special_cases;
mod stragglers;
mod support;
mod workers;
