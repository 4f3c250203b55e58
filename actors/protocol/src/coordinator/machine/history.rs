//! What was decided, and what follows from it alone: shard maps, the next view, losses. Pure functions over [`History`].

use super::Coordinator;
use crate::ballot::Proposer;
use crate::coordinator::outcome::{Origin, Outcome, Proposal, RoundKind, Terms};
use crate::coordinator::plan::{Holders, Plan, Publication, losses};
use crate::ident::{Ballot, Epoch, Lineage, NodeId, Round, ShardId};
use crate::machine::Place;
use crate::policy::{OnMomentumLoss, Quorum};
use crate::shards::{Layout, ShardMap};
use crate::topology::{Rates, next_order};
use crate::view::{MEMBERS_MAX, Member, View};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Shard maps that are kept: those of two views, for the layouts of parameters, gradients and averaged buffers.
const SHARD_MAPS_MAX: usize = 8;

/// What was decided up to the current round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct History {
    pub lineage: Lineage,
    /// The round being worked towards.
    pub round: Round,
    /// Its view; its members are the acceptors.
    pub view: View,
    /// Shards whose state nobody holds.
    pub absent: Vec<ShardId>,
    pub momentum_lost: u64,
    /// The members in the order of the gossip graph; empty for ascending ids.
    pub order: Vec<NodeId>,
    /// Where the history comes from.
    pub origin: Origin,
    /// The outcome before, for members that missed it.
    pub last: Option<Decided>,
    /// This node is no member: it only receives what the round makes.
    pub joining: bool,
}

/// An outcome with the place where it was decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Decided {
    pub outcome: Outcome,
    pub place: Place,
}

impl History {
    pub fn founding(view: View, lineage: Lineage, origin: Origin) -> Self {
        let (absent, order) = (Vec::new(), Vec::new());
        Self { lineage, round: Round::FOUNDING, view, absent, momentum_lost: 0, order, origin, last: None, joining: false }
    }

    /// The history of a node that is admitted by an outcome of `round` among the members of `view`.
    pub fn joining(view: View, lineage: Lineage, round: Round) -> Self {
        Self { round, joining: true, ..Self::founding(view, lineage, Origin::default()) }
    }

    pub fn after(outcome: Outcome, place: Place) -> Self {
        Self {
            lineage: outcome.lineage,
            round: outcome.round.next(),
            view: outcome.view.clone(),
            absent: outcome.absent.clone(),
            momentum_lost: outcome.momentum_lost,
            order: outcome.order.clone(),
            origin: outcome.origin,
            last: Some(Decided { outcome, place }),
            joining: false,
        }
    }
}

/// Shard maps by seated members and values.
#[derive(Clone, Debug, Default)]
pub(super) struct Maps(Vec<(Vec<NodeId>, u64, Arc<ShardMap>)>);

/// A cache: two machines that differ only in it are the same.
impl PartialEq for Maps {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Maps {}

impl Hash for Maps {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Maps {
    fn get(&mut self, view: &View, elements: u64, replicas: usize) -> Arc<ShardMap> {
        let same = |ids: &[NodeId]| ids.len() == view.size() && view.seated().eq(ids.iter().copied());
        if let Some((.., map)) = self.0.iter().find(|(ids, values, _)| *values == elements && same(ids)) {
            return Arc::clone(map);
        }
        let map = Arc::new(ShardMap::new(view, &Layout::new(elements as usize), replicas));
        if self.0.len() == SHARD_MAPS_MAX {
            self.0.remove(0);
        }
        self.0.push((view.seated().collect(), elements, Arc::clone(&map)));
        map
    }
}

impl Coordinator {
    /// What was decided last, also where that left this node out.
    pub(super) fn last(&self) -> Option<&Decided> {
        self.history.as_ref().and_then(|history| history.last.as_ref()).or(self.left_with.as_ref())
    }

    pub(super) fn plan(&mut self, ballot: Ballot, terms: Terms, contributors: Vec<NodeId>, participants: Vec<NodeId>) -> Option<Plan> {
        let history = self.history.as_ref()?;
        let map = self.maps.get(&history.view, terms.elements, self.settings.replicas);
        let place = Place { lineage: history.lineage, epoch: history.view.epoch(), round: history.round, ballot };
        let layout = Layout::new(terms.elements as usize);
        let plan = Plan::new(self.settings.identity.node, place, terms, (contributors, participants), layout, &map);
        Some(plan.restoring(self.settings.restores))
    }

    pub(super) fn publication(&mut self, plan: &Plan, outcome: &Outcome) -> Option<Publication> {
        let publication = self.moves(plan, outcome)?;
        let slow_step = plan.terms.kind == RoundKind::Slow;
        let copies = self.buffers > 0 && self.settings.copies_buffers.is_some_and(|strategy| strategy.leaves_own(slow_step));
        Some(if copies { publication.with_donation(plan, outcome, self.buffers) } else { publication })
    }

    fn moves(&mut self, plan: &Plan, outcome: &Outcome) -> Option<Publication> {
        let history = self.history.as_ref()?;
        let state_elements = if plan.terms.kind == RoundKind::Found { Some(plan.terms.elements) } else { self.state_elements };
        let Some(elements) = state_elements.filter(|_| self.settings.keeps_state) else {
            return Some(Publication::new(plan, outcome, None));
        };
        let before = self.maps.get(&history.view, elements, self.settings.replicas);
        let after = self.maps.get(&outcome.view, elements, self.settings.replicas);
        let layout = Layout::new(elements as usize);
        let holders = Holders { layout, before: &before, after: &after, absent: &history.absent };
        Some(Publication::new(plan, outcome, Some(holders)))
    }

    /// The shards whose momentum restarts at zero in an attempt, and those that nobody holds after it.
    fn losses(&mut self, plan: &Plan) -> (Vec<ShardId>, Vec<ShardId>) {
        let (Some(history), Some(elements)) = (&self.history, self.state_elements.filter(|_| self.settings.keeps_state)) else {
            return (Vec::new(), Vec::new());
        };
        let before = self.maps.get(&history.view, elements, self.settings.replicas);
        losses(plan, &before, Layout::new(elements as usize), &history.absent)
    }

    /// The next view: who takes part, without those that leave, with those that join.
    fn next_view(&self, terms: Terms, participants: &[NodeId]) -> Option<View> {
        let history = self.history.as_ref()?;
        let stays = |member: &&Member| participants.contains(&member.id) && !self.is_leaving(member);
        let mut members: Vec<Member> = history.view.members().iter().filter(stays).cloned().collect();
        let waits = self.current.as_ref().is_some_and(|current| !current.joiners_over);
        if terms.carries_parameters() && terms.kind != RoundKind::Found && waits {
            let room = MEMBERS_MAX.saturating_sub(members.len());
            let slow = |joiner: &Member| self.slow_joiners.passes_over(joiner, history.round);
            let new = self.joiners.values().filter(|joiner| !participants.contains(&joiner.id) && !self.is_dead(joiner) && !slow(joiner));
            members.extend(new.take(room).cloned());
        }
        if members.is_empty() {
            // All leave: the lowest one is left with everything, and ends with it.
            members.extend(history.view.members().iter().find(|member| participants.contains(&member.id)).cloned());
        }
        // Also where the same members make it up: one that was left out and admitted again is not ready twice.
        let changed = !members.iter().eq(history.view.members()) || members.iter().any(|member| !participants.contains(&member.id));
        let epoch = if changed { Epoch(history.view.epoch().0 + 1) } else { history.view.epoch() };
        history.view.succeeded_by(epoch, members).ok()
    }

    /// What a leader proposes of its own choice; `Err` with how many shards were lost if that stops the run.
    pub(super) fn compose(
        &mut self,
        ballot: Ballot,
        terms: Terms,
        contributors: Vec<NodeId>,
        participants: Vec<NodeId>,
    ) -> Option<Result<Proposal, u32>> {
        let plan = self.plan(ballot, terms, contributors, participants)?;
        let (lost, absent) = self.losses(&plan);
        if !lost.is_empty() && self.settings.on_momentum_loss == OnMomentumLoss::Stop {
            return Some(Err(u32::try_from(lost.len()).unwrap_or(u32::MAX)));
        }
        let view = self.next_view(terms, &plan.participants)?;
        let history = self.history.as_ref()?;
        let origin = history.origin;
        let order = self.order_of(&view, &plan.participants);
        let samples = plan.contributors.iter().find_map(|node| self.samples_of(*node));
        let outcome = Outcome {
            lineage: self.lineage_after(&plan.participants)?,
            round: history.round,
            terms,
            contributors: plan.contributors,
            view,
            absent,
            momentum_lost: history.momentum_lost + lost.len() as u64,
            samples,
            order,
            origin,
        };
        Some(Ok(Proposal { outcome, participants: plan.participants, inherited: false }))
    }

    /// The order of the gossip graph over the next view. Rates that only some told say little of the whole: then the order stays.
    /// A leader under the first ballot knows those of the round before, one under a higher ballot has just been told all.
    fn order_of(&self, view: &View, participants: &[NodeId]) -> Vec<NodeId> {
        let Some(history) = self.history.as_ref().filter(|_| self.settings.orders_by_rate) else { return Vec::new() };
        let members: Vec<NodeId> = view.ids().collect();
        let all_told = participants.iter().all(|node| self.rates.contains_key(node));
        let none = Rates::new();
        next_order(&history.order, &members, if all_told { &self.rates } else { &none })
    }

    fn samples_of(&self, node: NodeId) -> Option<crate::sampler::Progress> {
        self.current.as_ref()?.contributed.get(&node)?.samples.clone()
    }

    /// The lineage goes on where a quorum decides: no two quorums decide differently. Fewer may where survivors decide, and where all
    /// the others died and came back holding nothing; but others than this view knows of may have gone on, and where they did, these
    /// are two histories. So they are where survivors propose without having refuted all that was reported.
    pub(super) fn lineage_after(&self, participants: &[NodeId]) -> Option<Lineage> {
        let history = self.history.as_ref()?;
        let leading = self.current.as_ref().and_then(|current| current.leading.as_ref());
        let open = |leading: &Proposer<Proposal>| leading.overshadows() || leading.bound_to().is_some();
        let unrefuted = self.settings.quorum == Quorum::Survivors && leading.is_some_and(open);
        let quorum = history.view.is_quorum(participants.iter().copied()) && !unrefuted;
        // Before the founding is decided there is no history to tell apart.
        let founding = self.settings.quorum == Quorum::Majority && history.round == Round::FOUNDING;
        if quorum || founding {
            return Some(history.lineage);
        }
        let mut bytes = history.lineage.0.to_le_bytes().to_vec();
        bytes.extend(history.round.0.to_le_bytes());
        participants.iter().for_each(|node| bytes.extend(node.0.to_le_bytes()));
        Some(history.lineage.parted(xxh3_128(&bytes)))
    }
}
