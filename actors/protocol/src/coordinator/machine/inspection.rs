//! Read-only queries about the machine from outside, and a check of its invariants.

use super::Coordinator;
use super::data::ATTEMPTS_KEPT_MAX;
use super::deciding::Lead;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::voters::Voters;
use crate::ident::{Lineage, NodeId, Term};
use crate::shards::Layout;
use crate::view::View;
use crate::wire::MemberState;

impl Coordinator {
    /// The outcome decided last; `None` outside of the history and before the bootstrap.
    #[must_use]
    pub fn last_outcome(&self) -> Option<&Outcome> {
        let history = self.history.as_ref().filter(|history| history.member);
        history
            .and_then(|history| history.last.as_ref())
            .map(|decided| &decided.outcome)
    }

    /// Where the members are that applied the newest entry that this node knows, whether or not it
    /// is one of them.
    #[must_use]
    pub fn newest_standing(&self) -> Option<MemberState> {
        self.last().map(|decided| decided.outcome.standing())
    }

    /// The view of the round under way, also if this node only votes, or receives the round's data.
    #[must_use]
    pub fn round_view(&self) -> Option<&View> {
        self.history.as_ref().map(|history| &history.view)
    }

    /// The history of the entry that the round under way follows; its attempts may belong to a
    /// fork.
    #[must_use]
    pub fn began_in(&self) -> Lineage {
        self.history
            .as_ref()
            .map_or(Lineage::NONE, |history| history.began_in)
    }

    /// Voters of the round under way.
    #[must_use]
    pub fn voters(&self) -> Option<&Voters> {
        self.history.as_ref().map(|history| &history.voters)
    }

    /// Layout of anchor and momentum, once it is known.
    #[must_use]
    pub fn state_layout(&self) -> Option<Layout> {
        self.state_elements
            .map(|elements| Layout::new(elements as usize))
    }

    /// Nodes that are ready to be admitted, ascending.
    pub fn joiners(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers.joiners.keys().copied()
    }

    /// The outcome of the undecided round that this voter accepted last, with its term.
    #[must_use]
    pub fn accepted(&self) -> Option<&(Term, Outcome)> {
        self.deciding
            .as_ref()
            .and_then(|deciding| deciding.acceptor.accepted())
    }

    /// Members that leave, ascending.
    pub fn leaving(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers.leavers()
    }

    /// Checks the invariants that hold after every event.
    ///
    /// # Errors
    /// The invariant that is broken.
    pub fn verify(&self) -> Result<(), &'static str> {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return if self.history.is_none() && self.deciding.is_none() {
                Ok(())
            } else {
                Err("a round has a history before it")
            };
        };
        let in_view = history
            .view
            .member(self.me())
            .is_some_and(|member| member.incarnation == self.settings.identity.incarnation);
        if history.member && !in_view {
            return Err("a member is in its view");
        }
        if deciding.data.kept() > ATTEMPTS_KEPT_MAX {
            return Err("few attempts' data is kept");
        }
        if deciding
            .lead
            .term()
            .is_some_and(|term| term > deciding.term() || term.node != self.me())
        {
            return Err("a leader promised its own term");
        }
        if let Lead::Attempt(attempts) = &deciding.lead {
            let receivers = attempts
                .proposal
                .as_ref()
                .map(|proposal| proposal.receivers())
                .unwrap_or_default();
            if !attempts.ready.keys().all(|node| receivers.contains(node)) {
                return Err("only who receives is ready");
            }
        }
        if let Lead::Accept { accepted, .. } = &deciding.lead
            && accepted
                .iter()
                .any(|voter| history.voters.of(*voter).is_none())
        {
            return Err("only voters vote");
        }
        Ok(())
    }
}
