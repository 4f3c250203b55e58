//! `slowmo bench …`: the runtime against the limits of this machine, both measured in the same run.

mod beside;
mod checkpoint;
mod churn;
mod gossip;
mod harness;
mod join;
mod limits;
mod node;
mod recovery;
mod round;
mod run;
mod sizes;
mod step;
mod telemetry;

use crate::console::Console;
use clap::Subcommand;
pub use node::{BENCH_NODE, BenchNode};
use slowmo_ops::processes::catch_signals;

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Exact averages and outer rounds.
    Round(round::RoundBench),
    /// Synchronous gossip steps.
    Gossip(gossip::GossipBench),
    /// Steps in which no communication is due.
    Step(step::StepBench),
    /// Time until a cluster continues after a node dies or stops, and until a replacement
    /// contributes.
    Recovery(recovery::RecoveryBench),
    /// Bytes received by a joining node, and its effect on the other nodes.
    Join(join::JoinBench),
    /// Cost of writing checkpoints during training.
    Checkpoint(checkpoint::CheckpointBench),
    /// Cost of metrics and the flight recorder during training.
    Telemetry(telemetry::TelemetryBench),
    /// The raw limits alone: QUIC, TCP, memory, and all-to-all QUIC between as many processes.
    Limits(limits::Limits),
}

impl Bench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        catch_signals();
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
