//! What the parts of a simulated node tell each other, and what they want of the world: each part has a mailbox, whose messages arrive in
//! the order in which they were sent, a moment later.

use super::books::Entry;
use slowmo_protocol::aggregator::Request;
use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::{NodeId, Step};
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::node::vectors::{Stream, Values, Vectors};
use slowmo_protocol::node::{self, Failure};
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::view::Member;
use slowmo_protocol::wire::Frame;
use std::net::SocketAddr;
use std::sync::Arc;

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

/// A worker's request.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// What it asks for.
    pub request: Request,
    /// What it trains.
    pub model: ModelSize,
    /// The values that travel; overlapped gossip takes none.
    pub values: Option<Values>,
    /// The base optimizer's buffers.
    pub buffers: Values,
    /// What is left of the samples.
    pub samples: Option<Progress>,
    /// The positions of the sample stream used since the last decided round.
    pub used: Vec<(u64, u64)>,
}

/// To the training thread: the answer to its exchange.
#[derive(Clone, Debug)]
pub enum ToTraining {
    /// A result.
    Exchanged(Box<Exchanged>),
    /// Gradients stay as they are: parameters wait at the next step.
    PassedOver,
    /// The node has left.
    Drained,
    /// No result.
    Failed(Failure),
    /// The inner step is computed; which one it was, counted by the thread itself.
    Computed(u64),
    /// Everybody was told: the process ends.
    Left,
}

/// A result.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// Values; `None`: those that the worker gave.
    pub values: Option<Values>,
    /// Overlapped gossip: the part of the model that stays.
    pub stays: Option<f64>,
    /// The node's push-sum weight.
    pub weight: f64,
    /// The decided round, if one was, and the members it began with.
    pub decided: Option<(Arc<Outcome>, Arc<[Member]>)>,
    /// Buffers of the base optimizer for a node that joined.
    pub donated: Option<Values>,
    /// The inner step that follows.
    pub next_step: Step,
    /// The node is left out from now on.
    pub drained: bool,
}

/// A message and whom it is for.
#[derive(Debug)]
pub enum Mail {
    /// As the parts of every node tell it each other.
    Node(node::Mail<Vectors>),
    /// To the aggregator: the worker asks for an exchange.
    Arrive(Box<Arrival>),
    /// To the aggregator: the worker leaves.
    Leave,
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
            Self::Node(node::Mail::Aggregator(_)) | Self::Arrive(_) | Self::Leave => Part::Aggregator,
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
    Knock(NodeId),
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
