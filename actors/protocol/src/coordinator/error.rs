//! Why a round ended without an outcome. Parameters, anchor and momentum are what they were before it.

use crate::ident::{NodeId, Nodes, Round};
use crate::time::Span;
use crate::wire::RefusalReason;

/// Why a round ended without an outcome; nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RoundError {
    /// Two nodes expect different rounds.
    #[error(
        "{round} was abandoned: {one} expects a {one_terms}, {other} a {other_terms}; run the same training script with the same schedule on all nodes"
    )]
    TermsDiffer {
        /// Which round.
        round: Round,
        /// One node.
        one: NodeId,
        /// What it expects.
        one_terms: String,
        /// The other.
        other: NodeId,
        /// What the other expects.
        other_terms: String,
    },
    /// A member of the fixed view is gone.
    #[error("{round} cannot be decided: {node} is gone; restart the run on the remaining nodes")]
    MemberLost {
        /// Which round.
        round: Round,
        /// Who.
        node: NodeId,
    },
    /// A stream to or from a live member failed.
    #[error("{round} was abandoned: a stream to or from {node} broke; see that node's log")]
    StreamBroken {
        /// Which round.
        round: Round,
        /// The other end.
        node: NodeId,
    },
    /// The round took longer than allowed.
    #[error("{round} was given up after {} s, waiting for {}; see those nodes' logs, or raise round_timeout_ms", after.as_millis() / 1000, Nodes(waiting_for))]
    TimedOut {
        /// Which round.
        round: Round,
        /// The bound that passed.
        after: Span,
        /// Whose data or decision is missing.
        waiting_for: Vec<NodeId>,
    },
    /// A contribution was made while the previous round was still open.
    #[error("{0} is still open: wait for it before contributing again")]
    RoundStillOpen(Round),
}

impl RoundError {
    pub(super) fn refused(round: Round, reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::TermsDiffer { one, one_terms, other, other_terms } => {
                Self::TermsDiffer { round, one, one_terms, other, other_terms }
            }
            RefusalReason::MomentumLost { .. } => Self::RoundStillOpen(round),
            RefusalReason::MemberLost { node } => Self::MemberLost { round, node },
            RefusalReason::StreamBroken { node } => Self::StreamBroken { round, node },
        }
    }
}
