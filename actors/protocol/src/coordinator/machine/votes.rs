//! Votes that go to everybody, so that no leader has two entries decided.
//!
//! ```text
//!   leader L            A                      B
//!   ├─ Accept(one) ────►│                      │      each with L's signature under its term
//!   ├─ Accept(other) ───┼─────────────────────►│
//!   │                   ├─ Accepted(one) ─────►│      a vote carries what L signed
//!   │                   │◄──── Accepted(other) ┤
//!   │◄──────────────────┼─ TwoEntries ────────►┤      two signatures of one term: all leave L out
//! ```
//! A member waits for the votes of all voters that live before it applies an entry (`believing`).
//! So if a leader has two entries voted for, the honest nodes of both sides find it before they
//! apply either, provided that their votes reach each other in that time. Votes that come later
//! find it too: a node that applied an entry without a quorum of others then stops, and trains no
//! second model.
//!
//! Where the wait is zero, each node votes to its leader and believes what one node says.

use super::Coordinator;
use super::comparing::{Claim, Statement};
use super::following::is_member;
use crate::coordinator::error::RoundError;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::plan::Attempt;
use crate::coordinator::voters::Voter;
use crate::ident::{Lineage, NodeId, Round, Term};
use crate::machine::{Outbox, Place};
use crate::published::{Digest, PublicKey, Signed};
use crate::sound::Unsound;
use crate::time::{Instant, Span};
use crate::view::Member;
use crate::wire::{Header, Message};
use std::collections::{BTreeMap, BTreeSet};

/// Time for which a member that was told a decision waits for the votes of all living voters.
/// Honest nodes that reach each other do so within it.
pub const VOTES_WAIT: Span = Span::from_millis(1_000);

/// Maximum number of entries that are kept because only their leaders' votes made a quorum for
/// them, as far as this node saw: those of minutes in which members cannot reach each other.
pub const DOUBTFUL_MAX: usize = 1 << 12;

/// An entry that this node applied. Others may find late that it was not the only one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Applied {
    /// The attempt whose data was installed, and what its owners published.
    pub attempt: Attempt,
    pub signed: BTreeMap<NodeId, Signed>,
    lineage: Lineage,
    round: Round,
    entry: Digest,
    /// The leader's signature for it and the term, if this node was asked for its vote.
    asked: Option<(Term, Signed)>,
    /// Whether it has a quorum also without that leader's vote.
    is_firm: bool,
}

impl Coordinator {
    /// Whether this node compares what the others voted for, and believes no single node.
    pub(super) fn doubts(&self) -> bool {
        self.settings.votes_wait > Span(0)
    }

    /// The incarnation and key of a member or voter of the round, or of a node that joins.
    pub(super) fn key_of(&self, node: NodeId) -> Option<(Voter, PublicKey)> {
        let history = self.history.as_ref()?;
        let retained = || history.retained.iter().find(|voter| voter.id == node);
        let member = history.view.member(node).or_else(retained);
        let joiner = || {
            let mut views = self.deciding.as_ref()?.may_follow();
            views.find_map(|outcome| outcome.view.member(node))
        };
        let signer = |member: &Member| (Voter::from(member), member.key);
        member.or_else(joiner).map(signer)
    }

    /// The claim that the leader of a term asked votes for an entry.
    pub(super) fn asked_by(&self, header: &Header, signed: Signed) -> Option<Claim> {
        let (signer, key) = self.key_of(header.term.node)?;
        let of = Statement::Entry(header.lineage, header.round, header.term);
        Some(Claim {
            signer,
            key,
            signed,
            of,
        })
    }

    /// Whether a frame about votes is of this node's round, or of the next one, for which it waits.
    pub(super) fn concerns_votes(&self, header: &Header) -> bool {
        let place = self.place();
        let near = header.round == place.round || header.round == place.round.next();
        self.doubts() && near && header.lineage == place.lineage
    }

    /// Whether a vote names another entry than this node knows to have been asked for under its
    /// term, so that the leader's signature counts.
    pub(super) fn is_other_vote(&self, header: &Header, signed: Signed) -> bool {
        if let Some(applied) = self.applied_in(header) {
            return applied.entry != signed.digest;
        }
        self.concerns_votes(header) && self.known_ask(header) != Some(signed.digest)
    }

    /// The digest of the entry for which votes must be asked in the attempt of a header: that of
    /// the votes asked for before, or of what this node told its leader.
    fn known_ask(&self, header: &Header) -> Option<Digest> {
        let place = self.place();
        let deciding = self.deciding.as_ref()?;
        if (header.lineage, header.round) != (place.lineage, place.round) {
            return None;
        }
        let asked = deciding.seen.asked_under(header.term);
        let held = || {
            let ready = deciding.data.ready(header.term, header.attempt)?;
            ready.outcome().map(Outcome::digest)
        };
        asked.map(|asked| asked.digest).or_else(held)
    }

    /// Returns the entry that was applied in the round of a header, if it was the last round or is
    /// doubtful.
    fn applied_in(&self, header: &Header) -> Option<&Applied> {
        if !self.doubts() || header.round >= self.place().round {
            return None;
        }
        let mut applied = self.applied.iter().chain(&self.doubtful);
        applied.find(|applied| (applied.lineage, applied.round) == (header.lineage, header.round))
    }

    /// Keeps the entry that was applied last while another one takes its place.
    fn keep_doubtful(&mut self) {
        let last = self.applied.take();
        if let Some(last) = last
            && !last.is_firm
            && self.doubts()
        {
            self.doubtful.push_back(Applied {
                signed: BTreeMap::new(),
                ..last
            });
        }
        if self.doubtful.len() > DOUBTFUL_MAX {
            self.doubtful.pop_front();
        }
    }

    /// Sends a vote to the leader, and to everybody whom the entry concerns.
    pub(super) fn tell_vote(&self, leader: NodeId, entry: &Outcome, out: &mut Outbox<Effect>) {
        let Some(signed) = self.own_vote() else {
            return;
        };
        let mut to = BTreeSet::from([leader]);
        if self.doubts() {
            to.extend(self.members_and_voters());
            to.extend(entry.view.ids());
        }
        self.broadcast(to, &Message::Accepted(signed), out);
    }

    /// Returns the entry that this node voted for last, with its leader's signature; `None` if it
    /// has not voted under the term in force, or leads it.
    pub(super) fn own_vote(&self) -> Option<Signed> {
        let deciding = self.deciding.as_ref()?;
        let (term, _) = deciding.acceptor.accepted()?;
        if *term != deciding.term() || term.node == self.me() {
            return None;
        }
        deciding.seen.asked_under(*term)
    }

    pub(super) fn members_and_voters(&self) -> BTreeSet<NodeId> {
        let history = self.history.iter();
        history
            .flat_map(|history| history.view.ids().chain(history.voters.ids()))
            .filter(|node| *node != self.me())
            .collect()
    }

    /// Records the vote of another node. Its leader's signature is sound, unless it names what this
    /// node knows.
    pub(super) fn note_vote(
        &mut self,
        header: &Header,
        signed: Signed,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if !self.doubts() {
            return;
        }
        let other = self.is_other_vote(header, signed);
        if other && self.key_of(header.term.node).is_none() {
            return;
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let before = deciding.seen.votes.get(&header.sender);
        match before.map(|votes| votes.newest) {
            Some((term, _)) if term > header.term => return,
            Some((term, voted)) if term == header.term && voted != signed.digest => {
                // It voted twice under one term.
                return self.go_on_without(header.sender, Unsound::OtherEntry, now, out);
            }
            _ => {}
        }
        let vote = (header.term, signed.digest);
        deciding.seen.votes(header.sender, vote);
        if other {
            self.note_ask(header, signed, now, out);
        }
    }

    /// Records what the leader of a term asks votes for, as its signature proves; `false` if it
    /// asked for something else before, which is told to everybody.
    pub(super) fn note_ask(
        &mut self,
        header: &Header,
        signed: Signed,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) -> bool {
        let Some(deciding) = &mut self.deciding else {
            return false;
        };
        let newest = deciding.seen.asked.map(|(term, _)| term);
        if let Some(known) = deciding.seen.asked_under(header.term) {
            let same = known.digest == signed.digest;
            if !same {
                self.prove_two_entries(header, (known, signed), now, out);
            }
            return same;
        }
        if newest.is_none_or(|newest| newest < header.term) {
            deciding.seen.asks(header.term, signed);
            // A leader votes for what it asks for.
            let vote = (header.term, signed.digest);
            deciding.seen.votes(header.term.node, vote);
        }
        true
    }

    /// Tells everybody that a leader asked for votes for two entries, and goes on without it.
    fn prove_two_entries(
        &mut self,
        header: &Header,
        (one, other): (Signed, Signed),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let deciding = self.deciding.iter();
        let joiners = deciding.flat_map(|deciding| deciding.may_follow());
        let joiners = joiners.flat_map(|outcome| outcome.view.ids());
        let mut everybody: BTreeSet<NodeId> = joiners.collect();
        everybody.extend(self.members_and_voters());
        let proof = Message::TwoEntries { one, other };
        for node in everybody.into_iter().filter(|node| *node != self.me()) {
            self.send_from(header.place(), node, proof.clone(), out);
        }
        self.go_on_without_leader(header, (one, other), now, out);
    }

    /// Handles the proof that a leader asked for votes for two entries. It holds in every round,
    /// for the incarnation whose key the view has.
    pub(super) fn receive_two_entries(
        &mut self,
        header: &Header,
        (one, other): (Signed, Signed),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(history) = &self.history else { return };
        let sender = Voter {
            node: header.sender,
            incarnation: header.incarnation,
        };
        let known = is_member(&history.view, header) || history.voters.contains(sender);
        if !known || self.key_of(header.term.node).is_none() {
            return;
        }
        if one.digest == other.digest {
            return self.go_on_without(header.sender, Unsound::OtherEntry, now, out);
        }
        self.go_on_without_leader(header, (one, other), now, out);
    }

    /// Goes on without a leader that asked for votes for two entries. A node that applied one of
    /// them which only that leader's vote made a quorum for stops: the others may have applied the
    /// other.
    fn go_on_without_leader(
        &mut self,
        header: &Header,
        (one, other): (Signed, Signed),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let leader = header.term.node;
        let round = header.round;
        let stops = self.applied_in(header).is_some_and(|applied| {
            let either = applied.entry == one.digest || applied.entry == other.digest;
            either && !applied.is_firm
        });
        if header.round == self.place().round {
            self.with_deciding(|deciding| deciding.seen.has_two(header.term));
        }
        if leader != self.me() {
            let proof = Message::TwoEntries { one, other };
            self.keep_proof(leader, header.place(), proof);
            if !self.is_named(leader) {
                self.go_on_without(leader, Unsound::TwoEntries, now, out);
            }
        }
        if stops || leader == self.me() {
            self.stop(RoundError::TwoEntries { round, leader }, out);
        }
    }

    /// Handles a vote for a round that this node applied.
    pub(super) fn receive_late_vote(
        &mut self,
        header: &Header,
        signed: Signed,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(applied) = self.applied_in(header) else {
            return;
        };
        let asked = applied.asked.filter(|(term, _)| *term == header.term);
        if applied.entry == signed.digest || self.key_of(header.term.node).is_none() {
            return;
        }
        if let Some((_, known)) = asked {
            self.prove_two_entries(header, (known, signed), now, out);
        }
    }

    /// Sends this node's vote again to a node that asks, or that can be sent to again.
    pub(super) fn vote_again(&self, to: NodeId, out: &mut Outbox<Effect>) {
        if !self.doubts() {
            return;
        }
        if let Some(signed) = self.own_vote() {
            self.send(to, Message::Accepted(signed), out);
        }
    }

    /// Whether a correct leader cannot ask for votes for an entry: this node is its next member,
    /// and does not hold its data.
    pub(super) fn lacks(&self, entry: &Outcome) -> bool {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return false;
        };
        let myself = self.myself();
        let member = entry.view.member(myself.node);
        let counted = member.is_some_and(|member| Voter::from(member) == myself);
        let holds = || deciding.data.of(entry).is_some();
        self.doubts() && counted && history.member && !history.is_fork && !holds()
    }

    /// Whether a quorum voted for another entry under an earlier term, as this node saw it: that
    /// one is decided.
    pub(super) fn saw_another_chosen(&self, term: Term, digest: Digest) -> bool {
        if !self.doubts() {
            return false;
        }
        let Some(deciding) = &self.deciding else {
            return false;
        };
        let votes = deciding.seen.votes.values();
        let votes = votes.flat_map(|votes| [votes.first, votes.newest]);
        let earlier: BTreeSet<(Term, Digest)> = votes
            .filter(|(of, voted)| *of < term && *voted != digest)
            .collect();
        earlier.into_iter().any(|vote| {
            let voted = deciding.seen.voters_of(vote);
            // A leader votes for what it asks for. One that lied about that votes for everything.
            let voted = voted.chain([vote.0.node]);
            self.is_quorum(voted.filter(|node| *node == self.me() || self.trusts(*node)))
        })
    }

    /// Keeps an applied entry while the next round is under way. Names the nodes that told of
    /// another one.
    pub(super) fn note_applied(
        &mut self,
        attempt: Attempt,
        outcome: &Outcome,
        place: Place,
        out: &mut Outbox<Effect>,
    ) {
        let Some(deciding) = &self.deciding else {
            return;
        };
        let signed = deciding.data.known(attempt);
        let signed = signed.map(|movement| movement.signed.clone());
        let mut asked = None;
        let mut entry = Digest::default();
        if self.doubts() {
            entry = outcome.digest();
            asked = deciding.seen.asked;
        }
        let asked = asked.filter(|(_, signed)| signed.digest == entry);
        // Whoever asked for the votes, as far as this node knows, may be the one that lies.
        let asker = asked.map(|(term, _)| term.node);
        let leaders = [asker, Some(place.term.node), Some(attempt.term.node)];
        let mut voted = self.voted_for(entry);
        voted.retain(|node| !leaders.contains(&Some(*node)));
        let liars = deciding.seen.tellers.iter();
        let liars: Vec<NodeId> = liars
            .filter(|(_, told)| **told != entry)
            .map(|(teller, _)| teller.node)
            .collect();
        let is_firm = self.doubts() && self.is_quorum(voted);
        self.keep_doubtful();
        self.applied = Some(Applied {
            attempt,
            signed: signed.unwrap_or_default(),
            lineage: place.lineage,
            round: place.round,
            entry,
            asked,
            is_firm,
        });
        for node in liars {
            out.push(Effect::Unsound(node, Unsound::OtherEntry));
            self.distrust(node);
        }
    }
}
