//! Values that travel between the actors of a node: contributions, shard states, encoded chunks.

mod encoding;
mod gathered;
mod payload;
mod received;
mod whole;

pub use encoding::{Coding, Encoder, ErrorFeedback, Sum, Update, is_encoded};
pub use gathered::Gathered;
pub use payload::Payload;
pub use received::{ReadError, check, unsound};
pub use whole::WholeState;

use crate::buffers::{ChunkedBuffer, Frozen};
use crate::ports::transport::BulkReceiver;
use slowmo_protocol::node::{self, Data};
use slowmo_protocol::trace::Place;
use std::ops::Range;
use std::sync::Arc;

/// Buffers of float32, and streams that are read while they arrive.
#[derive(Debug)]
pub enum Buffers {}

impl Data for Buffers {
    type Contribution = FrozenContribution;
    type Frozen = Frozen;
    type Part = ChunkedBuffer;
    type Values = ChunkedBuffer;
    type State = ShardState;
    type Stream = Box<dyn BulkReceiver>;
    type Rest = Left;

    fn assemble(parts: Vec<ChunkedBuffer>, elements: usize) -> Option<ChunkedBuffer> {
        let mut values = ChunkedBuffer::default();
        parts.into_iter().for_each(|part| values.extend(part));
        values.covers(elements).then_some(values)
    }

    fn renew_anchor(state: &mut ShardState, values: &ChunkedBuffer, range: Range<usize>) {
        state.anchor = ChunkedBuffer::default();
        values
            .pieces_within(range)
            .for_each(|(start, chunk)| state.anchor.insert(start, chunk.clone()));
    }
}

/// A bulk stream with its decoded header.
pub type Arrived = node::Arrived<Box<dyn BulkReceiver>>;

/// Anchor and slow momentum of one shard, in chunks; immutable, so that a round in progress never
/// changes the decided state.
#[derive(Clone, Debug, Default)]
pub struct ShardState {
    /// The parameters at the start of the outer round.
    pub anchor: ChunkedBuffer,
    /// The slow momentum; empty means zero.
    pub momentum: ChunkedBuffer,
}

/// This node's contribution to a round; kept until the round is decided, for any number of
/// attempts.
#[derive(Debug)]
pub struct FrozenContribution {
    /// Its push-sum weight.
    pub weight: f64,
    /// How many of the values are parameters; a mean of gradients has its own count.
    pub parameters: usize,
    /// The values.
    pub frozen: Frozen,
    /// The base optimizer's buffers, for joining nodes and for a checkpoint.
    pub optimizer_transfer: Option<Frozen>,
    /// The inputs of the contribution, if trace events are recorded.
    pub basis: Basis,
    /// Encoder of the values, once an encoded round is in progress.
    pub encoder: Option<Arc<Encoder>>,
}

/// By-products of reducing this node's own shards, besides values and momentum.
#[derive(Debug, Default)]
pub struct Left {
    /// `Σw`, the sum of the contributors' push-sum weights.
    pub weight: Option<f64>,
    /// If the round is encoded: this node's residual for its own shards if the round is decided.
    pub owed: ChunkedBuffer,
}

/// The inputs from which a contribution was made; empty if nothing is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The last decided outcome whose parameters the training thread took over.
    pub after: Option<Place>,
    /// Positions of the sample stream that it requested since then, `from` and `to` (exclusive).
    pub samples: Vec<(u64, u64)>,
}

impl Basis {
    /// Adds the basis of another worker of the node; `after` is worker 0's, whose values stand for
    /// the node.
    pub fn merge(&mut self, worker: usize, other: Self) {
        if worker == 0 {
            self.after = other.after;
        }
        self.samples.extend(other.samples);
        self.samples.sort_unstable();
    }
}
