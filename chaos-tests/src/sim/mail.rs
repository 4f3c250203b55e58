//! What the parts of a simulated node tell each other, as the real actors do: each part has a mailbox, whose messages arrive in the
//! order in which they were sent, a moment later.

use super::books::Entry;
use slowmo_protocol::aggregator::Request;
use slowmo_protocol::coordinator::{Attempt, Outcome, RoundError, RoundSpec};
use slowmo_protocol::gossip_peer::{Key, Sent};
use slowmo_protocol::ident::{Incarnation, Lineage, NodeId, Round, ShardId, Step};
use slowmo_protocol::membership::FoundingError;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{Frame, Header, Message};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// Values of a model: float64, so that what the oracle computes is what every node must hold, bit by bit.
pub type Values = Arc<Vec<f64>>;

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

/// Anchor and slow momentum of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Parameters after the last slow step.
    pub anchor: Vec<f64>,
    /// Slow momentum.
    pub momentum: Vec<f64>,
}

/// What a round's stream brings.
#[derive(Clone, Debug)]
pub enum Content {
    /// A contribution to the receiver's shards, with the push-sum weight.
    Contribution(f64, RoundSpec, BTreeMap<ShardId, Vec<f64>>),
    /// New values of the sender's shards.
    Parameters(BTreeMap<ShardId, Vec<f64>>),
    /// State of shards.
    State(BTreeMap<ShardId, State>),
    /// A donor's buffers of the base optimizer.
    Buffers(Values),
    /// A gossip message: the sender's inner step, the weight, the values that go with it.
    Gossip(Step, f64, Values),
}

/// A bulk stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Who, where in history.
    pub header: Header,
    /// What.
    pub content: Content,
}

/// To the membership.
#[derive(Clone, Debug)]
pub enum ToMembership {
    /// Events that its machine takes as they are.
    In(slowmo_protocol::membership::In),
    /// A datagram of liveness.
    Datagram(NodeId, Vec<u8>),
    /// Nobody listens at a peer's address.
    KnockRefused(NodeId),
    /// A peer can be sent to.
    PeerUp(NodeId, Incarnation),
    /// A peer's connections are gone; whether it left on purpose.
    PeerDown(NodeId, bool),
}

/// To the coordinator.
#[derive(Clone, Debug)]
pub enum ToRounds {
    /// Events that its machine takes as they are.
    In(slowmo_protocol::coordinator::In),
    /// The node froze its contribution.
    Contribute(Box<Contribution>),
    /// A round's stream arrived as a whole.
    Stream(Box<Stream>),
    /// A stream to or from a node broke.
    Broken(Attempt, NodeId),
    /// The own shards are averaged.
    Reduced(Attempt),
    /// A stream that this node waited for is taken in.
    Held(Attempt, NodeId, Movement),
    /// The founding failed.
    FoundingFailed,
}

/// Which of a round's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Movement {
    /// New values.
    Parameters,
    /// State of shards.
    State,
    /// Buffers of the base optimizer.
    Buffers,
}

/// What a node contributes to a round.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// Which round.
    pub round: Round,
    /// What it expects the round to be.
    pub spec: RoundSpec,
    /// The push-sum weight.
    pub weight: f64,
    /// The values.
    pub values: Values,
    /// The base optimizer's buffers for whoever joins.
    pub buffers: Values,
    /// What was left of the samples when the round began.
    pub samples: Option<Progress>,
    /// The positions of the sample stream that this node used since the round before.
    pub used: Vec<(u64, u64)>,
}

/// To the gossip peer.
#[derive(Clone, Debug)]
pub enum ToGossip {
    /// Events that its machine takes as they are.
    In(slowmo_protocol::gossip_peer::In),
    /// The view of the next round is another one.
    View(View, Lineage, Round, Vec<NodeId>),
    /// A round is decided, in the same view.
    Round(Round),
    /// The node gossips; synchronous with the model as the training thread left it.
    Gossip(Step, Round, Option<Values>),
    /// The node finished the inner step of an exact average, with this model.
    Settle(Step, Round, Values),
    /// Overlapped: the training thread mixed; the model as its inner step left it.
    Moved(Step, Values),
    /// What the training thread goes on from after a decided round.
    Decided(Round, Values),
    /// A gossip stream begins.
    Stream(Box<Stream>),
    /// A message was read, or could not be.
    Read(Key, Option<Values>),
    /// A message was sent as a whole, or not.
    Sent(Sent, bool),
    /// The node leaves.
    Leave(Round),
}

/// To the aggregator.
#[derive(Clone, Debug)]
pub enum ToAggregator {
    /// The worker asks for an exchange.
    Arrive(Box<Arrival>),
    /// A round is decided.
    Decided(Box<RoundDecided>),
    /// A gossip is mixed.
    GossipDone(Box<GossipDone>),
    /// What was in flight is in the contribution.
    Settled(Step, f64, Values),
    /// The exchange failed.
    Failed(Failure),
    /// The node was left out without hearing of it.
    Drained,
    /// The worker leaves.
    Leave,
    /// The node may go.
    Left,
    /// Time passed.
    Tick,
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

/// A decided round, as the coordinator hands it on.
#[derive(Clone, Debug)]
pub struct RoundDecided {
    /// What was decided.
    pub outcome: Outcome,
    /// The members that the round began with.
    pub members: Arc<[Member]>,
    /// What the round made.
    pub values: Values,
    /// The buffers that a member gave this node when it joined.
    pub donated: Option<Values>,
    /// The outcome leaves this node out.
    pub drained: bool,
}

/// A mixed gossip.
#[derive(Clone, Debug)]
pub struct GossipDone {
    /// The inner step.
    pub step: Step,
    /// The push-sum weight now.
    pub weight: f64,
    /// Nodes that were averaged with.
    pub contributors: usize,
    /// The step that follows.
    pub next_step: Step,
    /// Numerators; overlapped, what is added to the part of the model that stays.
    pub values: Values,
    /// Overlapped: the part of the model that stays.
    pub stays: Option<f64>,
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The node got into no view.
    Founding(FoundingError),
    /// The round ended without an outcome.
    Round(RoundError),
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
#[derive(Clone, Debug)]
pub enum Mail {
    /// To the membership.
    Membership(ToMembership),
    /// To the coordinator.
    Rounds(ToRounds),
    /// To the gossip peer.
    Gossip(ToGossip),
    /// To the aggregator.
    Aggregator(ToAggregator),
    /// To the training thread.
    Training(ToTraining),
}

impl Mail {
    /// Whose mailbox.
    #[must_use]
    pub fn part(&self) -> Part {
        match self {
            Self::Membership(_) => Part::Membership,
            Self::Rounds(_) => Part::Rounds,
            Self::Gossip(_) => Part::Gossip,
            Self::Aggregator(_) => Part::Aggregator,
            Self::Training(_) => Part::Training,
        }
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

/// A frame as the router hands it to a part.
#[must_use]
pub fn route(header: Header, message: Box<Message>) -> Mail {
    match *message {
        Message::Hello(_) | Message::Found { .. } | Message::Leave { .. } | Message::Join | Message::Refused(_) => {
            Mail::Membership(ToMembership::In(slowmo_protocol::membership::In::Frame { header, message }))
        }
        Message::GossipMixed { .. }
        | Message::GossipRefused { .. }
        | Message::GossipSkipped { .. }
        | Message::GossipAsk { .. }
        | Message::GossipReclaimed { .. } => Mail::Gossip(ToGossip::In(slowmo_protocol::gossip_peer::In::Frame { header, message })),
        _ => Mail::Rounds(ToRounds::In(slowmo_protocol::coordinator::In::Frame { header, message })),
    }
}

/// The suspects that the gossip peer was told last.
pub type Suspects = BTreeSet<NodeId>;
