//! The gossip peer actor: one per node. Runs the push-sum exchange with the peers of each step,
//! overlapped with the computation of the next step.
//!
//! | file | does |
//! |---|---|
//! | `arithmetic` | mixes, on a separate thread |
//! | `transfer` | one message as a stream, out or in |
//! | `payload` | a message's values, as float32 or encoded |
//! | `in_flight` | in-flight messages, which may come back |
//!
//! A gossip goes from `AggregatorPart` by `ToGossip::Gossip` to `GossipPart`.
//! `GossipPeerState::mix` makes a correction, which `Session::mix` in runtime adds to the tensors;
//! `GossipPeerState::send` works beside the next step.

mod arithmetic;
mod in_flight;
#[cfg(test)]
mod tests;
mod transfer;

use crate::buffers::{ChunkedBuffer, Frozen};
use crate::context::NodeContext;
use crate::data::{Arrived, Buffers, Payload, ReadError};
use crate::messages::{GossipPeerMessage, Told};
use crate::status::Gossiping;
use crate::timer::Timer;
use arithmetic::{Job, Jobs, Part};
use in_flight::InFlight;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator;
use slowmo_protocol::gossip_peer::{In, Key, Mix, PARKED_MAX, Plan, Sent, Waits};
use slowmo_protocol::machine::Outbox;
use slowmo_protocol::node::{GossipEffect, GossipPart, Made, ToGossip, settle_wait};
use slowmo_protocol::wire::Bulk;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// Actor shell of the gossip peer.
pub struct GossipPeerActor;

/// The gossip peer's part of the node, its open streams, and its arithmetic.
pub struct GossipPeerState {
    part: GossipPart<Buffers>,
    context: Arc<NodeContext>,
    myself: ActorRef<GossipPeerMessage>,
    timer: Timer,
    jobs: Jobs,
    /// Number of values in a message; 0 until the model is known.
    elements: usize,
    reading: BTreeMap<Key, AbortHandle>,
    sending: JoinSet<()>,
    in_flight: InFlight,
    /// Synchronous gossip: the numerators as sent, and the fraction of them that stays.
    shipped: Option<Part>,
    /// Synchronous gossip: the push-sum weight of that fraction.
    kept: f64,
    /// Synchronous gossip: the numerators from which the model in the training threads was made,
    /// with their weight.
    last: Option<(ChunkedBuffer, f64)>,
}

impl Actor for GossipPeerActor {
    type Msg = GossipPeerMessage;
    type State = GossipPeerState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        context: Arc<NodeContext>,
    ) -> Result<GossipPeerState, ActorProcessingErr> {
        Ok(GossipPeerState::new(context, myself))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: GossipPeerMessage,
        state: &mut GossipPeerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GossipPeerMessage::Told(Told {
                message,
                credit: _credit,
            }) => state.take(message).await,
            GossipPeerMessage::Encoded(plan, payload) => state.send(&plan, &payload),
        }
        while state.sending.try_join_next().is_some() {}
        state.timer.arm(
            state.part.next_deadline(),
            state.context.clock.now(),
            &state.myself,
            || ToGossip::In(In::Tick).into(),
        );
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Self::Msg>,
        state: &mut GossipPeerState,
    ) -> Result<(), ActorProcessingErr> {
        state.sending.abort_all();
        state.reading.values().for_each(AbortHandle::abort);
        Ok(())
    }
}

impl GossipPeerState {
    fn new(context: Arc<NodeContext>, myself: ActorRef<GossipPeerMessage>) -> Self {
        let settings = &context.settings;
        let grace = NodeContext::span(settings.grace);
        let round_timeout = NodeContext::span(settings.round_timeout);
        let waits = Waits {
            message: grace,
            settle: settle_wait(grace, round_timeout),
            leave: round_timeout,
        };
        Self {
            part: GossipPart::new(settings.identity, settings.algorithm, waits),
            timer: Timer::default(),
            jobs: arithmetic::start(Arc::clone(&context.pool), myself.clone()),
            context,
            myself,
            elements: 0,
            reading: BTreeMap::new(),
            sending: JoinSet::new(),
            in_flight: InFlight::default(),
            shipped: None,
            kept: 1.0,
            last: None,
        }
    }

    async fn take(&mut self, message: ToGossip<Buffers>) {
        match &message {
            ToGossip::Model(elements) => self.elements = *elements,
            ToGossip::View(..) | ToGossip::Round(_) => self.record_gauges(),
            ToGossip::Read(key, _) => _ = self.reading.remove(key),
            ToGossip::Mixed(mix, Made::Numerators(values)) if mix.round >= self.part.round() => {
                self.last = Some((values.clone(), mix.weight));
            }
            ToGossip::In(In::Tick) => self.timer.disarm(),
            _ => {}
        }
        let mut out = Outbox::default();
        self.part
            .handle(message, self.context.clock.now(), &mut out);
        for effect in out.take() {
            self.execute(effect).await;
        }
        self.show();
    }

    async fn execute(&mut self, effect: GossipEffect<Buffers>) {
        match effect {
            GossipEffect::Send { to, frame } => self.context.send_frame(to, &frame),
            GossipEffect::Tell(mail) => self.context.actors.tell(mail),
            GossipEffect::Reset => {
                self.sending.abort_all();
                self.in_flight.clear();
                self.shipped = None;
                self.last = None;
                self.work(Job::Reset).await;
            }
            GossipEffect::Freeze(frozen, weight) => {
                self.kept = weight;
                let mut values = ChunkedBuffer::default();
                values.insert(
                    0,
                    arithmetic::unbiased(&self.context.pool, frozen, self.last.as_ref(), weight),
                );
                self.shipped = Some(Part {
                    values: Payload::Float32(values),
                    scale: 1.0,
                });
            }
            GossipEffect::Read(key, arrived) => self.read(key, arrived),
            GossipEffect::Stop(key) => {
                if let Some(reading) = self.reading.remove(&key) {
                    reading.abort();
                }
            }
            GossipEffect::Fold(values) => self.work(Job::Fold(whole(values))).await,
            GossipEffect::Mix {
                mix,
                arrived,
                frozen,
            } => self.mix(mix, arrived, frozen).await,
            GossipEffect::Ship(plan) => self.ship(plan).await,
            GossipEffect::Moved(before, plan) => {
                let wire = self.wire();
                let now = self.context.clock.now();
                let message = plan.map(|plan| {
                    let payload = Payload::awaited(wire);
                    self.in_flight.keep(&plan, payload.clone(), now);
                    (Arc::new(plan), payload)
                });
                self.work(Job::Moved(before, message)).await;
            }
            // Without a model the training thread could not mix at all.
            GossipEffect::Mend(before) if before.is_empty() => {}
            GossipEffect::Mend(before) => self.work(Job::Mend(before)).await,
            GossipEffect::GoOn(values, weight) => {
                let values = arithmetic::front(&self.context.pool, &values, self.elements);
                self.last = self.part.is_synchronous().then(|| (values.clone(), weight));
                self.work(Job::Last(values, weight)).await;
            }
            GossipEffect::Forget(sent) => self.acknowledged(sent),
            GossipEffect::Late(nodes) => {
                let staleness = self.part.settings().map_or(0, |gossip| gossip.staleness);
                for node in nodes {
                    let what = format!(
                        "{node} is more than {staleness} steps late: gossip continues without it"
                    );
                    tracing::info!("{what}");
                    self.context.status.event(what);
                }
            }
            GossipEffect::Refused(header) => {
                tracing::warn!(
                    from = %header.sender,
                    round = header.round.0,
                    "gossip stream refused"
                )
            }
        }
    }

    async fn work(&mut self, job: Job) {
        if self.jobs.send(job).await.is_err() {
            tracing::error!("the arithmetic of gossip has ended");
        }
    }

    /// Wire type of messages.
    fn wire(&self) -> WireType {
        self.part
            .settings()
            .map_or(WireType::Float32, |gossip| gossip.wire)
    }

    fn read(&mut self, key: Key, arrived: Arrived) {
        let Bulk::Gossip { scale, wire, .. } = arrived.content else {
            return;
        };
        let context = Arc::clone(&self.context);
        let myself = self.myself.clone();
        let elements = self.elements;
        let task = tokio::spawn(async move {
            let values = transfer::read(&context.pool, arrived, elements, (wire, scale)).await;
            let values = values.inspect_err(|error| refused(&context, key, error));
            // A stopped gossip peer needs no result.
            _ = myself.cast(ToGossip::Read(key, values.ok()).into());
        });
        self.reading.insert(key, task.abort_handle());
    }

    async fn mix(&mut self, mix: Mix, arrived: Vec<ChunkedBuffer>, frozen: Option<Frozen>) {
        let mut parts: Vec<Part> = arrived.into_iter().map(whole).collect();
        parts.extend(self.in_flight.take_back(&mix.returned));
        let job = match frozen {
            Some(frozen) => Job::Settle(mix, frozen, parts),
            None if !self.part.is_synchronous() => Job::Correct(mix, parts),
            None => {
                let Some(mut own) = self.shipped.take() else {
                    return;
                };
                // Less than what was kept, if this node gives up mass that was reclaimed from it;
                // otherwise exactly what was kept.
                own.scale *= (mix.own / self.kept) as f32;
                Job::Mix(mix, own, parts)
            }
        };
        self.work(job).await;
    }

    /// Synchronous gossip: makes the message from this node's own part. The message is kept from
    /// here on, because its mass may come back before it is sent.
    async fn ship(&mut self, plan: Plan) {
        if !self.part.is_synchronous() {
            return;
        }
        let Some(own) = &mut self.shipped else { return };
        own.scale = plan.split.kept_scale;
        self.kept = plan.split.kept;
        let Payload::Float32(values) = own.values.clone() else {
            return;
        };
        let plan = Arc::new(plan);
        let now = self.context.clock.now();
        match self.wire() {
            // Float32 needs no encoding.
            WireType::Float32 => {
                let payload = Payload::Float32(values);
                self.in_flight.keep(&plan, payload.clone(), now);
                self.send(&plan, &payload);
            }
            wire => {
                let payload = Payload::awaited(wire);
                self.in_flight.keep(&plan, payload.clone(), now);
                self.work(Job::Encode(plan, values, payload)).await;
            }
        }
    }

    /// Spawns one task per receiver to send the messages of a plan.
    fn send(&mut self, plan: &Arc<Plan>, values: &Payload) {
        let receivers = self.part.receivers(plan);
        if receivers.is_empty() {
            return;
        }
        self.in_flight.depart(plan.step, self.context.clock.now());
        let wire = self.wire();
        for to in receivers {
            let context = Arc::clone(&self.context);
            let plan = Arc::clone(plan);
            let values = values.clone();
            let myself = self.myself.clone();
            self.sending.spawn(async move {
                let sent = transfer::send(&context, &plan, (wire, &values), to).await;
                if let Err(error) = &sent {
                    tracing::info!(
                        %to,
                        step = %plan.step,
                        %error,
                        "a gossip message was not sent as a whole"
                    );
                }
                // A stopped gossip peer needs no result.
                _ = myself.cast(ToGossip::Sent((to, plan.step), sent.is_ok()).into());
            });
        }
    }

    /// The receiver has a message: its values are no longer kept, and its transfer time measures
    /// the link's rate.
    fn acknowledged(&mut self, sent: Sent) {
        if let Some((bytes, since)) = self.in_flight.under_way(sent) {
            let elapsed = self.context.clock.now().since(since);
            self.context
                .rates
                .measured(sent.0, bytes, Duration::from_micros(elapsed.0));
        }
        self.in_flight.forget(sent);
    }

    /// Records, when a round is decided, the most parked streams since the last record.
    fn record_gauges(&mut self) {
        let fullest = self.part.fullest();
        if self.context.recorder.is_on() && self.part.machine().is_some() {
            self.context
                .gauge("parked gossip streams", fullest, PARKED_MAX);
        }
    }

    /// Updates the gossip part of `status`.
    fn show(&self) {
        let Some(machine) = self.part.machine() else {
            return;
        };
        let weight = machine.own_weight();
        let escrowed = machine.escrowed();
        let step = machine.step();
        let stragglers = machine.stragglers();
        self.context.status.gossip(Gossiping {
            weight,
            escrowed,
            step,
            stragglers,
        });
    }
}

/// Values that are mixed in unscaled.
fn whole(values: ChunkedBuffer) -> Part {
    Part {
        values: Payload::Float32(values),
        scale: 1.0,
    }
}

/// Logs a read error: a broken stream may be the network's fault, an unsound value is the sender's,
/// of which the coordinator takes nothing any more.
fn refused(context: &NodeContext, (_, step, from): Key, error: &ReadError) {
    match error {
        ReadError::Stream(_) => tracing::info!(%from, %step, %error, "a gossip message broke off"),
        ReadError::Unsound(what) => {
            context.accuse(from, what);
            context.actors.tell(coordinator::In::Distrust(from));
        }
    }
}
