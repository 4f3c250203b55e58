//! The gossip peer: decides which messages are read, mixed and sent when, and what is reported to
//! the training threads.

use super::data::{Arrived, Data};
use super::mail::{GossipDone, Made, Mail, ToAggregator, ToGossip};
use crate::algorithm::{Algorithm, Base, Gossip};
use crate::changeable::SettingValues;
use crate::coordinator::capped_grace;
use crate::gossip_peer::{
    Effect, GossipPeer, In, Key, Mix, PARKED_MAX, Plan, Purpose, Sent, Waits,
};
use crate::ident::{Lineage, NodeId, Round, Step};
use crate::machine::{Identity, Machine, Outbox};
use crate::membership;
use crate::schedule::{gossips_before, next_boundary};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{Bulk, Frame, Header};
use std::collections::BTreeMap;

/// Most frames that wait for this node's first view.
const EARLY_FRAMES_MAX: usize = 1024;

/// Actions that the part requests from its driver.
#[derive(Debug)]
pub enum GossipEffect<D: Data> {
    /// Send a control frame.
    Send {
        /// Receiver of the frame.
        to: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// Tell another part.
    Tell(Mail<D>),
    /// A decided round makes every weight 1: everything sent, folded or kept before is void.
    Reset,
    /// Synchronous: freeze this model and this push-sum weight as the node's own part of the gossip
    /// that begins.
    Freeze(D::Frozen, f64),
    /// Read a message.
    Read(Key, Arrived<D::Stream>),
    /// Stop reading a message.
    Stop(Key),
    /// Overlapped: these arrived values belong to the next mix.
    Fold(D::Values),
    /// Do the arithmetic of a mix, and report its result.
    Mix {
        /// The mix.
        mix: Mix,
        /// The arrived values that are not folded yet.
        arrived: Vec<D::Values>,
        /// Before an exact average: the model as the training thread left it.
        frozen: Option<D::Frozen>,
    },
    /// The push-sum weight of messages is split off. Synchronous: they are made from the node's own
    /// part and sent at once.
    Ship(Plan),
    /// Overlapped: the training thread has mixed. These values are the model before the mix; the
    /// messages to send follow from both models.
    Moved(D::Values, Option<Plan>),
    /// Overlapped: like [`GossipEffect::Moved`], but not all numerators are finite. Those that are
    /// not keep their previous values, and nothing is sent.
    Mend(D::Values),
    /// The training threads go on from these values, of this push-sum weight.
    GoOn(D::Values, f64),
    /// The receiver has this message: its values need not be kept.
    Forget(Sent),
    /// These peers are late; gossip goes on without them until they are in time again.
    Late(Vec<NodeId>),
    /// A stream was dropped: it came twice, too many wait, or it is not valid gossip.
    Refused(Header),
}

/// How long a node waits for answers before an exact average: half of the round's wait for
/// contributions, so that its own is in the round.
#[must_use]
pub fn settle_wait(grace: Span, round_timeout: Span) -> Span {
    Span(capped_grace(grace, round_timeout).0 / 2)
}

/// The machine, once there is a view, and messages until the machine wants them.
pub struct GossipPart<D: Data> {
    machine: Option<GossipPeer>,
    identity: Identity,
    /// As configured.
    configured: (Algorithm, Waits),
    /// With the changed settings.
    algorithm: Algorithm,
    waits: Waits,
    round: Round,
    /// Frames of members that heard of the first view before this node; at most
    /// [`EARLY_FRAMES_MAX`].
    early: Vec<In>,
    /// Streams that the machine has not asked to be read; at most [`PARKED_MAX`].
    streams: BTreeMap<Key, Arrived<D::Stream>>,
    /// Most such streams at once since the last call of [`GossipPart::fullest`].
    fullest: usize,
    reading: BTreeMap<Key, Header>,
    /// Messages that have arrived and are neither folded nor mixed.
    arrived: BTreeMap<Key, D::Values>,
    /// The model as the training threads left it, for an exact average.
    frozen: Option<D::Frozen>,
    /// Overlapped: the messages to send when the training thread has mixed.
    plan: Option<Plan>,
    /// Overlapped: the step whose mix the training thread is taking in. Until it has, no other part
    /// knows the numerators.
    mixes: Option<Step>,
    /// The weight of the last mix.
    weight: f64,
}

impl<D: Data> GossipPart<D> {
    /// A gossip peer without a view.
    #[must_use]
    pub fn new(identity: Identity, algorithm: Algorithm, waits: Waits) -> Self {
        Self {
            machine: None,
            identity,
            configured: (algorithm, waits),
            algorithm,
            waits,
            round: Round::BOOTSTRAP,
            early: Vec::new(),
            streams: BTreeMap::new(),
            fullest: 0,
            reading: BTreeMap::new(),
            arrived: BTreeMap::new(),
            frozen: None,
            plan: None,
            mixes: None,
            weight: 1.0,
        }
    }

    /// Time at which the part must be given a tick.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.as_ref().and_then(Machine::next_deadline)
    }

    /// The gossip machine, if there is a view; for inspection.
    #[must_use]
    pub fn machine(&self) -> Option<&GossipPeer> {
        self.machine.as_ref()
    }

    /// The gossip settings of the node, if it gossips.
    #[must_use]
    pub fn settings(&self) -> Option<Gossip> {
        if let Base::Sgp(gossip) = self.algorithm.base {
            Some(gossip)
        } else {
            None
        }
    }

    /// Whether values are frozen, sent and mixed in one step.
    #[must_use]
    pub fn is_synchronous(&self) -> bool {
        self.settings().is_none_or(|gossip| gossip.staleness == 0)
    }

    /// The round that the node works towards, as last reported to the gossip peer.
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// Number of waiting streams.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.streams.len()
    }

    /// Most streams that waited at once since the last call.
    pub fn fullest(&mut self) -> usize {
        std::mem::replace(&mut self.fullest, self.streams.len())
    }

    /// The header of a message that is being read.
    #[must_use]
    pub fn reading(&self, key: Key) -> Option<&Header> {
        self.reading.get(&key)
    }

    /// Overlapped: the messages to send when the training thread has mixed.
    #[must_use]
    pub fn pending(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The nodes that are still to get the messages of a plan. One that died meanwhile gets
    /// nothing: its part has been taken back.
    pub fn receivers(&self, plan: &Plan) -> Vec<NodeId> {
        // A decided round may have come while the messages were made.
        if plan.place.round < self.round {
            return Vec::new();
        }
        let Some(machine) = &self.machine else {
            return Vec::new();
        };
        plan.out
            .iter()
            .copied()
            .filter(|to| machine.awaits_answer((*to, plan.step)))
            .collect()
    }

    /// Handles a message.
    pub fn handle(
        &mut self,
        message: ToGossip<D>,
        now: Instant,
        out: &mut Outbox<GossipEffect<D>>,
    ) {
        let mut effects = Outbox::default();
        self.take(message, now, &mut effects, out);
        for effect in effects.take() {
            self.act(effect, out);
        }
        if self.is_synchronous() || self.mixes.is_some() {
            return;
        }
        out.push_all(
            std::mem::take(&mut self.arrived)
                .into_values()
                .map(GossipEffect::Fold),
        );
    }

    fn take(
        &mut self,
        message: ToGossip<D>,
        now: Instant,
        effects: &mut Outbox<Effect>,
        out: &mut Outbox<GossipEffect<D>>,
    ) {
        match message {
            ToGossip::In(event) => self.feed(event, now, effects),
            ToGossip::Settings(values) => self.change_settings(values),
            ToGossip::View(view, lineage, round, order) => {
                self.enter((view, lineage, round), order, now, effects, out)
            }
            ToGossip::Round(round) => {
                self.go_to(round, out);
                self.feed(In::Round(round), now, effects);
            }
            // A round was decided meanwhile: the training threads get its values.
            ToGossip::Gossip(_, round, _) | ToGossip::Settle(_, round, _) if round < self.round => {
            }
            ToGossip::Mixed(mix, _) if mix.round < self.round => {}
            ToGossip::Gossip(step, round, frozen) => {
                self.go_to(round, out);
                if let (Some(frozen), Some(machine)) = (frozen, &self.machine) {
                    out.push(GossipEffect::Freeze(frozen, machine.own_weight()));
                }
                let turn = gossips_before(&self.algorithm, step);
                self.feed(In::Gossip { step, turn, round }, now, effects);
            }
            ToGossip::Settle(step, round, frozen) => {
                self.go_to(round, out);
                self.frozen = Some(frozen);
                self.feed(In::Settle { step, round }, now, effects);
            }
            ToGossip::Mixed(mix, made) => {
                out.push(GossipEffect::Tell(self.result(&mix, made).into()))
            }
            ToGossip::Moved {
                step,
                before,
                withheld,
            } => self.moved(step, before, withheld, now, effects, out),
            ToGossip::Decided(round, values) => {
                // The training threads have not gossiped in this round yet: the aggregator, which
                // requests that, sends this first.
                self.go_to(round, out);
                self.feed(In::Round(round), now, effects);
                if round == self.round {
                    out.push(GossipEffect::GoOn(values, self.weight));
                }
            }
            ToGossip::Stepped(values) => out.push(GossipEffect::GoOn(values, self.weight)),
            // Only the driver needs the number of values.
            ToGossip::Model(_) => {}
            ToGossip::Stream(stream) => self.offered(stream, now, effects, out),
            ToGossip::Read(key, values) => {
                if self.reading.remove(&key).is_some() {
                    let event = match values {
                        Some(values) => {
                            self.arrived.insert(key, values);
                            In::Arrived(key)
                        }
                        None => In::Broken(key),
                    };
                    self.feed(event, now, effects);
                }
            }
            ToGossip::Sent(sent, true) => self.feed(In::Sent(sent), now, effects),
            ToGossip::Sent(sent, false) => self.feed(In::SendFailed(sent), now, effects),
            ToGossip::Leave(_) if self.machine.is_none() => {
                out.push(GossipEffect::Tell(membership::In::Leave.into()))
            }
            ToGossip::Leave(round) => {
                self.go_to(round, out);
                // Its training thread ended without mixing: nothing of that step is sent.
                if let Some(plan) = self.plan.take() {
                    self.feed(In::Withheld(plan.step), now, effects);
                }
                self.feed(In::Leave(round), now, effects);
            }
        }
    }

    fn feed(&mut self, event: In, now: Instant, effects: &mut Outbox<Effect>) {
        match &mut self.machine {
            Some(machine) => machine.handle(event, now, effects),
            // Keep the frame: otherwise this node would wait in vain for a member that said early
            // that it sends nothing.
            None if matches!(event, In::Frame { .. }) && self.early.len() < EARLY_FRAMES_MAX => {
                self.early.push(event)
            }
            None => {}
        }
    }

    fn change_settings(&mut self, values: SettingValues) {
        let (algorithm, waits) = self.configured;
        self.algorithm = values.applied_to(algorithm);
        self.waits = values.grace().map_or(waits, |grace| Waits {
            message: grace,
            settle: settle_wait(grace, waits.leave),
            leave: waits.leave,
        });
        if let Some(machine) = &mut self.machine {
            machine.wait(self.waits);
        }
    }

    fn enter(
        &mut self,
        (view, lineage, round): (View, Lineage, Round),
        order: Vec<NodeId>,
        now: Instant,
        effects: &mut Outbox<Effect>,
        out: &mut Outbox<GossipEffect<D>>,
    ) {
        let Some(gossip) = self.settings() else {
            return;
        };
        self.reset(round, out);
        if self.machine.is_some() {
            return self.feed(
                In::View {
                    view,
                    lineage,
                    round,
                    order,
                },
                now,
                effects,
            );
        }
        let mut machine =
            GossipPeer::new(self.identity, gossip, self.waits, (&view, lineage, round))
                .ordered(&order);
        // Faster members may have sent already.
        for (key, stream) in &self.streams {
            if let Bulk::Gossip { weight, .. } = stream.content {
                machine.handle(
                    In::Offered {
                        header: stream.header,
                        step: key.1,
                        weight,
                    },
                    now,
                    effects,
                );
            }
        }
        self.machine = Some(machine);
        std::mem::take(&mut self.early)
            .into_iter()
            .for_each(|event| self.feed(event, now, effects));
    }

    /// Goes to a later round. A decided round makes every weight 1: earlier values are void.
    fn go_to(&mut self, round: Round, out: &mut Outbox<GossipEffect<D>>) {
        if round > self.round {
            self.reset(round, out);
        }
    }

    fn reset(&mut self, round: Round, out: &mut Outbox<GossipEffect<D>>) {
        self.round = round;
        self.frozen = None;
        self.plan = None;
        self.mixes = None;
        self.weight = 1.0;
        out.push(GossipEffect::Reset);
    }

    /// Handles the start of a stream. A peer may have heard of a decided round and its view before
    /// this node; the stream then waits here.
    fn offered(
        &mut self,
        stream: Arrived<D::Stream>,
        now: Instant,
        effects: &mut Outbox<Effect>,
        out: &mut Outbox<GossipEffect<D>>,
    ) {
        let Bulk::Gossip {
            step,
            weight,
            scale,
            ..
        } = stream.content
        else {
            return;
        };
        let header = stream.header;
        let key = (header.round, step, header.sender);
        let here = self.streams.contains_key(&key) || self.reading.contains_key(&key);
        // No node gives away more than it has.
        let is_part = scale > 0.0 && scale <= 1.0;
        if here || !is_part || self.streams.len() >= PARKED_MAX {
            return out.push(GossipEffect::Refused(header));
        }
        self.streams.insert(key, stream);
        self.fullest = self.fullest.max(self.streams.len());
        self.feed(
            In::Offered {
                header,
                step,
                weight,
            },
            now,
            effects,
        );
    }

    /// Overlapped: the training thread has mixed.
    fn moved(
        &mut self,
        step: Step,
        before: D::Values,
        withheld: bool,
        now: Instant,
        effects: &mut Outbox<Effect>,
        out: &mut Outbox<GossipEffect<D>>,
    ) {
        // A decided round may have come in between.
        if self.mixes.take_if(|mixes| *mixes == step).is_none() {
            return;
        }
        if withheld {
            self.plan = None;
            out.push(GossipEffect::Mend(before));
            return self.feed(In::Withheld(step), now, effects);
        }
        let plan = self.plan.take_if(|plan| plan.step == step);
        out.push(GossipEffect::Moved(before, plan));
    }

    fn act(&mut self, effect: Effect, out: &mut Outbox<GossipEffect<D>>) {
        match effect {
            Effect::Receive(key) => {
                let Some(stream) = self.streams.remove(&key) else {
                    return;
                };
                self.reading.insert(key, stream.header);
                out.push(GossipEffect::Read(key, stream));
            }
            // Of several copies, drop the one that came last.
            Effect::Drop(key) => {
                if self.streams.remove(&key).is_none() {
                    self.arrived.remove(&key);
                    if self.reading.remove(&key).is_some() {
                        out.push(GossipEffect::Stop(key));
                    }
                }
            }
            Effect::Mix(mix) => self.mix(mix, out),
            Effect::Ship(plan) => {
                if !self.is_synchronous() {
                    self.plan = Some(plan.clone());
                }
                out.push(GossipEffect::Ship(plan));
            }
            Effect::Forget(sent) => out.push(GossipEffect::Forget(sent)),
            Effect::Send { to, frame } => out.push(GossipEffect::Send { to, frame }),
            Effect::Late(nodes) => out.push(GossipEffect::Late(nodes)),
            Effect::Left => out.push(GossipEffect::Tell(membership::In::Leave.into())),
        }
    }

    fn mix(&mut self, mix: Mix, out: &mut Outbox<GossipEffect<D>>) {
        let arrived = mix
            .arrivals
            .iter()
            .filter_map(|key| self.arrived.remove(key))
            .collect();
        self.weight = mix.weight;
        let frozen = match mix.purpose {
            Purpose::Average => {
                let Some(frozen) = self.frozen.take() else {
                    return;
                };
                Some(frozen)
            }
            Purpose::Gossip => {
                if !self.is_synchronous() {
                    self.mixes = Some(mix.step);
                }
                None
            }
        };
        out.push(GossipEffect::Mix {
            mix,
            arrived,
            frozen,
        });
    }

    /// The result of a mix, for the aggregator.
    fn result(&self, mix: &Mix, made: Made<D>) -> ToAggregator<D> {
        let (values, stays) = match made {
            Made::Contribution(frozen) => {
                return ToAggregator::Settled(mix.step, mix.weight, frozen);
            }
            Made::Numerators(values) => (values, None),
            Made::Correction(values, stays) => (values, Some(stays)),
        };
        // Catch up with the peers, but never past a round boundary.
        let next = Step(mix.step.0.saturating_add(1));
        let boundary = next_boundary(&self.algorithm, mix.step).unwrap_or(Step(u64::MAX));
        let next_step = mix
            .behind
            .map_or(next, |reached| reached.min(boundary).max(next));
        let contributors = mix.arrivals.len() + 1;
        ToAggregator::GossipDone(Box::new(GossipDone {
            step: mix.step,
            weight: mix.weight,
            contributors,
            next_step,
            values,
            stays,
        }))
    }
}
