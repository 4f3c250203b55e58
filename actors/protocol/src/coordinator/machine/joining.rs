//! The rules of a node that is no member yet: a leader admits it with a proposal whose next view has it, it receives what the
//! round makes, says that it holds it, and is a member once the outcome is decided.

use super::history::History;
use super::voting::is_member;
use super::{Coordinator, Current};
use crate::ballot::Proposer;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Proposal;
use crate::ident::{Incarnation, NodeId, Round};
use crate::machine::Outbox;
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member, View};
use crate::wire::Header;
use std::collections::BTreeMap;

/// For how many rounds a joiner that is too slow is passed over, at most.
const ROUNDS_PASSED_OVER_MAX: u64 = 256;

impl Coordinator {
    /// How long members wait for the joiners of a proposal to hold what they must: as long as for a straggler, twice as long
    /// each time that was too short, and no longer than the round can still be made without them.
    pub(super) fn joiners_wait(&self, proposal: &Proposal, now: Instant) -> Span {
        let timeout = self.settings.round_timeout;
        let left = self.current.as_ref().and_then(|current| current.give_up).map_or(timeout, |until| until.since(now));
        let times = proposal.joiners().map(|joiner| self.slow_joiners.times(joiner)).max().unwrap_or(0);
        Span(self.settings.grace.0.saturating_mul(1 << times)).min(Span(left.0 / 2))
    }

    /// The wait for joiners is over: this round is made without those that hold nothing yet, and the next ones without them too.
    pub(super) fn pass_slow_joiners_over(&mut self, now: Instant) {
        let (Some(history), Some(current)) = (&self.history, &mut self.current) else { return };
        if current.joiners_by.take_if(|until| now >= *until).is_none() {
            return;
        }
        current.joiners_over = true;
        let Some(proposal) = current.leading.as_ref().and_then(Proposer::proposal) else { return };
        for joiner in proposal.joiners().filter(|joiner| !current.prepared.contains(&joiner.id)) {
            self.slow_joiners.note(joiner, history.round);
        }
    }

    pub(super) fn admitted(&mut self, header: &Header, proposal: Proposal, view: View) {
        if !self.may_be_admitted(header, &proposal, &view) {
            return;
        }
        let outcome = &proposal.outcome;
        let mut history = History::joining(view, header.lineage, header.round);
        history.absent.clone_from(&outcome.absent);
        let mut current = Current::new(self.me(), &history.view);
        if current.acceptor.prepare(header.ballot).is_err() {
            return;
        }
        if let (Some(before), Some(mut earlier)) = (self.history.take(), self.current.take()) {
            if proposal.inherited {
                // What an earlier attempt brought is what this one is bound to.
                current.open = earlier.open.take();
            }
            if !before.joining {
                self.set_aside = Some(Box::new((before, earlier)));
            }
        }
        current.proposal = Some(proposal);
        (self.history, self.current) = (Some(history), Some(current));
    }

    /// A member is left out of a round and admitted again by one that took it for gone. If that one dies, the others know of nothing
    /// but a member that lives, and may wait for it to lead: it is a member as before, with every vote that it gave.
    pub(super) fn resume(&mut self, (node, incarnation): (NodeId, Incarnation), now: Instant, out: &mut Outbox<Effect>) {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return };
        let ballot = current.ballot();
        let of_it = ballot.node == node && history.view.member(node).is_some_and(|member| member.incarnation == incarnation);
        let Some(before) = self.set_aside.take_if(|_| history.joining && of_it) else { return };
        let (history, mut earlier) = *before;
        let Some(Current { open, proposal, .. }) = self.current.take() else { return };
        if proposal.as_ref().is_some_and(|proposal| proposal.inherited) {
            earlier.open = open;
        } else {
            // A proposal of its leader's own choice proves that nothing was chosen before.
            earlier.acceptor.release(ballot);
            if proposal.is_some_and(|proposal| history.view.is_quorum(proposal.participants.iter().copied())) {
                earlier.acceptor.refute(ballot);
            }
            if let Some(open) = open {
                out.push(Effect::Discard(open.plan.attempt.ballot));
                earlier.open = None;
            }
        }
        // It is no lower than what was promised before.
        _ = earlier.acceptor.prepare(ballot);
        (self.history, self.current) = (Some(history), Some(earlier));
        self.follow(ballot, now);
    }

    fn may_be_admitted(&self, header: &Header, proposal: &Proposal, view: &View) -> bool {
        let identity = self.settings.identity;
        let admits = proposal.outcome.view.member(identity.node).is_some_and(|member| member.incarnation == identity.incarnation);
        let newer = match (&self.history, &self.current) {
            (Some(history), Some(current)) => {
                let known = (history.round, current.ballot());
                let repeated = current.proposal.as_ref() == Some(proposal) && known == (header.round, header.ballot);
                // A member that the others take for gone is one no more; it has not voted for what leaves it out.
                let left_out = !proposal.participants.contains(&identity.node) && header.lineage == history.lineage;
                // Of a leader that is dead nothing more will come.
                let left_out = left_out && !self.dead.contains(&(header.sender, header.incarnation));
                // Who would have admitted it may have died, and another history, which this node asked since, be behind that one.
                let elsewhere = history.joining && header.lineage != history.lineage;
                elsewhere || ((history.joining || left_out) && (header.round, header.ballot) >= known && !repeated)
            }
            _ => true,
        };
        // How state is cut is known from this node's own founding request.
        let asked = self.mine.is_some() || self.state_elements.is_some();
        let leads = header.sender == header.ballot.node && is_member(view, header) && header.epoch == view.epoch();
        admits && newer && asked && leads && header.lineage.is_decided() && header.round == proposal.outcome.round
    }
}

/// Joiners that did not hold the model within the wait: how often, and from which round on they are taken along again. Each time
/// the others waited in vain, so it is twice as many rounds until the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlowJoiners(BTreeMap<(NodeId, Incarnation), (u32, Round)>);

impl SlowJoiners {
    fn note(&mut self, joiner: &Member, round: Round) {
        self.0.retain(|_, (_, until)| round.0 < until.0 + ROUNDS_PASSED_OVER_MAX);
        if self.0.len() < MEMBERS_MAX {
            let (times, until) = self.0.entry((joiner.id, joiner.incarnation)).or_insert((0, round));
            *until = Round(round.0 + 1 + (1 << *times).min(ROUNDS_PASSED_OVER_MAX));
            *times = (*times + 1).min(ROUNDS_PASSED_OVER_MAX.ilog2());
        }
    }

    fn times(&self, joiner: &Member) -> u32 {
        self.0.get(&(joiner.id, joiner.incarnation)).map_or(0, |(times, _)| *times)
    }

    /// Whether a round is made without a joiner because it was too slow for an earlier one.
    pub fn passes_over(&self, joiner: &Member, round: Round) -> bool {
        self.0.get(&(joiner.id, joiner.incarnation)).is_some_and(|(_, until)| round < *until)
    }
}
