//! Chooses the addresses to dial: nodes that should be connected and are not, and lost members. Two
//! sides that take each other for dead meet again only if one of them dials the other.

use super::{Effect, Membership};
use crate::ident::NodeId;
use crate::machine::Outbox;
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member, View};
use crate::wire::{Header, Hello};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Time between dials of nodes that should be connected and are not.
pub const REDIAL_EVERY: Span = Span::from_millis(200);

/// Why dialing an address was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFault {
    /// Nobody answered, or the network failed.
    Silent,
    /// The two nodes do not belong together: other credentials, another protocol version.
    Stranger,
    /// Another live process has the id of one of the two.
    IdTaken,
}

/// Time between dials of lost members.
pub const MISSED_REDIAL_EVERY: Span = Span::from_millis(2_000);

/// How long lost members are dialed; a longer partition is left to an operator.
pub const MISSED_FOR: Span = Span::from_millis(600_000);

/// Members that the history went on without and that have not said goodbye. A drained member is
/// included until it has.
#[derive(Clone, Debug, Default)]
pub(super) struct Missed {
    /// At most [`MEMBERS_MAX`], earliest lost first.
    members: VecDeque<(Member, Option<Instant>)>,
    dial_at: Option<Instant>,
}

impl Missed {
    /// Notes that the history goes on without `member`.
    pub fn note(&mut self, member: Member) {
        self.members.retain(|(missed, _)| missed.id != member.id);
        if self.members.len() >= MEMBERS_MAX {
            self.members.pop_front();
        }
        self.members.push_back((member, None));
    }

    pub fn forget(&mut self, id: NodeId) {
        self.members.retain(|(missed, _)| missed.id != id);
    }

    /// Addresses to dial now.
    fn due(&mut self, now: Instant, connected: impl Fn(NodeId) -> bool) -> Vec<SocketAddr> {
        self.members
            .iter_mut()
            .for_each(|(_, until)| _ = until.get_or_insert(now.after(MISSED_FOR)));
        self.members
            .retain(|(_, until)| until.is_none_or(|until| now < until));
        if self.members.is_empty() {
            self.dial_at = None;
            return Vec::new();
        }
        if self.dial_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.dial_at = Some(now.after(MISSED_REDIAL_EVERY));
        self.members
            .iter()
            .filter(|(member, _)| !connected(member.id))
            .map(|(member, _)| member.address)
            .collect()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.dial_at
    }
}

impl Membership {
    /// Notes the members of `before` that `view`, its successor, no longer contains.
    pub(super) fn note_missed(&mut self, before: &View, view: &View) {
        view.ids().for_each(|id| self.life.missed.forget(id));
        let lost = before
            .members()
            .iter()
            .filter(|member| !view.contains(member.id));
        let lost = lost.filter(|member| !self.left.contains(&(member.id, member.incarnation)));
        lost.for_each(|member| self.life.missed.note(member.clone()));
    }

    /// Dials lost members that this node cannot send to.
    pub(super) fn dial_missed(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if self.life.standing.is_some() {
            let connected = &self.connected;
            out.push_all(
                self.life
                    .missed
                    .due(now, |id| connected.contains_key(&id))
                    .into_iter()
                    .map(Effect::Connect),
            );
        }
    }

    /// Dials the sender of a hello if this node cannot send to it yet.
    pub(super) fn dial_back(&self, header: &Header, hello: &Hello, out: &mut Outbox<Effect>) {
        if self.connected.get(&header.sender) != Some(&header.incarnation) {
            out.push(Effect::Connect(hello.address));
        }
    }

    /// Dials, every [`REDIAL_EVERY`], the nodes that should be connected and are not.
    pub(super) fn dial_missing(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let standing = if self.life.drained {
            None
        } else {
            self.life.standing.as_ref().or(self.life.cluster.as_ref())
        };
        // Called at every event, so members are not checked one by one while nothing has changed.
        let looked =
            standing.map(|standing| (standing.lineage, standing.view.epoch(), self.disconnections));
        if self.life.redial_at.is_none() && looked.is_some() && self.life.all_connected == looked {
            return;
        }
        if self.life.redial_at.is_some_and(|at| now < at) {
            return;
        }
        let wanted = standing
            .into_iter()
            .flat_map(|standing| standing.view.members())
            .filter(|member| member.id != self.me());
        let missing: Vec<_> = wanted
            .filter(|member| !self.can_send_to(member))
            .map(|member| member.address)
            .collect();
        if missing.is_empty() {
            self.life.all_connected = looked;
            self.life.redial_at = None;
        } else {
            self.life.all_connected = None;
            self.life.redial_at = Some(now.after(REDIAL_EVERY));
            out.push_all(missing.into_iter().map(Effect::Connect));
        }
    }
}
