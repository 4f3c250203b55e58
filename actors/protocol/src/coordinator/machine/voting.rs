//! The coordinator's frames: promise, accept and decide. A frame counts only from a member of the view, in the right
//! incarnation, for this round, from the leader of its ballot where only the leader may speak; everything else is answered
//! with "stale" or not acted on.
//!
//! A proposal belongs to one ballot. Data belongs to the ballot it moved under, so a member accepts only what it holds under
//! the ballot in force. A decision is final, whatever ballot was promised after it.

use super::{Coordinator, EARLY_FRAMES_PER_MEMBER_MAX, Effect, Stopped};
use crate::ballot::BALLOT_COUNTER_MAX;
use crate::coordinator::outcome::{Outcome, Terms};
use crate::coordinator::plan::Plan;
use crate::ident::Ballot;
use crate::machine::{Outbox, Place};
use crate::wire::{Header, Message};

impl Coordinator {
    /// Whether a header names this history and another member of its view, in the incarnation the view has.
    pub(super) fn is_from_member(&self, header: &Header) -> bool {
        let place = self.place();
        let same = header.cluster == self.founding.identity.cluster && header.lineage == place.lineage && header.epoch == place.epoch;
        let member = self.view().member(header.sender).filter(|member| member.id != self.me());
        // The first ballot of a round is the lowest id's; all others have a higher counter.
        let owned = header.ballot.counter > 0 || header.ballot.node == self.view().lowest();
        let bounded = owned && header.ballot.counter <= BALLOT_COUNTER_MAX && self.view().contains(header.ballot.node);
        same && bounded && member.is_some_and(|member| member.incarnation == header.incarnation)
    }

    pub(super) fn receive(&mut self, header: Header, message: Message, out: &mut Outbox<Effect>) {
        if !self.is_from_member(&header) {
            return;
        }
        let asks = matches!(message, Message::Prepare | Message::Propose(_));
        if header.round < self.round {
            return self.answer_stale(&header, asks, out);
        }
        if let Some(Stopped::Refused(reason)) = self.stopped.as_ref().filter(|_| asks) {
            // This node takes part in no further round; its leader may be in one already and has to know.
            let place = Place { round: header.round, ..self.place() };
            return self.send_from(place, header.sender, Message::Abandon(reason.clone()), out);
        }
        if header.round > self.round {
            return self.park(header, message);
        }
        match message {
            Message::Decide(outcome) => self.take_decision(&header, outcome, out),
            Message::Abandon(reason) if self.leads() => self.abandon(reason, out),
            Message::Abandon(reason) => self.stop(Stopped::Refused(reason), out),
            _ if header.ballot < self.ballot => self.answer_stale(&header, asks, out),
            Message::Prepare => self.promise(&header, out),
            Message::Propose(proposal) => self.take_proposal(&header, proposal.outcome, out),
            Message::Prepared => self.count_prepared(&header, out),
            _ => {}
        }
    }

    fn answer_stale(&self, header: &Header, asks: bool, out: &mut Outbox<Effect>) {
        if asks {
            self.send(header.sender, Message::Stale, out);
        }
    }

    /// Keeps a frame of the next round until this node gets there; a flood from one member costs the others nothing.
    fn park(&mut self, header: Header, message: Message) {
        let parked = self.early.iter().filter(|(early, _)| early.sender == header.sender).count();
        if header.round == self.round.next() && parked < EARLY_FRAMES_PER_MEMBER_MAX {
            self.early.push((header, message));
        }
    }

    /// Goes over to a higher ballot: what was proposed and counted under the lower one is void.
    fn follow(&mut self, ballot: Ballot) {
        if ballot > self.ballot {
            self.ballot = ballot;
            self.proposed = None;
            self.prepared.clear();
        }
    }

    fn promise(&mut self, header: &Header, out: &mut Outbox<Effect>) {
        if header.sender != header.ballot.node {
            return;
        }
        match self.acceptor.prepare(header.ballot) {
            Ok(promise) => {
                self.follow(header.ballot);
                self.send(
                    header.sender,
                    Message::Promise {
                        accepted: promise.accepted.map(|(ballot, outcome)| {
                            (ballot, crate::coordinator::Proposal { outcome, participants: Vec::new(), inherited: false })
                        }),
                        contributed: None,
                    },
                    out,
                );
            }
            Err(_) => self.send(header.sender, Message::Stale, out),
        }
    }

    fn take_proposal(&mut self, header: &Header, outcome: Outcome, out: &mut Outbox<Effect>) {
        if !self.may_be_outcome(header, &outcome) {
            return;
        }
        if self.acceptor.prepare(header.ballot).is_err() {
            return self.send(header.sender, Message::Stale, out);
        }
        self.follow(header.ballot);
        if self.agrees(header, outcome.terms, out) {
            // A leader proposes one outcome under its ballot: the first one counts.
            self.proposed.get_or_insert(outcome);
            self.advance(out);
        }
    }

    fn take_decision(&mut self, header: &Header, outcome: Outcome, out: &mut Outbox<Effect>) {
        if self.may_be_outcome(header, &outcome) && self.agrees(header, outcome.terms, out) {
            self.decided.get_or_insert(outcome);
            self.advance(out);
        }
    }

    fn count_prepared(&mut self, header: &Header, out: &mut Outbox<Effect>) {
        if self.leads() && header.ballot == self.ballot && self.proposed.is_some() {
            self.prepared.insert(header.sender);
            self.advance(out);
        }
    }

    /// Whether the leader of the frame's ballot sent an outcome that this round can have: with a fixed view the next view is
    /// this one, and who contributes follows from the kind.
    fn may_be_outcome(&self, header: &Header, outcome: &Outcome) -> bool {
        let here = outcome.lineage == self.founding.lineage && outcome.round == self.round && outcome.view == *self.view();
        header.sender == header.ballot.node && here && outcome.contributors == self.contributors(outcome.terms.kind)
    }

    /// Whether this node, if it has contributed, expects the same round; ends the round for everybody if not.
    fn agrees(&mut self, header: &Header, theirs: Terms, out: &mut Outbox<Effect>) -> bool {
        let ours = self.open.as_ref().map(|open| open.plan.terms).filter(|ours| *ours != theirs);
        if let Some(ours) = ours {
            let reason = self.difference(ours, header.sender, theirs);
            self.abandon(reason, out);
        }
        ours.is_none()
    }

    pub(super) fn propose(&mut self, plan: &Plan, out: &mut Outbox<Effect>) {
        let outcome = Outcome {
            lineage: self.founding.lineage,
            round: self.round,
            terms: plan.terms,
            contributors: plan.contributors.clone(),
            view: self.founding.view.clone(),
            absent: Vec::new(),
            momentum_lost: 0,
            samples: None,
        };
        let participants = self.view().ids().collect();
        self.broadcast(&Message::Propose(crate::coordinator::Proposal { outcome: outcome.clone(), participants, inherited: false }), out);
        self.proposed = Some(outcome);
    }

    /// Accepts the proposal once this node holds, under its ballot, all that it must hold.
    pub(super) fn accept_when_held(&mut self, out: &mut Outbox<Effect>) {
        let ballot = self.ballot;
        let ready = |open: &&mut super::Open| open.holds_all() && !open.told_leader && open.plan.ballot == ballot;
        let Some(open) = self.open.as_mut().filter(ready) else { return };
        let Some(outcome) = self.proposed.clone() else { return };
        if self.acceptor.accept(ballot, outcome).is_err() {
            return;
        }
        open.told_leader = true;
        if self.leads() {
            self.prepared.insert(self.me());
        } else {
            self.send(ballot.node, Message::Prepared, out);
        }
    }

    /// The leader's rule: a quorum accepted, and every shard is held by all its holders.
    pub(super) fn decide_when_prepared(&mut self, out: &mut Outbox<Effect>) {
        let Some(open) = self.open.as_ref().filter(|_| self.leads() && self.decided.is_none()) else { return };
        let held = open.plan.holders().is_subset(&self.prepared);
        if !held || !self.view().is_quorum(self.prepared.iter().copied()) {
            return;
        }
        if let Some(outcome) = self.proposed.clone() {
            self.broadcast(&Message::Decide(outcome.clone()), out);
            self.decided = Some(outcome);
        }
    }
}
