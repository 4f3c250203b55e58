//! A chaos run: node processes behind emulated links, the faults of a scenario, and the resulting
//! trace.
//!
//! | file | does |
//! |---|---|
//! | `cluster` | the processes, which announce the link emulator's addresses and write traces |
//! | `disks` | the folders for checkpoints, and full disks |
//! | `perform` | carries out a schedule |
//! | `sample` | memory and open descriptors of processes |
//! | `folder` | the output of a run |
//!
//! Starts and signals processes, binds loopback sockets, writes into the folder of the run.

mod cluster;
mod disks;
mod folder;
mod perform;
mod sample;

pub use cluster::Orders;
pub use folder::{Folder, Part};
pub use perform::{Outcome, Progress, run};

use crate::processes::GroupError;
use nix::sys::signal::Signal;
use slowmo_chaos::processes::collect::CollectError;
use slowmo_chaos::processes::relay::RelayError;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that the bootstrap members may take until all of them have trained together.
pub const BOOTSTRAP_MAX: Duration = Duration::from_secs(60);

/// Reasons why a run failed. No process is left, and everything recorded until then is kept.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// The emulated links failed.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The processes failed.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The traces cannot be merged.
    #[error(transparent)]
    Trace(#[from] CollectError),
    /// Another file of the run cannot be written.
    #[error("cannot write {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not part of a chaos run.
    #[error("{} is not a folder of a chaos run: {reason}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A configuration key from the scenario, this process's variables or the binary's flags is
    /// refused.
    #[error(transparent)]
    Config(#[from] slowmo::ConfigError),
    /// Training did not begin within [`BOOTSTRAP_MAX`].
    #[error("the {nodes} nodes did not train together within {} s; {why}", BOOTSTRAP_MAX.as_secs())]
    NotBootstrapped {
        /// Number of nodes.
        nodes: usize,
        /// The known cause, with the last lines of a node.
        why: String,
    },
    /// The binary does not write a trace.
    #[error(
        "node {0} wrote no trace; the binary must take its settings from slowmo::Config::load(), \
         so that SLOWMO_TRACE reaches it"
    )]
    NoTrace(usize),
    /// The user ended the run.
    #[error("ended by {0}; all nodes were ended")]
    Interrupted(Signal),
}
