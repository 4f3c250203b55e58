//! The membership actor: one per process. Meets the peers that discovery finds, forms the founding view, says who was lost.

mod search;

pub use search::{DISCOVERY_INTERVAL, REDIAL_PAUSE};

use crate::aggregator::AggregatorMessage;
use crate::context::{Credit, NodeContext};
use crate::coordinator::CoordinatorMessage;
use crate::error::ExchangeError;
use crate::gossip_peer::GossipPeerMessage;
use crate::timer::Timer;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use search::Resting;
use slowmo_protocol::ident::{Incarnation, Lineage, NodeId};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::membership::{Effect, In, Membership, Settings};
use slowmo_protocol::view::View;
use slowmo_protocol::wire::{Header, Message};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Messages to the membership.
pub enum MembershipMessage {
    /// The size of the model is known.
    Synchronize {
        /// Parameters.
        elements: u64,
        /// Values of the buffers that travel with them.
        buffer_elements: u64,
    },
    /// This start of a peer can be sent to.
    PeerUp(NodeId, Incarnation),
    /// A peer is gone.
    PeerDown(NodeId),
    /// An address was given up.
    DialFailed {
        /// The address.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Duration,
        /// The last attempt's error.
        error: String,
    },
    /// A control frame about membership.
    Frame(Header, Message, Credit),
    /// This node leaves.
    Leave,
    /// A deadline passed.
    Tick,
}

/// The shell of the membership.
pub struct MembershipActor;

/// The membership's machine, its timer and its search for peers.
pub struct MembershipState {
    machine: Membership,
    out: Outbox<Effect>,
    context: Arc<NodeContext>,
    timer: Timer,
    search: Option<tokio::task::AbortHandle>,
    resting: Arc<Resting>,
}

impl Actor for MembershipActor {
    type Msg = MembershipMessage;
    type State = MembershipState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(&self, _: ActorRef<Self::Msg>, context: Arc<NodeContext>) -> Result<MembershipState, ActorProcessingErr> {
        let resting = Arc::new(Resting::default());
        let search = tokio::spawn(search::search(Arc::clone(&context), Arc::clone(&resting))).abort_handle();
        let machine = Membership::new(settings(&context));
        Ok(MembershipState { machine, out: Outbox::default(), context, timer: Timer::default(), search: Some(search), resting })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: MembershipMessage,
        state: &mut MembershipState,
    ) -> Result<(), ActorProcessingErr> {
        let event = match message {
            MembershipMessage::Synchronize { elements, buffer_elements } => In::Synchronize { elements, buffer_elements },
            MembershipMessage::PeerUp(node, incarnation) => In::PeerUp(node, incarnation),
            MembershipMessage::PeerDown(node) => In::PeerDown(node),
            MembershipMessage::DialFailed { address, tried_for, error } => {
                state.resting.begin(address);
                In::DialFailed { address, tried_for: NodeContext::span(tried_for), error }
            }
            MembershipMessage::Frame(header, message, _credit) => In::Frame { header, message },
            MembershipMessage::Leave => In::Leave,
            MembershipMessage::Tick => {
                state.timer.disarm();
                In::Tick
            }
        };
        let now = state.context.clock.now();
        state.machine.handle(event, now, &mut state.out);
        state.execute();
        state.timer.arm(state.machine.next_deadline(), now, &myself, || MembershipMessage::Tick);
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut MembershipState) -> Result<(), ActorProcessingErr> {
        state.stop_search();
        Ok(())
    }
}

impl MembershipState {
    fn execute(&mut self) {
        for effect in self.out.take() {
            match effect {
                Effect::Send { to, frame } => self.context.send_frame(to, &frame),
                Effect::Formed { view, lineage } => self.formed(&view, lineage),
                Effect::Fail(error) => {
                    self.context.actors.tell_coordinator(CoordinatorMessage::FoundingFailed(error.clone()));
                    self.context.actors.tell_aggregator(AggregatorMessage::Failed(ExchangeError::Founding(error)));
                }
                Effect::Lost(node) => {
                    self.context.actors.tell_coordinator(CoordinatorMessage::MemberLost(node));
                    self.context.actors.tell_gossip_peer(GossipPeerMessage::MemberLost(node));
                }
                Effect::Left => self.context.actors.tell_aggregator(AggregatorMessage::Left),
            }
        }
    }

    fn formed(&mut self, view: &View, lineage: Lineage) {
        tracing::info!(nodes = view.size(), epoch = view.epoch().0, %lineage, "the founding view is formed");
        self.stop_search();
        let actors = &self.context.actors;
        actors.tell_aggregator(AggregatorMessage::Formed(view.ids().collect()));
        actors.tell_gossip_peer(GossipPeerMessage::Formed { view: view.clone(), lineage });
        actors.tell_coordinator(CoordinatorMessage::Formed { view: view.clone(), lineage });
    }

    fn stop_search(&mut self) {
        if let Some(search) = self.search.take() {
            search.abort();
        }
    }
}

fn settings(context: &NodeContext) -> Settings {
    let node = &context.settings;
    Settings {
        identity: node.identity,
        address: context.transport.local().address,
        // The configuration allows 64.
        devices: u16::try_from(node.workers).unwrap_or(u16::MAX),
        min_nodes: node.min_nodes,
        shared: node.shared.clone(),
        addresses_may_be_stale: context.discovery.may_be_stale(),
        connect_timeout: NodeContext::span(node.connect_timeout),
        synchronize_timeout: NodeContext::span(node.round_timeout),
    }
}
