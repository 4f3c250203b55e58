//! What may be asked about the machine from outside. Changes nothing.

use super::Coordinator;
use crate::coordinator::outcome::{Outcome, Proposal};
use crate::ident::{Ballot, NodeId};
use crate::shards::Layout;
use crate::view::View;

impl Coordinator {
    /// What was decided last; `None` outside and before the founding.
    #[must_use]
    pub fn last_outcome(&self) -> Option<&Outcome> {
        self.history.as_ref().and_then(|history| history.last.as_ref()).map(|decided| &decided.outcome)
    }

    /// The view that decides the round under way, also where this node only receives what it makes.
    #[must_use]
    pub fn acceptors(&self) -> Option<&View> {
        self.history.as_ref().map(|history| &history.view)
    }

    /// How anchor and momentum are cut, once that is known.
    #[must_use]
    pub fn state_layout(&self) -> Option<Layout> {
        self.state_elements.map(|elements| Layout::new(elements as usize))
    }

    /// Who is ready to be admitted, ascending.
    pub fn joiners(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.joiners.keys().copied()
    }

    /// What this member accepted last of the round that is not decided yet, with the ballot.
    #[must_use]
    pub fn accepted(&self) -> Option<&(Ballot, Proposal)> {
        self.current.as_ref().and_then(|current| current.acceptor.accepted())
    }

    /// Which members leave, ascending.
    pub fn leaving(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.leaving.keys().copied()
    }
}
