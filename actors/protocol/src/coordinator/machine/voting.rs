//! Rules of a voter. A vote needs no data: members that leave, stragglers and voters that are not
//! members vote too.

use super::Coordinator;
use super::data::Movement;
use super::deciding::Deciding;
use crate::coordinator::acceptor::Promise;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Entry, Outcome};
use crate::ident::Term;
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::published::{Signature, Signed};
use crate::sound::Unsound;
use crate::time::Instant;
use crate::wire::{Header, Message};

impl Coordinator {
    pub(super) fn promise(&mut self, header: &Header, now: Instant, out: &mut Outbox<Effect>) {
        if self.raise(header, now, out) {
            self.tell_promise(header.term, out);
        }
    }

    /// Switches to the term of a leader that asks this voter for something; `false` if a higher
    /// term was promised, which the leader is told, or if this node is not a voter.
    fn raise(&mut self, header: &Header, now: Instant, out: &mut Outbox<Effect>) -> bool {
        if !self.is_voter() {
            return false;
        }
        let Some(deciding) = &mut self.deciding else {
            return false;
        };
        let raised = header.term > deciding.term();
        if deciding.acceptor.prepare(header.term).is_err() {
            self.send(header.sender, Message::Overtaken, out);
            return false;
        }
        if raised {
            self.follow(header.term, now);
        }
        true
    }

    /// Sends the promise of `term` to its owner.
    pub(super) fn tell_promise(&mut self, term: Term, out: &mut Outbox<Effect>) {
        let contributed = if self.view().is_some() {
            self.mine.clone()
        } else {
            None
        };
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let Ok(Promise { accepted, floor }) = deciding.acceptor.prepare(term) else {
            return;
        };
        if contributed.is_some() {
            deciding.told.insert(term.node);
        }
        let mut floor = floor;
        if planted::has(Bug::FloorUntold)
            && let Some(history) = &self.history
        {
            floor = history.first_term();
        }
        self.send(
            term.node,
            Message::Promise {
                accepted,
                floor,
                contributed,
            },
            out,
        );
    }

    pub(super) fn acknowledge_open(
        &mut self,
        header: &Header,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if planted::has(Bug::OpenedBelowPromise) && self.is_voter() {
            self.send_from(header.place(), header.sender, Message::Opened, out);
        }
        if !self.raise(header, now, out) {
            return;
        }
        let opened = self
            .deciding
            .as_mut()
            .is_some_and(|deciding| deciding.acceptor.open(header.term).is_ok());
        if opened {
            self.send(header.sender, Message::Opened, out);
        }
    }

    /// Votes for an entry. Every next member holds its data: otherwise its leader would not ask. A
    /// voter that told this leader of another entry of the attempt does not vote, nor does one that
    /// was asked for another entry under this term.
    pub(super) fn vote(
        &mut self,
        header: &Header,
        (entry, signature): (Entry, Signature),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let digest = entry.digest();
        let signed = Signed { digest, signature };
        let place = self.place();
        let elsewhere =
            |entry: &Outcome| entry.round != place.round || entry.lineage != place.lineage;
        if matches!(&entry, Entry::Whole(entry) if elsewhere(entry))
            || !self.raise(header, now, out)
        {
            return;
        }
        let chosen_before = self.saw_another_chosen(header.term, digest);
        if self.doubts() && !self.note_ask(header, signed, now, out) {
            return;
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let held = deciding
            .data
            .ready(header.term, header.attempt)
            .and_then(Movement::outcome);
        if held.is_some_and(|held| held.digest() != digest) {
            return self.contradicted(header, now, out);
        }
        let entry = match entry {
            Entry::Whole(entry) => Some(entry),
            Entry::Held(_) => held.cloned(),
        };
        let Some(entry) = entry else {
            return self.send(header.sender, Message::Learn, out);
        };
        if chosen_before {
            return;
        }
        if self.lacks(&entry) {
            return self.asked_without_data(header, now, out);
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if deciding.acceptor.accept(header.term, entry.clone()).is_ok() {
            deciding.seen.asks(header.term, signed);
            self.tell_vote(header.sender, &entry, out);
        }
    }

    /// Handles a leader that asks for votes for an entry whose data this node does not hold,
    /// although it is a next member. The leader that asked first lies; one that finishes an entry
    /// of an earlier term may have been told it by a liar.
    fn asked_without_data(&mut self, header: &Header, now: Instant, out: &mut Outbox<Effect>) {
        let finishes = header.attempt == 0 && header.term.counter > 0;
        let closed = |deciding: &Deciding| header.term < deciding.closed_below;
        if !finishes && !self.deciding.as_ref().is_some_and(closed) {
            self.go_on_without(header.sender, Unsound::Unattempted, now, out);
        }
    }
}
