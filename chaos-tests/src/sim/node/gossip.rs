//! The gossip peer of a simulated node: drives that part of the node, with real numerators over
//! small vectors.

mod entries;

use crate::sim::mail::{Mail, Output};
use slowmo_protocol::algorithm::{Algorithm, WireType};
use slowmo_protocol::gossip_peer::{GossipPeer, Mix, Plan, Purpose, Sent, Waits};
use slowmo_protocol::ident::{NodeId, Step};
use slowmo_protocol::machine::{Identity, Outbox};
use slowmo_protocol::node::vectors::{Body, Stream, Values, Vectors};
use slowmo_protocol::node::{GossipEffect, GossipPart, Made, ToGossip};
use slowmo_protocol::time::Instant;
use slowmo_protocol::wire::Bulk;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The gossip part, and its numerators.
pub struct Gossips {
    part: GossipPart<Vectors>,
    identity: Identity,
    /// Numerators of messages that have arrived and belong to the next mix.
    folded: Vec<Values>,
    /// Numerators that were sent and may come back.
    shipped: BTreeMap<Sent, Values>,
    /// The model after the last mix, to which the node's own weight belongs.
    model: Values,
    /// Synchronous: the numerators of the node's own part.
    kept: Vec<f64>,
    /// Synchronous: the push-sum weight of that part.
    kept_weight: f64,
    /// Overlapped: the mix that the training thread takes in now, and the correction that it adds.
    mixing: Option<(Mix, Values)>,
}

impl Gossips {
    /// A gossip peer without a view.
    pub fn new(identity: Identity, algorithm: Algorithm, waits: Waits) -> Self {
        Self {
            part: GossipPart::new(identity, algorithm, waits),
            identity,
            folded: Vec::new(),
            shipped: BTreeMap::new(),
            model: Values::default(),
            kept: Vec::new(),
            kept_weight: 1.0,
            mixing: None,
        }
    }

    /// Time at which the part needs its next tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.part.next_deadline()
    }

    /// The machine, for inspection.
    pub fn machine(&self) -> Option<&GossipPeer> {
        self.part.machine()
    }

    /// Number of streams that wait to be read.
    pub fn parked(&self) -> usize {
        self.part.parked()
    }

    /// Number of models that are kept because they may come back.
    pub fn models(&self) -> usize {
        let mut steps: Vec<Step> = self.shipped.keys().map(|(_, step)| *step).collect();
        steps.sort_unstable();
        steps.dedup();
        steps.len()
    }

    /// Handles a message.
    pub fn take(&mut self, message: ToGossip<Vectors>, now: Instant, outputs: &mut Vec<Output>) {
        let mut messages = VecDeque::from([message]);
        while let Some(message) = messages.pop_front() {
            let before = self.stands();
            let told = self.told(&message);
            let mut out = Outbox::default();
            self.part.handle(message, now, &mut out);
            let effects = out.take();
            self.book(before, told, &effects, outputs);
            for effect in effects {
                messages.extend(self.act(effect, outputs));
            }
        }
    }

    /// Carries out an effect; the part is told the result at once.
    fn act(
        &mut self,
        effect: GossipEffect<Vectors>,
        outputs: &mut Vec<Output>,
    ) -> Option<ToGossip<Vectors>> {
        match effect {
            GossipEffect::Send { to, frame } => outputs.push(Output::Frame(to, frame)),
            GossipEffect::Tell(mail) => outputs.push(Output::tell(mail)),
            GossipEffect::Reset => {
                self.folded.clear();
                self.shipped.clear();
                self.kept_weight = 1.0;
                self.mixing = None;
            }
            GossipEffect::Freeze(frozen, weight) => {
                self.kept_weight = weight;
                self.kept = frozen.iter().map(|value| value * weight).collect();
            }
            GossipEffect::Read(key, stream) => {
                let Body::Values(values) = stream.stream else {
                    return None;
                };
                outputs.push(Output::Later(
                    1,
                    Mail::from(ToGossip::Read(key, Some(values))),
                ));
            }
            GossipEffect::Fold(values) => self.folded.push(values),
            GossipEffect::Mix {
                mix,
                arrived,
                frozen,
            } => {
                let made = self.mix(&mix, arrived, frozen);
                return Some(ToGossip::Mixed(mix, made));
            }
            GossipEffect::Ship(plan) if self.part.is_synchronous() => self.ship(&plan, outputs),
            GossipEffect::Moved(before, plan) => self.moved(&before, plan, outputs),
            GossipEffect::GoOn(values, _) => self.model = values,
            GossipEffect::Forget(sent) => _ = self.shipped.remove(&sent),
            // Every number is finite here.
            GossipEffect::Ship(_) | GossipEffect::Mend(_) => {}
            GossipEffect::Stop(_) | GossipEffect::Late(_) | GossipEffect::Refused(_) => {}
        }
        None
    }

    /// Mixes the node's own values with those that arrived and came back.
    fn mix(
        &mut self,
        mix: &Mix,
        mut arrived: Vec<Values>,
        frozen: Option<Values>,
    ) -> Made<Vectors> {
        let stays = if mix.shared { mix.own.min(1.0) } else { 1.0 };
        let mut values: Vec<f64> = match (&frozen, self.part.is_synchronous()) {
            (Some(frozen), _) => frozen.iter().map(|value| value * mix.own).collect(),
            (None, true) => std::mem::take(&mut self.kept)
                .iter()
                .map(|value| value * (mix.own / self.kept_weight))
                .collect(),
            (None, false) => self
                .model
                .iter()
                .map(|value| value * (mix.own - stays))
                .collect(),
        };
        arrived.extend(std::mem::take(&mut self.folded));
        arrived.extend(
            mix.returned
                .iter()
                .filter_map(|sent| self.shipped.remove(sent)),
        );
        for part in arrived {
            values
                .iter_mut()
                .zip(part.iter())
                .for_each(|(sum, value)| *sum += value);
        }
        let values = Arc::new(values);
        if mix.purpose == Purpose::Average {
            return Made::Contribution(values);
        }
        if self.part.is_synchronous() {
            return Made::Numerators(values);
        }
        self.mixing = Some((mix.clone(), values.clone()));
        Made::Correction(values, stays)
    }

    fn ship(&mut self, plan: &Plan, outputs: &mut Vec<Output>) {
        let scale = plan.split.share / self.kept_weight;
        let part: Values = Arc::new(self.kept.iter().map(|value| value * scale).collect());
        let keeps = plan.split.kept / self.kept_weight;
        self.kept.iter_mut().for_each(|value| *value *= keeps);
        self.kept_weight = plan.split.kept;
        self.send(plan, &part, outputs);
    }

    fn send(&mut self, plan: &Plan, part: &Values, outputs: &mut Vec<Output>) {
        self.shipped
            .extend(plan.out.iter().map(|to| ((*to, plan.step), part.clone())));
        let wire = self
            .part
            .settings()
            .map_or(WireType::Float32, |gossip| gossip.wire);
        let content = Bulk::Gossip {
            step: plan.step,
            weight: plan.split.share,
            scale: 1.0,
            wire,
        };
        let header = self.identity.header(plan.place);
        for to in self.part.receivers(plan) {
            let stream = Stream {
                header,
                content: content.clone(),
                stream: Body::Values(part.clone()),
            };
            outputs.push(Output::Stream(to, Box::new(stream)));
        }
    }

    /// Overlapped: the training thread mixed. `before` is the model after its inner step.
    fn moved(&mut self, before: &Values, plan: Option<Plan>, outputs: &mut Vec<Output>) {
        let Some((mix, correction)) = self.mixing.take() else {
            return;
        };
        let stays = if mix.shared { mix.own.min(1.0) } else { 1.0 };
        let numerators: Vec<f64> = before
            .iter()
            .zip(correction.iter())
            .map(|(model, correction)| stays * model + correction)
            .collect();
        if let Some(plan) = plan {
            let goes = (1.0 - stays) / plan.out.len() as f64;
            let scale = plan.split.share / mix.weight;
            let moved = before
                .iter()
                .zip(self.model.iter())
                .map(|(before, model)| before - model);
            let part = numerators
                .iter()
                .zip(moved)
                .map(|(numerator, moved)| numerator * scale + moved * goes)
                .collect();
            self.send(&plan, &Arc::new(part), outputs);
        }
        self.model = Arc::new(numerators.iter().map(|value| value / mix.weight).collect());
    }

    /// The messages to a peer that the node still answers for.
    fn open(&self, node: NodeId) -> Vec<Step> {
        let awaits = |sent: &&Sent| {
            sent.0 == node
                && self
                    .machine()
                    .is_some_and(|machine| machine.awaits_answer(**sent))
        };
        self.shipped
            .keys()
            .filter(awaits)
            .map(|sent| sent.1)
            .collect()
    }
}
