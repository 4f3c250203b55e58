//! Cost of a task that runs beside the training: measurements without and with it, in turn, and
//! their medians.

use super::run::{Measurement, NodeReport, owned};
use super::sizes::Sizes;
use crate::console::{Console, table};
use clap::Args;
use serde::Serialize;
use slowmo_ops::limits::median;

/// Outer rounds only.
const ROUNDS_ONLY: [(&str, &str); 1] = [("SLOWMO_BASE", "none")];

/// Parameters of the measurements.
#[derive(Debug, Args, Serialize)]
pub struct Training {
    #[command(flatten)]
    #[serde(flatten)]
    pub sizes: Sizes,
    /// Timed steps of each measurement, after two warm-up steps.
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub steps: u32,
    /// Simulated computation of a step, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub compute_ms: u64,
    /// Inner steps per outer round.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    pub tau: u32,
    /// Number of measurements of each kind.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
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

/// Configuration variables of one measurement.
pub type Settings = Vec<(&'static str, String)>;

impl Training {
    /// Measures in turn without and with the settings that `settings` returns. `settings` is called
    /// for each measurement with them, and its second result is passed to `after` when that ends.
    pub fn compare<K>(
        &self,
        console: Console,
        (what, target): (&str, f64),
        settings: impl Fn() -> anyhow::Result<(Settings, K)>,
        mut after: impl FnMut(K) -> anyhow::Result<()>,
    ) -> anyhow::Result<Cost> {
        let mut without = Vec::new();
        let mut with = Vec::new();
        for _ in 0..self.times {
            without.push(self.measure(console, &format!("steps without {what}"), Vec::new())?);
            let (settings, kept) = settings()?;
            with.push(self.measure(console, &format!("steps with {what}"), settings)?);
            after(kept)?;
        }
        let without = median(&mut without);
        let with = median(&mut with);
        let added = with / without - 1.0;
        Ok(Cost {
            without_ms: without * 1e3,
            with_ms: with * 1e3,
            added,
            target,
            within_target: added < target,
        })
    }

    /// Time of a step in seconds: mean on the slowest node.
    fn measure(&self, console: Console, what: &str, more: Settings) -> anyhow::Result<f64> {
        let mut settings = owned(&ROUNDS_ONLY);
        settings.push(("SLOWMO_TAU", self.tau.to_string()));
        settings.extend(more);
        let sizes = &self.sizes;
        let steps = self.steps;
        let compute_ms = self.compute_ms;
        let measurement = Measurement {
            what,
            sizes,
            settings,
            steps,
            compute_ms,
            ideal_bytes: 0.0,
            slow: None,
        };
        let mean = |report: NodeReport| report.periods.iter().sum::<f64>() / f64::from(steps);
        Ok(measurement
            .reports(console)?
            .into_iter()
            .map(mean)
            .fold(0.0, f64::max))
    }

    /// A table of the cost, with more rows.
    pub fn table(
        &self,
        cost: &Cost,
        more: impl IntoIterator<Item = [String; 2]>,
    ) -> comfy_table::Table {
        let title = format!(
            "{} nodes, {} MiB, {} steps of {} ms",
            self.sizes.nodes, self.sizes.mib, self.steps, self.compute_ms
        );
        let verdict = if cost.within_target { "met" } else { "missed" };
        let rows = [
            [
                "a step without".to_owned(),
                format!("{:.3} ms", cost.without_ms),
            ],
            ["a step with".to_owned(), format!("{:.3} ms", cost.with_ms)],
            [
                "added".to_owned(),
                format!(
                    "{:.2} % (below {:.0} %: {verdict})",
                    100.0 * cost.added,
                    100.0 * cost.target
                ),
            ],
        ];
        table([title.as_str(), "figure"], rows.into_iter().chain(more))
    }
}
