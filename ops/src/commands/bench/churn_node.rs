//! Hidden `slowmo bench-churn-node`: one node with synthetic parameters that trains until it is
//! ended or drained, and reports every decided round with the time.

use super::node::Synthetic;
use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use slowmo::{Config, Runtime};
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Name of the hidden subcommand.
pub const CHURN_NODE: &str = "bench-churn-node";
/// Inner learning rate; the slow step divides by it.
const LEARNING_RATE: f32 = 0.1;

/// One node of a cluster of changing size; its algorithm comes through `SLOWMO_*` variables.
#[derive(Debug, Args)]
pub struct ChurnNode {
    /// Float32 values of the model.
    #[arg(long)]
    parameters: usize,
    /// Simulated computation before each step, in milliseconds.
    #[arg(long, default_value_t = 0)]
    compute_ms: u64,
}

/// Event of a node, one JSON object per line. Times are microseconds since 1970: all nodes run on
/// one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NodeEvent {
    /// The process has started and is about to start the runtime.
    Up {
        /// Time of the event.
        at_us: u64,
    },
    /// The node has the cluster's parameters.
    Ready {
        /// Time of the event.
        at_us: u64,
        /// Number of the next round.
        round: u64,
        /// UDP payload bytes received so far.
        received_bytes: u64,
    },
    /// The node is about to enter a round.
    Enter {
        /// Time of the event.
        at_us: u64,
    },
    /// The node has the result of a decided round.
    Round {
        /// Time of the event.
        at_us: u64,
        /// Number of the round.
        round: u64,
        /// Nodes that were averaged.
        contributors: usize,
        /// Members of the view after it.
        members: usize,
        /// Whether the node was excluded from it.
        caught_up: bool,
        /// Duration of its publish phase until the decision, in microseconds.
        published_us: u64,
        /// Digest of the parameters.
        digest: String,
    },
}

impl ChurnNode {
    /// Trains until the node is drained.
    pub fn run(self) -> anyhow::Result<()> {
        tell(&NodeEvent::Up { at_us: now_us()? })?;
        let runtime = Runtime::builder().config(Config::load()?).spawn()?;
        let mut worker = runtime.worker(0)?;
        let mut params = Synthetic::new(self.parameters);
        let start = worker.synchronize(&mut params)?;
        tell(&NodeEvent::Ready {
            at_us: now_us()?,
            round: start.round,
            received_bytes: runtime.traffic().received_bytes,
        })?;
        loop {
            std::thread::sleep(Duration::from_millis(self.compute_ms));
            tell(&NodeEvent::Enter { at_us: now_us()? })?;
            let report = worker.step(&mut params, LEARNING_RATE)?;
            if let Some(round) = report.round {
                let at_us = now_us()?;
                let contributors = report.contributors;
                let members = report.nodes;
                let caught_up = report.caught_up;
                let digest = slowmo::digest(&params)?;
                let published_us = runtime.status().last_round.published_us;
                tell(&NodeEvent::Round {
                    at_us,
                    round,
                    contributors,
                    members,
                    caught_up,
                    published_us,
                    digest,
                })?;
            }
            if report.drained {
                return Ok(worker.leave()?);
            }
        }
    }
}

fn tell(event: &NodeEvent) -> anyhow::Result<()> {
    Ok(writeln!(
        std::io::stdout(),
        "{}",
        serde_json::to_string(event)?
    )?)
}

/// Microseconds since 1970.
pub fn now_us() -> anyhow::Result<u64> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    Ok(since.as_micros() as u64)
}
