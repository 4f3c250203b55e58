//! Bulk streams between nodes of one machine.
//!
//! A receiver that has read a stream to its end says so, and waits for the next one on the same
//! socket: what a socket costs is much beside the values of a small model.

use super::{Door, HEADER_WAIT_MAX, READ_BUFFER_BYTES, Secrets, ended};
use crate::transport::accepted::Accepted;
use crate::transport::quic::bulk::Delivering;
use crate::transport::quic::close::error_text;
use crate::transport::quic::settings;
use crate::transport::quic::traffic::SameHostBytes;
use crate::transport::sessions::{Counted, Session};
use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use quinn::Connection;
use slowmo_actors::ports::transport::{
    BulkError, BulkReceiver, BulkSender, DownReason, Share, TransportEvent,
};
use slowmo_protocol::wire::BULK_HEADER_BYTES_MAX;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Streams that one peer may have open, like [`settings::STREAMS_MAX`] of a connection.
const STREAMS_MAX: usize = settings::STREAMS_MAX as usize;
/// Sockets to one peer that wait for their next stream.
const IDLE_MAX: usize = 8;
/// The byte by which a receiver says that it has read a stream to its end.
const RECEIVED: u8 = 1;
/// Length of the number before each piece of a stream, which says how many bytes follow. 0 ends the
/// stream.
const LENGTH_BYTES: usize = 4;

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
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let stream = tokio::select! {
                biased;
                _ = connection.closed() => return,
                stream = self.0.next() => stream,
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
    async fn deliver_all(&self, stream: UnixStream, accepted: &Accepted) {
        let mut stream = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
        let first = timeout(HEADER_WAIT_MAX, async {
            self.secrets.is_proved(&mut stream).await?;
            read_header(&mut stream).await
        });
        // Whoever does not begin as the peer does is nobody.
        let Ok(Some(mut header)) = first.await else {
            return;
        };
        accepted.mark_used();
        loop {
            let Some(read) = self.deliver(header, stream).await else {
                return;
            };
            stream = read;
            let next = tokio::select! {
                biased;
                next = read_header(&mut stream) => next,
                _ = self.connection.closed() => return,
            };
            let Some(next) = next else { return };
            header = next;
        }
    }

    /// Delivers one stream. Returns the socket once the stream was read to its end.
    async fn deliver(
        &self,
        header: Result<Bytes, usize>,
        stream: BufReader<UnixStream>,
    ) -> Option<BufReader<UnixStream>> {
        let header = match header {
            Ok(header) => header,
            Err(length) => {
                let violation = format!(
                    "a stream header of {length} bytes, the bound is {BULK_HEADER_BYTES_MAX}"
                );
                self.session.close(DownReason::ProtocolViolation(violation));
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

/// Reads a header; `None` if the socket ends before. A header that is too long is told by its
/// length.
async fn read_header(stream: &mut BufReader<UnixStream>) -> Option<Result<Bytes, usize>> {
    let length = stream.read_u32_le().await.ok()? as usize;
    if length > BULK_HEADER_BYTES_MAX {
        return Some(Err(length));
    }
    let mut header = BytesMut::zeroed(length);
    stream.read_exact(&mut header).await.ok()?;
    Some(Ok(header.freeze()))
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
        let read = tokio::select! {
            biased;
            read = stream.read_exact(into) => read,
            reason = self.connection.closed() => return Err(BulkError::Broken(error_text(&reason))),
        };
        read.map_err(|_| ended(&self.connection))?;
        self.session.pulse.count();
        Ok(())
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
    /// Sockets whose last stream is written, the oldest first; at most [`IDLE_MAX`].
    idle: Arc<Mutex<VecDeque<UnixStream>>>,
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
            idle: Arc::default(),
        };
        // The stream is dropped without a proof, which the other end ignores.
        path.secrets.connect().await.ok().map(|_stream| path)
    }

    /// The counts of this way's bytes.
    pub(super) fn bytes(&self) -> Arc<SameHostBytes> {
        Arc::clone(&self.bytes)
    }

    /// Bytes sent on this way.
    pub(in super::super) fn sent(&self) -> u64 {
        self.bytes.sent()
    }

    /// A socket whose last stream the receiver has read to its end.
    fn reused(&self) -> Option<UnixStream> {
        let mut idle = self.idle.lock();
        for _ in 0..idle.len() {
            let stream = idle.pop_front()?;
            let mut told = [0; 1];
            match stream.try_read(&mut told) {
                Ok(1) => return Some(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => idle.push_back(stream),
                // The receiver closed it.
                _ => {}
            }
        }
        None
    }

    /// Keeps a socket whose stream is written for the next one.
    fn keep(&self, stream: UnixStream) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push_back(stream);
        }
    }

    /// Opens a stream and sends its header.
    pub(in super::super) async fn open(
        &self,
        delivering: &Delivering,
        header: &[u8],
    ) -> Result<Box<dyn BulkSender>, BulkError> {
        let reused = self.reused();
        let is_new = reused.is_none();
        let mut first = BytesMut::new();
        let stream = match reused {
            Some(stream) => stream,
            None => {
                first.extend_from_slice(&self.secrets.proof());
                self.secrets
                    .connect()
                    .await
                    .map_err(|error| BulkError::Broken(error.to_string()))?
            }
        };
        first.extend_from_slice(&(header.len() as u32).to_le_bytes());
        first.extend_from_slice(header);
        let mut sender = Sender {
            stream,
            unsent: first.freeze(),
            path: self.clone(),
            _used: delivering.used(),
        };
        // The other end waits only so long for the beginning of a new socket's first stream.
        if is_new {
            sender.write(Bytes::new()).await?;
        }
        Ok(Box::new(sender))
    }
}

/// The sending end of a stream. Dropping it unfinished closes the socket without an end, which the
/// receiver takes as a reset.
struct Sender {
    stream: UnixStream,
    /// The beginning of the stream, which goes with its first chunk.
    unsent: Bytes,
    path: Path,
    _used: Counted,
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
        self.write(&[0; LENGTH_BYTES][..]).await?;
        self.path.keep(self.stream);
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
        let end = [0; LENGTH_BYTES];
        self.write(Buf::chain(&length[..], last).chain(&end[..]))
            .await?;
        self.path.keep(self.stream);
        Ok(())
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}
