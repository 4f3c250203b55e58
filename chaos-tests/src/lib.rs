//! Tests of the whole: reference trajectories through real runtimes (fault injection and simulation
//! join them here).
//!
//! | module | does |
//! |---|---|
//! | [`conformance`] | runs recorded trajectories through real runtimes and compares every value |
//! | [`model`] | explores every state of small clusters with the product's own rules |
//! | [`invariants`] | what must hold, whatever happens: judges traces |
//! | [`sim`] | whole nodes in virtual time: every machine, a network, seeded faults |
//! | [`fuzz`] | every decoder, for any bytes |
//! | [`processes`] | scenarios, links, measures and reports of chaos on real processes |
//! | `virtual_cluster` | real nodes in one process and in simulated time, seeded faults (feature `virtual-time`) |
//! | [`cluster`] | several real nodes in one process, over QUIC on loopback or in memory |
#![deny(missing_docs)]

pub mod cluster;
pub mod conformance;
pub mod fuzz;
pub mod invariants;
pub mod model;
pub mod processes;
pub mod sim;
#[cfg(feature = "virtual-time")]
pub mod virtual_cluster;
