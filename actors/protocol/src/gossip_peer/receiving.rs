//! Incoming messages: offered messages are read, held or refused; frames answer for the messages of
//! this node.

use super::inbox::{Parked, Verdict};
use super::{Effect, GossipPeer, Key, Phase};
use crate::ident::{Epoch, Lineage, NodeId, Step, Term};
use crate::machine::{Outbox, Place};
use crate::planted::{self, Bug};
use crate::sound::is_weight;
use crate::wire::{Header, Message};

impl GossipPeer {
    pub(super) fn offered(
        &mut self,
        header: &Header,
        step: Step,
        weight: f64,
        out: &mut Outbox<Effect>,
    ) {
        let key = (header.round, step, header.sender);
        if !self.admits(header) || !is_weight(weight) {
            return self.refuse_at(header.place(), key, out);
        }
        self.heard_of(header.sender, step);
        let verdict = if key.0 == self.round {
            self.inbox.verdict(key.2, key.1)
        } else {
            None
        };
        match verdict {
            // A duplicate.
            Some(Verdict::Accepted(_)) => {
                out.push(Effect::Drop(key));
                self.tell(key.2, Message::GossipMixed { step }, out);
            }
            _ if self.inbox.has(key) => {}
            Some(Verdict::Refused) => self.refuse(key, out),
            None if key.0 == self.round && !self.takes(key) => self.refuse(key, out),
            None if self.inbox.park(
                key,
                Parked {
                    weight,
                    lineage: header.lineage,
                    epoch: header.epoch,
                },
            ) =>
            {
                self.read_on(out)
            }
            None => self.refuse(key, out),
        }
    }

    /// Whether a message is still mixed if it arrives now.
    fn takes(&self, key: Key) -> bool {
        let takes_part = self.phase != Phase::Settled && !self.leaving;
        // If nobody waits for this node and its own messages are refused, it would only accumulate
        // mass.
        let gathers = self.behind.is_some() && !self.is_patient();
        takes_part && !gathers && key.0 == self.round && !self.is_too_late(key.1, self.mixing)
    }

    /// Whether a message with this header may ever be mixed: its round is not over, and it belongs
    /// to this view or to a later one that this node has not heard of yet. A peer may be several
    /// rounds ahead of this machine, which hears of rounds only when it gossips.
    fn admits(&self, header: &Header) -> bool {
        header.round >= self.round && (self.is_of_view(header) || header.epoch > self.epoch)
    }

    /// Refuses messages that were offered early for a view that turned out to be a different one.
    pub(super) fn refuse_strays(&mut self, out: &mut Outbox<Effect>) {
        let members = &self.members;
        let lineage = self.lineage;
        let epoch = self.epoch;
        let is_of_view = |sender: NodeId, of: Lineage, at: Epoch| {
            (of, at) == (lineage, epoch) && members.binary_search(&sender).is_ok()
        };
        for (key, offer) in self.inbox.take_strays(is_of_view, epoch) {
            let place = Place {
                lineage: offer.lineage,
                epoch: offer.epoch,
                round: key.0,
                term: Term::default(),
                attempt: 0,
            };
            self.refuse_at(place, key, out);
        }
    }

    pub(super) fn read_on(&mut self, out: &mut Outbox<Effect>) {
        while let Some(key) = self
            .inbox
            .next_to_read(self.round, (self.lineage, self.epoch))
        {
            out.push(Effect::Receive(key));
        }
    }

    pub(super) fn arrived(&mut self, key: Key, out: &mut Outbox<Effect>) {
        let Some(weight) = self.inbox.take_read(key) else {
            return out.push(Effect::Drop(key));
        };
        if self.takes(key) && self.inbox.verdict(key.2, key.1).is_none() {
            self.inbox.hold(key, weight);
            self.tell(key.2, Message::GossipMixed { step: key.1 }, out);
        } else {
            self.refuse(key, out);
        }
        self.read_on(out);
    }

    pub(super) fn broken(&mut self, key: Key, out: &mut Outbox<Effect>) {
        if self.inbox.take_read(key).is_some() {
            self.refuse(key, out);
            self.read_on(out);
        }
    }

    pub(super) fn refuse(&mut self, key: Key, out: &mut Outbox<Effect>) {
        let place = Place {
            round: key.0,
            ..self.place()
        };
        self.refuse_at(place, key, out);
    }

    fn refuse_at(&mut self, place: Place, key: Key, out: &mut Outbox<Effect>) {
        let (round, step, from) = key;
        let is_ours = (place.lineage, place.epoch, round) == (self.lineage, self.epoch, self.round);
        if is_ours && self.inbox.verdict(from, step).is_none() {
            self.inbox.judge(from, step, Verdict::Refused);
        }
        out.push(Effect::Drop(key));
        let message = Message::GossipRefused {
            step,
            reached: self.mixing,
        };
        out.push(Effect::Send {
            to: from,
            frame: self.identity.frame(place, message),
        });
    }

    pub(super) fn receive(&mut self, header: &Header, message: &Message, out: &mut Outbox<Effect>) {
        if header.lineage != self.lineage || header.epoch < self.epoch {
            return;
        }
        let from = header.sender;
        match message {
            // A member of a later view may still be unknown; if it is not a member, its skips are
            // forgotten when that view is entered.
            Message::GossipSkipped { first, last }
                if header.round >= self.round
                    && (self.is_member(from) || header.epoch > self.epoch) =>
            {
                self.heard_of(from, *last);
                self.inbox.skip(from, *first, *last);
                let key = (header.round, *last, from);
                let came = self.inbox.has(key) || self.inbox.verdict(from, *last).is_some();
                // Otherwise the peer might never send anything that is refused, and so never learn
                // that it is late. If the message did arrive, the peer must not take this for the
                // answer to it.
                if header.round == self.round && !came && self.is_too_late(*last, self.mixing) {
                    self.tell(
                        from,
                        Message::GossipRefused {
                            step: *last,
                            reached: self.mixing,
                        },
                        out,
                    );
                }
            }
            Message::GossipMixed { step }
                if self.is_of_view(header) && self.escrow.release((from, *step)) =>
            {
                let forgets = !planted::has(Bug::UnboundedEscrow);
                out.push_all(forgets.then_some(Effect::Forget((from, *step))));
            }
            Message::GossipRefused { step, reached } if self.is_of_view(header) => {
                self.escrow.told((from, *step));
                self.escrow.take_back((from, *step));
                if header.round == self.round && self.is_too_late(*step, *reached) {
                    self.behind = self.behind.max(Some(*reached));
                }
            }
            Message::GossipAsk { step } => self.answer(header, *step, out),
            Message::GossipReclaimed { step }
                if self.is_of_view(header) && header.round <= self.round =>
            {
                self.give_up_reclaimed((header.round, *step, from), out);
            }
            _ => {}
        }
    }

    /// Answers whether a message was accepted or refused, as far as that is known; if nothing of it
    /// has arrived, it is refused from now on.
    fn answer(&mut self, header: &Header, step: Step, out: &mut Outbox<Effect>) {
        let key = (header.round, step, header.sender);
        let known = if header.round == self.round && self.is_of_view(header) {
            self.inbox.verdict(key.2, step)
        } else {
            None
        };
        match known {
            Some(Verdict::Accepted(_)) => self.tell(key.2, Message::GossipMixed { step }, out),
            None if self.inbox.has(key)
                || header.round > self.round
                || header.epoch > self.epoch => {}
            _ => self.refuse_at(header.place(), key, out),
        }
    }

    /// The sender took this node for dead and has reclaimed this message's mass. It repeats the
    /// notice until it is answered.
    fn give_up_reclaimed(&mut self, key: Key, out: &mut Outbox<Effect>) {
        if key.0 == self.round {
            if let Some(Verdict::Accepted(weight)) = self.inbox.verdict(key.2, key.1) {
                self.debt += weight;
            }
            if self.inbox.drop_message(key) {
                out.push(Effect::Drop(key));
            }
            self.inbox.judge(key.2, key.1, Verdict::Refused);
        }
        let message = Message::GossipRefused {
            step: key.1,
            reached: self.mixing,
        };
        out.push(Effect::Send {
            to: key.2,
            frame: self.identity.frame(
                Place {
                    round: key.0,
                    ..self.place()
                },
                message,
            ),
        });
        self.read_on(out);
    }

    fn heard_of(&mut self, peer: NodeId, step: Step) {
        let reached = self.reached.entry(peer).or_default();
        *reached = (*reached).max(step);
    }
}
