//! The aggregator: what of a worker's exchange goes where, and what decided rounds and gossip
//! brought until the workers take it.

use super::data::Data;
use super::mail::{Arrive, Decided, Failure, GossipDone, Mail, ToAggregator, ToGossip};
use crate::aggregator::{Aggregator, Effect, In, Request, Task, Values};
use crate::coordinator::{Outcome, RoundSpec};
use crate::ident::{Round, Step};
use crate::machine::{Machine, Outbox};
use crate::membership;
use crate::model::ModelSize;
use crate::sampler::Progress;
use crate::time::{Instant, Span};
use crate::view::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the part asks its driver for.
#[derive(Debug)]
pub enum AggregatorEffect<D: Data> {
    /// Tell another part.
    Tell(Mail<D>),
    /// Hand the node's contribution to the coordinator.
    Contribute(Box<Contributing<D>>),
    /// Take the node's own slow step, and tell the result.
    WholeStep {
        /// From these values.
        from: Source<D>,
        /// With this learning rate.
        gamma: f32,
    },
    /// Every worker goes on.
    Release(Box<Released<D>>),
    /// Gradients stay as they are: new parameters wait at the next step.
    Unchanged,
    /// This node missed too many means of gradients: it joins again.
    Behind,
    /// The node has left.
    Drained,
    /// Workers did not come.
    Missing {
        /// Which.
        workers: Vec<usize>,
        /// How long they were waited for.
        waited: Span,
    },
    /// Workers asked for different things.
    Disagree {
        /// The one that arrived last.
        worker: usize,
        /// What it asked for.
        asked: Request,
        /// What the others asked for.
        before: Request,
    },
    /// The exchange failed.
    Failed(Failure),
    /// The node may go: all of its workers leave.
    Left,
}

/// A contribution to a round, as far as the part knows it.
#[derive(Debug)]
pub struct Contributing<D: Data> {
    /// Which round.
    pub round: Round,
    /// What the node expects the round to be.
    pub spec: RoundSpec,
    /// Its push-sum weight.
    pub weight: f64,
    /// What the node trains.
    pub model: ModelSize,
    /// The values.
    pub frozen: D::Frozen,
    /// Which samples were left when the round began.
    pub samples: Option<Progress>,
}

/// Where values come from.
#[derive(Debug)]
pub enum Source<D: Data> {
    /// A decided round, a gossip, or the node's own slow step; none where there is nothing.
    Made(Option<D::Values>),
    /// The workers gave them.
    Own(Option<D::Frozen>),
}

/// The result of an exchange.
#[derive(Debug)]
pub struct Released<D: Data> {
    /// The values, and whether the node's own slow step made them.
    pub values: Option<D::Values>,
    /// The node's own slow step made them.
    pub stepped: bool,
    /// Overlapped gossip: the part of the model that stays, to which the values are added.
    pub stays: Option<f64>,
    /// The node's push-sum weight.
    pub weight: f64,
    /// The decided round, if one was.
    pub outcome: Option<Arc<Outcome>>,
    /// A member's buffers of the base optimizer, for a node that joined.
    pub donated: Option<D::Values>,
    /// Nodes that were averaged with, this one included.
    pub contributors: usize,
    /// The members of the view now, ascending.
    pub members: Arc<[Member]>,
    /// The members of the view that the round began with, ascending.
    pub members_before: Arc<[Member]>,
    /// The inner step that follows.
    pub next_step: Step,
    /// The node is left out from now on.
    pub drained: bool,
}

/// What a decided round brought.
struct Brought<D: Data> {
    /// `None` once the node's own slow step has taken them.
    values: Option<D::Values>,
    donated: Option<D::Values>,
    members_before: Arc<[Member]>,
}

/// The aggregator's machine, and values until somebody takes them.
pub struct AggregatorPart<D: Data> {
    machine: Aggregator,
    workers: usize,
    gossips: bool,
    request: Option<(Request, ModelSize)>,
    frozen: Option<D::Frozen>,
    samples: Option<Progress>,
    /// What decided rounds brought, as many as the machine keeps.
    pending_outcomes: BTreeMap<Round, Brought<D>>,
    /// The values of the gossip that is complete; overlapped, the part of the model that they are
    /// added to.
    gossiped: Option<(D::Values, Option<f64>)>,
    /// The values after the node's own slow step.
    stepped: Option<D::Values>,
    members: Arc<[Member]>,
    leaving: BTreeSet<usize>,
}

impl<D: Data> AggregatorPart<D> {
    /// Before the founding. `timeout`: how long workers wait for each other.
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

    /// When it must be given a tick.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// What the workers ask for.
    #[must_use]
    pub fn request(&self) -> Option<(Request, ModelSize)> {
        self.request
    }

    /// The node's push-sum weight.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.machine.weight()
    }

    /// Takes a message.
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

    /// What the machine is told of a message.
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

    fn decided(&mut self, decided: Decided<D>) -> In {
        let Decided {
            outcome,
            members,
            values,
            mut donated,
            drained,
        } = decided;
        self.members = outcome.view.members().into();
        if outcome.spec.carries_parameters() {
            // They replace all that was before them, but not what a joiner was given.
            let before = std::mem::take(&mut self.pending_outcomes);
            donated = donated.or_else(|| before.into_values().find_map(|before| before.donated));
        }
        self.pending_outcomes.insert(
            outcome.round,
            Brought {
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
                    // Its whole step comes first; the rest of what the round brought waits for
                    // that.
                    Values::Decided => Source::Made(
                        self.pending_outcomes
                            .values_mut()
                            .next()
                            .and_then(|brought| brought.values.take()),
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
                let brought = outcome
                    .as_ref()
                    .and_then(|outcome| self.take_brought(outcome.round));
                let (decided, donated, members_before) = match brought {
                    Some(Brought {
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
                // Gradients do not go with it.
                let parameters = outcome
                    .as_ref()
                    .filter(|outcome| outcome.spec.carries_parameters());
                if let (true, Some(outcome), Some(values)) = (self.gossips, parameters, &values) {
                    // Where the workers go on, before they can.
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
            Effect::Behind => {
                self.pending_outcomes.clear();
                out.push(AggregatorEffect::Behind);
                out.push(AggregatorEffect::Tell(membership::In::MustRejoin.into()));
            }
            Effect::Unchanged => self.answer(AggregatorEffect::Unchanged, out),
            Effect::Drained => self.answer(AggregatorEffect::Drained, out),
            Effect::Missing { workers, waited } => {
                self.answer(AggregatorEffect::Missing { workers, waited }, out)
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
        out.push(AggregatorEffect::Contribute(Box::new(Contributing {
            round,
            spec,
            weight,
            model,
            frozen,
            samples,
        })));
    }

    /// What a round brought. What the machine forgot, as no exchange took it, is older and goes as
    /// well.
    fn take_brought(&mut self, round: Round) -> Option<Brought<D>> {
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
