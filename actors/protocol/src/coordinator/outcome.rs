//! What a round is expected to be, and what it turned out to be.

use super::voters::{VOTERS_KEPT, Voter, Voters};
use crate::forks::{FORKS_MAX, Fork};
use crate::ident::{Lineage, NodeId, Round, ShardId, Step};
use crate::sampler::Progress;
use crate::shards::SHARDS_MAX;
use crate::view::{MEMBERS_MAX, Member, View};
use crate::wire::MemberState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

/// What a round does with the contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoundKind {
    /// The lowest id's parameters become everybody's, and the first anchor.
    Bootstrap,
    /// Exact average without momentum.
    Average,
    /// Exact average, then the slow step on the shards.
    Slow,
    /// Exact mean of gradients; changes no state.
    Gradients,
}

/// What a contributor expects a round to be. All contributors of a round must agree on all of it,
/// bit by bit: so a learning rate that is not a number equals itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RoundSpec {
    /// What the round does.
    pub kind: RoundKind,
    /// The contributor's inner step.
    pub step: Step,
    /// `γ`, the inner learning rate when the round closes; used by the slow step only.
    pub gamma: f32,
    /// Values of the contribution: parameters, then averaged buffers.
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
    /// Where in a schedule the round lies; rounds of one history have ascending positions. At one
    /// step the founding comes before the gradient mean, and that before the exchange of
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

/// Where a model history comes from: a checkpoint of an earlier one, or nothing. Decided by its
/// founding, and the same ever after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Which founding among those that used the folder of checkpoints: above every one that left
    /// something there.
    pub run: u32,
    /// Rounds that were decided before this history's first.
    pub rounds: u64,
    /// Shards whose momentum restarted at zero before it.
    pub momentum_lost: u64,
}

/// The one decided result of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Outcome {
    /// The model history it belongs to. Another one than the round began with if fewer than a
    /// quorum decided it (`quorum = "survivors"`).
    pub lineage: Lineage,
    /// Which round.
    pub round: Round,
    /// What it did, at which step, with which learning rate.
    pub spec: RoundSpec,
    /// Whose contributions were averaged, ascending.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub contributors: Vec<NodeId>,
    /// The view of the next round; shard holders follow from it.
    pub view: View,
    /// Shards without a holder of their anchor and momentum after this round, ascending: their
    /// momentum restarts at zero.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, SHARDS_MAX>")]
    pub absent: Vec<ShardId>,
    /// Shards whose momentum restarted at zero since the founding.
    pub momentum_lost: u64,
    /// Which samples were left when the round began, if the training follows an elastic sampler.
    pub samples: Option<Progress>,
    /// The next view's members in the order that the bandwidth-aware gossip graph stands on. One
    /// that does not name each once, as the empty one, stands for ascending ids.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub order: Vec<NodeId>,
    /// Where the history comes from.
    pub origin: Origin,
    /// Its forks since the bootstrap, the first one in front.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, FORKS_MAX>")]
    pub forks: Vec<Fork>,
    /// Members of the next view that vote one entry later, ascending.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub waiting: Vec<NodeId>,
    /// Voters of the next round that are no members of its view, ascending; with their addresses,
    /// so that everybody can dial them.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, VOTERS_KEPT>")]
    pub retained: Vec<Member>,
    /// Who leads the next round without being asked for, and breaks its ties: a member that votes.
    pub leader: NodeId,
}

impl Outcome {
    /// Who votes on the next round.
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

    /// Where its members stand once they applied it.
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

    /// Whether the two differ at most in the history that they go on with and in who votes next:
    /// who holds the data of one holds that of the other.
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
            && (&self.contributors, &self.view, &self.absent)
                == (&other.contributors, &other.view, &other.absent)
            && (&self.samples, &self.order, &self.origin)
                == (&other.samples, &other.order, &other.origin)
    }
}

/// An outcome as a leader attempts it: who moves its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// What the attempt makes.
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

    /// Who must hold its data before anybody votes for it, ascending: who takes part, and who
    /// joins.
    #[must_use]
    pub fn receivers(&self) -> BTreeSet<NodeId> {
        self.participants
            .iter()
            .copied()
            .chain(self.outcome.view.ids())
            .collect()
    }
}
