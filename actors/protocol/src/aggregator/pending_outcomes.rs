//! Decided outcomes that the workers have not taken yet, in order.

use super::events::{Request, Task};
use crate::coordinator::Outcome;
use std::collections::VecDeque;
use std::sync::Arc;

/// Means of gradients that wait for a node's workers; each is a model in memory. A node that misses
/// more joins again.
pub const MEANS_UNTAKEN_MAX: usize = 4;

/// Outcomes that nobody took: parameters only as the first, because they replace all that was
/// before them; then means of gradients, each with whether it leaves this node out.
#[derive(Clone, Debug, Default)]
pub struct Untaken {
    outcomes: VecDeque<(Arc<Outcome>, bool)>,
}

/// What workers that arrive have to take first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Nothing,
    /// The first outcome.
    Take,
    /// Parameters, but they ask for a mean of gradients.
    Parameters,
    /// A mean of gradients of a step that they are not at: they lack what was before it.
    Behind,
}

impl Untaken {
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// The parameters that wait, if any do.
    pub fn parameters(&self) -> Option<&Outcome> {
        self.outcomes
            .front()
            .map(|(outcome, _)| &**outcome)
            .filter(|outcome| outcome.spec.carries_parameters())
    }

    /// Notes a decided outcome; `false` if it is one mean too many.
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

    /// What workers with this request take first. Means of steps that they have behind them,
    /// because their exchange failed, go.
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

    /// Takes the first outcome, if it is what an exchange of this request ends with: parameters, or
    /// the mean that was asked for.
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
