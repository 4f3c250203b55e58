//! `slowmo bench checkpoint`: what writing checkpoints beside the training costs it.

use super::run::{Measurement, NodeReport, owned};
use super::sizes::Sizes;
use crate::console::{Console, table};
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use slowmo::checkpoints::{Checkpoint, list};
use slowmo_ops::limits::median;
use slowmo_ops::processes::catch_signals;
use std::path::Path;

/// Outer rounds only.
const ROUNDS_ONLY: [(&str, &str); 1] = [("SLOWMO_BASE", "none")];
/// What checkpoints may add to the time of a step.
const ADDED_MAX: f64 = 0.02;

/// Training with checkpoints and without, in turn.
#[derive(Debug, Args)]
pub struct CheckpointBench {
    #[command(flatten)]
    sizes: Sizes,
    /// Timed steps of each measurement, after two to warm up.
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Pretended computation of a step.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    compute_ms: u64,
    /// Steps of an outer round.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    tau: u32,
    /// Outer rounds from one checkpoint to the next.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Measurements of each kind.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
}

/// What `bench checkpoint` reports.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    sizes: Sizes,
    steps: u32,
    compute_ms: u64,
    /// Mean time of a step on the slowest node; the median of the measurements.
    without_ms: f64,
    with_ms: f64,
    added: f64,
    /// Checkpoints of one measurement that were written whole, and their bytes.
    checkpoints: usize,
    bytes: u64,
    target: f64,
    within_target: bool,
}

impl CheckpointBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        catch_signals();
        let (mut without, mut with, mut written) = (Vec::new(), Vec::new(), (0, 0));
        for _ in 0..self.times {
            without.push(self.measure(console, None)?);
            let folder = tempfile::tempdir().context("no temporary folder")?;
            with.push(self.measure(console, Some(folder.path()))?);
            written = whole(folder.path())?;
        }
        let (without, with) = (median(&mut without), median(&mut with));
        let added = with / without - 1.0;
        let report = Report {
            command: "bench checkpoint",
            sizes: self.sizes,
            steps: self.steps,
            compute_ms: self.compute_ms,
            without_ms: without * 1e3,
            with_ms: with * 1e3,
            added,
            checkpoints: written.0,
            bytes: written.1,
            target: ADDED_MAX,
            within_target: added < ADDED_MAX,
        };
        console.result(report.to_table(), &report)
    }

    /// Seconds of a step, the mean on the slowest node.
    fn measure(&self, console: Console, folder: Option<&Path>) -> anyhow::Result<f64> {
        let mut settings = owned(&ROUNDS_ONLY);
        settings.push(("SLOWMO_TAU", self.tau.to_string()));
        if let Some(folder) = folder {
            settings.push(("SLOWMO_CHECKPOINTS", folder.display().to_string()));
            settings.push(("SLOWMO_CHECKPOINT_EVERY", self.every.to_string()));
            settings.push(("SLOWMO_CHECKPOINT_KEEP_LAST", "1000".to_owned()));
        }
        let what = if folder.is_some() { "steps with checkpoints" } else { "steps without checkpoints" };
        let (sizes, steps, compute_ms) = (&self.sizes, self.steps, self.compute_ms);
        let measurement = Measurement { what, sizes, settings, steps, compute_ms, ideal_bytes: 0.0, slow: None };
        let mean = |report: NodeReport| report.periods.iter().sum::<f64>() / f64::from(steps);
        Ok(measurement.reports(console)?.into_iter().map(mean).fold(0.0, f64::max))
    }
}

/// How many checkpoints of a folder are whole, and the bytes of one.
fn whole(folder: &Path) -> anyhow::Result<(usize, u64)> {
    let found: Vec<Checkpoint> = list(folder)?.iter().filter_map(|listed| Checkpoint::open(&listed.path).ok()).collect();
    Ok((found.len(), found.last().map_or(0, Checkpoint::bytes)))
}

impl Report {
    fn to_table(&self) -> comfy_table::Table {
        let title = format!("{} nodes, {} MiB, {} steps of {} ms", self.sizes.nodes, self.sizes.mib, self.steps, self.compute_ms);
        let verdict = if self.within_target { "met" } else { "missed" };
        let rows = [
            ["a step without".to_owned(), format!("{:.3} ms", self.without_ms)],
            ["a step with".to_owned(), format!("{:.3} ms", self.with_ms)],
            ["added".to_owned(), format!("{:.2} % (below {:.0} %: {verdict})", 100.0 * self.added, 100.0 * self.target)],
            ["written".to_owned(), format!("{} checkpoints of {:.1} MiB", self.checkpoints, self.bytes as f64 / f64::from(1 << 20))],
        ];
        table([title.as_str(), "figure"], rows)
    }
}
