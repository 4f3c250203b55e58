//! Runs the nodes of one measurement and puts their reports together.

use super::node::{BENCH_NODE, NodeReport};
use super::sizes::Sizes;
use crate::console::Console;
use anyhow::Context;
use serde::Serialize;
use slowmo_ops::limits::median;
use slowmo_ops::processes::{Flow, Plan, Stream, supervise};
use std::time::Duration;

/// How long one measurement may take.
const TIME_MAX: Duration = Duration::from_secs(540);

/// One measurement: what the nodes do in each step.
#[derive(Clone, Debug)]
pub struct Measurement<'a> {
    /// For people who wait.
    pub what: &'a str,
    /// Nodes and model.
    pub sizes: &'a Sizes,
    /// The algorithm, as configuration variables.
    pub settings: &'a [(&'a str, &'a str)],
    /// Timed steps.
    pub steps: u32,
    /// Pretended computation before each step.
    pub compute_ms: u64,
    /// Bytes that the algorithm must send, out of each node in each step.
    pub ideal_bytes: f64,
}

/// The figures of one measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Median over the steps of the slowest node's time.
    pub p50_ms: f64,
    /// Shortest.
    pub min_ms: f64,
    /// Longest.
    pub max_ms: f64,
    /// Model bytes through the median time.
    pub algorithm_bandwidth_gb_per_s: f64,
    /// UDP payload sent, mean over nodes and steps.
    pub sent_bytes_per_node: f64,
    /// That through what the algorithm must send; 0 for a single node.
    pub sent_vs_ideal: f64,
    /// Packets lost, all nodes and steps.
    pub lost_packets: u64,
    /// Smallest of the nodes' largest path MTU.
    pub mtu_bytes: u16,
    /// Largest peak resident memory of a node process.
    pub peak_memory_bytes: u64,
    /// The same in units of the model.
    pub peak_memory_models: f64,
}

impl Measurement<'_> {
    /// Figures of steps in which the nodes wait for each other: a step takes as long as on its slowest node.
    pub fn run(&self, console: Console) -> anyhow::Result<Figures> {
        let reports = self.reports(console)?;
        let steps = self.steps as usize;
        let slowest = |step: usize| reports.iter().map(|report| report.seconds.get(step).copied().unwrap_or(0.0)).fold(0.0, f64::max);
        let mut seconds: Vec<f64> = (0..steps).map(slowest).collect();
        let p50 = median(&mut seconds);
        let model = self.sizes.model_bytes() as f64;
        let sent_bytes: u64 = reports.iter().map(|report| report.sent_bytes).sum();
        let sent_bytes_per_node = sent_bytes as f64 / (reports.len() * steps.max(1)) as f64;
        let peak_memory_bytes = reports.iter().map(|report| report.peak_bytes).max().unwrap_or(0);
        Ok(Figures {
            p50_ms: p50 * 1e3,
            min_ms: seconds.first().copied().unwrap_or(0.0) * 1e3,
            max_ms: seconds.last().copied().unwrap_or(0.0) * 1e3,
            algorithm_bandwidth_gb_per_s: ratio(model / 1e9, p50),
            sent_bytes_per_node,
            sent_vs_ideal: ratio(sent_bytes_per_node, self.ideal_bytes),
            lost_packets: reports.iter().map(|report| report.lost_packets).sum(),
            mtu_bytes: reports.iter().map(|report| report.mtu_bytes).min().unwrap_or(0),
            peak_memory_bytes,
            peak_memory_models: peak_memory_bytes as f64 / model,
        })
    }

    /// Starts the nodes; their reports by ascending id.
    pub fn reports(&self, console: Console) -> anyhow::Result<Vec<NodeReport>> {
        console.progress(format!("measuring {} with {} nodes, {} MiB", self.what, self.sizes.nodes, self.sizes.mib));
        let program = std::env::current_exe().context("cannot find this program")?;
        let plan = self.settings.iter().fold(Plan::new(program, self.sizes.nodes.into()), |plan, (name, value)| plan.variable(name, value));
        let arguments =
            [("--parameters", self.sizes.parameters() as u64), ("--steps", self.steps.into()), ("--compute-ms", self.compute_ms)];
        let arguments = arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
        let plan = plan.arguments([BENCH_NODE]).arguments(arguments).isolated(TIME_MAX);
        let mut reports: Vec<Option<NodeReport>> = vec![None; self.sizes.nodes.into()];
        supervise(&plan, &mut |line| {
            if line.stream == Stream::Output {
                reports[line.node - 1] = serde_json::from_str(&line.text).ok();
            }
            Flow::Continue
        })
        .with_context(|| format!("measuring {}", self.what))?;
        let report_of =
            |(index, report): (usize, Option<NodeReport>)| report.with_context(|| format!("node {} reported nothing", index + 1));
        reports.into_iter().enumerate().map(report_of).collect()
    }
}

/// `numerator / denominator`; 0 when there is nothing to divide by.
pub fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { numerator / denominator } else { 0.0 }
}
