//! The value types of a real node, for the generic parts of `slowmo_protocol::node`, and messages
//! as the actors' mailboxes hold them.

use crate::buffers::{ChunkedBuffer, Frozen};
use crate::context::Credit;
use crate::coordinator::{Contributed, Left, ShardState};
use crate::ports::transport::BulkReceiver;
use slowmo_protocol::node::{self, Data};
use std::ops::Range;

/// Buffers of float32, and streams that are read while they arrive.
#[derive(Debug)]
pub enum Buffers {}

impl Data for Buffers {
    type Contribution = Contributed;
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

/// A message to a part of the node. A message that is a network event carries its credit.
#[derive(Debug)]
pub struct Told<M> {
    /// The message.
    pub message: M,
    /// Credit of the network event, released when the message has been handled; `None` for other
    /// messages.
    pub credit: Option<Credit>,
}
