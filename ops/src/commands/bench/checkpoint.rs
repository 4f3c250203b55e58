//! `slowmo bench checkpoint`: cost of writing checkpoints during training.

use super::beside::{Cost, Training};
use crate::console::Console;
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use slowmo::Checkpoint;
use slowmo::internal::checkpoints::list;
use slowmo_ops::processes::catch_signals;
use std::path::Path;
use tempfile::TempDir;

/// Largest share that checkpoints may add to the time of a step.
const ADDED_MAX: f64 = 0.02;

/// Training with and without checkpoints, in turn.
#[derive(Debug, Args)]
pub struct CheckpointBench {
    #[command(flatten)]
    training: Training,
    /// Outer rounds from one checkpoint to the next.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
}

/// Report of `bench checkpoint`.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    training: Training,
    every: u32,
    #[serde(flatten)]
    cost: Cost,
    /// Checkpoints of one measurement that were written whole, and the bytes of one.
    checkpoints: usize,
    bytes: u64,
}

impl CheckpointBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.training.sizes.check()?;
        catch_signals();
        let settings = || {
            let folder = tempfile::tempdir().context("no temporary folder")?;
            let settings = vec![
                ("SLOWMO_CHECKPOINTS", folder.path().display().to_string()),
                ("SLOWMO_CHECKPOINT_EVERY", self.every.to_string()),
                ("SLOWMO_CHECKPOINT_KEEP_LAST", "1000".to_owned()),
            ];
            Ok((settings, folder))
        };
        let mut written = (0, 0);
        let count = |folder: TempDir| {
            written = whole(folder.path())?;
            Ok(())
        };
        let cost = self
            .training
            .compare(console, ("checkpoints", ADDED_MAX), settings, count)?;
        let (checkpoints, bytes) = written;
        let row = [
            "written".to_owned(),
            format!(
                "{checkpoints} checkpoints of {:.1} MiB",
                bytes as f64 / f64::from(1 << 20)
            ),
        ];
        let text = self.training.table(&cost, [row]);
        let report = Report {
            command: "bench checkpoint",
            training: self.training,
            every: self.every,
            cost,
            checkpoints,
            bytes,
        };
        console.result(text, &report)
    }
}

/// Number of whole checkpoints in a folder, and the bytes of one.
fn whole(folder: &Path) -> anyhow::Result<(usize, u64)> {
    let found: Vec<Checkpoint> = list(folder)?
        .iter()
        .filter_map(|listed| Checkpoint::open(&listed.path).ok())
        .collect();
    Ok((found.len(), found.last().map_or(0, Checkpoint::bytes)))
}
