//! The leader's rules. The lowest id that lives leads, or whoever cannot reach that one (`apart`). Where everybody lives and contributes it proposes under the first ballot;
//! otherwise it asks for promises under a higher one, waits for the contributions of those that live (at most the grace), and
//! proposes with those. It decides when all participants accepted and all joiners hold what they must.

use super::Coordinator;
use crate::ballot::{Promise, Proposer};
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Outcome, Proposal, RoundKind, Terms};
use crate::ident::{Ballot, NodeId};
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::policy::Quorum;
use crate::time::{Instant, Span};
use crate::view::Member;
use crate::wire::{Contributed, Header, Message, RefusalReason};
use std::collections::BTreeSet;

/// How long a leader waits for the promises of members that seem alive, once a quorum promised.
pub const PROMISE_WAIT: Span = Span::from_millis(1_000);

/// How long a leader that has no quorum without them waits for members that seem alive and are silent, where survivors decide. Whoever
/// is behind hears so meanwhile, and gives its place up.
pub const SILENT_WAIT: Span = Span::from_millis(4_000);

impl Coordinator {
    /// The lowest id that lives, as far as this node knows; itself if it is.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let history = self.history.as_ref().filter(|history| !history.joining)?;
        let lives = |member: &&Member| member.id == self.me() || !self.is_gone(member);
        history.view.members().iter().find(lives).map(|member| member.id)
    }

    pub(super) fn lead(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if !self.leads() || self.follows_another() {
            return;
        }
        let Some(current) = self.current.as_ref().filter(|current| current.decided.is_none()) else { return };
        match current.leading.as_ref().map(Proposer::proposal) {
            None => self.begin_to_lead(now, out),
            Some(None) => self.propose_when_promised(now, out),
            Some(Some(_)) if self.must_try_again() => self.take_over(now, out),
            Some(Some(_)) => {}
        }
    }

    /// Whether this node leads: every lower id is dead, or cannot be reached, or was so when this node began the attempt whose ballot
    /// is still the highest one here. Who returns leaves the lead to such an attempt for a while, so that attempt must go on.
    #[must_use]
    pub fn leads(&self) -> bool {
        let leading = self.current.as_ref().is_some_and(|current| current.leading.is_some());
        leading || self.leader() == Some(self.me()) || self.stands_in()
    }

    /// Whether a living node's higher ballot was promised a moment ago: two that both believe they lead must not race.
    fn follows_another(&self) -> bool {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return false };
        let owner = current.ballots.highest().node;
        let lives = owner != self.me() && history.view.member(owner).is_some_and(|member| !self.is_gone(member));
        current.follow_until.is_some() && lives
    }

    fn begin_to_lead(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let Some(current) = &self.current else { return };
        // Once a higher ballot was seen the first one is of no use, and might name two proposals.
        let first = self.first_ballot().filter(|first| first.node == self.me() && current.ballots.highest() == *first);
        let Some(ballot) = first.filter(|_| self.is_plain()) else { return self.take_over(now, out) };
        let Some(terms) = current.contributed.values().next().map(|contributed| contributed.terms) else { return };
        let (contributors, participants) = self.everybody(terms.kind);
        if let Some(current) = &mut self.current {
            current.leading = Some(Proposer::new(ballot));
        }
        self.propose_own(ballot, terms, (contributors, participants), now, out);
    }

    /// Asks for promises under a new ballot.
    fn take_over(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        self.note_standing_in(now);
        let Some(current) = &mut self.current else { return };
        let used = current.leading.as_ref().map(Proposer::ballot).filter(|_| planted::has(Bug::BallotReused));
        let ballot = used.unwrap_or_else(|| current.ballots.advance());
        let Ok(promise) = current.acceptor.prepare(ballot) else { return };
        let mut leading = Proposer::new(ballot);
        leading.promise(me, promise);
        current.holders = BTreeSet::from_iter(current.holds_what_it_accepted().then_some(me));
        current.retry = false;
        current.promise_by = Some(now.after(PROMISE_WAIT));
        current.silent_by.get_or_insert(now.after(SILENT_WAIT));
        self.follow(ballot, now);
        if let Some(current) = &mut self.current {
            current.leading = Some(leading);
        }
        let members: Vec<NodeId> = self.history.iter().flat_map(|history| history.view.ids()).collect();
        self.broadcast(members, &Message::Prepare, out);
        self.propose_when_promised(now, out);
    }

    pub(super) fn promised(
        &mut self,
        sender: NodeId,
        (promise, holds): (Promise<Proposal>, bool),
        contributed: Option<Contributed>,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if let Some(contributed) = contributed {
            self.note_contribution(sender, contributed, now, out);
        }
        let Some(current) = &mut self.current else { return };
        let Some(leading) = current.leading.as_mut().filter(|leading| leading.ballot() == promise.ballot) else { return };
        leading.promise(sender, promise);
        if holds {
            current.holders.insert(sender);
        }
    }

    fn propose_when_promised(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return };
        let Some(leading) = &current.leading else { return };
        let ballot = leading.ballot();
        let living = self.taking_part();
        let participants: Vec<NodeId> = leading.promised().filter(|node| living.contains(node)).collect();
        let waits = participants.len() < living.len() && current.promise_by.is_some();
        // Whoever lives and is silent may be ahead: a quorum goes on without, survivors wait until they would have heard so.
        let leaves_the_living = participants.len() < living.len() && !history.view.is_quorum(participants.iter().copied());
        let leaves_the_living = leaves_the_living && !current.silent_over;
        if waits || leaves_the_living || !self.are_enough(&participants) {
            return;
        }
        if let Some(bound) = leading.bound_to().filter(|bound| self.is_held(bound, leading, &participants)) {
            // Fewer than a quorum may not know that it was refuted: among them it goes on in a history of their own.
            let parted = if history.view.is_quorum(participants.iter().copied()) { None } else { self.lineage_after(&participants) };
            let outcome = Outcome { lineage: parted.unwrap_or(bound.outcome.lineage), ..bound.outcome.clone() };
            return self.propose(Proposal { outcome, participants, inherited: true }, now, out);
        }
        let contributes = |node: &NodeId| current.contributed.contains_key(node);
        let mut contributors: Vec<NodeId> = participants.iter().copied().filter(contributes).collect();
        let silent = |node: &NodeId| history.view.member(*node).is_some_and(|member| self.is_silent(member));
        let complete = participants.iter().all(|node| contributes(node) || silent(node));
        let Some(terms) = contributors.first().and_then(|node| current.contributed.get(node)).map(|contributed| contributed.terms) else {
            return;
        };
        if !complete && !current.grace_over {
            return;
        }
        if terms.kind == RoundKind::Found {
            contributors.truncate(1);
        }
        self.propose_own(ballot, terms, (contributors, participants), now, out);
    }

    /// Whether the data of what may have been chosen survives this attempt: somebody who takes part, or joined with it, holds that and
    /// stays. Where survivors decide and nobody does, they go on with what they have, in a history of their own: with that outcome
    /// the model would be gone. Under a majority there is no choice: others may have gone on with it.
    fn is_held(&self, bound: &Proposal, leading: &Proposer<Proposal>, participants: &[NodeId]) -> bool {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return false };
        let accepted = |node| leading.report_of(node).is_some_and(|proposal| proposal.outcome.has_the_data_of(&bound.outcome));
        let holds = |node: &NodeId| current.holders.contains(node) && bound.outcome.view.contains(*node) && accepted(*node);
        let joined = |member: &Member| !history.view.contains(member.id) && !self.is_dead(member);
        self.settings.quorum == Quorum::Majority || participants.iter().any(holds) || bound.outcome.view.members().iter().any(joined)
    }

    fn propose_own(
        &mut self,
        ballot: Ballot,
        terms: Terms,
        (contributors, participants): (Vec<NodeId>, Vec<NodeId>),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        match self.compose(ballot, terms, contributors, participants) {
            Some(Ok(proposal)) => self.propose(proposal, now, out),
            Some(Err(shards)) => self.abandon(RefusalReason::MomentumLost { shards }, out),
            None => {}
        }
    }

    fn propose(&mut self, proposal: Proposal, now: Instant, out: &mut Outbox<Effect>) {
        let joiners_by = now.after(self.joiners_wait(&proposal, now));
        let Some(current) = &mut self.current else { return };
        if let Some(leading) = &mut current.leading {
            leading.propose(proposal.clone());
        }
        if proposal.has_joiners() && !current.joiners_over {
            current.joiners_by.get_or_insert(joiners_by);
        }
        self.broadcast(proposal.participants.iter().copied(), &Message::Propose(proposal.clone()), out);
        if let Some(view) = self.history.as_ref().map(|history| history.view.clone()) {
            let joiners: Vec<NodeId> = proposal.joiners().map(|joiner| joiner.id).collect();
            self.broadcast(joiners, &Message::Admit { proposal: proposal.clone(), view }, out);
        }
        if let Some(current) = &mut self.current {
            current.proposal = Some(proposal);
        }
    }

    /// Other members live than before: those that are silent now are waited for from now on.
    pub(super) fn wait_for_the_silent_anew(&mut self, now: Instant) {
        let Some(current) = self.current.as_mut().filter(|current| current.silent_by.is_some()) else { return };
        (current.silent_by, current.silent_over) = (Some(now.after(SILENT_WAIT)), false);
    }

    /// Whoever leads now may wait for this node's vote under a ballot that is lower than the one that this node promised to the dead,
    /// and may never hear of that one.
    pub(super) fn tell_of_the_ballot_of_the_dead(&self, out: &mut Outbox<Effect>) {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return };
        let owner = history.view.member(current.ballot().node);
        if let Some(leader) = self.leader().filter(|leader| *leader != self.me() && owner.is_some_and(|owner| self.is_gone(owner))) {
            self.send(leader, Message::Stale, out);
        }
    }

    /// Sends a peer that can be sent to again what this leader last asked.
    pub(super) fn lead_again(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return };
        let Some(leading) = &current.leading else { return };
        let message = match leading.proposal() {
            None if history.view.contains(node) => Message::Prepare,
            Some(proposal) if proposal.participants.contains(&node) => Message::Propose(proposal.clone()),
            Some(proposal) if proposal.outcome.view.contains(node) => {
                Message::Admit { proposal: proposal.clone(), view: history.view.clone() }
            }
            _ => return,
        };
        let participates = matches!(message, Message::Propose(_));
        self.send(node, message, out);
        if participates && current.joiners_hold {
            self.send(node, Message::Prepared, out);
        }
    }

    /// Counts a voter or a joiner; or learns from the leader that all joiners are ready.
    pub(super) fn count_prepared(&mut self, header: &Header, out: &mut Outbox<Effect>) {
        let Some(current) = &mut self.current else { return };
        current.joiners_hold |= header.sender == header.ballot.node && header.ballot == current.ballot();
        let Some(leading) = current.leading.as_mut().filter(|leading| leading.ballot() == header.ballot) else { return };
        leading.accept(header.sender);
        current.prepared.insert(header.sender);
        self.tell_that_joiners_hold(out);
    }

    /// Whoever accepts makes the outcome one that may be chosen, whatever happens to the leader: so the members accept a
    /// proposal that joiners shall hold state of only once these do.
    fn tell_that_joiners_hold(&mut self, out: &mut Outbox<Effect>) {
        let Some(current) = self.current.as_mut().filter(|current| !current.joiners_hold) else { return };
        let Some(proposal) = current.leading.as_ref().and_then(Proposer::proposal) else { return };
        if proposal.inherited || !proposal.has_joiners() || !proposal.joiners().all(|joiner| current.prepared.contains(&joiner.id)) {
            return;
        }
        current.joiners_hold = true;
        let participants = proposal.participants.clone();
        self.broadcast(participants, &Message::Prepared, out);
    }

    /// The leader's rule: all participants accepted, so that their data is safe, and that of the joiners before.
    pub(super) fn decide_when_accepted(&mut self, out: &mut Outbox<Effect>) {
        let Some(current) = self.current.as_mut().filter(|current| current.decided.is_none()) else { return };
        let Some(chosen) = current.leading.as_ref().and_then(Proposer::chosen) else { return };
        let outcome = chosen.outcome.clone();
        let all: Vec<NodeId> = chosen.participants.iter().copied().chain(chosen.joiners().map(|joiner| joiner.id)).collect();
        current.decided = Some(outcome.clone());
        self.broadcast(all, &Message::Decide(outcome), out);
    }

    /// Whether what was proposed cannot be decided as it is: somebody it needs is dead, late, or cannot be reached.
    fn must_try_again(&self) -> bool {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return false };
        let Some(proposal) = current.leading.as_ref().and_then(Proposer::proposal) else { return false };
        let dead = |node: &NodeId| history.view.member(*node).is_none_or(|member| self.is_gone(member));
        let lost = |joiner: &Member| (self.is_dead(joiner) || current.joiners_over) && !current.prepared.contains(&joiner.id);
        let joiner_lost = || !proposal.inherited && proposal.joiners().any(lost);
        let silent = |node: &NodeId| history.view.member(*node).is_some_and(|member| self.is_silent(member));
        let overdue = |node: &NodeId| current.grace_over || silent(node);
        let late = |node: &NodeId| !current.contributed.contains_key(node) && overdue(node);
        let out_of_grace = !proposal.inherited && proposal.outcome.contributors.iter().any(late);
        current.retry
            || proposal.participants.iter().any(dead)
            || joiner_lost()
            || out_of_grace
            || self.can_go_on_without_whom_it_waits_for()
    }
}
