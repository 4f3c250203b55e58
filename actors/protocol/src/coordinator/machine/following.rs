//! Rules of a member for frames, contributions and admission (`attempting` has those for attempts).
//! A frame counts only if its sender is a member or a voter of the round (or a joiner of an
//! attempt) in the right incarnation, it is of this round, and it comes from the leader of its term
//! if only the leader may send it. A frame of an older round is answered with the newest entry.

use super::Coordinator;
use super::data::Movement;
use super::history::History;
use super::peers::speaker;
use super::timers::Timer;
use crate::coordinator::acceptor::{Promise, TERM_COUNTER_MAX};
use crate::coordinator::draft::Draft;
use crate::coordinator::error::RoundError;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Entry, Outcome, Proposal, RoundSpec};
use crate::coordinator::plan::Attempt;
use crate::ident::{NodeId, Term};
use crate::machine::{Outbox, Place};
use crate::planted::{self, Bug};
use crate::sound::Unsound;
use crate::time::Instant;
use crate::view::{MEMBERS_MAX, View};
use crate::wire::{ContributionNotice, Header, Message, RefusalReason};
use std::collections::BTreeSet;

impl Coordinator {
    /// Whether a stream with this header may belong to an attempt that this node takes part in: one
    /// of this or a later round, from a member. The others may have left this node out and be
    /// admitting it again before it knows of either. Of another history, only the next round counts.
    /// A node outside of the history, whose admission may still be on its way, admits streams of any
    /// decided history.
    #[must_use]
    pub fn admits(&self, header: &Header) -> bool {
        let same = header.cluster == self.settings.identity.cluster && header.lineage.is_decided();
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return same;
        };
        if !history.member {
            return same && (header.lineage != history.lineage || header.round >= history.round);
        }
        let next = deciding
            .may_follow()
            .any(|outcome| is_member(&outcome.view, header));
        let here = header.round >= history.round && header.lineage == history.lineage;
        let near = here || header.round == history.round.next();
        same && near && (is_member(&history.view, header) || next)
    }

    pub(super) fn receive(
        &mut self,
        header: Header,
        message: Message,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if header.cluster != self.settings.identity.cluster
            || header.sender == self.me()
            || self.stopped.is_some()
            || self.links.is_refused(header.sender, header.incarnation)
        {
            return;
        }
        if let Message::Admit { parent, draft } = message {
            return self.admitted(&header, parent, &draft, out);
        }
        if self.history.is_none() {
            // Either the view is still on its way here, or this node has left, and others do not
            // know with which entry.
            self.answer_late(&header, &message, out);
            let is_checked_vote = self.doubts() && is_of_vote(&message);
            if !is_checked(&message) && !is_checked_vote {
                self.early.keep(header, message, None);
            }
            return;
        }
        if let Message::Equivocated { owner, one, other } = message {
            return self.receive_proof(&header, owner, (one, other), now, out);
        }
        if let Message::TwoEntries { one, other } = message {
            return self.receive_two_entries(&header, (one, other), now, out);
        }
        let place = self.place();
        if let Message::Published(list) = &message
            && header.round < place.round
        {
            return self.receive_late_list(&header, list, now, out);
        }
        if let Message::Accepted(signed) = &message
            && header.round < place.round
        {
            return self.receive_late_vote(&header, *signed, now, out);
        }
        if header.round < place.round && !planted::has(Bug::StaleEpoch) {
            return self.answer_late(&header, &message, out);
        }
        if header.lineage != place.lineage {
            return self.hear_of_fork(&header, message, now, out);
        }
        if header.round > place.round {
            return self.receive_early(header, message, now, out);
        }
        if self.may_speak(&header) {
            self.take(&header, message, now, out);
        }
    }

    /// Handles a frame that has just arrived; those that this node kept go to [`Self::receive`].
    pub(super) fn arrive(
        &mut self,
        header: Header,
        message: Message,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let is_named = self.links.is_refused(header.sender, header.incarnation);
        if is_of_its_round(&message) && self.peers.was_beyond(&header) && !is_named {
            return self.go_on_without(header.sender, Unsound::Replayed, now, out);
        }
        self.receive(header, message, now, out);
    }

    /// Handles a frame of the round under way.
    fn take(&mut self, header: &Header, message: Message, now: Instant, out: &mut Outbox<Effect>) {
        // Another incarnation of a voter's node may speak as a joiner, and leads nothing.
        let of_leader = header.sender == header.term.node && self.is_from_voter(header);
        if is_of_its_round(&message) {
            self.peers.note_round(header);
        }
        match message {
            Message::Contribute(contributed) => {
                self.note_contribution(header.sender, contributed, now, out)
            }
            Message::Attempt(draft) if of_leader => self.receive_attempt(header, &draft, now, out),
            Message::Ready(entry) => self.count_ready(
                (header.sender, entry),
                (header.term, header.attempt),
                now,
                out,
            ),
            Message::Broken(node) => self.broken_elsewhere(header, node, now, out),
            Message::Accuse(node) => self.accused(header, node, now, out),
            Message::Abandon(reason) => self.abandoned_elsewhere(header, reason, now, out),
            Message::Decide { entry, leaves } => {
                self.told_decision(header, entry, leaves, now, out)
            }
            Message::Learn => {
                self.lead_again(header.sender, out);
                self.vote_again(header.sender, out);
                self.tell_undecided(header.sender, out);
            }
            Message::Undecided if self.is_from_voter(header) => self.note_undecided(header.sender),
            // A member that does not vote yet forks if no voter is left.
            Message::Fork {
                lineage,
                ordered,
                voters,
            } if header.sender == header.term.node => {
                self.receive_fork(header, (lineage, ordered), voters, now, out)
            }
            Message::Prepare if of_leader => self.promise(header, now, out),
            Message::Promise {
                accepted,
                floor,
                contributed,
            } if self.is_from_voter(header) => {
                self.promised(header, Promise { accepted, floor }, contributed, now, out);
            }
            Message::Open if of_leader => self.acknowledge_open(header, now, out),
            Message::Opened if self.is_from_voter(header) => self.count_opened(header, out),
            Message::Closed if of_leader => {
                self.with_deciding(|deciding| {
                    deciding.closed_below = deciding.closed_below.max(header.term);
                });
                self.discard_where(|movement| movement.attempt().term < header.term, out)
            }
            Message::Accept { entry, signature } if of_leader => {
                self.vote(header, (entry, signature), now, out)
            }
            Message::Accepted(signed) if self.is_from_voter(header) => {
                self.count_accepted(header, signed.digest);
                self.note_vote(header, signed, now, out);
            }
            Message::Compare if of_leader => self.tell_published(header, out),
            Message::Published(list) => self.receive_published(header, &list, now, out),
            Message::Overtaken => self.overtaken(header.term, now),
            Message::GoesOn => self.hear_training_goes_on(header.sender, out),
            Message::AskCheckpoint => self.note_checkpoint_asked(header.sender, out),
            Message::AskSettings { number, values } => {
                self.note_settings_asked(header.sender, number, values, out)
            }
            // The sender may not say this: it does not lead this term, or does not vote.
            Message::Attempt(_)
            | Message::Fork { .. }
            | Message::Prepare
            | Message::Promise { .. }
            | Message::Open
            | Message::Opened
            | Message::Closed
            | Message::Accept { .. }
            | Message::Accepted(_)
            | Message::Undecided
            | Message::Compare => {}
            // Handled before the round is looked at.
            Message::Admit { .. }
            | Message::Learned
            | Message::Equivocated { .. }
            | Message::TwoEntries { .. } => {}
            // Of membership and gossip, which `node::route` sends there.
            Message::Hello(_)
            | Message::Bootstrap { .. }
            | Message::Join
            | Message::Refused(_)
            | Message::Leave { .. }
            | Message::GossipMixed { .. }
            | Message::GossipRefused { .. }
            | Message::GossipSkipped { .. }
            | Message::GossipAsk { .. }
            | Message::GossipReclaimed { .. } => {}
        }
    }

    fn is_from_voter(&self, header: &Header) -> bool {
        self.history
            .as_ref()
            .is_some_and(|history| history.voters.contains(speaker(header)))
    }

    /// Whether the sender is a member or a voter of the round, or joins with an attempt, and its
    /// term is one that may exist.
    fn may_speak(&self, header: &Header) -> bool {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return false;
        };
        let owned = header.term.counter > 0 || header.term.node == history.leader;
        let bounded = owned
            && header.term.counter <= TERM_COUNTER_MAX
            && (history.voters.of(header.term.node).is_some()
                || history.view.contains(header.term.node));
        let takes_part =
            is_member(&history.view, header) || history.voters.contains(speaker(header));
        bounded
            && (takes_part
                || deciding
                    .may_follow()
                    .any(|outcome| is_member(&outcome.view, header)))
    }

    /// Keeps a frame of the next round until this node gets there. A sender that is ahead is asked
    /// for the entry that led it there, even if this node does not know it as a member: this node
    /// may have been excluded long ago and still vote. An entry of a later round says that the
    /// others continued without this node.
    fn receive_early(
        &mut self,
        header: Header,
        message: Message,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if let Message::Decide {
            entry: Entry::Whole(entry),
            leaves,
        } = message
        {
            if leaves {
                self.send_from(header.place(), header.sender, Message::Learned, out);
            }
            return self.told_ahead(&header, entry, now, out);
        }
        let (Some(history), Some(deciding)) = (&self.history, &mut self.deciding) else {
            return;
        };
        let asks = deciding.asked.len() < MEMBERS_MAX && deciding.asked.insert(header.sender);
        let known = is_member(&history.view, &header)
            || deciding
                .may_follow()
                .any(|outcome| is_member(&outcome.view, &header));
        let next = known && header.round == history.round.next();
        let checked_vote = self.doubts() && is_of_vote(&message);
        let signer = if checked_vote {
            self.key_of(header.term.node).map(|(signer, _)| signer)
        } else {
            None
        };
        // A vote whose signature nobody could check is not kept.
        let keeps = next && !is_checked(&message) && (!checked_vote || signer.is_some());
        if keeps {
            self.early.keep(header, message, signer);
        }
        if asks {
            self.send(header.sender, Message::Learn, out);
        }
    }

    /// Records a member's contribution. Two members that expect different rounds run different
    /// scripts: this node goes on without those that expect another one than it does itself.
    pub(super) fn note_contribution(
        &mut self,
        node: NodeId,
        mut contributed: ContributionNotice,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let grace = self.grace();
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if self.settings.orders_by_rate {
            self.rates
                .insert(node, std::mem::take(&mut contributed.rates));
        }
        if self
            .history
            .as_ref()
            .is_none_or(|history| !history.view.contains(node))
        {
            return;
        }
        self.timers.start(Timer::Grace, now.after(grace));
        if deciding.grace_over {
            self.timers.stop(Timer::Grace);
        }
        deciding.contributed.insert(node, contributed);
        // What others expect is judged by what this node expects, once its training says so.
        let me = self.settings.identity.node;
        let Some(ours) = deciding.contributed.get(&me).map(|mine| mine.spec) else {
            return;
        };
        let proposed = deciding
            .proposed
            .as_ref()
            .filter(|proposed| proposed.is_of_contributor())
            .map(|proposed| (proposed.term.node, proposed.proposal.outcome.spec));
        let of_others = deciding
            .contributed
            .iter()
            .map(|(other, known)| (*other, known.spec));
        let differs: Vec<(NodeId, RoundSpec)> = of_others
            .chain(proposed)
            .filter(|(other, spec)| *spec != ours && *other != me)
            .collect();
        for (other, spec) in differs {
            self.part_with(other, ours, spec, now, out);
        }
    }

    /// Goes on without a member that expects another round than this node. Where those that remain
    /// are not most of the voters, nobody can say whose script is wrong: the run ends.
    pub(super) fn part_with(
        &mut self,
        node: NodeId,
        ours: RoundSpec,
        theirs: RoundSpec,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if self.stopped.is_some() {
            return;
        }
        let reason = difference(self.me(), ours, node, theirs);
        self.with_deciding(|deciding| _ = deciding.contributed.remove(&node));
        self.go_on_without(node, Unsound::OtherRound(theirs), now, out);
        if !self.most_are_trusted() {
            self.abandon(reason, out);
        }
    }

    /// Handles a member that abandoned a round. It takes part in nothing any more, and what it says
    /// of the others proves nothing: a reason that holds for them too, they find themselves. The
    /// run ends here too once those that remain are not most of the voters.
    fn abandoned_elsewhere(
        &mut self,
        header: &Header,
        reason: RefusalReason,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        self.go_on_without(header.sender, Unsound::Abandoned, now, out);
        self.with_deciding(|deciding| _ = deciding.refusal.get_or_insert(reason));
        self.end_if_refused(out);
    }

    /// Ends the run once a member refused the round and those that remain are not most of the
    /// voters. Members may be found dead only after it refused.
    pub(super) fn end_if_refused(&mut self, out: &mut Outbox<Effect>) {
        if self.stopped.is_some() || self.most_are_trusted() {
            return;
        }
        let refusal = |deciding: &super::deciding::Deciding| deciding.refusal.clone();
        if let Some(reason) = self.deciding.as_ref().and_then(refusal) {
            self.stop(RoundError::refused(self.place().round, reason), out);
        }
    }

    /// Names a member, and counts it as unreachable until its process is restarted.
    pub(super) fn go_on_without(
        &mut self,
        node: NodeId,
        what: Unsound,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        out.push(Effect::Unsound(node, what));
        let attempt = Attempt::at(&self.place());
        self.attempt_without(attempt, node, Message::Broken(node), now, out);
    }

    pub(super) fn specs_differ(
        &mut self,
        attempt: Attempt,
        other: NodeId,
        spec: RoundSpec,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let movement = self
            .deciding
            .as_mut()
            .and_then(|deciding| deciding.data.moving_at(attempt));
        if let Some(ours) = movement.map(|movement| movement.plan.spec) {
            self.part_with(other, ours, spec, now, out);
        }
    }

    /// Handles an average of sound contributions that is not finite. Another owner would find the
    /// same, so the run ends with an error instead of excluding one owner after the other.
    pub(super) fn overflowed(&mut self, attempt: Attempt, element: u64, out: &mut Outbox<Effect>) {
        let moves = |deciding: &mut super::deciding::Deciding| {
            deciding.decided.is_none() && deciding.data.moving_at(attempt).is_some()
        };
        if self.deciding.as_mut().is_some_and(moves) {
            let node = self.me();
            self.abandon(RefusalReason::Overflowed { node, element }, out);
        }
    }

    /// Ends the run on this node, and tells the others why.
    pub(super) fn abandon(&mut self, reason: RefusalReason, out: &mut Outbox<Effect>) {
        let members: Vec<NodeId> = self
            .history
            .iter()
            .flat_map(|history| history.view.ids())
            .collect();
        self.broadcast(members, &Message::Abandon(reason.clone()), out);
        self.stop(RoundError::refused(self.place().round, reason), out);
    }

    /// Announces this node's contribution to the leader of the view and to the
    /// leader of the promised term.
    pub(super) fn tell_leader(&mut self, out: &mut Outbox<Effect>) {
        let (Some(mine), Some(leader)) = (self.mine.clone(), self.leader()) else {
            return;
        };
        let Some(term_leader) = self.deciding.as_ref().map(|deciding| deciding.term().node) else {
            return;
        };
        for to in BTreeSet::from([leader, term_leader]) {
            let untold = self
                .deciding
                .as_mut()
                .is_some_and(|deciding| deciding.told.insert(to));
            if to != self.me() && untold {
                self.send(to, Message::Contribute(mine.clone()), out);
            }
        }
    }

    /// Switches to a term if it is higher. Its node leads for a while.
    pub(super) fn follow(&mut self, term: Term, now: Instant) {
        let me = self.me();
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        deciding.highest = deciding.highest.max(term);
        if deciding.lead.term().is_some_and(|own| own < term) {
            self.step_down();
        }
        if term.node != me {
            self.timers
                .set(Timer::Follow, now.after(super::FOLLOW_WAIT));
        }
    }

    fn broken_elsewhere(
        &mut self,
        header: &Header,
        node: NodeId,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let place = self.place();
        // A node that switches to this bootstrap asks for streams that it has refused, whichever
        // attempt they are of.
        let over =
            (header.term, header.attempt) < (place.term, place.attempt) && header.sender != node;
        if header.term < place.term || over {
            // The sender does not know of the attempt under way yet.
            self.with_deciding(|deciding| deciding.reports.confirm(header.sender, node));
            return self.lead_again(header.sender, out);
        }
        self.ask_for_another_attempt(header.sender, node, now, out);
    }

    /// Sends a peer that can be sent to again what it may have missed.
    pub(super) fn peer_up(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        let round = self.place().round;
        self.links.found(node, round);
        self.tell_entry(node, out);
        let voter = self.is_voter();
        let (Some(history), Some(deciding)) = (&self.history, &mut self.deciding) else {
            return;
        };
        deciding.told.remove(&node);
        let term = deciding.term();
        if term.node == node && !planted::has(Bug::PromiseUntold) {
            let accepted = deciding
                .acceptor
                .accepted()
                .is_some_and(|(of, _)| *of == term);
            let ready = deciding.data.ready(term, deciding.number());
            let ready = ready.and_then(Movement::entry);
            let first = history.first_term() == term;
            if voter && !first {
                // The leader may have been heard before it could be answered.
                self.tell_promise(term, out);
            }
            if let Some(entry) = ready {
                self.send(node, Message::Ready(entry), out);
            }
            if accepted && let Some(signed) = self.own_vote() {
                self.send(node, Message::Accepted(signed), out);
            }
        } else {
            self.vote_again(node, out);
        }
        self.lead_again(node, out);
    }

    /// Handles an admission: a node that is not a member follows the round that admits it.
    fn admitted(
        &mut self,
        header: &Header,
        parent: Outcome,
        draft: &Draft,
        out: &mut Outbox<Effect>,
    ) {
        if header.sender != header.term.node
            || header.round != parent.round.next()
            || header.lineage != draft.lineage
        {
            return;
        }
        let place = Place {
            lineage: header.lineage,
            epoch: parent.view.epoch(),
            round: parent.round,
            term: header.term,
            attempt: header.attempt,
        };
        let mut history = History::after(parent, place, self.myself());
        // A fork continues from an entry of the previous history.
        history.lineage = header.lineage;
        if !history.lineage.is_decided() || !is_member(&history.view, header) {
            return;
        }
        // The view may count on this node all the same: it resigned from it, and asked again. It
        // holds nothing of the view before the attempt that admits it.
        history.member = false;
        let Some(proposal) = draft.resolve(history.base()) else {
            return;
        };
        let identity = self.settings.identity;
        let admits = proposal
            .outcome
            .view
            .member(identity.node)
            .is_some_and(|member| member.incarnation == identity.incarnation);
        // The layout of the state is known from this node's own request.
        let asked = self.mine.is_some() || self.state_elements.is_some();
        if !(admits && asked) {
            return;
        }
        self.admit(header, history, proposal, out);
    }

    fn admit(
        &mut self,
        header: &Header,
        history: History,
        proposal: Proposal,
        out: &mut Outbox<Effect>,
    ) {
        if self.restore_aside_of(history.lineage, out) {
            self.discard_where(|movement| !movement.ready, out);
        }
        let known = self
            .history
            .as_ref()
            .map(|known| (known.member, known.lineage, known.round));
        match known {
            // This node is a member already, and the others count on it.
            Some((true, ..)) => return,
            Some((false, lineage, round))
                if lineage == history.lineage && round > history.round =>
            {
                return;
            }
            Some((false, lineage, round))
                if lineage == history.lineage && round == history.round => {}
            _ => {
                self.leave_for(history.lineage, out);
                self.deciding = Some(self.promised.resume(&history));
                self.history = Some(history);
                self.timers.end_round();
            }
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if header.term < deciding.term() || deciding.acceptor.prepare(header.term).is_err() {
            return;
        }
        deciding.highest = deciding.highest.max(header.term);
        let ready = deciding.data.ready(header.term, header.attempt);
        if let Some(entry) = ready.and_then(Movement::entry) {
            // This node asked again, so its leader no longer counts on what it said before.
            return self.send_from(header.place(), header.sender, Message::Ready(entry), out);
        }
        self.take_proposal(header.term, header.attempt, proposal, out);
    }
}

/// Whether a frame carries signatures, which were checked against what this node knew when it
/// arrived. It is not kept for a later round, in which nobody would check them.
fn is_checked(message: &Message) -> bool {
    matches!(
        message,
        Message::Published(_) | Message::Equivocated { .. } | Message::TwoEntries { .. }
    )
}

/// Whether a frame carries what a leader signed.
fn is_of_vote(message: &Message) -> bool {
    matches!(message, Message::Accept { .. } | Message::Accepted(_))
}

/// Whether the header's sender is in the view, in the view's incarnation of it.
pub(super) fn is_member(view: &View, header: &Header) -> bool {
    view.member(header.sender)
        .is_some_and(|member| member.incarnation == header.incarnation)
}

pub(super) fn difference(
    one: NodeId,
    one_spec: RoundSpec,
    other: NodeId,
    other_spec: RoundSpec,
) -> RefusalReason {
    RefusalReason::SpecsDiffer {
        one,
        one_spec: one_spec.to_string(),
        other,
        other_spec: other_spec.to_string(),
    }
}

/// Whether a correct node sends this only in the round that it is in itself.
fn is_of_its_round(message: &Message) -> bool {
    matches!(
        message,
        Message::Contribute(_) | Message::Accept { .. } | Message::Accepted(_)
    )
}
