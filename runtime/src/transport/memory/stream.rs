//! A bulk stream of the memory transport: a bounded queue of copied pieces.

use super::link::{Delays, Link};
use async_trait::async_trait;
use bytes::{Buf, Bytes};
use slowmo_actors::ports::transport::{BulkError, BulkReceiver, BulkSender, Share, TransportEvent};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Largest piece of a chunk, in bytes.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// Number of pieces that may be queued for the receiver before the sender waits: 4 MiB.
const PIECES_QUEUED_MAX: usize = 64;

/// Opens a stream on `link` and announces its header to the receiver; returns the sending end.
pub(super) async fn open(
    link: &Arc<Link>,
    header: Bytes,
) -> Result<Box<dyn BulkSender>, BulkError> {
    // Released when both ends are dropped.
    let permit = Arc::new(link.stream_permit().await?);
    link.count_sent(header.len());
    let delays = link.stream_delays();
    let (pieces, queue) = mpsc::channel(PIECES_QUEUED_MAX);
    let sender = MemorySender {
        link: link.clone(),
        pieces,
        _permit: permit.clone(),
    };
    let receiver = MemoryReceiver {
        link: link.clone(),
        queue,
        current: Bytes::new(),
        finished: false,
        delays: delays.clone(),
        _permit: permit,
    };
    let link = link.clone();
    link.from.runtime.clone().spawn(async move {
        delays.wait().await;
        link.count_received(header.len());
        let from = link.from.local.node;
        // A session that ends takes the stream with it.
        _ = link
            .there
            .deliver(TransportEvent::Bulk {
                from,
                header,
                stream: Box::new(receiver),
                share: Share::default(),
            })
            .await;
    });
    Ok(Box::new(sender))
}

enum Piece {
    Data(Bytes),
    Finish,
}

/// The sending end; dropping it without a `Finish` is a reset.
struct MemorySender {
    link: Arc<Link>,
    pieces: mpsc::Sender<Piece>,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl MemorySender {
    async fn push(&self, piece: Piece) -> Result<(), BulkError> {
        tokio::select! {
            biased;
            reason = self.link.there.closing() => Err(BulkError::Broken(reason.to_string())),
            sent = self.pieces.send(piece) => sent.map_err(|_| BulkError::Reset),
        }
    }
}

#[async_trait]
impl BulkSender for MemorySender {
    async fn send(&mut self, mut chunk: Bytes) -> Result<(), BulkError> {
        while chunk.has_remaining() {
            let piece = chunk.split_to(chunk.len().min(PIECE_BYTES_MAX));
            self.link.count_sent(piece.len());
            self.push(Piece::Data(Bytes::copy_from_slice(&piece)))
                .await?;
        }
        Ok(())
    }

    async fn finish(self: Box<Self>) -> Result<(), BulkError> {
        self.push(Piece::Finish).await
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}

/// The receiving end.
struct MemoryReceiver {
    link: Arc<Link>,
    queue: mpsc::Receiver<Piece>,
    current: Bytes,
    finished: bool,
    delays: Delays,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl MemoryReceiver {
    /// Makes `current` non-empty, or returns false at the end of the stream.
    async fn fill(&mut self) -> Result<bool, BulkError> {
        while self.current.is_empty() && !self.finished {
            self.delays.wait().await;
            let piece = tokio::select! {
                biased;
                reason = self.link.there.closing() => return Err(
                    BulkError::Broken(reason.to_string())
                ),
                piece = self.queue.recv() => piece.ok_or(BulkError::Reset)?,
            };
            match piece {
                Piece::Data(bytes) => {
                    self.link.count_received(bytes.len());
                    self.current = bytes;
                }
                Piece::Finish => self.finished = true,
            }
        }
        Ok(!self.current.is_empty())
    }
}

#[async_trait]
impl BulkReceiver for MemoryReceiver {
    async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        let mut filled = 0;
        while filled < into.len() {
            if !self.fill().await? {
                return Err(BulkError::EndedEarly);
            }
            let count = self.current.len().min(into.len() - filled);
            self.current
                .copy_to_slice(&mut into[filled..filled + count]);
            filled += count;
        }
        Ok(())
    }

    async fn expect_end(&mut self) -> Result<(), BulkError> {
        if self.fill().await? {
            Err(BulkError::TooLong)
        } else {
            Ok(())
        }
    }
}
