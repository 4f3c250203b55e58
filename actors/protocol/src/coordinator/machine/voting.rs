//! A member's rules. A frame counts only from a member of the view (or a joiner of the proposal), in the right incarnation, for
//! this round, from the leader of its ballot where only the leader may speak; what is of an older round is answered with that
//! round's outcome, everything else that is old with "stale".
//!
//! Whoever accepts a proposal of its leader's own choice holds all the data that it must hold. An inherited proposal is voted
//! for at once: those whose acceptance made it binding hold its data.

use super::history::Decided;
use super::reconnected::has_left_with;
use super::{Coordinator, Current, FOLLOW_WAIT, History, Open};
use crate::ballot::{BALLOT_COUNTER_MAX, Promise};
use crate::coordinator::error::RoundError;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Outcome, Proposal, RoundKind, Terms};
use crate::coordinator::plan::Attempt;
use crate::ident::{Ballot, NodeId};
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::policy::Quorum;
use crate::time::Instant;
use crate::view::View;
use crate::wire::{Contributed, Header, Message, RefusalReason};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Coordinator {
    /// Whether a stream of this header may belong to an attempt that this node takes part in: the current round's or the
    /// next one's, from a member; outside, where the admission may still be on its way, of any decided history.
    #[must_use]
    pub fn admits(&self, header: &Header) -> bool {
        let same = header.cluster == self.settings.identity.cluster && header.lineage.is_decided();
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return same };
        let known = |view: &View| is_member(view, header);
        let next = current.may_follow().any(known);
        let here = header.round == history.round && header.lineage == history.lineage;
        let near = here || header.round == history.round.next() || (history.joining && header.round > history.round);
        same && near && (known(&history.view) || next || history.joining)
    }

    pub(super) fn receive(&mut self, header: Header, message: Message, now: Instant, out: &mut Outbox<Effect>) {
        if header.cluster != self.settings.identity.cluster || header.sender == self.me() || self.stopped.is_some() {
            return;
        }
        if let Message::Admit { proposal, view } = message {
            return self.admitted(&header, proposal, view);
        }
        let Some(history) = &self.history else {
            // The view is still on its way here; or this node has left, and others do not know with which decision.
            self.answer_late(&header, &message, out);
            return self.early.keep(header, message);
        };
        if header.round < history.round && !planted::has(Bug::StaleEpoch) {
            return self.answer_late(&header, &message, out);
        }
        if header.round > history.round {
            return self.park(header, message, out);
        }
        if header.lineage != history.lineage || !self.may_speak(&header) {
            return;
        }
        let stale = self.current.as_ref().is_some_and(|current| header.ballot < current.ballot());
        match message {
            Message::Decide(outcome) => self.take_decision(outcome),
            Message::Abandon(reason) => self.abandoned(&header, reason, out),
            Message::Stale => self.overtaken(header.ballot, now),
            _ if history.joining => {}
            Message::Contribute(contributed) => self.note_contribution(header.sender, contributed, now, out),
            Message::Prepare | Message::Propose(_) if stale => self.send(header.sender, Message::Stale, out),
            Message::Prepare => self.promise(&header, now, out),
            Message::Promise { accepted, refuted, holds, contributed } => {
                let promise = Promise { ballot: header.ballot, accepted, refuted };
                self.promised(header.sender, (promise, holds), contributed, now, out);
            }
            Message::Propose(proposal) => self.take_proposal(&header, proposal, now, out),
            Message::Prepared => self.count_prepared(&header, out),
            Message::Broken(node) if !stale => self.ask_for_another_attempt((header.sender, node), now, out),
            // It was not here when this node began to lead.
            Message::Broken(_) => self.lead_again(header.sender, out),
            _ => {}
        }
    }

    /// Whether the sender is a member of the view or joins with the proposal, and its ballot one that may exist.
    fn may_speak(&self, header: &Header) -> bool {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return false };
        let owned = header.ballot.counter > 0 || header.ballot.node == history.view.lowest();
        let bounded = owned && header.ballot.counter <= BALLOT_COUNTER_MAX && history.view.contains(header.ballot.node);
        let joins = || current.may_follow().any(|view| is_member(view, header));
        bounded && (header.epoch == history.view.epoch() || planted::has(Bug::StaleEpoch)) && (is_member(&history.view, header) || joins())
    }

    /// A member that is one round behind missed the decision, also one that left with it.
    fn answer_late(&self, header: &Header, message: &Message, out: &mut Outbox<Effect>) {
        let Some(Decided { outcome, place }) = self.last() else { return };
        let asks = !matches!(message, Message::Decide(_) | Message::Stale | Message::Abandon(_));
        let concerns = is_member(&outcome.view, header) || has_left_with(outcome, header.sender);
        if asks && header.round == outcome.round && concerns {
            self.send_from(*place, header.sender, Message::Decide(outcome.clone()), out);
        }
    }

    /// Keeps a frame of the next round until this node gets there, and asks its sender for the outcome that led it there. A
    /// flood from one member costs the others nothing.
    fn park(&mut self, header: Header, message: Message, out: &mut Outbox<Effect>) {
        let (Some(history), Some(current)) = (&self.history, &mut self.current) else { return };
        let known = current.may_follow().any(|view| is_member(view, &header));
        if header.round != history.round.next() || !(known || is_member(&history.view, &header)) {
            return;
        }
        let (sender, asks) = (header.sender, current.asked.insert(header.sender));
        self.early.keep(header, message);
        if asks {
            self.send(sender, Message::Prepared, out);
        }
    }

    /// Notes what a member contributes; two that expect different rounds end the run: they run different scripts.
    pub(super) fn note_contribution(&mut self, node: NodeId, mut contributed: Contributed, now: Instant, out: &mut Outbox<Effect>) {
        let Some(current) = &mut self.current else { return };
        if self.settings.orders_by_rate {
            self.rates.insert(node, std::mem::take(&mut contributed.rates));
        }
        let of_others = current.contributed.iter().map(|(other, known)| (*other, known.terms));
        let proposed = current.proposal.as_ref().map(|proposal| (current.acceptor.promised().node, proposal.outcome.terms));
        let differs = of_others.chain(proposed).find(|(_, terms)| *terms != contributed.terms);
        current.begun.get_or_insert(now);
        match differs {
            Some((other, terms)) => self.abandon(difference(node, contributed.terms, other, terms), out),
            None => _ = current.contributed.insert(node, contributed),
        }
    }

    pub(super) fn terms_differ(&mut self, attempt: Attempt, other: NodeId, terms: Terms, out: &mut Outbox<Effect>) {
        let open = self.current.as_mut().and_then(|current| current.open_at(attempt));
        if let Some(ours) = open.map(|open| open.plan.terms) {
            self.abandon(difference(self.me(), ours, other, terms), out);
        }
    }

    /// Goes over to a higher ballot: what was proposed and counted under the lower one is void.
    pub(super) fn follow(&mut self, ballot: Ballot, now: Instant) {
        let me = self.me();
        let Some(current) = &mut self.current else { return };
        current.ballots.observe(ballot);
        current.leading.take_if(|leading| leading.ballot() < ballot);
        current.proposal = None;
        current.prepared.clear();
        current.joiners_hold = false;
        if ballot.node != me {
            current.follow_until = Some(now.after(FOLLOW_WAIT));
        }
    }

    fn promise(&mut self, header: &Header, now: Instant, out: &mut Outbox<Effect>) {
        let ballot = header.ballot;
        let Some(current) = self.current.as_mut().filter(|_| header.sender == ballot.node) else { return };
        let raised = ballot > current.ballot();
        if current.acceptor.prepare(ballot).is_err() {
            return self.send(header.sender, Message::Stale, out);
        }
        if raised {
            self.follow(ballot, now);
        }
        self.tell_promise(ballot, out);
    }

    /// Tells the owner of the ballot that was promised so.
    pub(super) fn tell_promise(&mut self, ballot: Ballot, out: &mut Outbox<Effect>) {
        let contributed = self.mine.clone();
        let Some(current) = &mut self.current else { return };
        let Ok(Promise { accepted, refuted, .. }) = current.acceptor.prepare(ballot) else { return };
        if contributed.is_some() {
            current.told.insert(ballot.node);
        }
        let holds = current.holds_what_it_accepted();
        self.send(ballot.node, Message::Promise { accepted, refuted, holds, contributed }, out);
    }

    fn take_proposal(&mut self, header: &Header, proposal: Proposal, now: Instant, out: &mut Outbox<Effect>) {
        if !self.may_be_proposed(header, &proposal) {
            return;
        }
        let Some(current) = &mut self.current else { return };
        let raised = header.ballot > current.ballot();
        if current.acceptor.prepare(header.ballot).is_err() {
            return self.send(header.sender, Message::Stale, out);
        }
        if raised {
            self.follow(header.ballot, now);
        }
        let ours = self.mine.as_ref().map(|mine| mine.terms).filter(|ours| *ours != proposal.outcome.terms);
        if let Some(ours) = ours {
            return self.abandon(difference(self.me(), ours, header.sender, proposal.outcome.terms), out);
        }
        if let Some(current) = &mut self.current {
            // A leader proposes one outcome under its ballot: the first one counts.
            current.proposal.get_or_insert(proposal);
        }
    }

    /// Whether the leader of the frame's ballot proposes what this round can become.
    fn may_be_proposed(&self, header: &Header, proposal: &Proposal) -> bool {
        let Some(history) = &self.history else { return false };
        let Proposal { outcome, participants, inherited } = proposal;
        let ascending = |nodes: &[NodeId]| nodes.windows(2).all(|pair| pair[0] < pair[1]);
        let forks = || *inherited || !history.view.is_quorum(participants.iter().copied());
        let lineage = outcome.lineage == history.lineage || self.settings.quorum == Quorum::Survivors || forks();
        let members = participants.iter().all(|node| history.view.contains(*node));
        // What an earlier ballot may have chosen stays as it was, whoever has died since.
        let takes_part = |node: &NodeId| participants.contains(node) || (*inherited && history.view.contains(*node));
        let contributors = outcome.contributors.iter().all(takes_part) && !outcome.contributors.is_empty();
        header.sender == header.ballot.node
            && (lineage && outcome.round == history.round)
            && (ascending(participants) && ascending(&outcome.contributors) && members && contributors)
            && participants.contains(&self.me())
    }

    /// Moves the data of the proposal of the promised ballot, unless that is bound to be chosen without. Also a node that holds it
    /// from an earlier ballot does so: others may not. A node whose contribution it wants waits for its training threads.
    pub(super) fn open_proposed(&mut self, out: &mut Outbox<Effect>) {
        let me = self.me();
        let Some(current) = &self.current else { return };
        let Some(Proposal { outcome, participants, inherited }) = current.proposal.clone() else { return };
        let ballot = current.ballot();
        let moves = |open: &Open| open.plan.attempt.ballot == ballot && open.published.is_some();
        let lacks_own = outcome.contributors.contains(&me) && self.mine.is_none();
        if inherited || lacks_own || current.decided.is_some() || current.open.as_ref().is_some_and(moves) {
            return;
        }
        let quorum = self.is_quorum(&participants);
        let Some(plan) = self.plan(ballot, outcome.terms, outcome.contributors.clone(), participants) else { return };
        let Some(publication) = self.publication(&plan, &outcome) else { return };
        let Some(current) = &mut self.current else { return };
        if current.open.as_ref().is_none_or(|open| *open.plan != plan) {
            // The data of what was accepted before goes: nobody may count on it any more.
            current.acceptor.release(ballot);
            if quorum {
                current.acceptor.refute(ballot);
            }
            let plan = Arc::new(plan);
            current.open = Some(Open::new(Arc::clone(&plan)));
            out.push(Effect::Open(plan));
        }
        if let Some(open) = &mut current.open {
            let publication = Arc::new(publication);
            open.publish(outcome, Arc::clone(&publication));
            out.push(Effect::Publish(publication));
        }
    }

    /// Starts the plan of the first ballot before its leader proposes it: everybody contributes and takes part.
    pub(super) fn open_default(&mut self, out: &mut Outbox<Effect>) {
        let (Some(terms), Some(first), true) = (self.mine.as_ref().map(|mine| mine.terms), self.first_ballot(), self.is_plain()) else {
            return;
        };
        let Some(current) = &self.current else { return };
        if current.open.is_some() || current.ballot() != first || current.proposal.is_some() || current.decided.is_some() {
            return;
        }
        let (contributors, participants) = self.everybody(terms.kind);
        let Some(plan) = self.plan(first, terms, contributors, participants) else { return };
        let plan = Arc::new(plan);
        if let Some(current) = &mut self.current {
            current.open = Some(Open::new(Arc::clone(&plan)));
            out.push(Effect::Open(plan));
        }
    }

    /// Contributors and participants where nothing is out of the ordinary.
    pub(super) fn everybody(&self, kind: RoundKind) -> (Vec<NodeId>, Vec<NodeId>) {
        let members: Vec<NodeId> = self.history.iter().flat_map(|history| history.view.ids()).collect();
        let contributors = if kind == RoundKind::Found { members[..1.min(members.len())].to_vec() } else { members.clone() };
        (contributors, members)
    }

    /// Whether every member lives and contributes, so that the first ballot may be used; never while joining.
    pub(super) fn is_plain(&self) -> bool {
        let fine = |view: &View| view.members().iter().all(|member| !self.is_gone(member) && !self.is_silent(member));
        let calm = self.all_are_here() && self.leaving.is_empty();
        self.history.as_ref().is_some_and(|history| !history.joining && (calm || fine(&history.view)))
    }

    /// Tells whoever should lead of this node's contribution, and whoever does under the ballot that was promised.
    pub(super) fn tell_leader(&mut self, out: &mut Outbox<Effect>) {
        let (Some(mine), Some(leader), me) = (self.mine.clone(), self.leader(), self.me()) else { return };
        let Some(owner) = self.current.as_ref().map(|current| current.ballot().node) else { return };
        for to in BTreeSet::from([leader, owner]) {
            if to != me && self.current.as_mut().is_some_and(|current| current.told.insert(to)) {
                self.send(to, Message::Contribute(mine.clone()), out);
            }
        }
    }

    /// Accepts the proposal of the promised ballot once this node holds all that it must hold for it.
    pub(super) fn accept_when_held(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let (me, joining) = (self.me(), self.history.as_ref().is_some_and(|history| history.joining));
        let Some(current) = &mut self.current else { return };
        let ballot = current.ballot();
        let Some(proposal) = current.proposal.clone().filter(|_| current.voted != Some(ballot)) else { return };
        let has_it = |open: &Open| open.held().is_some_and(|held| held.has_the_data_of(&proposal.outcome));
        let holds = |open: &Open| has_it(open) && (open.plan.attempt.ballot == ballot || proposal.inherited);
        let held = current.open.as_ref().is_some_and(holds);
        if !held && (joining || !proposal.inherited) {
            return;
        }
        if !joining && !proposal.inherited && proposal.has_joiners() && !current.joiners_hold {
            return;
        }
        if !joining && current.acceptor.accept(ballot, proposal).is_err() {
            return;
        }
        current.voted = Some(ballot);
        current.accepted_at = Some(now);
        match current.leading.as_mut().filter(|leading| leading.ballot() == ballot) {
            Some(leading) => leading.accept(me),
            None => self.send(ballot.node, Message::Prepared, out),
        }
    }

    fn take_decision(&mut self, outcome: Outcome) {
        let round = self.history.as_ref().map(|history| history.round);
        if let Some(current) = self.current.as_mut().filter(|_| round == Some(outcome.round)) {
            current.decided.get_or_insert(outcome);
        }
    }

    /// Applies a decided outcome; `true` if the next round began.
    pub(super) fn apply_when_held(&mut self, now: Instant, out: &mut Outbox<Effect>) -> bool {
        let Some(current) = &self.current else { return false };
        let Some(outcome) = current.decided.clone() else { return false };
        let has_it = |open: &Open| open.held().is_some_and(|held| held.has_the_data_of(&outcome));
        let is_held = |open: &&Open| has_it(open) || (planted::has(Bug::ApplyWithoutData) && open.published.is_some());
        let attempt = current.open.as_ref().filter(is_held).map(|open| open.plan.attempt);
        let Some(attempt) = attempt else {
            // Others decided it without what this node has: nothing can bring the data here but joining again.
            self.leave_history(out);
            out.push(Effect::Stranded);
            return false;
        };
        self.apply(attempt, outcome, now, out);
        self.current.is_some()
    }

    fn apply(&mut self, attempt: Attempt, outcome: Outcome, now: Instant, out: &mut Outbox<Effect>) {
        let (me, place) = (self.me(), self.place());
        let last = outcome.view.size() == 1 && self.leaving.contains_key(&me);
        let drained = last || !outcome.view.contains(me);
        // A founding may be decided before this node's own training asked for it.
        self.note_state_elements(outcome.terms);
        (self.mine, self.set_aside) = (None, None);
        let stays = |id: &NodeId| outcome.view.contains(*id);
        // Whoever was started again under the id of a member that wanted to leave wants to stay.
        let started = |id: &NodeId| outcome.view.member(*id).map(|member| member.incarnation);
        self.leaving.retain(|id, (leaver, _)| started(id).is_some_and(|started| started <= *leaver));
        if self.history.as_ref().is_none_or(|history| history.view.epoch() != outcome.view.epoch()) {
            // They are ready again once they can reach the new view's members.
            self.joiners.clear();
        }
        let watched = |id: &NodeId| stays(id) || self.joiners.contains_key(id);
        self.dead.retain(|(id, _)| watched(id));
        self.rates.retain(|id, _| stays(id));
        self.reconnected.begin(outcome.round.next());
        let joiners = &self.joiners;
        self.away.retain(|node| outcome.view.contains(node) || joiners.contains_key(&node));
        if drained {
            // It ends soon, and may be the only one left that the leader told.
            outcome.view.ids().filter(|id| *id != me).for_each(|id| self.send(id, Message::Decide(outcome.clone()), out));
            self.left_with = Some(Decided { outcome: outcome.clone(), place });
        }
        let members = self.history.as_ref().map(|history| history.view.members().into()).unwrap_or_default();
        let next = History::after(outcome.clone(), place);
        self.current = (!drained).then(|| Current::new(me, &next.view));
        self.history = (!drained).then_some(next);
        out.push(Effect::Apply { attempt, outcome, members, drained });
        self.replay(now, out);
    }

    /// Ends the run for everybody.
    pub(super) fn abandon(&mut self, reason: RefusalReason, out: &mut Outbox<Effect>) {
        let members: Vec<NodeId> = self.history.iter().flat_map(|history| history.view.ids()).collect();
        self.broadcast(members, &Message::Abandon(reason.clone()), out);
        self.stop(RoundError::refused(self.place().round, reason), out);
    }

    fn abandoned(&mut self, header: &Header, reason: RefusalReason, out: &mut Outbox<Effect>) {
        self.stop(RoundError::refused(header.round, reason), out);
    }

    /// Somebody promised a higher ballot: its owner leads for now.
    fn overtaken(&mut self, ballot: Ballot, now: Instant) {
        let Some(current) = &mut self.current else { return };
        if current.leading.as_ref().is_some_and(|leading| leading.ballot() < ballot) {
            current.ballots.observe(ballot);
            current.leading = None;
            current.follow_until = Some(now.after(FOLLOW_WAIT));
        }
    }
}

/// Whether the header's sender is in the view, in the incarnation that the view has.
pub(super) fn is_member(view: &View, header: &Header) -> bool {
    view.member(header.sender).is_some_and(|member| member.incarnation == header.incarnation)
}

fn difference(one: NodeId, one_terms: Terms, other: NodeId, other_terms: Terms) -> RefusalReason {
    RefusalReason::TermsDiffer { one, one_terms: one_terms.to_string(), other, other_terms: other_terms.to_string() }
}
