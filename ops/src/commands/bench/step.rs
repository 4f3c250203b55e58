//! `slowmo bench step`: cost of `step` when no communication is due.

use super::harness::{Sheet, Spread, verdict};
use super::run::Measurement;
use super::sizes::Sizes;
use crate::console::Console;
use clap::Args;
use serde::Serialize;

/// Largest allowed cost of a step with nothing due, in microseconds.
const STEP_MICROSECONDS_MAX: f64 = 20.0;

/// Steps in which no communication is due.
#[derive(Debug, Args, Serialize)]
pub struct StepBench {
    #[command(flatten)]
    #[serde(flatten)]
    sizes: Sizes,
    /// Timed steps, after two warm-up steps.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    steps: u32,
}

/// Figures of the node with the largest median: in these steps no node waits for another.
#[derive(Debug, Serialize)]
struct Figures {
    p50_us: f64,
    min_us: f64,
    max_us: f64,
    target_us: f64,
    within_target: bool,
}

impl StepBench {
    /// Measures and reports.
    pub fn run(mut self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        let measurement = Measurement {
            what: "idle steps",
            sizes: &self.sizes,
            // Nothing falls due within any measurement.
            settings: &[
                ("SLOWMO_BASE", "local_sgd"),
                ("SLOWMO_FREQUENCY", "1000000000"),
                ("SLOWMO_ALPHA", "1"),
                ("SLOWMO_BETA", "0"),
            ],
            steps: self.steps,
            compute_ms: 0,
            slow: None,
            alone: false,
        };
        let reports = measurement.reports(console)?;
        let slowest = reports
            .iter()
            .map(|report| Spread::of_seconds(&report.seconds))
            .max_by(|one, other| one.p50_ms.total_cmp(&other.p50_ms))
            .unwrap_or_default();
        let figures = Figures {
            p50_us: slowest.p50_ms * 1e3,
            min_us: slowest.min_ms * 1e3,
            max_us: slowest.max_ms * 1e3,
            target_us: STEP_MICROSECONDS_MAX,
            within_target: slowest.p50_ms * 1e3 < STEP_MICROSECONDS_MAX,
        };
        let mut sheet = Sheet::new(format!(
            "{}, {} steps with nothing due",
            self.sizes.title(),
            self.steps
        ));
        let Figures {
            p50_us,
            min_us,
            max_us,
            ..
        } = figures;
        sheet.row(
            "p50 (min – max)",
            format!("{p50_us:.2} µs ({min_us:.2} – {max_us:.2})"),
        );
        let met = verdict(figures.within_target);
        sheet.row(
            "target",
            format!("below {STEP_MICROSECONDS_MAX:.0} µs: {met}"),
        );
        sheet.show(console, "bench step", &self, &figures)
    }
}
