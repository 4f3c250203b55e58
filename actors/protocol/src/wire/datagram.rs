//! Datagrams: messages about the liveness of nodes, and status reports of nodes while somebody
//! watches a status page. Any datagram may be lost, duplicated or late.

#[cfg(test)]
pub(super) mod tests;

use super::{DATAGRAM_BYTES_MAX, DecodeError, EncodeError, StatusDigest, bounded};
use crate::ident::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// Maximum number of updates in one datagram: each takes 26 bytes.
pub const LIFE_UPDATES_MAX: usize = DATAGRAM_BYTES_MAX / 26;

/// A datagram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Datagram {
    /// The only envelope so far. Builds whose contents differ have another `PROTOCOL_VERSION`.
    V1(Content),
}

/// Content of a datagram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// Asks for a sign of life.
    Ask,
    /// The sign of life, in answer to `Ask`.
    Answer,
    /// A message of the SWIM protocol.
    Swim(SwimPacket),
    /// Asks for a digest: somebody watches the sender's status page.
    AskStatusDigest {
        /// The digest should include events after this time, in microseconds since 1970 by the
        /// receiver's clock.
        since_us: u64,
    },
    /// The digest, in answer to `AskStatusDigest`.
    StatusDigest(Box<StatusDigest>),
    /// Asks this incarnation of the receiver to hand over and leave: an operator gave the order to
    /// the sender.
    Drain {
        /// The incarnation meant; a successor under the same id is not.
        incarnation: Incarnation,
    },
}

/// One message of the SWIM protocol, with updates on other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwimPacket {
    /// The sender.
    pub source: Life,
    /// Number of suspicions that the sender has refuted in this life.
    pub refutations: u16,
    /// The receiver, as the sender knows it.
    pub destination: Life,
    /// The SWIM message.
    pub message: SwimMessage,
    /// Updates on nodes.
    #[serde(deserialize_with = "bounded::list::<_, _, LIFE_UPDATES_MAX>")]
    pub updates: Vec<LifeUpdate>,
}

/// A life of a process: a process begins a new one whenever it finds that it was declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Life {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Number of times that this process was declared dead and came back.
    pub renewals: u32,
}

/// Update of one node on a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeUpdate {
    /// The life that it is about.
    pub life: Life,
    /// Number of suspicions refuted by then; the update with the larger number is newer.
    pub refutations: u16,
    /// Believed state of that life.
    pub state: LifeState,
}

/// Believed state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LifeState {
    /// The node answers.
    Alive,
    /// The node did not answer; it is declared dead soon unless it refutes.
    Suspect,
    /// The node is dead; only a new life can follow.
    Down,
}

/// The messages of SWIM. `probe` distinguishes consecutive probes.
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
        /// The node to ping.
        target: Life,
        /// The probe.
        probe: u8,
    },
    /// A ping on behalf of another node.
    IndirectPing {
        /// The node that asked for the ping.
        origin: Life,
        /// The probe.
        probe: u8,
    },
    /// Answers an indirect ping.
    IndirectAcknowledge {
        /// The node that asked for the ping.
        target: Life,
        /// The probe.
        probe: u8,
    },
    /// Forwards the acknowledgement to the node that asked for the ping.
    ForwardedAcknowledge {
        /// The node that answered.
        origin: Life,
        /// The probe.
        probe: u8,
    },
    /// Introduces the sender and asks for the live nodes.
    Announce,
    /// The live nodes, in answer to an announcement.
    Feed,
    /// Updates only.
    Gossip,
    /// Reserved for other updates; not sent.
    Broadcast,
    /// Tells the receiver that it is believed to be dead.
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
