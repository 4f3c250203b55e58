//! The aggregator: routes the parts of a worker's exchange, and keeps the results of decided rounds
//! and gossip until the workers take them.

use super::data::Data;
use super::mail::{Arrive, DecidedRound, Failure, GossipDone, Mail, ToAggregator, ToGossip};
use crate::aggregator::{Aggregator, Effect, In, Request, Task, Values};
use crate::coordinator::{self, Outcome, RoundSpec};
use crate::ident::{Round, Step};
use crate::machine::{Machine, Outbox};
use crate::membership;
use crate::model::ModelSize;
use crate::sampler::Progress;
use crate::time::{Instant, Span};
use crate::view::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Actions that the part requests from its driver.
#[derive(Debug)]
pub enum AggregatorEffect<D: Data> {
    /// Tell another part.
    Tell(Mail<D>),
    /// Hand the node's contribution to the coordinator.
    Contribute(Box<ContributionDraft<D>>),
    /// Take the node's own slow step, and report the result.
    WholeStep {
        /// The values that the step starts from.
        from: Source<D>,
        /// The inner learning rate γ.
        gamma: f32,
    },
    /// Every worker goes on.
    Release(Box<Released<D>>),
    /// Gradients stay as they are: new parameters wait at the next step.
    Unchanged,
    /// This node missed too many means of gradients, and joins again.
    Behind,
    /// The node has left.
    Drained,
    /// Workers did not arrive.
    Missing {
        /// Indices of the missing workers.
        workers: Vec<usize>,
        /// The call that they did not make.
        call: &'static str,
        /// How long they were waited for.
        waited: Span,
    },
    /// Workers asked for different things.
    Disagree {
        /// Index of the worker that arrived last.
        worker: usize,
        /// Its request.
        asked: Request,
        /// The request of the others.
        before: Request,
    },
    /// The exchange failed.
    Failed(Failure),
    /// The node may stop: all of its workers leave.
    Left,
}

/// A contribution to a round, as far as the part knows it.
#[derive(Debug)]
pub struct ContributionDraft<D: Data> {
    /// The round.
    pub round: Round,
    /// The round's specification, as the node expects it.
    pub spec: RoundSpec,
    /// Its push-sum weight.
    pub weight: f64,
    /// Size of the model that the node trains.
    pub model: ModelSize,
    /// The values.
    pub frozen: D::Frozen,
    /// Samples that were left when the round began.
    pub samples: Option<Progress>,
}

/// Source of values.
#[derive(Debug)]
pub enum Source<D: Data> {
    /// Values of a decided round, a gossip, or the node's own slow step; `None` if there are none.
    Made(Option<D::Values>),
    /// Values of the workers.
    Own(Option<D::Frozen>),
}

/// The result of an exchange.
#[derive(Debug)]
pub struct Released<D: Data> {
    /// The values, if the exchange made any.
    pub values: Option<D::Values>,
    /// Whether the node's own slow step made the values.
    pub stepped: bool,
    /// Overlapped gossip: the fraction of the model that stays, to which the values are added.
    pub stays: Option<f64>,
    /// The node's push-sum weight.
    pub weight: f64,
    /// The decided round, if one was.
    pub outcome: Option<Arc<Outcome>>,
    /// A member's base optimizer buffers, for a node that joined.
    pub donated: Option<D::Values>,
    /// Number of nodes in the average, this one included.
    pub contributors: usize,
    /// The members of the current view, ascending.
    pub members: Arc<[Member]>,
    /// The members of the view that the round began with, ascending.
    pub members_before: Arc<[Member]>,
    /// The inner step that follows.
    pub next_step: Step,
    /// Whether the node is left out from now on.
    pub drained: bool,
}

/// Results of a decided round.
struct RoundResult<D: Data> {
    /// `None` once the node's own slow step has taken them.
    values: Option<D::Values>,
    donated: Option<D::Values>,
    members_before: Arc<[Member]>,
}

/// The aggregator's machine, and values until they are taken.
pub struct AggregatorPart<D: Data> {
    machine: Aggregator,
    workers: usize,
    gossips: bool,
    request: Option<(Request, ModelSize)>,
    frozen: Option<D::Frozen>,
    samples: Option<Progress>,
    /// Pending outcomes: results of decided rounds, as many as the machine keeps.
    pending_outcomes: BTreeMap<Round, RoundResult<D>>,
    /// The values of the completed gossip; if overlapped, also the fraction of the model to which
    /// they are added.
    gossiped: Option<(D::Values, Option<f64>)>,
    /// The values after the node's own slow step.
    stepped: Option<D::Values>,
    members: Arc<[Member]>,
    leaving: BTreeSet<usize>,
}

impl<D: Data> AggregatorPart<D> {
    /// An aggregator before the bootstrap. `timeout` is how long workers wait for each other.
    #[must_use]
    pub fn new(workers: usize, gossips: bool, timeout: Span) -> Self {
        Self {
            machine: Aggregator::new(workers, gossips, timeout),
            workers,
            gossips,
            request: None,
            frozen: None,
            samples: None,
            pending_outcomes: BTreeMap::new(),
            gossiped: None,
            stepped: None,
            members: Arc::default(),
            leaving: BTreeSet::new(),
        }
    }

    /// Time at which the part must be given a tick.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// The current request of the workers, and the size of their model.
    #[must_use]
    pub fn request(&self) -> Option<(Request, ModelSize)> {
        self.request
    }

    /// The workers that are late for the exchange that the others wait for, and the call that they
    /// have not made.
    #[must_use]
    pub fn late_workers(&self) -> (Vec<usize>, &'static str) {
        (self.machine.late_workers(), self.call())
    }

    /// The call with which the workers ask for the current exchange.
    fn call(&self) -> &'static str {
        self.request
            .map_or("step", |(request, _)| request.task.call())
    }

    /// The node's push-sum weight.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.machine.weight()
    }

    /// Handles a message.
    pub fn handle(
        &mut self,
        message: ToAggregator<D>,
        now: Instant,
        out: &mut Outbox<AggregatorEffect<D>>,
    ) {
        let Some(event) = self.take(message, out) else {
            return;
        };
        if matches!(event, In::Failed) {
            self.forget_exchange();
        }
        let mut effects = Outbox::default();
        self.machine.handle(event, now, &mut effects);
        for effect in effects.take() {
            self.act(effect, out);
        }
    }

    /// Translates a message into an event of the machine, if it is one.
    fn take(
        &mut self,
        message: ToAggregator<D>,
        out: &mut Outbox<AggregatorEffect<D>>,
    ) -> Option<In> {
        match message {
            ToAggregator::Arrive(arrive) => {
                let Arrive {
                    worker,
                    request,
                    model,
                    frozen,
                    samples,
                } = *arrive;
                // Worker 0's model counts for the node, as its values do.
                let model = match self.request {
                    Some((earlier, kept)) if worker != 0 && earlier == request => kept,
                    _ => model,
                };
                self.request = Some((request, model));
                self.frozen = frozen.or(self.frozen.take());
                self.samples = samples.or(self.samples.take());
                Some(In::Arrive { worker, request })
            }
            ToAggregator::Decided(decided) => Some(self.decided(*decided)),
            ToAggregator::GossipDone(done) if self.machine.awaits_gossip(done.step) => {
                let GossipDone {
                    step,
                    weight,
                    contributors,
                    next_step,
                    values,
                    stays,
                } = *done;
                self.gossiped = Some((values, stays));
                Some(In::GossipDone {
                    step,
                    weight,
                    contributors,
                    next_step,
                })
            }
            ToAggregator::Settled(step, weight, frozen) if self.machine.awaits_settling(step) => {
                self.frozen = Some(frozen);
                Some(In::Settled { step, weight })
            }
            // A round that was decided meanwhile has released the workers.
            ToAggregator::GossipDone(_) | ToAggregator::Settled(..) => None,
            ToAggregator::Stepped(values) => {
                out.push(AggregatorEffect::Tell(
                    ToGossip::Stepped(values.clone()).into(),
                ));
                self.stepped = Some(values);
                Some(In::WholeStepDone)
            }
            ToAggregator::Failed(failure) => {
                out.push(AggregatorEffect::Failed(failure));
                Some(In::Failed)
            }
            ToAggregator::GivenUp => Some(In::Failed),
            ToAggregator::Drained => Some(In::Drained),
            ToAggregator::Leave(worker) => {
                // The node leaves when all of its workers do.
                if self.leaving.insert(worker) && self.leaving.len() == self.workers {
                    out.push(AggregatorEffect::Tell(
                        ToGossip::Leave(self.machine.round()).into(),
                    ));
                }
                None
            }
            ToAggregator::Left => {
                if !self.leaving.is_empty() {
                    out.push(AggregatorEffect::Left);
                }
                None
            }
            ToAggregator::Tick => Some(In::Tick),
        }
    }

    fn decided(&mut self, decided: DecidedRound<D>) -> In {
        let DecidedRound {
            outcome,
            members,
            values,
            mut donated,
            drained,
        } = decided;
        self.members = outcome.view.members().into();
        if outcome.spec.carries_parameters() {
            // Parameters replace all earlier results, but not the buffers that a joiner received.
            let before = std::mem::take(&mut self.pending_outcomes);
            donated = donated.or_else(|| before.into_values().find_map(|before| before.donated));
        }
        self.pending_outcomes.insert(
            outcome.round,
            RoundResult {
                values: Some(values),
                donated,
                members_before: members,
            },
        );
        In::RoundDecided { outcome, drained }
    }

    fn act(&mut self, effect: Effect, out: &mut Outbox<AggregatorEffect<D>>) {
        match effect {
            Effect::Round {
                round,
                spec,
                weight,
            } => self.contribute(round, spec, weight, out),
            Effect::Gossip { step, round } => {
                let frozen = self.frozen.take();
                out.push(AggregatorEffect::Tell(
                    ToGossip::Gossip(step, round, frozen).into(),
                ));
            }
            Effect::Settle { step, round } => {
                if let Some(frozen) = self.frozen.take() {
                    out.push(AggregatorEffect::Tell(
                        ToGossip::Settle(step, round, frozen).into(),
                    ));
                }
            }
            Effect::WholeStep { values, gamma } => {
                let from = match values {
                    // The whole step comes first; the rest of the round's results waits for it.
                    Values::Decided => Source::Made(
                        self.pending_outcomes
                            .values_mut()
                            .next()
                            .and_then(|result| result.values.take()),
                    ),
                    Values::Gossiped => {
                        Source::Made(self.gossiped.take().map(|(values, _)| values))
                    }
                    Values::Stepped => Source::Made(self.stepped.take()),
                    Values::Own => Source::Own(self.frozen.take()),
                };
                out.push(AggregatorEffect::WholeStep { from, gamma });
            }
            Effect::Release {
                values,
                weight,
                outcome,
                contributors,
                next_step,
                drained,
            } => {
                let result = outcome
                    .as_ref()
                    .and_then(|outcome| self.take_result(outcome.round));
                let (decided, donated, members_before) = match result {
                    Some(RoundResult {
                        values,
                        donated,
                        members_before,
                    }) => (values, donated, members_before),
                    None => (None, None, Arc::default()),
                };
                let stepped = values == Values::Stepped;
                let (values, stays) = match values {
                    Values::Decided => (decided, None),
                    Values::Gossiped => self
                        .gossiped
                        .take()
                        .map_or((None, None), |(values, stays)| (Some(values), stays)),
                    Values::Stepped => (self.stepped.take(), None),
                    Values::Own => (None, None),
                };
                // A mean of gradients is not passed on to gossip.
                let parameters = outcome
                    .as_ref()
                    .filter(|outcome| outcome.spec.carries_parameters());
                if self.gossips
                    && let Some(outcome) = parameters
                    && let Some(values) = &values
                {
                    // The gossip peer gets the values that the workers go on from, before the
                    // workers can.
                    out.push(AggregatorEffect::Tell(
                        ToGossip::Decided(outcome.round.next(), values.clone()).into(),
                    ));
                }
                let members = outcome.as_ref().map_or_else(
                    || Arc::clone(&self.members),
                    |outcome| outcome.view.members().into(),
                );
                self.answer(
                    AggregatorEffect::Release(Box::new(Released {
                        values,
                        stepped,
                        stays,
                        weight,
                        outcome,
                        donated,
                        contributors,
                        members,
                        members_before,
                        next_step,
                        drained,
                    })),
                    out,
                );
            }
            Effect::TrainingGoesOn => {
                out.push(AggregatorEffect::Tell(
                    coordinator::In::TrainingGoesOn.into(),
                ));
            }
            Effect::Behind => {
                self.pending_outcomes.clear();
                out.push(AggregatorEffect::Behind);
                out.push(AggregatorEffect::Tell(membership::In::MustRejoin.into()));
            }
            Effect::Unchanged => self.answer(AggregatorEffect::Unchanged, out),
            Effect::Drained => self.answer(AggregatorEffect::Drained, out),
            Effect::Missing { workers, waited } => {
                let call = self.call();
                let missing = AggregatorEffect::Missing {
                    workers,
                    call,
                    waited,
                };
                self.answer(missing, out)
            }
            Effect::Disagree {
                worker,
                asked,
                before,
            } => self.answer(
                AggregatorEffect::Disagree {
                    worker,
                    asked,
                    before,
                },
                out,
            ),
        }
    }

    fn contribute(
        &mut self,
        round: Round,
        spec: RoundSpec,
        weight: f64,
        out: &mut Outbox<AggregatorEffect<D>>,
    ) {
        let (Some(frozen), Some((request, model))) = (self.frozen.take(), self.request) else {
            return;
        };
        if request.task == Task::Bootstrap {
            let parameters = usize::try_from(model.parameters).unwrap_or(usize::MAX);
            out.push(AggregatorEffect::Tell(ToGossip::Model(parameters).into()));
            out.push(AggregatorEffect::Tell(
                membership::In::Synchronize(model).into(),
            ));
        }
        let samples = self.samples.take();
        out.push(AggregatorEffect::Contribute(Box::new(ContributionDraft {
            round,
            spec,
            weight,
            model,
            frozen,
            samples,
        })));
    }

    /// Takes the results of a round. Older ones that the machine forgot, because no exchange took
    /// them, are dropped too.
    fn take_result(&mut self, round: Round) -> Option<RoundResult<D>> {
        self.pending_outcomes = self.pending_outcomes.split_off(&round);
        self.pending_outcomes.remove(&round)
    }

    fn answer(&mut self, answer: AggregatorEffect<D>, out: &mut Outbox<AggregatorEffect<D>>) {
        self.forget_exchange();
        out.push(answer);
    }

    fn forget_exchange(&mut self) {
        self.request = None;
        self.frozen = None;
        self.samples = None;
        self.gossiped = None;
        self.stepped = None;
    }
}
