//! Results of an exchange, as a training thread's handle receives them.

use crate::buffers::ChunkedBuffer;
use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::Step;
use slowmo_protocol::view::Member;
use std::sync::Arc;

/// The result of an exchange, shared by the workers of a node.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// The new numerators `x`; the model is `x / weight`.
    pub values: Arc<ChunkedBuffer>,
    /// If set, `values` is instead a correction: added to this fraction of the model, it gives the
    /// numerators. Worker 0 answers with the model as it was before
    /// ([`slowmo_protocol::node::ToGossip::Moved`]).
    pub correction: Option<f32>,
    /// A member's buffers of the base optimizer, if this node joined and joiners get a copy.
    pub donated: Option<Arc<ChunkedBuffer>>,
    /// The node's push-sum weight.
    pub weight: f64,
    /// The decided round, if the exchange decided one.
    pub outcome: Option<Arc<Outcome>>,
    /// Number of nodes whose values were averaged, including this one.
    pub contributors: usize,
    /// The current members of the view, ascending.
    pub members: Arc<[Member]>,
    /// The members of the view in which the round began, ascending.
    pub members_before: Arc<[Member]>,
    /// The inner step that follows.
    pub next_step: Step,
    /// Whether the node has left the view: it has handed over its state and may end.
    pub drained: bool,
}
