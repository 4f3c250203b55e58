//! Whom to connect to: whoever should be connected and is not, and members that were lost, as two
//! sides that take each other for dead meet again only if one of them looks for the other.

use super::{Effect, Membership};
use crate::ident::NodeId;
use crate::machine::Outbox;
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member, View};
use crate::wire::{Header, Hello};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// How often nodes that should be connected and are not are dialed.
pub const REDIAL_EVERY: Span = Span::from_millis(200);

/// How often members that were lost are dialed.
pub const MISSED_REDIAL_EVERY: Span = Span::from_millis(2_000);

/// For how long: whoever is cut off for longer is for a person.
pub const MISSED_FOR: Span = Span::from_millis(600_000);

/// Members that the history went on without and that have not said goodbye; one that was drained is
/// among them until it has.
#[derive(Clone, Debug, Default)]
pub(super) struct Missed {
    /// At most [`MEMBERS_MAX`], those that were lost first in front.
    members: VecDeque<(Member, Option<Instant>)>,
    dial_at: Option<Instant>,
}

impl Missed {
    /// `view` goes on without `member`.
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

    /// The addresses to be dialed now.
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
    /// The history goes on in `view`, where it was in `before`.
    pub(super) fn note_missed(&mut self, before: &View, view: &View) {
        view.ids().for_each(|id| self.life.missed.forget(id));
        let lost = before
            .members()
            .iter()
            .filter(|member| !view.contains(member.id));
        let lost = lost.filter(|member| !self.left.contains(&(member.id, member.incarnation)));
        lost.for_each(|member| self.life.missed.note(member.clone()));
    }

    /// Dials those that were lost and cannot be sent to.
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

    /// Whoever introduces itself can be answered.
    pub(super) fn dial_back(&self, header: &Header, hello: &Hello, out: &mut Outbox<Effect>) {
        if self.connected.get(&header.sender) != Some(&header.incarnation) {
            out.push(Effect::Connect(hello.address));
        }
    }

    /// Dials, now and then, whoever should be connected and is not.
    pub(super) fn dial_missing(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let standing = if self.life.drained {
            None
        } else {
            self.life.standing.as_ref().or(self.life.cluster.as_ref())
        };
        // Asked at every event, so not member by member as long as nothing has changed.
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
