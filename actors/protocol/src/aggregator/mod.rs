//! Synchronizes the workers of a node. An exchange starts when all of them have arrived at the same
//! step with the same request. The aggregator carries the node's push-sum weight and round from one
//! exchange to the next.
//!
//! A round may be decided without this node's contribution, because the node was late or
//! unreachable. Its workers then get the outcome at their next exchange, whatever they request, and
//! go on from the step that follows it. Missed means of gradients change the parameters only
//! through the workers' optimizer, so workers get them one by one, each at its own step, after any
//! parameters that came before them. A node that missed too many rejoins, which brings it the
//! parameters themselves.

mod events;
mod pending_outcomes;

pub use events::{Effect, In, Request, Task, Values};

pub use pending_outcomes::MEANS_UNTAKEN_MAX;

use crate::coordinator::{Outcome, RoundKind, RoundSpec};
use crate::ident::{Round, Step};
use crate::machine::{Machine, Outbox};
use crate::planted::{self, Bug};
use crate::schedule::{Due, Exchange};
use crate::time::{Instant, Span};
use pending_outcomes::{Next, PendingOutcomes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How long the other workers wait for one before it is named. A program that forgot a worker
/// shows that within two seconds; workers that only compute unevenly are rarely so far apart.
pub const LATE_AFTER: Span = Span::from_millis(1_000);

/// Progress of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Not all workers have arrived.
    #[default]
    Gathering,
    /// A round is being decided.
    Round,
    /// Messages are being mixed.
    Gossip,
    /// In-flight messages are being mixed before a round (flush).
    Settling,
    /// The node's own slow step is being taken.
    WholeStep,
}

/// The aggregator of one node.
#[derive(Clone, Debug)]
pub struct Aggregator {
    workers: usize,
    /// Whether exact averages flush first: wait for in-flight gossip messages.
    settles: bool,
    weight: f64,
    round: Round,
    arrived: BTreeSet<usize>,
    request: Option<Request>,
    phase: Phase,
    pending_outcomes: PendingOutcomes,
    /// The workers lack means of gradients: none of their values may be contributed until they have
    /// taken parameters.
    behind: bool,
    drained: bool,
    /// Number of nodes whose values were mixed by the gossip of this exchange, and the step that
    /// follows it.
    gossiped: Option<(usize, Step)>,
    timeout: Span,
    /// When the first of the workers arrived, while others have not.
    waits_since: Option<Instant>,
    /// Whether they have waited for [`LATE_AFTER`].
    late: bool,
}

impl Machine for Aggregator {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Arrive { worker, request } => self.arrive(worker, request, now, out),
            In::RoundDecided { outcome, drained } => self.round_decided(outcome, drained, out),
            In::GossipDone {
                step,
                weight,
                contributors,
                next_step,
            } => self.gossip_done(step, weight, (contributors, next_step), out),
            In::Settled { step, weight } => self.settled(step, weight, out),
            In::WholeStepDone => self.whole_step_done(out),
            In::Failed => {
                // The outcome's values went into the slow step under way, whose result no worker
                // will get.
                if self.phase == Phase::WholeStep {
                    self.take_outcome();
                }
                self.clear();
            }
            In::Drained => self.drain(out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let wait = if self.late {
            self.timeout
        } else {
            LATE_AFTER.min(self.timeout)
        };
        self.waits_since.map(|since| since.after(wait))
    }
}

impl Aggregator {
    /// The aggregator of a node with `workers` workers, which wait for each other at most
    /// `timeout`. With gossip (`settles`), exact averages flush first.
    #[must_use]
    pub fn new(workers: usize, settles: bool, timeout: Span) -> Self {
        let weight = 1.0;
        let round = Round::BOOTSTRAP;
        let arrived = BTreeSet::new();
        let request = None;
        let gossiped = None;
        let phase = Phase::Gathering;
        let pending_outcomes = PendingOutcomes::default();
        let behind = false;
        let drained = false;
        Self {
            workers,
            settles,
            weight,
            round,
            arrived,
            request,
            phase,
            pending_outcomes,
            behind,
            drained,
            gossiped,
            timeout,
            waits_since: None,
            late: false,
        }
    }

    /// The node's push-sum weight.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// The round being worked towards.
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// The workers for which the others have waited for [`LATE_AFTER`] or longer.
    #[must_use]
    pub fn late_workers(&self) -> Vec<usize> {
        if self.late {
            self.missing_workers()
        } else {
            Vec::new()
        }
    }

    fn missing_workers(&self) -> Vec<usize> {
        (0..self.workers)
            .filter(|worker| !self.arrived.contains(worker))
            .collect()
    }

    /// Whether the gossip of `step` is still awaited.
    #[must_use]
    pub fn awaits_gossip(&self, step: Step) -> bool {
        self.phase == Phase::Gossip && self.request.is_some_and(|request| request.step == step)
    }

    /// Whether the flush at `step` is still awaited.
    #[must_use]
    pub fn awaits_settling(&self, step: Step) -> bool {
        self.phase == Phase::Settling && self.request.is_some_and(|request| request.step == step)
    }

    fn arrive(&mut self, worker: usize, request: Request, now: Instant, out: &mut Outbox<Effect>) {
        let before = *self.request.get_or_insert(request);
        if before != request {
            self.clear();
            return out.push(Effect::Disagree {
                worker,
                asked: request,
                before,
            });
        }
        let first = worker < self.workers && self.arrived.insert(worker);
        if first && self.arrived.len() == self.workers {
            self.waits_since = None;
            self.late = false;
            self.start(request, out);
        } else if first {
            self.waits_since.get_or_insert(now);
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let Some(since) = self.waits_since else {
            return;
        };
        if now >= since.after(self.timeout) {
            let workers = self.missing_workers();
            self.clear();
            out.push(Effect::Missing {
                workers,
                waited: self.timeout,
            });
        } else {
            self.late |= now >= since.after(LATE_AFTER);
        }
    }

    fn start(&mut self, request: Request, out: &mut Outbox<Effect>) {
        self.phase = Phase::Round;
        if self.drained {
            self.clear();
            return out.push(Effect::Drained);
        }
        if !planted::has(Bug::FreshDonor)
            && !self.pending_outcomes.is_empty()
            && self.catch_up(request, out)
        {
            return;
        }
        if self.behind {
            return;
        }
        let step = request.step;
        let round = self.round;
        match request.task {
            Task::Bootstrap => self.begin_round(request, RoundKind::Bootstrap, out),
            Task::Gradients => self.begin_round(request, RoundKind::Gradients, out),
            Task::Due(due) => match due.exchange {
                Exchange::Average | Exchange::SlowRound if self.settles => {
                    self.phase = Phase::Settling;
                    out.push(Effect::Settle { step, round });
                }
                Exchange::Average => self.begin_round(request, RoundKind::Average, out),
                Exchange::SlowRound => self.begin_round(request, RoundKind::Slow, out),
                Exchange::Gossip => {
                    self.phase = Phase::Gossip;
                    out.push(Effect::Gossip { step, round });
                }
                Exchange::Nothing => self.whole_step_or_release(out),
            },
        }
    }

    fn begin_round(&mut self, request: Request, kind: RoundKind, out: &mut Outbox<Effect>) {
        self.phase = Phase::Round;
        let Request { step, elements, .. } = request;
        let gamma = if kind == RoundKind::Slow {
            request.gamma
        } else {
            0.0
        };
        let weight = if kind == RoundKind::Gradients {
            1.0
        } else {
            self.weight
        };
        out.push(Effect::Round {
            round: self.round,
            spec: RoundSpec {
                kind,
                step,
                gamma,
                elements,
            },
            weight,
        });
    }

    fn settled(&mut self, step: Step, weight: f64, out: &mut Outbox<Effect>) {
        // A round that was decided meanwhile has released the workers already.
        if let Some(request) = self.request
            && self.awaits_settling(step)
        {
            self.weight = weight;
            let slow = matches!(
                request.task,
                Task::Due(Due {
                    exchange: Exchange::SlowRound,
                    ..
                })
            );
            self.begin_round(
                request,
                if slow {
                    RoundKind::Slow
                } else {
                    RoundKind::Average
                },
                out,
            );
        }
    }

    /// Serves outcomes that were decided while no worker waited. `false` if none of them is left
    /// that these workers can take.
    fn catch_up(&mut self, request: Request, out: &mut Outbox<Effect>) -> bool {
        match self.pending_outcomes.next_for(&request) {
            Next::Nothing => return false,
            Next::Take => {
                out.push(Effect::TrainingGoesOn);
                self.release(Values::Decided, out)
            }
            Next::Parameters => {
                self.clear();
                // A request for gradients cannot be answered with parameters: those stay pending
                // for the next step.
                out.push(Effect::Unchanged);
            }
            Next::Behind => self.fall_behind(out),
        }
        true
    }

    /// The means that the workers lack are no longer available. They wait for the parameters with
    /// which the node is admitted again.
    fn fall_behind(&mut self, out: &mut Outbox<Effect>) {
        self.pending_outcomes = PendingOutcomes::default();
        self.behind = true;
        out.push(Effect::Behind);
    }

    fn round_decided(&mut self, outcome: Arc<Outcome>, drained: bool, out: &mut Outbox<Effect>) {
        self.round = outcome.round.next();
        if outcome.spec.carries_parameters() {
            self.weight = 1.0;
            self.behind = false;
        }
        let asked = self
            .request
            .is_some_and(|request| request.is_answered_by(outcome.spec));
        if !self.pending_outcomes.add(outcome, drained) {
            return self.fall_behind(out);
        }
        match (self.phase, self.request) {
            (Phase::Round, _) if asked => self.whole_step_or_release(out),
            // A contribution that went into no round, and that no pending outcome answers, leaves
            // the workers behind as well.
            (Phase::Round | Phase::Gossip | Phase::Settling, Some(request))
                if !self.catch_up(request, out) =>
            {
                self.fall_behind(out)
            }
            // No worker waits yet, or a slow step under way is allowed to finish.
            _ => {}
        }
    }

    fn whole_step_done(&mut self, out: &mut Outbox<Effect>) {
        if self.phase != Phase::WholeStep {
            return;
        }
        let Some(request) = self.request else {
            return;
        };
        let overtaken = self
            .pending_outcomes
            .parameters()
            .is_some_and(|outcome| !request.is_answered_by(outcome.spec));
        let values = if overtaken {
            Values::Decided
        } else {
            Values::Stepped
        };
        self.release(values, out);
    }

    fn gossip_done(
        &mut self,
        step: Step,
        weight: f64,
        gossiped: (usize, Step),
        out: &mut Outbox<Effect>,
    ) {
        // A round that was decided meanwhile has released the workers already.
        if self.awaits_gossip(step) {
            self.weight = weight;
            self.gossiped = Some(gossiped);
            self.whole_step_or_release(out);
        }
    }

    fn whole_step_or_release(&mut self, out: &mut Outbox<Effect>) {
        let values = match (self.pending_outcomes.is_empty(), self.gossiped) {
            (false, _) => Values::Decided,
            (true, Some(_)) => Values::Gossiped,
            (true, None) => Values::Own,
        };
        match self.request {
            Some(Request {
                task:
                    Task::Due(Due {
                        whole_slow_step: true,
                        ..
                    }),
                gamma,
                ..
            }) => {
                self.phase = Phase::WholeStep;
                out.push(Effect::WholeStep { values, gamma });
            }
            _ => self.release(values, out),
        }
    }

    fn release(&mut self, values: Values, out: &mut Outbox<Effect>) {
        let step = self.request.map_or(Step(0), |request| request.step);
        let (outcome, drained) = self
            .take_outcome()
            .map_or((None, false), |(outcome, drained)| (Some(outcome), drained));
        let (contributors, next_step) = match (&outcome, self.gossiped) {
            (Some(outcome), _) => (outcome.contributors.len(), outcome.spec.next_step()),
            (None, Some(gossiped)) => gossiped,
            (None, None) => (0, Step(step.0.saturating_add(1))),
        };
        self.drained |= drained;
        out.push(Effect::Release {
            values,
            weight: self.weight,
            outcome,
            contributors,
            next_step,
            drained,
        });
        self.clear();
    }

    /// Takes the outcome that ends this exchange, if any; means of later steps stay pending.
    fn take_outcome(&mut self) -> Option<(Arc<Outcome>, bool)> {
        self.request
            .and_then(|request| self.pending_outcomes.take_for(&request))
    }

    fn drain(&mut self, out: &mut Outbox<Effect>) {
        self.drained = true;
        if matches!(self.phase, Phase::Round | Phase::Gossip | Phase::Settling) {
            self.clear();
            out.push(Effect::Drained);
        }
    }

    /// Ends the exchange. Pending outcomes stay: the workers must not go on from the state before
    /// them.
    fn clear(&mut self) {
        self.arrived.clear();
        self.waits_since = None;
        self.late = false;
        self.request = None;
        self.phase = Phase::Gathering;
        self.gossiped = None;
    }
}

#[cfg(test)]
mod tests;
