//! The gossip peer of a simulated node and its arithmetic: real numerators over small vectors. As the actor does.

mod entries;

use crate::sim::mail::{Mail, Wish};
use slowmo_protocol::algorithm::{Algorithm, Base, Gossip, WireType};
use slowmo_protocol::gossip_peer::{Effect, GossipPeer, In, Key, Mix, PARKED_MAX, Plan, Purpose, Sent, Waits};
use slowmo_protocol::ident::{Lineage, NodeId, Round, Step};
use slowmo_protocol::machine::{Identity, Machine, Outbox};
use slowmo_protocol::membership;
use slowmo_protocol::node::vectors::{Body, Stream, Values, Vectors};
use slowmo_protocol::node::{GossipDone, ToAggregator, ToGossip};
use slowmo_protocol::schedule::{gossips_before, next_boundary};
use slowmo_protocol::time::Instant;
use slowmo_protocol::view::View;
use slowmo_protocol::wire::{Bulk, Header};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Frames that wait for this node's first view.
const EARLY_FRAMES_MAX: usize = 1024;

/// The machine (once there is a view), its streams and values.
pub struct GossipPart {
    machine: Option<GossipPeer>,
    identity: Identity,
    algorithm: Algorithm,
    gossip: Option<Gossip>,
    waits: Waits,
    round: Round,
    early: Vec<In>,
    streams: BTreeMap<Key, Stream>,
    reading: BTreeMap<Key, Header>,
    /// Numerators of messages that have arrived and are not mixed yet.
    arrived: BTreeMap<Key, Values>,
    /// Numerators of what was sent and may come back.
    shipped: BTreeMap<Sent, Values>,
    /// The model as the training thread left it, for an exact average.
    frozen: Option<Values>,
    /// The model after the last mix: what its own weight belongs to.
    model: Values,
    /// Synchronous: numerators of the node's own part.
    kept: Vec<f64>,
    /// Synchronous: the push-sum weight of that part.
    kept_weight: f64,
    /// Overlapped: the mix that the training thread takes in now, and what is sent then.
    pending: Option<(Mix, Values)>,
    plan: Option<Plan>,
}

impl GossipPart {
    /// A gossip peer without a view.
    pub fn new(identity: Identity, algorithm: Algorithm, waits: Waits) -> Self {
        let gossip = if let Base::Sgp(gossip) = algorithm.base { Some(gossip) } else { None };
        Self {
            machine: None,
            identity,
            algorithm,
            gossip,
            waits,
            round: Round::FOUNDING,
            early: Vec::new(),
            streams: BTreeMap::new(),
            reading: BTreeMap::new(),
            arrived: BTreeMap::new(),
            shipped: BTreeMap::new(),
            frozen: None,
            model: Values::default(),
            kept: Vec::new(),
            kept_weight: 1.0,
            pending: None,
            plan: None,
        }
    }

    /// When it must be given a tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.as_ref().and_then(Machine::next_deadline)
    }

    /// The machine, to look at.
    pub fn machine(&self) -> Option<&GossipPeer> {
        self.machine.as_ref()
    }

    /// How many streams wait to be read.
    pub fn parked(&self) -> usize {
        self.streams.len()
    }

    /// Models that are kept because they may come back.
    pub fn models(&self) -> usize {
        let mut steps: Vec<Step> = self.shipped.keys().map(|(_, step)| *step).collect();
        steps.sort_unstable();
        steps.dedup();
        steps.len()
    }

    fn is_synchronous(&self) -> bool {
        self.gossip.is_some_and(|gossip| gossip.staleness == 0)
    }

    /// Takes a message.
    pub fn take(&mut self, message: ToGossip<Vectors>, now: Instant, wishes: &mut Vec<Wish>) {
        let (mut out, before) = (Outbox::default(), self.stands());
        let told = self.told(&message);
        self.decide(message, now, wishes, &mut out);
        let effects = out.take();
        self.book(before, told, &effects, wishes);
        for effect in effects {
            self.act(effect, wishes);
        }
    }

    fn decide(&mut self, message: ToGossip<Vectors>, now: Instant, wishes: &mut Vec<Wish>, out: &mut Outbox<Effect>) {
        match message {
            ToGossip::In(event) => self.feed(event, now, out),
            ToGossip::View(view, lineage, round, order) => self.enter((view, lineage, round), order, now, out),
            ToGossip::Round(round) => {
                self.go_to(round);
                self.feed(In::Round(round), now, out);
            }
            // A round was decided meanwhile: the training thread gets that.
            ToGossip::Gossip(_, round, _) | ToGossip::Settle(_, round, _) if round < self.round => {}
            ToGossip::Gossip(step, round, frozen) => {
                self.go_to(round);
                if let (Some(frozen), Some(machine)) = (frozen, &self.machine) {
                    self.kept_weight = machine.own_weight();
                    self.kept = frozen.iter().map(|value| value * self.kept_weight).collect();
                }
                let turn = gossips_before(&self.algorithm, step);
                self.feed(In::Gossip { step, turn, round }, now, out);
            }
            ToGossip::Settle(step, round, frozen) => {
                self.go_to(round);
                self.frozen = Some(frozen);
                self.feed(In::Settle { step, round }, now, out);
            }
            ToGossip::Moved { step, before, .. } => self.moved(step, &before, wishes),
            // Momentum is sharded in every simulated run, and every vector is as long as the model.
            ToGossip::Stepped(_) | ToGossip::Model(_) => {}
            ToGossip::Decided(round, values) => {
                self.go_to(round);
                self.feed(In::Round(round), now, out);
                if round == self.round {
                    self.model = values;
                }
            }
            ToGossip::Stream(stream) => self.offered(stream, now, out),
            ToGossip::Read(key, values) => {
                if self.reading.remove(&key).is_some() {
                    let event = if let Some(values) = values {
                        self.arrived.insert(key, values);
                        In::Arrived(key)
                    } else {
                        In::Broken(key)
                    };
                    self.feed(event, now, out);
                }
            }
            ToGossip::Sent(sent, true) => self.feed(In::Sent(sent), now, out),
            ToGossip::Sent(sent, false) => self.feed(In::SendFailed(sent), now, out),
            ToGossip::Leave(_) if self.machine.is_none() => {
                wishes.push(Wish::tell(membership::In::Leave));
            }
            ToGossip::Leave(round) => {
                self.go_to(round);
                if let Some(plan) = self.plan.take() {
                    self.feed(In::Withheld(plan.step), now, out);
                }
                self.feed(In::Leave(round), now, out);
            }
        }
    }

    fn feed(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match &mut self.machine {
            Some(machine) => machine.handle(event, now, out),
            None if matches!(event, In::Frame { .. }) && self.early.len() < EARLY_FRAMES_MAX => self.early.push(event),
            None => {}
        }
    }

    fn enter(&mut self, (view, lineage, round): (View, Lineage, Round), order: Vec<NodeId>, now: Instant, out: &mut Outbox<Effect>) {
        let Some(gossip) = self.gossip else { return };
        self.reset(round);
        if self.machine.is_some() {
            return self.feed(In::View { view, lineage, round, order }, now, out);
        }
        let mut machine = GossipPeer::new(self.identity, gossip, self.waits, (&view, lineage, round)).ordered(&order);
        for (key, stream) in &self.streams {
            if let Bulk::Gossip { weight, .. } = stream.content {
                machine.handle(In::Offered { header: stream.header, step: key.1, weight }, now, out);
            }
        }
        self.machine = Some(machine);
        std::mem::take(&mut self.early).into_iter().for_each(|event| self.feed(event, now, out));
    }

    /// A decided round makes every weight 1: values of before are void.
    fn go_to(&mut self, round: Round) {
        if round > self.round {
            self.reset(round);
        }
    }

    fn reset(&mut self, round: Round) {
        self.round = round;
        self.shipped.clear();
        (self.frozen, self.pending, self.plan, self.kept_weight) = (None, None, None, 1.0);
    }

    fn offered(&mut self, stream: Stream, now: Instant, out: &mut Outbox<Effect>) {
        let Bulk::Gossip { step, weight, .. } = stream.content else { return };
        let (header, key) = (stream.header, (stream.header.round, step, stream.header.sender));
        if self.streams.contains_key(&key) || self.reading.contains_key(&key) || self.streams.len() >= PARKED_MAX {
            return;
        }
        self.streams.insert(key, stream);
        self.feed(In::Offered { header, step, weight }, now, out);
    }

    fn act(&mut self, effect: Effect, wishes: &mut Vec<Wish>) {
        match effect {
            Effect::Receive(key) => {
                let Some(Stream { stream: Body::Values(values), header, .. }) = self.streams.remove(&key) else { return };
                self.reading.insert(key, header);
                wishes.push(Wish::Later(1, Mail::from(ToGossip::Read(key, Some(values)))));
            }
            Effect::Drop(key) => {
                if self.streams.remove(&key).is_none() {
                    self.arrived.remove(&key);
                    self.reading.remove(&key);
                }
            }
            Effect::Mix(mix) => self.mix(mix, wishes),
            Effect::Ship(plan) => self.ship(plan, wishes),
            Effect::Forget(sent) => _ = self.shipped.remove(&sent),
            Effect::Send { to, frame } => wishes.push(Wish::Frame(to, frame)),
            Effect::Late(_) => {}
            Effect::Left => wishes.push(Wish::tell(membership::In::Leave)),
        }
    }

    /// Adds up what arrived and what came back.
    fn gather(&mut self, mix: &Mix, into: &mut [f64]) {
        let arrivals: Vec<Values> = mix.arrivals.iter().filter_map(|key| self.arrived.remove(key)).collect();
        let returned: Vec<Values> = mix.returned.iter().filter_map(|sent| self.shipped.remove(sent)).collect();
        for values in arrivals.iter().chain(&returned) {
            into.iter_mut().zip(values.iter()).for_each(|(sum, value)| *sum += value);
        }
    }

    fn mix(&mut self, mix: Mix, wishes: &mut Vec<Wish>) {
        match (mix.purpose, self.is_synchronous()) {
            (Purpose::Average, _) => {
                let Some(frozen) = self.frozen.take() else { return };
                let mut values: Vec<f64> = frozen.iter().map(|value| value * mix.own).collect();
                self.gather(&mix, &mut values);
                wishes.push(Wish::tell(ToAggregator::Settled(mix.step, mix.weight, Arc::new(values))));
            }
            (Purpose::Gossip, true) => {
                let scale = mix.own / self.kept_weight;
                let mut values: Vec<f64> = std::mem::take(&mut self.kept).iter().map(|value| value * scale).collect();
                self.gather(&mix, &mut values);
                self.done(&mix, Arc::new(values), None, wishes);
            }
            (Purpose::Gossip, false) => {
                let stays = if mix.shared { mix.own.min(1.0) } else { 1.0 };
                let mut values: Vec<f64> = self.model.iter().map(|value| value * (mix.own - stays)).collect();
                self.gather(&mix, &mut values);
                let values = Arc::new(values);
                self.done(&mix, values.clone(), Some(stays), wishes);
                self.pending = Some((mix, values));
            }
        }
    }

    fn done(&self, mix: &Mix, values: Values, stays: Option<f64>, wishes: &mut Vec<Wish>) {
        let next = Step(mix.step.0.saturating_add(1));
        let boundary = next_boundary(&self.algorithm, mix.step).unwrap_or(Step(u64::MAX));
        let next_step = mix.behind.map_or(next, |reached| reached.min(boundary).max(next));
        let (step, weight, contributors) = (mix.step, mix.weight, mix.arrivals.len() + 1);
        let done = GossipDone { step, weight, contributors, next_step, values, stays };
        wishes.push(Wish::tell(ToAggregator::GossipDone(Box::new(done))));
    }

    fn ship(&mut self, plan: Plan, wishes: &mut Vec<Wish>) {
        if !self.is_synchronous() {
            self.plan = Some(plan);
            return;
        }
        let scale = plan.split.share / self.kept_weight;
        let part: Values = Arc::new(self.kept.iter().map(|value| value * scale).collect());
        let keeps = plan.split.kept / self.kept_weight;
        self.kept.iter_mut().for_each(|value| *value *= keeps);
        self.kept_weight = plan.split.kept;
        self.send(&plan, &part, wishes);
    }

    fn send(&mut self, plan: &Plan, part: &Values, wishes: &mut Vec<Wish>) {
        let header = self.identity.header(plan.place);
        for to in &plan.out {
            self.shipped.insert((*to, plan.step), part.clone());
            if self.machine.as_ref().is_some_and(|machine| machine.awaits_answer((*to, plan.step))) {
                let content = Bulk::Gossip { step: plan.step, weight: plan.split.share, scale: 1.0, wire: WireType::Float32 };
                let stream = Body::Values(part.clone());
                wishes.push(Wish::Stream(*to, Box::new(Stream { header, content, stream })));
            }
        }
    }

    /// Overlapped: the training thread mixed. `before` is the model as its inner step left it.
    fn moved(&mut self, step: Step, before: &Values, wishes: &mut Vec<Wish>) {
        // A decided round may have come between.
        let Some((mix, correction)) = self.pending.take().filter(|(mix, _)| mix.step == step) else { return };
        let stays = if mix.shared { mix.own.min(1.0) } else { 1.0 };
        let numerators: Vec<f64> = before.iter().zip(correction.iter()).map(|(model, correction)| stays * model + correction).collect();
        let plan = self.plan.take_if(|plan| plan.step == step);
        if let Some(plan) = plan {
            let goes = (1.0 - stays) / plan.out.len() as f64;
            let scale = plan.split.share / mix.weight;
            let moved = before.iter().zip(self.model.iter()).map(|(before, model)| before - model);
            let part = numerators.iter().zip(moved).map(|(numerator, moved)| numerator * scale + moved * goes).collect();
            self.send(&plan, &Arc::new(part), wishes);
        }
        self.model = Arc::new(numerators.iter().map(|value| value / mix.weight).collect());
    }
}
