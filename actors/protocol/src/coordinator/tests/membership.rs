//! The membership of the simulated world: what happens to nodes, and who hears of it when.

use super::node::Node;
use super::world::{DELAY_MAX, Event, Fault, World};
use crate::coordinator::{GivesUp, In, Voter, Voters, next_voters};
use crate::ident::{Lineage, NodeId, Round};
use crate::policy::Quorum;
use crate::view::{Member, View};
use std::collections::BTreeSet;

/// How often the membership looks around.
pub const LOOK_EVERY: u64 = 2_000;
/// How long after it saw a death it says so at most.
const VERDICT_MAX: u64 = 4_000;

/// A time in which a start of a node could not take part.
#[derive(Clone, Debug)]
pub struct Absence {
    start: Voter,
    /// When it ended.
    until: u64,
    /// Whether the others were told that it is dead although it lives.
    suspected: bool,
}

impl World {
    pub fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(id) => self.kill(id),
            Fault::KillOne(id) if self.survives_without(id) => self.kill(id),
            Fault::KillOne(_) => {}
            Fault::Start(id) => self.start(id),
            Fault::Pause(id, span) if self.is_up(id) => {
                self.absent(id, self.now + span, false);
                let node = self.nodes.get_mut(&id).unwrap();
                node.stopped_until = node.stopped_until.max(self.now + span);
            }
            Fault::Suspect(id, span) if self.is_up(id) => self.absent(id, self.now + span, true),
            // A member drains; it may be stranded instead, which must not cost the others their
            // quorum.
            Fault::Drain(id)
                if self.is_up(id) && !self.nodes[&id].outside && self.survives_without(id) =>
            {
                self.nodes.get_mut(&id).unwrap().draining = true;
            }
            Fault::Leave(id)
                if self.is_up(id) && !self.nodes[&id].outside && self.survives_without(id) =>
            {
                let node = self.nodes.get_mut(&id).unwrap();
                // What it contributed already counts.
                node.draining = true;
                node.silent = !node.waiting;
            }
            Fault::Slow(id, span) => _ = self.network.slow.insert(id, self.now + span),
            Fault::Pause(..) | Fault::Suspect(..) | Fault::Drain(_) | Fault::Leave(_) => {}
            Fault::Break(one, other) => self.break_link(one, other),
            Fault::Cut(group) => {
                group
                    .iter()
                    .for_each(|id| self.absent(*id, u64::MAX, false));
                self.cut = Some(group);
            }
            Fault::Heal => {
                for id in self.cut.take().into_iter().flatten() {
                    let now = self.now;
                    self.absences
                        .iter_mut()
                        .filter(|absence| absence.start.node == id)
                        .for_each(|absence| absence.until = absence.until.min(now));
                }
            }
        }
    }

    fn kill(&mut self, id: NodeId) {
        if !self.is_up(id) {
            return;
        }
        self.absent(id, u64::MAX, false);
        let start = self.nodes[&id].start();
        if self.random.below(2) == 0 {
            self.vanished.insert(start);
        }
        self.nodes.get_mut(&id).unwrap().alive = false;
        for other in self.others(id) {
            let link = self.network.of(id, other);
            self.later(Event::Break(id, other, link), DELAY_MAX);
        }
    }

    fn start(&mut self, id: NodeId) {
        if self.is_up(id) {
            return;
        }
        self.incarnations += 1;
        self.nodes.insert(
            id,
            Node::new(
                id,
                self.incarnations,
                self.schedule,
                self.replicas,
                (self.quorum, self.on_quorum_loss),
            ),
        );
        for other in self.others(id) {
            self.break_link(id, other);
        }
        self.train_later(id);
    }

    fn absent(&mut self, id: NodeId, until: u64, suspected: bool) {
        if let Some(node) = self.nodes.get(&id) {
            self.absences.push(Absence {
                start: node.start(),
                until,
                suspected,
            });
        }
    }

    /// Whether a start of a node could not take part at some time since.
    pub fn was_gone(&self, start: Voter, since: u64) -> bool {
        let of = |absence: &&Absence| absence.start == start;
        self.absences
            .iter()
            .filter(of)
            .any(|absence| absence.until.saturating_add(2 * LOOK_EVERY) >= since)
    }

    fn others(&self, id: NodeId) -> Vec<NodeId> {
        self.nodes
            .keys()
            .copied()
            .filter(|other| *other != id)
            .collect()
    }

    /// Whether those that are left may decide. Who was gone a moment ago may yet find that a round
    /// was decided without it.
    fn survives_without(&self, victim: NodeId) -> bool {
        let Some(best) = self.furthest().map(|best| &self.nodes[&best]) else {
            return false;
        };
        let (Some(view), Some(voters)) = (best.machine().view(), best.machine().voters()) else {
            return false;
        };
        let last = best
            .last
            .as_ref()
            .and_then(|last| self.oracle.entries.get(&(last.lineage, last.round)));
        let since = last
            .and_then(|last| self.oracle.before(last.began_in, last.outcome.round))
            .map_or(0, |entry| entry.decided_at);
        let stays = |start: &Voter| {
            start.node != victim
                && !self.nodes[&start.node].outside
                && self.is_there(*start)
                && !self.was_gone(*start, since)
        };
        let members: Vec<NodeId> = view
            .members()
            .iter()
            .filter(|member| stays(&Voter::from(*member)))
            .map(|member| member.id)
            .collect();
        let goes = |id: NodeId| self.nodes[&id].draining;
        if self.quorum == Quorum::Survivors {
            // With the last one that means to stay, the history would end.
            return members.into_iter().any(|id| !goes(id));
        }
        let enough = |voters: &Voters| {
            voters.is_quorum(
                voters
                    .iter()
                    .filter(|voter| stays(voter))
                    .map(|voter| voter.node),
            )
        };
        let accepted = self
            .nodes
            .values()
            .filter(|node| node.alive)
            .filter_map(|node| node.machine().accepted());
        let mut accepted = accepted
            .map(|(_, outcome)| outcome)
            .filter(|outcome| outcome.round >= best.round);
        // What was accepted may be decided, with other voters.
        enough(voters)
            && accepted.all(|outcome| enough(&outcome.voters()))
            && is_quorum_without(view, voters, goes, stays)
    }

    fn is_there(&self, start: Voter) -> bool {
        self.is_start(start.node, start.incarnation) && !self.paused(start.node)
    }

    /// Whether `one` should take `other` for dead.
    fn is_gone(&self, one: NodeId, other: Voter) -> bool {
        let suspected = |absence: &Absence| {
            absence.suspected && absence.start.node == other.node && absence.until > self.now
        };
        !self.is_there(other)
            || !self.connected(one, other.node)
            || self.absences.iter().any(suspected)
    }

    /// Whether anybody can know that a start is over.
    fn has_ended(&self, start: Voter) -> bool {
        let node = &self.nodes[&start.node];
        let replaced = node.alive && node.member.incarnation > start.incarnation;
        replaced
            || (!self.is_start(start.node, start.incarnation) && !self.vanished.contains(&start))
    }

    /// Tells a machine what a membership found, if that is still so.
    pub fn tell(&mut self, id: NodeId, event: In) {
        match &event {
            In::Lost {
                node: other,
                incarnation,
                ..
            } => {
                let start = Voter {
                    node: *other,
                    incarnation: *incarnation,
                };
                if !self.is_gone(id, start) || !self.nodes[&id].believed_dead.contains_key(&start) {
                    return;
                }
                if self.nodes[other].start() == start {
                    self.break_link(id, *other);
                }
            }
            In::Back(other) => {
                let start = self.nodes[other].start();
                let gone = self.is_gone(id, start);
                let believed_dead = &mut self.nodes.get_mut(&id).unwrap().believed_dead;
                if gone || believed_dead.remove(&start).is_none() {
                    return;
                }
            }
            _ => {}
        }
        self.feed(id, event);
    }

    /// Whether a node asks to join the view, or did so: once all members that live can be reached.
    /// One that the view has and that is about to hear so does not.
    fn is_candidate(&mut self, id: NodeId, view: &View, lineage: Lineage) -> bool {
        let node = &self.nodes[&id];
        let admitted =
            node.machine().place().lineage == lineage && view.member(id) == Some(&node.member);
        let asked = node.asked == Some(view.epoch());
        if !node.outside
            || node.drained
            || (admitted && !asked)
            || !(node.waiting || node.last.is_some())
        {
            return false;
        }
        let others = view
            .members()
            .iter()
            .filter(|member| member.id != id && self.is_there(Voter::from(*member)));
        let others: Vec<NodeId> = others.map(|member| member.id).collect();
        if !asked
            && !others
                .into_iter()
                .all(|other| self.network.is_up(id, other))
        {
            return false;
        }
        let node = self.nodes.get_mut(&id).unwrap();
        node.asked = Some(view.epoch());
        true
    }

    /// Who is furthest in the history that the others come over to: the one that parted last.
    fn furthest(&self) -> Option<NodeId> {
        let members = self.nodes.values().filter(|node| {
            node.alive && !node.outside && !node.drained && node.machine().view().is_some()
        });
        let rank = |node: &&Node| {
            let lineage = node.machine().began_in();
            (
                self.oracle.began(lineage).unwrap_or(Round::BOOTSTRAP),
                lineage,
                node.round,
            )
        };
        members.max_by_key(rank).map(|node| node.member.id)
    }

    /// Until everybody is through, the membership looks again.
    pub fn look(&mut self) {
        let through = |node: &Node| {
            !node.alive || node.drained || (!node.outside && node.next.step.0 >= self.steps_max)
        };
        if self.nodes.values().all(through) && self.faults == 0 {
            return;
        }
        self.at(self.now + LOOK_EVERY, Event::Look);
        let Some(best) = self.furthest() else { return };
        let Some(view) = self.nodes[&best].machine().view().cloned() else {
            return;
        };
        let lineage = self.nodes[&best].machine().began_in();
        let ids: Vec<NodeId> = self
            .nodes
            .keys()
            .copied()
            .filter(|id| self.is_up(*id) && !self.paused(*id))
            .collect();
        for id in &ids {
            if self.connected(best, *id) {
                self.meet(*id, &view, lineage);
            }
        }
        self.look_at_links(&ids);
        let mut candidates: Vec<Member> = Vec::new();
        for id in &ids {
            if self.is_candidate(*id, &view, lineage) {
                candidates.push(self.nodes[id].member.clone());
            }
        }
        for id in ids {
            self.look_at_lives(id);
            self.look_at_candidates(id, &view, lineage, &candidates);
            self.look_at_leavers(id);
        }
    }

    /// A node learns of the furthest view: if that leaves it out, or is of another history, it
    /// resigns and asks to join, or is drained.
    fn meet(&mut self, id: NodeId, view: &View, lineage: Lineage) {
        let node = self.nodes.get_mut(&id).unwrap();
        let elsewhere = ![node.machine().began_in(), node.machine().place().lineage]
            .contains(&lineage)
            && node.last.is_some();
        let left_out = elsewhere
            || view
                .member(id)
                .is_none_or(|member| member.incarnation != node.member.incarnation);
        if node.draining && (left_out || node.outside) {
            // The decision was lost on its way, or brought nothing that it holds: the node ends all
            // the same.
            node.drained = true;
            if !left_out {
                self.kill(id);
            }
        } else if !node.outside && left_out && !node.drained {
            node.leave();
            self.feed(id, In::Resign(GivesUp::Membership));
        }
    }

    fn look_at_links(&mut self, ids: &[NodeId]) {
        for (index, one) in ids.iter().enumerate() {
            for other in &ids[index + 1..] {
                let there = self.nodes[other].start();
                let here = self.nodes[one].start();
                if !self.is_gone(*one, there) && !self.is_gone(*other, here) {
                    self.connect(*one, *other);
                }
            }
        }
    }

    /// A member watches the members of its view, the voters, and those that want to join. It is
    /// told of a death as soon as that is silence, and again once it is known that the process
    /// ended.
    fn look_at_lives(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        let (Some(view), Some(voters)) = (node.machine().round_view(), node.machine().voters())
        else {
            return;
        };
        if node.outside {
            return;
        }
        let members = view
            .members()
            .iter()
            .chain(&node.candidates)
            .map(Voter::from);
        let watched: BTreeSet<Voter> = members
            .chain(voters.iter().copied())
            .filter(|start| start.node != id)
            .collect();
        let mut dead = Vec::new();
        let mut back = Vec::new();
        for start in watched {
            let ended = self.has_ended(start);
            match (self.is_gone(id, start), node.believed_dead.get(&start)) {
                (true, None) => dead.push((start, ended)),
                (true, Some(false)) if ended => dead.push((start, ended)),
                (false, Some(_)) => back.push(start.node),
                _ => {}
            }
        }
        for (start, ended) in dead {
            self.nodes
                .get_mut(&id)
                .unwrap()
                .believed_dead
                .insert(start, ended);
            self.tell_later(
                id,
                In::Lost {
                    node: start.node,
                    incarnation: start.incarnation,
                    ended,
                },
                VERDICT_MAX,
            );
        }
        for other in back {
            self.tell_later(id, In::Back(other), DELAY_MAX);
        }
    }

    fn look_at_candidates(
        &mut self,
        id: NodeId,
        view: &View,
        lineage: Lineage,
        candidates: &[Member],
    ) {
        let near: Vec<Member> = candidates
            .iter()
            .filter(|candidate| candidate.id == id || self.network.is_up(id, candidate.id))
            .cloned()
            .collect();
        let node = self.nodes.get_mut(&id).unwrap();
        let same_view = node.machine().began_in() == lineage
            && node
                .machine()
                .view()
                .is_some_and(|own| own.epoch() == view.epoch());
        if node.outside || !same_view || (near.is_empty() && node.candidates.is_empty()) {
            return;
        }
        // Those that ask again are told again; what the others knew of their death is void.
        near.iter()
            .for_each(|member| _ = node.believed_dead.remove(&Voter::from(member)));
        node.candidates.clone_from(&near);
        self.tell_later(
            id,
            In::Joiners {
                epoch: view.epoch(),
                members: near,
            },
            DELAY_MAX,
        );
    }

    fn look_at_leavers(&mut self, id: NodeId) {
        let leavers: Vec<NodeId> = self
            .nodes
            .values()
            .filter(|node| node.alive && node.draining && !node.drained)
            .map(|node| node.member.id)
            .collect();
        for leaver in leavers {
            if self.connected(id, leaver) && self.nodes.get_mut(&id).unwrap().leavers.insert(leaver)
            {
                let contributes = !self.nodes[&leaver].silent;
                let incarnation = self.nodes[&leaver].member.incarnation;
                self.tell_later(
                    id,
                    In::Leaving {
                        node: leaver,
                        incarnation,
                        contributes,
                    },
                    DELAY_MAX,
                );
            }
        }
    }
}

/// Whether those that stay may still decide when those that leave have left, and the dead are still
/// in the view.
fn is_quorum_without(
    view: &View,
    voters: &Voters,
    goes: impl Fn(NodeId) -> bool,
    stays: impl Fn(&Voter) -> bool,
) -> bool {
    let next: Vec<Member> = view
        .members()
        .iter()
        .filter(|member| !goes(member.id))
        .cloned()
        .collect();
    if next.is_empty() {
        return true;
    }
    let next = View::new(view.epoch(), next).unwrap();
    let changed = next_voters(voters, &next, |voter| goes(voter.node));
    let voting = next
        .members()
        .iter()
        .map(Voter::from)
        .filter(|member| !changed.waiting.contains(&member.node));
    let voters = Voters::new(voting.chain(changed.retained).collect(), changed.leader);
    voters.is_quorum(
        voters
            .iter()
            .filter(|voter| stays(voter))
            .map(|voter| voter.node),
    )
}
