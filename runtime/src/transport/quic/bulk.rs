//! Bulk streams: a length-prefixed header, then raw bytes. Sending makes no copy, receiving one.

use super::close::error_text;
use super::framing::{BlockError, LENGTH_BYTES, read_block};
use super::settings::{admit_bulk, open_window};
use crate::transport::accepted::Accepted;
use crate::transport::sessions::{Counted, Session};
use crate::transport::watched::Watched;
use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use quinn::{Connection, ReadError, ReadExactError, RecvStream, SendStream, VarInt, WriteError};
use slowmo_actors::ports::transport::{
    BulkError, BulkReceiver, BulkSender, DownReason, Share, TransportEvent,
};
use slowmo_protocol::wire::BULK_HEADER_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The error code of streams that were reset; it carries no further meaning.
const ABANDONED: VarInt = VarInt::from_u32(0);

/// Opens a stream and sends its header.
pub(super) async fn open(
    connection: &Connection,
    delivering: &Delivering,
    header: &[u8],
) -> Result<Box<dyn BulkSender>, BulkError> {
    let mut first = BytesMut::with_capacity(LENGTH_BYTES + header.len());
    first.put_u32_le(header.len() as u32);
    first.put_slice(header);
    let used = delivering.used();
    let stream = connection
        .open_uni()
        .await
        .map_err(|error| BulkError::Broken(error_text(&error)))?;
    let mut sender = QuicSender {
        stream: Some((stream, used)),
        delivering: delivering.clone(),
    };
    sender.send(first.freeze()).await?;
    Ok(Box::new(sender))
}

/// Accepts a peer's streams and delivers them as events until the connection ends.
pub(super) async fn receive(
    connection: Connection,
    session: Arc<Session>,
    accepted: Arc<Accepted>,
) {
    admit_bulk(&connection, session.is_one_of_many);
    let window = Window::new(&connection);
    while let Ok(stream) = connection.accept_uni().await {
        accepted.mark_used();
        // One task per stream; the connection limits the number of open streams.
        tokio::spawn(receive_one(stream, session.clone(), window.clone()));
    }
}

/// The receive window of one bulk connection: small until this node reads values from it, so that a
/// peer from which nothing is read cannot fill much memory.
#[derive(Clone)]
struct Window(Arc<ClosedWindow>);

struct ClosedWindow {
    connection: Connection,
    is_open: AtomicBool,
}

impl Window {
    fn new(connection: &Connection) -> Self {
        Self(Arc::new(ClosedWindow {
            connection: connection.clone(),
            is_open: AtomicBool::new(false),
        }))
    }

    /// Opens the window at the first call.
    fn open(&self) {
        if !self.0.is_open.swap(true, Ordering::AcqRel) {
            open_window(&self.0.connection);
        }
    }
}

async fn receive_one(mut stream: RecvStream, session: Arc<Session>, window: Window) {
    let header = match read_block(&mut stream, BULK_HEADER_BYTES_MAX).await {
        Ok(Some(header)) => header.freeze(),
        // The stream was reset, or its connection is lost.
        Ok(None) | Err(BlockError::CutOff) => return,
        Err(BlockError::TooLong(length)) => {
            return session.close(DownReason::ProtocolViolation(header_too_long(length)));
        }
    };
    let _ = session
        .deliver(TransportEvent::Bulk {
            from: session.peer.node,
            header,
            stream: Box::new(QuicReceiver { stream, window }),
            share: Share::default(),
        })
        .await;
}

/// The text of a violation: a stream's header has this many bytes.
pub(super) fn header_too_long(length: usize) -> String {
    format!("a stream header of {length} bytes, the bound is {BULK_HEADER_BYTES_MAX}")
}

/// Counts the streams to one peer on one connection.
#[derive(Clone)]
pub(super) struct Delivering {
    /// Those that were finished and may still be in flight.
    finished: Arc<Watched<usize>>,
    /// Those, and the ones that are still written.
    used: Arc<Watched<usize>>,
}

impl Delivering {
    pub(super) fn new() -> Self {
        Self {
            finished: Arc::new(Watched::new(0)),
            used: Arc::new(Watched::new(0)),
        }
    }

    /// Counts the streams of a connection that takes the place of this one: all that were finished
    /// count together.
    pub(super) fn of_successor(&self) -> Self {
        Self {
            finished: self.finished.clone(),
            used: Arc::new(Watched::new(0)),
        }
    }

    /// Counts a finished stream until its peer has received all of it, or the connection is lost.
    fn track(&self, stream: SendStream, used: Counted) {
        let counted = self.finished();
        tokio::spawn(async move {
            let _ = stream.stopped().await;
            drop((counted, used));
        });
    }

    /// Counts a finished stream until the returned guard is dropped.
    pub(super) fn finished(&self) -> Counted {
        Counted::new(&self.finished)
    }

    /// Counts a stream that is written until the returned guard is dropped.
    pub(super) fn used(&self) -> Counted {
        Counted::new(&self.used)
    }

    /// Waits until the peer has received every finished stream, or the connection is lost.
    pub(super) async fn done(&self) {
        self.finished.wait_for(|streams| *streams == 0).await;
    }

    /// Waits until no stream is written or in flight, or the connection is lost.
    pub(super) async fn unused(&self) {
        self.used.wait_for(|streams| *streams == 0).await;
    }
}

/// The sending end. quinn would finish a stream on drop; here it is reset.
struct QuicSender {
    /// Taken by `finish`.
    stream: Option<(SendStream, Counted)>,
    delivering: Delivering,
}

#[async_trait]
impl BulkSender for QuicSender {
    async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError> {
        let (stream, _) = self.stream.as_mut().ok_or(BulkError::Reset)?;
        stream
            .write_chunk(chunk)
            .await
            .map_err(|error| match error {
                WriteError::ConnectionLost(error) => BulkError::Broken(error_text(&error)),
                _ => BulkError::Reset,
            })
    }

    async fn finish(mut self: Box<Self>) -> Result<(), BulkError> {
        let (mut stream, used) = self.stream.take().ok_or(BulkError::Reset)?;
        stream.finish().map_err(|_| BulkError::Reset)?;
        self.delivering.track(stream, used);
        Ok(())
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for QuicSender {
    fn drop(&mut self) {
        if let Some((mut stream, _used)) = self.stream.take() {
            let _ = stream.reset(ABANDONED);
        }
    }
}

/// The receiving end; quinn stops a stream that is dropped unread.
struct QuicReceiver {
    stream: RecvStream,
    window: Window,
}

#[async_trait]
impl BulkReceiver for QuicReceiver {
    async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        self.window.open();
        self.stream
            .read_exact(into)
            .await
            .map_err(|error| match error {
                ReadExactError::FinishedEarly(_) => BulkError::EndedEarly,
                ReadExactError::ReadError(error) => read_error(error),
            })
    }

    async fn expect_end(&mut self) -> Result<(), BulkError> {
        let mut beyond = [0; 1];
        match self.stream.read(&mut beyond).await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(BulkError::TooLong),
            // The end was already read.
            Err(ReadError::ClosedStream) => Ok(()),
            Err(error) => Err(read_error(error)),
        }
    }
}

fn read_error(error: ReadError) -> BulkError {
    match error {
        ReadError::ConnectionLost(error) => BulkError::Broken(error_text(&error)),
        ReadError::ClosedStream => BulkError::EndedEarly,
        _ => BulkError::Reset,
    }
}
