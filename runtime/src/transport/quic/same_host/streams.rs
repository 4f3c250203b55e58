//! Bulk streams between nodes of one machine.
//!
//! A receiver that has read a stream to its end says so, and waits for the next one on the same
//! socket: what a socket costs is much beside the values of a small model.

use super::{BEGINNING_WAIT_MAX, Door, READ_BUFFER_BYTES, Secrets, ended, read_out};
use crate::transport::accepted::Accepted;
use crate::transport::quic::bulk::{Delivering, header_too_long};
use crate::transport::quic::close::error_text;
use crate::transport::quic::framing::{BlockError, LENGTH_BYTES, read_block};
use crate::transport::quic::settings;
use crate::transport::quic::traffic::SameHostBytes;
use crate::transport::sessions::{Counted, Session};
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::future::join_all;
use parking_lot::Mutex;
use quinn::Connection;
use slowmo_actors::ports::transport::{
    BulkError, BulkReceiver, BulkSender, DownReason, Share, TransportEvent,
};
use slowmo_protocol::wire::BULK_HEADER_BYTES_MAX;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Streams that one peer may have open, like [`settings::STREAMS_MAX`] of a connection.
const STREAMS_MAX: usize = settings::STREAMS_MAX as usize;
/// Sockets to one peer that are kept for their next stream.
const KEPT_MAX: usize = 8;
/// The byte by which a receiver says that it has read a stream to its end.
const RECEIVED: u8 = 1;
/// The length of a piece that ends a stream. Each piece of a stream follows its length.
const END: [u8; LENGTH_BYTES] = [0; LENGTH_BYTES];

/// The accepting end of a connection's streams.
pub(in super::super) struct Listener(Door);

impl Listener {
    /// Listens for the streams of an accepted bulk connection whose dialer is on this machine.
    pub(in super::super) fn bind(connection: &Connection) -> Option<Self> {
        Door::bind(connection).map(Self)
    }

    /// Delivers streams as events until the connection ends.
    pub(in super::super) async fn receive(
        self,
        connection: Connection,
        session: Arc<Session>,
        accepted: Arc<Accepted>,
        bytes: Arc<SameHostBytes>,
    ) {
        let room = Arc::new(Semaphore::new(STREAMS_MAX));
        loop {
            let next = async {
                // The semaphore is never closed.
                let permit = Arc::clone(&room).acquire_owned().await.ok()?;
                Some((permit, self.0.next().await))
            };
            let (permit, stream) = tokio::select! {
                biased;
                _ = connection.closed() => return,
                next = next => match next {
                    Some(next) => next,
                    None => return,
                },
            };
            let incoming = Incoming {
                secrets: Arc::clone(&self.0.secrets),
                connection: connection.clone(),
                session: Arc::clone(&session),
                bytes: Arc::clone(&bytes),
            };
            let accepted = Arc::clone(&accepted);
            tokio::spawn(async move {
                incoming.deliver_all(stream, &accepted).await;
                drop(permit);
            });
        }
    }
}

/// A socket of the peer, and the streams on it, one after the other.
struct Incoming {
    secrets: Arc<Secrets>,
    connection: Connection,
    session: Arc<Session>,
    bytes: Arc<SameHostBytes>,
}

impl Incoming {
    /// Delivers streams until one is not read to its end, or the connection ends.
    async fn deliver_all(&self, mut stream: UnixStream, accepted: &Accepted) {
        let greeted = timeout(BEGINNING_WAIT_MAX, self.secrets.greet(&mut stream));
        // Whoever does not begin as the peer does is nobody.
        let Ok(Ok(())) = greeted.await else { return };
        let mut stream = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
        let first = read_block(&mut stream, BULK_HEADER_BYTES_MAX);
        let Ok(mut header) = timeout(BEGINNING_WAIT_MAX, first).await else {
            return;
        };
        accepted.mark_used();
        while let Some(read) = self.deliver(header, stream).await {
            stream = read;
            let next = read_block(&mut stream, BULK_HEADER_BYTES_MAX);
            match read_out(&self.connection, next).await {
                Some(next) => header = next,
                None => return,
            }
        }
    }

    /// Delivers one stream. Returns the socket once the stream was read to its end.
    async fn deliver(
        &self,
        header: Result<Option<BytesMut>, BlockError>,
        stream: BufReader<UnixStream>,
    ) -> Option<BufReader<UnixStream>> {
        let header = match header {
            Ok(Some(header)) => header.freeze(),
            // The peer sends no more, or died while it wrote.
            Ok(None) | Err(BlockError::CutOff) => return None,
            Err(BlockError::TooLong(length)) => {
                let violation = DownReason::ProtocolViolation(header_too_long(length));
                self.session.close(violation);
                return None;
            }
        };
        let (give_back, given_back) = oneshot::channel();
        let receiver = Receiver {
            stream: Some((stream, give_back)),
            left: 0,
            connection: self.connection.clone(),
            session: Arc::clone(&self.session),
            bytes: Arc::clone(&self.bytes),
        };
        let event = TransportEvent::Bulk {
            from: self.session.peer.node,
            header,
            stream: Box::new(receiver),
            share: Share::default(),
        };
        self.session.deliver(event).await.ok()?;
        given_back.await.ok()
    }
}

/// The receiving end of a stream.
struct Receiver {
    /// The socket, and where it goes at the end of the stream; `None` after that.
    stream: Option<(
        BufReader<UnixStream>,
        oneshot::Sender<BufReader<UnixStream>>,
    )>,
    /// Bytes of the current piece that are not read yet.
    left: usize,
    connection: Connection,
    session: Arc<Session>,
    bytes: Arc<SameHostBytes>,
}

impl Receiver {
    /// Begins the next piece if the current one is read; its length is 0 at the end of the stream.
    async fn piece(&mut self) -> Result<usize, BulkError> {
        if self.left == 0 && self.stream.is_some() {
            let mut length = [0; LENGTH_BYTES];
            self.fill(&mut length).await?;
            self.left = u32::from_le_bytes(length) as usize;
            if self.left == 0 {
                self.give_back();
            }
        }
        Ok(self.left)
    }

    /// Tells the sender that the stream was read, and waits for the next one on its socket.
    fn give_back(&mut self) {
        let Some((stream, give_back)) = self.stream.take() else {
            return;
        };
        // Nothing else is written on this end, so there is room for the byte. A peer that is not
        // told opens another socket.
        if stream.get_ref().try_write(&[RECEIVED]).is_ok() {
            _ = give_back.send(stream);
        }
    }

    /// Fills `into` from the socket. What the peer wrote is read also after its connection ended.
    async fn fill(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        let Some((stream, _)) = &mut self.stream else {
            return Err(BulkError::EndedEarly);
        };
        match read_out(&self.connection, stream.read_exact(into)).await {
            Some(Ok(_)) => {
                self.session.pulse.count();
                Ok(())
            }
            Some(Err(_)) | None => Err(ended(&self.connection)),
        }
    }
}

#[async_trait]
impl BulkReceiver for Receiver {
    async fn read_exact(&mut self, mut into: &mut [u8]) -> Result<(), BulkError> {
        self.bytes.count_received(into.len());
        while !into.is_empty() {
            let length = self.piece().await?.min(into.len());
            if length == 0 {
                return Err(BulkError::EndedEarly);
            }
            let (now, later) = into.split_at_mut(length);
            self.fill(now).await?;
            self.left -= length;
            into = later;
        }
        Ok(())
    }

    async fn expect_end(&mut self) -> Result<(), BulkError> {
        match self.piece().await? {
            0 => Ok(()),
            _ => Err(BulkError::TooLong),
        }
    }
}

/// The way to a peer on this machine.
#[derive(Clone)]
pub(in super::super) struct Path {
    secrets: Arc<Secrets>,
    connection: Connection,
    bytes: Arc<SameHostBytes>,
    /// Sockets whose last stream is written, the oldest first; at most [`KEPT_MAX`].
    written: Arc<Mutex<VecDeque<Written>>>,
}

impl Path {
    /// The way to the acceptor of a bulk connection; `None` if it is not on this machine or does
    /// not listen.
    pub(in super::super) async fn find(
        connection: &Connection,
        bytes: &Arc<SameHostBytes>,
    ) -> Option<Self> {
        let path = Self {
            secrets: Arc::new(Secrets::of(connection)?),
            connection: connection.clone(),
            bytes: Arc::clone(bytes),
            written: Arc::default(),
        };
        // The stream is dropped without a proof, which the other end ignores.
        path.secrets.reach().await.ok().map(|_stream| path)
    }

    /// The counts of this way's bytes.
    pub(super) fn bytes(&self) -> Arc<SameHostBytes> {
        Arc::clone(&self.bytes)
    }

    /// Bytes sent on this way.
    pub(in super::super) fn sent(&self) -> u64 {
        self.bytes.sent()
    }

    /// A socket on which the receiver waits for the next stream.
    fn kept(&self) -> Option<UnixStream> {
        let mut written = self.written.lock();
        for _ in 0..written.len() {
            let one = written.pop_front()?;
            match one.stream.try_read(&mut [0; 1]) {
                Ok(1) => return Some(one.stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => written.push_back(one),
                // The receiver closed it.
                _ => {}
            }
        }
        None
    }

    /// Keeps a socket for the next stream once the receiver has read the one that is written on it.
    /// Until then, or until the receiver gives it up, the stream counts as under way.
    fn keep(&self, one: Written) {
        let mut written = self.written.lock();
        if written.len() < KEPT_MAX {
            return written.push_back(one);
        }
        drop(written);
        tokio::spawn(one.received(self.connection.clone()));
    }

    /// Waits until the receiver has read every stream that is written, or gives it up.
    pub(in super::super) async fn all_received(&self) {
        let written = std::mem::take(&mut *self.written.lock());
        let received = written
            .into_iter()
            .map(|one| one.received(self.connection.clone()));
        join_all(received).await;
    }

    /// Opens a stream and sends its header.
    ///
    /// # Errors
    /// No socket can be opened. Nothing was sent then, and the stream may go over QUIC.
    pub(in super::super) async fn open(
        &self,
        delivering: &Delivering,
        header: &[u8],
    ) -> io::Result<Box<dyn BulkSender>> {
        let kept = self.kept();
        let is_new = kept.is_none();
        let stream = match kept {
            Some(stream) => stream,
            None => self.secrets.connect().await?,
        };
        let mut beginning = BytesMut::with_capacity(LENGTH_BYTES + header.len());
        beginning.put_u32_le(header.len() as u32);
        beginning.put_slice(header);
        let mut sender = Sender {
            stream,
            unsent: beginning.freeze(),
            path: self.clone(),
            delivering: delivering.clone(),
            used: delivering.used(),
        };
        // The other end waits only so long for the first header on a new socket.
        if is_new {
            sender.write(Bytes::new()).await.map_err(io::Error::other)?;
        }
        Ok(Box::new(sender))
    }
}

/// A socket on which a stream is written to its end.
struct Written {
    stream: UnixStream,
    /// Counts the stream as under way.
    _under_way: [Counted; 2],
}

impl Written {
    /// Waits until the receiver has read the stream, or gives it up.
    async fn received(mut self, connection: Connection) {
        tokio::select! {
            biased;
            _ = self.stream.read_u8() => {}
            _ = connection.closed() => {}
        }
    }
}

/// The sending end of a stream. Dropping it unfinished closes the socket without an end, which the
/// receiver takes as a reset.
struct Sender {
    stream: UnixStream,
    /// The beginning of the stream, which goes with its first chunk.
    unsent: Bytes,
    path: Path,
    delivering: Delivering,
    used: Counted,
}

impl Sender {
    /// Sends what is not sent yet, and then these bytes.
    async fn write(&mut self, bytes: impl Buf) -> Result<(), BulkError> {
        let mut bytes = Buf::chain(std::mem::take(&mut self.unsent), bytes);
        let written = tokio::select! {
            biased;
            reason = self.path.connection.closed() => return Err(BulkError::Broken(error_text(&reason))),
            written = self.stream.write_all_buf(&mut bytes) => written,
        };
        written.map_err(|_| ended(&self.path.connection))
    }

    /// The stream is written.
    fn written(self) {
        self.path.keep(Written {
            stream: self.stream,
            _under_way: [self.delivering.finished(), self.used],
        });
    }
}

#[async_trait]
impl BulkSender for Sender {
    async fn send(&mut self, mut chunk: Bytes) -> Result<(), BulkError> {
        self.path.bytes.count_sent(chunk.len());
        while !chunk.is_empty() {
            let piece = chunk.split_to(chunk.len().min(u32::MAX as usize));
            let length = (piece.len() as u32).to_le_bytes();
            self.write(Buf::chain(&length[..], piece)).await?;
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<(), BulkError> {
        self.write(&END[..]).await?;
        self.written();
        Ok(())
    }

    async fn finish_with(mut self: Box<Self>, last: Bytes) -> Result<(), BulkError> {
        let length = match u32::try_from(last.len()) {
            Ok(length @ 1..) => length.to_le_bytes(),
            _ => {
                self.send(last).await?;
                return self.finish().await;
            }
        };
        self.path.bytes.count_sent(last.len());
        self.write(Buf::chain(&length[..], last).chain(&END[..]))
            .await?;
        self.written();
        Ok(())
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}
