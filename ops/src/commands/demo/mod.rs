//! `slowmo demo`: node processes on this machine train on the handwritten digits with live
//! progress; one of them is killed during the run, and a new one joins.

mod agreement;
mod node;
mod report;
mod view;

use crate::console::Console;
use agreement::{Agreed, Agreement};
use anyhow::bail;
use clap::Args;
use nix::sys::signal::Signal;
pub use node::{DEMO_NODE, DemoNode};
use report::{Fate, NodeResult, Report, Row};
use serde::Deserialize;
use slowmo_ops::processes::{Group, Happening, Line, NODES_MAX, Plan, Stream, catch_signals};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use view::View;

/// Time limit of the demo.
const TIME_MAX: Duration = Duration::from_secs(300);
/// Inner steps per outer round of SlowMo; SGP gossips in between.
const TAU: &str = "12";
/// SlowMo's momentum.
const BETA: &str = "0.5";
/// Shorter runs are over before a new node is up, so in them nothing is killed and nobody joins.
const STEPS_WITH_FAULTS_MIN: u64 = 480;

/// Train on the handwritten digits with a few node processes, live.
///
/// The nodes gossip (SGP) over encrypted QUIC on loopback; every 12 steps an outer round (SlowMo)
/// makes their models bit-identical, which the demo checks. After a quarter of the steps one node
/// is killed with SIGKILL and a new one joins.
#[derive(Debug, Args)]
pub struct Demo {
    /// Node processes.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..NODES_MAX as i64)
    )]
    nodes: u16,
    /// Inner steps.
    #[arg(
        long,
        value_name = "K",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    steps: u64,
    /// Kill no node and add none; fewer than 480 steps imply this.
    #[arg(long)]
    calm: bool,
}

/// Event of a node, one JSON object per line.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum NodeEvent {
    Start {
        step: u64,
    },
    Step {
        step: u64,
        loss: f64,
    },
    Round {
        round: u64,
        step: u64,
        contributors: usize,
        digest: String,
    },
    Done(NodeResult),
}

/// The demo in progress.
struct Run {
    console: Console,
    steps: u64,
    /// Number of bootstrap members.
    bootstrapped: usize,
    view: View,
    group: Group,
    agreement: Agreement,
    results: BTreeMap<usize, Row>,
    /// Node to be killed; `None` once it has been.
    victim: Option<usize>,
    /// The joining node, set at its launch.
    newcomer: Option<usize>,
    killed_at: Option<Instant>,
    /// Time from the kill until a round was decided without the victim.
    recovery: Option<Duration>,
}

impl Demo {
    /// Runs the nodes, shows their progress, and checks their results.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let nodes = usize::from(self.nodes);
        console.say(format!(
            "{nodes} node processes train on handwritten digits: SGP gossip, SlowMo every {TAU} \
             steps (β = {BETA}), QUIC on loopback"
        ));
        catch_signals();
        let start = Instant::now();
        let faults = !self.calm && self.steps >= STEPS_WITH_FAULTS_MIN;
        let mut run = Run {
            console,
            steps: self.steps,
            bootstrapped: nodes,
            view: View::new(console, nodes, self.steps),
            group: Group::start(&self.plan()?)?,
            agreement: Agreement::default(),
            results: (1..=nodes)
                .map(|node| (node, Row::new(node, Fate::Bootstrapped)))
                .collect(),
            // The leader, if the others are a quorum without it.
            victim: match nodes {
                _ if !faults => None,
                0 | 1 => None,
                2 => Some(2),
                _ => Some(1),
            },
            newcomer: None,
            killed_at: None,
            recovery: None,
        };
        let ended = run.watch(start + TIME_MAX);
        run.view.close();
        ended?;
        let report = run.report(start.elapsed());
        let Some(problem) = report.problem() else {
            return console.result(report.to_text(), &report);
        };
        console.say(report.to_text());
        bail!(problem)
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let steps = self.steps.to_string();
        let arguments = [DEMO_NODE, "--steps", &steps];
        let plan = Plan::of_this_program(self.nodes.into(), arguments)?
            .variable("SLOWMO_BASE", "sgp")
            .variable("SLOWMO_TAU", TAU)
            .variable("SLOWMO_BETA", BETA);
        Ok(plan.isolated(TIME_MAX))
    }
}

impl Run {
    /// Handles the nodes' events until all have ended.
    fn watch(&mut self, until: Instant) -> anyhow::Result<()> {
        while !self.group.is_over() {
            for happening in self.group.watch()? {
                match happening {
                    Happening::Line(line) => self.hear(&line)?,
                    Happening::Ended { node, status } => self.ended(node, status)?,
                }
            }
            if Instant::now() >= until {
                bail!("not done after {TIME_MAX:?}; all nodes were ended");
            }
        }
        Ok(())
    }

    /// Handles one line of a node; a line that is not an event is shown as it is.
    fn hear(&mut self, line: &Line) -> anyhow::Result<()> {
        let event = if line.stream == Stream::Output {
            serde_json::from_str(&line.text).ok()
        } else {
            None
        };
        let node = line.node;
        match event {
            None => self.view.above(|| self.console.node_line(line)),
            Some(NodeEvent::Start { step }) if self.newcomer == Some(node) => {
                self.row(node).fate = Fate::Joined { step };
                self.view.note(
                    node,
                    step,
                    &format!("node {node} joined at step {step} with the cluster's model"),
                );
            }
            Some(NodeEvent::Start { .. }) => {}
            Some(NodeEvent::Step { step, loss }) => self.view.step(node, step, loss),
            Some(NodeEvent::Done(result)) => self.row(node).result = Some(result),
            Some(NodeEvent::Round {
                round,
                step,
                contributors,
                digest,
            }) => self.round(node, round, step, contributors, digest)?,
        }
        Ok(())
    }

    fn row(&mut self, node: usize) -> &mut Row {
        self.results
            .entry(node)
            .or_insert_with(|| Row::new(node, Fate::TooLate))
    }

    fn round(
        &mut self,
        node: usize,
        round: u64,
        step: u64,
        contributors: usize,
        digest: String,
    ) -> anyhow::Result<()> {
        self.row(node).rounds += 1;
        self.view.round(node, round);
        let agreed = self.agreement.note(node, round, contributors, digest)?;
        if let Some(Agreed {
            round,
            contributors,
            digest,
        }) = agreed
        {
            self.view.agreed(round, step, &digest, contributors);
        }
        // A joining node's first contribution comes in a later round than the first one without the
        // victim.
        if let Some(killed_at) = self.killed_at
            && self.recovery.is_none()
            && contributors < self.bootstrapped
        {
            self.recovery = Some(killed_at.elapsed());
        }
        match self.victim {
            Some(victim) if step >= self.steps / 4 => self.kill(victim, step),
            _ => Ok(()),
        }
    }

    /// Kills a node and starts another one under a new id.
    fn kill(&mut self, victim: usize, step: u64) -> anyhow::Result<()> {
        self.victim = None;
        self.killed_at = Some(Instant::now());
        self.group.signal(victim, Signal::SIGKILL);
        self.agreement.dead(victim);
        self.row(victim).fate = Fate::Killed { step };
        self.view.killed(victim, step);
        let newcomer = self.results.keys().next_back().map_or(1, |node| node + 1);
        self.row(newcomer);
        self.newcomer = Some(newcomer);
        self.view.add(newcomer);
        Ok(self.group.join(newcomer, true)?)
    }

    fn ended(&mut self, node: usize, status: std::process::ExitStatus) -> anyhow::Result<()> {
        let row = self.row(node).clone();
        let dismissed = matches!(row.fate, Fate::Killed { .. } | Fate::TooLate);
        let done = row.result.is_some();
        let well = status.success() && done;
        if !dismissed && !well {
            bail!(
                "node {node} ended ({status}); its last lines:\n    {}",
                self.group.last_lines(node).join("\n    ")
            );
        }
        // A node that would join a cluster that has ended would wait in vain.
        let late = self
            .newcomer
            .filter(|newcomer| self.group.running_nodes() == [*newcomer]);
        if let Some(newcomer) = late.filter(|newcomer| self.row(*newcomer).fate == Fate::TooLate) {
            self.group.signal(newcomer, Signal::SIGTERM);
        }
        Ok(())
    }

    fn report(self, elapsed: Duration) -> Report {
        let agreed = self.agreement.agreed();
        let open = self.agreement.open();
        Report::new(
            self.results.into_values().collect(),
            self.steps,
            agreed,
            open,
            self.recovery,
            elapsed,
        )
    }
}
