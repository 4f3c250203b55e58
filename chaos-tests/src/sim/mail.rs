//! What the parts of a simulated node tell each other, and what they want of the world: each part
//! has a mailbox, whose messages arrive in the order in which they were sent, a moment later.

use super::books::Entry;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::node::vectors::{Stream, Values, Vectors};
use slowmo_protocol::node::{self, Arrive, Failure, Released};
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
    /// How many there are.
    pub const COUNT: usize = 5;
}

/// A worker's request, and what it lends.
#[derive(Debug)]
pub struct Arrival {
    /// The request.
    pub arrive: Arrive<Vectors>,
    /// The base optimizer's buffers.
    pub buffers: Values,
    /// The positions of the sample stream used since the last decided round.
    pub used: Vec<(u64, u64)>,
}

/// To the training thread: the answer to its exchange.
#[derive(Debug)]
pub enum ToTraining {
    /// A result.
    Exchanged(Box<Released<Vectors>>),
    /// Gradients stay as they are: parameters wait at the next step.
    Excluded,
    /// The node has left.
    Drained,
    /// No result.
    Failed(Failure),
    /// The inner step is computed; which one it was, counted by the thread itself.
    Computed(u64),
    /// Everybody was told: the process ends.
    Left,
}

/// A message and whom it is for.
#[derive(Debug)]
pub enum Mail {
    /// As the parts of every node tell it each other.
    Node(node::Mail<Vectors>),
    /// To the aggregator: the worker asks for an exchange.
    Arrive(Box<Arrival>),
    /// To the training thread.
    Training(ToTraining),
}

impl Mail {
    /// Whose mailbox.
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

/// What a part wants of the world.
#[derive(Debug)]
pub enum Wish {
    /// Tell another part.
    Tell(Mail),
    /// Tell a part (perhaps itself) so many microseconds later: work that takes time.
    Later(u64, Mail),
    /// Send a control frame.
    Frame(NodeId, Frame),
    /// Send a datagram.
    Datagram(NodeId, Vec<u8>),
    /// Send a stream.
    Stream(NodeId, Box<Stream>),
    /// Dial an address.
    Connect(SocketAddr),
    /// Close the connections to a node that was declared dead.
    Disconnect(NodeId),
    /// Find out whether anybody listens where the node was.
    PortProbe(NodeId),
    /// Look for peers from now on, or no more.
    Search(bool),
    /// Write it down.
    Record(slowmo_protocol::trace::Event),
    /// Write down what became of push-sum mass.
    Book(Entry),
    /// The process ends in order.
    Exit,
    /// The training failed.
    Fail(Failure),
}

impl Wish {
    /// Tells another part.
    #[must_use]
    pub fn tell(mail: impl Into<Mail>) -> Self {
        Self::Tell(mail.into())
    }
}
