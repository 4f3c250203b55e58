//! `slowmo bench gossip`: push-sum gossip behind computation, against the time of both alone,
//! measured in the same run; and what the others notice of a slow node.

use super::limits::{LimitsReport, single_limits};
use super::round::Compared;
use super::run::{Measurement, NodeReport, owned, ratio};
use super::sizes::Sizes;
use crate::console::{Console, table};
use clap::Args;
use serde::Serialize;
use slowmo_ops::limits::median;
use slowmo_ops::processes::catch_signals;

/// Only gossip, with one peer at every step.
const GOSSIP: [(&str, &str); 3] = [
    ("SLOWMO_BASE", "sgp"),
    ("SLOWMO_ALPHA", "1"),
    ("SLOWMO_BETA", "0"),
];
/// The slowed node.
const SLOW_NODE: u64 = 1;
/// How many times longer it computes.
const SLOW_FACTOR: u32 = 5;
/// An overlapped step should take at most so many times the longer of computation and
/// communication.
const OVERLAPPED_MAX: f64 = 1.05;
/// Beside a slow node, steps should take less than so many times as long as without.
const SLOWED_MAX: f64 = 1.10;

/// Gossip over QUIC on loopback, overlapped with computation and not.
#[derive(Debug, Args)]
pub struct GossipBench {
    #[command(flatten)]
    sizes: Sizes,
    /// Timed steps, after two to warm up.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Pretended computation before each step, in milliseconds: the training thread sleeps, as it
    /// does while a GPU computes.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    compute_ms: u64,
    /// Steps that a message may be late in the overlapped runs.
    #[arg(long, value_name = "STEPS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    staleness: u32,
    /// The same, where one node computes five times as long as the others.
    #[arg(long, value_name = "STEPS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    slow_staleness: u32,
    /// How messages travel.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "bf16", "int8"])]
    wire: String,
}

/// Whole steps, computation included, of the slowest node.
#[derive(Clone, Copy, Debug, Serialize)]
struct Steps {
    /// Mean over the steps.
    mean_ms: f64,
    /// Median.
    p50_ms: f64,
    /// Longest.
    max_ms: f64,
}

/// One node computes [`SLOW_FACTOR`] times as long as the others.
#[derive(Clone, Copy, Debug, Serialize)]
struct Slowed {
    staleness: u32,
    /// Steps of each of the others that were timed.
    steps: u32,
    /// The others' steps, of the slowest among them.
    others: Steps,
    /// Their mean against that of the overlapped run without a slow node.
    others_vs_unslowed: f64,
}

/// What `bench gossip` reports.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    sizes: Sizes,
    steps: u32,
    compute_ms: u64,
    staleness: u32,
    wire: String,
    /// Synchronous gossip without computation: the communication alone.
    communication: Compared,
    communication_rate_vs_plain_quinn: f64,
    /// Synchronous gossip after computation.
    synchronous: Steps,
    synchronous_vs_sum: f64,
    /// Gossip behind computation.
    overlapped: Steps,
    /// The mean step through the longer of computation and communication.
    overlapped_vs_longer: f64,
    /// Whether that, and the steps beside a slow node, are what they should be; nothing where
    /// nothing is computed.
    within_target: Option<bool>,
    /// A slow node, before the staleness bound stops the others.
    slowed: Option<Slowed>,
    /// A slow node that the others do without (`late_peers = "skip"`).
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

    /// What each node sends in one gossip.
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

    /// With one slow node; so few steps that the bound does not stop the others, who are as many
    /// steps ahead in the end.
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
    /// The slowest node's.
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
