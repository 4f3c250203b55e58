//! The raw limits of this machine: the throughput of plain quinn, plain TCP and a memory copy,
//! measured beside the runtime.
//!
//! May start processes of this program ([`RAW_NODE`]), bind loopback sockets and use one core per
//! process. Knows nothing of the runtime, so that its figures are an independent bound and not a
//! copy of the runtime's own choices.

mod certificate;
mod meeting;
mod memory;
mod quic;
mod tcp;

use crate::processes::{Flow, GroupError, Plan, Stream, supervise};
pub use memory::copy_bytes_per_second;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The hidden subcommand under which the program must call [`run_node`].
pub const RAW_NODE: &str = "raw-node";
/// Repetitions of one measurement; the median is reported.
pub const REPETITIONS: usize = 3;
/// Longest time that one measurement may take.
const TIME_MAX: Duration = Duration::from_secs(180);
/// Bytes per write to a socket or a stream.
const CHUNK_BYTES: usize = 256 * 1024;

/// Transport protocol of a raw transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// quinn: one connection per pair of processes, one stream in each direction.
    Quic,
    /// One TCP connection from process 1 to process 2.
    Tcp,
}

/// One raw transfer, repeated [`REPETITIONS`] times after one warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Transport protocol.
    pub carrier: Carrier,
    /// Processes, 2 or more.
    pub nodes: usize,
    /// Bytes each sender sends to each other process in one repetition.
    pub bytes_per_peer: u64,
    /// Whether every process sends to every other; otherwise process 1 sends to the others.
    pub all_to_all: bool,
}

/// Reasons why a raw measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// A process of the measurement failed.
    #[error("a raw transfer failed")]
    Processes(#[from] GroupError),
    /// The path of this program cannot be determined.
    #[error("cannot find this program")]
    Program(#[source] std::io::Error),
    /// A process ended without reporting its times.
    #[error("raw transfer: node {0} reported no times")]
    NoReport(usize),
}

/// Reasons why one process of a raw transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum RawNodeError {
    /// A socket or file operation failed.
    #[error("{doing}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Not enough processes appeared.
    #[error("only {found} of {expected} processes appeared in time")]
    Missing {
        /// Processes that appeared.
        found: usize,
        /// Processes expected.
        expected: usize,
    },
    /// The throwaway certificate could not be made or used.
    #[error("certificate: {0}")]
    Certificate(String),
    /// The QUIC connection or one of its streams failed.
    #[error("quic: {0}")]
    Quic(String),
    /// The peer sent an unexpected number of bytes.
    #[error("received {found} of {expected} bytes")]
    Length {
        /// Bytes received.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
}

/// Report of one process, as one JSON line.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// Time of each repetition, in seconds.
    seconds: Vec<f64>,
}

/// Runs the transfer in child processes.
///
/// Returns the median over the repetitions of the slowest process's time, in seconds.
///
/// # Errors
/// A process failed.
pub fn measure(transfer: &Transfer) -> Result<f64, LimitError> {
    let program = std::env::current_exe().map_err(LimitError::Program)?;
    let plan = Plan::new(program, transfer.nodes)
        .arguments(arguments_of(transfer))
        .isolated(TIME_MAX);
    let mut reports: Vec<Option<Report>> = (0..transfer.nodes).map(|_| None).collect();
    supervise(&plan, &mut |line| {
        if line.stream == Stream::Output {
            reports[line.node - 1] = serde_json::from_str(&line.text).ok();
        }
        Flow::Continue
    })?;
    let mut slowest = vec![0.0f64; REPETITIONS];
    for (index, report) in reports.iter().enumerate() {
        let seconds = report
            .as_ref()
            .map(|report| &report.seconds)
            .filter(|seconds| seconds.len() == REPETITIONS);
        let seconds = seconds.ok_or(LimitError::NoReport(index + 1))?;
        slowest
            .iter_mut()
            .zip(seconds)
            .for_each(|(slowest, seconds)| *slowest = slowest.max(*seconds));
    }
    Ok(median(&mut slowest))
}

/// Runs the part of one process and prints its report. `node` counts from 1; the processes share
/// `folder`.
///
/// # Errors
/// A socket failed, or a peer did not appear.
pub fn run_node(
    transfer: &Transfer,
    node: usize,
    folder: &std::path::Path,
) -> Result<String, RawNodeError> {
    let seconds = match transfer.carrier {
        Carrier::Quic => quic::run(transfer, node, folder)?,
        Carrier::Tcp => tcp::run(transfer, node, folder)?,
    };
    Ok(format!("{{\"seconds\":{seconds:?}}}"))
}

/// Median of the values: the mean of the two middle ones for an even count, 0 for none.
#[must_use]
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

fn arguments_of(transfer: &Transfer) -> Vec<String> {
    let carrier = match transfer.carrier {
        Carrier::Quic => "quic",
        Carrier::Tcp => "tcp",
    };
    let mut arguments = vec![RAW_NODE.into(), "--carrier".into(), carrier.into()];
    arguments.extend(["--nodes".into(), transfer.nodes.to_string()]);
    arguments.extend([
        "--bytes-per-peer".into(),
        transfer.bytes_per_peer.to_string(),
    ]);
    arguments.extend(transfer.all_to_all.then(|| "--all-to-all".into()));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, expected) in [
            (vec![], 0.0),
            (vec![3.0], 3.0),
            (vec![3.0, 1.0, 2.0], 2.0),
            (vec![4.0, 1.0, 2.0, 3.0], 2.5),
        ] {
            let mut values: Vec<f64> = values;
            assert!((median(&mut values) - expected).abs() < 1e-12);
        }
    }
}
