//! `slowmo bench gossip`: synchronous push-sum gossip, against plain quinn that moves the same bytes.

use super::limits::{LimitsReport, single_limits};
use super::round::Compared;
use super::run::Measurement;
use super::sizes::Sizes;
use crate::console::{Console, table};
use clap::Args;
use serde::Serialize;
use slowmo_ops::processes::catch_signals;

/// Only gossip, with one peer at every step.
const GOSSIP: [(&str, &str); 3] = [("SLOWMO_BASE", "sgp"), ("SLOWMO_ALPHA", "1"), ("SLOWMO_BETA", "0")];

/// Synchronous gossip over QUIC on loopback.
#[derive(Debug, Args)]
pub struct GossipBench {
    #[command(flatten)]
    sizes: Sizes,
    /// Timed steps, after two to warm up.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Pretended computation before each step, in milliseconds; not counted.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    compute_ms: u64,
}

/// What `bench gossip` reports.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    sizes: Sizes,
    steps: u32,
    compute_ms: u64,
    gossip: Compared,
    /// 1 is as fast as quinn alone.
    gossip_rate_vs_plain_quinn: f64,
    limits: LimitsReport,
}

impl GossipBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        catch_signals();
        let limits = single_limits(console, self.sizes.model_bytes())?;
        let Self { sizes, steps, compute_ms } = &self;
        let measurement = Measurement {
            what: "gossip",
            sizes,
            settings: &GOSSIP,
            steps: *steps,
            compute_ms: *compute_ms,
            ideal_bytes: sizes.gossip_bytes(),
        };
        let gossip = measurement.compare(console)?;
        let gossip_rate_vs_plain_quinn = gossip.rate_vs_plain_quinn;
        let Self { sizes, steps, compute_ms } = self;
        let report = Report { command: "bench gossip", sizes, steps, compute_ms, gossip, gossip_rate_vs_plain_quinn, limits };
        console.result(report.to_table(), &report)
    }
}

impl Report {
    fn to_table(&self) -> comfy_table::Table {
        let mut rows = self.gossip.rows("gossip", self.sizes.gossip_bytes());
        rows.extend(self.limits.rows());
        let title = format!("{} nodes, {} MiB, {} steps", self.sizes.nodes, self.sizes.mib, self.steps);
        table([title.as_str(), "figure"], rows)
    }
}
