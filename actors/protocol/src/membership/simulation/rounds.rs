//! The coordinators, as far as memberships see them: a living leader decides rounds with a quorum
//! of the view and admits nodes that are ready to join. The decisions are checked to form one
//! history.

use super::process::{At, Process};
use super::world::{Event, MS, World};
use crate::forks::Fork;
use crate::ident::{Epoch, Lineage, NodeId, Round};
use crate::membership::In;
use crate::view::{Member, View};
use xxhash_rust::xxh3::xxh3_128;

/// Mean time, in microseconds, between the leaders' checks whether a round can be decided.
const ROUND_EVERY: u64 = 60 * MS;

/// How long, in microseconds, a living member that does not take part is waited for.
const GRACE: u64 = 2_000 * MS;

/// A decided outcome on its way to a process.
pub struct Apply {
    leader: usize,
    to: usize,
    /// Member state of the process before; `None` if it joins.
    before: Option<At>,
    after: At,
}

impl World {
    pub fn rounds(&mut self) {
        self.at(
            self.now + ROUND_EVERY / 2 + self.random.0 % ROUND_EVERY,
            Event::Rounds,
        );
        for leader in 0..if self.slow_rounds {
            0
        } else {
            self.processes.len()
        } {
            if !self.processes[leader].alive {
                continue;
            }
            let Some(at) = self.processes[leader].coordinator.clone() else {
                continue;
            };
            let now = self.now;
            let (round, since) = self.processes[leader]
                .waits_since
                .get_or_insert((at.round, now));
            if *round != at.round {
                *round = at.round;
                *since = now;
            }
            let late = now > *since + GRACE;
            if let Some(participants) = self.participants(leader, &at, late) {
                self.decide(leader, &at, &participants);
            }
        }
    }

    /// The processes that decide with this leader: every member that is neither gone nor later than
    /// [`GRACE`], if they are enough.
    fn participants(&self, leader: usize, at: &At, late: bool) -> Option<Vec<usize>> {
        let process = &self.processes[leader];
        let living: Vec<&Member> = at
            .view
            .members()
            .iter()
            .filter(|member| !is_gone(process, &at.view, member))
            .collect();
        if living.first().map(|member| member.id) != Some(process.id) {
            return None;
        }
        let stands = |member: &Member| {
            let here = |process: &Process| {
                process.incarnation == member.incarnation
                    && process.coordinator.as_ref() == Some(at)
            };
            self.processes
                .iter()
                .position(here)
                .filter(|index| self.reaches(leader, *index))
        };
        let participants: Vec<usize> = living.iter().filter_map(|member| stands(member)).collect();
        if participants.len() < living.len() && !late {
            return None;
        }
        let enough = at
            .view
            .is_quorum(participants.iter().map(|index| self.processes[*index].id))
            || self.common.survivors;
        let back = |member: &Member| {
            joiner(process, &at.view, member.id)
                .is_some_and(|joiner| joiner.incarnation >= member.incarnation)
        };
        let accounted = at
            .view
            .members()
            .iter()
            .all(|member| back(member) || stands(member).is_some());
        (enough || accounted).then_some(participants)
    }

    fn decide(&mut self, leader: usize, at: &At, participants: &[usize]) {
        let process = &self.processes[leader];
        let ready = |member: &&Member| {
            let joins = self
                .processes
                .iter()
                .position(|process| process.incarnation == member.incarnation);
            let waits = |index: &usize| {
                self.processes[*index].coordinator.is_none()
                    && self.processes[*index].failed.is_none()
            };
            joins.filter(waits).is_some_and(|index| {
                participants
                    .iter()
                    .all(|participant| self.reaches(*participant, index))
            })
        };
        let joiners: Vec<Member> = if process.joiners.0 == at.view.epoch() {
            process.joiners.1.iter().filter(ready).cloned().collect()
        } else {
            Vec::new()
        };
        let participates = |member: &&Member| {
            participants
                .iter()
                .any(|index| self.processes[*index].incarnation == member.incarnation)
        };
        let stay = at
            .view
            .members()
            .iter()
            .filter(participates)
            .filter(|member| !process.leaving.contains(&(member.id, member.incarnation)))
            .cloned();
        let members: Vec<Member> = stay.chain(joiners.iter().cloned()).collect();
        let changed = !members.iter().eq(at.view.members()) || !joiners.is_empty();
        let epoch = if changed {
            Epoch(at.view.epoch().0 + 1)
        } else {
            at.view.epoch()
        };
        let Ok(view) = at.view.succeeded_by(epoch, members) else {
            return;
        };
        assert!(
            view.size() <= self.common.max_nodes,
            "more members than there may be"
        );
        let quorum = at
            .view
            .is_quorum(participants.iter().map(|index| self.processes[*index].id));
        let bootstrap = at.round == Round::BOOTSTRAP && !self.common.survivors;
        let mut forks = at.forks.clone();
        if !(quorum || bootstrap) {
            forks.push(Fork {
                round: at.round,
                contributors: participants.len() as u32,
                lineage: fork(at, &view),
            });
        }
        let lineage = forks.last().map_or(at.lineage, |fork| fork.lineage);
        // A successor is bound by the decision of an earlier leader.
        let view = self
            .decided
            .entry((lineage, at.round))
            .or_insert(view)
            .clone();
        let joiners: Vec<Member> = joiners
            .into_iter()
            .filter(|joiner| view.members().contains(joiner))
            .collect();
        let after = At {
            lineage,
            forks,
            round: at.round.next(),
            view,
            dead: Vec::new(),
        };
        let joining = |member: &Member| {
            self.processes
                .iter()
                .position(|process| process.incarnation == member.incarnation)
        };
        let joining: Vec<usize> = joiners.iter().filter_map(joining).collect();
        let to = participants
            .iter()
            .map(|index| (*index, Some(at.clone())))
            .chain(joining.into_iter().map(|index| (index, None)));
        for (to, before) in to.collect::<Vec<_>>() {
            let after = after.clone();
            self.later(
                30 * MS,
                Event::Apply(Apply {
                    leader,
                    to,
                    before,
                    after,
                }),
            );
        }
    }

    /// Delivers a decision, if the process can be reached before the others have gone further.
    pub fn apply(&mut self, apply: Apply) {
        let Apply {
            leader,
            to,
            before,
            after,
        } = &apply;
        let process = &self.processes[*to];
        if !process.alive || process.coordinator != *before {
            return;
        }
        let admits = |view: &View| {
            view.member(process.id)
                .is_some_and(|member| member.incarnation == process.incarnation)
        };
        let admitted = admits(&after.view);
        if admitted && self.decided.contains_key(&(after.lineage, after.round)) {
            return;
        }
        // Nodes that know the decision tell members that missed it; a node that left is told once.
        let knows = |process: &Process| process.coordinator.as_ref() == Some(after);
        let told = (0..self.processes.len()).any(|index| {
            self.reaches(index, *to) && (index == *leader || knows(&self.processes[index]))
        });
        if !told && admitted {
            return self.later(50 * MS, Event::Apply(apply));
        }
        if !told {
            return;
        }
        let to = *to;
        let after = after.clone();
        let process = &mut self.processes[to];
        let view = &after.view;
        process.coordinator = admitted.then(|| after.clone());
        process.before = None;
        process.leaving.retain(|(id, _)| view.contains(*id));
        process.lost.retain(|(id, incarnation)| {
            view.member(*id)
                .is_some_and(|member| member.incarnation == *incarnation)
        });
        self.feed(to, In::Decided(after));
        if !admitted {
            self.later(50 * MS, Event::Leave(to));
        }
    }
}

/// Whether a member is dead according to the leader, or back as a joiner.
fn is_gone(leader: &Process, view: &View, member: &Member) -> bool {
    let back = member.id != leader.id && joiner(leader, view, member.id).is_some();
    back || (member.id != leader.id && leader.lost.contains(&(member.id, member.incarnation)))
}

fn joiner<'a>(leader: &'a Process, view: &View, id: NodeId) -> Option<&'a Member> {
    let (epoch, members) = &leader.joiners;
    members
        .iter()
        .find(|member| *epoch == view.epoch() && member.id == id)
}

/// The lineage of the members that go on without a quorum.
fn fork(at: &At, view: &View) -> Lineage {
    let ids = view
        .members()
        .iter()
        .flat_map(|member| member.incarnation.0.to_le_bytes());
    let bytes: Vec<u8> = at
        .lineage
        .0
        .to_le_bytes()
        .into_iter()
        .chain(at.round.0.to_le_bytes())
        .chain(ids)
        .collect();
    at.lineage.parted(xxh3_128(&bytes))
}
