//! Decided entries, and what follows from them alone: shard maps, the next view and its voters,
//! losses.

use super::Coordinator;
use crate::changeable::ChangedSettings;
use crate::coordinator::acceptor::first_term;
use crate::coordinator::draft::{Base, next_view};
use crate::coordinator::outcome::{Origin, Outcome, Proposal, RoundKind, RoundSpec};
use crate::coordinator::plan::{Holders, Plan, Publication, losses};
use crate::coordinator::voters::{Voter, Voters, next_voters};
use crate::forks::Fork;
use crate::ident::{Lineage, NodeId, Round, ShardId, Term};
use crate::machine::Place;
use crate::policy::OnMomentumLoss;
use crate::published::Digest;
use crate::shards::{Layout, ShardMap};
use crate::topology::{Rates, next_order};
use crate::view::{MEMBERS_MAX, Member, View};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Maximum number of shard maps that are kept: those of two views, for the layouts of parameters,
/// gradients and averaged buffers.
const SHARD_MAPS_MAX: usize = 8;

/// Decided state up to the round under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct History {
    pub lineage: Lineage,
    /// The history of the previous entry; differs from `lineage` if this round forked.
    pub began_in: Lineage,
    /// The round under way.
    pub round: Round,
    /// View of the round.
    pub view: View,
    /// Voters of the round.
    pub voters: Voters,
    /// Voters of the round that are not members.
    pub retained: Vec<Member>,
    /// Default leader of the round.
    pub leader: NodeId,
    /// Shards whose state nobody holds.
    pub absent: Vec<ShardId>,
    pub momentum_lost: u64,
    /// Members in the order of the gossip graph; empty for ascending ids.
    pub order: Vec<NodeId>,
    /// Source of the history.
    pub origin: Origin,
    /// The settings that its entries changed.
    pub changed: ChangedSettings,
    /// Forks of the history since the bootstrap.
    pub forks: Vec<Fork>,
    /// The previous entry, for nodes that missed it.
    pub last: Option<PlacedOutcome>,
    /// Whether the history began without a quorum and has decided nothing yet.
    pub is_fork: bool,
    /// Whether an operator ordered the fork.
    pub is_ordered: bool,
    /// Whether this node is a member. Otherwise it votes, or receives the round's data, or both.
    pub member: bool,
    /// Whether this node holds what the previous entry decided. It does not where others decided
    /// that entry without it, nor while it is admitted by a round after an entry that it missed.
    pub holds: bool,
}

/// An entry with the place where it was decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlacedOutcome {
    pub outcome: Outcome,
    pub place: Place,
}

impl History {
    pub fn bootstrap(view: View, lineage: Lineage, origin: Origin) -> Self {
        Self {
            lineage,
            began_in: lineage,
            round: Round::BOOTSTRAP,
            voters: Voters::of_bootstrap(&view),
            retained: Vec::new(),
            leader: view.lowest(),
            view,
            absent: Vec::new(),
            momentum_lost: 0,
            order: Vec::new(),
            origin,
            changed: ChangedSettings::default(),
            forks: Vec::new(),
            last: None,
            is_fork: false,
            is_ordered: false,
            member: true,
            holds: true,
        }
    }

    /// The history after an entry that the incarnation `me` of a node does not hold.
    pub fn after(outcome: Outcome, place: Place, me: Voter) -> Self {
        let member = outcome
            .view
            .member(me.node)
            .is_some_and(|member| member.incarnation == me.incarnation);
        Self {
            lineage: outcome.lineage,
            began_in: outcome.lineage,
            round: outcome.round.next(),
            view: outcome.view.clone(),
            voters: outcome.voters(),
            retained: outcome.retained.clone(),
            leader: outcome.leader,
            absent: outcome.absent.clone(),
            momentum_lost: outcome.momentum_lost,
            order: outcome.order.clone(),
            origin: outcome.origin,
            changed: outcome.changed,
            forks: outcome.forks.clone(),
            last: Some(PlacedOutcome { outcome, place }),
            is_fork: false,
            is_ordered: false,
            member,
            holds: false,
        }
    }

    /// Forks of the round's outcome: one more than before if the round forks.
    pub fn forks_after(&self, contributors: usize) -> Vec<Fork> {
        let mut forks = self.forks.clone();
        if self.is_fork {
            let contributors = u32::try_from(contributors).unwrap_or(u32::MAX);
            forks.push(Fork {
                round: self.round,
                contributors,
                lineage: self.lineage,
            });
        }
        forks
    }

    /// The lowest term of the round.
    pub fn first_term(&self) -> Term {
        first_term(self.leader)
    }

    /// Base that the drafts of the round change.
    pub fn base(&self) -> Base<'_> {
        Base {
            round: self.round,
            view: &self.view,
            order: &self.order,
            changed: self.changed,
            forks: &self.forks,
        }
    }
}

/// Shard maps by members in slot order and number of values.
#[derive(Clone, Debug, Default)]
pub(super) struct Maps(Vec<(Vec<NodeId>, u64, Arc<ShardMap>)>);

/// This is a cache: two machines that differ only in it are equal.
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
        let same = |ids: &[NodeId]| {
            ids.len() == view.size() && view.in_slot_order().eq(ids.iter().copied())
        };
        if let Some((.., map)) = self
            .0
            .iter()
            .find(|(ids, values, _)| *values == elements && same(ids))
        {
            return Arc::clone(map);
        }
        let map = Arc::new(ShardMap::new(
            view,
            &Layout::new(elements as usize),
            replicas,
        ));
        if self.0.len() == SHARD_MAPS_MAX {
            self.0.remove(0);
        }
        self.0
            .push((view.in_slot_order().collect(), elements, Arc::clone(&map)));
        map
    }
}

impl Coordinator {
    /// The entry decided last, also if it excluded this node.
    pub(super) fn last(&self) -> Option<&PlacedOutcome> {
        let last = self
            .history
            .as_ref()
            .and_then(|history| history.last.as_ref());
        last.or(self.left_with.as_ref().map(|left| &left.decided))
    }

    /// The plan of an attempt of the round.
    pub(super) fn plan(
        &mut self,
        place: Place,
        spec: RoundSpec,
        contributors: Vec<NodeId>,
        participants: Vec<NodeId>,
    ) -> Option<Plan> {
        let history = self.history.as_ref()?;
        let map = self
            .maps
            .get(&history.view, spec.elements, self.settings.replicas);
        let layout = Layout::new(spec.elements as usize);
        let plan = Plan::new(
            self.settings.identity.node,
            place,
            spec,
            (contributors, participants),
            layout,
            &history.view,
            &map,
        );
        Some(plan.restoring(self.settings.restores))
    }

    pub(super) fn publication(&mut self, plan: &Plan, outcome: &Outcome) -> Option<Publication> {
        let publication = self.moves(plan, outcome)?;
        let slow_step = plan.spec.kind == RoundKind::Slow;
        let copies = self.buffers > 0
            && self
                .settings
                .copies_buffers
                .is_some_and(|strategy| strategy.leaves_own(slow_step));
        Some(if copies {
            publication.with_donation(plan, outcome, self.buffers)
        } else {
            publication
        })
    }

    fn moves(&mut self, plan: &Plan, outcome: &Outcome) -> Option<Publication> {
        let history = self.history.as_ref()?;
        let state_elements = if plan.spec.kind == RoundKind::Bootstrap {
            Some(plan.spec.elements)
        } else {
            self.state_elements
        };
        if !self.settings.keeps_state {
            return Some(Publication::new(plan, outcome, None));
        }
        let Some(elements) = state_elements else {
            return Some(Publication::new(plan, outcome, None));
        };
        let before = self
            .maps
            .get(&history.view, elements, self.settings.replicas);
        let after = self
            .maps
            .get(&outcome.view, elements, self.settings.replicas);
        let layout = Layout::new(elements as usize);
        let holders = Holders {
            layout,
            before: &before,
            after: &after,
            absent: &history.absent,
        };
        Some(Publication::new(plan, outcome, Some(holders)))
    }

    /// The shards whose momentum restarts at zero in an attempt, and those that nobody holds after
    /// it.
    fn losses(&mut self, plan: &Plan) -> (Vec<ShardId>, Vec<ShardId>) {
        if !self.settings.keeps_state {
            return (Vec::new(), Vec::new());
        }
        let (Some(history), Some(elements)) = (&self.history, self.state_elements) else {
            return (Vec::new(), Vec::new());
        };
        let before = self
            .maps
            .get(&history.view, elements, self.settings.replicas);
        losses(
            plan,
            &before,
            Layout::new(elements as usize),
            &history.absent,
        )
    }

    /// The next view: the participants, without those that leave, with those that join.
    fn next_view(&self, spec: RoundSpec, participants: &[NodeId]) -> Option<View> {
        let history = self.history.as_ref()?;
        let takes_part = |member: &&Member| participants.binary_search(&member.id).is_ok();
        let stays =
            |member: &&Member| takes_part(member) && !self.peers.is_leaving(Voter::from(*member));
        let mut members: Vec<Member> = history
            .view
            .members()
            .iter()
            .filter(stays)
            .cloned()
            .collect();
        if members.is_empty() && self.leaving_waits_for_a_checkpoint(spec) {
            members.extend(history.view.members().iter().filter(takes_part).cloned());
        } else if members.is_empty() {
            // All leave. One of them stays for one more entry, even if others join: it holds
            // everything, and votes.
            members.extend(history.view.members().iter().find(takes_part).cloned());
        }
        let waits = self
            .deciding
            .as_ref()
            .is_some_and(|deciding| !deciding.joiners_over);
        let first_attempt = self
            .deciding
            .as_ref()
            .and_then(|deciding| deciding.lead.attempts())
            .and_then(|attempts| attempts.within.as_ref());
        let mut joins = false;
        if spec.carries_parameters() && spec.kind != RoundKind::Bootstrap && waits {
            let room = MEMBERS_MAX.saturating_sub(members.len());
            let may_join = |joiner: &&Member| {
                participants.binary_search(&joiner.id).is_err()
                    && first_attempt.is_none_or(|within| within.contains(&joiner.id))
            };
            let joining: Vec<Member> = self
                .peers
                .candidates(history.round)
                .filter(may_join)
                .take(room)
                .cloned()
                .collect();
            joins = !joining.is_empty();
            members.extend(joining);
        }
        next_view(&history.view, members, joins)
    }

    /// The proposal that a leader attempts; `Err` with the number of lost shards if the loss stops
    /// the run.
    pub(super) fn compose(
        &mut self,
        place: Place,
        spec: RoundSpec,
        contributors: Vec<NodeId>,
        participants: Vec<NodeId>,
    ) -> Option<Result<Proposal, u32>> {
        let plan = self.plan(place, spec, contributors, participants)?;
        let (lost, absent) = self.losses(&plan);
        if !lost.is_empty() && self.settings.on_momentum_loss == OnMomentumLoss::Stop {
            return Some(Err(u32::try_from(lost.len()).unwrap_or(u32::MAX)));
        }
        let view = self.next_view(spec, &plan.participants)?;
        let history = self.history.as_ref()?;
        let next = next_voters(&history.voters, &view, |voter| self.peers.has_ended(*voter));
        let changed = self.settings_after(spec);
        let mut outcome = Outcome {
            lineage: history.lineage,
            round: history.round,
            spec,
            published: Digest::default(),
            absent,
            momentum_lost: history.momentum_lost.saturating_add(lost.len() as u64),
            samples: plan
                .contributors
                .iter()
                .find_map(|node| self.samples_of(*node)),
            order: self.order_of(&view, &plan.participants),
            origin: history.origin,
            checkpoint: self.makes_checkpoint(spec, &plan.participants, changed),
            changed,
            forks: history.forks_after(plan.contributors.len()),
            contributors: plan.contributors,
            view,
            waiting: Vec::new(),
            retained: Vec::new(),
            leader: history.leader,
        };
        next.apply_to(
            &mut outcome,
            history.view.members().iter().chain(&history.retained),
        );
        Some(Ok(Proposal {
            outcome,
            participants: plan.participants,
        }))
    }

    /// Order of the gossip graph over the next view. If only some participants reported their
    /// rates, the order stays, since these say little about the whole. A leader under the first
    /// term knows the rates of the previous round; one under a higher term has just been told all.
    fn order_of(&self, view: &View, participants: &[NodeId]) -> Vec<NodeId> {
        if !self.settings.orders_by_rate {
            return Vec::new();
        }
        let Some(history) = &self.history else {
            return Vec::new();
        };
        let members: Vec<NodeId> = view.ids().collect();
        let all_told = participants
            .iter()
            .all(|node| self.rates.contains_key(node));
        let none = Rates::new();
        next_order(
            &history.order,
            &members,
            if all_told { &self.rates } else { &none },
        )
    }

    fn samples_of(&self, node: NodeId) -> Option<crate::sampler::Progress> {
        self.deciding
            .as_ref()?
            .contributed
            .get(&node)?
            .samples
            .clone()
    }
}
