//! The coordinator actor: one per node. Outer rounds, exact averages, shard ownership, slow momentum, changing views.

mod encoding;
mod keeping;
mod messages;
mod recording;
mod reduce;
mod round;
mod shards;
#[cfg(test)]
mod tests;
mod transfer;

pub use keeping::Decided;
pub use messages::{ContributeMessage, CoordinatorMessage, DataEvent, Inspection};
pub use reduce::PUBLISH_WINDOW_CHUNKS;
pub use shards::{OwnPart, ShardState};
pub use transfer::CONNECT_WAIT_MAX;

use crate::aggregator::AggregatorMessage;
use crate::buffers::{Assembled, CHUNK_ELEMENTS};
use crate::context::{MAILBOX_CREDITS_MAX, NodeContext};
use crate::error::ExchangeError;
use crate::gossip_peer::GossipPeerMessage;
use crate::membership::MembershipMessage;
use crate::ports::recorder::QueueUse;
use crate::status::Standing;
use crate::streams::{Arrived, StreamInbox};
use crate::timer::Timer;
use encoding::{Carried, Coding};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use recording::Applied;
use round::{Contributed, Finished, RoundInProgress, Starter, StreamKey, StreamKind};
use shards::ShardStates;
use slowmo_protocol::algorithm::{Base, WireType};
use slowmo_protocol::coordinator::{Attempt, Coordinator, Effect, In, Outcome, Plan, RoundKind, Settings, Votes};
use slowmo_protocol::ident::{Epoch, Lineage, NodeId};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::policy::JoinerBuffers;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Start};
use slowmo_protocol::view::{MEMBERS_MAX, Member};
use std::sync::Arc;

/// Streams that may wait until this node knows their attempt: a contribution, parameters and state from every member, of this
/// round and the next.
pub const ROUND_STREAMS_PARKED_MAX: usize = 6 * MEMBERS_MAX;
/// Chunks of a contribution that are compared with what became of it, for the disagreement that is shown.
const COMPARED_CHUNKS_MAX: usize = 4;

/// The shell of the coordinator.
pub struct CoordinatorActor;

/// The coordinator's machine, the decided shards and the attempt under way.
pub struct CoordinatorState {
    machine: Coordinator,
    out: Outbox<Effect>,
    context: Arc<NodeContext>,
    timer: Timer,
    streams: StreamInbox<StreamKey>,
    states: ShardStates,
    carried: Carried,
    contributed: Option<Contributed>,
    /// Parameters of the contribution; a mean of gradients has its own count.
    parameters: usize,
    /// Parameters of the model: how far its state reaches.
    model_parameters: usize,
    /// The attempts whose data moves or is kept, the newest last.
    rounds: Vec<RoundInProgress>,
    /// Since when this node's contribution is ready.
    contributed_at: Option<Instant>,
    /// Since when the attempt under way publishes.
    publishes_since: Instant,
    epoch: Epoch,
    /// Voters that are no members, as the membership was told last.
    retained: Vec<Member>,
    /// The order of the gossip graph that the gossip peer was told last.
    order: Vec<NodeId>,
}

impl Actor for CoordinatorActor {
    type Msg = CoordinatorMessage;
    type State = CoordinatorState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(&self, _: ActorRef<Self::Msg>, context: Arc<NodeContext>) -> Result<CoordinatorState, ActorProcessingErr> {
        Ok(CoordinatorState::new(context))
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: CoordinatorMessage,
        state: &mut CoordinatorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            CoordinatorMessage::Formed { view, lineage } => state.feed(In::Formed { view, lineage }),
            CoordinatorMessage::FoundingFailed(_) => state.contributed = None,
            CoordinatorMessage::Contribute(contribution) => state.contribute(contribution),
            CoordinatorMessage::Frame(header, message, _credit) => state.feed(In::Frame { header, message }),
            CoordinatorMessage::Stream(arrived, _credit) => state.deliver(arrived),
            CoordinatorMessage::Data(attempt, event) => state.data(attempt, event),
            CoordinatorMessage::Lost { node, incarnation, ended } => state.feed(In::Lost { node, incarnation, ended }),
            CoordinatorMessage::Back(node) => state.feed(In::Back(node)),
            CoordinatorMessage::PeerUp(node) => state.feed(In::PeerUp(node)),
            CoordinatorMessage::PeerDown(node) => state.feed(In::PeerDown(node)),
            CoordinatorMessage::Unheard(nodes) => state.feed(In::Unheard(nodes)),
            CoordinatorMessage::Joiners { epoch, members } => state.feed(In::Joiners { epoch, members }),
            CoordinatorMessage::Leaving { node, incarnation, contributes } => state.feed(In::Leaving { node, incarnation, contributes }),
            CoordinatorMessage::Resign(gives_up) => state.feed(In::Resign(gives_up)),
            CoordinatorMessage::Return => state.feed(In::Return),
            // Whoever asked may have gone.
            CoordinatorMessage::Inspect(reply) => _ = reply.send(state.inspect()),
            CoordinatorMessage::Tick => {
                state.timer.disarm();
                state.feed(In::Tick);
            }
        }
        state.execute(&myself);
        state.timer.arm(state.machine.next_deadline(), state.context.clock.now(), &myself, || CoordinatorMessage::Tick);
        Ok(())
    }
}

impl CoordinatorState {
    fn new(context: Arc<NodeContext>) -> Self {
        Self {
            machine: Coordinator::new(settings(&context)),
            out: Outbox::default(),
            context,
            timer: Timer::default(),
            streams: StreamInbox::new(ROUND_STREAMS_PARKED_MAX),
            states: ShardStates::default(),
            carried: Carried::default(),
            contributed: None,
            parameters: 0,
            model_parameters: 0,
            rounds: Vec::new(),
            contributed_at: None,
            publishes_since: Instant(0),
            epoch: Epoch(0),
            retained: Vec::new(),
            order: Vec::new(),
        }
    }

    fn feed(&mut self, event: In) {
        let now = self.context.clock.now();
        self.machine.handle(event, now, &mut self.out);
    }

    fn contribute(&mut self, contribution: ContributeMessage) {
        let ContributeMessage { round, spec, weight, model, frozen, donation, samples, basis } = contribution;
        let place = (self.machine.began_in(), round);
        self.record(|start| recording::contributed(start, place, weight, basis));
        self.parameters = usize::try_from(model.parameters).unwrap_or(usize::MAX);
        if spec.carries_parameters() {
            self.model_parameters = self.parameters;
        }
        self.contributed = Some(Contributed { weight, frozen, donation, encoder: None });
        self.contributed_at = Some(self.context.clock.now());
        let copies = self.context.settings.joiner_buffers == JoinerBuffers::Copy;
        let settings = &self.context.settings;
        let rates = if settings.algorithm.orders_by_rate() { self.context.rates.read() } else { Vec::new() };
        self.feed(In::Contribute { round, spec, samples, rates, buffers: if copies { model.optimizer } else { 0 } });
    }

    fn inspect(&self) -> Inspection {
        let outcome = self.machine.last_outcome().cloned();
        let (joiners, leaving) = (self.machine.joiners().collect(), self.machine.leaving().collect());
        let layout = self.machine.state_layout();
        let states = layout.map(|layout| self.states.copies(&layout, self.model_parameters)).unwrap_or_default();
        Inspection { outcome, states, joiners, leaving }
    }

    fn resigned(&mut self, obeyed: bool) {
        if obeyed {
            self.record(Event::Resigned);
            self.states.clear();
            self.carried.clear();
            // The view that this node is admitted to may have the same number in another history.
            self.epoch = Epoch(0);
        }
        self.context.actors.tell_membership(MembershipMessage::Resigned(obeyed));
    }

    /// Parks or hands on a stream of this round or the next one.
    fn deliver(&mut self, arrived: Arrived) {
        let (header, kind) = (arrived.header, StreamKind::of(&arrived.content));
        let Some(kind) = kind.filter(|_| self.machine.admits(&header)) else {
            tracing::debug!(from = %header.sender, round = header.round.0, "a round's stream was refused: it is stale or foreign");
            return;
        };
        if !self.streams.deliver((Attempt::of(&header), kind, header.sender), arrived) {
            tracing::warn!(from = %header.sender, round = header.round.0, ?kind, "a round's stream was refused: it came twice");
        }
    }

    fn data(&mut self, attempt: Attempt, event: DataEvent) {
        let Some(round) = self.rounds.last_mut().filter(|round| round.plan.attempt == attempt) else { return };
        let event = match event {
            DataEvent::Reduced(part) => {
                round.take_own(part);
                In::Reduced(attempt)
            }
            DataEvent::Parameters(owner, values) => {
                round.values.extend(values);
                In::ParametersHeld(attempt, owner)
            }
            DataEvent::State(from, states) => {
                round.states.extend(states);
                In::StateHeld(attempt, from)
            }
            DataEvent::Buffers(from, values) => {
                round.donated = Some(values);
                In::BuffersHeld(attempt, from)
            }
            DataEvent::SpecsDiffer(node, spec) => In::SpecsDiffer(attempt, node, spec),
            DataEvent::Broken(node) => In::StreamBroken(attempt, node),
        };
        self.feed(event);
    }

    fn execute(&mut self, myself: &ActorRef<CoordinatorMessage>) {
        for effect in self.out.take() {
            match effect {
                Effect::Send { to, frame } => self.context.send_frame(to, &frame),
                Effect::Open(plan) => {
                    self.streams.forget_below((plan.attempt, StreamKind::Contribution, NodeId(0)));
                    let mut contributed = self.contributed.take();
                    let round = self.starter(myself).start(plan, contributed.as_mut());
                    self.rounds.push(round);
                    self.contributed = contributed;
                }
                Effect::Publish(publication) => {
                    self.publishes_since = self.context.clock.now();
                    let contributed = self.contributed.take();
                    if let Some(mut round) = self.rounds.pop() {
                        self.starter(myself).publish(&mut round, publication, contributed.as_ref());
                        self.rounds.push(round);
                    }
                    self.contributed = contributed;
                }
                // An attempt ends here, and its streams with it.
                Effect::Discard(attempt) => self.rounds.retain(|round| round.plan.attempt != attempt),
                Effect::Apply { attempt, outcome, members, began_in, votes, drained } => {
                    self.apply(attempt, outcome, Decision { began_in, votes, members, drained });
                }
                Effect::Stranded => self.stranded(),
                Effect::Resigned(obeyed) => self.resigned(obeyed),
                Effect::Stands(standing) => self.context.actors.tell_membership(MembershipMessage::Decided(standing)),
                Effect::Waiting(why) => self.waiting(why),
                Effect::Fail(error) => {
                    self.contributed = None;
                    self.context.actors.tell_aggregator(AggregatorMessage::Failed(ExchangeError::Round(error)));
                }
            }
        }
    }

    fn starter<'a>(&'a mut self, actor: &'a ActorRef<CoordinatorMessage>) -> Starter<'a> {
        let Self { context, streams, states, carried, parameters, model_parameters, .. } = self;
        Starter { context, streams, actor, states, carried, parameters: *parameters, model_parameters: *model_parameters }
    }

    fn apply(&mut self, attempt: Attempt, outcome: Outcome, decision: Decision) {
        let decided = std::mem::take(&mut self.rounds).into_iter().find(|round| round.plan.attempt == attempt);
        let Some(round) = decided else { return };
        let Finished { plan, publication, values, states, donated, coding, owed, weight } = round.finish();
        let Some(publication) = publication.filter(|_| values.covers(plan.layout.elements())) else {
            tracing::error!(round = outcome.round.0, "a decided round does not cover the model: the node stops here");
            return self.context.actors.tell_aggregator(AggregatorMessage::Failed(ExchangeError::Stopped));
        };
        self.states.install(&publication, self.model_parameters, &values, states);
        self.record_applied(&plan, &outcome, &decision, &values);
        let Decision { members, drained, .. } = decision;
        let optimizer = self.contributed.as_ref().and_then(|own| own.donation.as_ref()).filter(|_| plan.contributes());
        let decided = Decided { outcome: &outcome, members: &members, values: &values, parameters: self.model_parameters, optimizer };
        decided.keep_sharded(&self.context, &self.states);
        let own = self.contributed.take().filter(|_| plan.contributes() && outcome.spec.carries_parameters());
        self.carry(&plan, coding.as_ref(), own.as_ref(), &owed, &values);
        let distance = own.map(|own| disagreement(&own, &values, self.parameters));
        let place = self.machine.place();
        let actors = &self.context.actors;
        let published = self.context.clock.now().since(self.publishes_since);
        let gossips = matches!(self.context.settings.algorithm.base, Base::Sgp(_));
        // One alone contributes to a founding, which begins everybody's weight.
        if let Some(weight) = weight.filter(|_| gossips && outcome.spec.kind != RoundKind::Found) {
            // Every member began the round with weight 1.
            self.context.status.push_sum_weight(members.len() as f64 - weight);
        }
        self.context.status.decided(&outcome, distance, published);
        let reduced = self.contributed_at.take().map(|at| self.publishes_since.since(at));
        self.context.metrics.round(outcome.spec.kind, reduced, published);
        if drained {
            self.context.status.standing(Standing::Left);
        }
        let another = outcome.view.epoch() != self.epoch || outcome.order != self.order;
        if another || outcome.spec.kind == RoundKind::Found {
            self.epoch = outcome.view.epoch();
            self.order.clone_from(&outcome.order);
            let (view, lineage, order) = (outcome.view.clone(), outcome.lineage, outcome.order.clone());
            actors.tell_gossip_peer(GossipPeerMessage::View { view, lineage, round: place.round, order });
        } else {
            actors.tell_gossip_peer(GossipPeerMessage::Round(place.round));
        }
        if outcome.retained != self.retained {
            self.retained.clone_from(&outcome.retained);
            actors.tell_membership(MembershipMessage::Retained(outcome.retained.clone()));
        }
        actors.tell_membership(MembershipMessage::Decided(outcome.standing()));
        actors.tell_aggregator(AggregatorMessage::RoundDecided { outcome, members, values, donated, drained });
    }

    fn record(&self, event: impl FnOnce(Start) -> Event) {
        if self.context.recorder.is_on() {
            self.context.recorder.record(event(self.context.start()));
        }
    }

    /// Writes down a decided outcome, and how full the queues have been.
    fn record_applied(&mut self, plan: &Plan, outcome: &Outcome, decision: &Decision, values: &Assembled) {
        let context = &self.context;
        if !context.recorder.is_on() {
            return;
        }
        let (start, states) = (context.start(), &self.states);
        let applied = Applied { start, plan, outcome, decision, values, states };
        if context.recorder.is_brief() {
            context.recorder.record(applied.in_brief());
        } else {
            context.recorder.record_later(applied.event());
        }
        let (parked, parked_max) = self.streams.fullest();
        context.gauge("parked round streams", parked, parked_max);
        context.gauge("network events in mailboxes", MAILBOX_CREDITS_MAX - context.credits.available_permits(), MAILBOX_CREDITS_MAX);
        if let Some(QueueUse { waiting, bound }) = context.recorder.queue() {
            context.gauge("recorder queue", waiting, bound);
        }
    }

    /// Keeps what the next encoded round needs; nothing where rounds are not encoded.
    fn carry(&mut self, plan: &Plan, coding: Option<&Coding>, own: Option<&Contributed>, owed: &Assembled, values: &Assembled) {
        let encodes = self.context.settings.algorithm.round_wire != WireType::Float32;
        if !encodes || !plan.spec.carries_parameters() {
            return;
        }
        match coding {
            Some(coding) => self.carried.renew(plan, coding, own.and_then(|own| own.encoder.as_deref()), owed, values),
            None => self.carried.begin(values),
        }
    }

    fn stranded(&mut self) {
        tracing::warn!("a round was decided whose values this node does not hold: it joins again");
        self.rounds.clear();
        self.states.clear();
        self.carried.clear();
        self.context.actors.tell_membership(MembershipMessage::Stranded);
    }

    fn waiting(&self, why: Option<String>) {
        match &why {
            Some(why) => tracing::warn!(why, "no round can be decided"),
            None => tracing::info!("rounds can be decided again"),
        }
        self.context.status.waiting(why);
    }
}

/// How an outcome was decided.
struct Decision {
    began_in: Lineage,
    votes: Option<Votes>,
    members: Arc<[Member]>,
    drained: bool,
}

fn settings(context: &NodeContext) -> Settings {
    let node = &context.settings;
    Settings {
        identity: node.identity,
        replicas: node.replicas,
        keeps_state: node.algorithm.outer.is_some_and(|outer| outer.sharded),
        orders_by_rate: node.algorithm.orders_by_rate(),
        origin: context.store.origin(),
        restores: context.store.restored().is_some(),
        copies_buffers: (node.joiner_buffers == JoinerBuffers::Copy).then_some(node.algorithm.buffers),
        quorum: node.quorum,
        on_quorum_loss: node.on_quorum_loss,
        fork_after: NodeContext::span(node.fork_after),
        on_momentum_loss: node.on_momentum_loss,
        // A round must still be made without a straggler.
        grace: NodeContext::span(node.grace.min(node.round_timeout / 2)),
        round_timeout: NodeContext::span(node.round_timeout),
    }
}

/// How far this node's model was from what became of it: `‖x − x̄‖ / ‖x̄‖` over a few chunks.
fn disagreement(own: &Contributed, values: &Assembled, parameters: usize) -> f32 {
    let chunks = parameters.div_ceil(CHUNK_ELEMENTS).max(1);
    let pieces = values.pieces().filter(|(start, _)| *start < parameters).step_by(chunks.div_ceil(COMPARED_CHUNKS_MAX));
    let (mut distance, mut norm) = (0.0f64, 0.0f64);
    for (start, chunk) in pieces.take(COMPARED_CHUNKS_MAX) {
        let end = parameters.min(start + chunk.values().len());
        for (before, after) in own.frozen.values()[start..end].iter().zip(chunk.values()) {
            let (before, after) = (f64::from(*before) / own.weight, f64::from(*after));
            distance += (before - after).powi(2);
            norm += after.powi(2);
        }
    }
    if norm > 0.0 { (distance / norm).sqrt() as f32 } else { 0.0 }
}
