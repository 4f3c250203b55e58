//! Rules for believing a decision. No single node says alone what was decided, or that later rounds
//! were.
//!
//! A voter applies an entry without being told once a quorum voted for it under one term (Paxos),
//! as far as the votes came here, and every member that lives and votes did too. Votes go to
//! everybody (`votes`). So in a steady round a voter knows the decision about as soon as the leader
//! does, and also if the leader dies then.
//!
//! If votes are missing, a member believes a decision of which it is told if a quorum voted for it
//! and [`VOTES_WAIT`](super::VOTES_WAIT) has passed. If two other nodes say what was decided, one of
//! them is honest, and that is enough.
//!
//! A node that only one other tells of a decision, or of later rounds, asks everybody. It follows
//! that one if those that answer that they know nothing of it are no quorum with it: a quorum would
//! go on here, and does not leave its place for what one node says.
//!
//! A node that joins has no place to lose, and has the history from its leader alone. It believes
//! that leader at once; if others show later that two entries were voted for, it stops as others
//! do.

use super::Coordinator;
use super::deciding::Deciding;
use super::history::PlacedOutcome;
use super::seen::{Seen, TOLD_MAX};
use super::timers::Timer;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::voters::Voter;
use crate::ident::NodeId;
use crate::machine::Outbox;
use crate::published::Digest;
use crate::time::Instant;
use crate::view::MEMBERS_MAX;
use crate::wire::{Header, Message};
use std::collections::BTreeSet;

/// Number of nodes whose word is enough: one of them is honest.
const WITNESSES: usize = 2;

impl Coordinator {
    /// Records that a node says that the round is decided with this entry.
    pub(super) fn note_told(&mut self, teller: Voter, entry: Outcome) {
        if !self.doubts() {
            return self.with_deciding(|deciding| _ = deciding.decided.get_or_insert(entry));
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let seen = &mut deciding.seen;
        let digest = entry.digest();
        if seen.tellers.len() < MEMBERS_MAX || seen.tellers.contains_key(&teller) {
            seen.tellers.insert(teller, digest);
        }
        let named: BTreeSet<Digest> = seen.tellers.values().copied().collect();
        seen.entries.retain(|digest, _| named.contains(digest));
        if seen.entries.len() < TOLD_MAX {
            seen.entries.entry(digest).or_insert(entry);
        }
    }

    /// Decides the entry for which this voter voted, and whose data it holds, once all voters that
    /// live voted for it under the same term.
    pub(super) fn decide_when_all_voted(&mut self) {
        let Some(deciding) = &self.deciding else {
            return;
        };
        let Some((term, entry)) = deciding.acceptor.accepted() else {
            return;
        };
        // A leader counts its voters itself, and tells the others.
        if !self.doubts() || deciding.decided.is_some() || term.node == self.me() {
            return;
        }
        // What was asked for under the term is what this node voted for.
        let Some(asked) = deciding.seen.asked_under(*term) else {
            return;
        };
        let vote = (*term, asked.digest);
        let voted: BTreeSet<NodeId> = deciding
            .seen
            .voters_of(vote)
            .filter(|node| self.trusts(*node))
            .chain([self.me()])
            .collect();
        let complete = self
            .voters_that_live()
            .all(|voter| voted.contains(&voter.node));
        if complete && self.is_quorum(voted) && deciding.data.of(entry).is_some() {
            let entry = entry.clone();
            self.with_deciding(|deciding| deciding.decided = Some(entry));
        }
    }

    /// Other voters that live and are members. One that is no member any more may have nothing to
    /// say.
    fn voters_that_live(&self) -> impl Iterator<Item = Voter> + '_ {
        let history = self.history.iter();
        let voters = history.flat_map(|history| {
            let voters = history.voters.iter();
            voters.filter(|voter| history.view.contains(voter.node))
        });
        let lives = |voter: &Voter| {
            let answers = self.peers.votes(*voter) && !self.links.is_given_up(voter.node);
            voter.node != self.me() && answers
        };
        voters.copied().filter(move |voter| lives(voter))
    }

    /// Decides what others say is decided, once this node believes it. Until then it waits for what
    /// further nodes say, also of those that are ahead, whatever stopped its timers meanwhile.
    pub(super) fn decide_when_believed(&mut self, now: Instant) {
        if !self.decide_where(|coordinator, digest| coordinator.believes(digest)) {
            let waits = |deciding: &Deciding| {
                let is_told = !deciding.seen.entries.is_empty() || !deciding.seen.ahead.is_empty();
                deciding.decided.is_none() && is_told
            };
            if self.deciding.as_ref().is_some_and(waits) {
                self.timers
                    .start(Timer::Votes, now.after(self.settings.votes_wait));
            }
        }
    }

    /// Decides an entry that others say is decided, if `is_decided`.
    fn decide_where(&mut self, is_decided: impl Fn(&Self, Digest) -> bool) -> bool {
        let Some(deciding) = self
            .deciding
            .as_ref()
            .filter(|deciding| deciding.decided.is_none())
        else {
            return false;
        };
        let mut told = deciding.seen.entries.iter();
        let decided = told.find(|(digest, _)| is_decided(self, **digest));
        let Some(entry) = decided.map(|(_, entry)| entry.clone()) else {
            return false;
        };
        self.with_deciding(|deciding| deciding.decided = Some(entry));
        true
    }

    fn believes(&self, digest: Digest) -> bool {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return false;
        };
        let seen = &deciding.seen;
        let told = self.tellers(digest);
        if told.len() >= WITNESSES {
            return true;
        }
        let joins = !history.member && !self.is_voter();
        let held = seen.entries.get(&digest);
        let held = held.and_then(|entry| deciding.data.of(entry));
        if joins && held.is_some_and(|held| told.contains(&held.attempt().term.node)) {
            return true;
        }
        let alone = !told.is_empty() && self.others().count() < WITNESSES;
        let mut living = self.voters_that_live();
        let mut complete = || living.all(|voter| seen.says(voter, digest));
        (alone || self.is_quorum(self.voted_for(digest))) && (seen.over || complete())
    }

    /// Trusted nodes that say that the round is decided with an entry.
    fn tellers(&self, digest: Digest) -> BTreeSet<NodeId> {
        let seen = self.deciding.iter().map(|deciding| &deciding.seen);
        let told = seen.flat_map(|seen| &seen.tellers);
        let told = told.filter(|(teller, told)| **told == digest && self.trusts(teller.node));
        told.map(|(teller, _)| teller.node).collect()
    }

    /// Whether voters that know of no decision, this node among them, are a quorum, but for those
    /// that voted for an entry.
    fn goes_on_here(&self, but_for: Option<Digest>) -> bool {
        let Some(deciding) = &self.deciding else {
            return false;
        };
        let undecided = deciding.seen.undecided.iter().copied();
        let myself = self.is_voter().then(|| self.me());
        let voted: BTreeSet<NodeId> = but_for
            .into_iter()
            .flat_map(|digest| self.voted_for(digest))
            .collect();
        let remain = undecided.chain(myself);
        self.is_quorum(remain.filter(|node| self.trusts(*node) && !voted.contains(node)))
    }

    /// Trusted voters that voted for an entry, or say that it is decided, this node included.
    pub(super) fn voted_for(&self, digest: Digest) -> Vec<NodeId> {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return Vec::new();
        };
        let accepted = deciding.acceptor.accepted();
        let own = accepted.is_some_and(|(_, entry)| entry.digest() == digest);
        let votes = |voter: &&Voter| {
            if voter.node == self.me() {
                own
            } else {
                deciding.seen.says(**voter, digest) && self.trusts(voter.node)
            }
        };
        let voted = history.voters.iter().filter(votes);
        voted.map(|voter| voter.node).collect()
    }

    /// Whether nothing was seen of a node that no correct node sends.
    pub(super) fn trusts(&self, node: NodeId) -> bool {
        !self.links.is_anything_refused_of(node)
    }

    /// Members and voters that live and are not given up, without this node. A node that this node
    /// does not trust counts as given up too.
    fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        let gone = |node: NodeId| {
            let history = self.history.as_ref();
            let member = history.and_then(|history| history.view.member(node));
            let voter = history.and_then(|history| history.voters.of(node));
            let votes = voter.is_some_and(|voter| self.peers.votes(*voter));
            member.is_none_or(|member| self.is_gone(member)) && !votes
        };
        let all = self.members_and_voters().into_iter();
        all.filter(move |node| !gone(*node) && !self.links.is_given_up(*node))
    }

    /// Handles an entry later than this node's round: the others continued without it, if another
    /// node says so too.
    pub(super) fn told_ahead(
        &mut self,
        header: &Header,
        entry: Outcome,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let place = header.place();
        let told = PlacedOutcome {
            outcome: entry,
            place,
        };
        if !self.doubts() {
            return self.excluded(told, now, out);
        }
        let lineage = self.history.as_ref().map(|history| history.lineage);
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if told.outcome.round < place.round || lineage != Some(told.outcome.lineage) {
            return;
        }
        let ahead = &mut deciding.seen.ahead;
        let first = ahead.is_empty();
        if ahead.len() < TOLD_MAX || ahead.contains_key(&header.sender) {
            ahead.insert(header.sender, told);
        }
        self.go_on_when_told_ahead(false, now, out);
        if first
            && self
                .deciding
                .as_ref()
                .is_some_and(|deciding| !deciding.seen.ahead.is_empty())
        {
            self.ask_everybody(now, out);
        }
    }

    /// Follows those that are ahead once enough of them say so: the one that is ahead least.
    fn go_on_when_told_ahead(&mut self, alone: bool, now: Instant, out: &mut Outbox<Effect>) {
        let Some(deciding) = &self.deciding else {
            return;
        };
        let trusted = deciding.seen.ahead.iter();
        let trusted: Vec<_> = trusted.filter(|(node, _)| self.trusts(**node)).collect();
        let enough = alone || trusted.len() >= WITNESSES || self.others().count() < WITNESSES;
        if !enough {
            return;
        }
        let least = trusted
            .iter()
            .min_by_key(|(_, told)| told.outcome.round)
            .map(|(_, told)| PlacedOutcome::clone(told));
        if let Some(told) = least {
            self.excluded(told, now, out);
        }
    }

    /// Asks everybody for the entry of the round, and for their votes.
    fn ask_everybody(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        self.with_deciding(|deciding| {
            deciding.seen.asks = true;
            deciding.seen.undecided.clear();
        });
        self.broadcast(self.members_and_voters(), &Message::Learn, out);
        self.timers
            .set(Timer::Votes, now.after(self.settings.votes_wait));
    }

    /// Answers a node that asks for the entry of this node's round.
    pub(super) fn tell_undecided(&self, to: NodeId, out: &mut Outbox<Effect>) {
        let undecided = |deciding: &Deciding| deciding.decided.is_none();
        if self.doubts() && self.deciding.as_ref().is_some_and(undecided) {
            self.send(to, Message::Undecided, out);
        }
    }

    /// Records that a voter knows of no decision.
    pub(super) fn note_undecided(&mut self, node: NodeId) {
        if let Some(deciding) = &mut self.deciding
            && deciding.seen.asks
            && deciding.seen.undecided.len() < MEMBERS_MAX
        {
            deciding.seen.undecided.insert(node);
        }
    }

    /// Called when the wait for votes is over: a quorum of them is enough. Then everybody is asked;
    /// once that wait is over too, one node is believed unless a quorum knows nothing of it.
    pub(super) fn votes_are_over(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        self.with_deciding(|deciding| deciding.seen.over = true);
        let asked = self
            .deciding
            .as_ref()
            .is_some_and(|deciding| deciding.seen.asks);
        let is_decided = |coordinator: &Self, digest| {
            let alone = asked && !coordinator.goes_on_here(Some(digest));
            let told = !coordinator.tellers(digest).is_empty();
            coordinator.believes(digest) || (alone && told)
        };
        if self.decide_where(is_decided) {
            return;
        }
        let alone = asked && !self.goes_on_here(None);
        self.go_on_when_told_ahead(alone, now, out);
        let waits = |seen: &Seen| !seen.entries.is_empty() || !seen.ahead.is_empty();
        let undecided = |deciding: &Deciding| deciding.decided.is_none() && waits(&deciding.seen);
        if self.deciding.as_ref().is_some_and(undecided) {
            self.ask_everybody(now, out);
        }
    }
}
