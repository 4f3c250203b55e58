//! The rules of a node that is no member yet: a leader admits it with a proposal whose next view has it, it receives what the
//! round makes, says that it holds it, and is a member once the outcome is decided.

use super::history::History;
use super::voting::is_member;
use super::{Coordinator, Current};
use crate::coordinator::outcome::Proposal;
use crate::view::View;
use crate::wire::Header;

impl Coordinator {
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
        if proposal.inherited {
            // What an earlier attempt brought is what this one is bound to.
            current.open = self.current.take().and_then(|earlier| earlier.open);
        }
        current.proposal = Some(proposal);
        (self.history, self.current) = (Some(history), Some(current));
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
                (history.joining || left_out) && (header.round, header.ballot) >= known && !repeated
            }
            _ => true,
        };
        // How state is cut is known from this node's own founding request.
        let asked = self.mine.is_some() || self.state_elements.is_some();
        let leads = header.sender == header.ballot.node && is_member(view, header) && header.epoch == view.epoch();
        admits && newer && asked && leads && header.lineage.is_decided() && header.round == proposal.outcome.round
    }
}
