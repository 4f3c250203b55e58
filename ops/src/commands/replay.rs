//! `slowmo replay`: shows a recorded run event by event, with the verdicts of the invariants.

use crate::console::{Console, Told, table};
use anyhow::ensure;
use clap::{Args, ValueEnum};
use serde::Serialize;
use slowmo_chaos::invariants::Verdict;
use slowmo_chaos::processes::replay::{Assumed, Broken, Recorded, node_of, words};
use slowmo_chaos::processes::report::Judged;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::trace::Line;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

/// Step through recorded events of nodes (keys `trace` and `flight`, or a chaos run's trace.jsonl)
/// and check the invariants.
///
/// A trace that begins in the middle, as a flight recorder's does, is judged by the rules that need
/// no beginning. Exits with 1 if an invariant is broken.
#[derive(Debug, Args)]
pub struct Replay {
    /// Files of events, or folders of them; several are merged in order of time.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Show the events from this index on.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: usize,
    /// Show this many events; 0 shows none.
    #[arg(long, value_name = "N")]
    count: Option<usize>,
    /// Show the events of this node only.
    #[arg(long, value_name = "ID")]
    node: Option<u64>,
    /// Step through the events one by one: Enter for the next, a number to jump there, v for the
    /// next broken rule, q to end.
    #[arg(long, conflicts_with = "count")]
    step: bool,
    /// The quorum that could decide, if the trace does not say.
    #[arg(long, value_enum, default_value_t)]
    quorum: QuorumWord,
    /// Replicas of a shard, if the trace does not say.
    #[arg(long, value_name = "R", default_value_t = 1)]
    replicas: usize,
}

/// [`Quorum`] as a command-line value.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum QuorumWord {
    #[default]
    Majority,
    Survivors,
}

#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    succeeded: bool,
    events: usize,
    from_the_beginning: bool,
    /// First violation of each rule, by event.
    broken: Vec<(usize, String)>,
    verdicts: Vec<Judged>,
}

impl Replay {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let quorum = match self.quorum {
            QuorumWord::Majority => Quorum::Majority,
            QuorumWord::Survivors => Quorum::Survivors,
        };
        let recorded = Recorded::read(
            &self.paths,
            Assumed {
                quorum,
                replicas: self.replicas,
            },
        )?;
        ensure!(
            !recorded.lines.is_empty(),
            "there are no events in {:?}",
            self.paths
        );
        let (broken, verdicts) = recorded.judge();
        if self.step {
            ensure!(std::io::stdin().is_terminal(), "--step wants a terminal");
            step(&recorded.lines, &broken, self.from)?;
        } else {
            self.show(&recorded.lines, &broken, console);
        }
        let verdicts: Vec<Judged> = verdicts
            .into_iter()
            .map(|(name, verdict)| Judged {
                name: name.to_owned(),
                verdict,
            })
            .collect();
        let violated = verdicts
            .iter()
            .any(|judged| matches!(judged.verdict, Verdict::Violated(_)));
        let rows = verdicts
            .iter()
            .map(|Judged { name, verdict }| [name.clone(), outcome(verdict)]);
        let text = table(["invariant", "verdict"], rows);
        let report = Report {
            command: "replay",
            succeeded: !violated,
            events: recorded.lines.len(),
            from_the_beginning: recorded.from_the_beginning,
            broken: broken
                .iter()
                .map(|broken| (broken.index, broken.violation.what.clone()))
                .collect(),
            verdicts,
        };
        console.result(text, &report)?;
        if violated { Err(Told.into()) } else { Ok(()) }
    }

    fn show(&self, lines: &[Line], broken: &[Broken], console: Console) {
        let wanted = |line: &&(usize, &Line)| {
            self.node
                .is_none_or(|node| node_of(&line.1.event).is_some_and(|of| of.0 == node))
        };
        let numbered: Vec<(usize, &Line)> = lines.iter().enumerate().collect();
        let shown = numbered
            .iter()
            .filter(wanted)
            .skip_while(|(index, _)| *index < self.from);
        for (index, line) in shown.take(self.count.unwrap_or(usize::MAX)) {
            console.note(described(*index, line));
            for broken in broken.iter().filter(|broken| broken.index == *index) {
                console.note(complaint(broken));
            }
        }
    }
}

fn described(index: usize, line: &Line) -> String {
    format!(
        "{index:7}  {:12.6} s  {}",
        line.at.0 as f64 / 1e6,
        words(&line.event)
    )
}

fn complaint(broken: &Broken) -> String {
    format!(
        "         BROKEN {}: {}",
        broken.violation.invariant, broken.violation.what
    )
}

/// Steps through the events interactively.
fn step(lines: &[Line], broken: &[Broken], from: usize) -> anyhow::Result<()> {
    let mut index = from;
    let mut words = String::new();
    let mut terminal = std::io::stderr();
    while let Some(line) = lines.get(index) {
        writeln!(terminal, "{}", described(index, line))?;
        broken
            .iter()
            .filter(|broken| broken.index == index)
            .try_for_each(|broken| writeln!(terminal, "{}", complaint(broken)))?;
        words.clear();
        if std::io::stdin().lock().read_line(&mut words)? == 0 {
            return Ok(());
        }
        index = match words.trim() {
            "" => index + 1,
            "q" => return Ok(()),
            "v" => broken
                .iter()
                .map(|broken| broken.index)
                .find(|next| *next > index)
                .unwrap_or(lines.len()),
            number => number.parse().unwrap_or(index + 1),
        };
    }
    Ok(())
}

fn outcome(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Held { checked } => format!("held ({checked} times)"),
        Verdict::NotShown { why } => format!("not shown: {why}"),
        Verdict::Violated(violation) => format!(
            "BROKEN at {:.6} s: {}",
            violation.at.0 as f64 / 1e6,
            violation.what
        ),
    }
}
