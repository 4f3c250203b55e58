//! The gossip peer actor: one per node. Push-sum exchange with the peers of each step.

mod exchange;
mod messages;

pub use messages::GossipPeerMessage;

use crate::aggregator::AggregatorMessage;
use crate::buffers::{Assembled, Frozen};
use crate::context::NodeContext;
use crate::membership::MembershipMessage;
use crate::streams::{Arrived, StreamInbox};
use crate::timer::Timer;
use exchange::Mixed;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::gossip_peer::{Effect, GossipPeer, In, Plan, Waits};
use slowmo_protocol::ident::{Lineage, NodeId, Round, Step};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::schedule::gossips_before;
use slowmo_protocol::view::View;
use slowmo_protocol::wire::Bulk;
use std::sync::Arc;

/// Gossip streams that may wait until this node reaches their step; a faster peer's further ones are stopped.
pub const GOSSIP_STREAMS_PARKED_MAX: usize = 1024;

/// Which gossip stream: the round it belongs to, the sender's inner step, the sender.
type Key = (Round, Step, NodeId);

/// The shell of the gossip peer.
pub struct GossipPeerActor;

/// The gossip peer's machine (once there is a view) and its streams.
pub struct GossipPeerState {
    machine: Option<GossipPeer>,
    out: Outbox<Effect>,
    context: Arc<NodeContext>,
    timer: Timer,
    streams: StreamInbox<Key>,
    frozen: Option<Frozen>,
    mixed: Assembled,
    exchange: Option<tokio::task::AbortHandle>,
}

impl Actor for GossipPeerActor {
    type Msg = GossipPeerMessage;
    type State = GossipPeerState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(&self, _: ActorRef<Self::Msg>, context: Arc<NodeContext>) -> Result<GossipPeerState, ActorProcessingErr> {
        let streams = StreamInbox::new(GOSSIP_STREAMS_PARKED_MAX);
        let (timer, out, mixed) = (Timer::default(), Outbox::default(), Assembled::default());
        Ok(GossipPeerState { machine: None, out, context, timer, streams, frozen: None, mixed, exchange: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: GossipPeerMessage,
        state: &mut GossipPeerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GossipPeerMessage::View { view, lineage, round } => state.enter(view, lineage, round),
            GossipPeerMessage::Gossip { step, round, weight, frozen } => {
                state.frozen = Some(frozen);
                let turn = gossips_before(&state.context.settings.algorithm, step);
                state.feed(In::Gossip { step, turn, round, weight });
            }
            GossipPeerMessage::Frame(header, message, _credit) => state.feed(In::Frame { header, message }),
            GossipPeerMessage::Stream(arrived, _credit) => state.deliver(arrived),
            GossipPeerMessage::Mixed { step, arrived, returned, values } => {
                state.mixed = values;
                state.feed(In::Mixed { step, arrived, returned });
            }
            GossipPeerMessage::MemberLost(node) => state.feed(In::MemberLost(node)),
            GossipPeerMessage::MemberBack(node) => state.feed(In::MemberBack(node)),
            GossipPeerMessage::Leave(_) if state.machine.is_none() => state.context.actors.tell_membership(MembershipMessage::Leave),
            GossipPeerMessage::Leave(round) => state.feed(In::Leave(round)),
            GossipPeerMessage::Tick => {
                state.timer.disarm();
                state.feed(In::Tick);
            }
        }
        state.execute(&myself);
        let deadline = state.machine.as_ref().and_then(GossipPeer::next_deadline);
        state.timer.arm(deadline, state.context.clock.now(), &myself, || GossipPeerMessage::Tick);
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut GossipPeerState) -> Result<(), ActorProcessingErr> {
        state.abort_exchange();
        Ok(())
    }
}

impl GossipPeerState {
    fn enter(&mut self, view: View, lineage: Lineage, round: Round) {
        let settings = &self.context.settings;
        let Base::Sgp(gossip) = settings.algorithm.base else { return };
        if self.machine.is_some() {
            return self.feed(In::View { view, lineage, round });
        }
        let waits = Waits { message: NodeContext::span(settings.grace), leave: NodeContext::span(settings.round_timeout) };
        self.machine = Some(GossipPeer::new(settings.identity, lineage, &view, gossip.peers_per_step, waits));
    }

    fn feed(&mut self, event: In) {
        let now = self.context.clock.now();
        if let Some(machine) = &mut self.machine {
            machine.handle(event, now, &mut self.out);
        }
    }

    /// A peer may have heard of a decided round, and of its view, before this node: its stream waits here.
    fn deliver(&mut self, arrived: Arrived) {
        let Bulk::Gossip { step, .. } = arrived.content else { return };
        let (header, admitted) = (arrived.header, self.machine.as_ref().is_none_or(|machine| machine.admits(&arrived.header)));
        if !admitted || !self.streams.deliver((header.round, step, header.sender), arrived) {
            tracing::warn!(from = %header.sender, %step, round = header.round.0, "gossip stream refused");
        }
    }

    fn execute(&mut self, myself: &ActorRef<GossipPeerMessage>) {
        for effect in self.out.take() {
            match effect {
                Effect::Exchange(plan) => self.start(plan, myself),
                Effect::Send { to, frame } => self.context.send_frame(to, &frame),
                Effect::Done { step, weight, contributors } => {
                    let values = std::mem::take(&mut self.mixed);
                    self.context.actors.tell_aggregator(AggregatorMessage::GossipDone { step, weight, contributors, values });
                }
                Effect::Left => self.context.actors.tell_membership(MembershipMessage::Leave),
                Effect::GiveUp { step, round, nodes } => {
                    tracing::info!(%step, ?nodes, "a gossip goes on without these");
                    nodes.into_iter().for_each(|node| self.streams.give_up((round, step, node)));
                }
            }
        }
    }

    fn start(&mut self, plan: Plan, myself: &ActorRef<GossipPeerMessage>) {
        let Some(frozen) = self.frozen.take() else { return };
        // A decided round may have released the workers from the gossip before.
        self.abort_exchange();
        let round = plan.place.round;
        self.streams.forget_below((round, Step(0), NodeId(0)));
        let expected = plan.inward.iter().map(|from| (*from, self.streams.expect((round, plan.step, *from)))).collect();
        let (context, myself) = (Arc::clone(&self.context), myself.clone());
        let task = tokio::spawn(async move {
            let step = plan.step;
            let Mixed { arrived, returned, values } = exchange::run(&context, &plan, &frozen, expected).await;
            // A stopped gossip peer needs no result.
            _ = myself.cast(GossipPeerMessage::Mixed { step, arrived, returned, values });
        });
        self.exchange = Some(task.abort_handle());
    }

    fn abort_exchange(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            exchange.abort();
        }
    }
}
