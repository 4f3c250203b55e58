//! Rules of a leader that takes over. Under the first term nothing can have been chosen before, so
//! its leader attempts the round at once (`leading`). The leader of any other term asks the voters
//! for promises, and a quorum of them says what may have been chosen.
//!
//! If an entry may have been chosen, the leader asks for votes for that one: every next member
//! holds its data, so nothing moves. Else it opens its term and attempts the round anew. Once a
//! quorum has acknowledged that the term is open, the earlier terms are closed, and the data of
//! their attempts may be dropped.

use super::Coordinator;
use super::deciding::{Attempts, Lead};
use super::timers::Timer;
use crate::coordinator::acceptor::{Promise, bound};
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Outcome, Proposal};
use crate::coordinator::voters::Voter;
use crate::ident::{NodeId, Term};
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::time::{Instant, Span};
use crate::wire::{ContributionNotice, Header, Message};
use std::collections::{BTreeMap, BTreeSet};

/// Time after asking for promises for which a leader still waits for voters that seem alive,
/// although a quorum has promised.
pub const PROMISE_WAIT: Span = Span::from_millis(1_000);

/// The finding of a quorum's promises about an earlier term.
enum MayBeChosen<'a> {
    /// Nothing was chosen.
    None,
    /// This entry may have been chosen.
    One(&'a Outcome),
    /// Either of several, whose leader lied.
    Several,
}

impl Coordinator {
    /// Asks for promises under a new term.
    pub(super) fn take_over(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        self.note_standing_in(now);
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let term = deciding.highest.next_of(self.settings.identity.node);
        self.ask_for_promises(term, now, out);
        self.go_on_when_promised(now, out);
    }

    pub(super) fn ask_for_promises(&mut self, term: Term, now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        self.follow(term, now);
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let Ok(promise) = deciding.acceptor.prepare(term) else {
            return;
        };
        deciding.lead = Lead::Prepare {
            term,
            promises: BTreeMap::from([(me, promise)]),
        };
        deciding.opened.clear();
        deciding.closed = false;
        self.timers.set(Timer::Promises, now.after(PROMISE_WAIT));
        let voters: Vec<NodeId> = self
            .history
            .iter()
            .flat_map(|history| history.voters.ids())
            .collect();
        // Some voters of a fork may not have heard of it.
        voters
            .iter()
            .filter(|voter| **voter != me)
            .for_each(|voter| self.tell_fork(*voter, term, out));
        self.broadcast(voters, &Message::Prepare, out);
    }

    pub(super) fn promised(
        &mut self,
        header: &Header,
        promise: Promise<Outcome>,
        contributed: Option<ContributionNotice>,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if let Some(contributed) = contributed {
            self.note_contribution(header.sender, contributed, now, out);
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if let Lead::Prepare { term, promises } = &mut deciding.lead
            && *term == header.term
        {
            promises.entry(header.sender).or_insert(promise);
        }
    }

    /// Given the promises of a quorum, asks for votes for the entry that may have been chosen, or
    /// opens its term and attempts the round anew.
    pub(super) fn go_on_when_promised(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return;
        };
        let Lead::Prepare { term, promises } = &deciding.lead else {
            return;
        };
        let term = *term;
        if !self.is_quorum(promises.keys().copied()) {
            return;
        }
        let answers =
            |voter: &Voter| self.peers.votes(*voter) && !self.links.is_given_up(voter.node);
        let all = history
            .voters
            .iter()
            .all(|voter| promises.contains_key(&voter.node) || !answers(voter));
        if !all && self.timers.runs(Timer::Promises) {
            return;
        }
        let held = |outcome: &Outcome| {
            !history.is_fork || promises.keys().any(|node| outcome.view.contains(*node))
        };
        match self.chosen(promises) {
            MayBeChosen::One(outcome) if held(outcome) => {
                let outcome = outcome.clone();
                self.finish(term, outcome, out);
            }
            MayBeChosen::One(_) | MayBeChosen::None => self.open(term, now, out),
            // Further promises tell; without them nothing is decided.
            MayBeChosen::Several => {}
        }
    }

    /// The entry that may have been chosen, given the promises of a quorum. Two of one term, or a
    /// proof, show that its leader lied: then one counts only if it may have a quorum without that
    /// leader's vote, which voters that promised nothing may have helped to make. An entry does not
    /// count whose next member this node is without holding its data.
    fn chosen<'a>(&self, promises: &'a BTreeMap<NodeId, Promise<Outcome>>) -> MayBeChosen<'a> {
        let Some((term, first)) = bound(promises.values()) else {
            return MayBeChosen::None;
        };
        let accepted = promises.iter().filter_map(|(node, promise)| {
            let (of, outcome) = promise.accepted.as_ref()?;
            (of == term).then_some((*node, outcome))
        });
        let mut entries: Vec<(&Outcome, BTreeSet<NodeId>)> = Vec::new();
        for (node, outcome) in accepted {
            match entries.iter_mut().find(|(known, _)| *known == outcome) {
                Some((_, voted)) => _ = voted.insert(node),
                None => entries.push((outcome, BTreeSet::from([node]))),
            }
        }
        let deciding = self.deciding.as_ref();
        let proved = deciding.is_some_and(|deciding| deciding.seen.of_two.contains(term));
        if entries.len() < 2 && !proved {
            return self.unless_lacking(first);
        }
        let voters = self.history.iter().flat_map(|history| history.voters.ids());
        let absent = voters.filter(|node| !promises.contains_key(node) && self.trusts(*node));
        let absent: BTreeSet<NodeId> = absent.collect();
        entries.retain(|(_, voted)| {
            let may_have_voted = voted.union(&absent).copied();
            self.is_quorum(may_have_voted.filter(|node| *node != term.node))
        });
        match entries[..] {
            [] => MayBeChosen::None,
            [(outcome, _)] => self.unless_lacking(outcome),
            _ => MayBeChosen::Several,
        }
    }

    fn unless_lacking<'a>(&self, outcome: &'a Outcome) -> MayBeChosen<'a> {
        if self.lacks(outcome) {
            MayBeChosen::None
        } else {
            MayBeChosen::One(outcome)
        }
    }

    /// Asks for votes for an entry of an earlier term. Every next member holds its data already, so
    /// nothing moves.
    fn finish(&mut self, term: Term, outcome: Outcome, out: &mut Outbox<Effect>) {
        let outcome = self.as_entry_of_this_history(outcome);
        self.ask_for_votes(term, 0, outcome, BTreeSet::new(), out);
    }

    /// Opens the term for attempts: nothing below it was chosen.
    fn open(&mut self, term: Term, now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if deciding.acceptor.open(term).is_err() {
            return;
        }
        deciding.opened.insert(me);
        deciding.lead = Lead::Attempt(Attempts::new(term));
        let voters: Vec<NodeId> = self
            .history
            .iter()
            .flat_map(|history| history.voters.ids())
            .collect();
        self.broadcast(voters, &Message::Open, out);
        self.close_when_opened(out);
        self.attempt_when_possible(now, out);
    }

    pub(super) fn count_opened(&mut self, header: &Header, out: &mut Outbox<Effect>) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if deciding.lead.term() == Some(header.term) {
            deciding.opened.insert(header.sender);
            self.close_when_opened(out);
        }
    }

    /// Closes the earlier terms once a quorum has acknowledged that this term is open: no leader
    /// can be bound to an earlier entry any more, and its data may be dropped.
    fn close_when_opened(&mut self, out: &mut Outbox<Effect>) {
        let Some(deciding) = &self.deciding else {
            return;
        };
        if deciding.closed {
            return;
        }
        let Some(term) = deciding.lead.term() else {
            return;
        };
        if !self.is_quorum(deciding.opened.iter().copied()) && !planted::has(Bug::ClosedTooEarly) {
            return;
        }
        self.with_deciding(|deciding| deciding.closed = true);
        // Joiners keep data of earlier attempts too.
        let proposal = self
            .deciding
            .as_ref()
            .and_then(|deciding| deciding.lead.attempts()?.proposal.as_ref());
        let receivers = proposal.map(Proposal::receivers).unwrap_or_default();
        let members = self.history.iter().flat_map(|history| history.view.ids());
        let everybody: BTreeSet<NodeId> = members.chain(receivers).collect();
        self.broadcast(everybody, &Message::Closed, out);
        self.discard_where(|movement| movement.attempt().term < term, out);
    }
}
