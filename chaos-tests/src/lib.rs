//! Tests of the whole system: reference trajectories through real runtimes, fault injection and
//! simulation.
//!
//! | module | does |
//! |---|---|
//! | [`conformance`] | runs recorded trajectories through real runtimes and compares every value |
//! | [`model`] | explores every state of small clusters with the product's own rules |
//! | [`invariants`] | judges traces by the properties that must always hold |
//! | [`sim`] | simulates whole nodes in virtual time: every state machine, a network, seeded faults |
//! | [`flood`] | floods a node with packets of strangers, and measures nodes that train meanwhile |
//! | [`hostile`] | trains among honest nodes with a member that lies |
//! | [`fuzz`] | feeds any bytes to every decoder |
//! | [`processes`] | scenarios, links, measures and reports of chaos on real processes |
//! | [`cluster`] | runs several real nodes in one process, over QUIC on loopback or in memory |
#![deny(missing_docs)]

pub mod cluster;
pub mod conformance;
pub mod flood;
pub mod fuzz;
pub mod hostile;
pub mod invariants;
pub mod model;
pub mod processes;
pub mod sim;
