//! What the aggregator is told.

use crate::buffers::{Assembled, Frozen};
use crate::error::ExchangeError;
use crate::worker::{Basis, Exchanged};
use slowmo_protocol::aggregator::Request;
use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::Step;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::view::Member;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Messages to the aggregator.
pub enum AggregatorMessage {
    /// A worker arrived at an exchange.
    Arrive(Arrival),
    /// A round was decided.
    RoundDecided {
        /// What.
        outcome: Outcome,
        /// The members of the view that the round began with, ascending.
        members: Arc<[Member]>,
        /// What it brought.
        values: Assembled,
        /// A member's buffers of the base optimizer, where the outcome admits this node and joiners get a copy.
        donated: Option<Assembled>,
        /// The outcome leaves this node out.
        drained: bool,
    },
    /// The gossip is complete.
    GossipDone {
        /// The inner step that it belongs to.
        step: Step,
        /// The push-sum weight of the values.
        weight: f64,
        /// Nodes whose values were mixed, this one included.
        contributors: usize,
        /// The inner step that follows.
        next_step: Step,
        /// The new numerators, or what is added to a part of the model to get them.
        values: Assembled,
        /// That part, if it is the latter.
        correction: Option<f32>,
    },
    /// What was in flight is in the contribution.
    Settled {
        /// The inner step that it belongs to.
        step: Step,
        /// The contribution's push-sum weight.
        weight: f64,
        /// The contribution.
        frozen: Frozen,
    },
    /// The node's own slow step is done.
    WholeStepDone(Box<super::WholeState>, Assembled),
    /// The exchange failed.
    Failed(ExchangeError),
    /// The others went on without this node, which wanted to leave.
    Drained,
    /// A deadline passed.
    Tick,
    /// A worker leaves in order.
    Leave {
        /// Which one.
        worker: usize,
        /// Answered when the node may go.
        reply: oneshot::Sender<()>,
    },
    /// The node may go.
    Left,
    /// A worker is gone without leaving.
    Gone {
        /// Which one.
        worker: usize,
        /// What the others are told.
        error: ExchangeError,
    },
}

/// A worker at an exchange.
pub struct Arrival {
    /// Its index on the node.
    pub worker: usize,
    /// What it asks for.
    pub request: Request,
    /// What the node trains.
    pub model: ModelSize,
    /// The node's contribution, from worker 0.
    pub frozen: Option<Frozen>,
    /// The base optimizer's buffers, for whoever joins and for a checkpoint, from worker 0.
    pub donation: Option<Frozen>,
    /// The slow momentum of the whole model that the founding goes on from, from worker 0.
    pub momentum: Option<Frozen>,
    /// Which samples were left when the round began, from worker 0.
    pub samples: Option<Progress>,
    /// What it was made from, where that is recorded.
    pub basis: Basis,
    /// Where the result goes.
    pub reply: oneshot::Sender<Result<Exchanged, ExchangeError>>,
}
