//! The elastic sampler's side of a worker.

use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::view::Member;
use std::sync::{Arc, Mutex, PoisonError};

/// The progress of the samples, shared between a sampler and its worker.
#[derive(Clone, Debug, Default)]
pub struct SharedProgress(Arc<Mutex<Option<Progress>>>);

impl SharedProgress {
    /// What travels with a contribution.
    #[must_use]
    pub fn now(&self) -> Option<Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A round was decided.
    pub fn decided(&self, _outcome: &Outcome, _before: &[Member], _after: &[Member]) {}
}
