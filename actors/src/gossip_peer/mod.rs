//! The gossip peer actor: one per node. Push-sum exchange with the peers of each step, behind the computation of the next one.
//!
//! | file | does |
//! |---|---|
//! | `arithmetic` | mixes, on a thread of its own |
//! | `incoming`, `outgoing` | messages from when they are offered, and until they are answered |
//! | `transfer` | one message as a stream, out or in |
//! | `payload` | a message's values, as float32 or encoded |
//! | `shipments` | what was sent and may come back |

mod arithmetic;
mod incoming;
mod messages;
mod outgoing;
mod payload;
mod shipments;
#[cfg(test)]
mod tests;
mod transfer;

pub use messages::{GossipPeerMessage, Values};
pub use payload::Payload;

use crate::buffers::{Assembled, Frozen};
use crate::context::NodeContext;
use crate::data::{Arrived, Buffers, Told};
use crate::status::Gossiping;
use crate::timer::Timer;
use arithmetic::{Job, Jobs, Part};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use shipments::Shipments;
use slowmo_protocol::algorithm::{Base, Gossip, WireType};
use slowmo_protocol::gossip_peer::{Effect, GossipPeer, In, Key, Mix, Plan, Purpose, Waits};
use slowmo_protocol::ident::{Lineage, NodeId, Round, Step};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::membership;
use slowmo_protocol::node::{GossipDone, ToAggregator, ToGossip};
use slowmo_protocol::schedule::{gossips_before, next_boundary};
use slowmo_protocol::view::View;
use slowmo_protocol::wire::Bulk;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinSet};

/// Frames that wait for this node's first view.
const EARLY_FRAMES_MAX: usize = 1024;

/// The shell of the gossip peer.
pub struct GossipPeerActor;

/// The gossip peer's machine (once there is a view), its streams and values.
pub struct GossipPeerState {
    machine: Option<GossipPeer>,
    out: Outbox<Effect>,
    context: Arc<NodeContext>,
    myself: ActorRef<GossipPeerMessage>,
    timer: Timer,
    jobs: Jobs,
    round: Round,
    /// Frames of members that heard of the first view before this node; at most [`EARLY_FRAMES_MAX`].
    early: Vec<In>,
    /// How many values a message has; 0 until the model is known.
    elements: usize,
    /// Streams that the machine has not asked to be read yet.
    streams: BTreeMap<Key, Arrived>,
    /// The most of them since the last decided round.
    fullest: usize,
    reading: BTreeMap<Key, AbortHandle>,
    /// Messages that have arrived: those that are accepted wait for the next mix.
    arrived: BTreeMap<Key, Part>,
    sending: JoinSet<()>,
    shipments: Shipments,
    /// What the training threads left of the model in this exchange.
    frozen: Option<Frozen>,
    /// Synchronous: the numerators as shipped, and which part of them stays.
    shipped: Option<Part>,
    /// Synchronous: the push-sum weight of that part.
    kept: f64,
    /// Overlapped: what is sent when the training thread has mixed.
    plan: Option<Plan>,
    /// Synchronous: the numerators that the model in the training threads comes from, with their weight.
    last: Option<(Assembled, f64)>,
    /// The weight of the last mix.
    weight: f64,
    /// Overlapped: the training threads mix, so that nobody else knows the numerators.
    training_mixes: bool,
}

impl Actor for GossipPeerActor {
    type Msg = GossipPeerMessage;
    type State = GossipPeerState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(&self, myself: ActorRef<Self::Msg>, context: Arc<NodeContext>) -> Result<GossipPeerState, ActorProcessingErr> {
        Ok(GossipPeerState::new(context, myself))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: GossipPeerMessage,
        state: &mut GossipPeerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GossipPeerMessage::Told(Told { message, credit: _credit }) => state.take(message).await,
            GossipPeerMessage::Encoded(plan, payload) => state.send(&plan, &payload),
            // A round was decided meanwhile: the training threads get that.
            GossipPeerMessage::Mixed(mix, _) if mix.round < state.round => {}
            GossipPeerMessage::Mixed(mix, values) => state.mixed(&mix, values),
        }
        state.execute().await;
        while state.sending.try_join_next().is_some() {}
        let deadline = state.machine.as_ref().and_then(GossipPeer::next_deadline);
        let (now, myself) = (state.context.clock.now(), state.myself.clone());
        state.timer.arm(deadline, now, &myself, || ToGossip::In(In::Tick).into());
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut GossipPeerState) -> Result<(), ActorProcessingErr> {
        state.forget_all();
        Ok(())
    }
}

impl GossipPeerState {
    fn new(context: Arc<NodeContext>, myself: ActorRef<GossipPeerMessage>) -> Self {
        Self {
            machine: None,
            out: Outbox::default(),
            timer: Timer::default(),
            jobs: arithmetic::start(Arc::clone(&context.pool), myself.clone()),
            context,
            myself,
            round: Round::FOUNDING,
            early: Vec::new(),
            elements: 0,
            streams: BTreeMap::new(),
            fullest: 0,
            reading: BTreeMap::new(),
            arrived: BTreeMap::new(),
            sending: JoinSet::new(),
            shipments: Shipments::default(),
            frozen: None,
            shipped: None,
            kept: 1.0,
            plan: None,
            last: None,
            weight: 1.0,
            training_mixes: false,
        }
    }

    async fn take(&mut self, message: ToGossip<Buffers>) {
        match message {
            ToGossip::Model(elements) => self.elements = elements,
            ToGossip::View(view, lineage, round, order) => {
                self.record_gauges();
                self.enter(view, lineage, round, order).await;
            }
            ToGossip::Round(round) => {
                self.record_gauges();
                self.go_to(round).await;
                self.feed(In::Round(round));
            }
            // A round was decided meanwhile: the training threads get that.
            ToGossip::Gossip(_, round, _) | ToGossip::Settle(_, round, _) if round < self.round => {}
            ToGossip::Gossip(step, round, frozen) => self.gossip(step, round, frozen).await,
            ToGossip::Settle(step, round, frozen) => {
                self.go_to(round).await;
                self.frozen = Some(frozen);
                self.feed(In::Settle { step, round });
            }
            ToGossip::Moved { step, before, withheld } => self.moved(step, before, withheld).await,
            ToGossip::Stepped(values) => self.go_on_from(&values).await,
            ToGossip::Decided(round, values) => self.decided(round, &values).await,
            ToGossip::Stream(arrived) => self.offered(arrived),
            ToGossip::Read(key, values) => self.read(key, values),
            ToGossip::Sent(sent, true) => self.feed(In::Sent(sent)),
            ToGossip::Sent(sent, false) => self.feed(In::SendFailed(sent)),
            ToGossip::Leave(_) if self.machine.is_none() => self.context.actors.tell(membership::In::Leave),
            ToGossip::Leave(round) => {
                self.go_to(round).await;
                // Its training thread went away without mixing: nothing of that step is sent.
                if let Some(plan) = self.plan.take() {
                    self.feed(In::Withheld(plan.step));
                }
                self.feed(In::Leave(round));
            }
            ToGossip::In(event) => {
                if matches!(event, In::Tick) {
                    self.timer.disarm();
                }
                self.feed(event);
            }
        }
    }

    fn settings(&self) -> Option<Gossip> {
        match self.context.settings.algorithm.base {
            Base::Sgp(gossip) => Some(gossip),
            _ => None,
        }
    }

    fn staleness(&self) -> u32 {
        self.settings().map_or(0, |gossip| gossip.staleness)
    }

    fn is_synchronous(&self) -> bool {
        self.staleness() == 0
    }

    async fn enter(&mut self, view: View, lineage: Lineage, round: Round, order: Vec<NodeId>) {
        let Some(gossip) = self.settings() else { return };
        self.reset(round).await;
        if self.machine.is_some() {
            return self.feed(In::View { view, lineage, round, order });
        }
        let settings = &self.context.settings;
        let settle = settings.grace.min(settings.round_timeout / 2) / 2;
        let waits = Waits {
            message: NodeContext::span(settings.grace),
            settle: NodeContext::span(settle),
            leave: NodeContext::span(settings.round_timeout),
        };
        let mut machine = GossipPeer::new(settings.identity, gossip, waits, (&view, lineage, round)).ordered(&order);
        // Members that are faster may have sent already.
        let now = self.context.clock.now();
        for (key, arrived) in &self.streams {
            if let Bulk::Gossip { weight, .. } = arrived.content {
                machine.handle(In::Offered { header: arrived.header, step: key.1, weight }, now, &mut self.out);
            }
        }
        self.machine = Some(machine);
        std::mem::take(&mut self.early).into_iter().for_each(|frame| self.feed(frame));
    }

    fn feed(&mut self, event: In) {
        let now = self.context.clock.now();
        match &mut self.machine {
            Some(machine) => machine.handle(event, now, &mut self.out),
            // Nobody may be waited for in vain because it said early that it sends nothing.
            None if matches!(event, In::Frame { .. }) && self.early.len() < EARLY_FRAMES_MAX => self.early.push(event),
            None => {}
        }
    }

    async fn work(&mut self, job: Job) {
        if self.jobs.send(job).await.is_err() {
            tracing::error!("the arithmetic of gossip has ended");
        }
    }

    /// A decided round makes every weight 1: values of before are void.
    async fn go_to(&mut self, round: Round) {
        if round > self.round {
            self.reset(round).await;
        }
    }

    async fn reset(&mut self, round: Round) {
        self.round = round;
        self.sending.abort_all();
        self.shipments.clear();
        (self.frozen, self.shipped, self.plan, self.last, self.weight) = (None, None, None, None, 1.0);
        self.training_mixes = false;
        self.work(Job::Reset).await;
    }

    /// The training threads get these values of a decided round, with which their model begins the next one. They have not gossiped
    /// in it yet: the aggregator, which asks for that, says this first.
    async fn decided(&mut self, round: Round, values: &Assembled) {
        self.go_to(round).await;
        self.feed(In::Round(round));
        if round == self.round {
            self.go_on_from(values).await;
        }
    }

    /// The training threads get other numerators, of the same weight as before, than the arithmetic left them.
    async fn go_on_from(&mut self, values: &Assembled) {
        let values = arithmetic::front(&self.context.pool, values, self.elements);
        self.last = self.is_synchronous().then(|| (values.clone(), self.weight));
        self.work(Job::Last(values, self.weight)).await;
    }

    fn forget_all(&mut self) {
        self.sending.abort_all();
        self.reading.values().for_each(|reading| reading.abort());
    }

    async fn gossip(&mut self, step: Step, round: Round, frozen: Option<Frozen>) {
        self.go_to(round).await;
        if let (Some(frozen), Some(machine)) = (frozen, &self.machine) {
            self.kept = machine.own_weight();
            let own = arithmetic::unbiased(&self.context.pool, frozen, self.last.as_ref(), self.kept);
            let mut values = Assembled::default();
            values.insert(0, own);
            self.shipped = Some(Part { values: Payload::Float32(values), scale: 1.0 });
        }
        let turn = gossips_before(&self.context.settings.algorithm, step);
        self.feed(In::Gossip { step, turn, round });
    }

    async fn execute(&mut self) {
        for effect in self.out.take() {
            match effect {
                Effect::Receive(key) => self.receive(key),
                Effect::Drop(key) => self.drop_message(key),
                Effect::Mix(mix) => self.mix(mix).await,
                Effect::Ship(plan) => self.ship(plan).await,
                Effect::Forget(sent) => self.acknowledged(sent),
                Effect::Send { to, frame } => self.context.send_frame(to, &frame),
                Effect::Late(nodes) => nodes.into_iter().for_each(|node| self.late(node)),
                Effect::Left => self.context.actors.tell(membership::In::Leave),
            }
        }
        self.fold_arrived().await;
        self.show();
    }

    /// Overlapped: what is accepted is folded into the next correction while the training threads compute.
    async fn fold_arrived(&mut self) {
        if self.is_synchronous() || self.training_mixes {
            return;
        }
        for (_, part) in std::mem::take(&mut self.arrived) {
            self.work(Job::Fold(part)).await;
        }
    }

    async fn mix(&mut self, mix: Mix) {
        let mut parts: Vec<Part> = mix.arrivals.iter().filter_map(|key| self.arrived.remove(key)).collect();
        parts.extend(self.shipments.take_back(&mix.returned));
        self.weight = mix.weight;
        let job = match (mix.purpose, self.is_synchronous()) {
            (Purpose::Average, _) => {
                let Some(frozen) = self.frozen.take() else { return };
                Job::Settle(mix, frozen, parts)
            }
            (Purpose::Gossip, false) => {
                self.training_mixes = true;
                Job::Correct(mix, parts)
            }
            (Purpose::Gossip, true) => {
                let Some(mut own) = self.shipped.take() else { return };
                // Less of it where this node gives up what was reclaimed from it; else exactly what was kept.
                own.scale *= (mix.own / self.kept) as f32;
                Job::Mix(mix, own, parts)
            }
        };
        self.work(job).await;
    }

    /// A mix is complete: its result goes to the training threads.
    fn mixed(&mut self, mix: &Mix, values: Values) {
        let Mix { step, weight, .. } = *mix;
        let actors = &self.context.actors;
        let (values, stays) = match values {
            Values::Contribution(frozen) => return actors.tell(ToAggregator::Settled(step, weight, frozen)),
            Values::Numerators(values) => {
                self.last = Some((values.clone(), weight));
                (values, None)
            }
            Values::Correction(values, stays) => (values, Some(f64::from(stays))),
        };
        let contributors = mix.arrivals.len() + 1;
        let next = Step(step.0.saturating_add(1));
        let boundary = next_boundary(&self.context.settings.algorithm, step).unwrap_or(Step(u64::MAX));
        let next_step = mix.behind.map_or(next, |reached| reached.min(boundary).max(next));
        actors.tell(ToAggregator::GossipDone(Box::new(GossipDone { step, weight, contributors, next_step, values, stays })));
    }

    fn late(&self, node: NodeId) {
        let what = format!("{node} is more than {} steps late: gossip goes on without it", self.staleness());
        tracing::info!("{what}");
        self.context.status.event(what);
    }

    /// What `status` shows of gossip.
    fn show(&self) {
        let Some(machine) = &self.machine else { return };
        let (weight, escrowed) = (machine.own_weight(), machine.escrowed());
        let (step, stragglers) = (machine.step(), machine.stragglers());
        self.context.status.gossip(Gossiping { weight, escrowed, step, stragglers });
    }
}

/// How messages travel.
fn wire(context: &NodeContext) -> WireType {
    match context.settings.algorithm.base {
        Base::Sgp(gossip) => gossip.wire,
        _ => WireType::Float32,
    }
}
