//! What a training thread's handle asks its worker for.

use crate::buffers::{ChunkedBuffer, Frozen};
use crate::error::ExchangeError;
use slowmo_protocol::aggregator::Request;
use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::Step;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::trace::Place;
use slowmo_protocol::view::Member;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Messages to a worker.
pub enum WorkerMessage {
    /// Take part in an exchange.
    Exchange(Box<ExchangeRequest>),
    /// The training thread has mixed a gossip's correction into its model, or could not.
    Mixed {
        /// The inner step.
        step: Step,
        /// The model as its inner step left it; nothing where it could not be mixed.
        before: ChunkedBuffer,
        /// Nothing must be sent: not all numerators are finite, or there are none.
        withheld: bool,
    },
    /// Leave in order.
    Leave {
        /// Answered when the node may go.
        reply: oneshot::Sender<()>,
    },
    /// The handle was dropped without leaving.
    Gone,
}

/// One exchange as a training thread asks for it.
pub struct ExchangeRequest {
    /// What is asked for.
    pub request: Request,
    /// What the node trains; the contribution's parameters come first, averaged buffers follow
    /// them.
    pub model: ModelSize,
    /// The frozen contribution; brought by worker 0 only, whose values stand for the node.
    /// Overlapped gossip needs none.
    pub frozen: Option<Frozen>,
    /// The base optimizer's buffers, for whoever joins with the round and for a checkpoint; brought
    /// by worker 0 only.
    pub optimizer_transfer: Option<Frozen>,
    /// The slow momentum of the whole model that a founding goes on from (`sharded = false`);
    /// brought by worker 0 only.
    pub momentum: Option<Frozen>,
    /// Which samples were left when the round began; brought by worker 0 only.
    pub samples: Option<Progress>,
    /// What it was made from, where that is recorded.
    pub basis: Basis,
    /// Where the result goes.
    pub reply: oneshot::Sender<Result<Exchanged, ExchangeError>>,
}

/// What a contribution was made from; empty where nothing is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The last decided outcome whose parameters the training thread took.
    pub after: Option<Place>,
    /// Positions of the sample stream that it asked for since, `from` and `to` (exclusive).
    pub samples: Vec<(u64, u64)>,
}

impl Basis {
    /// Together with what another worker of the node did; worker 0's values stand for the node.
    pub fn merge(&mut self, worker: usize, other: Self) {
        if worker == 0 {
            self.after = other.after;
        }
        self.samples.extend(other.samples);
        self.samples.sort_unstable();
    }
}

/// The result of an exchange, shared by the workers of a node.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// The new numerators `x`; the model is `x / weight`.
    pub values: Arc<ChunkedBuffer>,
    /// The values are instead what is added to this part of the model to get the numerators; worker
    /// 0 answers with the model as it was ([`WorkerMessage::Mixed`]).
    pub correction: Option<f32>,
    /// A member's buffers of the base optimizer, if this node joined and joiners get a copy.
    pub donated: Option<Arc<ChunkedBuffer>>,
    /// The node's push-sum weight.
    pub weight: f64,
    /// The decided round, if one was.
    pub outcome: Option<Arc<Outcome>>,
    /// Nodes that were averaged with, this one included.
    pub contributors: usize,
    /// The members of the view now, ascending.
    pub members: Arc<[Member]>,
    /// The members of the view that the round began with, ascending.
    pub members_before: Arc<[Member]>,
    /// The inner step that follows.
    pub next_step: Step,
    /// The node has left the view: it has handed over and may end.
    pub drained: bool,
}
