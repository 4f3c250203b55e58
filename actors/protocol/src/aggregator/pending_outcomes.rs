//! Pending outcomes: decided, in order, and not yet taken by the workers.

use super::events::{Request, Task};
use crate::coordinator::Outcome;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of gradient means pending for a node's workers; each occupies as much memory as a
/// model. A node that misses more must rejoin.
pub const MEANS_UNTAKEN_MAX: usize = 4;

/// Pending outcomes. Parameters are only ever the first entry, because they replace everything
/// before them; means of gradients follow. Each has a flag: whether it leaves this node out.
#[derive(Clone, Debug, Default)]
pub struct PendingOutcomes {
    outcomes: VecDeque<(Arc<Outcome>, bool)>,
}

/// The pending outcome that arriving workers must take first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// None is pending.
    Nothing,
    /// The first outcome.
    Take,
    /// Parameters are pending, but the workers ask for a mean of gradients.
    Parameters,
    /// A mean of gradients of another step than theirs is pending: they lack what came before it.
    Behind,
}

impl PendingOutcomes {
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// The pending parameters, if any.
    pub fn parameters(&self) -> Option<&Outcome> {
        self.outcomes
            .front()
            .map(|(outcome, _)| &**outcome)
            .filter(|outcome| outcome.spec.carries_parameters())
    }

    /// Adds a decided outcome; `false` if that exceeds [`MEANS_UNTAKEN_MAX`].
    #[must_use]
    pub fn add(&mut self, outcome: Arc<Outcome>, drained: bool) -> bool {
        if outcome.spec.carries_parameters() {
            self.outcomes.clear();
        }
        let means = self.outcomes.len() - usize::from(self.parameters().is_some());
        let fits = outcome.spec.carries_parameters() || means < MEANS_UNTAKEN_MAX;
        if fits {
            self.outcomes.push_back((outcome, drained));
        }
        fits
    }

    /// The pending outcome that workers with this request take first. Drops means of steps that
    /// they have passed because their exchange failed.
    pub fn next_for(&mut self, request: &Request) -> Next {
        if self.parameters().is_some() {
            return if request.task == Task::Gradients {
                Next::Parameters
            } else {
                Next::Take
            };
        }
        let passed = |outcome: &Outcome| {
            outcome.spec.step < request.step
                || (request.task != Task::Gradients && outcome.spec.step == request.step)
        };
        while self
            .outcomes
            .front()
            .is_some_and(|(outcome, _)| passed(outcome))
        {
            self.outcomes.pop_front();
        }
        match self.outcomes.front() {
            None => Next::Nothing,
            Some((outcome, _)) if request.is_answered_by(outcome.spec) => Next::Take,
            Some(_) => Next::Behind,
        }
    }

    /// Takes the first outcome if it ends an exchange of this request: parameters, or the requested
    /// mean.
    pub fn take_for(&mut self, request: &Request) -> Option<(Arc<Outcome>, bool)> {
        let (outcome, _) = self.outcomes.front()?;
        let ends = outcome.spec.carries_parameters() || request.is_answered_by(outcome.spec);
        if ends {
            self.outcomes.pop_front()
        } else {
            None
        }
    }
}
