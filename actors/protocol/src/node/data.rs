//! What a driver says of the values that it moves.

use crate::wire::{Bulk, Header};
use std::fmt::Debug;
use std::ops::Range;

/// The kind of values that a driver moves.
pub trait Data: Debug + 'static {
    /// What a node brings to a round; kept until the round is decided, for any number of attempts.
    type Contribution: Debug;
    /// A training thread's values, lent to an exchange.
    type Frozen: Debug;
    /// Some of the values that a round makes.
    type Part: Debug;
    /// All values that a round makes.
    type Values: Clone + Debug;
    /// Anchor and slow momentum of one shard; by default no anchor and momentum zero.
    type State: Clone + Debug + Default;
    /// A stream whose header has been read.
    type Stream: Debug;
    /// What a reduction leaves with its driver beside values and states.
    type Rest: Debug + Default;

    /// All values from their parts; `None` if some of so many are missing.
    fn assemble(parts: Vec<Self::Part>, elements: usize) -> Option<Self::Values>;

    /// The values of `range` become the anchor of a shard.
    fn renew_anchor(state: &mut Self::State, values: &Self::Values, range: Range<usize>);
}

/// A stream that has begun to arrive.
#[derive(Clone, Debug)]
pub struct Arrived<S> {
    /// Who, where in history.
    pub header: Header,
    /// What the values are.
    pub content: Bulk,
    /// The values.
    pub stream: S,
}

/// The contents of a round's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKind {
    /// A frozen contribution.
    Contribution,
    /// Published parameters.
    Parameters,
    /// Anchor and momentum on their way to another holder.
    State,
    /// A member's buffers of the base optimizer.
    Buffers,
}

impl StreamKind {
    /// The kind of a stream's content; `None` if it is no round's.
    #[must_use]
    pub fn of(content: &Bulk) -> Option<Self> {
        match content {
            Bulk::Contribution(_) => Some(Self::Contribution),
            Bulk::Parameters | Bulk::Update(_) => Some(Self::Parameters),
            Bulk::State => Some(Self::State),
            Bulk::Buffers => Some(Self::Buffers),
            Bulk::Gossip { .. } => None,
        }
    }
}
