//! Why a founding view did not form. Nothing was trained or changed.

use crate::ident::{NodeId, Nodes};
use crate::model::ModelSize;
use crate::time::Span;
use crate::view::ViewError;
use crate::wire::JoinRefusal;
use std::net::SocketAddr;

/// Why a founding view did not form; parameters are unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BootstrapError {
    /// A peer's address did not answer, or not as it should.
    #[error("no connection to {address} after {} ms: {error}", tried_for.as_millis())]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Span,
        /// The last attempt's error.
        error: String,
    },
    /// Fewer nodes than `min_nodes` appeared.
    #[error("only {} of min_nodes = {needed} nodes appeared within {} ms: {}; start the others, check peers, rendezvous or discover, or lower min_nodes{}", present.len(), waited.as_millis(), Nodes(present), last_failure(unreachable.as_deref()))]
    TooFew {
        /// `min_nodes`.
        needed: usize,
        /// Who is there, this node included.
        present: Vec<NodeId>,
        /// How long they were waited for.
        waited: Span,
        /// The last address that was tried in vain, and why, for a person.
        unreachable: Option<String>,
    },
    /// Connected nodes did not call `synchronize`.
    #[error("{} did not call synchronize within {} ms; see their logs", Nodes(waiting_for), waited.as_millis())]
    NotSynchronized {
        /// Who.
        waiting_for: Vec<NodeId>,
        /// How long they were waited for.
        waited: Span,
    },
    /// The process that bootstraps the run did not.
    #[error("no run was founded within {} ms: {why}; see its log, or set bootstrap = yes on one node", waited.as_millis())]
    NotBootstrapped {
        /// How long it was waited for.
        waited: Span,
        /// Who was waited for, for a person.
        why: String,
    },
    /// Two nodes were started with different settings.
    #[error(
        "{ours} and {theirs} were started with different settings ({differences}); give all nodes the same configuration"
    )]
    SettingsDiffer {
        /// This node.
        ours: NodeId,
        /// The other.
        theirs: NodeId,
        /// Each difference with both values.
        differences: String,
    },
    /// Two nodes train models of different sizes.
    #[error("{ours} brought {our_model}, {theirs} {their_model}; all nodes train the same model")]
    ModelsDiffer {
        /// This node.
        ours: NodeId,
        /// What it trains.
        our_model: ModelSize,
        /// The other.
        theirs: NodeId,
        /// What the other trains.
        their_model: ModelSize,
    },
    /// A running cluster does not admit this node.
    #[error("{by} of the running cluster refused this node: {reason}")]
    Refused {
        /// Who said so.
        by: NodeId,
        /// Why, and what to do.
        reason: JoinRefusal,
    },
    /// No running cluster admitted this node in time.
    #[error("not admitted to a running cluster within {} ms: {missing}{}", waited.as_millis(), met_nodes(met))]
    NotAdmitted {
        /// Whom this node can send to.
        met: Vec<NodeId>,
        /// How long it waited.
        waited: Span,
        /// What was missing, for a person.
        missing: String,
    },
    /// The nodes that met do not make a view.
    #[error(transparent)]
    NoView(#[from] ViewError),
}

pub(super) fn last_failure(unreachable: Option<&str>) -> String {
    unreachable
        .map(|told| format!(" (last tried in vain: {told})"))
        .unwrap_or_default()
}

fn met_nodes(met: &[NodeId]) -> String {
    if met.is_empty() {
        String::new()
    } else {
        format!(" (met {})", Nodes(met))
    }
}
