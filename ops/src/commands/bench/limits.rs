//! `slowmo bench limits`: the raw limits of this machine, without the runtime.

use super::sizes::Sizes;
use crate::console::{Console, table};
use clap::Args;
use serde::Serialize;
use slowmo_ops::limits::{Carrier, Transfer, copy_bytes_per_second, measure};
use slowmo_ops::processes::catch_signals;

/// Measures the raw limits alone.
#[derive(Debug, Args)]
pub struct Limits {
    #[command(flatten)]
    sizes: Sizes,
}

/// The raw limits of this machine, each the median of [`slowmo_ops::limits::REPETITIONS`].
#[derive(Clone, Debug, Serialize)]
pub struct LimitsReport {
    /// One QUIC stream between two processes.
    pub quic_stream_gb_per_s: f64,
    /// One TCP stream between two processes.
    pub tcp_stream_gb_per_s: f64,
    /// Memory copy on one core, bytes copied once.
    pub memory_copy_gb_per_s: f64,
}

/// Report of `bench limits`.
#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    #[serde(flatten)]
    sizes: Sizes,
    limits: LimitsReport,
    /// Time of plain quinn, all to all, for the bytes of an exact average.
    plain_quinn_average_ms: f64,
    /// Time of plain quinn, all to all, for the bytes of an outer round.
    plain_quinn_outer_round_ms: f64,
    /// Time of plain quinn, all to all, for the bytes of one gossip.
    plain_quinn_gossip_ms: f64,
}

impl Limits {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        catch_signals();
        let limits = single_limits(console, self.sizes.model_bytes())?;
        let plain_quinn_average_ms =
            plain_quinn_ms(console, &self.sizes, self.sizes.average_bytes())?;
        let plain_quinn_outer_round_ms =
            plain_quinn_ms(console, &self.sizes, self.sizes.outer_round_bytes())?;
        let plain_quinn_gossip_ms =
            plain_quinn_ms(console, &self.sizes, self.sizes.gossip_bytes())?;
        let report = Report {
            command: "bench limits",
            sizes: self.sizes,
            limits,
            plain_quinn_average_ms,
            plain_quinn_outer_round_ms,
            plain_quinn_gossip_ms,
        };
        console.result(report.to_table(), &report)
    }
}

/// Measures the limits that do not depend on the number of nodes.
pub fn single_limits(console: Console, bytes: u64) -> anyhow::Result<LimitsReport> {
    let rate = |carrier| {
        measure(&Transfer {
            carrier,
            nodes: 2,
            bytes_per_peer: bytes,
            all_to_all: false,
        })
        .map(|seconds| bytes as f64 / seconds / 1e9)
    };
    console.progress("measuring one QUIC stream");
    let quic_stream_gb_per_s = rate(Carrier::Quic)?;
    console.progress("measuring one TCP stream");
    let tcp_stream_gb_per_s = rate(Carrier::Tcp)?;
    console.progress("measuring memory copy");
    Ok(LimitsReport {
        quic_stream_gb_per_s,
        tcp_stream_gb_per_s,
        memory_copy_gb_per_s: copy_bytes_per_second() / 1e9,
    })
}

/// Time in milliseconds in which plain quinn connections, between as many processes, move `bytes`
/// out of each node, spread over its peers; 0 for a single node.
pub fn plain_quinn_ms(console: Console, sizes: &Sizes, bytes: f64) -> anyhow::Result<f64> {
    if sizes.nodes < 2 {
        return Ok(0.0);
    }
    console.progress(format!(
        "measuring plain quinn between {} processes, {:.0} MiB out of each",
        sizes.nodes,
        bytes / f64::from(1 << 20)
    ));
    let bytes_per_peer = (bytes / f64::from(sizes.nodes - 1)) as u64;
    let transfer = Transfer {
        carrier: Carrier::Quic,
        nodes: usize::from(sizes.nodes),
        bytes_per_peer,
        all_to_all: true,
    };
    Ok(measure(&transfer)? * 1e3)
}

impl LimitsReport {
    /// Rows of a table: name and value.
    pub fn rows(&self) -> Vec<[String; 2]> {
        let row = |what: &str, rate: f64| [what.to_owned(), format!("{rate:.2} GB/s")];
        vec![
            row("one QUIC stream, 2 processes", self.quic_stream_gb_per_s),
            row("one TCP stream, 2 processes", self.tcp_stream_gb_per_s),
            row("memory copy, one core", self.memory_copy_gb_per_s),
        ]
    }
}

impl Report {
    fn to_table(&self) -> comfy_table::Table {
        let mut rows = self.limits.rows();
        let quinn = |what: &str, bytes: f64, ms: f64| {
            let mebibytes = bytes / f64::from(1 << 20);
            [
                format!(
                    "plain quinn, {} processes, {what}: {mebibytes:.0} MiB out of each",
                    self.sizes.nodes
                ),
                format!("{ms:.1} ms"),
            ]
        };
        rows.push(quinn(
            "as an average",
            self.sizes.average_bytes(),
            self.plain_quinn_average_ms,
        ));
        rows.push(quinn(
            "as an outer round",
            self.sizes.outer_round_bytes(),
            self.plain_quinn_outer_round_ms,
        ));
        rows.push(quinn(
            "as a gossip",
            self.sizes.gossip_bytes(),
            self.plain_quinn_gossip_ms,
        ));
        table(["limit of this machine", "figure"], rows)
    }
}
