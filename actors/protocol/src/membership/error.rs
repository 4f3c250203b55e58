//! Reasons why a node did not get into a bootstrap view or a running cluster. Nothing was trained
//! or changed.

use crate::ident::{NodeId, Nodes, Round};
use crate::model::ModelSize;
use crate::time::Span;
use crate::view::ViewError;
use crate::wire::JoinRefusal;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// Why a node did not get into a bootstrap view or a running cluster; parameters are unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BootstrapError {
    /// A peer's address did not answer, or answered wrongly.
    #[error("no connection to {address} after {} ms: {error}", tried_for.as_millis())]
    Unreachable {
        /// The address that was dialed.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Span,
        /// The last attempt's error.
        error: String,
    },
    /// Fewer nodes than `min_nodes` appeared.
    #[error(
        "only {} of min_nodes = {needed} nodes appeared within {} ms: {}; start the others, check \
         peers, rendezvous or discover, or lower min_nodes{}",
        present.len(),
        waited.as_millis(),
        Nodes(present),
        in_brackets(obstacle.as_deref())
    )]
    TooFew {
        /// `min_nodes`.
        needed: usize,
        /// The nodes that are present, this node included.
        present: Vec<NodeId>,
        /// How long this node waited for the others.
        waited: Span,
        /// Description, for an operator, of who was refused, and of the last address that could not
        /// be reached, and why.
        obstacle: Option<String>,
    },
    /// Connected nodes did not call `synchronize`.
    #[error(
        "{} did not call synchronize within {} ms; see their logs",
        Nodes(waiting_for),
        waited.as_millis()
    )]
    NotSynchronized {
        /// The nodes that did not call it.
        waiting_for: Vec<NodeId>,
        /// How long this node waited for them.
        waited: Span,
    },
    /// The bootstrapper did not bootstrap the run.
    #[error(
        "no node bootstrapped a run within {} ms: {why}; see that node's log, or set bootstrap = \
         yes on one node",
        waited.as_millis()
    )]
    NotBootstrapped {
        /// How long this node waited for it.
        waited: Span,
        /// Description, for an operator, of what this node waited for.
        why: String,
    },
    /// Two nodes were started with different settings.
    #[error(
        "{ours} and {theirs} were started with different settings ({differences}); give all nodes \
         the same configuration"
    )]
    SettingsDiffer {
        /// This node.
        ours: NodeId,
        /// The other node.
        theirs: NodeId,
        /// Every difference, with both values.
        differences: String,
    },
    /// Two nodes train different models.
    #[error(
        "{ours} has {our_model}, {theirs} has {their_model}{}; all nodes must train the same model: \
         tensors of the same names and shapes in the same order (each node's log lists its own at \
         level debug)",
        our_model.told_difference(their_model)
    )]
    ModelsDiffer {
        /// This node.
        ours: NodeId,
        /// This node's model.
        our_model: Box<ModelSize>,
        /// The other node.
        theirs: NodeId,
        /// The other node's model.
        their_model: Box<ModelSize>,
    },
    /// A running cluster does not admit this node.
    #[error("{by} of the running cluster refused this node: {reason}")]
    Refused {
        /// The member that refused.
        by: NodeId,
        /// The reason, and what to do about it.
        reason: JoinRefusal,
    },
    /// No running cluster admitted this node in time.
    #[error(
        "not admitted to a running cluster within {} ms: {missing}{}",
        waited.as_millis(),
        met_nodes(met)
    )]
    NotAdmitted {
        /// The nodes that this node can send to.
        met: Vec<NodeId>,
        /// How long it waited.
        waited: Span,
        /// Description, for an operator, of what was missing.
        missing: String,
    },
    /// The training ended while this node was no member: it was left out of the last rounds, or
    /// came too late.
    #[error(
        "the training is over: {} left in order{}. {}. Take the model of one of them, or start \
         again from a checkpoint",
        Nodes(left),
        after_round(*last),
        own_parameters(*ours)
    )]
    Over {
        /// The nodes that left: members of the newest view that this node heard of.
        left: Vec<NodeId>,
        /// The last round that they decided, as far as this node heard. `None` if they decided
        /// none.
        last: Option<Round>,
        /// The last round that this node was a member in. Its parameters are those of its own steps
        /// since. `None` if it never was one.
        ours: Option<Round>,
    },
    /// The nodes that met do not make a view.
    #[error(transparent)]
    NoView(#[from] ViewError),
}

impl BootstrapError {
    /// If this node's model is the reason: the numbers of its tensors, counted from 1, among which
    /// is the first that differs from the others' models, as far as that is known.
    #[must_use]
    pub fn other_tensors(&self) -> Option<RangeInclusive<u32>> {
        let (one, other) = match self {
            Self::ModelsDiffer {
                our_model,
                their_model,
                ..
            } => (our_model, their_model),
            Self::Refused {
                reason: JoinRefusal::ModelsDiffer { cluster, joiner },
                ..
            } => (joiner, cluster),
            _ => return None,
        };
        one.tensors.first_difference(&other.tensors)
    }
}

pub(super) fn in_brackets(told: Option<&str>) -> String {
    told.map(|told| format!(" ({told})")).unwrap_or_default()
}

fn after_round(last: Option<Round>) -> String {
    last.map_or_else(String::new, |last| format!(" after {last}"))
}

fn own_parameters(ours: Option<Round>) -> String {
    match ours {
        Some(ours) => format!(
            "This node was a member until {ours}; its parameters are those of its own steps since"
        ),
        None => "This node was never a member; its parameters are its own".to_owned(),
    }
}

fn met_nodes(met: &[NodeId]) -> String {
    if met.is_empty() {
        String::new()
    } else {
        format!(" (met {})", Nodes(met))
    }
}
