//! The learning rate that an outer round divides by. Schedules may end at exactly 0, or touch it:
//! then the last rate above 0 stands in. It is the same on all nodes, as the schedule is: a node
//! that joins or catches up takes it over with the round.

use super::Session;
use crate::error::StepError;
use slowmo_protocol::schedule::Due;

/// The last usable learning rate of a worker.
#[derive(Debug, Default)]
pub(super) struct LastRate {
    last: Option<f32>,
    /// Whether the stand-in was shown; it is shown once.
    shown: bool,
}

impl LastRate {
    /// Records the rate of a step or of a decided round, if it is usable.
    pub fn given(&mut self, rate: f32) {
        if is_usable(rate) {
            self.last = Some(rate);
        }
    }
}

impl Session {
    /// `γ` if the slow step uses it, checked before anything is sent; otherwise 0.
    pub(super) fn gamma(&mut self, due: Due, learning_rate: f32) -> Result<f32, StepError> {
        let uses = self
            .node
            .settings()
            .algorithm
            .outer
            .is_some_and(|outer| outer.optimizer.needs_gamma());
        let step = self.step.0;
        if !(due.takes_slow_step() && uses) {
            return Ok(0.0);
        }
        if is_usable(learning_rate) {
            return Ok(learning_rate);
        }
        if learning_rate != 0.0 {
            return Err(StepError::LearningRate {
                step,
                learning_rate,
            });
        }
        let last = self.rate.last.ok_or(StepError::NoLearningRate { step })?;
        if self.index == 0 && !std::mem::replace(&mut self.rate.shown, true) {
            self.node.warn(format!(
                "step {step}: the learning rate is 0, and an outer round divides by it: the last \
                 one above 0, {last:e}, stands in here and at later rounds"
            ));
        }
        Ok(last)
    }
}

/// Whether an outer round can divide by this rate.
fn is_usable(rate: f32) -> bool {
    rate.is_finite() && rate > 0.0
}
