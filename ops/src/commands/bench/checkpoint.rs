//! `slowmo bench checkpoint`: cost of writing checkpoints during training.

use super::beside::{Cost, Training};
use super::harness::mebibytes;
use crate::console::Console;
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use slowmo::Checkpoint;
use slowmo::internal::checkpoints::list;
use std::path::Path;

/// Largest share that checkpoints may add to the time of a step.
const ADDED_MAX: f64 = 0.02;

/// Training with and without checkpoints, in turn.
#[derive(Debug, Args, Serialize)]
pub struct CheckpointBench {
    #[command(flatten)]
    #[serde(flatten)]
    training: Training,
    /// Outer rounds from one checkpoint to the next.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    every: u32,
}

#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    cost: Cost,
    /// Checkpoints of one measurement that were written whole, and the bytes of one.
    checkpoints: usize,
    bytes: u64,
}

impl CheckpointBench {
    /// Measures and reports.
    pub fn run(mut self, console: Console) -> anyhow::Result<()> {
        let every = self.every.to_string();
        let mut written = (0, 0);
        let cost =
            self.training
                .compare(console, "checkpoints", ADDED_MAX, |training, console| {
                    let folder = tempfile::tempdir().context("no temporary folder")?;
                    let path = folder.path().display().to_string();
                    let settings = [
                        ("SLOWMO_CHECKPOINTS", path.as_str()),
                        ("SLOWMO_CHECKPOINT_EVERY", every.as_str()),
                        ("SLOWMO_CHECKPOINT_KEEP_LAST", "1000"),
                    ];
                    let ms = training.step_ms(console, "steps with checkpoints", &settings)?;
                    written = whole(folder.path())?;
                    Ok(ms)
                })?;
        let (checkpoints, bytes) = written;
        let mut sheet = self.training.sheet(&cost);
        let mib = mebibytes(bytes as f64);
        sheet.row(
            "written",
            format!("{checkpoints} checkpoints of {mib:.1} MiB"),
        );
        let figures = Figures {
            cost,
            checkpoints,
            bytes,
        };
        sheet.show(console, "bench checkpoint", &self, &figures)
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
