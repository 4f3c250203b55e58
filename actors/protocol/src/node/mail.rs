//! Messages between the parts of a node, and the routing of frames and streams to parts. Each part
//! has a mailbox, whose messages it takes in the order in which they were sent.

use super::attempt::Reduced;
use super::data::{Arrived, Data};
use crate::aggregator::Request;
use crate::changeable::SettingValues;
use crate::coordinator::{self, Attempt, Outcome, RoundError, RoundSpec};
use crate::gossip_peer::{self, Key, Mix, Sent};
use crate::ident::{Lineage, NodeId, Round, ShardId, Step};
use crate::liveness;
use crate::membership::{self, BootstrapError};
use crate::model::ModelSize;
use crate::published::Signed;
use crate::sampler::Progress;
use crate::sound::Unsound;
use crate::topology::Rate;
use crate::view::{Member, View};
use crate::wire::{Bulk, Header, Message};
use std::sync::Arc;

/// A message, by the part that receives it.
#[derive(Debug)]
pub enum Mail<D: Data> {
    /// A message to the membership.
    Membership(ToMembership),
    /// A message to the coordinator.
    Rounds(ToRounds<D>),
    /// A message to the gossip peer.
    Gossip(ToGossip<D>),
    /// A message to the aggregator.
    Aggregator(ToAggregator<D>),
}

/// Messages to the membership.
#[derive(Debug)]
pub enum ToMembership {
    /// An event of its machine.
    In(membership::In),
    /// An event of liveness.
    Liveness(liveness::In),
}

/// Messages to the coordinator.
#[derive(Debug)]
pub enum ToRounds<D: Data> {
    /// An event of its machine.
    In(coordinator::In),
    /// The bootstrap failed.
    BootstrapFailed,
    /// The node froze its contribution.
    Contribute(Box<ContributionMail<D>>),
    /// A stream of a round arrived.
    Stream(Arrived<D::Stream>),
    /// The data movements of an attempt report a result.
    Moved(Attempt, Moved<D>),
}

/// A node's contribution to a round.
#[derive(Debug)]
pub struct ContributionMail<D: Data> {
    /// The round that it works towards.
    pub round: Round,
    /// The round's specification, as the node expects it.
    pub spec: RoundSpec,
    /// Samples that were left when the round began.
    pub samples: Option<Progress>,
    /// Rates at which this node's messages reached others, if the gossip graph depends on them.
    pub rates: Vec<Rate>,
    /// Number of values in the base optimizer's buffers of which a joiner may get a copy.
    pub buffers: u64,
    /// Number of the values that are parameters.
    pub parameters: usize,
    /// The values.
    pub contribution: D::Contribution,
}

/// Results of an attempt's data movements.
#[derive(Debug)]
pub enum Moved<D: Data> {
    /// The node's own shards are averaged and handed to publication.
    Reduced(Reduced<D>),
    /// All parameters of an owner are here, with its signature, which is sound.
    Parameters(NodeId, D::Part, Signed),
    /// All state that this sender moves to this node is here.
    State(NodeId, Vec<(ShardId, D::State)>),
    /// A member's base optimizer buffers are here.
    Buffers(NodeId, D::Values),
    /// A stream to or from a node broke.
    Broken(NodeId),
    /// A node sent values that no correct node sends.
    Unsound(NodeId, Unsound),
    /// The average of this node's own shards, or its slow step, is not finite at this element,
    /// though all contributions are sound.
    Overflowed(usize),
}

/// Messages to the gossip peer.
#[derive(Debug)]
pub enum ToGossip<D: Data> {
    /// An event of its machine.
    In(gossip_peer::In),
    /// Settings have these values from now on, where they differ from what the node was configured
    /// with. The decided round follows.
    Settings(SettingValues),
    /// The next round has another view, or another order of its members.
    View(View, Lineage, Round, Vec<NodeId>),
    /// A round is decided in the same view; this is the round that follows.
    Round(Round),
    /// The node gossips after an inner step. Synchronous gossip passes the model as the training
    /// thread left it.
    Gossip(Step, Round, Option<D::Frozen>),
    /// The node finished the inner step of an exact average, with this model.
    Settle(Step, Round, D::Frozen),
    /// The arithmetic of a mix is done.
    Mixed(Mix, Made<D>),
    /// Overlapped: the training thread mixed.
    Moved {
        /// The inner step.
        step: Step,
        /// The model as the inner step left it.
        before: D::Values,
        /// Nothing must be sent: not all numerators are finite, or (then there is no model) the
        /// training thread could not mix.
        withheld: bool,
    },
    /// The values from which the training threads go on after a decided round. Sent before the
    /// threads get them.
    Decided(Round, D::Values),
    /// The numerators after the node's own slow step, of the same push-sum weight.
    Stepped(D::Values),
    /// Number of parameters of the model.
    Model(usize),
    /// A gossip stream arrived.
    Stream(Arrived<D::Stream>),
    /// A message was read; `None` if it could not be.
    Read(Key, Option<D::Values>),
    /// A message was sent completely (`true`), or not.
    Sent(Sent, bool),
    /// The node leaves, working towards this round.
    Leave(Round),
}

/// Results of a mix.
#[derive(Debug)]
pub enum Made<D: Data> {
    /// Synchronous: the new numerators.
    Numerators(D::Values),
    /// Overlapped: the values to add to this fraction of the training threads' model.
    Correction(D::Values, f64),
    /// Before an exact average: the node's contribution.
    Contribution(D::Frozen),
}

/// Messages to the aggregator.
#[derive(Debug)]
pub enum ToAggregator<D: Data> {
    /// A worker asks for an exchange.
    Arrive(Box<Arrive<D>>),
    /// A round is decided.
    Decided(Box<DecidedRound<D>>),
    /// A gossip is mixed.
    GossipDone(Box<GossipDone<D>>),
    /// All in-flight messages are in the contribution of this inner step and push-sum weight.
    Settled(Step, f64, D::Frozen),
    /// The numerators after the node's own slow step.
    Stepped(D::Values),
    /// The exchange failed.
    Failed(Failure),
    /// The exchange failed for all workers, and each of them was told.
    GivenUp,
    /// The others went on without this node, which wanted to leave.
    Drained,
    /// A worker leaves.
    Leave(usize),
    /// The node may stop.
    Left,
    /// A deadline may have passed.
    Tick,
}

/// A worker's request.
#[derive(Debug)]
pub struct Arrive<D: Data> {
    /// Its index on the node.
    pub worker: usize,
    /// The request.
    pub request: Request,
    /// Size of the model that the node trains.
    pub model: ModelSize,
    /// The values to exchange, from worker 0; overlapped gossip takes none.
    pub frozen: Option<D::Frozen>,
    /// Samples that were left when the round began, from worker 0.
    pub samples: Option<Progress>,
}

/// A decided round, as the coordinator hands it on.
#[derive(Debug)]
pub struct DecidedRound<D: Data> {
    /// The decided outcome.
    pub outcome: Arc<Outcome>,
    /// The members of the view that the round began with, ascending.
    pub members: Arc<[Member]>,
    /// The values that the round made.
    pub values: D::Values,
    /// A member's base optimizer buffers, if the outcome admits this node and joiners get a copy.
    pub donated: Option<D::Values>,
    /// Whether the outcome leaves this node out.
    pub drained: bool,
}

/// A mixed gossip.
#[derive(Debug)]
pub struct GossipDone<D: Data> {
    /// The inner step.
    pub step: Step,
    /// The push-sum weight of the values.
    pub weight: f64,
    /// Number of nodes whose values were mixed, this one included.
    pub contributors: usize,
    /// The inner step that follows.
    pub next_step: Step,
    /// The new numerators, or the values to add to a fraction of the model to get them.
    pub values: D::Values,
    /// That fraction, in the latter case.
    pub stays: Option<f64>,
}

/// Reason why an exchange failed; nothing was changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The node got into no view.
    Bootstrapping(BootstrapError),
    /// The round ended without an outcome.
    Round(RoundError),
    /// The data of a decided round differs from what the node declared: the node must not go on.
    DataMissing(Round),
}

impl<D: Data> From<ToMembership> for Mail<D> {
    fn from(message: ToMembership) -> Self {
        Self::Membership(message)
    }
}

impl<D: Data> From<membership::In> for Mail<D> {
    fn from(event: membership::In) -> Self {
        Self::Membership(ToMembership::In(event))
    }
}

impl<D: Data> From<liveness::In> for Mail<D> {
    fn from(event: liveness::In) -> Self {
        Self::Membership(ToMembership::Liveness(event))
    }
}

impl<D: Data> From<ToRounds<D>> for Mail<D> {
    fn from(message: ToRounds<D>) -> Self {
        Self::Rounds(message)
    }
}

impl<D: Data> From<coordinator::In> for Mail<D> {
    fn from(event: coordinator::In) -> Self {
        Self::Rounds(ToRounds::In(event))
    }
}

impl<D: Data> From<ToGossip<D>> for Mail<D> {
    fn from(message: ToGossip<D>) -> Self {
        Self::Gossip(message)
    }
}

impl<D: Data> From<gossip_peer::In> for Mail<D> {
    fn from(event: gossip_peer::In) -> Self {
        Self::Gossip(ToGossip::In(event))
    }
}

impl<D: Data> From<ToAggregator<D>> for Mail<D> {
    fn from(message: ToAggregator<D>) -> Self {
        Self::Aggregator(message)
    }
}

/// Routes a control frame to the part that handles its kind.
#[must_use]
pub fn route<D: Data>(header: Header, message: Box<Message>) -> Mail<D> {
    match *message {
        Message::Hello(_)
        | Message::Bootstrap { .. }
        | Message::Leave { .. }
        | Message::Join
        | Message::Refused(_) => membership::In::Frame { header, message }.into(),
        Message::GossipMixed { .. }
        | Message::GossipRefused { .. }
        | Message::GossipSkipped { .. }
        | Message::GossipAsk { .. }
        | Message::GossipReclaimed { .. } => gossip_peer::In::Frame { header, message }.into(),
        Message::Contribute(_)
        | Message::Prepare
        | Message::Promise { .. }
        | Message::Open
        | Message::Opened
        | Message::Closed
        | Message::Attempt(_)
        | Message::Admit { .. }
        | Message::Ready(_)
        | Message::Accept { .. }
        | Message::Accepted(_)
        | Message::Overtaken
        | Message::Decide { .. }
        | Message::Learn
        | Message::Learned
        | Message::Fork { .. }
        | Message::Broken(_)
        | Message::Accuse(_)
        | Message::Abandon(_)
        | Message::Compare
        | Message::Published(_)
        | Message::Equivocated { .. }
        | Message::GoesOn
        | Message::AskCheckpoint
        | Message::TwoEntries { .. }
        | Message::Undecided
        | Message::AskSettings { .. } => coordinator::In::Frame { header, message }.into(),
    }
}

impl<D: Data> From<Arrived<D::Stream>> for Mail<D> {
    fn from(stream: Arrived<D::Stream>) -> Self {
        match stream.content {
            Bulk::Gossip { .. } => Self::Gossip(ToGossip::Stream(stream)),
            _ => Self::Rounds(ToRounds::Stream(stream)),
        }
    }
}
