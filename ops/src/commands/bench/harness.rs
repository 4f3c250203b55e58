//! Shared by all benches: nodes that run a task, the spread of repeated times, and the display of a
//! result.

use super::node::{BENCH_NODE, Task};
use crate::console::{Console, table};
use serde::Serialize;
use slowmo_ops::limits::median;
use slowmo_ops::processes::Plan;
use std::fmt::Display;
use std::time::Duration;

/// Configuration variables of the nodes.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

/// The plan of `nodes` processes that run `task` under `settings`, and are ended after `time_max`.
pub fn plan(
    nodes: usize,
    task: &Task,
    settings: Settings<'_>,
    time_max: Duration,
) -> anyhow::Result<Plan> {
    let arguments = [BENCH_NODE.to_owned(), serde_json::to_string(task)?];
    let mut plan = Plan::of_this_program(nodes, arguments)?.isolated(time_max);
    for (name, value) in settings {
        plan = plan.variable(name, value);
    }
    Ok(plan)
}

/// Spread of repeated times, in milliseconds; zeros for none.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
}

impl Spread {
    /// The spread of these milliseconds.
    pub fn of(ms: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = ms.into_iter().collect();
        let p50_ms = median(&mut values);
        // `values` is sorted now. The percentile is that of the nearest rank.
        let rank = (values.len() * 99).div_ceil(100).saturating_sub(1);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        Self {
            mean_ms: ratio(values.iter().sum(), values.len() as f64),
            p50_ms,
            p99_ms: at(rank),
            min_ms: at(0),
            max_ms: at(values.len().saturating_sub(1)),
        }
    }

    /// The spread of these seconds.
    pub fn of_seconds(seconds: &[f64]) -> Self {
        Self::of(seconds.iter().map(|seconds| seconds * 1e3))
    }
}

/// The result of a bench: rows for people, one object for programs.
pub struct Sheet {
    title: String,
    rows: Vec<[String; 2]>,
}

impl Sheet {
    /// A sheet without rows.
    pub fn new(title: String) -> Self {
        Self {
            title,
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, what: impl Into<String>, figure: impl Display) {
        self.rows.push([what.into(), figure.to_string()]);
    }

    /// Adds a row of a time.
    pub fn ms(&mut self, what: impl Into<String>, ms: f64) {
        self.row(what, format!("{ms:.0} ms"));
    }

    /// Prints the result of `command`: the rows, or `options` and `figures` as one object.
    pub fn show(
        self,
        console: Console,
        command: &'static str,
        options: &impl Serialize,
        figures: &impl Serialize,
    ) -> anyhow::Result<()> {
        let table = table([self.title.as_str(), "figure"], self.rows);
        console.done(command, table, &Measured { options, figures })
    }
}

#[derive(Serialize)]
struct Measured<'a, O, F> {
    #[serde(flatten)]
    options: &'a O,
    #[serde(flatten)]
    figures: &'a F,
}

/// Whether a target was met, in words.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

/// `numerator / denominator`; 0 unless the denominator is positive.
pub fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 {
        numerator / denominator
    } else {
        0.0
    }
}

/// Bytes in MiB.
pub fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
