//! The trace of a simulated run, and the judge that checks it while it runs.

use super::config::Config;
use super::mail::Mail;
use crate::invariants::{Judge, Verdict, Violation};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::node::Failure;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line, Setup, Start};
use slowmo_protocol::wire::Frame;

/// Maximum length of the description of one message.
const WIDTH: usize = 420;

/// Verdict on every rule, by its name.
pub type Verdicts = Vec<(&'static str, Verdict)>;

/// The judge, and the trace if it is kept.
pub struct Watch {
    judge: Judge,
    violation: Option<Violation>,
    /// The trace, if it is kept.
    pub trace: Option<Vec<Line>>,
    /// Whether every message is printed to standard error.
    pub verbose: bool,
    /// Number of decided rounds.
    pub rounds: u64,
}

impl Watch {
    /// Begins a run.
    pub fn new(config: &Config) -> Self {
        let mut watch = Self {
            judge: Judge::default(),
            violation: None,
            trace: None,
            verbose: false,
            rounds: 0,
        };
        watch.observe(Instant(0), Event::Begun(setup(config)));
        watch
    }

    /// Records an event.
    pub fn observe(&mut self, at: Instant, event: Event) {
        if self.verbose {
            print(at.0, "***", &event);
        }
        let line = Line { at, event };
        let violation = self.judge.observe(&line);
        self.rounds += u64::from(self.judge.history().new_outcome().is_some());
        self.violation = self.violation.take().or(violation);
        if let Some(trace) = &mut self.trace {
            trace.push(line);
        }
    }

    /// The first rule that was broken.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// The history of the run so far.
    #[must_use]
    pub fn history(&self) -> &crate::invariants::History {
        self.judge.history()
    }

    /// Records a violation that is not an event.
    pub fn broken(&mut self, now: u64, invariant: &str, what: String) {
        let violation = Violation {
            invariant: invariant.to_owned(),
            at: Instant(now),
            what,
        };
        self.violation.get_or_insert(violation);
    }

    /// Records that the run does not end.
    pub fn endless(&mut self, now: u64) {
        self.broken(now, "bounds", "the simulation does not end".to_owned());
    }

    /// Records that a training thread failed.
    pub fn failed(&mut self, now: u64, start: Start, failure: &Failure) {
        self.broken(
            now,
            "progress",
            format!("the training of {} failed: {failure:?}", start.node),
        );
    }

    /// Prints a message that is handed to a part.
    pub fn told(&self, now: u64, node: NodeId, mail: &Mail) {
        if self.verbose {
            print(now, &format!("{node} <="), mail);
        }
    }

    /// Prints a frame that is sent.
    pub fn said(&self, now: u64, node: NodeId, to: NodeId, frame: &Frame) {
        if self.verbose {
            let Frame::V1 { header, message } = frame;
            let round = header.round.0;
            let counter = header.term.counter;
            let owner = header.term.node.0;
            print(
                now,
                &format!("{node} -> {to} round {round} term {counter}.{owner}"),
                message,
            );
        }
    }

    /// Ends the run; returns the verdict on every rule, the first one that was broken, and the
    /// trace.
    #[must_use]
    pub fn finish(mut self, now: u64) -> (Verdicts, Option<Violation>, Option<Vec<Line>>) {
        self.observe(Instant(now), Event::Over);
        let verdicts = self.judge.finish();
        let late = verdicts.iter().find_map(|(_, verdict)| match verdict {
            Verdict::Violated(violation) => Some(violation.clone()),
            _ => None,
        });
        (verdicts, self.violation.or(late), self.trace)
    }
}

fn print(now: u64, what: &str, of: &dyn std::fmt::Debug) {
    let of: String = format!("{of:?}").chars().take(WIDTH).collect();
    eprintln!("{now} {what} {of}");
}

fn setup(config: &Config) -> Setup {
    Setup {
        seed: config.seed,
        quorum: config.quorum,
        replicas: config.replicas,
        groups: config.groups,
        parameters: config.parameters as u64,
        sharded: config.algorithm.outer.is_some_and(|outer| outer.sharded),
        optimizer: config.algorithm.outer.map(|outer| outer.optimizer),
        recovers_within: config.recovers_within,
        samples: config.samples.map(|settings| settings.samples),
    }
}
