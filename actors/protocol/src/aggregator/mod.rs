//! Brings the workers of a node together: an exchange starts when all of them arrived at the same step with the same
//! request, and carries the node's push-sum weight and round from one exchange to the next.
//!
//! A round may be decided without this node's contribution: it was late, or away. Its workers then get the outcome at their next
//! exchange, whatever they ask for, and go on from the step that follows it.

use crate::coordinator::{Outcome, RoundKind, Terms};
use crate::ident::{Round, Step};
use crate::machine::{Machine, Outbox};
use crate::schedule::{Due, Exchange};
use crate::time::{Instant, Span};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What one worker asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Its inner step.
    pub step: Step,
    /// What it asks for.
    pub task: Task,
    /// `γ`, the inner learning rate; 0 where no slow step is taken.
    pub gamma: f32,
    /// Values of its contribution.
    pub elements: u64,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { step, task, gamma, elements } = self;
        let task = match task {
            Task::Found => "the founding",
            Task::Gradients => "a gradient mean",
            Task::Due(Due { exchange: Exchange::Gossip, .. }) => "a gossip",
            Task::Due(Due { exchange: Exchange::Average, .. }) => "an exact average",
            Task::Due(_) => "a slow step",
        };
        write!(f, "{task} at {step} of {elements} values with learning rate {gamma}")
    }
}

/// What a request asks the node for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The founding parameters.
    Found,
    /// What the schedule says is due.
    Due(Due),
    /// The exact mean of the gradients over all nodes.
    Gradients,
}

/// What happens to the aggregator.
#[derive(Clone, Debug)]
pub enum In {
    /// A worker arrived at an exchange.
    Arrive {
        /// Its index on the node.
        worker: usize,
        /// What it asks for.
        request: Request,
    },
    /// A round was decided, whether or not the workers wait for one.
    RoundDecided {
        /// What.
        outcome: Arc<Outcome>,
        /// The outcome leaves this node out.
        drained: bool,
    },
    /// The gossip is complete.
    GossipDone {
        /// The node's push-sum weight now.
        weight: f64,
        /// Nodes whose values were mixed, this one included.
        contributors: usize,
    },
    /// The node's own slow step is done.
    WholeStepDone,
    /// The exchange failed.
    Failed,
    /// The others went on without this node, which wanted to leave: it takes part in nothing any more.
    Drained,
    /// Time passed.
    Tick,
}

/// What the aggregator asks its shell for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Let the coordinator contribute.
    Round {
        /// The round being worked towards.
        round: Round,
        /// What this node expects the round to be.
        terms: Terms,
        /// The node's push-sum weight.
        weight: f64,
    },
    /// Let the gossip peer gossip.
    Gossip {
        /// The inner step.
        step: Step,
        /// The round being worked towards.
        round: Round,
        /// The node's push-sum weight.
        weight: f64,
    },
    /// Take the slow step on the node's whole copy.
    WholeStep {
        /// `γ`.
        gamma: f32,
    },
    /// Hand every waiting worker the result.
    Release {
        /// The node's push-sum weight now.
        weight: f64,
        /// The decided round, if one was.
        outcome: Option<Arc<Outcome>>,
        /// Nodes that were averaged with, this one included.
        contributors: usize,
        /// The inner step that follows.
        next_step: Step,
        /// The outcome leaves this node out.
        drained: bool,
    },
    /// Tell every waiting worker that its gradients stay as they are: parameters wait for it, at its next step.
    Unchanged,
    /// Tell every waiting worker that the node has left the cluster.
    Drained,
    /// Tell every waiting worker that others of the node did not come.
    Missing {
        /// Which.
        workers: Vec<usize>,
        /// How long they were waited for.
        waited: Span,
    },
    /// Tell every waiting worker that they asked for different things.
    Disagree {
        /// The worker that arrived last.
        worker: usize,
        /// What it asked for.
        asked: Request,
        /// What the workers before it asked for.
        before: Request,
    },
}

/// The aggregator of one node.
#[derive(Clone, Debug)]
pub struct Aggregator {
    workers: usize,
    weight: f64,
    round: Round,
    arrived: BTreeSet<usize>,
    request: Option<Request>,
    started: bool,
    decided: Option<(Arc<Outcome>, bool)>,
    drained: bool,
    gossiped: usize,
    timeout: Span,
    arrive_by: Option<Instant>,
}

impl Machine for Aggregator {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Arrive { worker, request } => self.arrive(worker, request, now, out),
            In::RoundDecided { outcome, drained } => self.round_decided(outcome, drained, out),
            In::GossipDone { weight, contributors } => self.gossip_done(weight, contributors, out),
            In::WholeStepDone if self.started => self.release(out),
            In::WholeStepDone => {}
            In::Failed => self.clear(),
            In::Drained => self.drain(out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.arrive_by
    }
}

impl Aggregator {
    /// The aggregator of a node with `workers` workers, which wait for each other at most `timeout`.
    #[must_use]
    pub fn new(workers: usize, timeout: Span) -> Self {
        let (weight, round, arrived) = (1.0, Round::FOUNDING, BTreeSet::new());
        let (request, decided, arrive_by) = (None, None, None);
        Self { workers, weight, round, arrived, request, started: false, decided, drained: false, gossiped: 0, timeout, arrive_by }
    }

    /// The node's push-sum weight.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.weight
    }

    fn arrive(&mut self, worker: usize, request: Request, now: Instant, out: &mut Outbox<Effect>) {
        let before = *self.request.get_or_insert(request);
        if before != request {
            self.clear();
            return out.push(Effect::Disagree { worker, asked: request, before });
        }
        let first = worker < self.workers && self.arrived.insert(worker);
        if first && self.arrived.len() == self.workers {
            self.arrive_by = None;
            self.start(request, out);
        } else if first {
            self.arrive_by.get_or_insert(now.after(self.timeout));
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if self.arrive_by.is_some_and(|arrive_by| now >= arrive_by) {
            let workers = (0..self.workers).filter(|worker| !self.arrived.contains(worker)).collect();
            self.clear();
            out.push(Effect::Missing { workers, waited: self.timeout });
        }
    }

    fn start(&mut self, request: Request, out: &mut Outbox<Effect>) {
        self.started = true;
        if self.drained {
            self.clear();
            return out.push(Effect::Drained);
        }
        if self.decided.is_some() {
            return self.catch_up(request, out);
        }
        let Request { step, gamma, elements, .. } = request;
        let (round, weight) = (self.round, self.weight);
        let begin = |kind, gamma| Effect::Round { round, terms: Terms { kind, step, gamma, elements }, weight };
        match request.task {
            Task::Found => out.push(begin(RoundKind::Found, 0.0)),
            Task::Gradients => {
                let terms = Terms { kind: RoundKind::Gradients, step, gamma: 0.0, elements };
                out.push(Effect::Round { round, terms, weight: 1.0 });
            }
            Task::Due(due) => match due.exchange {
                Exchange::Average => out.push(begin(RoundKind::Average, 0.0)),
                Exchange::SlowRound => out.push(begin(RoundKind::Slow, gamma)),
                Exchange::Gossip => out.push(Effect::Gossip { step, round, weight }),
                Exchange::Nothing => self.whole_step_or_release(out),
            },
        }
    }

    /// What was decided while nobody waited, or something else than what the workers wait for, comes first.
    fn catch_up(&mut self, request: Request, out: &mut Outbox<Effect>) {
        let carries = self.decided.as_ref().is_some_and(|(outcome, _)| outcome.terms.carries_parameters());
        match request.task {
            Task::Gradients if carries => {
                let decided = self.decided.take();
                self.clear();
                // Gradients cannot be answered with parameters: those wait for the next step.
                self.decided = decided;
                out.push(Effect::Unchanged);
            }
            Task::Gradients => self.release(out),
            _ if carries => self.release(out),
            _ => {
                // A gradient mean that nobody waits for any more.
                self.decided = None;
                self.start(request, out);
            }
        }
    }

    fn round_decided(&mut self, outcome: Arc<Outcome>, drained: bool, out: &mut Outbox<Effect>) {
        self.round = outcome.round.next();
        if outcome.terms.carries_parameters() {
            self.weight = 1.0;
        }
        let asked = self.request.filter(|request| self.started && request.is_answered_by(outcome.terms));
        self.decided = Some((outcome, drained));
        match (asked, self.request.filter(|_| self.started)) {
            (Some(_), _) => self.whole_step_or_release(out),
            (None, Some(request)) => self.catch_up(request, out),
            (None, None) => {}
        }
    }

    fn gossip_done(&mut self, weight: f64, contributors: usize, out: &mut Outbox<Effect>) {
        let gossips = matches!(self.request, Some(Request { task: Task::Due(Due { exchange: Exchange::Gossip, .. }), .. }));
        // A round that was decided meanwhile has released the workers already.
        if gossips && self.started {
            (self.weight, self.gossiped) = (weight, contributors);
            self.whole_step_or_release(out);
        }
    }

    fn whole_step_or_release(&mut self, out: &mut Outbox<Effect>) {
        match self.request {
            Some(Request { task: Task::Due(Due { whole_slow_step: true, .. }), gamma, .. }) => out.push(Effect::WholeStep { gamma }),
            _ => self.release(out),
        }
    }

    fn release(&mut self, out: &mut Outbox<Effect>) {
        let step = self.request.map_or(Step(0), |request| request.step);
        let (outcome, drained) = self.decided.take().map_or((None, false), |(outcome, drained)| (Some(outcome), drained));
        let contributors = outcome.as_ref().map_or(self.gossiped, |outcome| outcome.contributors.len());
        let next_step = outcome.as_ref().map_or(Step(step.0 + 1), |outcome| outcome.terms.next_step());
        self.drained |= drained;
        out.push(Effect::Release { weight: self.weight, outcome, contributors, next_step, drained });
        self.clear();
    }

    fn drain(&mut self, out: &mut Outbox<Effect>) {
        self.drained = true;
        if self.started {
            self.clear();
            out.push(Effect::Drained);
        }
    }

    fn clear(&mut self) {
        self.arrived.clear();
        self.arrive_by = None;
        self.request = None;
        self.started = false;
        self.decided = None;
        self.gossiped = 0;
    }
}

impl Request {
    /// Whether a round of these terms is what was asked for.
    fn is_answered_by(&self, terms: Terms) -> bool {
        let kind = match self.task {
            Task::Found => RoundKind::Found,
            Task::Gradients => RoundKind::Gradients,
            Task::Due(Due { exchange: Exchange::SlowRound, .. }) => RoundKind::Slow,
            Task::Due(_) => RoundKind::Average,
        };
        self.step == terms.step && kind == terms.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(step: u64, exchange: Exchange, whole_slow_step: bool) -> Request {
        let task = Task::Due(Due { exchange, whole_slow_step });
        Request { step: Step(step), task, gamma: 0.1, elements: 23 }
    }

    fn feed(machine: &mut Aggregator, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        machine.handle(event, Instant(0), &mut out);
        out.take()
    }

    #[test]
    fn starts_when_all_workers_arrived_and_releases_when_done() {
        let mut machine = Aggregator::new(2, Span(9));
        let gossip = request(4, Exchange::Gossip, true);
        assert_eq!(feed(&mut machine, In::Arrive { worker: 1, request: gossip }), []);
        let started = feed(&mut machine, In::Arrive { worker: 0, request: gossip });
        assert_eq!(started, [Effect::Gossip { step: Step(4), round: Round(0), weight: 1.0 }]);
        assert_eq!(feed(&mut machine, In::GossipDone { weight: 0.5, contributors: 2 }), [Effect::WholeStep { gamma: 0.1 }]);
        let released = feed(&mut machine, In::WholeStepDone);
        assert_eq!(released, [Effect::Release { weight: 0.5, outcome: None, contributors: 2, next_step: Step(5), drained: false }]);
    }

    #[test]
    fn workers_that_do_not_come_are_named() {
        let mut machine = Aggregator::new(3, Span(5));
        feed(&mut machine, In::Arrive { worker: 1, request: request(0, Exchange::Average, false) });
        assert_eq!(machine.next_deadline(), Some(Instant(5)));
        let mut out = Outbox::default();
        machine.handle(In::Tick, Instant(5), &mut out);
        assert_eq!(out.take(), [Effect::Missing { workers: vec![0, 2], waited: Span(5) }]);
        assert_eq!(machine.next_deadline(), None);
    }

    #[test]
    fn an_exchange_starts_once_whoever_arrives_again() {
        let mut machine = Aggregator::new(1, Span(9));
        let gossip = request(4, Exchange::Gossip, false);
        assert_eq!(feed(&mut machine, In::Arrive { worker: 7, request: gossip }), [], "there is no such worker");
        assert_eq!(feed(&mut machine, In::Arrive { worker: 0, request: gossip }).len(), 1);
        assert_eq!(feed(&mut machine, In::Arrive { worker: 0, request: gossip }), []);
    }

    #[test]
    fn workers_that_ask_for_different_things_are_told() {
        let mut machine = Aggregator::new(2, Span(9));
        feed(&mut machine, In::Arrive { worker: 0, request: request(4, Exchange::Gossip, false) });
        let effects = feed(&mut machine, In::Arrive { worker: 1, request: request(5, Exchange::Gossip, false) });
        assert!(matches!(effects[..], [Effect::Disagree { worker: 1, .. }]));
    }
}
