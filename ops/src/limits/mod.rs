//! The raw limits of this machine: the throughput of plain quinn, plain TCP and a memory copy,
//! measured beside the runtime.
//!
//! May start processes of this program ([`RAW_NODE`]), bind loopback sockets and use one core per
//! process. Knows nothing of the runtime, so that its figures are an independent bound and not a
//! copy of the runtime's own choices.

mod memory;
mod quic;
mod rendezvous;
mod tcp;
mod work;

use crate::processes::{Host, LISTEN, NODE_ID, Plan, RENDEZVOUS, Stream, supervise};
use anyhow::Context;
pub use memory::copy_bytes_per_second;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
pub use work::Work;

/// The hidden subcommand under which the program must call [`run_node`] with the argument that
/// follows it.
pub const RAW_NODE: &str = "raw-node";
/// Repetitions of one measurement; the median is reported.
pub const REPETITIONS: usize = 3;
/// Longest time that one measurement may take.
const TIME_MAX: Duration = Duration::from_secs(180);
/// Bytes per write to a socket or a stream.
const CHUNK_BYTES: usize = 256 * 1024;

/// Transport protocol of a raw transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// quinn: one connection per pair of processes, several streams in each direction.
    Quic,
    /// One TCP connection from process 1 to process 2.
    Tcp,
}

/// One raw transfer, repeated [`REPETITIONS`] times after one warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Transport protocol.
    pub carrier: Carrier,
    /// Processes, 2 or more.
    pub nodes: usize,
    /// Bytes each sender sends to each other process in one repetition.
    pub bytes_per_peer: u64,
    /// Whether every process sends to every other; otherwise process 1 sends to the others.
    pub all_to_all: bool,
    /// The work of each process beside moving bytes; only with [`Carrier::Quic`].
    pub work: Option<Work>,
}

/// One process of a transfer.
struct Me {
    /// Its number, from 1.
    node: usize,
    /// Where it listens; port 0 takes a free one.
    listen: SocketAddr,
    /// Where the processes find each other's addresses.
    folder: PathBuf,
}

/// Runs the transfer in child processes, on loopback or in the first of these namespaces.
///
/// Returns the median over the repetitions of the slowest process's time, in seconds.
///
/// # Errors
/// A process failed.
pub fn measure(transfer: &Transfer, hosts: &[Host]) -> anyhow::Result<f64> {
    let arguments = [RAW_NODE.to_owned(), serde_json::to_string(transfer)?];
    let mut plan = Plan::of_this_program(transfer.nodes, arguments)?.isolated(TIME_MAX);
    plan.hosts = hosts.to_vec();
    let mut told: Vec<Vec<f64>> = vec![Vec::new(); transfer.nodes];
    supervise(&plan, &mut |line| {
        if line.stream == Stream::Output {
            told[line.node - 1] = serde_json::from_str(&line.text).unwrap_or_default();
        }
    })
    .context("a raw transfer failed")?;
    let mut slowest = vec![0.0f64; REPETITIONS];
    for (index, seconds) in told.iter().enumerate() {
        anyhow::ensure!(
            seconds.len() == REPETITIONS,
            "raw transfer: node {} reported no times",
            index + 1
        );
        for (slowest, seconds) in slowest.iter_mut().zip(seconds) {
            *slowest = slowest.max(*seconds);
        }
    }
    Ok(median(&mut slowest))
}

/// Runs the part of one process, which was started with a node's environment, and prints the time
/// of each repetition in seconds. `transfer` is a [`Transfer`] as JSON.
///
/// # Errors
/// A socket failed, or a peer did not appear.
pub fn run_node(transfer: &str) -> anyhow::Result<()> {
    let transfer: Transfer = serde_json::from_str(transfer)?;
    let variable = |name| std::env::var(name).with_context(|| format!("{name} is not set"));
    let me = Me {
        node: variable(NODE_ID)?.parse()?,
        listen: variable(LISTEN)?.parse()?,
        folder: PathBuf::from(variable(RENDEZVOUS)?),
    };
    let seconds = match transfer.carrier {
        Carrier::Quic => quic::run(&transfer, &me)?,
        Carrier::Tcp => tcp::run(&transfer, &me)?,
    };
    println!("{}", serde_json::to_string(&seconds)?);
    Ok(())
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
