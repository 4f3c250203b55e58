//! Node processes of one machine: started together, read line by line, ended together, and never
//! left behind.
//!
//! May start processes and threads, send signals to the processes it started, and write into one
//! temporary folder.

mod end;
mod environment;
mod group;
mod host;
mod lines;
pub mod signals;
mod start;

pub use end::GRACE;
pub use environment::{
    ADVERTISE, CUDA_VISIBLE_DEVICES, DEVICES, FIRST_GPU, LAUNCHER_PID, LISTEN, NODE_ID, Plan,
    RENDEZVOUS, TRACE,
};
pub use group::{Group, GroupError, Happening, NodeFailure, supervise};
pub use host::{Host, HostError};
pub use lines::{LINE_BYTES_MAX, Line, Stream, Unprinted};
pub use signals::catch_signals;
pub use start::{START_NODE, StartError, become_node};

/// Most node processes of one launch.
pub const NODES_MAX: usize = 64;
