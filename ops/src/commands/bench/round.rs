//! `slowmo bench round`: exact averages and outer rounds, compared with plain quinn that moves the
//! same bytes.

use super::harness::Sheet;
use super::limits::{LimitsReport, single_limits};
use super::run::{Compared, Measurement};
use super::sizes::Sizes;
use crate::console::Console;
use clap::Args;
use serde::Serialize;

/// Exact averages and outer rounds over QUIC, on loopback or between network namespaces.
#[derive(Debug, Args, Serialize)]
pub struct RoundBench {
    #[command(flatten)]
    #[serde(flatten)]
    sizes: Sizes,
    /// Timed rounds of each kind, after two warm-up rounds.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    rounds: u32,
    /// Wire type of the parameters (round_wire).
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "bf16", "int8"])]
    wire: String,
}

#[derive(Debug, Serialize)]
struct Figures {
    average: Compared,
    outer_round: Compared,
    /// Rate of the outer round relative to plain quinn.
    round_rate_vs_plain_quinn: f64,
    limits: LimitsReport,
}

impl RoundBench {
    /// Measures and reports.
    pub fn run(mut self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        let limits = single_limits(console, &self.sizes)?;
        let wire = ("SLOWMO_ROUND_WIRE", self.wire.as_str());
        // The momentum always travels as float32.
        let average_bytes = self.sizes.average_bytes() * self.sizes.encoded_share(&self.wire);
        let momentum_bytes = self.sizes.outer_round_bytes() - self.sizes.average_bytes();
        let measurement = Measurement {
            what: "exact averages",
            sizes: &self.sizes,
            settings: &[
                ("SLOWMO_BASE", "local_sgd"),
                ("SLOWMO_FREQUENCY", "1"),
                ("SLOWMO_ALPHA", "1"),
                ("SLOWMO_BETA", "0"),
                wire,
            ],
            steps: self.rounds,
            compute_ms: 0,
            slow: None,
        };
        let average = measurement.compare(average_bytes, console)?;
        let measurement = Measurement {
            what: "outer rounds",
            settings: &[
                ("SLOWMO_BASE", "none"),
                ("SLOWMO_TAU", "1"),
                ("SLOWMO_BETA", "0.5"),
                wire,
            ],
            ..measurement
        };
        let outer_round = measurement.compare(average_bytes + momentum_bytes, console)?;
        let mut sheet = Sheet::new(format!(
            "{} as {}, {} rounds",
            self.sizes.title(),
            self.wire,
            self.rounds
        ));
        average.rows("exact average", &mut sheet);
        outer_round.rows("outer round", &mut sheet);
        limits.rows(&mut sheet);
        let figures = Figures {
            round_rate_vs_plain_quinn: outer_round.rate_vs_plain_quinn,
            average,
            outer_round,
            limits,
        };
        sheet.show(console, "bench round", &self, &figures)
    }
}
