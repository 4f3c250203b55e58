//! `slowmo bench gossip`: push-sum gossip overlapped with computation, against the time of each
//! alone, measured in the same run; and the effect of a slow node on the others.

use super::harness::{Sheet, Spread, ratio, verdict};
use super::limits::{LimitsReport, single_limits};
use super::run::{Compared, Measurement, NodeReport};
use super::sizes::Sizes;
use crate::console::Console;
use clap::Args;
use serde::Serialize;

/// Id of the slowed node.
const SLOW_NODE: u64 = 1;
/// Factor by which its computation takes longer.
const SLOW_FACTOR: u32 = 5;
/// Target: largest ratio of an overlapped step to the longer of computation and communication.
const OVERLAPPED_MAX: f64 = 1.05;
/// Target: bound of the ratio of steps beside a slow node to steps without one.
const SLOWED_MAX: f64 = 1.10;

/// Gossip over QUIC, on loopback or between network namespaces, with and without overlap with
/// computation.
#[derive(Debug, Args, Serialize)]
pub struct GossipBench {
    #[command(flatten)]
    #[serde(flatten)]
    sizes: Sizes,
    /// Timed steps, after two warm-up steps.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    steps: u32,
    /// Simulated computation before each step, in milliseconds: the training thread sleeps, as it
    /// does while a GPU computes.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=10_000)
    )]
    compute_ms: u64,
    /// Steps by which a message may be late in the overlapped runs.
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    staleness: u32,
    /// The same bound in the runs where one node computes five times as long as the others.
    #[serde(skip)]
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(2..=64)
    )]
    slow_staleness: u32,
    /// Wire type of the messages.
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "bf16", "int8"])]
    wire: String,
}

/// Results with one node that computes [`SLOW_FACTOR`] times as long as the others.
#[derive(Clone, Copy, Debug, Serialize)]
struct Slowed {
    staleness: u32,
    /// Timed steps of each of the other nodes.
    steps: u32,
    /// Steps of the slowest of the other nodes.
    others: Spread,
    /// Ratio of their mean to that of the overlapped run without a slow node.
    others_vs_unslowed: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    /// Synchronous gossip without computation, i.e. the communication alone.
    communication: Compared,
    communication_rate_vs_plain_quinn: f64,
    /// Synchronous gossip after the computation.
    synchronous: Spread,
    synchronous_vs_sum: f64,
    /// Gossip overlapped with computation.
    overlapped: Spread,
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
    pub fn run(mut self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        let limits = single_limits(console, &self.sizes)?;
        let gossip_bytes = self.sizes.gossip_bytes() * self.sizes.encoded_share(&self.wire);
        let alone = Gossip {
            what: "communication",
            staleness: 0,
            late_peers: "wait",
            steps: self.steps,
            compute_ms: 0,
            slow: None,
        };
        let communication = self.measure(&alone, |measurement| {
            // Every message is added to the receiver's own values.
            measurement.compare(gossip_bytes, 1.0, console)
        })?;
        let after = Gossip {
            what: "synchronous steps",
            compute_ms: self.compute_ms,
            ..alone
        };
        let synchronous = self.steps(&after, 0, console)?;
        let beside = Gossip {
            what: "overlapped steps",
            staleness: self.staleness,
            ..after
        };
        let overlapped = self.steps(&beside, 0, console)?;
        let slowed = |staleness, late_peers| {
            if self.compute_ms == 0 || self.sizes.nodes < 2 {
                return anyhow::Ok(None);
            }
            // Too few steps for the staleness bound to stop the others, who end up that many steps
            // ahead.
            let steps = self.slow_staleness - 1;
            let gossip = Gossip {
                what: "steps beside a slow node",
                staleness,
                late_peers,
                steps,
                slow: Some((SLOW_NODE, SLOW_FACTOR)),
                ..beside
            };
            let others = self.steps(&gossip, SLOW_NODE as usize, console)?;
            Ok(Some(Slowed {
                staleness,
                steps,
                others,
                others_vs_unslowed: ratio(others.mean_ms, overlapped.mean_ms),
            }))
        };
        let slowed_by_one = slowed(self.slow_staleness, "wait")?;
        let skipped = slowed(self.staleness, "skip")?;
        let communication_ms = communication.time.p50_ms;
        let compute_ms = self.compute_ms as f64;
        let overlapped_vs_longer = ratio(overlapped.mean_ms, compute_ms.max(communication_ms));
        let undisturbed = [&slowed_by_one, &skipped]
            .into_iter()
            .flatten()
            .all(|slowed| slowed.others_vs_unslowed < SLOWED_MAX);
        let figures = Figures {
            communication_rate_vs_plain_quinn: communication.rate_vs_plain_quinn,
            communication,
            synchronous,
            synchronous_vs_sum: ratio(synchronous.mean_ms, compute_ms + communication_ms),
            overlapped,
            overlapped_vs_longer,
            within_target: (self.compute_ms > 0)
                .then_some(overlapped_vs_longer <= OVERLAPPED_MAX && undisturbed),
            slowed: slowed_by_one,
            skipped,
            limits,
        };
        let sheet = self.sheet(&figures);
        sheet.show(console, "bench gossip", &self, &figures)
    }

    /// Runs the measurement of this gossip, with one peer at every step.
    fn measure<T>(
        &self,
        gossip: &Gossip<'_>,
        run: impl FnOnce(Measurement<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let staleness = gossip.staleness.to_string();
        run(Measurement {
            what: gossip.what,
            sizes: &self.sizes,
            settings: &[
                ("SLOWMO_BASE", "sgp"),
                ("SLOWMO_ALPHA", "1"),
                ("SLOWMO_BETA", "0"),
                ("SLOWMO_STALENESS", &staleness),
                ("SLOWMO_LATE_PEERS", gossip.late_peers),
                ("SLOWMO_GOSSIP_WIRE", &self.wire),
            ],
            steps: gossip.steps,
            compute_ms: gossip.compute_ms,
            slow: gossip.slow,
            alone: false,
        })
    }

    /// Whole steps of the slowest node, without the first `left_out` nodes.
    fn steps(
        &self,
        gossip: &Gossip<'_>,
        left_out: usize,
        console: Console,
    ) -> anyhow::Result<Spread> {
        self.measure(gossip, |measurement| {
            Ok(NodeReport::slowest(
                &measurement.reports(console)?[left_out..],
            ))
        })
    }

    fn sheet(&self, figures: &Figures) -> Sheet {
        let steps = |Spread {
                         mean_ms,
                         p50_ms,
                         max_ms,
                         ..
                     }: Spread| {
            format!("{mean_ms:.1} ms (p50 {p50_ms:.1}, max {max_ms:.1})")
        };
        let times = |ratio: f64| format!("× {ratio:.3}");
        let mut sheet = Sheet::new(format!(
            "{} as {}, {} steps",
            self.sizes.title(),
            self.wire,
            self.steps
        ));
        sheet.row("computation", format!("{} ms", self.compute_ms));
        figures.communication.rows("communication", &mut sheet);
        sheet.row("synchronous step, mean", steps(figures.synchronous));
        sheet.row(
            "  against the sum of both",
            times(figures.synchronous_vs_sum),
        );
        sheet.row(
            format!("overlapped step, mean (staleness {})", self.staleness),
            steps(figures.overlapped),
        );
        sheet.row(
            "  against the longer of both",
            times(figures.overlapped_vs_longer),
        );
        for (how, slowed) in [
            ("within the staleness bound", figures.slowed),
            ("which is skipped", figures.skipped),
        ] {
            let Some(slowed) = slowed else { continue };
            let of = format!("{} steps, staleness {}", slowed.steps, slowed.staleness);
            sheet.row(
                format!("beside a slow node, {how} ({of})"),
                steps(slowed.others),
            );
            sheet.row("  against no slow node", times(slowed.others_vs_unslowed));
        }
        if let Some(met) = figures.within_target {
            let met = verdict(met);
            sheet.row(
                "targets",
                format!("× {OVERLAPPED_MAX} and × {SLOWED_MAX} at most: {met}"),
            );
        }
        figures.limits.rows(&mut sheet);
        sheet
    }
}

/// One kind of gossip to measure.
#[derive(Clone, Copy)]
struct Gossip<'a> {
    what: &'a str,
    staleness: u32,
    late_peers: &'a str,
    steps: u32,
    compute_ms: u64,
    slow: Option<(u64, u32)>,
}
