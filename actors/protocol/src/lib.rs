//! All decision logic of slowmo, as pure state machines and pure arithmetic.
//!
//! Nothing here touches a socket, a clock, a thread or a global: time comes in as
//! [`time::Instant`], randomness as a seeded generator, and effects go out as data. The same code
//! therefore runs in production and, far faster than real time, in a simulator.
//!
//! | module | is for |
//! |---|---|
//! | [`ident`], [`time`] | identities, counters, instants |
//! | [`algorithm`] | the user's settings: base algorithm, outer optimizer, frequencies |
//! | [`changeable`] | the settings that may change in a running job |
//! | [`schedule`] | which exchanges are due at inner step `n` |
//! | [`view`], [`shards`] | the members, and which of them hold which shard |
//! | [`model`] | the size of a model |
//! | [`topology`], [`push_sum`] | the gossip graph and the push-sum weights |
//! | [`half`] | values of 16 bits, and what rounding takes from float32 |
//! | [`encoding`] | values in fewer bytes, and the residual of rounding |
//! | `outer` | the outer optimizers, element by element |
//! | [`published`] | digests and signatures of the values that owners publish |
//! | [`sound`] | which values and push-sum weights are sent and accepted |
//! | [`liveness`] | deciding which nodes are alive |
//! | [`membership`], [`coordinator`], [`gossip_peer`], [`aggregator`] | the state machines |
//! | [`node`] | messages between the machines of one node, and the data that they move |
//! | [`checkpoint`] | when decided state is checkpointed, and which node writes which part |
//! | [`trace`] | the events of a run, which invariants check |
//! | [`planted`] | deliberate bugs, for tests only |
//! | [`printable`] | text of peers and files, made fit for a log and a terminal |
//! | `simulation` | building blocks of simulations, for tests only |
//! | [`wire`] | control frames and stream headers, bounded decoding |
#![deny(missing_docs)]

pub mod aggregator;
pub mod algorithm;
pub mod changeable;
pub mod checkpoint;
pub mod coordinator;
pub mod encoding;
pub mod forks;
pub mod gossip_peer;
pub mod half;
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
pub mod printable;
pub mod published;
pub mod push_sum;
pub mod real;
pub mod sampler;
pub mod schedule;
pub mod shards;
#[cfg(any(test, feature = "testing"))]
pub mod simulation;
pub mod sound;
pub mod time;
pub mod topology;
pub mod trace;
pub mod view;
pub mod wire;
