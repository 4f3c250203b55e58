//! `slowmo bench round`: exact averages and outer rounds, compared with plain quinn that moves the
//! same bytes.

use super::limits::{LimitsReport, plain_quinn_ms, single_limits};
use super::run::{Figures, Fixed, Measurement, owned, ratio};
use super::sizes::Sizes;
use crate::console::{Console, table};
use clap::Args;
use serde::Serialize;
use slowmo_ops::processes::catch_signals;

/// Settings for exact averages only, at every step.
const AVERAGE: [(&str, &str); 4] = [
    ("SLOWMO_BASE", "local_sgd"),
    ("SLOWMO_FREQUENCY", "1"),
    ("SLOWMO_ALPHA", "1"),
    ("SLOWMO_BETA", "0"),
];
/// Settings for outer rounds only, at every step.
const OUTER_ROUND: [(&str, &str); 3] = [
    ("SLOWMO_BASE", "none"),
    ("SLOWMO_TAU", "1"),
    ("SLOWMO_BETA", "0.5"),
];

/// Exact averages and outer rounds over QUIC on loopback.
#[derive(Debug, Args)]
pub struct RoundBench {
    #[command(flatten)]
    sizes: Sizes,
    /// Timed rounds of each kind, after two warm-up rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Wire type of the parameters (round_wire).
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = ["f32", "bf16", "int8"])]
    wire: String,
}

/// Report of `bench round`.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    sizes: Sizes,
    rounds: u32,
    wire: String,
    average: Compared,
    outer_round: Compared,
    /// Rate of the outer round relative to plain quinn: 1 is as fast as quinn alone.
    round_rate_vs_plain_quinn: f64,
    limits: LimitsReport,
}

/// A measurement compared with plain quinn moving the same bytes, measured before and after it.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// Figures of the runtime.
    #[serde(flatten)]
    pub figures: Figures,
    /// Time of plain quinn: mean of the medians before and after.
    pub plain_quinn_ms: f64,
    /// `plain_quinn_ms / p50_ms`.
    pub rate_vs_plain_quinn: f64,
}

impl RoundBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        catch_signals();
        let limits = single_limits(console, self.sizes.model_bytes())?;
        let average = self
            .measurement(
                "exact averages",
                self.with_wire(&AVERAGE),
                self.average_bytes(),
            )
            .compare(console)?;
        let outer_round = self
            .measurement(
                "outer rounds",
                self.with_wire(&OUTER_ROUND),
                self.outer_round_bytes(),
            )
            .compare(console)?;
        let round_rate_vs_plain_quinn = outer_round.rate_vs_plain_quinn;
        let report = Report {
            command: "bench round",
            rounds: self.rounds,
            average,
            outer_round,
            round_rate_vs_plain_quinn,
            limits,
            wire: self.wire.clone(),
            sizes: self.sizes.clone(),
        };
        console.result(self.table(&report), &report)
    }

    fn with_wire(&self, settings: Fixed<'_>) -> Vec<(&'static str, String)> {
        owned(settings)
            .into_iter()
            .chain([("SLOWMO_ROUND_WIRE", self.wire.clone())])
            .collect()
    }

    /// Bytes of an exact average's parameters in their wire type.
    fn average_bytes(&self) -> f64 {
        self.sizes.average_bytes() * self.sizes.encoded_share(&self.wire)
    }

    /// Those bytes and the momentum's, which always travels as float32.
    fn outer_round_bytes(&self) -> f64 {
        self.average_bytes() + self.sizes.outer_round_bytes() - self.sizes.average_bytes()
    }

    fn table(&self, report: &Report) -> comfy_table::Table {
        let mut rows = report.average.rows("exact average", self.average_bytes());
        rows.extend(
            report
                .outer_round
                .rows("outer round", self.outer_round_bytes()),
        );
        rows.extend(report.limits.rows());
        let title = format!(
            "{} nodes, {} MiB as {}, {} rounds",
            self.sizes.nodes, self.sizes.mib, self.wire, self.rounds
        );
        table([title.as_str(), "figure"], rows)
    }

    fn measurement<'a>(
        &'a self,
        what: &'a str,
        settings: Vec<(&'static str, String)>,
        ideal_bytes: f64,
    ) -> Measurement<'a> {
        Measurement {
            what,
            sizes: &self.sizes,
            settings,
            steps: self.rounds,
            compute_ms: 0,
            ideal_bytes,
            slow: None,
        }
    }
}

impl Measurement<'_> {
    /// Measures plain quinn, then this measurement, then plain quinn again, because the machine's
    /// other load changes meanwhile.
    pub fn compare(&self, console: Console) -> anyhow::Result<Compared> {
        let before = plain_quinn_ms(console, self.sizes, self.ideal_bytes)?;
        let figures = self.run(console)?;
        let after = plain_quinn_ms(console, self.sizes, self.ideal_bytes)?;
        let plain_quinn_ms = f64::midpoint(before, after);
        let rate_vs_plain_quinn = ratio(plain_quinn_ms, figures.p50_ms);
        Ok(Compared {
            figures,
            plain_quinn_ms,
            rate_vs_plain_quinn,
        })
    }
}

impl Compared {
    /// Rows of a table: name and value; `ideal_bytes` as the measurement's.
    pub fn rows(&self, name: &str, ideal_bytes: f64) -> Vec<[String; 2]> {
        let figures = &self.figures;
        let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
        vec![
            [
                format!("{name}: p50 (min – max)"),
                format!(
                    "{:.1} ms ({:.1} – {:.1})",
                    figures.p50_ms, figures.min_ms, figures.max_ms
                ),
            ],
            [
                "  model bytes / time".into(),
                format!("{:.2} GB/s", figures.algorithm_bandwidth_gb_per_s),
            ],
            [
                "  sent by each node, and against the ideal".into(),
                format!(
                    "{:.1} MiB, × {:.3} of {:.1}",
                    mebibytes(figures.sent_bytes_per_node),
                    figures.sent_vs_ideal,
                    mebibytes(ideal_bytes)
                ),
            ],
            [
                "  peak memory of a node process".into(),
                format!("{:.1} × model", figures.peak_memory_models),
            ],
            [
                "  plain quinn, same processes and bytes".into(),
                format!("{:.1} ms", self.plain_quinn_ms),
            ],
            [
                "  rate against plain quinn".into(),
                format!("{:.2}", self.rate_vs_plain_quinn),
            ],
        ]
    }
}
