//! The worker actor: one per device. Forwards requests of the training thread's handle to the
//! node's aggregator, so that at most one exchange per worker is in progress.

use crate::context::NodeContext;
use crate::error::ExchangeError;
use crate::messages::{AggregatorMessage, Arrival, ExchangeRequest, WorkerMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use slowmo_protocol::node::{Arrive, ToGossip};
use std::sync::Arc;

/// Actor shell of one worker.
pub struct WorkerActor;

/// A worker's index and its node.
pub struct WorkerState {
    index: usize,
    context: Arc<NodeContext>,
}

impl Actor for WorkerActor {
    type Msg = WorkerMessage;
    type State = WorkerState;
    type Arguments = (usize, Arc<NodeContext>);

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        (index, context): Self::Arguments,
    ) -> Result<WorkerState, ActorProcessingErr> {
        Ok(WorkerState { index, context })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: WorkerMessage,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        let WorkerState {
            index: worker,
            context,
        } = state;
        let message = match message {
            WorkerMessage::Exchange(asked) => {
                let ExchangeRequest {
                    request,
                    model,
                    frozen,
                    optimizer_transfer,
                    momentum,
                    samples,
                    basis,
                    reply,
                } = *asked;
                let arrive = Arrive {
                    worker: *worker,
                    request,
                    model,
                    frozen,
                    samples,
                };
                AggregatorMessage::Arrive(Arrival {
                    arrive,
                    optimizer_transfer,
                    momentum,
                    basis,
                    reply,
                })
            }
            WorkerMessage::Mixed {
                step,
                before,
                withheld,
            } => {
                context.actors.tell(ToGossip::Moved {
                    step,
                    before,
                    withheld,
                });
                return Ok(());
            }
            WorkerMessage::Leave { reply } => AggregatorMessage::Leave {
                worker: *worker,
                reply,
            },
            WorkerMessage::Gone => AggregatorMessage::Gone {
                worker: *worker,
                error: ExchangeError::WorkerLeft(*worker),
            },
        };
        context.actors.tell_aggregator(message);
        Ok(())
    }
}
