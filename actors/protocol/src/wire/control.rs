//! Control frames: ordered, small, one header each.

use super::{CONTROL_FRAME_BYTES_MAX, DecodeError, EncodeError, PREFACE_BYTES_MAX};
use crate::coordinator::{Outcome, Terms};
use crate::ident::{Ballot, ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Step};
use crate::membership::settings::prefix;
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The first bytes of every connection: who speaks. Checked against the certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preface {
    /// Protocol version 1.
    V1 {
        /// The sender's cluster.
        cluster: ClusterId,
        /// The sender.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Where its own endpoint listens.
        listen: SocketAddr,
        /// Bulk streams (true) or control frames and datagrams (false).
        bulk: bool,
    },
}

/// What every control frame and stream header carries, so that nothing stale is ever acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The sender's cluster.
    pub cluster: ClusterId,
    /// The sender's model history.
    pub lineage: Lineage,
    /// The sender's view.
    pub epoch: Epoch,
    /// The round this belongs to.
    pub round: Round,
    /// The ballot this belongs to.
    pub ballot: Ballot,
    /// The sender.
    pub sender: NodeId,
    /// Which start of the sender.
    pub incarnation: Incarnation,
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Frame {
    /// Protocol version 1.
    V1 {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Message,
    },
}

/// What one node tells another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Introduces a node before there is a view.
    Hello(Hello),
    /// The founding view, from the lowest id.
    Found {
        /// The founding members.
        view: View,
        /// The new model history.
        lineage: Lineage,
    },
    /// Phase 1a: asks for a promise for the header's ballot.
    Prepare,
    /// Phase 1b: promises, and tells what was accepted before.
    Promise {
        /// The highest ballot under which the sender accepted an outcome, with that outcome.
        accepted: Option<(Ballot, Outcome)>,
    },
    /// Phase 2a: the outcome proposed under the header's ballot.
    Propose(Outcome),
    /// Phase 2b: the sender holds all that the outcome needs of it and accepts it.
    Prepared,
    /// The outcome is decided.
    Decide(Outcome),
    /// The header of a frame was older than the sender's state.
    Stale,
    /// The round cannot go on (fixed view): its reason, for every member's error.
    Abandon(RefusalReason),
    /// A gossip message of this step was mixed; its mass left escrow.
    GossipMixed {
        /// The sender's inner step of the message.
        step: Step,
    },
    /// A gossip message of this step was refused; its mass stays with its sender.
    GossipRefused {
        /// The sender's inner step of the message.
        step: Step,
    },
    /// The sender leaves after the header's round.
    Leave,
}

/// What a node says of itself before there is a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Where its endpoint listens.
    pub address: SocketAddr,
    /// Its workers.
    pub devices: u16,
    /// The settings all nodes must share, as `key = value` lines in a fixed order; at most 4,096 bytes are looked at.
    pub settings: String,
    /// Elements of its parameter vector; `None` until its workers called `synchronize`.
    pub elements: Option<u64>,
    /// Elements of the buffers that travel with the parameters; `None` like `elements`.
    pub buffer_elements: Option<u64>,
}

/// One node's announcement of its contribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// What the contributor expects the round to be.
    pub terms: Terms,
    /// Its push-sum weight `w`.
    pub weight: f64,
}

/// Why a round was abandoned or a message refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// Two contributors disagree on what the round is.
    TermsDiffer {
        /// One node.
        one: NodeId,
        /// What it expects, for a person.
        one_terms: String,
        /// The other node.
        other: NodeId,
        /// What the other expects, for a person.
        other_terms: String,
    },
    /// A member was lost and the view is fixed.
    MemberLost {
        /// Who.
        node: NodeId,
    },
    /// A stream ended early or carried what it should not.
    StreamBroken {
        /// From whom.
        node: NodeId,
    },
}

/// Bytes of a peer's explanation that are kept: it goes into errors and logs.
pub const TERMS_BYTES_MAX: usize = 200;

impl RefusalReason {
    /// The reason with each text cut to [`TERMS_BYTES_MAX`], between characters.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        if let Self::TermsDiffer { one_terms, other_terms, .. } = &mut self {
            for terms in [one_terms, other_terms] {
                terms.truncate(prefix(terms, TERMS_BYTES_MAX).len());
                // What was cut off is not kept in memory either.
                terms.shrink_to_fit();
            }
        }
        self
    }
}

impl Frame {
    /// Encodes a frame.
    ///
    /// # Errors
    /// The frame exceeds [`CONTROL_FRAME_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        super::encode::<_, CONTROL_FRAME_BYTES_MAX>(self)
    }

    /// Decodes a frame from at most [`CONTROL_FRAME_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// Too long, malformed, or followed by other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        super::decode::<_, CONTROL_FRAME_BYTES_MAX>(bytes)
    }
}

impl Preface {
    /// Encodes a preface.
    ///
    /// # Errors
    /// The preface exceeds [`PREFACE_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        super::encode::<_, PREFACE_BYTES_MAX>(self)
    }

    /// Decodes a preface from at most [`PREFACE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// Too long, malformed, or followed by other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        super::decode::<_, PREFACE_BYTES_MAX>(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_explanation_is_cut_between_characters() {
        let reason = |one_terms: String, other_terms: String| RefusalReason::TermsDiffer {
            one: NodeId(1),
            one_terms,
            other: NodeId(2),
            other_terms,
        };
        let long = format!("a{}", "é".repeat(1 << 18));
        let cut = format!("a{}", "é".repeat(99));
        assert_eq!(reason(long, "short".to_owned()).bounded(), reason(cut, "short".to_owned()));
    }
}
