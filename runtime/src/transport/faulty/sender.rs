//! The sending end of a bulk stream under faults.

use super::crash::MortalSender;
use super::lane::Lane;
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use slowmo_actors::ports::signer::Signer;
use slowmo_actors::ports::transport::{BulkError, BulkSender};
use slowmo_protocol::coordinator::{Attempt, Voter};
use slowmo_protocol::published::{Hasher, SIGNATURE_BYTES, statement};
use slowmo_protocol::wire::Header;
use std::collections::VecDeque;
use std::sync::Arc;

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
    /// Signs the falsified values.
    signing: Option<Signing>,
}

/// Replaces the signature at the end of a stream by one of the values that were sent.
pub(super) struct Signing {
    signer: Arc<dyn Signer>,
    header: Header,
    digest: Hasher,
    /// The last bytes so far; the stream's last ones are the signature.
    held: BytesMut,
}

impl Signing {
    pub(super) fn new(signer: Arc<dyn Signer>, header: Header) -> Self {
        Self {
            signer,
            header,
            digest: Hasher::default(),
            held: BytesMut::new(),
        }
    }

    /// Holds back what may be the signature, and gives what is before it.
    fn hold(&mut self, chunk: &[u8]) -> Bytes {
        self.held.extend_from_slice(chunk);
        let values = self.held.len().saturating_sub(SIGNATURE_BYTES);
        let values = self.held.split_to(values).freeze();
        self.digest.update(&values);
        values
    }

    fn signature(self) -> Bytes {
        let Header {
            cluster,
            sender: node,
            incarnation,
            ..
        } = self.header;
        let owner = Voter { node, incarnation };
        let digest = self.digest.finish();
        let statement = statement(cluster, Attempt::of(&self.header), owner, digest);
        let signature = <[u8; SIGNATURE_BYTES]>::from(self.signer.sign(&statement));
        Bytes::copy_from_slice(&signature)
    }
}

impl FaultySender {
    pub(super) fn new(
        inner: MortalSender,
        lane: Lane,
        first: Vec<u8>,
        signing: Option<Signing>,
    ) -> Self {
        Self {
            inner,
            lane,
            first,
            signing,
        }
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

impl FaultySender {
    async fn pass_on(&mut self, mut chunk: Bytes) -> Result<(), BulkError> {
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
}

#[async_trait]
impl BulkSender for FaultySender {
    async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError> {
        self.inner.pass().await;
        let chunk = self.falsified(chunk);
        let chunk = match &mut self.signing {
            Some(signing) => signing.hold(&chunk),
            None => chunk,
        };
        self.pass_on(chunk).await
    }

    fn hurry(&mut self) {
        self.inner.hurry();
    }

    async fn finish(mut self: Box<Self>) -> Result<(), BulkError> {
        if let Some(signing) = self.signing.take() {
            self.pass_on(signing.signature()).await?;
        }
        self.lane.passable().await;
        self.inner.finish().await
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}
