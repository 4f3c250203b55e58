//! The simulated network between processes. As in QUIC, each process dials the others and sends on
//! the connection that it dialed, in order for control frames. Nothing is lost on a live
//! connection, only late; datagrams may be lost, doubled and overtaken. A connection over which
//! nothing is heard ends after a while, at each end separately.

use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::node::vectors::Stream;
use slowmo_protocol::trace::Link;
use slowmo_protocol::wire::Frame;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// Time until a loss is noticed and sent again, beside a round trip, in microseconds.
pub const RETRANSMISSION: u64 = 25_000;
/// Bytes of a control frame, as counted on a link of limited rate.
pub const FRAME_BYTES: u64 = 200;

/// A process, by the order in which it was started.
pub type Process = usize;

/// A packet on a connection.
#[derive(Clone, Debug)]
pub enum Packet {
    /// A control frame.
    Frame(Box<Frame>),
    /// A bulk stream, by its number.
    Stream(u64),
}

/// The state of a process's connections with another node.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// The process at the other end.
    pub peer: Process,
    /// Whether this end has dialed, so that it can send.
    pub up: bool,
    /// Number of the connection that the other end has dialed.
    pub accepted: Option<u64>,
}

/// The connection that one process dialed to another.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// Number that distinguishes it from earlier connections between the two.
    pub number: u64,
    /// Time at which the last control frame arrives.
    pub in_order: u64,
    /// Time at which the last packet of any kind arrives.
    pub last: u64,
    /// Packets that a cut holds back, oldest first.
    pub held: VecDeque<Packet>,
    /// Streams whose end the sender has not heard of.
    pub streams: BTreeSet<u64>,
}

/// A stream in flight.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// The sender.
    pub from: Process,
    /// The receiver.
    pub to: Process,
    /// Number of the connection.
    pub connection: u64,
    /// The stream.
    pub stream: Box<Stream>,
}

/// All connections, and the state of the links.
#[derive(Default)]
pub struct Network {
    /// Links that differ from the start of the run.
    pub links: BTreeMap<(NodeId, NodeId), Link>,
    /// Connections by sender and receiver.
    pub connections: BTreeMap<(Process, Process), Connection>,
    /// Sessions by process and node.
    pub sessions: Vec<BTreeMap<NodeId, Session>>,
    /// Time since which a process has heard nothing of a peer that it has a session with.
    pub silent: BTreeMap<(Process, Process), u64>,
    /// For each process, the number of times that it has heard each node.
    pub heard: Vec<BTreeMap<NodeId, u64>>,
    /// Streams in flight.
    pub in_flight: BTreeMap<u64, InFlight>,
    /// For each process, where it knows each node to listen since they were last connected.
    pub known: Vec<BTreeMap<NodeId, (Process, Incarnation)>>,
    /// The addresses that each process dials.
    pub dialing: Vec<BTreeSet<SocketAddr>>,
    /// Time until which the sender's side of a link of limited rate is busy.
    pub busy: BTreeMap<(NodeId, NodeId), u64>,
    numbers: u64,
}

impl Network {
    /// The quality of the link from one node to another.
    #[must_use]
    pub fn link(&self, from: NodeId, to: NodeId) -> Link {
        if self.links.is_empty() {
            Link::default()
        } else {
            self.links.get(&(from, to)).copied().unwrap_or_default()
        }
    }

    /// Whether nothing gets from one node to another.
    #[must_use]
    pub fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.link(from, to).cut
    }

    /// Changes the links between nodes; returns those that are open again.
    pub fn set(&mut self, from: &[NodeId], to: &[NodeId], link: Link) -> Vec<(NodeId, NodeId)> {
        let mut opened = Vec::new();
        for one in from {
            for other in to.iter().filter(|other| *other != one) {
                let before = self.link(*one, *other);
                if link == Link::default() {
                    self.links.remove(&(*one, *other));
                } else {
                    self.links.insert((*one, *other), link);
                }
                if before.cut && !link.cut {
                    opened.push((*one, *other));
                }
            }
        }
        opened
    }

    /// Resets all links to their initial state; returns those that are open again.
    pub fn heal(&mut self) -> Vec<(NodeId, NodeId)> {
        std::mem::take(&mut self.links)
            .into_iter()
            .filter(|(_, link)| link.cut)
            .map(|(pair, _)| pair)
            .collect()
    }

    /// A unique number.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Adds a process.
    pub fn add(&mut self) {
        self.sessions.push(BTreeMap::new());
        self.heard.push(BTreeMap::new());
        self.known.push(BTreeMap::new());
        self.dialing.push(BTreeSet::new());
    }

    /// Notes that something from a node arrived.
    pub fn hear(&mut self, at: Process, of: NodeId) {
        *self.heard[at].entry(of).or_default() += 1;
    }

    /// The connection that `from` dialed to `to`, if it is alive.
    #[must_use]
    pub fn connection(&self, from: Process, to: Process) -> Option<&Connection> {
        self.connections.get(&(from, to))
    }
}
