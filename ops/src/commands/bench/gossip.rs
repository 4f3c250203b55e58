//! `slowmo bench gossip`: push-sum gossip overlapped with computation, against the time of each
//! alone, measured in the same run; and the effect of a slow node on the others.

use super::limits::{LimitsReport, single_limits};
use super::round::Compared;
use super::run::{Measurement, NodeReport, owned, ratio};
use super::sizes::Sizes;
use crate::console::{Console, table};
use clap::Args;
use serde::Serialize;
use slowmo_ops::limits::median;
use slowmo_ops::processes::catch_signals;

/// Settings for gossip only, with one peer at every step.
const GOSSIP: [(&str, &str); 3] = [
    ("SLOWMO_BASE", "sgp"),
    ("SLOWMO_ALPHA", "1"),
    ("SLOWMO_BETA", "0"),
];
/// Id of the slowed node.
const SLOW_NODE: u64 = 1;
/// Factor by which its computation takes longer.
const SLOW_FACTOR: u32 = 5;
/// Target: largest ratio of an overlapped step to the longer of computation and communication.
const OVERLAPPED_MAX: f64 = 1.05;
/// Target: bound of the ratio of steps beside a slow node to steps without one.
const SLOWED_MAX: f64 = 1.10;

/// Gossip over QUIC on loopback, with and without overlap with computation.
#[derive(Debug, Args)]
pub struct GossipBench {
    #[command(flatten)]
    sizes: Sizes,
    /// Timed steps, after two warm-up steps.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Simulated computation before each step, in milliseconds: the training thread sleeps, as it
    /// does while a GPU computes.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    compute_ms: u64,
    /// Steps by which a message may be late in the overlapped runs.
    #[arg(long, value_name = "STEPS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    staleness: u32,
    /// The same bound in the runs where one node computes five times as long as the others.
    #[arg(long, value_name = "STEPS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    slow_staleness: u32,
    /// Wire type of the messages.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "bf16", "int8"])]
    wire: String,
}

/// Whole steps of the slowest node, computation included.
#[derive(Clone, Copy, Debug, Serialize)]
struct Steps {
    /// Mean over the steps.
    mean_ms: f64,
    /// Median.
    p50_ms: f64,
    /// Longest.
    max_ms: f64,
}

/// Results with one node that computes [`SLOW_FACTOR`] times as long as the others.
#[derive(Clone, Copy, Debug, Serialize)]
struct Slowed {
    staleness: u32,
    /// Timed steps of each of the other nodes.
    steps: u32,
    /// Steps of the slowest of the other nodes.
    others: Steps,
    /// Ratio of their mean to that of the overlapped run without a slow node.
    others_vs_unslowed: f64,
}

/// Report of `bench gossip`.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    sizes: Sizes,
    steps: u32,
    compute_ms: u64,
    staleness: u32,
    wire: String,
    /// Synchronous gossip without computation, i.e. the communication alone.
    communication: Compared,
    communication_rate_vs_plain_quinn: f64,
    /// Synchronous gossip after the computation.
    synchronous: Steps,
    synchronous_vs_sum: f64,
    /// Gossip overlapped with computation.
    overlapped: Steps,
    /// Ratio of the mean step to the longer of computation and communication.
    overlapped_vs_longer: f64,
    /// Whether that ratio and the steps beside a slow node meet their targets; `None` without
    /// computation.
    within_target: Option<bool>,
    /// Results with a slow node, before the staleness bound stops the others.
    slowed: Option<Slowed>,
    /// Results with a slow node that the others skip (`late_peers = "skip"`).
    skipped: Option<Slowed>,
    limits: LimitsReport,
}

impl GossipBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        catch_signals();
        let limits = single_limits(console, self.sizes.model_bytes())?;
        let communication = self
            .measurement("communication", self.settings(0, "wait"), 0)
            .compare(console)?;
        let compute = self.compute_ms;
        let synchronous = Steps::of(
            &self
                .measurement("synchronous steps", self.settings(0, "wait"), compute)
                .reports(console)?,
        );
        let overlapped = Steps::of(
            &self
                .measurement(
                    "overlapped steps",
                    self.settings(self.staleness, "wait"),
                    compute,
                )
                .reports(console)?,
        );
        let (slowed, skipped) = if self.compute_ms > 0 && self.sizes.nodes > 1 {
            let slowed = self.slowed(console, self.slow_staleness, "wait", overlapped)?;
            (
                Some(slowed),
                Some(self.slowed(console, self.staleness, "skip", overlapped)?),
            )
        } else {
            (None, None)
        };
        let communication_ms = communication.figures.p50_ms;
        let compute_ms = self.compute_ms as f64;
        let overlapped_vs_longer = ratio(overlapped.mean_ms, compute_ms.max(communication_ms));
        let undisturbed = [&slowed, &skipped]
            .into_iter()
            .flatten()
            .all(|slowed| slowed.others_vs_unslowed < SLOWED_MAX);
        let report = Report {
            command: "bench gossip",
            steps: self.steps,
            compute_ms: self.compute_ms,
            staleness: self.staleness,
            communication_rate_vs_plain_quinn: communication.rate_vs_plain_quinn,
            communication,
            synchronous,
            synchronous_vs_sum: ratio(synchronous.mean_ms, compute_ms + communication_ms),
            overlapped,
            overlapped_vs_longer,
            within_target: (self.compute_ms > 0)
                .then_some(overlapped_vs_longer <= OVERLAPPED_MAX && undisturbed),
            slowed,
            skipped,
            limits,
            sizes: self.sizes,
            wire: self.wire,
        };
        console.result(report.to_table(), &report)
    }

    /// Bytes that each node sends in one gossip.
    fn gossip_bytes(&self) -> f64 {
        self.sizes.gossip_bytes() * self.sizes.encoded_share(&self.wire)
    }

    fn settings(&self, staleness: u32, late_peers: &str) -> Vec<(&'static str, String)> {
        let ours = [
            ("SLOWMO_STALENESS", staleness.to_string()),
            ("SLOWMO_LATE_PEERS", late_peers.to_owned()),
            ("SLOWMO_GOSSIP_WIRE", self.wire.clone()),
        ];
        owned(&GOSSIP).into_iter().chain(ours).collect()
    }

    fn measurement<'a>(
        &'a self,
        what: &'a str,
        settings: Vec<(&'static str, String)>,
        compute_ms: u64,
    ) -> Measurement<'a> {
        Measurement {
            what,
            sizes: &self.sizes,
            settings,
            steps: self.steps,
            compute_ms,
            ideal_bytes: self.gossip_bytes(),
            slow: None,
        }
    }

    /// Measures with one slow node. The steps are too few for the staleness bound to stop the
    /// others, who end up that many steps ahead.
    fn slowed(
        &self,
        console: Console,
        staleness: u32,
        late_peers: &str,
        unslowed: Steps,
    ) -> anyhow::Result<Slowed> {
        let steps = self.slow_staleness - 1;
        let measurement = self.measurement(
            "steps beside a slow node",
            self.settings(staleness, late_peers),
            self.compute_ms,
        );
        let reports = Measurement {
            steps,
            slow: Some((SLOW_NODE, SLOW_FACTOR)),
            ..measurement
        }
        .reports(console)?;
        let others = Steps::of(&reports[SLOW_NODE as usize..]);
        Ok(Slowed {
            staleness,
            steps,
            others,
            others_vs_unslowed: ratio(others.mean_ms, unslowed.mean_ms),
        })
    }
}

impl Steps {
    /// Steps of the slowest node.
    fn of(reports: &[NodeReport]) -> Self {
        let of_node = |report: &NodeReport| {
            let mut periods = report.periods.clone();
            let mean_ms = 1e3 * ratio(periods.iter().sum(), periods.len() as f64);
            Self {
                mean_ms,
                p50_ms: 1e3 * median(&mut periods),
                max_ms: 1e3 * periods.last().copied().unwrap_or(0.0),
            }
        };
        let slowest = reports
            .iter()
            .map(of_node)
            .max_by(|one, other| one.mean_ms.total_cmp(&other.mean_ms));
        slowest.unwrap_or(Self {
            mean_ms: 0.0,
            p50_ms: 0.0,
            max_ms: 0.0,
        })
    }

    fn show(&self) -> String {
        format!(
            "{:.1} ms (p50 {:.1}, max {:.1})",
            self.mean_ms, self.p50_ms, self.max_ms
        )
    }
}

impl Report {
    fn to_table(&self) -> comfy_table::Table {
        let mut rows = vec![["computation".to_owned(), format!("{} ms", self.compute_ms)]];
        rows.extend(self.communication.rows(
            "communication",
            self.sizes.gossip_bytes() * self.sizes.encoded_share(&self.wire),
        ));
        rows.push(["synchronous step, mean".to_owned(), self.synchronous.show()]);
        rows.push([
            "  against the sum of both".to_owned(),
            format!("× {:.3}", self.synchronous_vs_sum),
        ]);
        rows.push([
            format!("overlapped step, mean (staleness {})", self.staleness),
            self.overlapped.show(),
        ]);
        rows.push([
            "  against the longer of both".to_owned(),
            format!("× {:.3}", self.overlapped_vs_longer),
        ]);
        let slow = [
            ("within the staleness bound", &self.slowed),
            ("which is skipped", &self.skipped),
        ];
        for (how, slowed) in slow
            .into_iter()
            .filter_map(|(how, slowed)| slowed.as_ref().map(|slowed| (how, slowed)))
        {
            rows.push([
                format!(
                    "beside a slow node, {how} ({} steps, staleness {})",
                    slowed.steps, slowed.staleness
                ),
                slowed.others.show(),
            ]);
            rows.push([
                "  against no slow node".to_owned(),
                format!("× {:.3}", slowed.others_vs_unslowed),
            ]);
        }
        if let Some(met) = self.within_target {
            let what = format!(
                "× {OVERLAPPED_MAX} and × {SLOWED_MAX} at most: {}",
                if met { "met" } else { "missed" }
            );
            rows.push(["targets".to_owned(), what]);
        }
        rows.extend(self.limits.rows());
        let title = format!(
            "{} nodes, {} MiB as {}, {} steps",
            self.sizes.nodes, self.sizes.mib, self.wire, self.steps
        );
        table([title.as_str(), "figure"], rows)
    }
}
