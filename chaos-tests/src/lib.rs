//! Tests of the whole system: reference trajectories through real runtimes, fault injection and
//! simulation.
//!
//! | module | does |
//! |---|---|
//! | [`conformance`] | runs recorded trajectories through real runtimes and compares every value |
//! | [`model`] | explores every state of small clusters with the product's own rules |
//! | [`invariants`] | judges traces by the properties that must always hold |
//! | [`sim`] | simulates whole nodes in virtual time: all machines, a network, seeded faults |
//! | [`flood`] | floods a node with packets of strangers, and measures nodes that train meanwhile |
//! | [`hostile`] | trains among honest nodes with a member that lies |
//! | [`fuzz`] | feeds any bytes to every decoder |
//! | [`processes`] | scenarios, links, measures and reports of chaos on real processes |
//! | [`random`] | draws random numbers from one seed |
//! | [`cluster`] | runs several real nodes in one process, over QUIC on loopback or in memory |
//!
//! The command `slowmo` builds this package without its feature `simulation`, so no simulator or
//! test entry point ships in it.
#![deny(missing_docs)]

#[cfg(feature = "simulation")]
pub mod cluster;
#[cfg(feature = "simulation")]
pub mod conformance;
#[cfg(feature = "simulation")]
pub mod flood;
#[cfg(feature = "simulation")]
pub mod fuzz;
#[cfg(feature = "simulation")]
pub mod hostile;
pub mod invariants;
#[cfg(feature = "simulation")]
pub mod model;
pub mod processes;
pub mod random;
#[cfg(feature = "simulation")]
pub mod sim;

/// Prints a line on standard output. A closed pipe is no error: nobody reads the line.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        let _nobody_reads = writeln!(std::io::stdout(), $($arguments)*);
    }};
}
