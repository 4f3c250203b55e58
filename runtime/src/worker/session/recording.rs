//! Passes a worker's reports of its training to the recorder, and says what a node needs.

use super::buffers::Sizes;
use super::{Follower, Session};
use crate::error::WorkerError;
use crate::memory::{Budget, Facts};
use slowmo_actors::data::Basis;
use slowmo_actors::ports::device::Written;
use slowmo_protocol::ident::GroupId;

impl Session {
    /// Records the loss of the current inner step.
    pub fn report_loss(&self, loss: f64) {
        self.node.report_loss(self.step, loss);
    }

    /// Records a measure of the current inner step.
    pub fn report(&self, name: &str, value: f64) -> Result<(), WorkerError> {
        let refused = || WorkerError::NoSuchMeasure {
            name: name.to_owned(),
        };
        self.node
            .report(self.step, name, value)
            .then_some(())
            .ok_or_else(refused)
    }

    /// Says how much memory the node takes at most beside the program's own tensors, of which the
    /// optimizer's state has `optimizer` values.
    pub(super) fn tell_memory(&self, sizes: Sizes, optimizer: usize, nodes: usize) {
        if self.index != 0 {
            return;
        }
        let settings = self.node.settings();
        let budget = Budget::of(&Facts {
            parameters: sizes.parameters,
            halves: self.written.as_ref().map_or(0, Written::elements),
            model_buffers: sizes.model,
            optimizer,
            nodes,
            workers: settings.workers,
            replicas: settings.replicas,
            grouped: settings.group != GroupId::default(),
            algorithm: &settings.algorithm,
            joiner_buffers: settings.joiner_buffers,
            checkpoints: self.node.checkpoints().writes() && settings.checkpoint_every > 0,
        });
        tracing::info!(
            bytes = budget.bytes(),
            nodes,
            "beside the program's own tensors this node takes at most about {budget}; \
             docs/memory.md says what changes it"
        );
    }

    /// The inputs of this worker's part of a contribution, if they are recorded.
    pub(super) fn basis(&self) -> Basis {
        if !self.node.is_recorded() {
            return Basis::default();
        }
        let samples = self
            .sampler
            .as_ref()
            .map(Follower::handed_out)
            .unwrap_or_default();
        Basis {
            after: self.after,
            samples,
        }
    }
}
