//! Requests of an orchestrator to one node on its admin socket: whether it lives, whether it is a
//! member, whether it is gone.

use crate::console::Console;
use anyhow::{bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use slowmo::internal::admin::{Answer, ClusterStatus, Request};
use slowmo::status::{MemberState, Status};
use slowmo_ops::jobs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for a drained node, in seconds: one day.
pub const WAIT_SECONDS_MAX: i64 = 86_400;
/// Polling period of a leaving node.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Condition that a probe checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// The node answers.
    Live,
    /// The node is a member of the view.
    Ready,
}

#[derive(Debug, Serialize)]
struct Probed {
    probe: Probe,
    node: u64,
    standing: MemberState,
}

impl Probe {
    /// Prints the member state of the node; fails if it does not meet the probe.
    pub fn judge(self, report: &Status, console: Console) -> anyhow::Result<()> {
        let Status { node, standing, .. } = report;
        ensure!(
            self.is_met(*standing),
            "node {node} is not a member: {standing}{}",
            waits(report)
        );
        let probed = Probed {
            probe: self,
            node: *node,
            standing: *standing,
        };
        console.done("status", format!("node {node}: {standing}"), &probed)
    }

    fn is_met(self, standing: MemberState) -> bool {
        self == Self::Live || standing == MemberState::Member
    }
}

/// Fetches a node's report of itself.
pub fn status(socket: &Path) -> anyhow::Result<Status> {
    match jobs::ask_at(socket, Request::Status)? {
        Answer::Status(report) => Ok(*report),
        _ => bail!("{} answered something else", socket.display()),
    }
}

/// Fetches what a node reports of the whole cluster.
pub fn cluster(socket: &Path) -> anyhow::Result<ClusterStatus> {
    match jobs::ask_at(socket, Request::Cluster)? {
        Answer::Cluster(cluster) => Ok(*cluster),
        _ => bail!("{} answered something else", socket.display()),
    }
}

/// Waits until nothing serves the socket any more: the node has left, and its process has dropped
/// the runtime.
pub fn wait_until_gone(socket: &Path, wait_max: Duration) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let last = match jobs::ask_at(socket, Request::Status) {
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => error.to_string(),
            Ok(Answer::Status(report)) => format!("it is {}{}", report.standing, waits(&report)),
            Ok(_) => "it answered something else".to_owned(),
        };
        if begun.elapsed() >= wait_max {
            bail!(
                "the node at {} has not ended within {} s: {last}; it still tries to leave",
                socket.display(),
                wait_max.as_secs()
            );
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn waits(report: &Status) -> String {
    let why = report.waiting_for.as_ref().or(report.awaits.as_ref());
    why.map_or_else(String::new, |why| format!("; waits: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_member_is_ready_and_whoever_answers_lives() {
        for standing in MemberState::ALL {
            assert!(Probe::Live.is_met(standing));
            assert_eq!(
                Probe::Ready.is_met(standing),
                standing == MemberState::Member
            );
        }
    }
}
