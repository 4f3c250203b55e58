//! Rules of a member for attempts: it adopts the newest attempt that a leader proposes, moves
//! its data, and says `Ready` once it holds all data that it must.
//!
//! The plain attempt (everybody contributes and takes part) needs no proposal: members begin it as
//! soon as they contribute. Any other attempt is begun once its leader proposes it. The data of an
//! attempt that this node was ready for is kept until the round is decided, the leader drops the
//! attempt, or a quorum closes its term (`data`).

use super::Coordinator;
use super::data::Movement;
use super::deciding::Proposed;
use super::timers::Timer;
use crate::coordinator::draft::Draft;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Proposal, RoundKind};
use crate::coordinator::plan::Attempt;
use crate::coordinator::voters::Voter;
use crate::ident::{NodeId, Term};
use crate::machine::{Outbox, Place};
use crate::planted::{self, Bug};
use crate::time::Instant;
use crate::wire::{Header, Message};
use std::sync::Arc;

impl Coordinator {
    pub(super) fn receive_attempt(
        &mut self,
        header: &Header,
        draft: &Draft,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(proposal) = self
            .history
            .as_ref()
            .and_then(|history| draft.resolve(history.base()))
        else {
            return;
        };
        // The draft may count on another incarnation of this node as a participant; this
        // incarnation is told by `Admit`.
        let myself = self.myself();
        let counts = self
            .history
            .as_ref()
            .and_then(|history| history.view.member(myself.node))
            .map(Voter::from)
            == Some(myself);
        if !counts
            || proposal.participants.binary_search(&myself.node).is_err()
            || draft.lineage != header.lineage
        {
            return;
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if header.term < deciding.term() {
            return self.send(header.sender, Message::Overtaken, out);
        }
        if header.term > deciding.term() {
            // A promise that nobody asked for does no harm.
            if deciding.acceptor.prepare(header.term).is_err() {
                return;
            }
            self.follow(header.term, now);
        }
        let ours = self
            .mine
            .as_ref()
            .map(|mine| mine.spec)
            .filter(|ours| *ours != proposal.outcome.spec);
        if let Some(ours) = ours {
            let spec = proposal.outcome.spec;
            // A leader that does not contribute goes by what others expect, until it hears of most.
            if proposal.outcome.contributors.contains(&header.sender) {
                self.part_with(header.sender, ours, spec, now, out);
            }
            return;
        }
        self.show_proofs(header, &proposal, out);
        self.take_proposal(header.term, header.attempt, proposal, out);
    }

    /// Adopts the newest attempt of a term; its leader asked for no vote on the earlier ones.
    pub(super) fn take_proposal(
        &mut self,
        term: Term,
        number: u32,
        proposal: Proposal,
        out: &mut Outbox<Effect>,
    ) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let newest = deciding
            .proposed
            .as_ref()
            .map(|proposed| (proposed.term, proposed.number));
        if newest.is_some_and(|newest| newest >= (term, number)) {
            return;
        }
        deciding.proposed = Some(Proposed {
            term,
            number,
            proposal,
        });
        let earlier = |attempt: Attempt| {
            let dropped = attempt.term == term && attempt.number < number;
            dropped || (attempt.term < term && planted::has(Bug::DroppedForLaterAttempt))
        };
        self.discard_where(
            |movement| earlier(movement.attempt()) && movement.published.is_some(),
            out,
        );
    }

    /// Begins the plain attempt, which needs no proposal, before its leader proposes it: all
    /// members contribute and take part.
    pub(super) fn begin_plain_attempt(&mut self, out: &mut Outbox<Effect>) {
        if !self.is_plain() {
            return;
        }
        let Some(spec) = self.mine.as_ref().map(|mine| mine.spec) else {
            return;
        };
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return;
        };
        let first = history.first_term();
        let untried = deciding.data.moving.is_none()
            && deciding.term() == first
            && deciding.proposed.is_none();
        if !untried || deciding.decided.is_some() {
            return;
        }
        let place = Place {
            term: first,
            attempt: 0,
            ..self.place()
        };
        let (contributors, participants) = self.everybody(spec.kind);
        let Some(plan) = self.plan(place, spec, contributors, participants) else {
            return;
        };
        self.move_data(Movement::new(Arc::new(plan)), out);
    }

    /// Contributors and participants of the plain attempt.
    pub(super) fn everybody(&self, kind: RoundKind) -> (Vec<NodeId>, Vec<NodeId>) {
        let members: Vec<NodeId> = self
            .history
            .iter()
            .flat_map(|history| history.view.ids())
            .collect();
        let contributors = if kind == RoundKind::Bootstrap {
            members.iter().take(1).copied().collect()
        } else {
            members.clone()
        };
        (contributors, members)
    }

    fn move_data(&mut self, movement: Movement, out: &mut Outbox<Effect>) {
        let plan = Arc::clone(&movement.plan);
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        out.push_all(deciding.data.begin(movement).map(Effect::Discard));
        self.timers.stop(Timer::Broken);
        self.timers.stop(Timer::LostStreams);
        out.push(Effect::Open(plan));
    }

    /// Starts to move the data of the newest attempt. If the attempt needs this node's
    /// contribution, it waits for the training threads.
    pub(super) fn begin_proposed_attempt(&mut self, out: &mut Outbox<Effect>) {
        let Some(deciding) = self
            .deciding
            .as_ref()
            .filter(|deciding| deciding.decided.is_none())
        else {
            return;
        };
        let Some(Proposed {
            term,
            number,
            proposal,
        }) = deciding.proposed.clone()
        else {
            return;
        };
        let place = Place {
            term,
            attempt: number,
            ..self.place()
        };
        let attempt = Attempt::at(&place);
        let moving = deciding.data.moving.as_ref();
        let lacks_own = proposal.outcome.contributors.contains(&self.me()) && self.mine.is_none();
        let begun = moving
            .is_some_and(|movement| movement.attempt() == attempt && movement.published.is_some());
        if lacks_own || begun || deciding.data.ready(term, number).is_some() {
            return;
        }
        let contributors = proposal.outcome.contributors.clone();
        let Some(plan) = self.plan(
            place,
            proposal.outcome.spec,
            contributors,
            proposal.participants.clone(),
        ) else {
            return;
        };
        let Some(publication) = self.publication(&plan, &proposal.outcome) else {
            return;
        };
        let same = |movement: &Movement| *movement.plan == plan;
        if !self
            .deciding
            .as_ref()
            .is_some_and(|deciding| deciding.data.moving.as_ref().is_some_and(same))
        {
            self.move_data(Movement::new(Arc::new(plan)), out);
        }
        if let Some(movement) = self
            .deciding
            .as_mut()
            .and_then(|deciding| deciding.data.moving.as_mut())
        {
            let publication = Arc::new(publication);
            movement.publish(proposal, Arc::clone(&publication));
            out.push(Effect::Publish(publication));
        }
    }

    /// Reports once that this node holds all data that it must for the newest attempt. A third
    /// attempt's data waits until that of an earlier one may be dropped.
    pub(super) fn tell_when_ready(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let room = deciding.data.has_room();
        let Some(movement) = deciding
            .data
            .moving
            .as_mut()
            .filter(|movement| room && !movement.ready && movement.is_complete())
        else {
            return;
        };
        movement.ready = true;
        let attempt = movement.attempt();
        let entry = movement.entry().unwrap_or_default();
        deciding.was_ready = true;
        if attempt.term.node == me {
            let place = (attempt.term, attempt.number);
            return self.count_ready((me, entry), place, now, out);
        }
        self.send_from(
            Place {
                term: attempt.term,
                attempt: attempt.number,
                ..self.place()
            },
            attempt.term.node,
            Message::Ready(entry),
            out,
        );
    }
}
