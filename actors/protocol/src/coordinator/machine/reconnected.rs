//! Peers that can be sent to again: what they may have missed, and what this node may have.
//!
//! Streams may be lost unnoticed. Whoever sends one is done with it when its transport has taken it; if the connection breaks
//! before its beginning is here, nobody sees a broken stream. All that is seen is that the sender's connection is new again, so
//! whoever then waits for its streams in vain says that they are broken. A new connection costs one attempt at most; of a node
//! that cannot be reached they are reported until the leader makes the round without one of the two (`apart`).

use super::history::Decided;
use super::{Coordinator, STREAM_BROKEN_WAIT};
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Outcome;
use crate::ident::{NodeId, Round};
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::time::Instant;
use crate::view::MEMBERS_MAX;
use crate::wire::Message;
use std::collections::{BTreeMap, BTreeSet};

/// Whose connections were made anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reconnected {
    /// Who could be sent to at some time; at most [`MEMBERS_MAX`].
    met: BTreeSet<NodeId>,
    /// Those of them that can be again, and the round of this node when that began.
    again: BTreeMap<NodeId, Round>,
}

impl Reconnected {
    /// A peer can be sent to.
    pub fn note(&mut self, node: NodeId, round: Round) {
        if !self.met.contains(&node) {
            _ = self.met.len() < MEMBERS_MAX && self.met.insert(node);
        } else if !planted::has(Bug::LostStreamsUnnoticed) {
            self.again.insert(node, round);
        }
    }

    /// Nothing of `round`, or of those behind it, was sent before these connections.
    pub fn begin(&mut self, round: Round) {
        // Whoever is ahead has sent while this node was in the round before.
        self.again.retain(|_, then| then.next() >= round);
    }

    pub fn forget(&mut self) {
        self.again.clear();
    }
}

impl Coordinator {
    /// What a peer that can be sent to again may have missed.
    pub(super) fn peer_up(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        self.reconnected.note(node, self.place().round);
        self.away.found(node);
        if let Some(Decided { outcome, place }) = self.last()
            && (outcome.view.contains(node) || has_left_with(outcome, node))
        {
            self.send_from(*place, node, Message::Decide(outcome.clone()), out);
        }
        let (first, member) = (self.first_ballot(), self.view().is_some());
        let Some(current) = &mut self.current else { return };
        current.told.remove(&node);
        let ballot = current.ballot();
        // The first ballot needs no promises.
        let asks = member && first != Some(ballot);
        if current.voted == Some(ballot) && ballot.node == node {
            self.send(node, Message::Prepared, out);
        } else if ballot.node == node && asks && !planted::has(Bug::PromiseUntold) {
            // It may have been heard before it could be answered.
            self.tell_promise(ballot, out);
        }
        self.lead_again(node, out);
        self.tell_of_the_ballot_of_the_dead(out);
    }

    /// Gives the streams of new connections time to come, once everything that this node waits for is on its way.
    pub(super) fn watch_reconnected(&mut self, now: Instant) {
        let away: Vec<NodeId> = self.given_up().collect();
        let Some(open) = self.current.as_mut().and_then(|current| current.open.as_mut()) else { return };
        let waits = open.published.is_some() && open.lost_by.is_none();
        if waits && self.reconnected.again.keys().chain(&away).any(|node| open.waits_for(*node)) {
            open.lost_by = Some(now.after(STREAM_BROKEN_WAIT));
        }
    }

    /// The time is over: what has not come was lost.
    pub(super) fn give_lost_streams_up(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let (me, away) = (self.me(), self.given_up().collect::<Vec<_>>());
        let Some(current) = &mut self.current else { return };
        let ballot = current.ballot();
        let Some(open) = current.open.as_mut().filter(|open| open.lost_by.is_some_and(|deadline| now >= deadline)) else { return };
        open.lost_by = None;
        let of_this = open.plan.attempt.ballot == ballot;
        let lost: BTreeSet<NodeId> = self.reconnected.again.keys().chain(&away).copied().filter(|node| open.waits_for(*node)).collect();
        self.reconnected.again.clear();
        lost.into_iter().filter(|_| of_this).for_each(|node| self.ask_for_another_attempt((me, node), now, out));
    }
}

/// Whether a node handed over in a round: who contributes and does not stay wanted to leave.
pub(super) fn has_left_with(outcome: &Outcome, node: NodeId) -> bool {
    outcome.contributors.contains(&node) && !outcome.view.contains(node)
}
