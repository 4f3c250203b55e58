//! Runs the nodes of one measurement and combines their reports.

use super::harness::{Settings, Sheet, Spread, mebibytes, plan, ratio};
use super::limits::plain_quinn_ms;
use super::node::{NodeEvent, NodeTotals, Task};
use super::sizes::Sizes;
use crate::console::Console;
use anyhow::{Context, ensure};
use serde::Serialize;
use slowmo_ops::processes::{Stream, supervise};
use std::time::Duration;

/// Time limit of one measurement.
const TIME_MAX: Duration = Duration::from_secs(540);

/// One measurement: the work of the nodes in each step.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a> {
    /// Name of the measurement, for people who wait.
    pub what: &'a str,
    /// Number of nodes and size of the model.
    pub sizes: &'a Sizes,
    /// The algorithm.
    pub settings: Settings<'a>,
    /// Timed steps.
    pub steps: u32,
    /// Simulated computation before each step, in milliseconds.
    pub compute_ms: u64,
    /// Id of a node with longer computation, and the factor.
    pub slow: Option<(u64, u32)>,
    /// Whether plain quinn is not measured beside it.
    pub alone: bool,
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

/// A measurement compared with plain quinn moving the same bytes, measured before and after it.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// Times of a step on its slowest node.
    #[serde(flatten)]
    pub time: Spread,
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
    /// Time of plain quinn: mean of the medians before and after.
    pub plain_quinn_ms: f64,
    /// `plain_quinn_ms / p50_ms`: 1 is as fast as quinn alone.
    pub rate_vs_plain_quinn: f64,
    /// The same with the copies and additions that any average must make.
    pub working_quinn_ms: f64,
    /// `working_quinn_ms / p50_ms`.
    pub rate_vs_working_quinn: f64,
    #[serde(skip)]
    ideal_bytes: f64,
}

impl Measurement<'_> {
    /// Measures plain quinn, then steps in which the nodes wait for each other, then plain quinn
    /// again, because the machine's other load changes meanwhile. The algorithm must send
    /// `ideal_bytes` out of each node in each step; `added_share` of them are added up where they
    /// arrive.
    pub fn compare(
        &self,
        ideal_bytes: f64,
        added_share: f64,
        console: Console,
    ) -> anyhow::Result<Compared> {
        let quinn = |share| {
            if self.alone {
                return Ok(0.0);
            }
            plain_quinn_ms(console, self.sizes, ideal_bytes, share)
        };
        let before = quinn(None)?;
        let working_before = quinn(Some(added_share))?;
        let reports = self.reports(console)?;
        let working_quinn_ms = f64::midpoint(working_before, quinn(Some(added_share))?);
        let plain_quinn_ms = f64::midpoint(before, quinn(None)?);
        let slowest = |step: usize| {
            let seconds = reports.iter().filter_map(|report| report.seconds.get(step));
            seconds.copied().fold(0.0, f64::max) * 1e3
        };
        let time = Spread::of((0..self.steps as usize).map(slowest));
        let totals: Vec<&NodeTotals> = reports
            .iter()
            .filter_map(|report| report.totals.as_ref())
            .collect();
        let model = self.sizes.model_bytes() as f64;
        let sent_bytes: u64 = totals.iter().map(|node| node.sent_bytes).sum();
        let messages = totals.iter().map(|node| f64::from(node.steps)).sum();
        let sent_bytes_per_node = ratio(sent_bytes as f64, messages);
        let peak_memory_bytes = totals.iter().map(|node| node.peak_bytes).max().unwrap_or(0);
        Ok(Compared {
            time,
            algorithm_bandwidth_gb_per_s: ratio(model / 1e6, time.p50_ms),
            sent_bytes_per_node,
            sent_vs_ideal: ratio(sent_bytes_per_node, ideal_bytes),
            lost_packets: totals.iter().map(|node| node.lost_packets).sum(),
            mtu_bytes: totals.iter().map(|node| node.mtu_bytes).min().unwrap_or(0),
            peak_memory_bytes,
            peak_memory_models: peak_memory_bytes as f64 / model,
            plain_quinn_ms,
            rate_vs_plain_quinn: ratio(plain_quinn_ms, time.p50_ms),
            working_quinn_ms,
            rate_vs_working_quinn: ratio(working_quinn_ms, time.p50_ms),
            ideal_bytes,
        })
    }

    /// Starts the nodes and returns their reports in ascending order of id.
    pub fn reports(&self, console: Console) -> anyhow::Result<Vec<NodeReport>> {
        let nodes = usize::from(self.sizes.nodes);
        console.progress(format!(
            "measuring {} with {nodes} nodes over {}, {} MiB",
            self.what,
            self.sizes.link(),
            self.sizes.mib
        ));
        let task = Task {
            parameters: self.sizes.parameters(),
            steps: self.steps,
            compute_ms: self.compute_ms,
            slow: self.slow,
            nodes: self.sizes.nodes,
            groups: self.sizes.groups,
            ..Task::default()
        };
        let mut plan = plan(nodes, &task, self.settings, TIME_MAX)?;
        plan.hosts = self.sizes.hosts.clone();
        let mut reports = vec![NodeReport::default(); nodes];
        supervise(&plan, &mut |line| {
            let report = &mut reports[line.node - 1];
            match serde_json::from_str(&line.text) {
                Ok(event) if line.stream == Stream::Output => report.note(event),
                _ => console.node_line(line),
            }
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

impl NodeReport {
    fn note(&mut self, event: NodeEvent) {
        match event {
            NodeEvent::Times { seconds, periods } => {
                self.seconds.extend(seconds);
                self.periods.extend(periods);
            }
            NodeEvent::Done(totals) => self.totals = Some(totals),
            // The start, and rounds of nodes that do not time their steps.
            _ => {}
        }
    }

    /// Whole steps of the slowest of these nodes, computation included.
    pub fn slowest(reports: &[Self]) -> Spread {
        reports
            .iter()
            .map(|report| Spread::of_seconds(&report.periods))
            .max_by(|one, other| one.mean_ms.total_cmp(&other.mean_ms))
            .unwrap_or_default()
    }
}

impl Compared {
    /// Adds the rows of this comparison.
    pub fn rows(&self, name: &str, sheet: &mut Sheet) {
        let Spread {
            p50_ms,
            min_ms,
            max_ms,
            ..
        } = self.time;
        let sent = mebibytes(self.sent_bytes_per_node);
        let ideal = mebibytes(self.ideal_bytes);
        sheet.row(
            format!("{name}: p50 (min – max)"),
            format!("{p50_ms:.1} ms ({min_ms:.1} – {max_ms:.1})"),
        );
        sheet.row(
            "  model bytes / time",
            format!("{:.2} GB/s", self.algorithm_bandwidth_gb_per_s),
        );
        sheet.row(
            "  sent by each node, and against the ideal",
            format!("{sent:.1} MiB, × {:.3} of {ideal:.1}", self.sent_vs_ideal),
        );
        sheet.row(
            "  peak memory of a node process",
            format!("{:.1} × model", self.peak_memory_models),
        );
        if self.plain_quinn_ms == 0.0 {
            return;
        }
        sheet.row(
            "  plain quinn, same processes and bytes",
            format!("{:.1} ms", self.plain_quinn_ms),
        );
        sheet.row(
            "  … that also makes the copies and additions",
            format!("{:.1} ms", self.working_quinn_ms),
        );
        sheet.row(
            "  rate against plain quinn, and against that",
            format!(
                "{:.2}, {:.2}",
                self.rate_vs_plain_quinn, self.rate_vs_working_quinn
            ),
        );
    }
}
