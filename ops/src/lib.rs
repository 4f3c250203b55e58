//! The parts of the `slowmo` command line that are not commands: process supervision and the raw
//! limits of this machine.
//!
//! May start processes, bind loopback sockets and write into temporary folders; knows nothing of
//! training.
#![deny(missing_docs)]

pub mod chaos;
pub mod jobs;
pub mod keys;
pub mod limits;
pub mod processes;
