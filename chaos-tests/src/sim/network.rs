//! The simulated network between processes. As QUIC does it: each process dials the others; what it
//! sends travels on the connection that it dialed, in order for control frames; nothing is lost on
//! a connection that lives, only late; datagrams are lost, doubled and overtaken. A connection over
//! which nothing is heard ends after a while, at each end by itself.

use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::node::vectors::Stream;
use slowmo_protocol::trace::Link;
use slowmo_protocol::wire::Frame;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// How long after a loss it is noticed and sent again, beside a round trip, in microseconds.
pub const RETRANSMISSION: u64 = 25_000;
/// Bytes of a control frame, as far as a limited rate is concerned.
pub const FRAME_BYTES: u64 = 200;

/// A process, by when it was started.
pub type Process = usize;

/// Something on a connection.
#[derive(Clone, Debug)]
pub enum Packet {
    /// A control frame.
    Frame(Box<Frame>),
    /// A bulk stream, by its number.
    Stream(u64),
}

/// What one process knows of its connections with another node.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// The process at the other end.
    pub peer: Process,
    /// It can be sent to: this end has dialed.
    pub up: bool,
    /// The connection that the other end has dialed.
    pub accepted: Option<u64>,
}

/// The connection that one process dialed to another.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// Another one than those before it between the two.
    pub number: u64,
    /// When the last control frame arrives.
    pub in_order: u64,
    /// When the last of all arrives.
    pub last: u64,
    /// What a cut holds back, oldest first.
    pub held: VecDeque<Packet>,
    /// Streams that their sender has not heard the end of.
    pub streams: BTreeSet<u64>,
}

/// A stream under way.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// Who sends it.
    pub from: Process,
    /// To whom.
    pub to: Process,
    /// On which connection.
    pub connection: u64,
    /// What.
    pub stream: Box<Stream>,
}

/// All connections, and what the links are like.
#[derive(Default)]
pub struct Network {
    /// Links that are not as they were at the start.
    pub links: BTreeMap<(NodeId, NodeId), Link>,
    /// By sender and receiver.
    pub connections: BTreeMap<(Process, Process), Connection>,
    /// By process and node.
    pub sessions: Vec<BTreeMap<NodeId, Session>>,
    /// Since when a process has heard nothing of a peer that it has a session with.
    pub silent: BTreeMap<(Process, Process), u64>,
    /// What each process has heard of each node: a count.
    pub heard: Vec<BTreeMap<NodeId, u64>>,
    /// Streams under way.
    pub in_flight: BTreeMap<u64, InFlight>,
    /// Where each process knows each node to listen, from when it was connected last.
    pub known: Vec<BTreeMap<NodeId, (Process, Incarnation)>>,
    /// Which addresses each process dials.
    pub dialing: Vec<BTreeSet<SocketAddr>>,
    /// Until when the sender's side of a link of limited rate is busy.
    pub busy: BTreeMap<(NodeId, NodeId), u64>,
    numbers: u64,
}

impl Network {
    /// What the way from one node to another is like.
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

    /// Changes the ways between nodes; returns those that are open again.
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

    /// All ways are as at the start; returns those that are open again.
    pub fn heal(&mut self) -> Vec<(NodeId, NodeId)> {
        std::mem::take(&mut self.links)
            .into_iter()
            .filter(|(_, link)| link.cut)
            .map(|(pair, _)| pair)
            .collect()
    }

    /// A number that nothing else has.
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

    /// Something of a node arrived.
    pub fn hear(&mut self, at: Process, of: NodeId) {
        *self.heard[at].entry(of).or_default() += 1;
    }

    /// The connection that `from` dialed to `to`, if it lives.
    #[must_use]
    pub fn connection(&self, from: Process, to: Process) -> Option<&Connection> {
        self.connections.get(&(from, to))
    }
}
