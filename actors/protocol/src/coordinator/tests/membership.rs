//! The membership of the simulated world: what happens to nodes, and who hears of it when.

use super::node::Node;
use super::trace;
use super::world::{DELAY_MAX, Event, Fault, World};
use crate::coordinator::In;
use crate::ident::{Incarnation, NodeId};
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
    member: NodeId,
    incarnation: Incarnation,
    /// When it ended.
    until: u64,
    /// Whether the others were told that it is dead although it lives.
    suspected: bool,
}

impl World {
    pub fn fault(&mut self, fault: Fault) {
        trace::fault(self.now, &fault);
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
            // A member drains; it may be stranded instead, which must not cost the others their quorum.
            Fault::Drain(id) if self.is_up(id) && !self.nodes[&id].outside && self.survives_without(id) => {
                self.nodes.get_mut(&id).unwrap().draining = true;
            }
            Fault::Leave(id) if self.is_up(id) && !self.nodes[&id].outside && self.survives_without(id) => {
                let node = self.nodes.get_mut(&id).unwrap();
                // What it contributed already counts.
                (node.draining, node.silent) = (true, !node.waiting);
            }
            Fault::Slow(id, span) => _ = self.network.slow.insert(id, self.now + span),
            Fault::Pause(..) | Fault::Suspect(..) | Fault::Drain(_) | Fault::Leave(_) => {}
            Fault::Break(one, other) => self.break_link(one, other),
            Fault::Cut(group) => {
                group.iter().for_each(|id| self.absent(*id, u64::MAX, false));
                self.cut = Some(group);
            }
            Fault::Heal => {
                for id in self.cut.take().into_iter().flatten() {
                    let now = self.now;
                    self.absences
                        .iter_mut()
                        .filter(|absence| absence.member == id)
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
        self.nodes.insert(id, Node::new(id, self.incarnations, self.schedule, self.replicas, self.quorum));
        for other in self.others(id) {
            self.break_link(id, other);
        }
        self.train_later(id);
    }

    fn absent(&mut self, id: NodeId, until: u64, suspected: bool) {
        if let Some(node) = self.nodes.get(&id) {
            self.absences.push(Absence { member: id, incarnation: node.member.incarnation, until, suspected });
        }
    }

    /// Whether a member could not take part at some time since.
    pub fn was_gone(&self, member: &Member, since: u64) -> bool {
        let of = |absence: &&Absence| absence.member == member.id && absence.incarnation == member.incarnation;
        self.absences.iter().filter(of).any(|absence| absence.until.saturating_add(2 * LOOK_EVERY) >= since)
    }

    fn others(&self, id: NodeId) -> Vec<NodeId> {
        self.nodes.keys().copied().filter(|other| *other != id).collect()
    }

    /// Whether those that are left may decide. Who was gone a moment ago may yet find that a round was decided without it.
    fn survives_without(&self, victim: NodeId) -> bool {
        let Some(best) = self.furthest().map(|best| &self.nodes[&best]) else { return false };
        let Some(view) = best.machine.view() else { return false };
        let since = self.decided_at.range(..best.round).nth_back(1).map_or(0, |(_, at)| *at);
        let stays = |member: &&Member| member.id != victim && !self.nodes[&member.id].outside && self.is_there(member);
        let stays = view.members().iter().filter(stays).filter(|member| !self.was_gone(member, since));
        let stays: Vec<NodeId> = stays.map(|member| member.id).collect();
        let goes = |id: NodeId| self.nodes[&id].draining;
        match self.quorum {
            Quorum::Majority => view.is_quorum(stays.clone()) && is_quorum_without(view, goes, &stays),
            // With the last one that means to stay, the history would end.
            Quorum::Survivors => stays.into_iter().any(|id| !goes(id)),
        }
    }

    fn is_there(&self, member: &Member) -> bool {
        self.is_start(member.id, member.incarnation) && !self.paused(member.id)
    }

    /// Whether `one` should take `other` for dead.
    fn is_gone(&self, one: NodeId, other: &Member) -> bool {
        let suspected = |absence: &Absence| absence.suspected && absence.member == other.id && absence.until > self.now;
        !self.is_there(other) || !self.connected(one, other.id) || self.absences.iter().any(suspected)
    }

    /// Tells a machine what a membership found, if that is still so.
    pub fn tell(&mut self, id: NodeId, event: In) {
        match &event {
            In::Lost(other, incarnation) => {
                let member = Member { incarnation: *incarnation, ..self.nodes[&id].member.clone() };
                let verdict = (*other, *incarnation);
                let gone = self.is_gone(id, &Member { id: *other, ..member });
                if !gone || !self.nodes[&id].believed_dead.contains(&verdict) {
                    return;
                }
                if self.nodes[other].member.incarnation == *incarnation {
                    self.break_link(id, *other);
                }
            }
            In::Back(other) => {
                let member = self.nodes[other].member.clone();
                let believed_dead = &mut self.nodes.get_mut(&id).unwrap().believed_dead;
                if !believed_dead.remove(&(*other, member.incarnation)) {
                    return;
                }
                if self.is_gone(id, &member) {
                    self.nodes.get_mut(&id).unwrap().believed_dead.insert((*other, member.incarnation));
                    return;
                }
            }
            _ => {}
        }
        self.feed(id, event);
    }

    /// Whether a node asks to join the view, or did so: once all members that live can be reached. One that the view has and that
    /// is about to hear so does not.
    fn is_candidate(&mut self, id: NodeId, view: &View) -> bool {
        let node = &self.nodes[&id];
        let admitted = node.machine.place().lineage.is_decided() && view.member(id) == Some(&node.member);
        let asked = node.asked == Some(view.epoch());
        if !node.outside || node.drained || (admitted && !asked) || !(node.waiting || node.last.is_some()) {
            return false;
        }
        let others: Vec<NodeId> =
            view.members().iter().filter(|member| member.id != id && self.is_there(member)).map(|member| member.id).collect();
        if !asked && !others.into_iter().all(|other| self.network.is_up(id, other)) {
            return false;
        }
        let node = self.nodes.get_mut(&id).unwrap();
        node.asked = Some(view.epoch());
        true
    }

    /// Who is furthest in history.
    fn furthest(&self) -> Option<NodeId> {
        self.nodes
            .values()
            .filter(|node| node.alive && !node.outside && !node.drained)
            .max_by_key(|node| node.round)
            .map(|node| node.member.id)
    }

    /// Until everybody is through, the membership looks again.
    pub fn look(&mut self) {
        let through = |node: &Node| !node.alive || node.drained || (!node.outside && node.next.step.0 >= self.steps_max);
        if self.nodes.values().all(through) && self.faults == 0 {
            return;
        }
        self.at(self.now + LOOK_EVERY, Event::Look);
        let Some(best) = self.furthest() else { return };
        let Some(view) = self.nodes[&best].machine.view().cloned() else { return };
        let ids: Vec<NodeId> = self.nodes.keys().copied().filter(|id| self.is_up(*id) && !self.paused(*id)).collect();
        for id in &ids {
            if self.connected(best, *id) {
                self.meet(*id, &view);
            }
        }
        self.look_at_links(&ids);
        let mut candidates: Vec<Member> = Vec::new();
        for id in &ids {
            if self.is_candidate(*id, &view) {
                candidates.push(self.nodes[id].member.clone());
            }
        }
        for id in ids {
            self.look_at_lives(id);
            self.look_at_candidates(id, &view, &candidates);
            self.look_at_leavers(id);
        }
    }

    /// A node learns of the furthest view: if that leaves it out, it resigns and asks to join, or is drained.
    fn meet(&mut self, id: NodeId, view: &View) {
        let node = self.nodes.get_mut(&id).unwrap();
        let left_out = view.member(id).is_none_or(|member| member.incarnation != node.member.incarnation);
        if node.draining && (left_out || node.outside) {
            // The decision was lost on its way, or brought nothing that it holds: the node ends all the same.
            node.drained = true;
            if !left_out {
                self.kill(id);
            }
        } else if !node.outside && left_out && !node.drained {
            node.leave();
            self.feed(id, In::Resign { founding: false });
        }
    }

    fn look_at_links(&mut self, ids: &[NodeId]) {
        for (index, one) in ids.iter().enumerate() {
            for other in &ids[index + 1..] {
                let (member, node) = (&self.nodes[other].member, &self.nodes[one].member);
                if !self.is_gone(*one, member) && !self.is_gone(*other, node) {
                    self.connect(*one, *other);
                }
            }
        }
    }

    /// A member watches the members of its view and those that want to join.
    fn look_at_lives(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        let Some(view) = node.machine.acceptors().filter(|_| !node.outside) else { return };
        let (mut dead, mut back) = (BTreeSet::new(), BTreeSet::new());
        for member in view.members().iter().chain(&node.candidates).filter(|member| member.id != id) {
            let life = (member.id, member.incarnation);
            match (self.is_gone(id, member), node.believed_dead.contains(&life)) {
                (true, false) => _ = dead.insert(life),
                (false, true) => _ = back.insert(member.id),
                _ => {}
            }
        }
        for (other, incarnation) in dead {
            self.nodes.get_mut(&id).unwrap().believed_dead.insert((other, incarnation));
            self.tell_later(id, In::Lost(other, incarnation), VERDICT_MAX);
        }
        for other in back {
            self.tell_later(id, In::Back(other), DELAY_MAX);
        }
    }

    fn look_at_candidates(&mut self, id: NodeId, view: &View, candidates: &[Member]) {
        let near: Vec<Member> =
            candidates.iter().filter(|candidate| candidate.id == id || self.network.is_up(id, candidate.id)).cloned().collect();
        let node = self.nodes.get_mut(&id).unwrap();
        let same_view = node.machine.view().is_some_and(|own| own.epoch() == view.epoch());
        if node.outside || !same_view || (near.is_empty() && node.candidates.is_empty()) {
            return;
        }
        // Those that ask again are told again; what the others knew of their death is void.
        near.iter().for_each(|member| _ = node.believed_dead.remove(&(member.id, member.incarnation)));
        node.candidates.clone_from(&near);
        self.tell_later(id, In::Joiners { epoch: view.epoch(), members: near }, DELAY_MAX);
    }

    fn look_at_leavers(&mut self, id: NodeId) {
        let leavers: Vec<NodeId> =
            self.nodes.values().filter(|node| node.alive && node.draining && !node.drained).map(|node| node.member.id).collect();
        for leaver in leavers {
            if self.connected(id, leaver) && self.nodes.get_mut(&id).unwrap().leavers.insert(leaver) {
                let contributes = !self.nodes[&leaver].silent;
                let incarnation = self.nodes[&leaver].member.incarnation;
                self.tell_later(id, In::Leaving { node: leaver, incarnation, contributes }, DELAY_MAX);
            }
        }
    }
}

/// Whether `stays` may still decide when those that leave have left, and the dead are still in the view.
fn is_quorum_without(view: &View, goes: impl Fn(NodeId) -> bool, stays: &[NodeId]) -> bool {
    let next: Vec<Member> = view.members().iter().filter(|member| !goes(member.id)).cloned().collect();
    next.is_empty() || View::new(view.epoch(), next).unwrap().is_quorum(stays.iter().copied())
}
