//! The coordinator actor: one per node. Outer rounds, exact averages, shard ownership, slow momentum.

mod messages;
mod reduce;
mod round;
mod shards;
mod transfer;

pub use messages::{CoordinatorMessage, DataEvent};
pub use reduce::PUBLISH_WINDOW_CHUNKS;
pub use shards::OwnPart;

use crate::aggregator::AggregatorMessage;
use crate::context::NodeContext;
use crate::error::ExchangeError;
use crate::streams::{Arrived, StreamInbox};
use crate::timer::Timer;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use round::{Contributed, RoundInProgress, Starter, StreamKey, StreamKind};
use shards::ShardStates;
use slowmo_protocol::coordinator::{Attempt, Coordinator, Effect, Founding, In, Outcome, Plan, RoundKind, Terms};
use slowmo_protocol::ident::{Ballot, Lineage, NodeId};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::view::{MEMBERS_MAX, View};
use slowmo_protocol::wire::{Header, Message};
use std::sync::Arc;

/// Streams of the next round that may wait: a contribution, parameters and momentum from every member.
pub const ROUND_STREAMS_PARKED_MAX: usize = 3 * MEMBERS_MAX;

/// Frames and streams that may wait for the founding view: a few from every member.
pub const EARLY_MAX: usize = 4 * MEMBERS_MAX;

/// The shell of the coordinator.
pub struct CoordinatorActor;

/// The coordinator's machine (once there is a view), the decided shards and the round under way.
pub struct CoordinatorState {
    machine: Option<Coordinator>,
    out: Outbox<Effect>,
    context: Arc<NodeContext>,
    timer: Timer,
    streams: StreamInbox<StreamKey>,
    states: ShardStates,
    waiting: Option<(Terms, Contributed)>,
    contributed: Option<Contributed>,
    round: Option<RoundInProgress>,
    early: Vec<Early>,
}

/// What the founding round may bring before this node has heard of the view.
enum Early {
    Frame(Header, Message),
    Stream(Arrived),
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
            CoordinatorMessage::Formed { view, lineage } => state.formed(view, lineage),
            CoordinatorMessage::FoundingFailed(_) => state.waiting = None,
            CoordinatorMessage::Contribute { terms, weight, parameters, frozen } => {
                state.contribute(terms, Contributed { weight, parameters, frozen });
            }
            CoordinatorMessage::Frame(header, message, _credit) => state.receive(Early::Frame(header, message)),
            CoordinatorMessage::Stream(arrived, _credit) => state.receive(Early::Stream(arrived)),
            CoordinatorMessage::Data(attempt, event) => state.data(attempt, event),
            CoordinatorMessage::MemberLost(node) => state.feed(In::MemberLost(node)),
            CoordinatorMessage::Tick => {
                state.timer.disarm();
                state.feed(In::Tick);
            }
        }
        state.execute(&myself);
        let deadline = state.machine.as_ref().and_then(Coordinator::next_deadline);
        state.timer.arm(deadline, state.context.clock.now(), &myself, || CoordinatorMessage::Tick);
        Ok(())
    }
}

impl CoordinatorState {
    fn new(context: Arc<NodeContext>) -> Self {
        Self {
            machine: None,
            out: Outbox::default(),
            context,
            timer: Timer::default(),
            streams: StreamInbox::new(ROUND_STREAMS_PARKED_MAX),
            states: ShardStates::default(),
            waiting: None,
            contributed: None,
            round: None,
            early: Vec::new(),
        }
    }

    fn feed(&mut self, event: In) {
        let now = self.context.clock.now();
        if let Some(machine) = &mut self.machine {
            machine.handle(event, now, &mut self.out);
        }
    }

    fn formed(&mut self, view: View, lineage: Lineage) {
        let settings = &self.context.settings;
        let round_timeout = NodeContext::span(settings.round_timeout);
        let founding = Founding { identity: settings.identity, view, lineage, replicas: settings.replicas, round_timeout };
        self.machine = Some(Coordinator::new(founding));
        for early in std::mem::take(&mut self.early) {
            self.receive(early);
        }
        if let Some((terms, contributed)) = self.waiting.take() {
            self.contribute(terms, contributed);
        }
    }

    fn contribute(&mut self, terms: Terms, contributed: Contributed) {
        if self.machine.is_none() {
            self.waiting = Some((terms, contributed));
            return;
        }
        self.contributed = Some(contributed);
        self.feed(In::Contribute { terms });
    }

    /// Acts on what arrived, or keeps it until the view is formed here: another node may be ahead by that much.
    fn receive(&mut self, early: Early) {
        match early {
            early if self.machine.is_none() => {
                if self.early.len() < EARLY_MAX {
                    self.early.push(early);
                }
            }
            Early::Frame(header, message) => self.feed(In::Frame { header, message }),
            Early::Stream(arrived) => self.deliver(arrived),
        }
    }

    /// Parks or hands on a stream of the current or the next round.
    fn deliver(&mut self, arrived: Arrived) {
        let Some(machine) = &self.machine else { return };
        let (header, kind) = (arrived.header, StreamKind::of(&arrived.content));
        let Some(kind) = kind.filter(|_| machine.admits(&header)) else {
            tracing::warn!(from = %header.sender, round = header.round.0, "a round's stream was refused: it is stale or foreign");
            return;
        };
        if !self.streams.deliver((header.round, header.ballot, kind, header.sender), arrived) {
            tracing::warn!(from = %header.sender, round = header.round.0, ?kind, "a round's stream was refused: it came twice");
        }
    }

    fn data(&mut self, attempt: Attempt, event: DataEvent) {
        let Some(round) = self.round.as_mut().filter(|round| round.plan.attempt() == attempt) else { return };
        let event = match event {
            DataEvent::Reduced(part) => {
                round.take_own(part);
                In::Reduced(attempt)
            }
            DataEvent::Parameters(owner, values) => {
                round.values.extend(values);
                In::ParametersHeld(attempt, owner)
            }
            DataEvent::Momentum(owner, momentum) => {
                round.momentum.extend(momentum);
                In::MomentumHeld(attempt, owner)
            }
            DataEvent::TermsDiffer(node, terms) => In::TermsDiffer(attempt, node, terms),
            DataEvent::Broken(node) => In::StreamBroken(attempt, node),
        };
        self.feed(event);
    }

    fn execute(&mut self, myself: &ActorRef<CoordinatorMessage>) {
        for effect in self.out.take() {
            match effect {
                Effect::Send { to, frame } => self.context.send_frame(to, &frame),
                Effect::Open(plan) => self.open(plan, myself),
                Effect::Discard(_) => self.round = None,
                Effect::Apply(outcome) => self.apply(outcome),
                Effect::Fail(error) => {
                    (self.round, self.contributed) = (None, None);
                    self.context.actors.tell_aggregator(AggregatorMessage::Failed(ExchangeError::Round(error)));
                }
            }
        }
    }

    fn open(&mut self, plan: Arc<Plan>, myself: &ActorRef<CoordinatorMessage>) {
        let (Some(machine), Some(contributed)) = (&self.machine, self.contributed.take()) else { return };
        let place = machine.place();
        self.streams.forget_below((plan.round, Ballot::default(), StreamKind::Contribution, NodeId(0)));
        let starter = Starter { context: &self.context, streams: &mut self.streams, actor: myself, place, states: &self.states };
        self.round = Some(starter.start(plan, &contributed));
    }

    fn apply(&mut self, outcome: Outcome) {
        let Some(round) = self.round.take() else { return };
        let parameters = round.parameters;
        let (plan, values, momentum) = round.finish();
        if !values.covers(plan.layout.elements()) {
            tracing::error!(round = outcome.round.0, "a decided round does not cover the model: the node stops here");
            return self.context.actors.tell_aggregator(AggregatorMessage::Failed(ExchangeError::Stopped));
        }
        let sharded = self.context.settings.algorithm.outer.is_some_and(|outer| outer.sharded);
        if sharded && matches!(outcome.terms.kind, RoundKind::Found | RoundKind::Slow) {
            self.states.install(plan.map.held_by(plan.me), &plan.layout, parameters, &values, momentum);
        }
        self.context.actors.tell_aggregator(AggregatorMessage::RoundDecided(outcome, values));
    }
}
