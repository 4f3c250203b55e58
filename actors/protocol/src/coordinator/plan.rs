//! The data movements of one round under one ballot: who streams what to whom. A function of the view and the terms.

use super::outcome::{RoundKind, Terms};
use crate::ident::{Ballot, NodeId, Round, ShardId};
use crate::shards::{Layout, ShardMap};
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One attempt to decide a round: its data movements report under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// Which round.
    pub round: Round,
    /// Under which ballot.
    pub ballot: Ballot,
}

/// One round's data movements as one node sees them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// This node.
    pub me: NodeId,
    /// Which round.
    pub round: Round,
    /// Under which ballot.
    pub ballot: Ballot,
    /// What the round does.
    pub terms: Terms,
    /// Whose contributions are averaged, ascending.
    pub contributors: Vec<NodeId>,
    /// How the contribution is cut.
    pub layout: Layout,
    /// Who holds which shard.
    pub map: Arc<ShardMap>,
    members: Vec<NodeId>,
    owners: BTreeSet<NodeId>,
}

impl Plan {
    /// Plans `round` for `me`.
    #[must_use]
    pub fn new(me: NodeId, place: (Round, Ballot), terms: Terms, contributors: Vec<NodeId>, view: &View, map: Arc<ShardMap>) -> Self {
        let layout = Layout::new(terms.elements as usize);
        let owners = layout.shards().filter_map(|shard| map.owner(shard)).collect();
        let (round, ballot) = place;
        Self { me, round, ballot, terms, contributors, layout, map, members: view.ids().collect(), owners }
    }

    /// What these movements report under.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        Attempt { round: self.round, ballot: self.ballot }
    }

    /// Whether this node's contribution is averaged.
    #[must_use]
    pub fn contributes(&self) -> bool {
        self.contributors.contains(&self.me)
    }

    /// Whether this node owns a shard: it reduces, takes the slow step and publishes.
    #[must_use]
    pub fn owns(&self) -> bool {
        self.owners.contains(&self.me)
    }

    /// The shards that this node owns, ascending.
    #[must_use]
    pub fn own_shards(&self) -> Vec<ShardId> {
        self.map.owned_by(self.me).collect()
    }

    /// The other owners: each gets this node's contribution to its shards and publishes new parameters.
    #[must_use]
    pub fn other_owners(&self) -> Vec<NodeId> {
        self.owners.iter().copied().filter(|owner| *owner != self.me).collect()
    }

    /// The other members: each gets the shards that this node owns.
    #[must_use]
    pub fn other_members(&self) -> Vec<NodeId> {
        self.members.iter().copied().filter(|member| *member != self.me).collect()
    }

    /// Whether new slow momentum goes to the replicas.
    #[must_use]
    pub fn moves_momentum(&self) -> bool {
        self.terms.kind == RoundKind::Slow
    }

    /// The other members that replicate shards of this node, each with those shards ascending.
    #[must_use]
    pub fn momentum_to(&self) -> Vec<(NodeId, Vec<ShardId>)> {
        let others = self.other_members().into_iter();
        let shards = others.map(|member| (member, self.map.replicated(self.me, member).collect::<Vec<_>>()));
        shards.filter(|(_, shards)| self.moves_momentum() && !shards.is_empty()).collect()
    }

    /// The other owners whose shards this node replicates, each with those shards ascending.
    #[must_use]
    pub fn momentum_from(&self) -> Vec<(NodeId, Vec<ShardId>)> {
        let others = self.other_owners().into_iter();
        let shards = others.map(|owner| (owner, self.map.replicated(owner, self.me).collect::<Vec<_>>()));
        shards.filter(|(_, shards)| self.moves_momentum() && !shards.is_empty()).collect()
    }

    /// Every node that holds a shard: the round is decided only when all of these are prepared. The founding waits for all
    /// members, so that nobody gossips with a node that has not heard of the view.
    #[must_use]
    pub fn holders(&self) -> BTreeSet<NodeId> {
        if self.owners.is_empty() || self.terms.kind == RoundKind::Found {
            // Without values no contribution ties the members to the round: the leader waits for all, not to run ahead of them.
            return self.members.iter().copied().collect();
        }
        if self.terms.kind == RoundKind::Gradients {
            return self.owners.clone();
        }
        self.layout.shards().flat_map(|shard| self.map.holders(shard).iter().copied()).collect()
    }
}
