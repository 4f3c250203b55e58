//! A chaos run: node processes behind emulated links, what a scenario does to them, and the trace
//! of it.
//!
//! | file | does |
//! |---|---|
//! | `cluster` | the processes: started so that they announce the link emulator's addresses and write traces |
//! | `disks` | where the processes write checkpoints, and disks that are full |
//! | `perform` | carries out a schedule |
//! | `sample` | memory and descriptors of processes |
//! | `folder` | what a run leaves behind |
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

/// How long the founders may take until all of them have trained together.
pub const BOOTSTRAP_MAX: Duration = Duration::from_secs(60);

/// Why a run could not be made. No process is left, and what was written down until then is kept.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// The links.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The processes.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The traces.
    #[error(transparent)]
    Trace(#[from] CollectError),
    /// Another file of the run.
    #[error("cannot write {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of an earlier run is none.
    #[error("{} is none of a chaos run: {reason}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A configuration key, from the scenario, this process's variables or the binary's flags.
    #[error(transparent)]
    Config(#[from] slowmo::config::ConfigError),
    /// Training did not begin.
    #[error("the {nodes} nodes did not train together within {} s; {why}", BOOTSTRAP_MAX.as_secs())]
    NotFounded {
        /// How many.
        nodes: usize,
        /// What is known of it, with the last lines of a node.
        why: String,
    },
    /// The binary writes no trace.
    #[error(
        "node {0} wrote no trace; the binary must take its settings from slowmo::Config::load(), so that SLOWMO_TRACE reaches it"
    )]
    NoTrace(usize),
    /// The user ended it.
    #[error("ended by {0}; all nodes were ended")]
    Interrupted(Signal),
}
