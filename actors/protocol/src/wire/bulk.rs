//! Headers of bulk streams. After the header come little-endian values, whose count follows from
//! it.

use super::control::{Contribution, Header};
use super::{BULK_HEADER_BYTES_MAX, DecodeError, EncodeError};
use crate::algorithm::WireType;
use crate::ident::Step;
use serde::{Deserialize, Serialize};

/// The header of a bulk stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BulkHeader {
    /// Protocol version 1.
    V1 {
        /// Who, where in history.
        header: Header,
        /// What the values are.
        content: Bulk,
    },
}

/// What a bulk stream carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bulk {
    /// Reduce: the sender's frozen numerator, the receiver's own shards in ascending order. If
    /// encoded, the difference from what the round before decided.
    Contribution(Contribution),
    /// Publish: new parameters, the sender's own shards in ascending order.
    Parameters,
    /// Publish: state of shards that the receiver holds next, in ascending order. After a slow step
    /// their new momentum, from their owner; in other rounds anchor, then momentum of each.
    State,
    /// Gossip: the sender's whole numerator, unscaled; the receiver mixes in `scale` of it.
    Gossip {
        /// The sender's inner step.
        step: Step,
        /// The part of the push-sum weight that is sent.
        weight: f64,
        /// `1/(d+1)`: what the receiver multiplies the values by.
        scale: f32,
        /// How the values travel.
        wire: WireType,
    },
    /// Publish: the base optimizer's buffers of the lowest contributor, to a node that joins.
    Buffers,
    /// Publish: what new parameters differ by from those that the round before decided, encoded as
    /// named; what follows the parameters is float32. The sender's own shards in ascending order.
    Update(WireType),
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
