//! Wire form of an attempt: the changes to what members already know. In a steady round it is a few
//! bytes, independent of the number of members; whole views are sent only to nodes that join and to
//! nodes that ask.

use super::outcome::{Origin, Outcome, Proposal, RoundSpec};
use super::voters::{NextVoters, VOTERS_KEPT, Voter};
use crate::changeable::ChangedSettings;
use crate::forks::Fork;
use crate::ident::{Lineage, NodeId, ShardId};
use crate::published::Digest;
use crate::sampler::Progress;
use crate::shards::SHARDS_MAX;
use crate::view::{MEMBERS_MAX, Member, View};
use serde::{Deserialize, Serialize};

/// Changes that an attempt makes to the previous entry. Members are named by their rank in the view
/// of the round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Draft {
    /// Spec of the round.
    pub spec: RoundSpec,
    /// The history that the outcome belongs to.
    pub lineage: Lineage,
    /// Members that take no part, ascending.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub absent_members: Vec<u16>,
    /// Members that take part and do not contribute, ascending.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub idle_members: Vec<u16>,
    /// Members that take part and are not in the next view, ascending.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub leaving_members: Vec<u16>,
    /// Members of the next view that take no part in the reduction, ascending: nodes that join.
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub joining: Vec<Member>,
    /// See [`Outcome::waiting`].
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    pub waiting: Vec<NodeId>,
    /// See [`Outcome::retained`].
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, VOTERS_KEPT>")]
    pub retained: Vec<Member>,
    /// See [`Outcome::leader`].
    pub leader: NodeId,
    /// See [`Outcome::absent`].
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, SHARDS_MAX>")]
    pub absent_shards: Vec<ShardId>,
    /// See [`Outcome::momentum_lost`].
    pub momentum_lost: u64,
    /// See [`Outcome::samples`].
    pub samples: Option<Progress>,
    /// See [`Outcome::order`]; `None`: unchanged.
    pub order: Option<Order>,
    /// See [`Outcome::origin`].
    pub origin: Origin,
    /// See [`Outcome::checkpoint`].
    pub checkpoint: bool,
    /// See [`Outcome::changed`]; `None`: unchanged.
    pub changed: Option<ChangedSettings>,
    /// The fork that begins with this entry, if any.
    pub fork: Option<Fork>,
}

/// The order of the gossip graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Order(
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")] pub Vec<NodeId>,
);

/// Base that a draft changes: the view of the round, and the order, the settings and the forks that
/// the previous entry decided.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// The round.
    pub round: crate::ident::Round,
    /// View of the round.
    pub view: &'a View,
    /// The order of the gossip graph.
    pub order: &'a [NodeId],
    /// The settings that its entries changed.
    pub changed: ChangedSettings,
    /// The forks of its history.
    pub forks: &'a [Fork],
}

impl Draft {
    /// Encodes `proposal` as a change of `base`.
    #[must_use]
    pub fn new(proposal: &Proposal, base: Base<'_>) -> Self {
        let Proposal {
            outcome,
            participants,
        } = proposal;
        let takes_part = |id: &NodeId| participants.binary_search(id).is_ok();
        // A view has fewer members than a u16 has values.
        let ranks = |select: &dyn Fn(&NodeId) -> bool| -> Vec<u16> {
            base.view
                .ids()
                .enumerate()
                .filter(|(_, id)| select(id))
                .map(|(rank, _)| rank as u16)
                .collect()
        };
        Self {
            spec: outcome.spec,
            lineage: outcome.lineage,
            absent_members: ranks(&|id| !takes_part(id)),
            idle_members: ranks(&|id| {
                takes_part(id) && outcome.contributors.binary_search(id).is_err()
            }),
            leaving_members: ranks(&|id| takes_part(id) && !outcome.view.contains(*id)),
            joining: proposal.joiners().cloned().collect(),
            waiting: outcome.waiting.clone(),
            retained: outcome.retained.clone(),
            leader: outcome.leader,
            absent_shards: outcome.absent.clone(),
            momentum_lost: outcome.momentum_lost,
            samples: outcome.samples.clone(),
            order: (outcome.order != base.order).then(|| Order(outcome.order.clone())),
            origin: outcome.origin,
            checkpoint: outcome.checkpoint,
            changed: (outcome.changed != base.changed).then_some(outcome.changed),
            fork: outcome.forks.get(base.forks.len()).copied(),
        }
    }

    /// The proposal that the draft stands for; `None` if it is not a valid change of `base`.
    #[must_use]
    pub fn resolve(&self, base: Base<'_>) -> Option<Proposal> {
        let members = base.view.members();
        let lists = [
            &self.absent_members,
            &self.idle_members,
            &self.leaving_members,
        ];
        let named = |ranks: &Vec<u16>| {
            ranks.windows(2).all(|pair| pair[0] < pair[1])
                && ranks
                    .last()
                    .is_none_or(|last| usize::from(*last) < members.len())
        };
        if !lists.iter().all(|ranks| named(ranks)) {
            return None;
        }
        let has =
            |ranks: &Vec<u16>, rank: usize| ranks.iter().any(|named| usize::from(*named) == rank);
        let mut participants = Vec::with_capacity(members.len());
        let mut contributors = Vec::with_capacity(members.len());
        let mut next: Vec<Member> = self.joining.clone();
        for (rank, member) in members.iter().enumerate() {
            if has(&self.absent_members, rank) {
                continue;
            }
            participants.push(member.id);
            if !has(&self.idle_members, rank) {
                contributors.push(member.id);
            }
            if !has(&self.leaving_members, rank) {
                next.push(member.clone());
            }
        }
        if contributors.is_empty() {
            return None;
        }
        let view = next_view(base.view, next, !self.joining.is_empty())?;
        let voting = |id: &NodeId| view.contains(*id) && !self.waiting.contains(id);
        if !voting(&self.leader) || self.retained.iter().any(|voter| view.contains(voter.id)) {
            return None;
        }
        let outcome = Outcome {
            lineage: self.lineage,
            round: base.round,
            spec: self.spec,
            contributors,
            view,
            // Nobody knows it before the data has moved.
            published: Digest::default(),
            absent: self.absent_shards.clone(),
            momentum_lost: self.momentum_lost,
            samples: self.samples.clone(),
            order: self
                .order
                .as_ref()
                .map_or_else(|| base.order.to_vec(), |order| order.0.clone()),
            origin: self.origin,
            checkpoint: self.checkpoint,
            changed: self.changed.unwrap_or(base.changed),
            forks: base.forks.iter().copied().chain(self.fork).collect(),
            waiting: self.waiting.clone(),
            retained: self.retained.clone(),
            leader: self.leader,
        };
        Some(Proposal {
            outcome,
            participants,
        })
    }
}

/// The view of `members` that follows `before`: the same epoch if nothing changed. A node that
/// joins (`joins`) changes the view even if it was a member before, since it is not ready twice.
#[must_use]
pub fn next_view(before: &View, mut members: Vec<Member>, joins: bool) -> Option<View> {
    members.sort_by_key(|member| member.id);
    if !joins && members.iter().eq(before.members()) {
        return Some(before.clone());
    }
    let epoch = crate::ident::Epoch(before.epoch().0.checked_add(1)?);
    before.succeeded_by(epoch, members).ok()
}

impl NextVoters {
    /// Sets the voters of `outcome`; `known` are the members and voters before it.
    pub fn apply_to<'a>(
        self,
        outcome: &mut Outcome,
        known: impl Iterator<Item = &'a Member> + Clone,
    ) {
        outcome.waiting = self.waiting;
        let member = |voter: &Voter| {
            known
                .clone()
                .find(|member| Voter::from(*member) == *voter)
                .cloned()
        };
        outcome.retained = self.retained.iter().filter_map(member).collect();
        outcome.leader = self.leader;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::changeable::SettingValues;
    use crate::coordinator::RoundKind;
    use crate::ident::{Round, Step};
    use crate::view::tests::view;
    use std::num::NonZeroU64;

    /// Nodes 2, 4 and 6, and the result of a round: 4 does not contribute and leaves, 6 takes no
    /// part, 3 joins and waits to vote.
    fn example() -> (View, Proposal) {
        let before = view(&[2, 4, 6]);
        let members = vec![before.members()[0].clone(), view(&[3]).members()[0].clone()];
        let outcome = Outcome {
            lineage: Lineage(7),
            round: Round(5),
            spec: RoundSpec {
                kind: RoundKind::Average,
                step: Step(9),
                gamma: 0.5,
                elements: 10,
            },
            contributors: vec![NodeId(2)],
            view: next_view(&before, sorted(members), true).unwrap(),
            published: Digest::default(),
            absent: vec![ShardId(1)],
            momentum_lost: 1,
            samples: None,
            order: vec![NodeId(3), NodeId(2)],
            origin: Origin::default(),
            checkpoint: true,
            changed: CHANGED,
            forks: vec![fork(3), fork(5)],
            waiting: vec![NodeId(3)],
            retained: vec![before.members()[2].clone()],
            leader: NodeId(2),
        };
        (
            before,
            Proposal {
                outcome,
                participants: vec![NodeId(2), NodeId(4)],
            },
        )
    }

    const CHANGED: ChangedSettings = ChangedSettings {
        number: 2,
        round: Round(5),
        values: SettingValues {
            tau: NonZeroU64::new(12),
            frequency: None,
            grace_ms: None,
            gossip_wire: None,
            round_wire: None,
            checkpoint_every: None,
        },
    };
    const FORKS: [Fork; 1] = [fork(3)];

    const fn fork(round: u64) -> Fork {
        Fork {
            round: Round(round),
            contributors: 1,
            lineage: Lineage(7),
        }
    }

    fn sorted(mut members: Vec<Member>) -> Vec<Member> {
        members.sort_by_key(|member| member.id);
        members
    }

    fn base(view: &View) -> Base<'_> {
        Base {
            round: Round(5),
            view,
            order: &[],
            changed: ChangedSettings::default(),
            forks: &FORKS,
        }
    }

    #[test]
    fn a_draft_stands_for_the_proposal_that_it_was_made_of() {
        let (before, proposal) = example();
        let draft = Draft::new(&proposal, base(&before));
        assert_eq!(
            (
                &draft.absent_members,
                &draft.idle_members,
                &draft.leaving_members
            ),
            (&vec![2], &vec![1], &vec![1])
        );
        assert_eq!(draft.resolve(base(&before)), Some(proposal.clone()));
        // Unchanged order and settings are not encoded again.
        let order = proposal.outcome.order.clone();
        let base = Base {
            order: &order,
            changed: CHANGED,
            ..base(&before)
        };
        let shorter = Draft::new(&proposal, base);
        assert_eq!((&shorter.order, shorter.changed), (&None, None));
        assert_eq!(shorter.resolve(base), Some(proposal));
    }

    #[test]
    fn a_draft_that_is_no_change_of_the_view_is_refused() {
        let (before, proposal) = example();
        let draft = Draft::new(&proposal, base(&before));
        let member = |id: u64| view(&[id]).members()[0].clone();
        let hostile = [
            (
                "a rank behind the last",
                Draft {
                    absent_members: vec![3],
                    ..draft.clone()
                },
            ),
            (
                "the largest rank",
                Draft {
                    idle_members: vec![u16::MAX],
                    ..draft.clone()
                },
            ),
            (
                "a rank behind the last that leaves",
                Draft {
                    leaving_members: vec![1, 3],
                    ..draft.clone()
                },
            ),
            (
                "ranks out of order",
                Draft {
                    absent_members: vec![2, 1],
                    ..draft.clone()
                },
            ),
            (
                "a rank twice",
                Draft {
                    leaving_members: vec![1, 1],
                    ..draft.clone()
                },
            ),
            (
                "nobody takes part",
                Draft {
                    absent_members: vec![0, 1, 2],
                    ..draft.clone()
                },
            ),
            (
                "nobody contributes",
                Draft {
                    idle_members: vec![0, 1],
                    ..draft.clone()
                },
            ),
            (
                "nobody is left",
                Draft {
                    leaving_members: vec![0, 1],
                    joining: vec![],
                    ..draft.clone()
                },
            ),
            (
                "a leader that is no member",
                Draft {
                    leader: NodeId(4),
                    ..draft.clone()
                },
            ),
            (
                "a leader that does not vote yet",
                Draft {
                    leader: NodeId(3),
                    ..draft.clone()
                },
            ),
            (
                "a member that votes without being one",
                Draft {
                    retained: vec![member(2)],
                    ..draft.clone()
                },
            ),
            (
                "a member that joins",
                Draft {
                    joining: vec![member(2)],
                    ..draft.clone()
                },
            ),
            (
                "a node that joins twice",
                Draft {
                    joining: vec![member(3), member(3)],
                    ..draft.clone()
                },
            ),
        ];
        for (what, draft) in hostile {
            assert_eq!(draft.resolve(base(&before)), None, "{what}");
        }
        // A draft on a view with the last epoch is refused too.
        let last = View::new(crate::ident::Epoch(u64::MAX), before.members().to_vec()).unwrap();
        assert_eq!(draft.resolve(base(&last)), None);
    }
}
