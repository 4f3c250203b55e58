//! Runs the nodes of one measurement and combines their reports.

use super::node::{BENCH_NODE, NodeEvent, NodeTotals};
use super::sizes::Sizes;
use crate::console::Console;
use anyhow::{Context, ensure};
use serde::Serialize;
use slowmo_ops::limits::median;
use slowmo_ops::processes::{Flow, Plan, Stream, supervise};
use std::time::Duration;

/// Time limit of one measurement.
const TIME_MAX: Duration = Duration::from_secs(540);

/// One measurement: the work of the nodes in each step.
#[derive(Clone, Debug)]
pub struct Measurement<'a> {
    /// Name of the measurement, for people who wait.
    pub what: &'a str,
    /// Number of nodes and size of the model.
    pub sizes: &'a Sizes,
    /// The algorithm, as configuration variables.
    pub settings: Vec<(&'static str, String)>,
    /// Timed steps.
    pub steps: u32,
    /// Simulated computation before each step, in milliseconds.
    pub compute_ms: u64,
    /// Bytes that the algorithm must send out of each node in each step.
    pub ideal_bytes: f64,
    /// Id of a node with longer computation, and the factor.
    pub slow: Option<(u64, u32)>,
}

/// Constant configuration variables.
pub type Fixed<'a> = &'a [(&'static str, &'static str)];

/// Owned configuration variables, for [`Measurement::settings`].
pub fn owned(settings: Fixed<'_>) -> Vec<(&'static str, String)> {
    settings
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect()
}

/// Report of one node.
#[derive(Clone, Debug, Default)]
pub struct NodeReport {
    /// Time of each timed step, in seconds.
    pub seconds: Vec<f64>,
    /// Time of each timed step with the computation before it, in seconds.
    pub periods: Vec<f64>,
    totals: Option<NodeTotals>,
}

/// The figures of one measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Median over the steps of the slowest node's time.
    pub p50_ms: f64,
    /// Shortest time.
    pub min_ms: f64,
    /// Longest time.
    pub max_ms: f64,
    /// Model bytes per median time.
    pub algorithm_bandwidth_gb_per_s: f64,
    /// UDP payload bytes sent, mean over nodes and steps.
    pub sent_bytes_per_node: f64,
    /// Ratio of those bytes to the bytes that the algorithm must send; 0 for a single node.
    pub sent_vs_ideal: f64,
    /// Packets lost, over all nodes and steps.
    pub lost_packets: u64,
    /// Smallest of the nodes' largest path MTUs, in bytes.
    pub mtu_bytes: u16,
    /// Largest peak resident memory of a node process, in bytes.
    pub peak_memory_bytes: u64,
    /// The same peak in units of the model's size.
    pub peak_memory_models: f64,
}

impl Measurement<'_> {
    /// Figures of steps in which the nodes wait for each other: a step takes as long as on its
    /// slowest node.
    pub fn run(&self, console: Console) -> anyhow::Result<Figures> {
        let reports = self.reports(console)?;
        let slowest = |step: usize| {
            reports
                .iter()
                .filter_map(|report| report.seconds.get(step))
                .copied()
                .fold(0.0, f64::max)
        };
        let mut seconds: Vec<f64> = (0..self.steps as usize).map(slowest).collect();
        let p50 = median(&mut seconds);
        let totals: Vec<&NodeTotals> = reports
            .iter()
            .filter_map(|report| report.totals.as_ref())
            .collect();
        let model = self.sizes.model_bytes() as f64;
        let sent_bytes: u64 = totals.iter().map(|node| node.sent_bytes).sum();
        let sent_bytes_per_node = ratio(
            sent_bytes as f64,
            totals.len() as f64 * f64::from(self.steps),
        );
        let peak_memory_bytes = totals.iter().map(|node| node.peak_bytes).max().unwrap_or(0);
        Ok(Figures {
            p50_ms: p50 * 1e3,
            min_ms: seconds.first().copied().unwrap_or(0.0) * 1e3,
            max_ms: seconds.last().copied().unwrap_or(0.0) * 1e3,
            algorithm_bandwidth_gb_per_s: ratio(model / 1e9, p50),
            sent_bytes_per_node,
            sent_vs_ideal: ratio(sent_bytes_per_node, self.ideal_bytes),
            lost_packets: totals.iter().map(|node| node.lost_packets).sum(),
            mtu_bytes: totals.iter().map(|node| node.mtu_bytes).min().unwrap_or(0),
            peak_memory_bytes,
            peak_memory_models: peak_memory_bytes as f64 / model,
        })
    }

    /// Starts the nodes and returns their reports in ascending order of id.
    pub fn reports(&self, console: Console) -> anyhow::Result<Vec<NodeReport>> {
        console.progress(format!(
            "measuring {} with {} nodes, {} MiB",
            self.what, self.sizes.nodes, self.sizes.mib
        ));
        let program = std::env::current_exe().context("cannot find this program")?;
        let plan = self.settings.iter().fold(
            Plan::new(program, self.sizes.nodes.into()),
            |plan, (name, value)| plan.variable(name, value.as_str()),
        );
        let arguments = [
            ("--parameters", self.sizes.parameters() as u64),
            ("--steps", self.steps.into()),
            ("--compute-ms", self.compute_ms),
        ];
        let slow = self
            .slow
            .map(|(node, factor)| [("--slow-node", node), ("--slow-factor", factor.into())]);
        let arguments = arguments.into_iter().chain(slow.into_iter().flatten());
        let arguments = arguments.flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
        let plan = plan
            .arguments([BENCH_NODE])
            .arguments(arguments)
            .isolated(TIME_MAX);
        let mut reports = vec![NodeReport::default(); self.sizes.nodes.into()];
        supervise(&plan, &mut |line| {
            let report = &mut reports[line.node - 1];
            match serde_json::from_str(&line.text) {
                Ok(NodeEvent::Times { seconds, periods }) if line.stream == Stream::Output => {
                    report.seconds.extend(seconds);
                    report.periods.extend(periods);
                }
                Ok(NodeEvent::Done(totals)) if line.stream == Stream::Output => {
                    report.totals = Some(totals)
                }
                _ => console.node_line(line),
            }
            Flow::Continue
        })
        .with_context(|| format!("measuring {}", self.what))?;
        let expected = self.steps as usize;
        let silent = reports
            .iter()
            .position(|report| report.totals.is_none() || report.seconds.len() != expected);
        ensure!(
            silent.is_none(),
            "node {} did not tell all its times",
            silent.unwrap_or(0) + 1
        );
        Ok(reports)
    }
}

/// `numerator / denominator`; 0 unless the denominator is positive.
pub fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 {
        numerator / denominator
    } else {
        0.0
    }
}
