//! `slowmo bench step`: cost of `step` when no communication is due.

use super::run::{Measurement, NodeReport, owned};
use super::sizes::Sizes;
use crate::console::{Console, table};
use anyhow::Context;
use clap::Args;
use serde::Serialize;
use slowmo_ops::limits::median;
use slowmo_ops::processes::catch_signals;

/// Settings with which nothing falls due within any measurement.
const NOTHING_DUE: [(&str, &str); 4] = [
    ("SLOWMO_BASE", "local_sgd"),
    ("SLOWMO_FREQUENCY", "1000000000"),
    ("SLOWMO_ALPHA", "1"),
    ("SLOWMO_BETA", "0"),
];
/// Largest allowed cost of a step with nothing due, in microseconds.
const STEP_MICROSECONDS_MAX: f64 = 20.0;

/// Steps in which no communication is due.
#[derive(Debug, Args)]
pub struct StepBench {
    #[command(flatten)]
    sizes: Sizes,
    /// Timed steps, after two warm-up steps.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
}

/// Report of `bench step`, for the node with the largest median: in these steps no node waits for
/// another.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    sizes: Sizes,
    steps: u32,
    p50_us: f64,
    min_us: f64,
    max_us: f64,
    target_us: f64,
    within_target: bool,
}

impl StepBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        catch_signals();
        let sizes = &self.sizes;
        let steps = self.steps;
        let measurement = Measurement {
            what: "idle steps",
            sizes,
            settings: owned(&NOTHING_DUE),
            steps,
            compute_ms: 0,
            ideal_bytes: 0.0,
            slow: None,
        };
        let of_node = |mut report: NodeReport| (median(&mut report.seconds), report.seconds);
        let nodes = measurement.reports(console)?.into_iter().map(of_node);
        let (p50, sorted) = nodes
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .context("no node reported")?;
        let microseconds = |seconds: Option<&f64>| seconds.copied().unwrap_or(0.0) * 1e6;
        let p50_us = p50 * 1e6;
        let report = Report {
            command: "bench step",
            sizes: self.sizes,
            steps: self.steps,
            p50_us,
            min_us: microseconds(sorted.first()),
            max_us: microseconds(sorted.last()),
            target_us: STEP_MICROSECONDS_MAX,
            within_target: p50_us < STEP_MICROSECONDS_MAX,
        };
        console.result(report.to_table(), &report)
    }
}

impl Report {
    fn to_table(&self) -> comfy_table::Table {
        let title = format!(
            "{} nodes, {} MiB, {} steps with nothing due",
            self.sizes.nodes, self.sizes.mib, self.steps
        );
        let rows = [
            [
                "p50 (min – max)".to_owned(),
                format!(
                    "{:.2} µs ({:.2} – {:.2})",
                    self.p50_us, self.min_us, self.max_us
                ),
            ],
            [
                "target".to_owned(),
                format!(
                    "below {:.0} µs: {}",
                    self.target_us,
                    if self.within_target { "met" } else { "missed" }
                ),
            ],
        ];
        table([title.as_str(), "figure"], rows)
    }
}
