//! `slowmo bench limits`: the raw limits of this machine, without the runtime.

use super::harness::{Sheet, mebibytes};
use super::sizes::Sizes;
use crate::console::Console;
use clap::Args;
use serde::Serialize;
use slowmo_ops::limits::{Carrier, Transfer, Work, copy_bytes_per_second, measure};

/// Measures the raw limits alone.
#[derive(Debug, Args, Serialize)]
pub struct Limits {
    #[command(flatten)]
    #[serde(flatten)]
    sizes: Sizes,
}

/// The raw limits of this machine, each the median of [`slowmo_ops::limits::REPETITIONS`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct LimitsReport {
    /// One QUIC connection between two processes.
    pub quic_stream_gb_per_s: f64,
    /// One TCP stream between two processes.
    pub tcp_stream_gb_per_s: f64,
    /// Memory copy on one core, bytes copied once.
    pub memory_copy_gb_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
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
    pub fn run(mut self, console: Console) -> anyhow::Result<()> {
        self.sizes.check()?;
        let sizes = &self.sizes;
        let mut sheet = Sheet::new(format!("limit of this machine, over {}", sizes.link()));
        let limits = single_limits(console, sizes)?;
        limits.rows(&mut sheet);
        let mut quinn = |what: &str, bytes: f64| {
            let ms = plain_quinn_ms(console, sizes, bytes, None)?;
            let nodes = sizes.nodes;
            let mib = mebibytes(bytes);
            sheet.row(
                format!("plain quinn, {nodes} processes, {what}: {mib:.0} MiB out of each"),
                format!("{ms:.1} ms"),
            );
            anyhow::Ok(ms)
        };
        let figures = Figures {
            limits,
            plain_quinn_average_ms: quinn("as an average", sizes.average_bytes())?,
            plain_quinn_outer_round_ms: quinn("as an outer round", sizes.outer_round_bytes())?,
            plain_quinn_gossip_ms: quinn("as a gossip", sizes.gossip_bytes())?,
        };
        sheet.show(console, "bench limits", &self, &figures)
    }
}

/// Measures the limits that do not depend on the number of nodes.
pub fn single_limits(console: Console, sizes: &Sizes) -> anyhow::Result<LimitsReport> {
    let bytes = sizes.model_bytes();
    let hosts = if sizes.hosts.len() < 2 {
        &[]
    } else {
        sizes.hosts.as_slice()
    };
    let rate = |carrier| {
        let transfer = Transfer {
            carrier,
            nodes: 2,
            bytes_per_peer: bytes,
            all_to_all: false,
            work: None,
        };
        measure(&transfer, hosts).map(|seconds| bytes as f64 / seconds / 1e9)
    };
    console.progress("measuring one QUIC connection");
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
/// out of each node, spread over its peers; 0 for a single node. If a share of them is added up,
/// each process also makes the copies and additions that any average must make.
pub fn plain_quinn_ms(
    console: Console,
    sizes: &Sizes,
    bytes: f64,
    added_share: Option<f64>,
) -> anyhow::Result<f64> {
    if sizes.nodes < 2 {
        return Ok(0.0);
    }
    let with_work = added_share.map_or("", |_| " with copies and additions");
    console.progress(format!(
        "measuring plain quinn{with_work} between {} processes, {:.0} MiB out of each",
        sizes.nodes,
        mebibytes(bytes)
    ));
    let bytes_per_peer = (bytes / f64::from(sizes.nodes - 1)) as u64;
    let work = added_share.map(|share| Work {
        model_bytes: sizes.model_bytes(),
        added_bytes_per_peer: (bytes_per_peer as f64 * share) as u64,
    });
    let transfer = Transfer {
        carrier: Carrier::Quic,
        nodes: usize::from(sizes.nodes),
        bytes_per_peer,
        all_to_all: true,
        work,
    };
    Ok(measure(&transfer, &sizes.hosts)? * 1e3)
}

impl LimitsReport {
    /// Adds the rows of the limits.
    pub fn rows(&self, sheet: &mut Sheet) {
        for (what, rate) in [
            (
                "one QUIC connection, 2 processes",
                self.quic_stream_gb_per_s,
            ),
            ("one TCP stream, 2 processes", self.tcp_stream_gb_per_s),
            ("memory copy, one core", self.memory_copy_gb_per_s),
        ] {
            sheet.row(what, format!("{rate:.2} GB/s"));
        }
    }
}
