//! Bulk streams between nodes of one machine: over Unix sockets, without encryption and packets.
//!
//! Both ends of an authenticated bulk connection derive two secrets from its TLS session. The
//! accepting node listens at an abstract socket whose name is the first. Only its peer can know the
//! name before, and finds it only in the same network namespace. A stream begins with a proof of
//! the second secret, and the kernel tells each end that the other runs as the same user. If any of
//! this is not so, streams go over QUIC as between hosts.
//!
//! The connection stays: it tells that the peer is alive, and its end ends the streams.

use super::bulk::Delivering;
use super::close::error_text;
use super::traffic::SameHostBytes;
use crate::transport::accepted::Accepted;
use crate::transport::sessions::{Counted, Session};
use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use quinn::Connection;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use slowmo_actors::ports::transport::{
    BulkError, BulkReceiver, BulkSender, DownReason, Share, TransportEvent,
};
use slowmo_protocol::wire::BULK_HEADER_BYTES_MAX;
use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as sync;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
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
}

/// Whether the dialer of an accepted connection has an address of this machine.
fn is_here(connection: &Connection) -> bool {
    let remote = connection.remote_address().ip().to_canonical();
    remote.is_loopback()
        || connection.local_ip().map(|ip| IpAddr::to_canonical(&ip)) == Some(remote)
}

/// Whether both ends run as the same user.
fn is_own_user(stream: &UnixStream) -> bool {
    let own = UnixStream::pair().and_then(|(one, _other)| one.peer_cred());
    match (own, stream.peer_cred()) {
        (Ok(own), Ok(peer)) => own.uid() == peer.uid(),
        _ => false,
    }
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
            let secrets = Arc::clone(&self.secrets);
            let receiver = Receiver {
                stream,
                left: 0,
                ended: false,
                connection: connection.clone(),
                session: Arc::clone(&session),
                bytes: Arc::clone(&bytes),
                _permit: permit,
            };
            let session = Arc::clone(&session);
            let accepted = Arc::clone(&accepted);
            tokio::spawn(async move {
                let begun = timeout(HEADER_WAIT_MAX, receiver.begin(&secrets)).await;
                // Whoever does not begin as the peer does is nobody.
                if let Ok(Some((header, receiver))) = begun {
                    accepted.mark_used();
                    deliver(&session, header, receiver).await;
                }
            });
        }
    }
}

async fn deliver(session: &Session, header: Result<Bytes, usize>, receiver: Receiver) {
    let header = match header {
        Ok(header) => header,
        Err(length) => {
            let violation =
                format!("a stream header of {length} bytes, the bound is {BULK_HEADER_BYTES_MAX}");
            return session.close(DownReason::ProtocolViolation(violation));
        }
    };
    let from = session.peer.node;
    let _ = session
        .deliver(TransportEvent::Bulk {
            from,
            header,
            stream: Box::new(receiver),
            share: Share::default(),
        })
        .await;
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
    stream: UnixStream,
    /// Bytes of the current piece that are not read yet.
    left: usize,
    /// Whether the end was read.
    ended: bool,
    connection: Connection,
    session: Arc<Session>,
    bytes: Arc<SameHostBytes>,
    _permit: tokio::sync::OwnedSemaphorePermit,
}

impl Receiver {
    /// Reads the proof and the header; `None` if the sender is not the peer. A header that is too
    /// long is told by its length.
    async fn begin(mut self, secrets: &Secrets) -> Option<(Result<Bytes, usize>, Self)> {
        if !is_own_user(&self.stream) {
            return None;
        }
        let mut proof = [0; SECRET_BYTES];
        self.stream.read_exact(&mut proof).await.ok()?;
        if !secrets.proves(&proof) {
            return None;
        }
        let length = self.stream.read_u32_le().await.ok()? as usize;
        if length > BULK_HEADER_BYTES_MAX {
            return Some((Err(length), self));
        }
        let mut header = BytesMut::zeroed(length);
        self.stream.read_exact(&mut header).await.ok()?;
        Some((Ok(header.freeze()), self))
    }

    /// Begins the next piece if the current one is read; its length is 0 at the end of the stream.
    async fn piece(&mut self) -> Result<usize, BulkError> {
        if self.left == 0 && !self.ended {
            let mut length = [0; LENGTH_BYTES];
            self.fill(&mut length).await?;
            self.left = u32::from_le_bytes(length) as usize;
            self.ended = self.left == 0;
        }
        Ok(self.left)
    }

    /// Fills `into` from the socket. What the peer wrote is read also after its connection ended.
    async fn fill(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        let read = tokio::select! {
            biased;
            read = self.stream.read_exact(into) => read,
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
}

impl Path {
    /// The way to the acceptor of a bulk connection; `None` if it is not on this machine or does
    /// not listen.
    pub(super) async fn find(connection: &Connection, bytes: &Arc<SameHostBytes>) -> Option<Self> {
        let path = Self {
            secrets: Arc::new(Secrets::of(connection)?),
            connection: connection.clone(),
            bytes: Arc::clone(bytes),
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
        if is_own_user(&stream) {
            Ok(stream)
        } else {
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        }
    }

    /// Opens a stream and sends its header.
    pub(super) async fn open(
        &self,
        delivering: &Delivering,
        header: &[u8],
    ) -> Result<Box<dyn BulkSender>, BulkError> {
        let stream = self
            .connect()
            .await
            .map_err(|error| BulkError::Broken(error.to_string()))?;
        let mut sender = Sender {
            stream,
            connection: self.connection.clone(),
            bytes: Arc::clone(&self.bytes),
            _used: delivering.used(),
        };
        let mut first = BytesMut::from(&self.secrets.proof()[..]);
        first.extend_from_slice(&(header.len() as u32).to_le_bytes());
        first.extend_from_slice(header);
        sender.write(first.freeze()).await?;
        Ok(Box::new(sender))
    }
}

/// The sending end of a stream. Dropping it unfinished closes the socket without an end, which the
/// receiver takes as a reset.
struct Sender {
    stream: UnixStream,
    connection: Connection,
    bytes: Arc<SameHostBytes>,
    _used: Counted,
}

impl Sender {
    async fn write(&mut self, mut bytes: impl Buf) -> Result<(), BulkError> {
        let written = tokio::select! {
            biased;
            reason = self.connection.closed() => return Err(BulkError::Broken(error_text(&reason))),
            written = self.stream.write_all_buf(&mut bytes) => written,
        };
        written.map_err(|_| ended(&self.connection))
    }
}

#[async_trait]
impl BulkSender for Sender {
    async fn send(&mut self, mut chunk: Bytes) -> Result<(), BulkError> {
        self.bytes.count_sent(chunk.len());
        while !chunk.is_empty() {
            let piece = chunk.split_to(chunk.len().min(u32::MAX as usize));
            let length = (piece.len() as u32).to_le_bytes();
            self.write(Buf::chain(&length[..], piece)).await?;
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<(), BulkError> {
        self.write(&[0; LENGTH_BYTES][..]).await
    }

    fn reset(self: Box<Self>) {
        drop(self);
    }
}
