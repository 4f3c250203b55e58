//! Every decision of slowmo as pure state machines and pure arithmetic.
//!
//! Nothing here touches a socket, a clock, a thread or a global: time comes in as
//! [`time::Instant`], randomness as a seeded generator, and effects go out as data. So the same
//! code runs in production and, far faster than real time, in a simulator.
//!
//! | module | decides |
//! |---|---|
//! | [`ident`], [`time`] | identities, counters, instants |
//! | [`algorithm`] | what the user asked for: base algorithm, outer optimizer, frequencies |
//! | [`schedule`] | what fires at inner step `n` |
//! | [`view`], [`shards`] | who takes part, who holds which shard |
//! | [`model`] | how large a model is |
//! | [`topology`], [`push_sum`] | who gossips with whom, and the push-sum weights |
//! | [`encoding`] | values in fewer bytes, and what rounding owes |
//! | `outer` | the outer optimizers, element by element |
//! | [`liveness`] | which watched nodes are alive |
//! | [`membership`], [`coordinator`], [`gossip_peer`], [`aggregator`] | the machines behind the actors of the same names |
//! | [`node`] | what the machines of one node tell each other, and what becomes of the data that they move |
//! | [`checkpoint`] | when decided state is kept for good, and who writes which part |
//! | [`trace`] | nothing: what happened in a run, as events that invariants judge |
//! | [`planted`] | bugs on purpose, for tests only |
//! | `simulation` | nothing: what simulations run on, for tests only |
//! | [`wire`] | control frames and stream headers, bounded decoding |
#![deny(missing_docs)]

pub mod aggregator;
pub mod algorithm;
pub mod checkpoint;
pub mod coordinator;
pub mod encoding;
pub mod forks;
pub mod gossip_peer;
pub mod ident;
pub mod liveness;
pub mod machine;
pub mod mean;
pub mod membership;
pub mod model;
pub mod node;
pub mod outer;
pub mod planted;
pub mod policy;
pub mod push_sum;
pub mod real;
pub mod sampler;
pub mod schedule;
pub mod shards;
#[cfg(any(test, feature = "testing"))]
pub mod simulation;
pub mod time;
pub mod topology;
pub mod trace;
pub mod view;
pub mod wire;
