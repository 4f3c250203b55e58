//! Rules of the leader: who leads, with whom a round is attempted, when votes are asked for. The
//! previous entry names the leader; if it is dead or unreachable, the next member that votes leads.
//! Under the first term it begins at once; otherwise it takes over first (`taking_over`).
//!
//! Before it asks for votes, a leader drops an attempt whenever a node that it needs has died, lags
//! past the grace, or cannot be reached, and begins another one of the same term from the
//! contributors' frozen copies: no promises, no new quorum. After it has asked for votes it
//! proposes nothing else under this term.
//!
//! A round closes without a straggler as follows. [`Timer::Grace`] expires,
//! `drop_attempt_when_hopeless` drops the attempt that needs it, and `attempt_when_possible` begins
//! another one with the nodes that `who_takes_part` names.

use super::Coordinator;
use super::data::Movement;
use super::deciding::{Attempts, Lead};
use super::history::History;
use super::timers::Timer;
use crate::coordinator::draft::Draft;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Entry, Outcome, Proposal, RoundKind, RoundSpec};
use crate::coordinator::voters::Voter;
use crate::ident::{NodeId, Term};
use crate::machine::{Outbox, Place};
use crate::planted::{self, Bug};
use crate::published::{Digest, Signature, Signed};
use crate::time::{Instant, Span};
use crate::view::Member;
use crate::wire::{Header, Message, RefusalReason};
use std::collections::{BTreeMap, BTreeSet};

/// Time for which a node that promised another node's term leaves the lead to it.
pub const FOLLOW_WAIT: Span = Span::from_millis(500);

impl Coordinator {
    /// Whether this node may lead: a member that votes.
    pub(super) fn may_lead(&self) -> bool {
        self.is_voter() && self.view().is_some()
    }

    /// The node that should lead, as far as this node knows: among the members that vote and live,
    /// the leader that the previous entry names, else the lowest id.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let history = self.history.as_ref().filter(|history| history.member)?;
        let fit = |member: &&Member| {
            history.voters.contains(Voter::from(*member))
                && (member.id == self.me() || !self.is_gone(member))
        };
        let named = history.view.member(history.leader).filter(fit);
        named
            .or_else(|| history.view.members().iter().find(fit))
            .map(|member| member.id)
    }

    /// Whether no voting member lives and this node has the lowest id of the other living members:
    /// nobody leads, and only a fork continues.
    fn is_left_of_voters(&self) -> bool {
        let Some(history) = self.history.as_ref().filter(|history| history.member) else {
            return false;
        };
        let mut living = history
            .view
            .members()
            .iter()
            .filter(|member| member.id == self.me() || !self.is_gone(member));
        self.leader().is_none() && living.next().is_some_and(|member| member.id == self.me())
    }

    /// Whether this node leads: it has begun to, or every node that should lead before it is dead
    /// or unreachable.
    #[must_use]
    pub fn leads(&self) -> bool {
        let leading = self
            .deciding
            .as_ref()
            .is_some_and(|deciding| deciding.lead != Lead::Follow);
        leading || (self.may_lead() && self.leader() == Some(self.me())) || self.stands_in()
    }

    /// Whether the higher term of a living node was promised within the last [`FOLLOW_WAIT`]: two
    /// nodes that both believe they lead must not race.
    fn follows_another(&self) -> bool {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return false;
        };
        let owner = deciding.highest.node;
        let lives = owner != self.me()
            && history
                .view
                .member(owner)
                .is_some_and(|member| !self.is_gone(member));
        lives && self.timers.runs(Timer::Follow)
    }

    pub(super) fn lead(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if self.is_left_of_voters() {
            self.fork_when_due(now, out);
        }
        if !self.leads() || self.follows_another() {
            return;
        }
        self.fork_when_due(now, out);
        let Some(deciding) = self
            .deciding
            .as_ref()
            .filter(|deciding| deciding.decided.is_none())
        else {
            return;
        };
        match &deciding.lead {
            Lead::Follow => self.begin_to_lead(now, out),
            Lead::Prepare { .. } => self.go_on_when_promised(now, out),
            Lead::Attempt(_) => {
                self.drop_attempt_when_hopeless();
                self.attempt_when_possible(now, out);
            }
            Lead::Accept { .. } => self.attempt_after_accept(now, out),
        }
    }

    /// Planted bug: a leader that asked for votes begins another attempt if a member is gone.
    fn attempt_after_accept(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let is_gone = |history: &History| {
            history
                .view
                .members()
                .iter()
                .any(|member| self.is_gone(member))
        };
        if !planted::has(Bug::AttemptAfterAccept) || !self.history.as_ref().is_some_and(is_gone) {
            return;
        }
        if let Some(deciding) = &mut self.deciding
            && let Lead::Accept {
                term,
                attempt,
                ready,
                ..
            } = &deciding.lead
            && !ready.is_empty()
        {
            let within = Some(ready.clone());
            deciding.lead = Lead::Attempt(Attempts {
                number: *attempt,
                within,
                ..Attempts::new(*term)
            });
            self.attempt_when_possible(now, out);
        }
    }

    fn begin_to_lead(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let (Some(history), Some(deciding)) = (&self.history, &mut self.deciding) else {
            return;
        };
        if deciding.contributed.is_empty() {
            return;
        }
        let first = history.first_term();
        // The first term is of no use once a higher one was seen, nor if this node led under it and
        // has stepped down since: it would restart its attempt numbers.
        let led = deciding
            .proposed
            .as_ref()
            .is_some_and(|proposed| proposed.term == first);
        if led
            || first.node != self.settings.identity.node
            || deciding.highest != first
            || deciding.term() != first
        {
            return self.take_over(now, out);
        }
        deciding.lead = Lead::Attempt(Attempts::new(first));
        self.attempt_when_possible(now, out);
    }

    /// Drops the attempt under way if it cannot complete, or not soon.
    fn drop_attempt_when_hopeless(&mut self) {
        if !self.is_hopeless() {
            return;
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        deciding.retry = false;
        if let Lead::Attempt(attempts) = &mut deciding.lead {
            let receivers = attempts
                .proposal
                .take()
                .map(|proposal| proposal.receivers());
            attempts.within = receivers.or(attempts.within.take());
            attempts.ready.clear();
            attempts.compared.clear();
        }
        self.timers.stop(Timer::Joiners);
        self.timers.stop(Timer::Compare);
    }

    /// Whether a node that the attempt needs is dead, late, or unreachable, or most contributors
    /// expect another round.
    fn is_hopeless(&self) -> bool {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return false;
        };
        let Some(attempts) = deciding.lead.attempts() else {
            return false;
        };
        let Some(proposal) = &attempts.proposal else {
            return false;
        };
        let gone = |node: &NodeId| {
            history
                .view
                .member(*node)
                .is_none_or(|member| self.is_gone(member))
        };
        let lost = |joiner: &Member| {
            let given_up = deciding.joiners_over
                || self.peers.is_dead(Voter::from(joiner))
                || self.links.is_refused(joiner.id, joiner.incarnation);
            given_up && !attempts.ready.contains_key(&joiner.id)
        };
        let leaves_idle = |node: &NodeId| {
            history
                .view
                .member(*node)
                .is_some_and(|member| self.peers.leaves_idle(Voter::from(member)))
        };
        let late = |node: &NodeId| {
            !deciding.contributed.contains_key(node) && (deciding.grace_over || leaves_idle(node))
        };
        deciding.retry
            || deciding.expected() != Some(proposal.outcome.spec)
            || proposal.participants.iter().any(gone)
            || proposal.joiners().any(lost)
            || proposal.outcome.contributors.iter().any(late)
            || self.waits_for_somebody_out_of_reach(proposal, &attempts.ready)
    }

    /// Whether a participant that is not ready is unreachable, and the others are a quorum without
    /// it.
    fn waits_for_somebody_out_of_reach(
        &self,
        proposal: &Proposal,
        ready: &BTreeMap<NodeId, Digest>,
    ) -> bool {
        if self.links.all_are_reached() {
            return false;
        }
        let taking_part = self.taking_part();
        let missing = |node: &&NodeId| !ready.contains_key(node) && self.links.is_given_up(**node);
        proposal
            .participants
            .iter()
            .filter(missing)
            .any(|node| !taking_part.contains(node))
    }

    /// Begins an attempt with the members that live and have contributed; before the grace is over,
    /// with all that live.
    pub(super) fn attempt_when_possible(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let Some(deciding) = &self.deciding else {
            return;
        };
        let Some(attempts) = deciding
            .lead
            .attempts()
            .filter(|attempts| attempts.proposal.is_none())
        else {
            return;
        };
        let Some(spec) = deciding.expected() else {
            return;
        };
        if !self.quorum_lives() {
            return;
        }
        let first = self.history.as_ref().map(History::first_term);
        let untried =
            attempts.number == 0 && attempts.within.is_none() && Some(attempts.term) == first;
        let term = attempts.term;
        let number = attempts.number;
        if untried && self.is_plain() && !deciding.grace_over {
            if !self.may_expect(spec) {
                return;
            }
            let (contributors, participants) = self.everybody(spec.kind);
            return self.attempt(term, 0, spec, contributors, participants, now, out);
        }
        if let Some((contributors, participants)) = self.who_takes_part(spec) {
            self.attempt(term, number + 1, spec, contributors, participants, now, out);
        }
    }

    /// Whether this leader may attempt the round in everybody's name: it expects it itself, or more
    /// than half of the members do. What a few expect before it has contributed may be a lie, for
    /// which the others would blame this leader.
    fn may_expect(&self, spec: RoundSpec) -> bool {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return false;
        };
        let specs = || deciding.contributed.values().map(|known| known.spec);
        let expecting = specs().filter(|other| *other == spec).count();
        deciding.contributed.contains_key(&self.me())
            || 2 * expecting > history.view.members().len()
    }

    /// Contributors and participants of an attempt other than the plain one; `None` while it waits
    /// for contributions.
    fn who_takes_part(&self, spec: RoundSpec) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
        let history = self.history.as_ref()?;
        let deciding = self.deciding.as_ref()?;
        let within = deciding.lead.attempts()?.within.as_ref();
        let mut participants = self.taking_part();
        participants.retain(|node| within.is_none_or(|within| within.contains(node)));
        let contributes = |node: &NodeId| {
            let contributed = deciding.contributed.get(node);
            contributed.is_some_and(|contributed| contributed.spec == spec)
        };
        let leaves_idle = |node: &NodeId| {
            history
                .view
                .member(*node)
                .is_some_and(|member| self.peers.leaves_idle(Voter::from(member)))
        };
        let complete = participants
            .iter()
            .all(|node| contributes(node) || leaves_idle(node) || !self.waits_for(*node));
        let mut contributors: Vec<NodeId> =
            participants.iter().copied().filter(contributes).collect();
        if spec.kind == RoundKind::Bootstrap {
            contributors.truncate(1);
        }
        let ripe = complete || deciding.grace_over;
        (ripe && !contributors.is_empty()).then_some((contributors, participants))
    }

    fn place_of(&self, term: Term, attempt: u32) -> Place {
        Place {
            term,
            attempt,
            ..self.place()
        }
    }

    // An attempt consists of its term, number, spec, contributors and participants.
    #[allow(clippy::too_many_arguments)]
    fn attempt(
        &mut self,
        term: Term,
        number: u32,
        spec: RoundSpec,
        contributors: Vec<NodeId>,
        participants: Vec<NodeId>,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let place = self.place_of(term, number);
        let proposal = match self.compose(place, spec, contributors, participants) {
            Some(Ok(proposal)) => proposal,
            Some(Err(shards)) => return self.abandon(RefusalReason::MomentumLost { shards }, out),
            None => return,
        };
        let joiners: Vec<NodeId> = proposal.joiners().map(|joiner| joiner.id).collect();
        if !joiners.is_empty() {
            let wait = self.joiners_wait(&proposal, now);
            self.timers.start(Timer::Joiners, now.after(wait));
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if let Lead::Attempt(attempts) = &mut deciding.lead {
            attempts.number = number;
            attempts.ready.clear();
            attempts.compared.clear();
            attempts.proposal = Some(proposal.clone());
        }
        for to in proposal
            .receivers()
            .into_iter()
            .filter(|to| *to != self.me())
        {
            self.tell_attempt(to, place, &proposal, out);
        }
        self.take_proposal(term, number, proposal, out);
    }

    /// Handles a node's request to be admitted. If the attempt under way admits it, it asks again:
    /// it was told while it was a member in its own eyes, and parked the streams. It is told again,
    /// and counts once it says again that it is ready.
    pub(super) fn join_asked(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let Lead::Attempt(attempts) = &mut deciding.lead else {
            return;
        };
        let Some(proposal) = attempts.proposal.clone() else {
            return;
        };
        if !proposal.joiners().any(|joiner| joiner.id == node) {
            return;
        }
        attempts.ready.remove(&node);
        let term = attempts.term;
        let number = attempts.number;
        self.tell_attempt(node, self.place_of(term, number), &proposal, out);
    }

    fn tell_attempt(
        &self,
        to: NodeId,
        place: Place,
        proposal: &Proposal,
        out: &mut Outbox<Effect>,
    ) {
        let Some(history) = &self.history else { return };
        let draft = Draft::new(proposal, history.base());
        if proposal.participants.binary_search(&to).is_ok() {
            return self.send_from(place, to, Message::Attempt(draft), out);
        }
        if let Some(decided) = &history.last {
            self.send_from(
                place,
                to,
                Message::Admit {
                    parent: decided.outcome.clone(),
                    draft,
                },
                out,
            );
            self.tell_closed(to, place, out);
        }
    }

    /// Tells a node that the earlier terms are closed, if they are. A node that keeps the maximum
    /// number of attempts is ready for no other one before it hears this.
    fn tell_closed(&self, to: NodeId, place: Place, out: &mut Outbox<Effect>) {
        if self
            .deciding
            .as_ref()
            .is_some_and(|deciding| deciding.closed)
        {
            self.send_from(place, to, Message::Closed, out);
        }
    }

    /// Counts a node that holds all data that it must for the attempt. Once all receivers do, asks
    /// for votes if all hold the same; else finds out which owner published different values.
    pub(super) fn count_ready(
        &mut self,
        (node, published): (NodeId, Digest),
        (term, number): (Term, u32),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let Lead::Attempt(attempts) = &mut deciding.lead else {
            return;
        };
        if (attempts.term, attempts.number) != (term, number) {
            return;
        }
        let Some(proposal) = &attempts.proposal else {
            return;
        };
        let receivers = proposal.receivers();
        if receivers.contains(&node) {
            attempts.ready.entry(node).or_insert(published);
        }
        let enough = attempts.ready.len() + usize::from(planted::has(Bug::AcceptBeforeReady))
            >= receivers.len();
        if !enough {
            return;
        }
        let entries: BTreeSet<Digest> = attempts.ready.values().copied().collect();
        let held = deciding.data.ready(term, number);
        let held = held.and_then(Movement::outcome).cloned();
        match held.filter(|held| entries.iter().eq([&held.digest()])) {
            Some(outcome) => self.ask_for_votes(term, number, outcome, receivers, out),
            None => self.compare(now, out),
        }
    }

    pub(super) fn ask_for_votes(
        &mut self,
        term: Term,
        attempt: u32,
        outcome: Outcome,
        ready: BTreeSet<NodeId>,
        out: &mut Outbox<Effect>,
    ) {
        let me = self.me();
        let votes = self.is_voter();
        let doubts = self.doubts();
        self.timers.stop(Timer::Joiners);
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let digest = outcome.digest();
        if doubts {
            let signature = Signature::default();
            deciding.seen.asks(term, Signed { digest, signature });
        }
        let mut accepted = BTreeSet::new();
        if votes {
            if deciding.acceptor.accept(term, outcome.clone()).is_err() {
                // It promised a higher term, so nobody may count its vote under this one.
                return;
            }
            accepted.insert(me);
        }
        deciding.lead = Lead::Accept {
            term,
            attempt,
            outcome,
            digest,
            ready,
            accepted,
        };
        let voters: Vec<NodeId> = self
            .history
            .iter()
            .flat_map(|history| history.voters.ids())
            .collect();
        for voter in voters.into_iter().filter(|voter| *voter != me) {
            self.ask_for_vote(voter, out);
        }
    }

    /// Asks a voter for its vote, without the entry if the voter holds the attempt's data and so
    /// knows it.
    fn ask_for_vote(&self, to: NodeId, out: &mut Outbox<Effect>) {
        let Some(Lead::Accept {
            term,
            attempt,
            outcome,
            digest,
            ready,
            ..
        }) = self.deciding.as_ref().map(|deciding| &deciding.lead)
        else {
            return;
        };
        let entry = if ready.contains(&to) {
            Entry::Held(*digest)
        } else {
            Entry::Whole(outcome.clone())
        };
        // The shell signs it.
        let signature = Signature::default();
        self.send_from(
            self.place_of(*term, *attempt),
            to,
            Message::Accept { entry, signature },
            out,
        );
    }

    pub(super) fn count_accepted(&mut self, header: &Header, voted: Digest) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if let Lead::Accept {
            term,
            accepted,
            digest,
            ..
        } = &mut deciding.lead
            && (*term, *digest) == (header.term, voted)
        {
            accepted.insert(header.sender);
        }
    }

    /// Decides the entry once a quorum of the voters has accepted it; every next member holds its
    /// data. If the others' words came first, this node still tells those that do not vote.
    pub(super) fn decide_when_accepted(&mut self, out: &mut Outbox<Effect>) {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return;
        };
        let Lead::Accept {
            term,
            attempt,
            outcome,
            digest,
            ready,
            accepted,
        } = &deciding.lead
        else {
            return;
        };
        let is_known = match &deciding.decided {
            Some(decided) => decided.digest() == *digest,
            None => self.is_quorum(accepted.iter().copied()),
        };
        if !is_known {
            return;
        }
        let place = self.place_of(*term, *attempt);
        let members = history
            .view
            .members()
            .iter()
            .filter(|member| !self.is_gone(member))
            .map(|member| member.id);
        let everybody: BTreeSet<NodeId> = members
            .chain(history.voters.ids())
            .chain(outcome.view.ids())
            .collect();
        for to in everybody.into_iter().filter(|to| *to != self.me()) {
            let entry = if ready.contains(&to) {
                Entry::Held(*digest)
            } else {
                Entry::Whole(outcome.clone())
            };
            self.send_from(
                place,
                to,
                Message::Decide {
                    entry,
                    leaves: false,
                },
                out,
            );
        }
        let outcome = outcome.clone();
        self.with_deciding(|deciding| deciding.decided = Some(outcome));
    }

    /// Sends this leader's last request again to a peer that can be sent to again.
    pub(super) fn lead_again(&self, node: NodeId, out: &mut Outbox<Effect>) {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return;
        };
        let votes = history.voters.of(node).is_some();
        if let Some(term) = deciding.lead.term() {
            self.tell_fork(node, term, out);
        }
        match &deciding.lead {
            Lead::Follow => {}
            Lead::Prepare { .. } => {
                if votes {
                    self.send(node, Message::Prepare, out);
                }
            }
            Lead::Attempt(attempts) => {
                let opens = votes
                    && attempts.term != history.first_term()
                    && !deciding.opened.contains(&node);
                if opens {
                    self.send(node, Message::Open, out);
                }
                if history.view.contains(node) {
                    self.tell_closed(node, self.place(), out);
                }
                if let Some(proposal) = attempts
                    .proposal
                    .as_ref()
                    .filter(|proposal| proposal.receivers().contains(&node))
                {
                    self.tell_attempt(
                        node,
                        self.place_of(attempts.term, attempts.number),
                        proposal,
                        out,
                    );
                }
            }
            Lead::Accept {
                term,
                attempt,
                outcome,
                accepted,
                ..
            } => {
                if votes && !accepted.contains(&node) {
                    let entry = Entry::Whole(outcome.clone());
                    let signature = Signature::default();
                    self.send_from(
                        self.place_of(*term, *attempt),
                        node,
                        Message::Accept { entry, signature },
                        out,
                    );
                }
            }
        }
    }

    /// Stops leading. An entry that was put to the vote under this node's term may still be chosen.
    pub(super) fn step_down(&mut self) {
        self.with_deciding(|deciding| deciding.lead = Lead::Follow);
        self.timers.stop(Timer::Joiners);
    }

    /// Handles the notice that a voter promised a higher term: its owner leads for now.
    pub(super) fn overtaken(&mut self, term: Term, now: Instant) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if deciding.lead.term().is_some_and(|own| own < term) {
            deciding.highest = deciding.highest.max(term);
            self.step_down();
            self.timers.set(Timer::Follow, now.after(FOLLOW_WAIT));
        }
    }
}

impl Attempts {
    pub(super) fn new(term: Term) -> Self {
        Self {
            term,
            number: 0,
            within: None,
            proposal: None,
            ready: BTreeMap::new(),
            compared: BTreeSet::new(),
        }
    }
}
