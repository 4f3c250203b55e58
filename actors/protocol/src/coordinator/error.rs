//! Errors that end a round without an outcome. Parameters, anchor and momentum keep their values
//! from before the round.

use crate::ident::{NodeId, Nodes, Round};
use crate::printable::printable;
use crate::time::Span;
use crate::wire::RefusalReason;

/// Reason why a round ended without an outcome; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RoundError {
    /// Two nodes expect different rounds.
    #[error(
        "{round} was abandoned: {one} expects a {}, {other} a {}; run the same training script \
         with the same schedule on all nodes",
        printable(one_spec),
        printable(other_spec)
    )]
    SpecsDiffer {
        /// The round.
        round: Round,
        /// The first node.
        one: NodeId,
        /// The spec that `one` expects.
        one_spec: String,
        /// The second node.
        other: NodeId,
        /// The spec that `other` expects.
        other_spec: String,
    },
    /// All holders of some shards were lost between two rounds, and `on_momentum_loss` is `stop`.
    #[error(
        "{round} was abandoned: all holders of {shards} shards are lost, and with them their slow \
         momentum; restart from a checkpoint, or run with on_momentum_loss = reset or more replicas"
    )]
    MomentumLost {
        /// The round.
        round: Round,
        /// Number of lost shards.
        shards: u32,
    },
    /// The contributions are finite, and their average or its slow step is not.
    #[error(
        "{round} was abandoned: the average of value {element}, or its slow step, overflows \
         float32 on {node}, though all contributions are finite: the training diverges; lower the \
         learning rates, or restart from a checkpoint"
    )]
    Overflowed {
        /// The round.
        round: Round,
        /// The owner of the value.
        node: NodeId,
        /// Index among the values of the model.
        element: u64,
    },
    /// Two nodes hold different values that this node signed in one attempt.
    #[error(
        "{round} was abandoned here: nodes hold different values that this node signed; its memory \
         or network may be broken, or another process has its key: restart it on another machine"
    )]
    Equivocated {
        /// The round.
        round: Round,
    },
    /// This node applied an entry, and the leader had another one voted for elsewhere.
    #[error(
        "{round} was decided differently on other nodes: {leader} led it and signed two entries; \
         this node trains no second model: it kept what it has, stops, and goes on as a joiner if \
         it is restarted; keep {leader} away"
    )]
    TwoEntries {
        /// The round.
        round: Round,
        /// Its leader, which lied.
        leader: NodeId,
    },
    /// The round took longer than allowed.
    #[error(
        "{round} timed out after {} s, waiting for {}; see those nodes' logs, or raise \
         round_timeout_ms",
        after.as_millis() / 1000,
        Nodes(waiting_for)
    )]
    TimedOut {
        /// The round.
        round: Round,
        /// The time limit that passed.
        after: Span,
        /// Nodes whose data or decision is missing.
        waiting_for: Vec<NodeId>,
    },
    /// The voters without which there is no quorum left in order while this node still waited: the
    /// training is over. Its parameters are those of its own steps since the round before.
    #[error(
        "{round} will never be decided: {} left in order, and those that stay are no quorum, so \
         the training is over; this node's parameters are those of its own steps since the last \
         round; take the model of one of them, or start again from a checkpoint (to go on with \
         fewer nodes, drain them before they leave)",
        Nodes(left)
    )]
    Over {
        /// The round that this node waited for.
        round: Round,
        /// The voters that left.
        left: Vec<NodeId>,
    },
    /// A contribution was made while the previous round was still open.
    #[error("{0} is still open: wait for it before contributing again")]
    RoundStillOpen(Round),
}

impl RoundError {
    pub(super) fn refused(round: Round, reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::SpecsDiffer {
                one,
                one_spec,
                other,
                other_spec,
            } => Self::SpecsDiffer {
                round,
                one,
                one_spec,
                other,
                other_spec,
            },
            RefusalReason::MomentumLost { shards } => Self::MomentumLost { round, shards },
            RefusalReason::Overflowed { node, element } => Self::Overflowed {
                round,
                node,
                element,
            },
        }
    }
}

/// Reason why a history must not continue without a quorum; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecoveryError {
    /// The node is not a member of any history.
    #[error(
        "this node is not a member: it waits to be admitted to another history; ask a member of \
         that history"
    )]
    NoMember,
    /// There is no decided entry to continue from.
    #[error("this node has no decided round to continue from; start the nodes again")]
    NothingDecided,
    /// A quorum of the voters lives, so rounds continue without an order.
    #[error(
        "a quorum of the voters is alive, so rounds continue without an order; status says what \
         they wait for"
    )]
    QuorumLives,
    /// The history has forked too often to be compared with others.
    #[error("this history has reached the limit of forks; restart from a checkpoint")]
    ForkedTooOften,
}
