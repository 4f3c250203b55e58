//! Cost of a task that runs beside the training: measurements without and with it, in turn, and
//! their medians.

use super::harness::{Settings, Sheet, Spread, verdict};
use super::run::{Measurement, NodeReport};
use super::sizes::Sizes;
use crate::console::Console;
use clap::Args;
use serde::Serialize;

/// Parameters of the measurements.
#[derive(Debug, Args, Serialize)]
pub struct Training {
    #[command(flatten)]
    #[serde(flatten)]
    pub sizes: Sizes,
    /// Timed steps of each measurement, after two warm-up steps.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 240,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub steps: u32,
    /// Simulated computation of a step, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub compute_ms: u64,
    /// Inner steps per outer round.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub tau: u32,
    /// Number of measurements of each kind.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub times: u32,
}

/// Mean time of a step on the slowest node: median of the measurements.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Time without the task, in milliseconds.
    pub without_ms: f64,
    /// Time with the task, in milliseconds.
    pub with_ms: f64,
    /// Share by which the task lengthens a step.
    pub added: f64,
    /// Bound of `added`.
    pub target: f64,
    /// Whether `added` is within the target.
    pub within_target: bool,
}

impl Training {
    /// Measures in turn without the task `what` and with it; `with` measures with it.
    pub fn compare(
        &mut self,
        console: Console,
        what: &str,
        target: f64,
        mut with: impl FnMut(&Self, Console) -> anyhow::Result<f64>,
    ) -> anyhow::Result<Cost> {
        self.sizes.check()?;
        let mut without_ms = Vec::new();
        let mut with_ms = Vec::new();
        for _ in 0..self.times {
            without_ms.push(self.step_ms(console, &format!("steps without {what}"), &[])?);
            with_ms.push(with(self, console)?);
        }
        let without_ms = Spread::of(without_ms).p50_ms;
        let with_ms = Spread::of(with_ms).p50_ms;
        let added = with_ms / without_ms - 1.0;
        Ok(Cost {
            without_ms,
            with_ms,
            added,
            target,
            within_target: added < target,
        })
    }

    /// Mean time of a step on the slowest node, in milliseconds, with more settings.
    pub fn step_ms(&self, console: Console, what: &str, more: Settings<'_>) -> anyhow::Result<f64> {
        let tau = self.tau.to_string();
        let rounds_only = [("SLOWMO_BASE", "none"), ("SLOWMO_TAU", tau.as_str())];
        let measurement = Measurement {
            what,
            sizes: &self.sizes,
            settings: &[&rounds_only[..], more].concat(),
            steps: self.steps,
            compute_ms: self.compute_ms,
            slow: None,
            alone: false,
        };
        Ok(NodeReport::slowest(&measurement.reports(console)?).mean_ms)
    }

    /// The rows of the cost.
    pub fn sheet(&self, cost: &Cost) -> Sheet {
        let mut sheet = Sheet::new(format!(
            "{}, {} steps of {} ms",
            self.sizes.title(),
            self.steps,
            self.compute_ms
        ));
        sheet.row("a step without", format!("{:.3} ms", cost.without_ms));
        sheet.row("a step with", format!("{:.3} ms", cost.with_ms));
        let added = 100.0 * cost.added;
        let target = 100.0 * cost.target;
        let met = verdict(cost.within_target);
        sheet.row(
            "added",
            format!("{added:.2} % (below {target:.0} %: {met})"),
        );
        sheet
    }
}
