//! Leaving: a node announces that it leaves until it is out of the view. It also ends if the
//! decision that it is out does not reach it. A node that nothing counts on ends at once.

use super::{Effect, Membership};
use crate::machine::Outbox;
use crate::time::{Instant, Span};
use crate::view::MEMBERS_MAX;
use crate::wire::{Header, Message};

/// How long a node that hears from others that it is out (as it wanted) or in waits for the
/// decision itself.
pub const DECISION_WAIT: Span = Span::from_millis(2_000);

/// Time between a leaving node's announcements until it is out: a member that joined meanwhile or
/// was unreachable has not heard them.
pub const LEAVE_AGAIN_EVERY: Span = Span::from_millis(1_000);

impl Membership {
    pub(super) fn leaves(&mut self, header: &Header, contributes: bool, out: &mut Outbox<Effect>) {
        let start = (header.sender, header.incarnation);
        if !contributes {
            if self.left.len() < MEMBERS_MAX {
                self.left.insert(start);
            }
            if self.life.done.len() < MEMBERS_MAX {
                self.life.done.insert(start);
            }
        }
        out.push(Effect::Leaving {
            node: header.sender,
            incarnation: header.incarnation,
            contributes,
        });
        self.left_when_alone(out);
    }

    pub(super) fn drain(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if self.life.leaving.is_none() {
            self.tell_leaving(true, now, out);
        }
    }

    /// Tells every peer and this node's own coordinator that it leaves.
    pub(super) fn tell_leaving(
        &mut self,
        contributes: bool,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        self.life.leaving = Some(contributes);
        self.life.leave_again_at = None;
        if self.life.standing.is_some() {
            self.leave_again(now, out);
            self.says_it_leaves(contributes, out);
        } else if !contributes && !self.life.drained {
            // Others may still count on it: they must not wait until it comes back.
            self.announce(Message::Leave { contributes }, out);
        }
    }

    fn announce(&self, message: Message, out: &mut Outbox<Effect>) {
        let connected = self.connected.keys().copied();
        connected.for_each(|peer| self.send(peer, message.clone(), out));
    }

    pub(super) fn says_it_leaves(&self, contributes: bool, out: &mut Outbox<Effect>) {
        out.push(Effect::Leaving {
            node: self.me(),
            incarnation: self.settings.identity.incarnation,
            contributes,
        });
    }

    /// Announces, every [`LEAVE_AGAIN_EVERY`] until this node is no member, that it leaves: a node
    /// that connects or joins meanwhile has to know.
    pub(super) fn leave_again(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let (Some(contributes), Some(_)) = (self.life.leaving, &self.life.standing) else {
            self.life.leave_again_at = None;
            return;
        };
        if self.life.leave_again_at.is_none_or(|at| now >= at) {
            self.life.leave_again_at = Some(now.after(LEAVE_AGAIN_EVERY));
            self.announce(Message::Leave { contributes }, out);
        }
    }

    /// Handles a decided round whose data this node does not hold. A leaving node then has nothing
    /// to hand over and ends; any other node joins again.
    pub(super) fn must_rejoin(&mut self, out: &mut Outbox<Effect>) {
        if self.life.leaving.is_none() || self.life.standing.take().is_none() {
            return self.rejoin(out);
        }
        self.drained(out);
    }

    /// Ends the membership of a node that was told to leave, without a decision.
    pub(super) fn drained(&mut self, out: &mut Outbox<Effect>) {
        self.life.drained = true;
        self.adopted = None;
        out.push(Effect::Drained);
        self.left_when_alone(out);
    }

    /// Ends a node that was told to leave while it is in nothing: it waits for others to bootstrap
    /// with, or for a cluster to join. One that asked to be admitted leaves by the round that
    /// admits it, since others count on it from then on.
    pub(super) fn end_when_nothing_counts_on_it(&mut self, out: &mut Outbox<Effect>) {
        let is_in_nothing = self.life.standing.is_none()
            && self.life.resigning.is_empty()
            && self.life.wished.is_none();
        if self.life.leaving == Some(true)
            && is_in_nothing
            && !self.life.drained
            && self.failed.is_none()
        {
            self.drained(out);
            // Those that wait for a bootstrap no longer count on it.
            self.say_where_it_stands(out);
        }
    }

    /// Ends a node that wanted to leave and was left out, if it does not get the decision within
    /// [`DECISION_WAIT`].
    pub(super) fn end_when_drained(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if !self.life.left_out {
            self.life.drained_by = None;
        } else if now >= *self.life.drained_by.get_or_insert(now.after(DECISION_WAIT)) {
            self.life.left_out = false;
            self.life.drained_by = None;
            out.push(Effect::Drained);
        }
    }
}
