//! Headers of bulk streams. The header is followed by little-endian values, whose number follows
//! from the header.

use super::control::{ContributionHeader, Header};
use super::{BULK_HEADER_BYTES_MAX, DecodeError, EncodeError};
use crate::algorithm::WireType;
use crate::ident::{NodeId, Step};
use serde::{Deserialize, Serialize};

/// The header of a bulk stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BulkHeader {
    /// The only envelope so far. Builds whose contents differ have another `PROTOCOL_VERSION`.
    V1 {
        /// Sender and position in history.
        header: Header,
        /// Kind of the values.
        content: Bulk,
    },
}

/// Content of a bulk stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bulk {
    /// Reduce: the sender's frozen numerator, for the shards that the receiver owns, in ascending
    /// order. If encoded, the difference from the previous round's decided parameters.
    Contribution(ContributionHeader),
    /// Publish: new parameters of the shards that the sender owns, in ascending order; then its
    /// signature of their digest ([`crate::published`]).
    Parameters,
    /// Publish: state of shards that the receiver will hold, in ascending order. After a slow step
    /// their new momentum, from their owner; in other rounds anchor, then momentum of each.
    State,
    /// Gossip: the sender's whole numerator, unscaled; the receiver mixes in `scale` of it.
    Gossip {
        /// The sender's inner step.
        step: Step,
        /// The part of the push-sum weight that is sent.
        weight: f64,
        /// `1/(d+1)`: the receiver's factor of the values.
        scale: f32,
        /// Encoding of the values.
        wire: WireType,
    },
    /// Publish: the base optimizer's buffers of the contributor with the lowest id, to a joiner.
    Buffers,
    /// Publish: the difference of the new parameters from those that the previous round decided, in
    /// the given encoding; values after the parameters are float32. For the shards that the sender
    /// owns, in ascending order; then its signature of the digest of the new values.
    Update(WireType),
    /// Reduce: like a contribution, to the relay of the sender's group, for the shards of the owners
    /// of other groups for which it sums: in ascending order of the owners, then of their shards.
    Relayed(ContributionHeader),
    /// Reduce: the sum of a group's contributions to the receiver's shards, from a relay, and the
    /// sum of their weights. Where the contributions were encoded, it is the sum of their
    /// differences, in the same encoding.
    Partial(ContributionHeader),
    /// Publish: the new values of an owner of another group and its signature, as a relay got them.
    Forwarded {
        /// The owner.
        owner: NodeId,
        /// Encoding, as in [`Bulk::Update`]; `None` as in [`Bulk::Parameters`].
        wire: Option<WireType>,
    },
}

impl BulkHeader {
    /// Encodes a stream header.
    ///
    /// # Errors
    /// The header exceeds [`BULK_HEADER_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        super::encode::<_, BULK_HEADER_BYTES_MAX>(self)
    }

    /// Decodes a stream header from at most [`BULK_HEADER_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// Too long, malformed, or followed by other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        super::decode::<_, BULK_HEADER_BYTES_MAX>(bytes)
    }
}
