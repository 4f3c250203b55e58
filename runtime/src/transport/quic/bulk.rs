//! Bulk streams: a length-prefixed header, then raw bytes, over several QUIC streams (see
//! [`stripes`](super::stripes)). Sending makes no copy, receiving one.

use super::settings::{STREAMS_MAX, admit_bulk, open_window};
use super::stripes::{
    Arrivals, Beginning, Registered, STRIPES, Stripes, header_bytes, lost, place, read_beginning,
    stripe_bytes,
};
use crate::transport::accepted::Accepted;
use crate::transport::sessions::{Counted, Session};
use crate::transport::watched::Watched;
use async_trait::async_trait;
use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream, VarInt, WriteError};
use slowmo_actors::ports::transport::{
    BulkError, BulkReceiver, BulkSender, DownReason, Share, TransportEvent,
};
use slowmo_protocol::wire::BULK_HEADER_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of bulk streams of one connection that may have several QUIC streams at a time. All of
/// these together get theirs, as long as there are fewer than 512 bulk streams and all are read: if
/// each had some and waited for more, none would ever end.
const LONG_STREAMS_MAX: usize = STREAMS_MAX as usize / 2 / STRIPES;
/// The error code of streams that were reset; it carries no further meaning.
const ABANDONED: VarInt = VarInt::from_u32(0);
/// Priority of headers, and of streams that pass others.
const FIRST: i32 = 1;
/// Priority of the others' values.
const USUAL: i32 = 0;

/// Opens a stream and sends its header.
pub(super) async fn open(
    connection: &Connection,
    delivering: &Delivering,
    header: &[u8],
) -> Result<Box<dyn BulkSender>, BulkError> {
    let mut sender = QuicSender {
        connection: connection.clone(),
        stripes: Vec::with_capacity(1),
        position: 0,
        long: None,
        priority: FIRST,
        hurries: false,
        _used: delivering.used(),
        delivering: delivering.clone(),
    };
    sender.open(header_bytes(header)).await?;
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
    let arrivals = Arrivals::default();
    while let Ok(stream) = connection.accept_uni().await {
        accepted.mark_used();
        let registered = arrivals.register(stream.id());
        // One task per stream; the connection limits the number of open streams.
        let receiving = receive_one(
            stream,
            registered,
            arrivals.clone(),
            session.clone(),
            window.clone(),
        );
        tokio::spawn(receiving);
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

async fn receive_one(
    mut stream: RecvStream,
    registered: Registered,
    arrivals: Arrivals,
    session: Arc<Session>,
    window: Window,
) {
    let header = match read_beginning(&mut stream).await {
        Ok(Some(Beginning::Header(header))) => header,
        Ok(Some(Beginning::Stripe(first, number))) => {
            return arrivals.pass_on(first, number, stream);
        }
        Ok(None) => return,
        Err(length) => {
            return session.close(DownReason::ProtocolViolation(header_too_long(length)));
        }
    };
    let stripes = Stripes::new(window.0.connection.clone(), registered, stream);
    let _ = session
        .deliver(TransportEvent::Bulk {
            from: session.peer.node,
            header,
            stream: Box::new(QuicReceiver {
                stripes,
                position: 0,
                window,
            }),
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
    /// Permits for streams of several QUIC streams each, on this connection.
    long: Arc<Semaphore>,
}

impl Delivering {
    pub(super) fn new() -> Self {
        Self {
            finished: Arc::new(Watched::new(0)),
            used: Arc::new(Watched::new(0)),
            long: Arc::new(Semaphore::new(LONG_STREAMS_MAX)),
        }
    }

    /// Counts the streams of a connection that takes the place of this one: all that were finished
    /// count together.
    pub(super) fn of_successor(&self) -> Self {
        Self {
            finished: self.finished.clone(),
            ..Self::new()
        }
    }

    /// Keeps what counts a finished stream until its peer has received all of it, or the connection
    /// is lost.
    fn track(&self, stripes: Vec<SendStream>, counted: impl Send + 'static) {
        tokio::spawn(async move {
            for stripe in stripes {
                let _ = stripe.stopped().await;
            }
            drop(counted);
        });
    }

    /// Waits until a stream may have several QUIC streams.
    async fn long(&self) -> Option<OwnedSemaphorePermit> {
        if self.long.available_permits() == 0 {
            tracing::debug!("a long stream waits until one of {LONG_STREAMS_MAX} others is sent");
        }
        // The semaphore is never closed.
        Arc::clone(&self.long).acquire_owned().await.ok()
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
    connection: Connection,
    /// Those that were opened; empty once the stream was finished.
    stripes: Vec<SendStream>,
    /// Number of bytes that were sent, without the header.
    position: u64,
    /// The permit for more than one stripe.
    long: Option<OwnedSemaphorePermit>,
    /// Priority of the stripes, also of those that are opened later.
    priority: i32,
    hurries: bool,
    _used: Counted,
    delivering: Delivering,
}

impl QuicSender {
    /// Opens the next stripe, which begins with these bytes.
    async fn open(&mut self, beginning: Bytes) -> Result<(), BulkError> {
        let stripe = self
            .connection
            .open_uni()
            .await
            .map_err(|error| lost(&error))?;
        // A stream that was stopped shows that when it is written to.
        _ = stripe.set_priority(self.priority);
        self.stripes.push(stripe);
        self.write(self.stripes.len() - 1, beginning).await
    }

    /// Opens the stripe of the next byte, if that is still to be done.
    async fn open_next(&mut self) -> Result<usize, BulkError> {
        let (stripe, _) = place(self.position);
        let first = self.stripes.first().ok_or(BulkError::Reset)?.id();
        if stripe == self.stripes.len() {
            if self.long.is_none() {
                self.long = self.delivering.long().await;
            }
            self.open(stripe_bytes(first, stripe)).await?;
        }
        Ok(stripe)
    }

    /// Lets other streams pass from here on. Earlier that would hold the header up.
    fn give_way(&mut self) {
        self.priority = USUAL;
        for stripe in &self.stripes {
            _ = stripe.set_priority(USUAL);
        }
    }

    async fn write(&mut self, stripe: usize, bytes: Bytes) -> Result<(), BulkError> {
        let stream = self.stripes.get_mut(stripe).ok_or(BulkError::Reset)?;
        stream
            .write_chunk(bytes)
            .await
            .map_err(|error| match error {
                WriteError::ConnectionLost(error) => lost(&error),
                _ => BulkError::Reset,
            })
    }
}

#[async_trait]
impl BulkSender for QuicSender {
    async fn send(&mut self, mut chunk: Bytes) -> Result<(), BulkError> {
        if self.position == 0 && !self.hurries {
            self.give_way();
        }
        while !chunk.is_empty() {
            let stripe = self.open_next().await?;
            let (_, rest) = place(self.position);
            let part = chunk.split_to(rest.min(chunk.len()));
            self.position += part.len() as u64;
            self.write(stripe, part).await?;
        }
        Ok(())
    }

    fn hurry(&mut self) {
        self.hurries = true;
    }

    async fn finish(mut self: Box<Self>) -> Result<(), BulkError> {
        let counted = self.delivering.finished();
        // A receiver that expects more waits for this stripe.
        self.open_next().await?;
        for stripe in &mut self.stripes {
            stripe.finish().map_err(|_| BulkError::Reset)?;
        }
        let stripes = std::mem::take(&mut self.stripes);
        let used = self.delivering.used();
        let counted = (counted, used, self.long.take());
        self.delivering.track(stripes, counted);
        Ok(())
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for QuicSender {
    fn drop(&mut self) {
        for stripe in &mut self.stripes {
            let _ = stripe.reset(ABANDONED);
        }
    }
}

/// The receiving end; quinn stops a stream that is dropped unread.
struct QuicReceiver {
    stripes: Stripes,
    /// Number of bytes that were read, without the header.
    position: u64,
    window: Window,
}

#[async_trait]
impl BulkReceiver for QuicReceiver {
    async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        self.window.open();
        let mut unread = into;
        while !unread.is_empty() {
            let (stripe, rest) = place(self.position);
            let length = rest.min(unread.len());
            let (part, after) = unread.split_at_mut(length);
            self.stripes.read_exact(stripe, part).await?;
            self.position += length as u64;
            unread = after;
        }
        Ok(())
    }

    async fn expect_end(&mut self) -> Result<(), BulkError> {
        self.stripes.expect_end(self.position).await
    }
}
