//! Bulk streams between nodes of one machine: over Unix sockets, without encryption and packets.
//!
//! Both ends of an authenticated bulk connection derive two secrets from its TLS session. The
//! accepting node listens at an abstract socket whose name is the first. Only its peer can know the
//! name before, and finds it only in the same network namespace. A stream begins with a proof of
//! the second secret, and the kernel tells each end that the other runs as the same user. If any of
//! this is not so, streams go over QUIC as between hosts.
//!
//! A receiver that has read a stream to its end says so, and waits for the next one on the same
//! socket: what a socket costs is much beside the values of a small model.
//!
//! The QUIC connection stays: it tells that the peer is alive, and its end ends the streams.

use super::bulk::Delivering;
use super::close::error_text;
use super::traffic::SameHostBytes;
use crate::transport::accepted::Accepted;
use crate::transport::sessions::{Counted, Session};
use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use quinn::Connection;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use slowmo_actors::ports::transport::{
    BulkError, BulkReceiver, BulkSender, DownReason, Share, TransportEvent,
};
use slowmo_protocol::wire::BULK_HEADER_BYTES_MAX;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as sync;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Streams that one peer may have open, like [`super::settings::STREAMS_MAX`] of a connection.
const STREAMS_MAX: usize = super::settings::STREAMS_MAX as usize;
/// Longest time from a stream's beginning until its header is here.
const HEADER_WAIT_MAX: Duration = Duration::from_secs(2);
/// Pause after the system refused to accept a stream, for example because the process has too many
/// open files.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that the kernel may hold of a stream; it grants at most net.core.wmem_max.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;
/// Bytes that a receiver reads at once where less is wanted. Larger reads go past this buffer.
const READ_BUFFER_BYTES: usize = 8 << 10;
/// Sockets to one peer that wait for their next stream.
const IDLE_MAX: usize = 8;
/// The byte by which a receiver says that it has read a stream to its end.
const RECEIVED: u8 = 1;
/// Beginning of the sockets' names, by which an operator knows them.
const NAME_PREFIX: &str = "slowmo-";
/// Length of each secret and of the proof.
const SECRET_BYTES: usize = 32;
/// Length of the number before each piece of a stream, which says how many bytes follow. 0 ends the
/// stream.
const LENGTH_BYTES: usize = 4;

/// Secrets that both ends of a connection know, and nobody else.
struct Secrets {
    name: String,
    proof: Key,
    /// The user as whom this process runs.
    user: u32,
}

impl Secrets {
    fn of(connection: &Connection) -> Option<Self> {
        let derive = |label: &[u8]| {
            let mut secret = [0; SECRET_BYTES];
            let derived = connection.export_keying_material(&mut secret, label, b"");
            derived.ok().map(|()| secret)
        };
        let name = derive(b"slowmo same host: name")?;
        let digits = name.iter().map(|byte| format!("{byte:02x}"));
        Some(Self {
            name: NAME_PREFIX.to_owned() + &digits.collect::<String>(),
            proof: Key::new(HMAC_SHA256, &derive(b"slowmo same host: proof")?),
            user: own_user()?,
        })
    }

    fn address(&self) -> io::Result<sync::SocketAddr> {
        sync::SocketAddr::from_abstract_name(&self.name)
    }

    fn proof(&self) -> Bytes {
        Bytes::copy_from_slice(sign(&self.proof, self.name.as_bytes()).as_ref())
    }

    fn proves(&self, proof: &[u8]) -> bool {
        verify(&self.proof, self.name.as_bytes(), proof).is_ok()
    }

    /// Whether the other end runs as the same user.
    fn is_own_user(&self, stream: &UnixStream) -> bool {
        stream.peer_cred().is_ok_and(|peer| peer.uid() == self.user)
    }
}

/// Whether the dialer of an accepted connection has an address of this machine.
fn is_here(connection: &Connection) -> bool {
    let remote = connection.remote_address().ip().to_canonical();
    remote.is_loopback()
        || connection.local_ip().map(|ip| IpAddr::to_canonical(&ip)) == Some(remote)
}

/// The user as whom this process runs, as the kernel tells a peer.
fn own_user() -> Option<u32> {
    let (one, _other) = UnixStream::pair().ok()?;
    one.peer_cred().ok().map(|peer| peer.uid())
}

/// The accepting end of a connection's streams.
pub(super) struct Listener {
    listener: UnixListener,
    secrets: Arc<Secrets>,
}

impl Listener {
    /// Listens for the streams of an accepted bulk connection whose dialer is on this machine.
    pub(super) fn bind(connection: &Connection) -> Option<Self> {
        if !is_here(connection) {
            return None;
        }
        let secrets = Secrets::of(connection)?;
        let bound = secrets
            .address()
            .and_then(|address| sync::UnixListener::bind_addr(&address))
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener)
            });
        match bound {
            Ok(listener) => Some(Self {
                listener,
                secrets: Arc::new(secrets),
            }),
            Err(error) => {
                tracing::info!(%error, "values of this machine's nodes go over QUIC");
                None
            }
        }
    }

    /// Delivers streams as events until the connection ends.
    pub(super) async fn receive(
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
                stream = self.listener.accept() => stream,
            };
            let Ok((stream, _)) = stream else {
                tokio::time::sleep(REFUSED_PAUSE).await;
                continue;
            };
            let incoming = Incoming {
                secrets: Arc::clone(&self.secrets),
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
            self.is_proved(&mut stream).await?;
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

    /// Reads the proof; `None` if the sender is not the peer.
    async fn is_proved(&self, stream: &mut BufReader<UnixStream>) -> Option<()> {
        if !self.secrets.is_own_user(stream.get_ref()) {
            return None;
        }
        let mut proof = [0; SECRET_BYTES];
        stream.read_exact(&mut proof).await.ok()?;
        self.secrets.proves(&proof).then_some(())
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

/// The error of a socket that the other end closed: with its connection, or alone.
fn ended(connection: &Connection) -> BulkError {
    connection
        .close_reason()
        .map_or(BulkError::Reset, |reason| {
            BulkError::Broken(error_text(&reason))
        })
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
pub(super) struct Path {
    secrets: Arc<Secrets>,
    connection: Connection,
    bytes: Arc<SameHostBytes>,
    /// Sockets whose last stream is written, the oldest first; at most [`IDLE_MAX`].
    idle: Arc<Mutex<VecDeque<UnixStream>>>,
}

impl Path {
    /// The way to the acceptor of a bulk connection; `None` if it is not on this machine or does
    /// not listen.
    pub(super) async fn find(connection: &Connection, bytes: &Arc<SameHostBytes>) -> Option<Self> {
        let path = Self {
            secrets: Arc::new(Secrets::of(connection)?),
            connection: connection.clone(),
            bytes: Arc::clone(bytes),
            idle: Arc::default(),
        };
        // The stream is dropped without a proof, which the other end ignores.
        path.connect().await.ok().map(|_stream| path)
    }

    /// Bytes sent on this way.
    pub(super) fn sent(&self) -> u64 {
        self.bytes.sent()
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        let address = self.secrets.address()?;
        let stream = sync::UnixStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        // A smaller buffer only costs speed.
        let _ = socket2::SockRef::from(&stream).set_send_buffer_size(SOCKET_BUFFER_BYTES);
        let stream = UnixStream::from_std(stream)?;
        if self.secrets.is_own_user(&stream) {
            Ok(stream)
        } else {
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        }
    }

    /// A socket whose last stream the receiver has read to its end.
    fn reused(&self) -> Option<UnixStream> {
        let mut idle = self.idle.lock();
        for _ in 0..idle.len() {
            let stream = idle.pop_front()?;
            let mut told = [0; 1];
            match stream.try_read(&mut told) {
                Ok(1) => return Some(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => idle.push_back(stream),
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
    pub(super) async fn open(
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
                self.connect()
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
