//! Synchronizes the workers of a node before and within a collective operation. Uses threads and
//! locks only.

use crate::ports::device::{CollectiveError, TensorError};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A barrier at which every worker reports how many values it brought; all leave with the same
/// answer. The wait ends when all workers have arrived or one is gone. The owner of the workers
/// must guarantee that one of the two happens.
#[derive(Debug)]
pub struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Reports of the workers that wait, by rank; `None`: not there yet.
    brought: Vec<Option<Result<usize, TensorError>>>,
    /// How often all workers have passed.
    passed: u64,
    /// Result of the last passage. It cannot be overwritten before every worker has read it,
    /// because the next passage needs every worker.
    verdict: Result<usize, CollectiveError>,
    /// The first worker found to be gone; never reset.
    gone: Option<usize>,
}

impl Barrier {
    /// A barrier of `size` workers.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let state = State {
            brought: vec![None; size],
            passed: 0,
            verdict: Ok(0),
            gone: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits for all workers. Returns the common length, or the error that all of them get.
    ///
    /// # Errors
    /// The length differs from that of the other workers, one of them could not read its tensors,
    /// or a worker is gone.
    pub fn meet(
        &self,
        rank: usize,
        brought: Result<usize, TensorError>,
    ) -> Result<usize, CollectiveError> {
        let mut state = self.lock();
        let this = state.passed;
        state.brought[rank] = Some(brought);
        if let Some(verdict) = state.verdict_of_all() {
            state.verdict = verdict;
            state.passed += 1;
            state.brought.fill(None);
            self.changed.notify_all();
        }
        let waiting = |state: &mut State| state.passed == this && state.gone.is_none();
        self.changed.wait_while(&mut state, waiting);
        // A passage before the abort stays valid, on all workers alike.
        if state.passed == this {
            state
                .gone
                .map_or(Ok(0), |gone| Err(CollectiveError::WorkerGone(gone)))
        } else {
            state.verdict.clone()
        }
    }

    /// Ends the wait and all later ones for every worker: worker `rank` is gone.
    pub fn abort(&self, rank: usize) {
        self.lock().gone.get_or_insert(rank);
        self.changed.notify_all();
    }

    /// The error of every later call, if a worker is gone.
    #[must_use]
    pub fn gone(&self) -> Option<CollectiveError> {
        self.lock().gone.map(CollectiveError::WorkerGone)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Result of this passage, once every worker has arrived and none is gone.
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
