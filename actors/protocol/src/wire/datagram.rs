//! Datagrams: what nodes tell each other about who is alive, and about themselves while somebody
//! watches. Any of them may be lost, doubled or late.

#[cfg(test)]
pub(super) mod tests;

use super::{Brief, DATAGRAM_BYTES_MAX, DecodeError, EncodeError, bounded};
use crate::ident::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// Most news in one datagram: each takes 26 bytes.
pub const LIFE_UPDATES_MAX: usize = DATAGRAM_BYTES_MAX / 26;

/// A datagram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Datagram {
    /// Protocol version 1.
    V1(Content),
}

/// What a datagram carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// Asks for any sign of life.
    Ask,
    /// The sign of life.
    Answer,
    /// A message of the SWIM protocol.
    Swim(SwimPacket),
    /// Asks for a brief: somebody watches the sender's page.
    AskBrief {
        /// With what happened after this, in microseconds since 1970 by the receiver's clock.
        since_us: u64,
    },
    /// The brief.
    Brief(Box<Brief>),
    /// Asks this start of the receiver to hand over and leave: an operator gave the order to the
    /// sender.
    Drain {
        /// Which start: whoever takes its place is not meant.
        incarnation: Incarnation,
    },
}

/// One message of the SWIM protocol, with news of other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwimPacket {
    /// The sender.
    pub source: Life,
    /// How many suspicions the sender has refuted in this life.
    pub refutations: u16,
    /// The receiver, as the sender knows it.
    pub destination: Life,
    /// What is asked or answered.
    pub message: SwimMessage,
    /// News of nodes.
    #[serde(deserialize_with = "bounded::list::<_, _, LIFE_UPDATES_MAX>")]
    pub updates: Vec<LifeUpdate>,
}

/// A life of a process: it begins another one whenever it finds that it was declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Life {
    /// The node.
    pub node: NodeId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// How often this process was declared dead and came back.
    pub renewals: u32,
}

/// What one node has to say about a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeUpdate {
    /// Whose.
    pub life: Life,
    /// How many suspicions it had refuted by then; the larger number is the news.
    pub refutations: u16,
    /// How it is.
    pub state: LifeState,
}

/// How a node is believed to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LifeState {
    /// It answers.
    Alive,
    /// It did not answer; dead soon unless it refutes.
    Suspect,
    /// Dead; only another life can follow.
    Down,
}

/// The messages of SWIM. `probe` tells one probe from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwimMessage {
    /// Asks for an acknowledgement.
    Ping {
        /// The probe.
        probe: u8,
    },
    /// Answers a ping.
    Acknowledge {
        /// The probe.
        probe: u8,
    },
    /// Asks the receiver to ping a target that did not answer.
    PingRequest {
        /// Whom to ping.
        target: Life,
        /// The probe.
        probe: u8,
    },
    /// A ping on behalf of another node.
    IndirectPing {
        /// Who wants to know.
        origin: Life,
        /// The probe.
        probe: u8,
    },
    /// Answers an indirect ping.
    IndirectAcknowledge {
        /// Who wants to know.
        target: Life,
        /// The probe.
        probe: u8,
    },
    /// Tells who wanted to know.
    ForwardedAcknowledge {
        /// Who answered.
        origin: Life,
        /// The probe.
        probe: u8,
    },
    /// Introduces the sender and asks for the living.
    Announce,
    /// The living, in answer to an announcement.
    Feed,
    /// News only.
    Gossip,
    /// Reserved for other news; not sent.
    Broadcast,
    /// The receiver is believed to be dead.
    BelievedDead,
}

impl Datagram {
    /// Encodes a datagram.
    ///
    /// # Errors
    /// The datagram exceeds [`DATAGRAM_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        super::encode::<_, DATAGRAM_BYTES_MAX>(self)
    }

    /// Decodes a datagram from at most [`DATAGRAM_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// Too long, malformed, or followed by other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        super::decode::<_, DATAGRAM_BYTES_MAX>(bytes)
    }
}
