//! One file per command. May start node processes and write to the terminal; the libraries do
//! everything else.
//!
//! Status is in `job` (of a job) and `one_node` (of one node).

mod bench;
mod chaos;
mod checkpoint;
mod dashboard;
mod demo;
mod dump;
mod job;
mod keygen;
mod launch;
mod one_node;
mod recover;
mod replay;
mod selftest;
mod set;
mod top;

use crate::console::Console;
use clap::{Parser, Subcommand};
use slowmo_ops::processes::{START_NODE, become_node};
use std::ffi::OsString;

/// Trains model replicas on many nodes together: SlowMo, LocalSGD and gossip.
#[derive(Debug, Parser)]
#[command(
    name = "slowmo",
    version,
    arg_required_else_help = true,
    propagate_version = true
)]
pub struct Cli {
    /// Print one JSON object as the last line of standard output; output for people goes to
    /// standard error.
    #[arg(long, global = true)]
    pub json: bool,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `slowmo`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The tour: node processes train on handwritten digits, with live progress and a final table.
    Demo(demo::Demo),
    /// Make a cluster key: 32 random bytes that every node of a cluster shares.
    Keygen(keygen::Keygen),
    /// Run N node processes of a training binary on this machine.
    Launch(launch::Launch),
    /// Change the number of nodes of the running job.
    Scale(job::Scale),
    /// Let a node hand over and leave.
    Drain(job::Drain),
    /// Kill the processes of nodes, as a crash would.
    Kill(job::Kill),
    /// Change a setting of the running job.
    Set(set::Set),
    /// Show the running job.
    Status(job::Status),
    /// Watch the running job in the terminal.
    Top(top::TopCommand),
    /// Open the running job's page in a browser.
    Dashboard(dashboard::Dashboard),
    /// Put a training binary through faults: kills, pauses, cuts, slow links; a report with every
    /// invariant's verdict.
    #[command(subcommand)]
    Chaos(chaos::Chaos),
    /// Inspect, verify or export checkpoints.
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// Check the arithmetic of this machine's CPU or GPUs, and the GPUs' rates.
    Selftest(selftest::Selftest),
    /// Make a node write its last events to a file.
    Dump(dump::Dump),
    /// Name the history that continues without a quorum.
    Recover(recover::Recover),
    /// Step through recorded events of nodes and check the invariants.
    Replay(replay::Replay),
    /// Measure rounds, gossip and steps against the limits of this machine, taken in the same run.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// A child process that becomes a node.
    #[command(name = START_NODE, hide = true)]
    StartNode {
        /// The node's binary and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Tests the one GPU visible to this process.
    #[command(name = launch::gpus::CHECK_GPU, hide = true)]
    CheckGpu(launch::gpus::CheckGpu),
    /// One process of a raw transfer.
    #[command(name = slowmo_ops::limits::RAW_NODE, hide = true)]
    RawNode {
        /// The transfer, as JSON.
        transfer: String,
    },
    /// One node of a measurement.
    #[command(name = bench::BENCH_NODE, hide = true)]
    BenchNode(bench::BenchNode),
    /// One node of the demo.
    #[command(name = demo::DEMO_NODE, hide = true)]
    DemoNode(demo::DemoNode),
}

impl Command {
    /// Runs the command.
    pub fn run(self, console: &Console) -> anyhow::Result<()> {
        match self {
            Self::Demo(demo) => demo.run(*console),
            Self::Keygen(keygen) => keygen.run(*console),
            Self::Launch(launch) => launch.run(*console),
            Self::Scale(scale) => scale.run(*console),
            Self::Drain(drain) => drain.run(*console),
            Self::Kill(kill) => kill.run(*console),
            Self::Set(set) => set.run(*console),
            Self::Status(status) => status.run(*console),
            Self::Top(top) => top.run(*console),
            Self::Dashboard(dashboard) => dashboard.run(*console),
            Self::Chaos(chaos) => chaos.run(*console),
            Self::Checkpoint(checkpoint) => checkpoint.run(*console),
            Self::Selftest(selftest) => selftest.run(*console),
            Self::Dump(dump) => dump.run(*console),
            Self::Recover(recover) => recover.run(*console),
            Self::Replay(replay) => replay.run(*console),
            Self::Bench(bench) => bench.run(*console),
            Self::StartNode { command } => Err(become_node(&command).into()),
            Self::CheckGpu(check_gpu) => check_gpu.run(),
            Self::RawNode { transfer } => slowmo_ops::limits::run_node(&transfer),
            Self::BenchNode(bench_node) => bench_node.run(),
            Self::DemoNode(demo_node) => demo_node.run(),
        }
    }
}
