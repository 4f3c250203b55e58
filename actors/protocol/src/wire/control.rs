//! Control frames: small, delivered in order, one header each.
//!
//! The compiler names the places that a new [`Message`] needs: its route (`node/mail.rs`), its
//! handler, its golden bytes (`wire/golden.rs`), and `src/sim/coverage.rs` of `slowmo-chaos`. If
//! released nodes cannot decode it, [`super::PROTOCOL_VERSION`] rises;
//! `another_protocol_version_is_refused_with_both_named_on_both_sides` in
//! `runtime/tests/together/quic_refusals.rs` proves that they are refused.

use super::{CONTROL_FRAME_BYTES_MAX, DecodeError, EncodeError, PREFACE_BYTES_MAX, bounded};
use crate::algorithm::WireType;
use crate::changeable::SettingValues;
use crate::coordinator::{Draft, Entry, Outcome, RoundSpec, Voter};
use crate::forks::{FORKS_MAX, Fork};
use crate::ident::{ClusterId, Epoch, GroupId, Incarnation, Lineage, NodeId, Round, Step, Term};
use crate::machine::Place;
use crate::membership::settings::SETTINGS_BYTES_MAX;
use crate::model::ModelSize;
use crate::printable::printable;
use crate::published::{Digest, PublicKey, Signature, Signed};
use crate::sampler::Progress;
use crate::topology::{RATES_MAX, Rate};
use crate::view::{MEMBERS_MAX, View};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The first bytes of every connection: identity of the sender. Checked against the certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Preface {
    /// The only envelope so far. Builds whose contents differ have another `PROTOCOL_VERSION`.
    V1 {
        /// The sender's cluster.
        cluster: ClusterId,
        /// The sender.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Address on which its own endpoint listens.
        listen: SocketAddr,
        /// Whether the connection carries bulk streams (true) or control frames and datagrams
        /// (false).
        bulk: bool,
    },
}

/// The header of every control frame and stream, so that nothing stale is ever acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    /// The sender's cluster.
    pub cluster: ClusterId,
    /// The sender's model history.
    pub lineage: Lineage,
    /// The sender's view.
    pub epoch: Epoch,
    /// The round that the message belongs to.
    pub round: Round,
    /// The term that the message belongs to.
    pub term: Term,
    /// The attempt of this term.
    pub attempt: u32,
    /// The sender.
    pub sender: NodeId,
    /// The sender's incarnation.
    pub incarnation: Incarnation,
}

/// Largest epoch and round of a header: one decided each microsecond for nine years. Above it a
/// counter is wrong, and soon exhausted.
pub const COUNTER_MAX: u64 = 1 << 48;

impl Header {
    /// Whether a correct node can be at this place in history.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let counters = [self.epoch.0, self.round.0, self.term.counter];
        counters.iter().all(|counter| *counter <= COUNTER_MAX)
    }

    /// The place in history that the frame or stream belongs to.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            lineage: self.lineage,
            epoch: self.epoch,
            round: self.round,
            term: self.term,
            attempt: self.attempt,
        }
    }
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Frame {
    /// The only envelope so far. Builds whose contents differ have another `PROTOCOL_VERSION`.
    V1 {
        /// Sender and position in history.
        header: Header,
        /// The message; boxed, because frames wait in queues and most are small.
        message: Box<Message>,
    },
}

/// A control message between two nodes.
// Frames box their message, so its size does not affect queues.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Introduces a node: sent whenever a peer becomes reachable, and again when its content has
    /// changed.
    Hello(Hello),
    /// The bootstrap view, from the lowest id.
    Bootstrap {
        /// The bootstrap members.
        view: View,
        /// The new model history.
        lineage: Lineage,
    },
    /// The sender can send to and receive from every live member of the view with the header's
    /// epoch, and asks to be admitted.
    Join,
    /// The sender's cluster does not admit the receiver, for this reason; final.
    Refused(JoinRefusal),
    /// The sender leaves: it takes part in no round after one that leaves it out; it contributes
    /// once more, or not at all.
    Leave {
        /// Whether its training threads still contribute to the next round.
        contributes: bool,
    },
    /// To the leader: the sender froze its contribution to the header's round.
    Contribute(ContributionNotice),
    /// A leader asks a voter for a promise for the header's term.
    Prepare,
    /// A voter promises, and reports the entry that it accepted before and whether it has
    /// contributed.
    Promise {
        /// The entry that the sender accepted last, with its term.
        accepted: Option<(Term, Outcome)>,
        /// The highest term that the sender knows to have been open.
        floor: Term,
        /// The sender's contribution to this round, if its training threads have made one.
        contributed: Option<ContributionNotice>,
    },
    /// A leader tells a voter that its term is open: nothing of a lower term was chosen, and
    /// nothing can be.
    Open,
    /// A voter acknowledges that the header's term is open.
    Opened,
    /// A quorum of the voters acknowledged that the header's term is open: the data of attempts of
    /// lower terms may be dropped.
    Closed,
    /// A leader begins an attempt: nodes transfer its data. Contributions may be on their way
    /// already.
    Attempt(Draft),
    /// The same, to a node that is not a member yet, with the preceding entry.
    Admit {
        /// The preceding entry.
        parent: Outcome,
        /// The attempt, as a change of that entry.
        draft: Draft,
    },
    /// The sender holds all data that it must hold for the header's attempt, with this digest of
    /// the entry, which names what the owners published.
    Ready(Digest),
    /// A leader asks a voter to accept an entry.
    Accept {
        /// The entry.
        entry: Entry,
        /// The leader's signature of [`crate::published::ask`].
        signature: Signature,
    },
    /// A voter accepted the entry that it was asked to accept under the header's term, to the
    /// leader and to everybody whom the entry concerns: the entry's digest, with the leader's
    /// signature.
    Accepted(Signed),
    /// A voter refuses because it promised the header's term, which is higher than the requested
    /// one.
    Overtaken,
    /// The round is decided.
    Decide {
        /// The decided entry. One that is not whole is what the receiver accepted under the
        /// header's term, or holds of its attempt.
        entry: Entry,
        /// Whether the sender leaves with this entry and waits until the receiver knows it.
        leaves: bool,
    },
    /// Asks for the entry of the header's round.
    Learn,
    /// Acknowledges that the sender knows the entry of the header's round, so the leaving receiver
    /// may go.
    Learned,
    /// Survivors continue without a quorum: from this round on, these voters vote, in a history of
    /// their own.
    Fork {
        /// The new history.
        lineage: Lineage,
        /// Whether an operator ordered it: then members follow regardless of their configured
        /// behaviour without a quorum.
        ordered: bool,
        /// Its voters.
        #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
        voters: Vec<Voter>,
    },
    /// A stream of the header's attempt to or from this node broke or cannot be opened; asks the
    /// leader for another attempt.
    Broken(NodeId),
    /// The round is abandoned, for this reason, which every member reports in its error.
    Abandon(RefusalReason),
    /// A gossip message of this step was received completely and is held for the next mix: its mass
    /// leaves the sender's escrow.
    GossipMixed {
        /// The sender's inner step of the message.
        step: Step,
    },
    /// A gossip message of this step was refused; its mass stays with its sender.
    GossipRefused {
        /// The sender's inner step of the message.
        step: Step,
        /// The refusing node's inner step.
        reached: Step,
    },
    /// The sender sends no more gossip messages for these of its inner steps.
    GossipSkipped {
        /// The first skipped step.
        first: Step,
        /// The last skipped step.
        last: Step,
    },
    /// Asks whether a gossip message was accepted; if nothing of it has arrived, it is refused from
    /// now on.
    GossipAsk {
        /// The sender's inner step of the message.
        step: Step,
    },
    /// The sender took the receiver for dead and has reclaimed this message's mass.
    GossipReclaimed {
        /// The sender's inner step of the message.
        step: Step,
    },
    /// A leader asks a receiver of the header's attempt what the owners published to it, because
    /// another receiver holds other values.
    Compare,
    /// The digests that the owners of the header's attempt published to the sender, ascending.
    Published(
        #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")] Vec<(NodeId, Signed)>,
    ),
    /// The proof that an owner published different values in the header's attempt.
    Equivocated {
        /// The owner.
        owner: NodeId,
        /// The digest that it published to one node.
        one: Signed,
        /// The digest that it published to another node.
        other: Signed,
    },
    /// The sender's training took the result of the last round, to which it had not contributed:
    /// the round under way may wait for its contribution.
    GoesOn,
    /// The sender asks for a checkpoint of the state after the next round that allows one.
    AskCheckpoint,
    /// The proof that the leader of the header's term asked for votes for two entries.
    TwoEntries {
        /// The digest that it signed for one voter.
        one: Signed,
        /// The digest that it signed for another voter.
        other: Signed,
    },
    /// The sender is in the header's round, and knows of no decision.
    Undecided,
    /// The sender asks for other values of settings from the next entry on.
    AskSettings {
        /// [`crate::changeable::ChangedSettings::number`] as the sender knows it.
        number: u32,
        /// The values.
        values: SettingValues,
    },
    /// A member sent this node values of a round that no correct node sends; asks the leader for
    /// another attempt.
    Accuse(NodeId),
}

/// Member state of a node: its position in a decided model history.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberState {
    /// The model history.
    pub lineage: Lineage,
    /// Its forks since the bootstrap, oldest first.
    #[serde(deserialize_with = "bounded::list::<_, _, FORKS_MAX>")]
    pub forks: Vec<Fork>,
    /// The round being worked towards.
    pub round: Round,
    /// The view of this round.
    pub view: View,
    /// Members of the view that the sender takes for dead, ascending.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
    pub dead: Vec<NodeId>,
}

/// Description of a contribution that a node has frozen for a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContributionNotice {
    /// The round's spec as the node expects it.
    pub spec: RoundSpec,
    /// The samples left when the round began, if its training follows an elastic sampler.
    pub samples: Option<Progress>,
    /// Measured rates of its messages to others, if the gossip graph depends on them.
    #[serde(deserialize_with = "bounded::list::<_, _, RATES_MAX>")]
    pub rates: Vec<Rate>,
}

/// Reason why a running cluster does not admit a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JoinRefusal {
    /// The settings differ: a human-readable list of differences, each with both values.
    SettingsDiffer {
        /// The differences.
        #[serde(
            serialize_with = "bounded::cut::<_, DIFFERENCES_BYTES_MAX>",
            deserialize_with = "bounded::text::<_, DIFFERENCES_BYTES_MAX>"
        )]
        differences: String,
    },
    /// The models differ.
    ModelsDiffer {
        /// The cluster's.
        cluster: Box<ModelSize>,
        /// The joiner's.
        joiner: Box<ModelSize>,
    },
    /// The cluster already has `max_nodes` members.
    Full {
        /// The bound.
        max_nodes: u32,
    },
    /// The joiner brings the state of another model history (such as a checkpoint of another run).
    OtherLineage {
        /// The cluster's history.
        cluster: Lineage,
        /// The joiner's.
        joiner: Lineage,
    },
    /// A live member already has the joiner's id.
    DuplicateId {
        /// The id.
        node: NodeId,
    },
    /// The cluster's rounds carry no parameters that a joiner could get.
    NoParameters,
}

/// Self-description of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// Address on which its endpoint listens.
    pub address: SocketAddr,
    /// Number of its workers.
    pub devices: u16,
    /// Its group.
    pub group: GroupId,
    /// Key that signs what it publishes.
    pub key: PublicKey,
    /// The settings that all nodes must share, as `key = value` lines in a fixed order; at most
    /// [`SETTINGS_BYTES_MAX`] bytes.
    #[serde(
        serialize_with = "bounded::cut::<_, SETTINGS_BYTES_MAX>",
        deserialize_with = "bounded::text::<_, SETTINGS_BYTES_MAX>"
    )]
    pub settings: String,
    /// Size of the model that it trains; `None` until its workers have called `synchronize`.
    pub model: Option<ModelSize>,
    /// Its member state; `None` until it is a member.
    pub standing: Option<MemberState>,
    /// The model history whose state it brings, if any: only a cluster of this history may admit
    /// it.
    pub lineage: Option<Lineage>,
}

impl std::fmt::Display for JoinRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SettingsDiffer { differences } => write!(
                f,
                "its settings differ ({}); give this node the cluster's settings",
                printable(differences)
            ),
            Self::ModelsDiffer { cluster, joiner } => write!(
                f,
                "it trains {cluster}, this node has {joiner}{}; train the same model: tensors of \
                 the same names and shapes in the same order (each node's log lists its own at \
                 level debug)",
                cluster.told_difference(joiner)
            ),
            Self::Full { max_nodes } => write!(
                f,
                "the cluster is full (max_nodes = {max_nodes}); raise max_nodes, or drain a node \
                 first"
            ),
            Self::OtherLineage { cluster, joiner } => {
                write!(
                    f,
                    "it continues {cluster}, this node brings the state of {joiner}, which is \
                     unchanged; leave lineage out to take the cluster's model instead, or join the \
                     cluster that the state belongs to"
                )
            }
            Self::DuplicateId { node } => write!(
                f,
                "a live member already has the id of {node}; give each node its own node_id"
            ),
            Self::NoParameters => write!(
                f,
                "its rounds do not carry the complete state (base = all_reduce without averages, \
                 or sharded = false); set average_every, or sharded = true"
            ),
        }
    }
}

/// Header of the stream of one node's contribution to one shard.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContributionHeader {
    /// The round's spec as the contributor expects it.
    pub spec: RoundSpec,
    /// Its push-sum weight `w`.
    pub weight: f64,
    /// Encoding of its parameters.
    pub wire: WireType,
}

/// Reason why a round was abandoned or a message refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalReason {
    /// Two contributors disagree on the round's spec.
    SpecsDiffer {
        /// One node.
        one: NodeId,
        /// The spec that it expects, human-readable.
        #[serde(
            serialize_with = "bounded::cut::<_, SPEC_BYTES_MAX>",
            deserialize_with = "bounded::text::<_, SPEC_BYTES_MAX>"
        )]
        one_spec: String,
        /// The other node.
        other: NodeId,
        /// The spec that the other expects, human-readable.
        #[serde(
            serialize_with = "bounded::cut::<_, SPEC_BYTES_MAX>",
            deserialize_with = "bounded::text::<_, SPEC_BYTES_MAX>"
        )]
        other_spec: String,
    },
    /// All holders of some shards were lost, and `on_momentum_loss` is `stop`.
    MomentumLost {
        /// Number of lost shards.
        shards: u32,
    },
    /// The contributions are finite, and their average or its slow step is not.
    Overflowed {
        /// The owner of the value.
        node: NodeId,
        /// Index among the values of the model.
        element: u64,
    },
}

/// Maximum size of a peer's description of its round, in bytes: it goes into errors and logs.
/// Longer ones are cut by their sender.
pub const SPEC_BYTES_MAX: usize = 200;
/// Maximum size of the differences that a refusal names, in bytes; cut like [`SPEC_BYTES_MAX`].
pub const DIFFERENCES_BYTES_MAX: usize = 4096;

impl Message {
    /// The encoded size of the message without its header, in bytes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        super::encoded_bytes(self)
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
