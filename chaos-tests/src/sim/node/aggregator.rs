//! The aggregator of a simulated node with one worker: hands its requests on and its results back. As the actor does.

use crate::sim::config::Config;
use crate::sim::mail::{Arrival, Exchanged, Mail, ToTraining, Wish};
use slowmo_protocol::aggregator::{Aggregator, Effect, In, Task, Values as Source};
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::coordinator::{Outcome, RoundSpec};
use slowmo_protocol::ident::Round;
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::membership;
use slowmo_protocol::node::vectors::{Contribution, Values, Vectors};
use slowmo_protocol::node::{Contribute, Decided, GossipDone, ToAggregator, ToGossip, ToRounds};
use slowmo_protocol::time::Instant;
use slowmo_protocol::topology::Rate;
use slowmo_protocol::view::Member;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values, a joiner's buffers, the members before.
type Brought = (Values, Option<Values>, Arc<[Member]>);

/// The machine and what it must not see.
pub struct AggregatorPart {
    machine: Aggregator,
    rates: Vec<Rate>,
    gossips: bool,
    asked: Option<Arrival>,
    frozen: Option<Values>,
    /// What decided rounds brought, until the thread takes it.
    untaken: BTreeMap<Round, Brought>,
    gossiped: Option<(Values, Option<f64>)>,
    leaving: bool,
}

impl AggregatorPart {
    /// Before the founding.
    pub fn new(config: &Config, rates: Vec<Rate>) -> Self {
        let gossips = matches!(config.algorithm.base, Base::Sgp(_));
        Self {
            machine: Aggregator::new(1, gossips, config.waits.round),
            rates,
            gossips,
            asked: None,
            frozen: None,
            untaken: BTreeMap::new(),
            gossiped: None,
            leaving: false,
        }
    }

    /// When it must be given a tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }

    /// Takes a message.
    pub fn take(&mut self, message: ToAggregator<Vectors>, now: Instant, wishes: &mut Vec<Wish>) {
        let mut out = Outbox::default();
        let mut feed = |machine: &mut Aggregator, event| machine.handle(event, now, &mut out);
        match message {
            ToAggregator::Decided(decided) => {
                let Decided { outcome, members, values, mut donated, drained } = *decided;
                if outcome.spec.carries_parameters() {
                    let before = std::mem::take(&mut self.untaken);
                    donated = donated.or_else(|| before.into_values().find_map(|(_, donated, _)| donated));
                }
                self.untaken.insert(outcome.round, (values, donated, members));
                feed(&mut self.machine, In::RoundDecided { outcome, drained });
            }
            ToAggregator::GossipDone(done) if self.machine.awaits_gossip(done.step) => {
                let GossipDone { step, weight, contributors, next_step, values, stays } = *done;
                self.gossiped = Some((values, stays));
                feed(&mut self.machine, In::GossipDone { step, weight, contributors, next_step });
            }
            ToAggregator::Settled(step, weight, values) if self.machine.awaits_settling(step) => {
                self.frozen = Some(values);
                feed(&mut self.machine, In::Settled { step, weight });
            }
            // A round that was decided meanwhile has released the worker.
            ToAggregator::GossipDone(_) | ToAggregator::Settled(..) => {}
            ToAggregator::Failed(failure) => {
                feed(&mut self.machine, In::Failed);
                self.answer(ToTraining::Failed(failure), wishes);
            }
            ToAggregator::Drained => feed(&mut self.machine, In::Drained),
            ToAggregator::Left if self.leaving => wishes.push(Wish::Tell(Mail::Training(ToTraining::Left))),
            ToAggregator::Left => {}
            ToAggregator::Tick => feed(&mut self.machine, In::Tick),
        }
        out.take().into_iter().for_each(|effect| self.act(effect, wishes));
    }

    /// The worker asks for an exchange.
    pub fn arrive(&mut self, arrival: Arrival, now: Instant, wishes: &mut Vec<Wish>) {
        let (mut out, request) = (Outbox::default(), arrival.request);
        self.frozen = arrival.values.clone().or(self.frozen.take());
        self.asked = Some(arrival);
        self.machine.handle(In::Arrive { worker: 0, request }, now, &mut out);
        out.take().into_iter().for_each(|effect| self.act(effect, wishes));
    }

    /// The worker leaves.
    pub fn leave(&mut self, wishes: &mut Vec<Wish>) {
        self.leaving = true;
        wishes.push(Wish::tell(ToGossip::Leave(self.machine.round())));
    }

    fn act(&mut self, effect: Effect, wishes: &mut Vec<Wish>) {
        match effect {
            Effect::Round { round, spec, weight } => self.contribute(round, spec, weight, wishes),
            Effect::Gossip { step, round } => {
                let frozen = self.frozen.take();
                wishes.push(Wish::tell(ToGossip::Gossip(step, round, frozen)));
            }
            Effect::Settle { step, round } => {
                if let Some(frozen) = self.frozen.take() {
                    wishes.push(Wish::tell(ToGossip::Settle(step, round, frozen)));
                }
            }
            // Momentum is sharded in every simulated run.
            Effect::WholeStep { .. } | Effect::Missing { .. } | Effect::Disagree { .. } => {}
            Effect::Release { values, weight, outcome, next_step, drained, .. } => {
                self.release(values, (weight, next_step, drained), outcome, wishes);
            }
            Effect::Behind => {
                self.untaken.clear();
                wishes.push(Wish::tell(membership::In::Stranded));
            }
            Effect::Unchanged => self.answer(ToTraining::PassedOver, wishes),
            Effect::Drained => self.answer(ToTraining::Drained, wishes),
        }
    }

    fn contribute(&mut self, round: Round, spec: RoundSpec, weight: f64, wishes: &mut Vec<Wish>) {
        let (Some(values), Some(asked)) = (self.frozen.take(), &mut self.asked) else { return };
        if asked.request.task == Task::Found {
            wishes.push(Wish::tell(membership::In::Synchronize(asked.model)));
        }
        let (samples, parameters) = (asked.samples.take(), values.len());
        let contribution = Contribution { weight, values, buffers: asked.buffers.clone(), used: std::mem::take(&mut asked.used) };
        let (rates, buffers) = (self.rates.clone(), asked.model.optimizer);
        let contribute = Contribute { round, spec, samples, rates, buffers, parameters, contribution };
        wishes.push(Wish::tell(ToRounds::Contribute(Box::new(contribute))));
    }

    fn release(
        &mut self,
        source: Source,
        (weight, next_step, drained): (f64, slowmo_protocol::ident::Step, bool),
        outcome: Option<Arc<Outcome>>,
        wishes: &mut Vec<Wish>,
    ) {
        let brought = outcome.as_ref().and_then(|outcome| {
            self.untaken = self.untaken.split_off(&outcome.round);
            self.untaken.remove(&outcome.round)
        });
        let (decided, donated, members_before) =
            brought.map_or_else(Default::default, |(values, donated, members)| (Some(values), donated, members));
        let (values, stays) = match source {
            Source::Decided => (decided, None),
            Source::Gossiped => self.gossiped.take().map_or((None, None), |(values, stays)| (Some(values), stays)),
            Source::Own | Source::Stepped => (None, None),
        };
        let parameters = outcome.as_ref().filter(|outcome| outcome.spec.carries_parameters());
        if let (Some(outcome), Some(values), true) = (parameters, &values, self.gossips) {
            wishes.push(Wish::tell(ToGossip::Decided(outcome.round.next(), values.clone())));
        }
        let decided = outcome.map(|outcome| (outcome, members_before));
        let exchanged = Exchanged { values, stays, weight, decided, donated, next_step, drained };
        self.answer(ToTraining::Exchanged(Box::new(exchanged)), wishes);
    }

    fn answer(&mut self, answer: ToTraining, wishes: &mut Vec<Wish>) {
        self.gossiped = None;
        if self.asked.take().is_some() {
            self.frozen = None;
            wishes.push(Wish::Tell(Mail::Training(answer)));
        }
    }
}
