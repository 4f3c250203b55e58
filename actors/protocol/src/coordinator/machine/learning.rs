//! Decisions: received, requested, applied; and the end of a node that leaves.
//!
//! A node that missed a decision asks any member. A next member holds the data already; any other
//! node must rejoin. A leaving node goes when a quorum of the next voters knows the entry, or after
//! [`LEAVE_ACKNOWLEDGED_WAIT`]: it may be the only node left that the leader told.

use super::Coordinator;
use super::data::Movement;
use super::deciding::Lead;
use super::following::difference;
use super::history::{History, PlacedOutcome};
use super::timers::Timer;
use crate::coordinator::error::RoundError;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Entry, Outcome};
use crate::coordinator::plan::Attempt;
use crate::coordinator::voters::{Voter, Votes};
use crate::ident::{Lineage, NodeId};
use crate::machine::{Outbox, Place};
use crate::planted::{self, Bug};
use crate::time::{Instant, Span};
use crate::view::Member;
use crate::wire::{Header, Message};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Time that a leaving node waits until a quorum of the next voters knows the entry that excludes
/// it.
pub const LEAVE_ACKNOWLEDGED_WAIT: Span = Span::from_millis(2_000);

/// The entry that this node left with, or that excluded it: others may still ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub decided: PlacedOutcome,
    /// Nodes that know the entry.
    known_to: BTreeSet<NodeId>,
    /// The outcome that this node still has to apply, once a quorum of the next voters knows it.
    pending: Option<Pending>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    attempt: Attempt,
    members: std::sync::Arc<[crate::view::Member]>,
    began_in: Lineage,
    votes: Option<Votes>,
}

impl Coordinator {
    /// Asks the leader, as far as this node knows it, for the result of the round.
    pub(super) fn ask_again(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let waits = self.view().is_some()
            && self
                .deciding
                .as_ref()
                .is_some_and(|deciding| deciding.decided.is_none());
        if !waits {
            return;
        }
        let owner = self.deciding.as_ref().map(|deciding| deciding.term().node);
        let leaders: BTreeSet<NodeId> = self.leader().into_iter().chain(owner).collect();
        self.broadcast(leaders, &Message::Learn, out);
        self.timers
            .set(Timer::Ask, now.after(self.settings.ask_again));
    }

    /// Handles a peer's message about the decision of the round under way.
    pub(super) fn told_decision(
        &mut self,
        header: &Header,
        entry: Entry,
        leaves: bool,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let accepted = deciding
            .acceptor
            .accepted()
            .filter(|(term, _)| *term == header.term)
            .map(|(_, outcome)| outcome);
        let held = deciding
            .data
            .ready(header.term, header.attempt)
            .and_then(Movement::outcome);
        let entry = match entry {
            Entry::Whole(entry) => {
                if let Some(attempt) = deciding.data.otherwise(&entry) {
                    // This node cannot apply it. The others find out who published what.
                    self.dispute(attempt, out);
                }
                entry
            }
            Entry::Held(digest) => {
                let Some(known) = accepted.or(held).cloned() else {
                    return self.send(header.sender, Message::Learn, out);
                };
                if known.digest() != digest {
                    // Only a leader says it so, and only to those that told it of this entry.
                    if header.sender == header.term.node {
                        self.contradicted(header, now, out);
                    }
                    return;
                }
                known
            }
        };
        let of_this = self.history.as_ref().is_some_and(|history| {
            history.lineage == entry.lineage && history.round == entry.round
        });
        if of_this {
            let teller = Voter {
                node: header.sender,
                incarnation: header.incarnation,
            };
            self.note_told(teller, entry);
        }
        if leaves {
            self.send_from(header.place(), header.sender, Message::Learned, out);
        }
    }

    /// Answers a frame of an earlier round: a node that asks is told the newest entry, if the frame
    /// is of this history or of a fork of the same bootstrap. A leaving node is told that its entry
    /// is known.
    pub(super) fn answer_late(
        &mut self,
        header: &Header,
        message: &Message,
        out: &mut Outbox<Effect>,
    ) {
        let Some(PlacedOutcome { outcome, place }) = self.last() else {
            return;
        };
        let of_this = header.lineage == place.lineage || header.lineage == outcome.lineage;
        // A node may have followed this one into a fork that this one left for the entry, and nobody
        // else in that fork knows the entry. It may as well ask from the history before a fork that
        // this node is in. In both cases it judges the entry as one of another history.
        let asks_from_akin =
            matches!(message, Message::Learn) && header.lineage.is_akin(place.lineage);
        if !of_this && !asks_from_akin {
            return;
        }
        match message {
            Message::Decide { leaves: true, .. } => {
                self.send_from(header.place(), header.sender, Message::Learned, out)
            }
            Message::Learned => self.note_learned(header, out),
            // A straggler that was excluded does not know the entry; a member is not told.
            Message::Contribute(_) if outcome.view.contains(header.sender) => {}
            Message::Contribute(_)
            | Message::Learn
            | Message::Prepare
            | Message::Open
            | Message::Attempt(_)
            | Message::Accept { .. }
            | Message::Broken(_)
            | Message::Accuse(_)
            | Message::Fork { .. } => {
                self.send_from(
                    *place,
                    header.sender,
                    Message::Decide {
                        entry: Entry::Whole(outcome.clone()),
                        leaves: false,
                    },
                    out,
                );
            }
            _ => {}
        }
    }

    /// Sends the newest entry to a peer that can be sent to again, if the entry concerns it.
    pub(super) fn tell_entry(&self, node: NodeId, out: &mut Outbox<Effect>) {
        let Some(PlacedOutcome { outcome, place }) = self.last() else {
            return;
        };
        let leaver = outcome.contributors.contains(&node) && !outcome.view.contains(node);
        let votes = outcome.retained.iter().any(|voter| voter.id == node);
        if outcome.view.contains(node) || leaver || votes {
            let leaves = self
                .left_with
                .as_ref()
                .is_some_and(|left| left.pending.is_some());
            self.send_from(
                *place,
                node,
                Message::Decide {
                    entry: Entry::Whole(outcome.clone()),
                    leaves,
                },
                out,
            );
        }
    }

    /// Handles an entry later than this node's round: the others continued without it.
    pub(super) fn excluded(
        &mut self,
        PlacedOutcome { outcome, place }: PlacedOutcome,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if outcome.round < place.round
            || self
                .history
                .as_ref()
                .is_none_or(|history| outcome.lineage != history.lineage)
        {
            return;
        }
        self.go_on_outside(PlacedOutcome { outcome, place }, now, out);
        self.ask_what_was_missed(out);
    }

    /// A voter outside of the view asks the members and the other voters: their requests meanwhile
    /// were of a round that this node did not know. Those that told it of the entry and the leader
    /// may be dead.
    fn ask_what_was_missed(&self, out: &mut Outbox<Effect>) {
        if self.is_voter() {
            self.broadcast(self.members_and_voters(), &Message::Learn, out);
        }
    }

    /// Applies a decided outcome; `true` if the next round began.
    pub(super) fn apply_when_decided(&mut self, now: Instant, out: &mut Outbox<Effect>) -> bool {
        let Some(deciding) = &self.deciding else {
            return false;
        };
        let Some(outcome) = deciding.decided.clone() else {
            return false;
        };
        let anything = || {
            deciding.data.moving.as_ref().filter(|movement| {
                planted::has(Bug::ApplyWithoutData) && movement.published.is_some()
            })
        };
        let attempt = deciding
            .data
            .of(&outcome)
            .or_else(anything)
            .map(|movement| movement.attempt());
        let place = self.place();
        match attempt {
            Some(attempt) => self.apply(attempt, outcome, place, now, out),
            None if self.expected_another(&outcome) => self.stop_over_spec(&outcome, out),
            None => {
                // The outcome was made without this node, which can get its data only by joining
                // again.
                self.discard_where(|_| true, out);
                self.go_on_outside(PlacedOutcome { outcome, place }, now, out);
                self.ask_what_was_missed(out);
            }
        }
        self.deciding.is_some()
    }

    /// Whether this member contributed to another round than the decided one, to which most members
    /// contributed. Then its training script differs from theirs, and it would only be left out
    /// again. If fewer contributed, their script may be the wrong one, and this node joins again. It
    /// also joins again if it first hears of a later round.
    fn expected_another(&self, decided: &Outcome) -> bool {
        let (Some(mine), Some(history)) = (&self.mine, &self.history) else {
            return false;
        };
        let by_most = 2 * decided.contributors.len() > history.view.size();
        history.member && by_most && mine.spec != decided.spec
    }

    fn stop_over_spec(&mut self, decided: &Outcome, out: &mut Outbox<Effect>) {
        let Some(mine) = &self.mine else { return };
        let other = decided.contributors.first().copied();
        let other = other.unwrap_or(decided.leader);
        let reason = difference(self.me(), mine.spec, other, decided.spec);
        self.stop(RoundError::refused(decided.round, reason), out);
    }

    fn apply(
        &mut self,
        attempt: Attempt,
        outcome: Outcome,
        place: Place,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let myself = self.myself();
        // A bootstrap may be decided before this node's own training asked for it.
        self.note_state_elements(outcome.spec);
        let arrived = self.mine.take().is_some();
        let votes = self.votes_counted();
        let began_in = self.began_in();
        let members: Arc<[Member]> = self
            .history
            .as_ref()
            .map(|history| history.view.members().into())
            .unwrap_or_default();
        let last = outcome.view.size() == 1
            && self.peers.is_leaving(myself)
            && !self.last_waits_for_a_checkpoint(&outcome);
        let changed_before = self.changed_settings();
        let stays = outcome
            .view
            .member(myself.node)
            .is_some_and(|member| member.incarnation == myself.incarnation);
        self.timers.end_round();
        self.forget_aside(out);
        self.note_applied(attempt, &outcome, place, out);
        let decided = PlacedOutcome { outcome, place };
        if stays && !last {
            let outcome = decided.outcome.clone();
            self.begin_round(decided, true);
            out.push(Effect::Apply {
                attempt,
                outcome: outcome.clone(),
                members: Arc::clone(&members),
                began_in,
                votes,
                drained: false,
            });
            self.count_misses(&outcome, &members, arrived, now, out);
            self.checkpoint_made(&outcome, out);
            self.settings_decided(changed_before, &outcome, out);
            return self.replay(now, out);
        }
        self.history = None;
        self.deciding = None;
        let next_voters = decided.outcome.voters();
        let pending = Some(Pending {
            attempt,
            members,
            began_in,
            votes,
        });
        self.left_with = Some(Left {
            decided,
            known_to: BTreeSet::new(),
            pending,
        });
        self.timers
            .set(Timer::Leave, now.after(LEAVE_ACKNOWLEDGED_WAIT));
        for node in next_voters.ids().filter(|node| *node != myself.node) {
            self.tell_entry(node, out);
        }
        self.leave_when_known(out);
    }

    /// Votes for the entry, if this node led it to its decision.
    fn votes_counted(&self) -> Option<Votes> {
        match self.deciding.as_ref().map(|deciding| &deciding.lead) {
            // Another leader may have told the decision before this one's votes were a quorum.
            Some(Lead::Accept { accepted, .. }) if self.is_quorum(accepted.iter().copied()) => {
                let voters = self.history.as_ref()?.voters.clone();
                Some(Votes {
                    accepted: accepted.iter().copied().collect(),
                    voters,
                })
            }
            _ => None,
        }
    }

    /// Begins the round after an entry; `holds` says whether this node holds what it decided.
    fn begin_round(&mut self, decided: PlacedOutcome, holds: bool) {
        let myself = self.myself();
        let epoch = self.history.as_ref().map(|history| history.view.epoch());
        let PlacedOutcome { outcome, place } = decided;
        let another_view = epoch != Some(outcome.view.epoch());
        let history = History {
            holds,
            ..History::after(outcome, place, myself)
        };
        self.peers.begin(&history, another_view);
        let joiners = &self.peers.joiners;
        self.links.begin(history.round, |node| {
            history.view.contains(node)
                || history.voters.of(node).is_some()
                || joiners.contains_key(&node)
        });
        self.rates.retain(|id, _| history.view.contains(*id));
        self.deciding = Some(self.promised.resume(&history));
        self.history = Some(history);
    }

    /// Continues outside of the view after the others decided without this node: it joins again,
    /// and keeps voting if it is still a voter.
    fn go_on_outside(&mut self, decided: PlacedOutcome, now: Instant, out: &mut Outbox<Effect>) {
        let was_member = self.history.as_ref().is_some_and(|history| history.member);
        self.timers.end_round();
        self.discard_where(|movement| !movement.ready, out);
        if !self.keep_place(out) {
            self.discard_where(|_| true, out);
        }
        self.begin_round(decided.clone(), false);
        if let Some(history) = &mut self.history {
            history.member = false;
        }
        self.forget_stragglers(out);
        if !self.is_voter() {
            // This node may be the only living one that knows the decision: members still ask.
            self.left_with = Some(Left {
                decided,
                known_to: BTreeSet::new(),
                pending: None,
            });
            self.leave_history(out);
        }
        self.end_waiting(out);
        if was_member {
            self.peers.forget();
            out.push(Effect::MustRejoin);
        }
        self.replay(now, out);
    }

    pub(super) fn note_learned(&mut self, header: &Header, out: &mut Outbox<Effect>) {
        let of_this = |left: &&mut Left| {
            (left.decided.place.lineage, left.decided.outcome.round)
                == (header.lineage, header.round)
        };
        if let Some(left) = self.left_with.as_mut().filter(of_this) {
            left.known_to.insert(header.sender);
            self.leave_when_known(out);
        }
    }

    /// Leaves once a quorum of the next voters knows the entry.
    fn leave_when_known(&mut self, out: &mut Outbox<Effect>) {
        let me = self.me();
        let Some(left) = &self.left_with else { return };
        let voters = left.decided.outcome.voters();
        let enough =
            voters.ids().all(|id| id == me) || voters.is_quorum(left.known_to.iter().copied());
        if enough {
            self.leave_unacknowledged(out);
        }
    }

    /// Leaves without waiting any longer.
    pub(super) fn leave_unacknowledged(&mut self, out: &mut Outbox<Effect>) {
        self.timers.stop(Timer::Leave);
        let Some(left) = &mut self.left_with else {
            return;
        };
        if let Some(Pending {
            attempt,
            members,
            began_in,
            votes,
        }) = left.pending.take()
        {
            let outcome = left.decided.outcome.clone();
            out.push(Effect::Apply {
                attempt,
                outcome,
                members,
                began_in,
                votes,
                drained: true,
            });
        }
    }
}
