//! `slowmo bench round`: exact averages and outer rounds, compared with plain quinn that moves the
//! same bytes.

use super::harness::Sheet;
use super::limits::{LimitsReport, single_limits};
use super::run::{Compared, Measurement};
use super::sizes::Sizes;
use crate::console::Console;
use clap::Args;
use serde::Serialize;

/// Share of the bytes of an average that are contributions; the others are its result.
const ADDED_SHARE: f64 = 0.5;

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
    /// Simulated computation before each round, in milliseconds; it is not timed.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=60_000)
    )]
    compute_ms: u64,
    /// Measures the rounds only, not the limits and plain quinn, which take minutes on a link that
    /// loses packets; their figures are 0.
    #[arg(long)]
    alone: bool,
    /// A setting of the nodes, for example `congestion=bbr`; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    set: Vec<Setting>,
}

/// A key of the configuration and its value.
#[derive(Clone, Debug, Serialize)]
struct Setting {
    /// The key as a variable of the environment.
    variable: String,
    value: String,
}

fn setting(text: &str) -> Result<Setting, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Setting {
            variable: format!("SLOWMO_{}", key.to_uppercase()),
            value: value.to_owned(),
        }),
        _ => Err("write KEY=VALUE, for example congestion=bbr".to_owned()),
    }
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
        let limits = if self.alone {
            LimitsReport::default()
        } else {
            single_limits(console, &self.sizes)?
        };
        let wire = ("SLOWMO_ROUND_WIRE", self.wire.as_str());
        let own = self.set.iter();
        let own: Vec<_> = own
            .map(|setting| (setting.variable.as_str(), setting.value.as_str()))
            .collect();
        let with_own = |settings: &[(&'static str, &'static str)]| -> Vec<(&str, &str)> {
            let settings = settings.iter().copied().chain([wire]);
            settings.chain(own.iter().copied()).collect()
        };
        let averages = with_own(&[
            ("SLOWMO_BASE", "local_sgd"),
            ("SLOWMO_FREQUENCY", "1"),
            ("SLOWMO_ALPHA", "1"),
            ("SLOWMO_BETA", "0"),
        ]);
        let outer_rounds = with_own(&[
            ("SLOWMO_BASE", "none"),
            ("SLOWMO_TAU", "1"),
            ("SLOWMO_BETA", "0.5"),
        ]);
        // The momentum always travels as float32.
        let average_bytes = self.sizes.average_bytes() * self.sizes.encoded_share(&self.wire);
        let momentum_bytes = self.sizes.outer_round_bytes() - self.sizes.average_bytes();
        let measurement = Measurement {
            what: "exact averages",
            sizes: &self.sizes,
            settings: &averages,
            steps: self.rounds,
            compute_ms: self.compute_ms,
            slow: None,
            alone: self.alone,
        };
        let average = measurement.compare(average_bytes, ADDED_SHARE, console)?;
        let measurement = Measurement {
            what: "outer rounds",
            settings: &outer_rounds,
            ..measurement
        };
        let added_share = ADDED_SHARE * average_bytes / (average_bytes + momentum_bytes);
        let outer_round =
            measurement.compare(average_bytes + momentum_bytes, added_share, console)?;
        let mut sheet = Sheet::new(format!(
            "{} as {}, {} rounds",
            self.sizes.title(),
            self.wire,
            self.rounds
        ));
        average.rows("exact average", &mut sheet);
        outer_round.rows("outer round", &mut sheet);
        if !self.alone {
            limits.rows(&mut sheet);
        }
        let figures = Figures {
            round_rate_vs_plain_quinn: outer_round.rate_vs_plain_quinn,
            average,
            outer_round,
            limits,
        };
        sheet.show(console, "bench round", &self, &figures)
    }
}
