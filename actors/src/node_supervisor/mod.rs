//! The node supervisor actor: one per process. Spawns the other actors, routes network events to
//! them, and stops the node when one of them fails (their state cannot be rebuilt from outside; a
//! restarted node joins the others).

mod router;

use crate::aggregator::AggregatorActor;
use crate::context::NodeContext;
use crate::coordinator::CoordinatorActor;
use crate::gossip_peer::GossipPeerActor;
use crate::membership::MembershipActor;
use crate::ports::transport::TransportEvent;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use slowmo_protocol::trace::{End, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Number of nodes started in this process.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Messages to the supervisor.
pub enum NodeSupervisorMessage {
    /// Stop every actor of the node.
    Stop,
}

/// Actor shell of the supervisor.
pub struct NodeSupervisor;

/// Arguments with which the supervisor is started.
pub struct NodeArguments {
    /// State that the actors share.
    pub context: Arc<NodeContext>,
    /// Events from the transport.
    pub events: mpsc::Receiver<TransportEvent>,
}

/// The supervisor's state: the node and its router task.
pub struct NodeState {
    context: Arc<NodeContext>,
    router: AbortHandle,
}

impl Actor for NodeSupervisor {
    type Msg = NodeSupervisorMessage;
    type State = NodeState;
    type Arguments = NodeArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: NodeArguments,
    ) -> Result<NodeState, ActorProcessingErr> {
        let NodeArguments { context, events } = arguments;
        let node = context.settings.identity.node.0;
        // The registry is process-wide: names carry the node and a count, so that many nodes, of
        // equal ids too, can run in one process.
        let start = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = |actor: &str| Some(format!("slowmo/{node}/{start}/{actor}"));
        context.recorder.record(Event::Started(context.start()));
        let cell = myself.get_cell();
        let actors = &context.actors;
        let (coordinator, _) = Actor::spawn_linked(
            name("coordinator"),
            CoordinatorActor,
            Arc::clone(&context),
            cell.clone(),
        )
        .await?;
        _ = actors.coordinator.set(coordinator);
        let (gossip_peer, _) = Actor::spawn_linked(
            name("gossip_peer"),
            GossipPeerActor,
            Arc::clone(&context),
            cell.clone(),
        )
        .await?;
        _ = actors.gossip_peer.set(gossip_peer);
        let (aggregator, _) = Actor::spawn_linked(
            name("aggregator"),
            AggregatorActor,
            Arc::clone(&context),
            cell.clone(),
        )
        .await?;
        _ = actors.aggregator.set(aggregator);
        let (membership, _) = Actor::spawn_linked(
            name("membership"),
            MembershipActor,
            Arc::clone(&context),
            cell.clone(),
        )
        .await?;
        _ = actors.membership.set(membership);
        let router = tokio::spawn(router::route(Arc::clone(&context), events)).abort_handle();
        Ok(NodeState { context, router })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: NodeSupervisorMessage,
        _: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            NodeSupervisorMessage::Stop => myself.stop(None),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(actor, error) = event {
            tracing::error!(actor = ?actor.get_name(), %error, "an actor failed: the node stops");
            state.context.record_end(End::Failed);
            myself.stop(Some("an actor failed".to_owned()));
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<Self::Msg>,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        state.router.abort();
        myself.stop_children(None);
        Ok(())
    }
}
