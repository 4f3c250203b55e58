//! What the actors of one node share: who the node is, what it runs, its transport, clock and
//! buffers, and how to reach each other.

use crate::aggregator::AggregatorMessage;
use crate::buffers::Pool;
use crate::coordinator::CoordinatorMessage;
use crate::data::{Buffers, Told};
use crate::gossip_peer::GossipPeerMessage;
use crate::metrics::Metrics;
use crate::ports::clock::Clock;
use crate::ports::discovery::Discovery;
use crate::ports::recorder::Recorder;
use crate::ports::store::Store;
use crate::ports::transport::Transport;
use crate::rates::RateBook;
use crate::status::StatusBoard;
use crate::watching::Watching;
use ractor::ActorRef;
use slowmo_protocol::algorithm::Algorithm;
use slowmo_protocol::ident::Lineage;
use slowmo_protocol::machine::Identity;
use slowmo_protocol::node::{Mail, ToMembership};
use slowmo_protocol::policy::{Bootstrap, JoinerBuffers, OnMomentumLoss, OnQuorumLoss, Quorum};
use slowmo_protocol::time::Span;
use slowmo_protocol::trace::{End, Event, Start};
use slowmo_protocol::wire::Frame;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Network events that may wait in the actors' mailboxes before reading from the network stops.
pub const MAILBOX_CREDITS_MAX: usize = 1024;

/// Settings of a node that do not change while it runs.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Who this node is.
    pub identity: Identity,
    /// What it trains with.
    pub algorithm: Algorithm,
    /// `R`: replicas of a shard beside its owner.
    pub replicas: usize,
    /// Workers of the node.
    pub workers: usize,
    /// Nodes of the founding view.
    pub min_nodes: usize,
    /// Most members of the cluster.
    pub max_nodes: usize,
    /// Join a running cluster only.
    pub join: bool,
    /// Whether this process may found a run.
    pub bootstrap: Bootstrap,
    /// It was a member of a run before it was started again.
    pub restarted: bool,
    /// The model history whose state this node brings.
    pub lineage: Option<Lineage>,
    /// Who may decide a round.
    pub quorum: Quorum,
    /// What a joiner gets of the base optimizer's buffers.
    pub joiner_buffers: JoinerBuffers,
    /// What happens when the quorum is lost.
    pub on_quorum_loss: OnQuorumLoss,
    /// How long survivors wait for members that may live.
    pub fork_after: Duration,
    /// What happens when all holders of a shard are lost.
    pub on_momentum_loss: OnMomentumLoss,
    /// How many outer rounds apart decided state is kept for good; 0: never.
    pub checkpoint_every: u64,
    /// How long a round, or a gossip, waits for a live straggler.
    pub grace: Duration,
    /// How often a peer is probed for life.
    pub probe_interval: Duration,
    /// How long a silent peer is suspected before it counts as dead.
    pub suspect: Duration,
    /// The settings that all nodes must share, as `key = value` lines.
    pub shared: String,
    /// How long a peer is tried before it is given up.
    pub connect_timeout: Duration,
    /// How long a round, a gossip or the founding may take before it is given up.
    pub round_timeout: Duration,
}

/// What the actors of one node share.
pub struct NodeContext {
    /// Settings that do not change.
    pub settings: NodeSettings,
    /// The way to other nodes.
    pub transport: Arc<dyn Transport>,
    /// The way to find them.
    pub discovery: Arc<dyn Discovery>,
    /// Time for the machines.
    pub clock: Arc<dyn Clock>,
    /// Recycled buffers.
    pub pool: Arc<Pool>,
    /// How the actors reach each other.
    pub actors: Actors,
    /// What the node's admin endpoint shows.
    pub status: Arc<StatusBoard>,
    /// What it knows of the others while somebody watches.
    pub watching: Watching,
    /// What it counts.
    pub metrics: Metrics,
    /// Where the node writes down what it does.
    pub recorder: Arc<dyn Recorder>,
    /// Where decided state is kept for good.
    pub store: Arc<dyn Store>,
    /// How the node ended, once it has.
    pub ended: OnceLock<End>,
    /// How fast gossip messages reach their peers.
    pub rates: RateBook,
    /// Bounds the network events in mailboxes.
    pub credits: Arc<Semaphore>,
}

/// Held by a network event until its actor has handled it.
#[derive(Debug)]
pub struct Credit {
    _permit: OwnedSemaphorePermit,
}

impl Credit {
    /// Waits until another network event may enter a mailbox; `None` when the node stops.
    pub async fn acquire(credits: &Arc<Semaphore>) -> Option<Self> {
        let permit = Arc::clone(credits).acquire_owned().await.ok()?;
        Some(Self { _permit: permit })
    }
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
    /// Tells a part of the node. A message to an actor that has stopped is dropped: the node is
    /// stopping.
    pub fn tell(&self, mail: impl Into<Mail<Buffers>>) {
        self.tell_holding(mail.into(), None);
    }

    /// The same for a network event, which holds a credit until it is handled.
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

    /// Tells the aggregator what only workers do.
    pub fn tell_aggregator(&self, message: AggregatorMessage) {
        tell(&self.aggregator, message);
    }

    /// Asks the coordinator.
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
    /// This start of the node, as traces name it.
    #[must_use]
    pub fn start(&self) -> Start {
        let Identity {
            node, incarnation, ..
        } = self.settings.identity;
        Start { node, incarnation }
    }

    /// Writes down how this start of the node ended; the first word counts.
    pub fn record_end(&self, end: End) {
        if self.ended.set(end).is_ok() {
            self.recorder.record(Event::Ended {
                start: self.start(),
                end,
            });
            if end == End::Failed {
                // The node ends with a flush, which comes after it.
                _ = self.recorder.dump("the node failed");
            }
        }
    }

    /// Writes down how full a bounded thing is.
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

    /// Encodes and queues a control frame; a peer that cannot be reached is the liveness layer's
    /// business.
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

    /// A duration as the machines count it.
    #[must_use]
    pub fn span(duration: Duration) -> Span {
        Span(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}
