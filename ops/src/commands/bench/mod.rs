//! `slowmo bench …`: the runtime against the limits of this machine, both measured in the same run.

mod beside;
mod checkpoint;
mod churn;
mod churn_node;
mod gossip;
mod join;
mod limits;
mod node;
mod raw_node;
mod recovery;
mod round;
mod run;
mod sizes;
mod step;
mod telemetry;

use crate::console::Console;
pub use churn_node::{CHURN_NODE, ChurnNode};
use clap::Subcommand;
pub use node::{BENCH_NODE, BenchNode};
pub use raw_node::RawNode;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Exact averages and outer rounds.
    Round(round::RoundBench),
    /// Synchronous gossip steps.
    Gossip(gossip::GossipBench),
    /// Steps in which nothing is due.
    Step(step::StepBench),
    /// How fast a cluster goes on after a node dies or stops, and how fast a replacement
    /// contributes.
    Recovery(recovery::RecoveryBench),
    /// What a joining node receives, and what the others notice of it.
    Join(join::JoinBench),
    /// What writing checkpoints beside the training costs it.
    Checkpoint(checkpoint::CheckpointBench),
    /// What metrics and the flight recorder cost the training.
    Telemetry(telemetry::TelemetryBench),
    /// The raw limits alone: QUIC, TCP, memory, and all-to-all QUIC between as many processes.
    Limits(limits::Limits),
}

impl Bench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        match self {
            Self::Round(round) => round.run(console),
            Self::Gossip(gossip) => gossip.run(console),
            Self::Step(step) => step.run(console),
            Self::Recovery(recovery) => recovery.run(console),
            Self::Join(join) => join.run(console),
            Self::Checkpoint(checkpoint) => checkpoint.run(console),
            Self::Telemetry(telemetry) => telemetry.run(console),
            Self::Limits(limits) => limits.run(console),
        }
    }
}
