//! Who of the view lives, as this node was told, and whether those are enough to decide.

use super::Coordinator;
use super::open::Open;
use crate::coordinator::events::Effect;
use crate::ident::{Epoch, Incarnation, NodeId, Nodes};
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::policy::Quorum;
use crate::view::Member;
use std::collections::BTreeSet;

impl Coordinator {
    /// Whether a member of the view is gone: dead, or back as a joiner, which holds nothing.
    pub(super) fn is_gone(&self, member: &Member) -> bool {
        self.is_dead(member) || (member.id != self.me() && self.joiners.contains_key(&member.id))
    }

    pub(super) fn is_dead(&self, node: &Member) -> bool {
        self.dead.contains(&(node.id, node.incarnation))
    }

    /// Notes who leaves. What an earlier start of a node wanted does not count for a later one.
    pub(super) fn leaves(&mut self, (node, incarnation): (NodeId, Incarnation), contributes: bool) {
        if self.leaving.get(&node).is_none_or(|(known, _)| *known <= incarnation) {
            self.leaving.insert(node, (incarnation, contributes));
        }
    }

    pub(super) fn is_leaving(&self, member: &Member) -> bool {
        self.leaving.get(&member.id).is_some_and(|(leaver, _)| *leaver == member.incarnation)
    }

    /// Whether a member leaves without another contribution.
    pub(super) fn is_silent(&self, member: &Member) -> bool {
        self.leaving.get(&member.id) == Some(&(member.incarnation, false))
    }

    /// The last start of a node that was found dead is alive; those before it stay dead.
    pub(super) fn back(&mut self, node: NodeId) {
        let last = self.dead.iter().rfind(|(dead, _)| *dead == node).copied();
        last.into_iter().for_each(|last| _ = self.dead.remove(&last));
    }

    /// Whoever is ready to join is alive.
    pub(super) fn candidates(&mut self, epoch: Epoch, members: Vec<Member>) {
        if self.view().is_none_or(|view| view.epoch() != epoch) {
            return;
        }
        for member in &members {
            self.dead.remove(&(member.id, member.incarnation));
        }
        self.joiners = members.into_iter().filter(|member| member.id != self.me()).map(|member| (member.id, member)).collect();
    }

    /// Whether these are a quorum of the view.
    pub(super) fn is_quorum(&self, group: &[NodeId]) -> bool {
        self.history.as_ref().is_some_and(|history| history.view.is_quorum(group.iter().copied()))
    }

    /// Whether these members of the view may decide without the others.
    pub(super) fn are_enough(&self, group: &[NodeId]) -> bool {
        let Some(history) = &self.history else { return false };
        let everybody = planted::has(Bug::DecideWithoutQuorum) || self.settings.quorum == Quorum::Survivors;
        if everybody || history.view.is_quorum(group.iter().copied()) {
            return !group.is_empty();
        }
        // A new start under a member's id proves that its predecessor is gone. If that accounts for everybody who is not here, those
        // that are here go on, under a new lineage: members of a later view, which they know nothing of, may still hold more.
        let returned = |member: &Member| self.joiners.get(&member.id).is_some_and(|joiner| joiner.incarnation >= member.incarnation);
        let accounted = |member: &Member| group.contains(&member.id) || returned(member);
        !group.is_empty() && history.view.members().iter().all(accounted)
    }

    /// Whether nothing is known of anybody that is gone or away: asked at every event, so not member by member.
    pub(super) fn all_are_here(&self) -> bool {
        self.dead.is_empty() && self.joiners.is_empty() && self.given_up().next().is_none()
    }

    /// Whether the members that seem alive, and can be reached, may decide.
    pub(super) fn alive_are_enough(&self) -> bool {
        let Some(history) = self.history.as_ref().filter(|history| !history.joining) else { return true };
        if self.all_are_here() {
            return true;
        }
        let reached = |member: &&Member| !self.is_gone(member) && !self.given_up().any(|node| node == member.id);
        let reached: Vec<_> = history.view.members().iter().filter(reached).map(|member| member.id).collect();
        self.are_enough(&reached)
    }

    /// Whose data or decision is missing: data first, then what a leader or a member waits for.
    pub(super) fn missing(&self) -> BTreeSet<NodeId> {
        let Some(current) = &self.current else { return BTreeSet::new() };
        let data = current.open.as_ref().map(Open::missing).unwrap_or_default();
        match &current.leading {
            _ if !data.is_empty() => data,
            Some(leading) if leading.proposal().is_some() => leading.missing().collect(),
            _ => self.leader().into_iter().filter(|leader| *leader != self.me()).collect(),
        }
    }

    /// Tells why no round can be decided, when that changes. Where nobody contributed, nobody waits.
    pub(super) fn tell_waiting(&mut self, out: &mut Outbox<Effect>) {
        let begun = self.current.as_ref().is_some_and(|current| current.begun.is_some());
        let waiting = if !begun || self.alive_are_enough() { None } else { self.describe_waiting() };
        if waiting != self.waiting {
            self.waiting.clone_from(&waiting);
            out.push(Effect::Waiting(waiting));
        }
    }

    fn describe_waiting(&self) -> Option<String> {
        let history = self.history.as_ref()?;
        let (dead, alive): (Vec<_>, Vec<_>) = history.view.members().iter().partition(|member| self.is_gone(member));
        let ids = |members: &[&Member]| members.iter().map(|member| member.id).collect::<Vec<_>>();
        let (alive, dead) = (ids(&alive), ids(&dead));
        let rule = format!("More than half must, or half with {}", history.view.lowest());
        let (size, given_up) = (history.view.size(), self.given_up().filter(|node| alive.contains(node)).collect::<Vec<_>>());
        if !given_up.is_empty() {
            let links = format!("{} cannot be reached from here: check the links", Nodes(&given_up));
            return Some(format!("{} of {size} members live ({}), and {links}: no quorum. {rule}", alive.len(), Nodes(&alive)));
        }
        Some(format!(
            "{} of {size} members live ({}): no quorum. {rule}. Bring back {} (restarted under their ids they count once all of them are back; \
             the rounds then go on under a new lineage), or run with quorum = survivors",
            alive.len(),
            Nodes(&alive),
            Nodes(&dead)
        ))
    }
}
