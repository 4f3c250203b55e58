//! Messages between the parts of a simulated node, and requests of the parts to the world. Each
//! part has a mailbox, whose messages arrive in the order in which they were sent, a moment later.

use super::books::Entry;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::node::vectors::{Stream, Values, Vectors};
use slowmo_protocol::node::{self, Arrive, Failure, Released};
use slowmo_protocol::sound::Unsound;
use slowmo_protocol::wire::Frame;
use std::net::SocketAddr;

/// The parts of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Membership and liveness.
    Membership,
    /// The coordinator and its data movements.
    Rounds,
    /// The gossip peer and its arithmetic.
    Gossip,
    /// The aggregator.
    Aggregator,
    /// The training thread.
    Training,
}

impl Part {
    /// Number of parts.
    pub const COUNT: usize = 5;
}

/// A worker's request, with the data that it passes.
#[derive(Debug)]
pub struct Arrival {
    /// The request.
    pub arrive: Arrive<Vectors>,
    /// Buffers of the base optimizer.
    pub buffers: Values,
    /// The positions of the sample stream used since the last decided round.
    pub used: Vec<(u64, u64)>,
}

/// A message to the training thread.
#[derive(Debug)]
pub enum ToTraining {
    /// A result.
    Exchanged(Box<Released<Vectors>>),
    /// Gradients stay as they are: parameters wait at the next step.
    Excluded,
    /// The node has left.
    Drained,
    /// There is no result.
    Failed(Failure),
    /// The inner step is computed; its number, as counted by the thread itself.
    Computed(u64),
    /// Every peer was told: the process ends.
    Left,
}

/// A message to one part of a node.
#[derive(Debug)]
pub enum Mail {
    /// A message that the parts of every node exchange.
    Node(node::Mail<Vectors>),
    /// To the aggregator: the worker requests an exchange.
    Arrive(Box<Arrival>),
    /// A message to the training thread.
    Training(ToTraining),
}

impl Mail {
    /// The part whose mailbox gets the message.
    #[must_use]
    pub fn part(&self) -> Part {
        match self {
            Self::Node(node::Mail::Membership(_)) => Part::Membership,
            Self::Node(node::Mail::Rounds(_)) => Part::Rounds,
            Self::Node(node::Mail::Gossip(_)) => Part::Gossip,
            Self::Node(node::Mail::Aggregator(_)) | Self::Arrive(_) => Part::Aggregator,
            Self::Training(_) => Part::Training,
        }
    }
}

impl<M: Into<node::Mail<Vectors>>> From<M> for Mail {
    fn from(message: M) -> Self {
        Self::Node(message.into())
    }
}

/// A request of a part to the world.
#[derive(Debug)]
pub enum Output {
    /// Sends a message to another part.
    Tell(Mail),
    /// Sends a message to a part (perhaps itself) this many microseconds later: work that takes
    /// time.
    Later(u64, Mail),
    /// Sends a control frame.
    Frame(NodeId, Frame),
    /// Sends a datagram.
    Datagram(NodeId, Vec<u8>),
    /// Sends a stream.
    Stream(NodeId, Box<Stream>),
    /// Dials an address.
    Connect(SocketAddr),
    /// Closes the connections to a node that was declared dead.
    Disconnect(NodeId),
    /// Sends a port probe: finds out whether anything listens where the node was.
    PortProbe(NodeId),
    /// Starts looking for peers, or stops it.
    Search(bool),
    /// Records an event.
    Record(slowmo_protocol::trace::Event),
    /// Records a movement of push-sum mass.
    Book(Entry),
    /// A node is named for what it sent.
    Named(NodeId, Unsound),
    /// The process ends in order.
    Exit,
    /// The training failed.
    Fail(Failure),
}

impl Output {
    /// A request to send a message to another part.
    #[must_use]
    pub fn tell(mail: impl Into<Mail>) -> Self {
        Self::Tell(mail.into())
    }
}
