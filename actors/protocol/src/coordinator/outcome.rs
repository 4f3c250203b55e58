//! The expected spec of a round, and its decided outcome.

use super::voters::{VOTERS_KEPT, Voter, Voters};
use crate::changeable::ChangedSettings;
use crate::forks::{FORKS_MAX, Fork};
use crate::ident::{Lineage, NodeId, Round, ShardId, Step};
use crate::published::Digest;
use crate::sampler::Progress;
use crate::shards::SHARDS_MAX;
use crate::view::{MEMBERS_MAX, Member, View};
use crate::wire::MemberState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Operation of a round on its contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoundKind {
    /// The parameters of the lowest id become those of every node, and the first anchor.
    Bootstrap,
    /// Exact average without momentum.
    Average,
    /// Exact average, then the slow step on the shards.
    Slow,
    /// Exact mean of gradients; changes no state.
    Gradients,
}

/// Spec of a round, as a contributor expects it. All contributors of a round must agree on every
/// field bit by bit, so a learning rate that is NaN equals itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RoundSpec {
    /// Kind of the round.
    pub kind: RoundKind,
    /// The contributor's inner step.
    pub step: Step,
    /// `γ`, the inner learning rate when the round closes; used by the slow step only.
    pub gamma: f32,
    /// Number of values in the contribution: parameters, then averaged buffers.
    pub elements: u64,
}

impl PartialEq for RoundSpec {
    fn eq(&self, other: &Self) -> bool {
        let key = |spec: &Self| (spec.kind, spec.step, spec.gamma.to_bits(), spec.elements);
        key(self) == key(other)
    }
}

impl Eq for RoundSpec {}

impl Hash for RoundSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind, self.step, self.gamma.to_bits(), self.elements).hash(state);
    }
}

impl fmt::Display for RoundSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            step,
            gamma,
            elements,
        } = self;
        write!(
            f,
            "{kind:?} round at {step} of {elements} values with learning rate {gamma}"
        )
    }
}

impl RoundSpec {
    /// Position of the round in a schedule; rounds of one history have ascending positions. At one
    /// step the bootstrap comes before the gradient mean, and that before the exchange of
    /// parameters.
    #[must_use]
    pub fn position(&self) -> (Step, u8) {
        let phase = match self.kind {
            RoundKind::Bootstrap => 0,
            RoundKind::Gradients => 1,
            RoundKind::Average | RoundKind::Slow => 2,
        };
        (self.step, phase)
    }

    /// The inner step that follows the round.
    #[must_use]
    pub fn next_step(&self) -> Step {
        match self.kind {
            RoundKind::Bootstrap | RoundKind::Gradients => self.step,
            RoundKind::Average | RoundKind::Slow => Step(self.step.0.saturating_add(1)),
        }
    }

    /// Whether the round gives every receiver the model's parameters.
    #[must_use]
    pub fn carries_parameters(&self) -> bool {
        self.kind != RoundKind::Gradients
    }
}

/// Source of a model history: a checkpoint of an earlier history, or none. Decided by the
/// bootstrap, and constant from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Number of this bootstrap among those that used the checkpoint folder: above that of every
    /// bootstrap that left something there.
    pub run: u32,
    /// Number of rounds decided before the first round of this history.
    pub rounds: u64,
    /// Number of shards whose momentum restarted at zero before this history.
    pub momentum_lost: u64,
}

/// The one decided result of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Outcome {
    /// The model history it belongs to. It differs from the one that the round began with if fewer
    /// than a quorum decided it (`quorum = "survivors"`).
    pub lineage: Lineage,
    /// The round.
    pub round: Round,
    /// Spec of the round: its kind, step, learning rate and number of values.
    pub spec: RoundSpec,
    /// Nodes whose contributions were averaged, ascending.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub contributors: Vec<NodeId>,
    /// The view of the next round; shard holders follow from it.
    pub view: View,
    /// Root of the digests of what the owners published ([`crate::published`]). Unknown, and all
    /// zero, before a receiver holds it.
    pub published: Digest,
    /// Shards without a holder of their anchor and momentum after this round, ascending: their
    /// momentum restarts at zero.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, SHARDS_MAX>")]
    pub absent: Vec<ShardId>,
    /// Number of shards whose momentum restarted at zero since the bootstrap.
    pub momentum_lost: u64,
    /// Samples that were left when the round began, if the training follows an elastic sampler.
    pub samples: Option<Progress>,
    /// Members of the next view in the order that the bandwidth-aware gossip graph is built on. A
    /// list that does not name each member exactly once, such as the empty one, stands for
    /// ascending ids.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub order: Vec<NodeId>,
    /// Source of the history.
    pub origin: Origin,
    /// Whether the state after the round is checkpointed although the schedule may have none due:
    /// a member asked for it, all members leave, or this entry changes the schedule after which it
    /// is due.
    pub checkpoint: bool,
    /// The settings that entries up to this one changed; in force from the next step on.
    #[serde(default)]
    pub changed: ChangedSettings,
    /// Forks of the history since the bootstrap, oldest first.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, FORKS_MAX>")]
    pub forks: Vec<Fork>,
    /// Members of the next view that vote one entry later, ascending.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub waiting: Vec<NodeId>,
    /// Voters of the next round that are not members of its view, ascending; with their addresses,
    /// so that every node can dial them.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, VOTERS_KEPT>")]
    pub retained: Vec<Member>,
    /// Default leader of the next round, which also breaks its ties: a member that votes.
    pub leader: NodeId,
}

impl Outcome {
    /// The entry of a round to which all members of `view` contributed, and after which they are
    /// the members and voters again: of a history without forks, with nothing lost.
    #[must_use]
    pub fn of_all(lineage: Lineage, round: Round, spec: RoundSpec, view: View) -> Self {
        Self {
            lineage,
            round,
            spec,
            contributors: view.ids().collect(),
            published: Digest::default(),
            absent: Vec::new(),
            momentum_lost: 0,
            samples: None,
            order: Vec::new(),
            origin: Origin::default(),
            checkpoint: false,
            changed: ChangedSettings::default(),
            forks: Vec::new(),
            waiting: Vec::new(),
            retained: Vec::new(),
            leader: view.lowest(),
            view,
        }
    }

    /// Digest of all of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        crate::wire::digest(self)
    }

    /// Voters of the next round.
    #[must_use]
    pub fn voters(&self) -> Voters {
        let votes = |member: &&Member| !self.waiting.contains(&member.id);
        let voting = self.view.members().iter().filter(votes).map(Voter::from);
        Voters::new(
            voting
                .chain(self.retained.iter().map(Voter::from))
                .collect(),
            self.leader,
        )
    }

    /// Member state of its members once they have applied it.
    #[must_use]
    pub fn standing(&self) -> MemberState {
        let lineage = self.lineage;
        let forks = self.forks.clone();
        MemberState {
            lineage,
            forks,
            round: self.round.next(),
            view: self.view.clone(),
            dead: Vec::new(),
        }
    }

    /// Whether the two outcomes differ at most in the history that they continue and in the next
    /// voters. A node that holds the data of one then holds the data of the other.
    #[must_use]
    pub fn has_the_data_of(&self, other: &Self) -> bool {
        let Self {
            lineage: _,
            forks: _,
            waiting: _,
            retained: _,
            leader: _,
            ..
        } = self;
        (self.round, self.spec, self.momentum_lost)
            == (other.round, other.spec, other.momentum_lost)
            && self.published == other.published
            && (&self.contributors, &self.view, &self.absent)
                == (&other.contributors, &other.view, &other.absent)
            && (&self.samples, &self.order, &self.origin)
                == (&other.samples, &other.order, &other.origin)
            && (self.checkpoint, self.changed) == (other.checkpoint, other.changed)
    }
}

/// An entry as a leader names it to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
// Frames box their message, so its size does not affect queues.
#[allow(clippy::large_enum_variant)]
pub enum Entry {
    /// The whole entry.
    Whole(Outcome),
    /// The entry of the frame's attempt, which the receiver holds: with this [`Outcome::digest`].
    Held(Digest),
}

impl Entry {
    /// Digest of the entry.
    #[must_use]
    pub fn digest(&self) -> Digest {
        match self {
            Self::Whole(entry) => entry.digest(),
            Self::Held(digest) => *digest,
        }
    }
}

/// An outcome as a leader attempts it, with the members that move its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Outcome that the attempt produces.
    pub outcome: Outcome,
    /// The members that take part, ascending: each owns or receives shards.
    pub participants: Vec<NodeId>,
}

impl Proposal {
    /// Members of the next view that take no part in the reduction: nodes that join.
    pub fn joiners(&self) -> impl Iterator<Item = &Member> {
        self.outcome
            .view
            .members()
            .iter()
            .filter(|member| self.participants.binary_search(&member.id).is_err())
    }

    /// Nodes that must hold its data before anybody votes for it, ascending: participants and
    /// joiners.
    #[must_use]
    pub fn receivers(&self) -> BTreeSet<NodeId> {
        self.participants
            .iter()
            .copied()
            .chain(self.outcome.view.ids())
            .collect()
    }
}
