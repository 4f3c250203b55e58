//! State that the actors of one node share: the node's identity and settings, its transport, clock
//! and buffers, and references to the other actors.

use crate::buffers::Pool;
use crate::data::Buffers;
use crate::messages::{AggregatorMessage, CoordinatorMessage, Credit, GossipPeerMessage, Told};
use crate::metrics::Metrics;
use crate::peer_status::PeerStatus;
use crate::ports::clock::Clock;
use crate::ports::discovery::Discovery;
use crate::ports::orders::Orders;
use crate::ports::recorder::Recorder;
use crate::ports::signer::Signer;
use crate::ports::store::Store;
use crate::ports::transport::Transport;
use crate::rates::RateBook;
use crate::signed_attempts::{SignedAsks, SignedAttempts};
use crate::status::StatusBoard;
use parking_lot::Mutex;
use ractor::ActorRef;
use slowmo_protocol::algorithm::Algorithm;
use slowmo_protocol::ident::{GroupId, Lineage};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::node::{Mail, ToMembership};
use slowmo_protocol::policy::{Bootstrap, JoinerBuffers, OnMomentumLoss, OnQuorumLoss, Quorum};
use slowmo_protocol::sound::Unsound;
use slowmo_protocol::time::Span;
use slowmo_protocol::trace::{End, Event, Start};
use slowmo_protocol::wire::Frame;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Most network events that may wait in the actors' mailboxes before reading from the network
/// stops.
pub const MAILBOX_CREDITS_MAX: usize = 1024;

/// Settings of a node that do not change while it runs.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Identity of this node.
    pub identity: Identity,
    /// The training algorithm.
    pub algorithm: Algorithm,
    /// `R`: replicas of a shard besides its owner.
    pub replicas: usize,
    /// Number of workers of the node.
    pub workers: usize,
    /// Group of nodes with fast links among them.
    pub group: GroupId,
    /// Number of nodes of the bootstrap view.
    pub min_nodes: usize,
    /// Most members that the cluster may have.
    pub max_nodes: usize,
    /// Whether this node may only join a running cluster.
    pub join: bool,
    /// Whether this process may bootstrap a run.
    pub bootstrap: Bootstrap,
    /// Whether the node was a member of a run before it was restarted.
    pub restarted: bool,
    /// The model history whose state this node brings.
    pub lineage: Option<Lineage>,
    /// Quorum rule for deciding a round.
    pub quorum: Quorum,
    /// Contents of the base optimizer's buffers at a joiner.
    pub joiner_buffers: JoinerBuffers,
    /// Behavior when the quorum is lost.
    pub on_quorum_loss: OnQuorumLoss,
    /// How long survivors wait for members that may still be alive.
    pub fork_after: Duration,
    /// Behavior when all holders of a shard are lost.
    pub on_momentum_loss: OnMomentumLoss,
    /// Number of outer rounds between two checkpoints of decided state; 0: no checkpoints.
    pub checkpoint_every: u64,
    /// How long a round, or a gossip, waits for a live straggler.
    pub grace: Duration,
    /// Interval at which a peer is probed for liveness.
    pub probe_interval: Duration,
    /// How long a silent peer is suspected before it is declared dead.
    pub suspect: Duration,
    /// The settings that all nodes must share, as `key = value` lines.
    pub shared: String,
    /// How long a peer is dialed before dialing is given up.
    pub connect_timeout: Duration,
    /// How long the node waits for `min_nodes` nodes, or for a cluster that it can join.
    pub meet_timeout: Duration,
    /// How long a node that was a member waits to be admitted again, and a restarted one looks for
    /// the run that it was in.
    pub rejoin_timeout: Duration,
    /// How long a round, a gossip or bootstrap may take before it is given up.
    pub round_timeout: Duration,
}

/// State that the actors of one node share.
pub struct NodeContext {
    /// Settings that do not change while the node runs.
    pub settings: NodeSettings,
    /// Sends to and receives from other nodes.
    pub transport: Arc<dyn Transport>,
    /// Finds the addresses of other nodes.
    pub discovery: Arc<dyn Discovery>,
    /// Clock of the state machines.
    pub clock: Arc<dyn Clock>,
    /// Recycled buffers.
    pub pool: Arc<Pool>,
    /// References to the node's actors.
    pub actors: Actors,
    /// Status that the node's admin endpoint shows.
    pub status: Arc<StatusBoard>,
    /// Status of the other nodes, collected while somebody watches this node's page.
    pub peers: PeerStatus,
    /// Counters and histograms of the node.
    pub metrics: Metrics,
    /// Proofs of orders that nodes pass on to each other.
    pub orders: Arc<dyn Orders>,
    /// Signs what this node publishes.
    pub signer: Arc<dyn Signer>,
    /// The digests that this node has signed lately.
    pub signed: Mutex<SignedAttempts>,
    /// The entries for which it has asked votes lately.
    pub asked: Mutex<SignedAsks>,
    /// Records the node's trace events.
    pub recorder: Arc<dyn Recorder>,
    /// Stores checkpoints of decided state.
    pub store: Arc<dyn Store>,
    /// How the node ended; empty until it has.
    pub ended: OnceLock<End>,
    /// Measured rates of gossip messages to their peers.
    pub rates: RateBook,
    /// Credits that bound the number of network events in mailboxes.
    pub credits: Arc<Semaphore>,
}

/// The actors of one node; each is set once, before any message is sent.
#[derive(Default)]
pub struct Actors {
    /// The membership.
    pub membership: OnceLock<ActorRef<Told<ToMembership>>>,
    /// The aggregator.
    pub aggregator: OnceLock<ActorRef<AggregatorMessage>>,
    /// The gossip peer.
    pub gossip_peer: OnceLock<ActorRef<GossipPeerMessage>>,
    /// The coordinator.
    pub coordinator: OnceLock<ActorRef<CoordinatorMessage>>,
}

impl Actors {
    /// Sends a message to a part of the node. A message to an actor that has stopped is dropped:
    /// the node is stopping.
    pub fn tell(&self, mail: impl Into<Mail<Buffers>>) {
        self.tell_holding(mail.into(), None);
    }

    /// Like [`Actors::tell`], for a network event, which holds a credit until it is handled.
    pub fn tell_holding(&self, mail: Mail<Buffers>, credit: Option<Credit>) {
        match mail {
            Mail::Membership(message) => tell(&self.membership, Told { message, credit }),
            Mail::Rounds(message) => tell(
                &self.coordinator,
                CoordinatorMessage::Told(Told { message, credit }),
            ),
            Mail::Gossip(message) => tell(
                &self.gossip_peer,
                GossipPeerMessage::Told(Told { message, credit }),
            ),
            Mail::Aggregator(message) => tell(&self.aggregator, AggregatorMessage::Told(message)),
        }
    }

    /// Sends the aggregator a message that only workers send.
    pub fn tell_aggregator(&self, message: AggregatorMessage) {
        tell(&self.aggregator, message);
    }

    /// Sends the coordinator a message.
    pub fn tell_coordinator(&self, message: CoordinatorMessage) {
        tell(&self.coordinator, message);
    }
}

fn tell<M: ractor::Message>(actor: &OnceLock<ActorRef<M>>, message: M) {
    let delivered = actor.get().is_some_and(|actor| actor.cast(message).is_ok());
    if !delivered {
        tracing::debug!(
            actor = std::any::type_name::<M>(),
            "the actor has stopped: message dropped"
        );
    }
}

impl NodeContext {
    /// This incarnation of the node, as traces name it.
    #[must_use]
    pub fn start(&self) -> Start {
        let Identity {
            node, incarnation, ..
        } = self.settings.identity;
        Start { node, incarnation }
    }

    /// Records how this incarnation of the node ended; only the first call counts.
    pub fn record_end(&self, end: End) {
        if self.ended.set(end).is_ok() {
            self.recorder.record(Event::Ended {
                start: self.start(),
                end,
            });
            if end == End::Failed {
                // A flush follows when the node ends, so the dump need not be waited for.
                _ = self.recorder.dump("the node failed");
            }
        }
    }

    /// Records the fill level of a bounded queue or set.
    pub fn gauge(&self, name: &str, value: usize, bound: usize) {
        let start = self.start();
        let name = name.to_owned();
        self.recorder.record(Event::Gauge {
            start,
            name,
            value: value as u64,
            bound: bound as u64,
        });
    }

    /// Encodes and queues a control frame. An unreachable peer is handled by the liveness layer.
    pub fn send_frame(&self, to: slowmo_protocol::ident::NodeId, frame: &Frame) {
        let sent = frame.encode().map_err(|error| error.to_string());
        let sent = sent.and_then(|bytes| {
            self.transport
                .send_control(to, bytes.into())
                .map_err(|error| error.to_string())
        });
        if let Err(error) = sent {
            tracing::debug!(%to, error, "control frame not sent");
        }
    }

    /// Names a node that sent what no correct node sends, in the log and in the status.
    pub fn accuse(&self, node: slowmo_protocol::ident::NodeId, what: &Unsound) {
        if self.status.accuse(node, what) {
            tracing::warn!(%node, %what, "{}", what.charge());
        }
    }

    /// Converts a duration to the time unit of the state machines, microseconds.
    #[must_use]
    pub fn span(duration: Duration) -> Span {
        Span(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}
