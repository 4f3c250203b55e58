//! Passes a worker's reports of its training to the recorder.

use super::{Follower, Session};
use crate::error::WorkerError;
use slowmo_actors::data::Basis;

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
