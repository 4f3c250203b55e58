//! A cluster of bench processes whose nodes join and leave: collects the events of each node and
//! checks that the nodes agree.

use super::harness::{Settings, plan};
use super::node::{Closed, NodeEvent, Ready, Task};
use crate::console::Console;
use anyhow::{bail, ensure};
use nix::sys::signal::Signal;
use slowmo::status::Status;
use slowmo_ops::processes::{Group, Happening, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Decided rounds remembered for comparing the nodes' reports.
const ROUNDS_KEPT: usize = 4096;
/// Closed rounds remembered of each node.
const TIMES_KEPT: usize = 512;

/// The cluster of bench processes.
pub struct Cluster {
    console: Console,
    group: Group,
    nodes: BTreeMap<usize, Node>,
    rounds: BTreeMap<u64, Decided>,
    decided: u64,
    /// Nodes that were killed or drained, so that their end is not a failure.
    dismissed: BTreeSet<usize>,
    /// Nodes that ended with exit code 0.
    well: BTreeSet<usize>,
}

/// Events of one node since its last start.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Time at which its process began, in microseconds since 1970.
    pub up_us: Option<u64>,
    /// The moment at which it had the parameters.
    pub ready: Option<Ready>,
    /// Time at which it entered its last round, in microseconds since 1970.
    pub entered_us: u64,
    /// The rounds it closed, ascending; at most the last [`TIMES_KEPT`].
    pub closed: Vec<Closed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Decided {
    contributors: usize,
    digest: String,
}

impl Cluster {
    /// Bootstraps a cluster of `nodes` nodes with a model of `parameters` values.
    pub fn found(
        console: Console,
        nodes: usize,
        parameters: usize,
        compute_ms: u64,
        settings: Settings<'_>,
        time_max: Duration,
    ) -> anyhow::Result<Self> {
        let task = Task {
            parameters,
            compute_ms,
            ..Task::default()
        };
        let plan = plan(nodes, &task, settings, time_max)?;
        let group = Group::start(&plan)?;
        let nodes = group
            .running_nodes()
            .into_iter()
            .map(|node| (node, Node::default()))
            .collect();
        Ok(Self {
            console,
            group,
            nodes,
            rounds: BTreeMap::new(),
            decided: 0,
            dismissed: BTreeSet::new(),
            well: BTreeSet::new(),
        })
    }

    /// Ids of the nodes whose processes run, in ascending order.
    pub fn running(&self) -> Vec<usize> {
        self.group.running_nodes()
    }

    /// Whether the node ended with exit code 0.
    pub fn ended_well(&self, node: usize) -> bool {
        self.well.contains(&node)
    }

    /// Events of a node since its last start.
    pub fn node(&self, node: usize) -> &Node {
        static NOTHING: Node = Node {
            up_us: None,
            ready: None,
            entered_us: 0,
            closed: Vec::new(),
        };
        self.nodes.get(&node).unwrap_or(&NOTHING)
    }

    /// Number of decided rounds.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Signals a node; a node that dies of the signal has not failed.
    pub fn signal(&mut self, node: usize, signal: Signal) -> anyhow::Result<()> {
        if matches!(signal, Signal::SIGKILL | Signal::SIGTERM) {
            self.dismissed.insert(node);
        }
        ensure!(self.group.signal(node, signal), "node {node} does not run");
        Ok(())
    }

    /// Starts a node that joins the cluster.
    pub fn join(&mut self, node: usize) -> anyhow::Result<()> {
        self.nodes.insert(node, Node::default());
        self.dismissed.remove(&node);
        self.well.remove(&node);
        Ok(self.group.join(node, true)?)
    }

    /// Handles events until `enough` holds.
    pub fn wait(
        &mut self,
        what: &str,
        max: Duration,
        mut enough: impl FnMut(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + max;
        while !enough(self) {
            ensure!(
                Instant::now() < until,
                "{what}: not within {max:?}; {}",
                self.describe()
            );
            self.listen()?;
        }
        Ok(())
    }

    /// Reports from the nodes' admin sockets.
    pub fn reports(&self) -> Vec<Status> {
        let report = |node| self.group.report(node);
        self.running().into_iter().filter_map(report).collect()
    }

    /// Shards whose momentum was lost, as the node says that knows of most.
    pub fn momentum_lost(&self) -> u64 {
        let lost = self
            .reports()
            .into_iter()
            .map(|report| report.momentum_lost);
        lost.max().unwrap_or(0)
    }

    fn describe(&self) -> String {
        let of = |(node, told): (&usize, &Node)| match told.closed.last() {
            Some(last) => format!(
                "node {node} closed round {} with {} contributors",
                last.round, last.contributors
            ),
            None => format!("node {node} closed no round"),
        };
        let waits = self
            .reports()
            .into_iter()
            .find_map(|report| report.waiting_for)
            .unwrap_or_default();
        format!(
            "{} {waits}",
            self.nodes.iter().map(of).collect::<Vec<_>>().join(", ")
        )
    }

    fn listen(&mut self) -> anyhow::Result<()> {
        for happening in self.group.watch()? {
            match happening {
                Happening::Line(line) => match serde_json::from_str(&line.text) {
                    Ok(event) if line.stream == Stream::Output => self.note(line.node, event)?,
                    _ => self.console.node_line(&line),
                },
                Happening::Ended { node, status } if !self.dismissed.contains(&node) => {
                    bail!(
                        "node {node} ended ({status}): {}",
                        self.group.last_lines(node).join("\n    ")
                    );
                }
                Happening::Ended { node, status } => _ = status.success() && self.well.insert(node),
            }
        }
        Ok(())
    }

    fn note(&mut self, node: usize, event: NodeEvent) -> anyhow::Result<()> {
        let told = self.nodes.entry(node).or_default();
        match event {
            NodeEvent::Up { at_us } => told.up_us = Some(at_us),
            NodeEvent::Ready(ready) => told.ready = Some(ready),
            NodeEvent::Enter { at_us } => told.entered_us = at_us,
            NodeEvent::Round(closed) => {
                if told.closed.len() == TIMES_KEPT {
                    told.closed.remove(0);
                }
                let decided = Decided {
                    contributors: closed.contributors,
                    digest: closed.digest.clone(),
                };
                let round = closed.round;
                told.closed.push(closed);
                self.agree(node, round, decided)?;
            }
            // Only nodes that time their steps tell these.
            NodeEvent::Times { .. } | NodeEvent::Done(_) => {}
        }
        Ok(())
    }

    /// Checks that all nodes report the same outcome of a round.
    fn agree(&mut self, node: usize, round: u64, decided: Decided) -> anyhow::Result<()> {
        let first = !self.rounds.contains_key(&round);
        let known = self.rounds.entry(round).or_insert_with(|| decided.clone());
        ensure!(
            *known == decided,
            "round {round} was decided twice: node {node} has {decided:?}, another {known:?}"
        );
        self.decided += u64::from(first);
        if self.rounds.len() > ROUNDS_KEPT {
            self.rounds.pop_first();
        }
        Ok(())
    }
}

impl Node {
    /// The first round that the node closed after `at_us` and for which `counts` holds.
    pub fn closed_after(&self, at_us: u64, counts: impl Fn(&Closed) -> bool) -> Option<&Closed> {
        self.closed
            .iter()
            .find(|closed| closed.at_us > at_us && counts(closed))
    }

    /// Times between consecutive rounds that the node closed, in microseconds, for those that ended
    /// within the span.
    pub fn gaps(&self, from_us: u64, to_us: u64) -> impl Iterator<Item = u64> {
        let pairs = self
            .closed
            .windows(2)
            .filter(move |pair| (from_us..=to_us).contains(&pair[1].at_us));
        pairs.map(|pair| pair[1].at_us - pair[0].at_us)
    }
}
