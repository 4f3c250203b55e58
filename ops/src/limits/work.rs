//! The work of every implementation of an average beside moving bytes: it copies the model out
//! before, adds up what arrives of other models, and copies the result in afterwards.

use super::CHUNK_BYTES;
use anyhow::ensure;
use bytes::{Bytes, BytesMut};
use quinn::RecvStream;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a float32 value.
pub(super) const VALUE_BYTES: u64 = 4;

/// The amount of work, the same on each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes of the model.
    pub model_bytes: u64,
    /// Bytes from each other process that are added up; what follows them is the result.
    pub added_bytes_per_peer: u64,
}

/// The buffers of one process, which keeps them between repetitions.
pub(super) struct Buffers {
    model: Vec<u8>,
    shared: Arc<Shared>,
}

/// Buffers that the streams of a process use at the same time.
pub(super) struct Shared {
    /// Bytes of a stream that are added up, and those that follow.
    added: usize,
    result: usize,
    /// The copy of the model that is sent.
    copied: Bytes,
    /// The sums: stream `n` of each process adds to part `n`.
    sums: Vec<Mutex<Vec<f32>>>,
    /// The result, as far as each stream carries it.
    results: Vec<Mutex<Vec<u8>>>,
}

impl Buffers {
    /// Buffers of a process that gets `streams` of `bytes` each from each of `peers`; the first
    /// `added` of them are added up.
    pub(super) fn new(
        model_bytes: u64,
        added: u64,
        bytes: u64,
        peers: usize,
        streams: usize,
    ) -> Self {
        let added = added.min(bytes) as usize;
        let result = bytes as usize - added;
        let model_bytes = model_bytes.max(CHUNK_BYTES as u64) as usize;
        Self {
            model: vec![7; model_bytes],
            shared: Arc::new(Shared {
                added,
                result,
                copied: Bytes::from(vec![0; model_bytes]),
                sums: (0..streams)
                    .map(|_| Mutex::new(vec![0.0; added / size_of::<f32>()]))
                    .collect(),
                results: (0..peers * streams)
                    .map(|_| Mutex::new(vec![0; result]))
                    .collect(),
            }),
        }
    }

    /// Copies the model out, and returns what the streams need.
    ///
    /// # Errors
    /// Streams of the repetition before still run.
    pub(super) fn copy_out(&mut self) -> anyhow::Result<Arc<Shared>> {
        let shared = Arc::get_mut(&mut self.shared);
        ensure!(shared.is_some(), "streams of another repetition still run");
        if let Some(shared) = shared {
            let copied = std::mem::take(&mut shared.copied).try_into_mut();
            let mut copied = copied.unwrap_or_else(|_| BytesMut::zeroed(self.model.len()));
            copied.copy_from_slice(&self.model);
            shared.copied = copied.freeze();
        }
        Ok(Arc::clone(&self.shared))
    }

    /// Copies the result in.
    pub(super) fn copy_in(&mut self) {
        let mut rest = self.model.as_mut_slice();
        for result in &self.shared.results {
            let result = result.lock().unwrap_or_else(PoisonError::into_inner);
            let (part, after) = rest.split_at_mut(result.len().min(rest.len()));
            part.copy_from_slice(&result[..part.len()]);
            rest = after;
        }
        for sums in &self.shared.sums {
            let sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            let length = (sums.len() * size_of::<f32>()).min(rest.len());
            let (part, after) = rest.split_at_mut(length);
            for (value, sum) in part.chunks_exact_mut(size_of::<f32>()).zip(sums.iter()) {
                value.copy_from_slice(&sum.to_le_bytes());
            }
            rest = after;
        }
    }
}

impl Shared {
    /// A chunk to send after `position` bytes.
    pub(super) fn chunk(&self, position: u64, length: usize) -> Bytes {
        let places = (self.copied.len() - CHUNK_BYTES) as u64 + 1;
        let start = (position % places) as usize;
        self.copied.slice(start..start + length)
    }

    /// Receives all of a stream.
    pub(super) async fn receive(&self, mut stream: RecvStream, index: usize) -> anyhow::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES.min(self.added)];
        let mut position = 0;
        while position < self.added {
            let length = chunk.len().min(self.added - position);
            let part = &mut chunk[..length];
            stream.read_exact(part).await?;
            self.add(index, position / size_of::<f32>(), part);
            position += length;
        }
        let mut result = std::mem::take(&mut *self.result_of(index));
        result.resize(self.result, 0);
        for part in result.chunks_mut(CHUNK_BYTES) {
            stream.read_exact(part).await?;
        }
        *self.result_of(index) = result;
        Ok(())
    }

    fn result_of(&self, index: usize) -> MutexGuard<'_, Vec<u8>> {
        let result = self.results[index].lock();
        result.unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, index: usize, start: usize, bytes: &[u8]) {
        let sums = self.sums[index % self.sums.len()].lock();
        let mut sums = sums.unwrap_or_else(PoisonError::into_inner);
        let values = bytes.as_chunks::<{ size_of::<f32>() }>().0;
        for (sum, value) in sums[start..].iter_mut().zip(values) {
            *sum += f32::from_le_bytes(*value);
        }
    }
}
