//! A transport inside one process, for tests: no sockets, the same guarantees as `quic`.
//!
//! Frames of one peer and chunks of one stream arrive in order. With a seed, deliveries are delayed
//! by pseudorandom amounts, so that the order of arrival between peers and streams differs from
//! seed to seed.

mod link;
mod stream;

use super::accepted::Accepted;
use super::dialing::Dialing;
use super::session::PeerIdentity;
use super::sessions::{AdmitError, Part, Sessions};
use async_trait::async_trait;
use bytes::Bytes;
use link::Link;
use parking_lot::Mutex;
use slowmo_actors::ports::transport::{
    BulkError, BulkSender, DATAGRAM_BYTES_MAX, DUPLICATE_DIALED_MAX, DialError, DownReason,
    LocalPeer, SendError, TRANSPORT_EVENTS_MAX, Traffic, Transport, TransportEvent,
};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::wire::{BULK_HEADER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// Interval at which a dialed address is looked up.
const DIAL_POLL: Duration = Duration::from_millis(2);
/// Longest time that `close` waits for queued frames and the sessions' ends to be delivered.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(300);
/// Round-trip time that is reported for every peer.
const ROUND_TRIP: Duration = Duration::from_micros(100);
/// Longest delay of a message under a seed.
const SEEDED_DELAY_MAX: Duration = Duration::from_millis(3);

/// A simulated network that connects the nodes of one process.
#[derive(Clone)]
pub struct MemoryHub {
    seed: Option<u64>,
    nodes: Arc<Mutex<BTreeMap<SocketAddr, Arc<Node>>>>,
}

/// A node that has joined the hub.
struct Node {
    local: LocalPeer,
    hub: MemoryHub,
    runtime: Handle,
    events: mpsc::Sender<TransportEvent>,
    sessions: Arc<Sessions<Arc<Link>>>,
    dialing: Dialing,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// The transport handle of a node; dropping it removes the node from the hub.
struct MemoryTransport {
    node: Arc<Node>,
}

impl MemoryHub {
    /// A hub without nodes. With a seed, arrivals are delayed by amounts drawn from it; without
    /// one, nothing is delayed.
    #[must_use]
    pub fn new(seed: Option<u64>) -> Self {
        Self {
            seed,
            nodes: Arc::default(),
        }
    }

    /// Adds a node that listens at `address`, and replaces an earlier node at that address. Must be
    /// called inside a tokio runtime.
    #[must_use]
    pub fn join(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        address: SocketAddr,
    ) -> (Arc<dyn Transport>, mpsc::Receiver<TransportEvent>) {
        let (events, receiver) = mpsc::channel(TRANSPORT_EVENTS_MAX);
        let runtime = Handle::current();
        let node = Arc::new(Node {
            local: LocalPeer {
                node,
                incarnation,
                address,
                announced: address,
            },
            hub: self.clone(),
            sessions: Sessions::new(events.clone(), runtime.clone()),
            runtime,
            events,
            dialing: Dialing::default(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        });
        let replaced = self.nodes.lock().insert(address, node.clone());
        if let Some(replaced) = replaced {
            replaced.sessions.close("another node took its address");
        }
        (Arc::new(MemoryTransport { node }), receiver)
    }

    /// Removes this incarnation of a node from the hub, as if its process were gone: it can no
    /// longer be dialed or port-probed. Its connections stay open and silent.
    #[cfg(feature = "testing")]
    pub(crate) fn vanish(&self, node: LocalPeer) {
        let mut nodes = self.nodes.lock();
        if nodes
            .get(&node.address)
            .is_some_and(|there| there.local == node)
        {
            nodes.remove(&node.address);
        }
    }

    fn find(&self, address: SocketAddr) -> Option<Arc<Node>> {
        self.nodes.lock().get(&address).cloned()
    }

    fn leave(&self, node: &Arc<Node>) {
        let mut nodes = self.nodes.lock();
        if nodes
            .get(&node.local.address)
            .is_some_and(|current| Arc::ptr_eq(current, node))
        {
            nodes.remove(&node.local.address);
        }
    }
}

#[async_trait]
impl Transport for MemoryTransport {
    fn local(&self) -> LocalPeer {
        self.node.local
    }

    fn connect(&self, address: SocketAddr, give_up_after: Duration) {
        let node = &self.node;
        if address == node.local.address
            || node.sessions.is_up_at(address)
            || !node.dialing.begin(address, give_up_after)
        {
            return;
        }
        let node = node.clone();
        self.node.runtime.spawn(async move {
            let mut next = Some(give_up_after);
            while let Some(give_up_after) = next {
                if let Err(failure) = node.dial(address, give_up_after).await {
                    let _ = node.events.send(failure).await;
                }
                next = node
                    .dialing
                    .end(address, || node.sessions.is_up_at(address));
            }
        });
    }

    fn send_control(&self, to: NodeId, frame: Bytes) -> Result<(), SendError> {
        if frame.len() > CONTROL_FRAME_BYTES_MAX {
            return Err(SendError::TooLarge {
                length: frame.len(),
                bound: CONTROL_FRAME_BYTES_MAX,
            });
        }
        self.node
            .sessions
            .outgoing(to)
            .ok_or(SendError::NotConnected(to))?
            .queue_control(frame)
    }

    fn send_datagram(&self, to: NodeId, datagram: Bytes) -> Result<(), SendError> {
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err(SendError::TooLarge {
                length: datagram.len(),
                bound: DATAGRAM_BYTES_MAX,
            });
        }
        self.node
            .sessions
            .outgoing(to)
            .ok_or(SendError::NotConnected(to))?
            .queue_datagram(datagram);
        Ok(())
    }

    async fn open_bulk(&self, to: NodeId, header: Bytes) -> Result<Box<dyn BulkSender>, BulkError> {
        if header.len() > BULK_HEADER_BYTES_MAX {
            return Err(BulkError::HeaderTooLarge {
                length: header.len(),
                bound: BULK_HEADER_BYTES_MAX,
            });
        }
        let link = self
            .node
            .sessions
            .outgoing(to)
            .ok_or(BulkError::NotConnected(to))?;
        stream::open(&link, header).await
    }

    fn disconnect(&self, node: NodeId, reason: &str) {
        self.node.sessions.disconnect(node, reason);
    }

    fn heard(&self, node: NodeId) -> u64 {
        self.node.sessions.heard(node)
    }

    fn round_trip(&self, node: NodeId) -> Option<Duration> {
        self.node.sessions.outgoing(node).map(|_| ROUND_TRIP)
    }

    fn sent_to(&self, _node: NodeId) -> u64 {
        0
    }

    fn port_probe(&self, node: NodeId) {
        self.node.port_probe(node);
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            sent_bytes: self.node.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.node.received_bytes.load(Ordering::Relaxed),
            ..Traffic::default()
        }
    }

    async fn close(&self) {
        let give_up = Instant::now() + CLOSE_WAIT_MAX;
        while self
            .node
            .sessions
            .all_outgoing()
            .iter()
            .any(|link| link.is_busy())
            && Instant::now() < give_up
        {
            sleep(Duration::from_millis(1)).await;
        }
        self.node.hub.leave(&self.node);
        for session in self.node.sessions.close("the node leaves") {
            let _ = tokio::time::timeout_at(give_up, session.ended()).await;
        }
    }
}

impl Drop for MemoryTransport {
    fn drop(&mut self) {
        self.node.hub.leave(&self.node);
        self.node.sessions.close("the node is gone");
    }
}

impl Node {
    fn port_probe(&self, node: NodeId) {
        if let Some(address) = self
            .sessions
            .address(node)
            .filter(|address| self.hub.find(*address).is_none())
        {
            self.sessions.refused_at(node, address);
            // If the event queue is full, the event is lost; the next port probe reports it again.
            let _ = self.events.try_send(TransportEvent::PortRefused { node });
        }
    }

    /// Retries until a node is found at the address and linked; an error is the event to report.
    async fn dial(
        self: &Arc<Self>,
        address: SocketAddr,
        give_up_after: Duration,
    ) -> Result<(), TransportEvent> {
        let begun = Instant::now();
        let mut duplicate_since = None;
        loop {
            let error = match self.hub.find(address) {
                Some(target) => match self.link_to(&target, address).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
                None => DialError::NoAnswer,
            };
            let tried_for = begun.elapsed();
            let duplicate_for = if matches!(error, DialError::DuplicateId(_)) {
                duplicate_since.get_or_insert_with(Instant::now).elapsed()
            } else {
                duplicate_since = None;
                Duration::ZERO
            };
            if tried_for >= give_up_after
                || error.is_final()
                || duplicate_for >= DUPLICATE_DIALED_MAX
            {
                return Err(TransportEvent::DialFailed {
                    address,
                    tried_for,
                    error,
                });
            }
            sleep(DIAL_POLL).await;
        }
    }

    async fn link_to(
        self: &Arc<Self>,
        target: &Arc<Node>,
        address: SocketAddr,
    ) -> Result<(), DialError> {
        if target.local.node == self.local.node {
            let error = DialError::SameId(self.local.node);
            let _ = target
                .events
                .send(TransportEvent::Refused {
                    remote: self.local.address,
                    error: error.clone(),
                })
                .await;
            return Err(error);
        }
        if self.sessions.outgoing_incarnation(target.local.node) == Some(target.local.incarnation) {
            return Ok(());
        }
        let there = target
            .sessions
            .admit(
                self.local.into(),
                Part::IncomingControl(Arc::new(Accepted::used())),
            )
            .map_err(|error| refusal(target, error, self.local.node))?;
        let link = Arc::new(Link::new(self, target, there.clone()));
        let here = self
            .sessions
            .admit(target.local.into(), Part::Outgoing(link.clone(), address));
        match here {
            Ok(here) => link.run(here),
            Err(error) => {
                there.close(DownReason::ClosedByPeer("it was connected already".into()));
                return Err(refusal(self, error, target.local.node));
            }
        }
        Ok(())
    }
}

fn refusal(refusing: &Node, error: AdmitError, node: NodeId) -> DialError {
    match error {
        AdmitError::Duplicate(_) => {
            refusing.port_probe(node);
            DialError::DuplicateId(node)
        }
        AdmitError::AlreadyConnected
        | AdmitError::Closed
        | AdmitError::TooMany
        | AdmitError::OtherKey
        | AdmitError::NothingToRenew => DialError::NoAnswer,
    }
}

impl From<LocalPeer> for PeerIdentity {
    fn from(local: LocalPeer) -> Self {
        Self {
            node: local.node,
            incarnation: local.incarnation,
            address: local.address,
            host: None,
            key: None,
        }
    }
}
