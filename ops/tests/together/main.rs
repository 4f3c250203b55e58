//! Tests of the command line with real processes, which mostly wait: in one program they wait at the
//! same time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod by_hand;
mod chaos;
mod checkpoints;
mod cluster_files;
mod command_line;
#[path = "../common/mod.rs"]
mod common;
mod launch;
mod replay;
mod slurm;
mod with_runtime;
