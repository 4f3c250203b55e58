//! `slowmo demo`: node processes on this machine train on the handwritten digits, before the user's eyes.

mod agreement;
mod node;
mod report;
mod view;

use crate::console::Console;
use agreement::Agreement;
use anyhow::{Context, bail};
use clap::Args;
pub use node::{DEMO_NODE, DemoNode};
use report::{NodeResult, Report};
use serde::Deserialize;
use slowmo_ops::processes::{Flow, GroupError, Line, NODES_MAX, Plan, Stream, catch_signals, supervise};
use std::time::{Duration, Instant};
use view::View;

/// How long the demo may take.
const TIME_MAX: Duration = Duration::from_secs(300);
/// SGP, and SlowMo's outer round every so many inner steps.
const TAU: &str = "12";
/// SlowMo's momentum.
const BETA: &str = "0.5";

/// Train on the handwritten digits with a few node processes, live.
///
/// The nodes gossip (SGP) over encrypted QUIC on loopback; every 12 steps an outer round (SlowMo) makes their models
/// bit-identical, which the demo checks.
#[derive(Debug, Args)]
pub struct Demo {
    /// Node processes.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64))]
    nodes: u16,
    /// Inner steps.
    #[arg(long, value_name = "K", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
}

/// What a node tells, one JSON object a line.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum NodeEvent {
    Step {
        step: u64,
        loss: f64,
    },
    Round {
        round: u64,
        step: u64,
        digest: String,
    },
    Done(NodeResult),
    #[serde(other)]
    Other,
}

/// The demo under way.
struct Run {
    console: Console,
    view: View,
    agreement: Agreement,
    results: Vec<Option<NodeResult>>,
    /// Rounds that each node closed.
    rounds: Vec<u64>,
    disagreement: Option<anyhow::Error>,
}

impl Demo {
    /// Runs the nodes, shows their progress, checks what they reached.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let nodes = usize::from(self.nodes);
        console.say(format!(
            "{nodes} node processes train on handwritten digits: SGP gossip, SlowMo every {TAU} steps (β = {BETA}), QUIC on loopback"
        ));
        catch_signals();
        let start = Instant::now();
        let mut run = Run {
            console,
            view: View::new(console, nodes, self.steps),
            agreement: Agreement::new(nodes),
            results: vec![None; nodes],
            rounds: vec![0; nodes],
            disagreement: None,
        };
        let ended = supervise(&self.plan()?, &mut |line| run.hear(line));
        run.view.close();
        match (ended, run.disagreement.take()) {
            (Err(GroupError::Stopped), Some(disagreement)) => return Err(disagreement),
            (ended, _) => ended?,
        }
        let report = run.report(self.steps, start.elapsed())?;
        let Some(problem) = report.problem() else { return console.result(report.to_text(), &report) };
        console.say(report.to_text());
        bail!(problem)
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let plan = Plan::new(program, self.nodes.into()).arguments([DEMO_NODE.into(), "--steps".into(), self.steps.to_string()]);
        let plan = plan.variable("SLOWMO_BASE", "sgp").variable("SLOWMO_TAU", TAU).variable("SLOWMO_BETA", BETA);
        Ok(plan.isolated(TIME_MAX))
    }
}

impl Run {
    /// Takes in one line of a node; anything but an event is shown as it is.
    fn hear(&mut self, line: &Line) -> Flow {
        let event = if line.stream == Stream::Output { serde_json::from_str(&line.text).ok() } else { None };
        match event {
            None => self.view.above(|| self.console.node_line(line)),
            Some(NodeEvent::Step { step, loss }) => self.view.step(line.node, step, loss),
            Some(NodeEvent::Done(result)) => self.results[line.node - 1] = Some(result),
            Some(NodeEvent::Round { round, step, digest }) => return self.round(line.node, round, step, digest),
            Some(NodeEvent::Other) => {}
        }
        Flow::Continue
    }

    fn round(&mut self, node: usize, round: u64, step: u64, digest: String) -> Flow {
        self.rounds[node - 1] += 1;
        self.view.round(node, self.rounds[node - 1]);
        match self.agreement.note(node, round, digest) {
            Ok(None) => Flow::Continue,
            Ok(Some(digest)) => {
                self.view.agreed(round, step, &digest);
                Flow::Continue
            }
            Err(disagreement) => {
                self.disagreement = Some(disagreement.into());
                Flow::Stop
            }
        }
    }

    fn report(self, steps: u64, elapsed: Duration) -> anyhow::Result<Report> {
        let with_rounds = |(index, (result, rounds)): (usize, (Option<NodeResult>, u64))| {
            let mut result = result.with_context(|| format!("node {} ended without its results", index + 1))?;
            result.rounds = rounds;
            Ok(result)
        };
        let nodes: anyhow::Result<Vec<_>> = self.results.into_iter().zip(self.rounds).enumerate().map(with_rounds).collect();
        Ok(Report::new(nodes?, steps, self.agreement.agreed(), elapsed.as_secs_f64()))
    }
}
