//! The types and operations that a driver provides for the values that it moves.

use crate::ident::NodeId;
use crate::wire::{Bulk, Header};
use std::fmt::Debug;
use std::ops::Range;

/// The types of the values that a driver moves.
pub trait Data: Debug + 'static {
    /// A node's contribution to a round; kept until the round is decided, for any number of
    /// attempts.
    type Contribution: Debug;
    /// A training thread's values, passed to an exchange.
    type Frozen: Debug;
    /// Some of the values that a round makes.
    type Part: Debug;
    /// All values that a round makes.
    type Values: Clone + Debug;
    /// Anchor and slow momentum of one shard; by default no anchor and momentum zero.
    type State: Clone + Debug + Default;
    /// A stream whose header has been read.
    type Stream: Debug;
    /// Data that a reduction leaves with its driver, besides values and states.
    type Rest: Debug + Default;

    /// Assembles all values from their parts; `None` if they do not add up to `elements`.
    fn assemble(parts: Vec<Self::Part>, elements: usize) -> Option<Self::Values>;

    /// Makes the values of `range` the anchor of a shard.
    fn renew_anchor(state: &mut Self::State, values: &Self::Values, range: Range<usize>);
}

/// A stream that has begun to arrive.
#[derive(Clone, Debug)]
pub struct Arrived<S> {
    /// Sender and its place in the history.
    pub header: Header,
    /// Description of the values.
    pub content: Bulk,
    /// The values.
    pub stream: S,
}

/// Kinds of streams in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKind {
    /// A frozen contribution.
    Contribution,
    /// A frozen contribution, for the relay of its group.
    Relayed,
    /// The sum of a group's contributions.
    Partial,
    /// Published parameters.
    Parameters,
    /// Published parameters of this owner, passed on by a relay.
    Forwarded(NodeId),
    /// Anchor and momentum on their way to another holder.
    State,
    /// A member's buffers of the base optimizer.
    Buffers,
}

impl StreamKind {
    /// The kind of a stream with this content; `None` if the stream belongs to no round.
    #[must_use]
    pub fn of(content: &Bulk) -> Option<Self> {
        match content {
            Bulk::Contribution(_) => Some(Self::Contribution),
            Bulk::Relayed(_) => Some(Self::Relayed),
            Bulk::Partial(_) => Some(Self::Partial),
            Bulk::Parameters | Bulk::Update(_) => Some(Self::Parameters),
            Bulk::Forwarded { owner, .. } => Some(Self::Forwarded(*owner)),
            Bulk::State => Some(Self::State),
            Bulk::Buffers => Some(Self::Buffers),
            Bulk::Gossip { .. } => None,
        }
    }
}
