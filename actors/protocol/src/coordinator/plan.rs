//! Data movements of one attempt at a round: the sender, receiver and content of each stream. They
//! are a function of the view, the proposal and the spec, so every node computes the same plan.
//!
//! A [`Plan`] is known as soon as the contributors and the participants are; a [`Publication`] once
//! the next view is. In a round's first attempt every node starts the plan at once, and the
//! publication follows with the leader's proposal.
//!
//! If the participants are of several groups, sums and new values cross between groups once for each
//! shard (`relays`).
//!
//! If the owner of a shard dies, the next attempt has another plan: the first holder that takes
//! part owns the shard, with the momentum decided before (`node::shards`). If no holder takes part,
//! [`losses`] names the shard: its momentum restarts at zero, or the run stops (key
//! `on_momentum_loss`).

use super::outcome::{Outcome, RoundKind, RoundSpec};
use super::relays::Relays;
use crate::ident::{Lineage, NodeId, Round, ShardId, Term};
use crate::machine::Place;
use crate::planted::{self, Bug};
use crate::shards::{Layout, ShardMap};
use crate::view::View;
use crate::wire::Header;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Identifies one attempt to move the data of a round; its data movements report under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// The round.
    pub round: Round,
    /// The term.
    pub term: Term,
    /// Number of the attempt within the term. Number 0 of the first term is the plan that needs no
    /// proposal: everybody contributes.
    pub number: u32,
    /// The history: competing bootstraps and partitioned histories use the same rounds and terms.
    pub lineage: Lineage,
}

impl Attempt {
    /// The attempt that a frame or stream with this header belongs to.
    #[must_use]
    pub fn of(header: &Header) -> Self {
        Self {
            round: header.round,
            term: header.term,
            number: header.attempt,
            lineage: header.lineage,
        }
    }

    /// The attempt at a place in history.
    #[must_use]
    pub fn at(place: &Place) -> Self {
        Self {
            round: place.round,
            term: place.term,
            number: place.attempt,
            lineage: place.lineage,
        }
    }
}

/// The reduction of one round as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// This node.
    pub me: NodeId,
    /// The attempt.
    pub attempt: Attempt,
    /// Place in history that its streams are sent from: that of `attempt`, even if a higher term
    /// was promised meanwhile.
    pub place: Place,
    /// Spec of the round.
    pub spec: RoundSpec,
    /// Nodes whose contributions are averaged, ascending.
    pub contributors: Vec<NodeId>,
    /// The members that take part, ascending.
    pub participants: Vec<NodeId>,
    /// Whether this is a bootstrap whose owners supply the slow momentum of a checkpoint.
    pub restores: bool,
    /// Layout that cuts the contribution into shards.
    pub layout: Layout,
    /// Owner of each shard, which averages it: its first holder that takes part, or some
    /// participant if none does.
    owners: Vec<NodeId>,
    /// Ways of the values between groups.
    relays: Relays,
}

/// Way of a contribution to the shards of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// To the owner itself.
    Owner,
    /// To the relay of the contributor's group, which sums for owners of other groups.
    Relay,
}

impl Plan {
    /// Plans an attempt for `me`; `map` assigns the shards of `layout` on `view`, that of the round.
    /// Needs at least one participant.
    #[must_use]
    pub fn new(
        me: NodeId,
        place: Place,
        spec: RoundSpec,
        (contributors, participants): (Vec<NodeId>, Vec<NodeId>),
        layout: Layout,
        view: &View,
        map: &ShardMap,
    ) -> Self {
        let owner = |shard: ShardId| {
            first_of(map.holders(shard), &participants)
                .unwrap_or_else(|| stand_in(shard, &participants, me))
        };
        let owners: Vec<NodeId> = layout.shards().map(owner).collect();
        // The same on all nodes.
        let turn = (place.round.0 as usize)
            .wrapping_add(place.term.counter as usize)
            .wrapping_add(place.attempt as usize);
        let relays = Relays::new(me, view, turn, &participants, &contributors, &owners);
        Self {
            me,
            attempt: Attempt::at(&place),
            place,
            spec,
            contributors,
            participants,
            restores: false,
            layout,
            owners,
            relays,
        }
    }

    /// The same plan for a node that continues from a checkpoint: its bootstrap supplies the slow
    /// momentum too.
    #[must_use]
    pub fn restoring(mut self, restores: bool) -> Self {
        self.restores = restores && self.spec.kind == RoundKind::Bootstrap;
        self
    }

    /// Whether the owners make new momentum, which is sent to every other holder.
    #[must_use]
    pub fn makes_momentum(&self) -> bool {
        self.spec.kind == RoundKind::Slow || self.restores
    }

    /// Whether this node's contribution is averaged.
    #[must_use]
    pub fn contributes(&self) -> bool {
        self.contributors.contains(&self.me)
    }

    /// Whether this node averages a shard and publishes it.
    #[must_use]
    pub fn owns(&self) -> bool {
        self.owners.contains(&self.me)
    }

    /// The shards that `owner` averages, ascending.
    #[must_use]
    pub fn owned_by(&self, owner: NodeId) -> Vec<ShardId> {
        let owned = self
            .layout
            .shards()
            .zip(&self.owners)
            .filter(|(_, of)| **of == owner);
        owned.map(|(shard, _)| shard).collect()
    }

    /// The nodes to which this node's contribution goes, with the ways on which it does: each has
    /// a stream of its own. A node of the same group may be both an owner and the relay.
    #[must_use]
    pub fn destinations(&self) -> BTreeMap<NodeId, BTreeSet<Way>> {
        let mut to: BTreeMap<NodeId, BTreeSet<Way>> = BTreeMap::new();
        for owner in self.other_owners() {
            let (node, way) = match self.relays.sums_for(owner) {
                Some(relay) if relay == self.me => continue,
                Some(relay) => (relay, Way::Relay),
                None => (owner, Way::Owner),
            };
            to.entry(node).or_default().insert(way);
        }
        to
    }

    /// The shards of which `to` gets contributions on this way from each contributor of this node's
    /// group, in the order in which they are sent.
    #[must_use]
    pub fn sent_to(&self, to: NodeId, way: Way) -> Vec<ShardId> {
        match way {
            Way::Owner => self.owned_by(to),
            Way::Relay => {
                let owners = self.relays.summed_by(to).into_iter();
                owners.flat_map(|owner| self.owned_by(owner)).collect()
            }
        }
    }

    /// The owners of other groups for which this node sums up the contributions of its group,
    /// ascending.
    #[must_use]
    pub fn sums_for(&self) -> Vec<NodeId> {
        self.relays.summed_by(self.me)
    }

    /// The contributors whose values this node sums up for owners of other groups, this node
    /// included if it contributes, ascending.
    #[must_use]
    pub fn summed(&self) -> &[NodeId] {
        self.relays.group_contributors()
    }

    /// The nodes whose values this owner adds up, itself included if it contributes, and how many
    /// contributions each of them sends the sum of.
    #[must_use]
    pub fn sources(&self) -> BTreeMap<NodeId, usize> {
        self.relays.sources(&self.contributors)
    }

    /// The node that sends this one the new values of another owner: the owner, or the relay of
    /// this node's group.
    #[must_use]
    pub fn publisher(&self, owner: NodeId) -> NodeId {
        self.relays.publisher(self.me, owner)
    }

    /// The nodes to which this relay passes the new values of `owner` on.
    #[must_use]
    pub fn passes_on(&self, owner: NodeId) -> Vec<NodeId> {
        self.relays.passes_on(self.me, owner)
    }

    /// Those of an attempt's `receivers` to which this owner sends the new values itself.
    #[must_use]
    pub fn publishes_to(&self, receivers: &[NodeId]) -> Vec<NodeId> {
        let others = receivers.iter().copied().filter(|node| *node != self.me);
        others.filter(|node| !self.relays.reaches(*node)).collect()
    }

    /// The other owners: each gets this node's contribution to its shards and publishes the result.
    #[must_use]
    pub fn other_owners(&self) -> Vec<NodeId> {
        let owners: BTreeSet<_> = self
            .owners
            .iter()
            .copied()
            .filter(|owner| *owner != self.me)
            .collect();
        owners.into_iter().collect()
    }
}

fn first_of(holders: &[NodeId], participants: &[NodeId]) -> Option<NodeId> {
    holders
        .iter()
        .copied()
        .find(|holder| participants.contains(holder))
}

/// Owner of a shard that no participant holds: some participant must average it.
fn stand_in(shard: ShardId, participants: &[NodeId], me: NodeId) -> NodeId {
    participants
        .get(shard.0 as usize % participants.len().max(1))
        .copied()
        .unwrap_or(me)
}

/// Anchor and momentum of some shards that one node sends to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// Shards of the state, ascending.
    pub shards: Vec<ShardId>,
}

/// Receivers and contents of the data that an attempt produces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publication {
    /// The attempt.
    pub attempt: Attempt,
    /// Nodes that get the new values of every shard, ascending: the participants and all members of
    /// the next view.
    pub receivers: Vec<NodeId>,
    /// State sent to other holders, one entry per pair of nodes. After a slow step, or a bootstrap
    /// that restores, the new momentum (the anchor is the new parameters); in other rounds anchor
    /// and momentum, if the next view has new holders.
    pub moves: Vec<Move>,
    /// Whether moves carry the anchor too, before the momentum of each shard.
    pub moves_anchor: bool,
    /// Layout of the state: that of the rounds that take the slow step.
    pub state_layout: Layout,
    /// The shards whose state this node holds afterwards, ascending.
    pub holds: Vec<ShardId>,
    /// Whether the new values become the anchor of the held shards.
    pub renews_anchor: bool,
    /// Shards whose state no participant has, ascending: their slow step is a plain average with
    /// momentum zero.
    pub lost: Vec<ShardId>,
    /// Optimizer-state transfer: the base optimizer's buffers for nodes that join; `None` if these
    /// get no copy.
    pub optimizer_transfer: Option<OptimizerTransfer>,
}

/// Optimizer-state transfer: the base optimizer's buffers sent to nodes that join.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptimizerTransfer {
    /// The sender: the lowest contributor, a member, which passes its training's buffers.
    pub donor: NodeId,
    /// Nodes that join, ascending.
    pub joiners: Vec<NodeId>,
    /// Number of values.
    pub values: u64,
}

/// Inputs of a publication, besides the plan.
#[derive(Clone, Copy, Debug)]
pub struct Holders<'a> {
    /// Layout of the state.
    pub layout: Layout,
    /// Holders of the state in the view of the round.
    pub before: &'a ShardMap,
    /// Holders of the state in the next view.
    pub after: &'a ShardMap,
    /// Shards that nobody held when the round began.
    pub absent: &'a [ShardId],
}

impl Publication {
    /// Publication of `plan` for `outcome`; `holders` is `None` if the outer optimizer keeps no
    /// sharded state.
    #[must_use]
    pub fn new(plan: &Plan, outcome: &Outcome, holders: Option<Holders<'_>>) -> Self {
        let receivers: BTreeSet<NodeId> = if plan.spec.carries_parameters() {
            plan.participants
                .iter()
                .copied()
                .chain(outcome.view.ids())
                .collect()
        } else {
            plan.participants.iter().copied().collect()
        };
        let renews = matches!(plan.spec.kind, RoundKind::Bootstrap | RoundKind::Slow);
        let mut publication = Self {
            attempt: plan.attempt,
            receivers: receivers.into_iter().collect(),
            moves: Vec::new(),
            moves_anchor: !renews,
            state_layout: plan.layout,
            holds: Vec::new(),
            renews_anchor: renews,
            lost: Vec::new(),
            optimizer_transfer: None,
        };
        if let Some(holders) = holders {
            publication.hold(plan, holders);
        }
        publication
    }

    /// The same publication with an optimizer-state transfer: a copy of `values` values of the base
    /// optimizer's buffers for every node that joins.
    #[must_use]
    pub fn with_donation(mut self, plan: &Plan, outcome: &Outcome, values: u64) -> Self {
        let joiners: Vec<NodeId> = outcome
            .view
            .ids()
            .filter(|id| !plan.participants.contains(id))
            .collect();
        self.optimizer_transfer = match plan.contributors.first() {
            Some(donor) if !joiners.is_empty() => Some(OptimizerTransfer {
                donor: *donor,
                joiners,
                values,
            }),
            _ => None,
        };
        self
    }

    fn hold(
        &mut self,
        plan: &Plan,
        Holders {
            layout,
            before,
            after,
            absent,
        }: Holders<'_>,
    ) {
        self.state_layout = layout;
        self.holds = after.held_by(plan.me).collect();
        if plan.spec.kind == RoundKind::Bootstrap && !plan.restores {
            return;
        }
        let mut moves: BTreeMap<(NodeId, NodeId), Vec<ShardId>> = BTreeMap::new();
        for shard in layout.shards() {
            let source = if absent.contains(&shard) {
                None
            } else {
                first_of(before.holders(shard), &plan.participants)
            };
            // Restored state is not lost.
            if source.is_none() && !plan.restores {
                self.lost.push(shard);
            }
            let slow = plan.makes_momentum();
            // After a slow step every holder needs the new momentum, even if it restarts at zero.
            let from = if slow {
                plan.owners.get(shard.0 as usize).copied()
            } else {
                source
            };
            let has = |node: &NodeId| {
                before.holders(shard).contains(node) && plan.participants.contains(node)
            };
            let forgotten = |node: &NodeId| {
                planted::has(Bug::MomentumNotHandedOver) && !plan.participants.contains(node)
            };
            let needs =
                |node: &&NodeId| Some(**node) != from && (slow || !has(node)) && !forgotten(node);
            for (from, to) in from.into_iter().flat_map(|from| {
                after
                    .holders(shard)
                    .iter()
                    .filter(needs)
                    .map(move |to| (from, *to))
            }) {
                moves.entry((from, to)).or_default().push(shard);
            }
        }
        self.moves = moves
            .into_iter()
            .map(|((from, to), shards)| Move { from, to, shards })
            .collect();
    }

    /// Moves that `node` sends.
    pub fn moves_from(&self, node: NodeId) -> impl Iterator<Item = &Move> {
        self.moves.iter().filter(move |moved| moved.from == node)
    }

    /// The node that sends `node` the base optimizer's buffers.
    #[must_use]
    pub fn donor_to(&self, node: NodeId) -> Option<NodeId> {
        self.optimizer_transfer
            .as_ref()
            .filter(|optimizer_transfer| optimizer_transfer.joiners.contains(&node))
            .map(|optimizer_transfer| optimizer_transfer.donor)
    }

    /// Moves that `node` receives.
    pub fn moves_to(&self, node: NodeId) -> impl Iterator<Item = &Move> {
        self.moves.iter().filter(move |moved| moved.to == node)
    }
}

/// The shards whose momentum restarts at zero, and those that nobody holds after the round: both
/// follow from the participants. A slow step gives a lost shard a new anchor and momentum zero;
/// before that step no node holds it.
#[must_use]
pub fn losses(
    plan: &Plan,
    before: &ShardMap,
    layout: Layout,
    absent: &[ShardId],
) -> (Vec<ShardId>, Vec<ShardId>) {
    if matches!(plan.spec.kind, RoundKind::Bootstrap) {
        return (Vec::new(), Vec::new());
    }
    let gone = |shard: &ShardId| {
        absent.contains(shard) || first_of(before.holders(*shard), &plan.participants).is_none()
    };
    let gone: Vec<ShardId> = layout.shards().filter(gone).collect();
    let newly = gone
        .iter()
        .copied()
        .filter(|shard| !absent.contains(shard))
        .collect();
    if plan.spec.kind == RoundKind::Slow {
        (newly, Vec::new())
    } else {
        (newly, gone)
    }
}

/// A plan with its publication, once that is known.
pub type Published = (Arc<Plan>, Arc<Publication>);
