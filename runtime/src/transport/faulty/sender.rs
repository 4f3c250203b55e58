//! The sending end of a bulk stream under faults.

use super::crash::MortalSender;
use super::lane::Lane;
use async_trait::async_trait;
use bytes::Bytes;
use slowmo_actors::ports::transport::{BulkError, BulkSender};
use std::collections::VecDeque;

/// Largest part of a chunk, in bytes, that is sent at once under a fault, so that throttling is
/// smooth.
const PART_BYTES_MAX: usize = 16 << 10;

/// Bulk sender that delays chunks as its lane requires, and sends nothing more once its node has
/// crashed.
pub(super) struct FaultySender {
    inner: MortalSender,
    lane: Lane,
    /// Bytes that replace the first ones of the next chunk.
    first: Vec<u8>,
}

impl FaultySender {
    pub(super) fn new(inner: MortalSender, lane: Lane, first: Vec<u8>) -> Self {
        Self { inner, lane, first }
    }

    fn falsified(&mut self, chunk: Bytes) -> Bytes {
        let first = std::mem::take(&mut self.first);
        if first.is_empty() {
            return chunk;
        }
        let mut changed = chunk.to_vec();
        changed
            .iter_mut()
            .zip(first)
            .for_each(|(byte, replacement)| *byte = replacement);
        changed.into()
    }
}

#[async_trait]
impl BulkSender for FaultySender {
    async fn send(&mut self, mut chunk: Bytes) -> Result<(), BulkError> {
        self.inner.pass().await;
        chunk = self.falsified(chunk);
        if self.lane.is_untouched() {
            return self.inner.send(chunk).await;
        }
        // Parts are queued for as long as there is room, so that bulk keeps the queue full.
        let mut under_way = VecDeque::new();
        while !chunk.is_empty() || !under_way.is_empty() {
            let part_bytes = chunk.len().min(PART_BYTES_MAX);
            if !chunk.is_empty()
                && let Some(passed) = self.lane.try_enter(part_bytes)
            {
                under_way.push_back((passed, chunk.split_to(part_bytes)));
                continue;
            }
            match under_way.pop_front() {
                Some((passed, part)) => {
                    self.lane.arrive(passed).await;
                    self.inner.send(part).await?;
                }
                None => self.lane.arrive(self.lane.room_at()).await,
            }
        }
        Ok(())
    }

    async fn finish(self: Box<Self>) -> Result<(), BulkError> {
        self.lane.passable().await;
        self.inner.finish().await
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}
