//! The exact mean over the workers of a node in shared memory. Touches memory and locks only.
//!
//! Every worker copies its values into its own slot and waits for the others; then each worker sums
//! one part of all slots in ascending rank (reduce-scatter); after a second barrier each worker
//! copies all parts back (all-gather). So every value is summed once, in one order, and all workers
//! get the same bits. Memory: one more copy of the values for each worker, and one for the sums. A
//! worker moves `5 + 1/g` times its values through memory.

use parking_lot::RwLock;
use slowmo_actors::barrier::Barrier;
use slowmo_actors::ports::device::{Collective, CollectiveError, TensorError, Tensors};
use std::ops::Range;

/// Values summed at a time: the block stays in the first-level cache while all ranks are added to
/// it.
const BLOCK_ELEMENTS: usize = 2048;

/// The collective of workers that are threads of one process.
#[derive(Debug)]
pub struct SharedMemory {
    /// Each worker's values, by rank.
    slots: Vec<RwLock<Vec<f32>>>,
    /// The mean's parts; each is written by the worker of its rank.
    parts: Vec<RwLock<Vec<f32>>>,
    barrier: Barrier,
}

impl SharedMemory {
    /// Creates a collective of `size` workers, at least one. Memory is allocated at the first call
    /// and kept.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let empty = || (0..size.max(1)).map(|_| RwLock::default()).collect();
        Self {
            slots: empty(),
            parts: empty(),
            barrier: Barrier::new(size.max(1)),
        }
    }

    fn mean_of_many(&self, rank: usize, values: &mut dyn Tensors) -> Result<(), CollectiveError> {
        let brought = self.bring(rank, values);
        let length = self.barrier.meet(rank, brought)?;
        self.reduce(rank, length);
        self.barrier.meet(rank, Ok(length))?;
        self.collect(values)
    }

    /// Copies a worker's values into its slot.
    fn bring(&self, rank: usize, values: &dyn Tensors) -> Result<usize, TensorError> {
        let mut slot = self.slots[rank].write();
        slot.clear();
        values.lend(&mut |_, tensor| {
            let start = slot.len();
            slot.resize(start + tensor.len(), 0.0);
            tensor.widen(&mut slot[start..]);
        })?;
        Ok(slot.len())
    }

    /// Sums this worker's part over all slots, in ascending rank, and divides it by their number.
    fn reduce(&self, rank: usize, length: usize) {
        let size = self.slots.len();
        let range = part(length, rank, size);
        let slots: Vec<_> = self.slots.iter().map(|slot| slot.read()).collect();
        let mut sums = self.parts[rank].write();
        sums.resize(range.len(), 0.0);
        for (index, sums) in sums.chunks_mut(BLOCK_ELEMENTS).enumerate() {
            let start = range.start + index * BLOCK_ELEMENTS;
            let block = start..start + sums.len();
            sums.copy_from_slice(&slots[0][block.clone()]);
            for slot in &slots[1..] {
                add(sums, &slot[block.clone()]);
            }
            sums.iter_mut().for_each(|sum| *sum /= size as f32);
        }
    }

    /// Copies all parts of the mean into a worker's tensors, rounded to their own types.
    fn collect(&self, values: &mut dyn Tensors) -> Result<(), CollectiveError> {
        let parts: Vec<_> = self.parts.iter().map(|part| part.read()).collect();
        let mut parts = parts.iter().map(|part| part.as_slice());
        let mut rest: &[f32] = &[];
        values.lend_mut(&mut |_, tensor| {
            tensor.replace(|_, mut tensor| {
                while !tensor.is_empty() {
                    if rest.is_empty() {
                        let Some(next) = parts.next() else { return };
                        rest = next;
                    }
                    let count = rest.len().min(tensor.len());
                    let (here, after) = std::mem::take(&mut tensor).split_at_mut(count);
                    here.copy_from_slice(&rest[..count]);
                    tensor = after;
                    rest = &rest[count..];
                }
            });
        })?;
        Ok(())
    }
}

impl Collective for SharedMemory {
    fn size(&self) -> usize {
        self.slots.len()
    }

    /// A tensor that cannot be read fails the call on every worker; one that cannot be written
    /// fails on its own worker only, with the tensors before it already replaced. A worker that
    /// panics inside counts as gone.
    fn mean(&self, rank: usize, values: &mut dyn Tensors) -> Result<(), CollectiveError> {
        let size = self.size();
        if rank >= size {
            return Err(CollectiveError::NoSuchWorker { rank, size });
        }
        if size == 1 {
            return self.barrier.gone().map_or(Ok(()), Err);
        }
        let _guard = AbortOnPanic {
            collective: self,
            rank,
        };
        self.mean_of_many(rank, values)
    }

    fn abort(&self, rank: usize) {
        self.barrier.abort(rank);
    }
}

/// The range of values that worker `rank` of `size` sums.
fn part(length: usize, rank: usize, size: usize) -> Range<usize> {
    let bound = |rank: usize| rank * (length / size) + rank.min(length % size);
    bound(rank)..bound(rank + 1)
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut()
        .zip(values)
        .for_each(|(sum, value)| *sum += value);
}

/// Releases the other workers when this one's tensors panic.
struct AbortOnPanic<'a> {
    collective: &'a SharedMemory,
    rank: usize,
}

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.collective.abort(self.rank);
        }
    }
}

#[cfg(test)]
mod tests;
