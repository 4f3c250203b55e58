//! `slowmo launch`: N node processes of the user's training binary on this machine.

use crate::console::Console;
use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;
use slowmo_ops::processes::{Flow, NODES_MAX, Plan, catch_signals, supervise};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run N node processes of a training binary on this machine.
///
/// Each node gets its identity through SLOWMO_* variables; its output appears behind a prefix. Ctrl-C ends all
/// nodes, and if one node fails the others are ended too.
#[derive(Debug, Args)]
pub struct Launch {
    /// Node processes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64))]
    nodes: u16,
    /// CPU workers of each node.
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "gpus")]
    workers: Option<u16>,
    /// CUDA devices of each node.
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u16).range(1..))]
    gpus: Option<u16>,
    /// The cluster key of `slowmo keygen`; without it the launch makes one of its own.
    #[arg(long, value_name = "FILE")]
    cluster_key_file: Option<PathBuf>,
    /// The training binary and its arguments.
    #[arg(last = true, required = true, value_name = "BINARY ARGS")]
    command: Vec<OsString>,
}

/// What a launch reports.
#[derive(Debug, Serialize)]
struct Launched {
    command: &'static str,
    succeeded: bool,
    nodes: u16,
    elapsed_s: f64,
}

impl Launch {
    /// Runs the nodes until all have ended.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        if self.gpus.is_some() {
            bail!("this build has no CUDA device; the cpu device is used without --gpus (--workers G sets the CPU workers of a node)");
        }
        let Some((program, arguments)) = self.command.split_first() else { bail!("no binary was named") };
        check_program(Path::new(program))?;
        if let Some(file) = &self.cluster_key_file {
            std::fs::metadata(file).with_context(|| format!("cannot read the cluster key file {}", file.display()))?;
        }
        let mut plan = Plan::new(program, usize::from(self.nodes)).arguments(arguments);
        plan.workers = self.workers.map(usize::from);
        plan.cluster_key_file = self.cluster_key_file;
        catch_signals();
        let start = Instant::now();
        supervise(&plan, &mut |line| {
            console.node_line(line);
            Flow::Continue
        })?;
        let report = Launched { command: "launch", succeeded: true, nodes: self.nodes, elapsed_s: start.elapsed().as_secs_f64() };
        console.result(format!("all {} nodes ended well after {:.1} s", report.nodes, report.elapsed_s), &report)
    }
}

/// A binary that is not there is told once, not once a node.
fn check_program(program: &Path) -> anyhow::Result<()> {
    if program.components().count() > 1 {
        ensure!(program.is_file(), "there is no binary {}; check the path after --", program.display());
        return Ok(());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    ensure!(found, "there is no binary {} in PATH; write a path after --, for example ./{}", program.display(), program.display());
    Ok(())
}
