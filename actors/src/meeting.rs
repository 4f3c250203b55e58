//! Where the workers of a node meet before and within a collective operation. Threads and locks
//! only.

use crate::ports::device::{CollectiveError, TensorError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A barrier at which every worker says how many values it brought, and all leave with the same
/// answer. The wait ends when all came or one is gone; whoever owns the workers promises one of the
/// two.
#[derive(Debug)]
pub struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// What the workers of the current meeting said, by rank; `None`: not there yet.
    brought: Vec<Option<Result<usize, TensorError>>>,
    /// Meetings that ended.
    meetings: u64,
    /// How the last one ended. It cannot be overwritten before everybody read it: the next one
    /// needs everybody.
    verdict: Result<usize, CollectiveError>,
    /// The first worker found gone; final.
    gone: Option<usize>,
}

impl Meeting {
    /// A barrier of so many workers.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let state = State {
            brought: vec![None; size],
            meetings: 0,
            verdict: Ok(0),
            gone: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits for all workers; the common length, or the error that all of them get.
    ///
    /// # Errors
    /// Another length than the other workers, what one of them could not read, or a worker that is
    /// gone.
    pub fn meet(
        &self,
        rank: usize,
        brought: Result<usize, TensorError>,
    ) -> Result<usize, CollectiveError> {
        let mut state = self.lock();
        let this = state.meetings;
        state.brought[rank] = Some(brought);
        if let Some(verdict) = state.verdict_of_all() {
            state.verdict = verdict;
            state.meetings += 1;
            state.brought.fill(None);
            self.changed.notify_all();
        }
        let waiting = |state: &mut State| state.meetings == this && state.gone.is_none();
        let state = self
            .changed
            .wait_while(state, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        // A meeting that ended before the abort stays valid, on all workers alike.
        if state.meetings == this {
            state
                .gone
                .map_or(Ok(0), |gone| Err(CollectiveError::WorkerGone(gone)))
        } else {
            state.verdict.clone()
        }
    }

    /// Ends this meeting, and all later ones, for everybody: a worker is gone.
    pub fn abort(&self, rank: usize) {
        self.lock().gone.get_or_insert(rank);
        self.changed.notify_all();
    }

    /// The error of later meetings, once a worker is gone.
    #[must_use]
    pub fn gone(&self) -> Option<CollectiveError> {
        self.lock().gone.map(CollectiveError::WorkerGone)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How this meeting ends, once everybody is there and nobody is gone.
    fn verdict_of_all(&self) -> Option<Result<usize, CollectiveError>> {
        if self.gone.is_some() {
            return None;
        }
        let brought: Option<Vec<_>> = self.brought.iter().cloned().collect();
        let lengths: Result<Vec<usize>, TensorError> = brought?.into_iter().collect();
        Some(lengths.map_err(CollectiveError::from).and_then(|lengths| {
            let expected = lengths[0];
            match lengths
                .iter()
                .enumerate()
                .find(|(_, found)| **found != expected)
            {
                Some((rank, &found)) => Err(CollectiveError::Length {
                    rank,
                    found,
                    expected,
                }),
                None => Ok(expected),
            }
        }))
    }
}
