//! Nodes of any transport, for tests, and what they hear of.

use bytes::Bytes;
use slowmo::internal::transport::faulty;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::internal::transport::quic::{self, ClusterKey, Identity, QuicSettings, Renewer};
use slowmo_actors::ports::transport::{
    BulkReceiver, DialError, DownReason, Transport, TransportEvent,
};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(15);
const KEY: [u8; 32] = [42; 32];

/// Makes nodes of one transport.
pub enum Kind {
    Memory(MemoryHub),
    /// In memory, wrapped, with nothing wrong.
    Faulty(MemoryHub),
    /// QUIC, and Unix sockets for bulk.
    Quic,
    /// QUIC for everything.
    QuicOnly,
}

/// Makes a test of every promise (`async fn(Kind)`) over every transport.
macro_rules! over_every_transport {
    ($($promise:ident)*) => {
        $crate::nodes::over_every_transport! { @each $($promise)*;
            over_memory: Kind::Memory(MemoryHub::new(None));
            over_seeded_memory: Kind::Memory(MemoryHub::new(Some(7)));
            over_faulty: Kind::Faulty(MemoryHub::new(None));
            over_quic: Kind::Quic;
            over_quic_only: Kind::QuicOnly;
        }
    };
    (@each $($promise:ident)*;) => {};
    (@each $($promise:ident)*; $transport:ident: $kind:expr; $($more:tt)*) => {
        mod $transport {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    super::$promise($kind).await;
                }
            )*
        }
        $crate::nodes::over_every_transport! { @each $($promise)*; $($more)* }
    };
}
pub(crate) use over_every_transport;

pub struct Node {
    pub id: NodeId,
    pub transport: Arc<dyn Transport>,
    pub events: mpsc::Receiver<TransportEvent>,
}

/// A node over QUIC whose credential can be replaced.
pub struct Renewable {
    node: Node,
    pub renewer: Renewer,
}

impl Renewable {
    pub fn new(id: NodeId, incarnation: Incarnation, identity: Identity) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let settings = QuicSettings::new(id, incarnation, listen, identity);
        let ((transport, events), renewer) = quic::bind_renewable(settings).unwrap();
        let node = Node {
            id,
            transport,
            events,
        };
        Self { node, renewer }
    }
}

impl Deref for Renewable {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl DerefMut for Renewable {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.node
    }
}

impl Kind {
    pub fn node(&self, id: u64, incarnation: u64) -> Node {
        let address = match self {
            Self::Quic | Self::QuicOnly => SocketAddr::from(([127, 0, 0, 1], 0)),
            _ => SocketAddr::from(([127, 0, 0, 1], 1000 + id as u16)),
        };
        self.node_at(id, incarnation, address)
    }

    /// An address at which none of the numbered nodes listens.
    pub fn other_address(&self) -> SocketAddr {
        SocketAddr::from((
            [127, 0, 0, 1],
            if matches!(self, Self::Quic | Self::QuicOnly) {
                0
            } else {
                900
            },
        ))
    }

    pub fn node_at(&self, id: u64, incarnation: u64, address: SocketAddr) -> Node {
        let id = NodeId(id);
        let incarnation = Incarnation(incarnation);
        let (transport, events) = match self {
            Self::Memory(hub) => hub.join(id, incarnation, address),
            Self::Faulty(hub) => {
                let (inner, events) = hub.join(id, incarnation, address);
                let (transport, events, _faults) = faulty::wrap(inner, events, PATIENCE);
                (transport, events)
            }
            Self::Quic | Self::QuicOnly => {
                let identity =
                    Identity::issue(&ClusterKey::from_bytes(KEY), id, incarnation).unwrap();
                let mut settings = QuicSettings::new(id, incarnation, address, identity);
                settings.tuning.same_host = matches!(self, Self::Quic);
                quic::bind(settings).unwrap()
            }
        };
        Node {
            id,
            transport,
            events,
        }
    }

    /// Nodes 0, 1, … that can all send to each other.
    pub async fn cluster(&self, count: u64) -> Vec<Node> {
        let mut nodes: Vec<Node> = (0..count).map(|id| self.node(id, 1)).collect();
        for node in &nodes {
            for other in &nodes {
                node.transport.connect(other.address(), PATIENCE);
            }
        }
        for node in &mut nodes {
            for _ in 1..count {
                let TransportEvent::PeerUp { .. } = node.next().await else {
                    panic!("a peer should be up")
                };
            }
        }
        nodes
    }

    pub async fn pair(&self) -> (Node, Node) {
        let mut nodes = self.cluster(2).await;
        let second = nodes.pop().unwrap();
        (nodes.pop().unwrap(), second)
    }
}

impl Node {
    pub fn address(&self) -> SocketAddr {
        self.transport.local().address
    }

    pub async fn next(&mut self) -> TransportEvent {
        timeout(PATIENCE, self.events.recv())
            .await
            .expect("an event in time")
            .expect("a live transport")
    }

    pub async fn dial_error(&mut self) -> DialError {
        match self.next().await {
            TransportEvent::DialFailed { error, .. } => error,
            _ => panic!("a failed dial"),
        }
    }

    pub async fn next_control(&mut self) -> (NodeId, Bytes) {
        match self.next().await {
            TransportEvent::Control { from, frame, .. } => (from, frame),
            other => panic!("a control frame, not {}", name(&other)),
        }
    }

    pub async fn next_bulk(&mut self) -> (Bytes, Box<dyn BulkReceiver>) {
        match self.next().await {
            TransportEvent::Bulk { header, stream, .. } => (header, stream),
            other => panic!("a stream, not {}", name(&other)),
        }
    }

    pub async fn next_down(&mut self) -> (NodeId, String) {
        match self.next().await {
            TransportEvent::PeerDown { node, reason, .. } => (node, reason.to_string()),
            other => panic!("a peer going down, not {}", name(&other)),
        }
    }

    /// Waits until the peer is up; events of other kinds before that are let go.
    pub async fn wait_up(&mut self, peer: NodeId) -> Incarnation {
        loop {
            match self.next().await {
                TransportEvent::PeerUp {
                    node, incarnation, ..
                } if node == peer => return incarnation,
                _ => {}
            }
        }
    }

    /// Waits until the peer is down; events of other kinds before that are let go.
    pub async fn wait_down(&mut self, peer: NodeId) -> DownReason {
        loop {
            match self.next().await {
                TransportEvent::PeerDown { node, reason, .. } if node == peer => return reason,
                _ => {}
            }
        }
    }

    pub async fn quiet(&mut self, period: Duration) {
        if let Ok(Some(event)) = timeout(period, self.events.recv()).await {
            panic!("{} was not expected", name(&event));
        }
    }
}

fn name(event: &TransportEvent) -> String {
    match event {
        TransportEvent::PeerUp { node, .. } => format!("up {node}"),
        TransportEvent::PeerDown { node, reason, .. } => format!("down {node}: {reason}"),
        TransportEvent::DialFailed { address, error, .. } => {
            format!("dialing {address} failed: {error}")
        }
        TransportEvent::PortRefused { node } => format!("nobody listens at {node}'s address"),
        TransportEvent::Refused { error, .. } => format!("refused: {error}"),
        TransportEvent::Control { from, .. } => format!("control from {from}"),
        TransportEvent::Datagram { from, .. } => format!("datagram from {from}"),
        TransportEvent::Bulk { from, .. } => format!("bulk from {from}"),
    }
}

/// Bytes that tell their position.
pub fn pattern(length: usize, salt: usize) -> Bytes {
    (0..length)
        .map(|index| (index.wrapping_mul(31) ^ (index >> 8) ^ salt) as u8)
        .collect()
}

/// An executor of its own, which goes with all that runs on it.
pub fn executor() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}
