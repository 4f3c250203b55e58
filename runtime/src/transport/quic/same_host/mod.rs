//! Traffic between nodes of one machine: over Unix sockets, without encryption and packets.
//!
//! Both ends of an authenticated connection derive two secrets from its TLS session. The accepting
//! node listens at an abstract socket whose name is the first. Only its peer can know the name
//! before, and finds it only in the same network namespace. On each socket the dialer and then the
//! acceptor prove that they know the second secret, and the kernel tells each end that the other
//! runs as the same user. If any of this is not so, traffic goes over QUIC as between hosts.
//!
//! `streams` moves values, `control` frames. Datagrams stay on the QUIC connections, which tell that
//! the peer is alive. The end of a connection ends its sockets.

mod control;
mod streams;

pub(super) use control::{ControlListener, ControlReader, ControlWriter};
pub(super) use streams::{Listener, Path};

use super::close::error_text;
use quinn::{Connection, ConnectionError};
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use slowmo_actors::ports::transport::BulkError;
use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as sync;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Longest wait at a new socket for the other end's proof, and for the first header.
const BEGINNING_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for what a peer wrote before it ended the connection.
const LAST_READ_WAIT_MAX: Duration = Duration::from_millis(100);
/// Pause after the system refused to accept a socket, for example because the process has too many
/// open files.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that a receiver reads at once where less is wanted. Larger reads go past this buffer.
const READ_BUFFER_BYTES: usize = 8 << 10;
/// Bytes that the kernel may hold of a socket; it grants at most net.core.wmem_max.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;
/// Beginning of the sockets' names, by which an operator knows them.
const NAME_PREFIX: &str = "slowmo-";
/// Length of each secret and of a proof.
const SECRET_BYTES: usize = 32;

/// An end of a socket, as its proof names it.
#[derive(Clone, Copy)]
enum End {
    Dialer = 1,
    Acceptor = 2,
}

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

    fn proved_text(&self, end: End) -> Vec<u8> {
        [&[end as u8], self.name.as_bytes()].concat()
    }

    /// Whether the other end runs as the same user.
    fn is_own_user(&self, stream: &UnixStream) -> bool {
        stream.peer_cred().is_ok_and(|peer| peer.uid() == self.user)
    }

    /// Sends this end's proof.
    async fn prove(&self, end: End, stream: &mut UnixStream) -> io::Result<()> {
        let proof = sign(&self.proof, &self.proved_text(end));
        stream.write_all(proof.as_ref()).await
    }

    /// Reads the other end's proof.
    async fn check(&self, end: End, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        let mut proof = [0; SECRET_BYTES];
        stream.read_exact(&mut proof).await?;
        verify(&self.proof, &self.proved_text(end), &proof)
            .map_err(|_| io::ErrorKind::PermissionDenied.into())
    }

    /// Reaches the acceptor of the connection. Nothing is sent yet. Fails where the acceptor has no
    /// room, for example because it is stopped: to wait would block the thread.
    async fn reach(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect_addr(&self.address()?.into()).await?;
        // A smaller buffer only costs speed.
        let _ = socket2::SockRef::from(&stream).set_send_buffer_size(SOCKET_BUFFER_BYTES);
        if self.is_own_user(&stream) {
            Ok(stream)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Opens a socket to the acceptor of the connection: both ends have proved themselves.
    async fn connect(&self) -> io::Result<UnixStream> {
        let mut stream = self.reach().await?;
        self.prove(End::Dialer, &mut stream).await?;
        timeout(BEGINNING_WAIT_MAX, self.check(End::Acceptor, &mut stream)).await??;
        Ok(stream)
    }

    /// Begins an accepted socket: both ends have proved themselves.
    async fn greet(&self, stream: &mut UnixStream) -> io::Result<()> {
        self.check(End::Dialer, stream).await?;
        self.prove(End::Acceptor, stream).await
    }
}

/// The place where the acceptor of a connection waits for its peer's sockets.
struct Door {
    listener: UnixListener,
    secrets: Arc<Secrets>,
}

impl Door {
    /// Listens for the sockets of an accepted connection whose dialer is on this machine.
    fn bind(connection: &Connection) -> Option<Self> {
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
                tracing::info!(%error, "traffic of this machine's nodes goes over QUIC");
                None
            }
        }
    }

    /// Waits for the next socket of this user's processes. It has proved nothing yet.
    async fn next(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) if self.secrets.is_own_user(&stream) => return stream,
                Ok(_) => {}
                Err(_) => tokio::time::sleep(REFUSED_PAUSE).await,
            }
        }
    }
}

/// The error of a socket that the other end closed: with its connection, or alone.
fn ended(connection: &Connection) -> BulkError {
    connection
        .close_reason()
        .map_or(BulkError::Reset, |reason| {
            BulkError::Broken(error_text(&reason))
        })
}

/// Reads until the connection ends, and then what the peer wrote before; `None` if it wrote no more.
async fn read_out<T>(connection: &Connection, reading: impl Future<Output = T>) -> Option<T> {
    let mut reading = pin!(reading);
    tokio::select! {
        biased;
        read = &mut reading => Some(read),
        reason = connection.closed() => match reason {
            ConnectionError::LocallyClosed => None,
            _ => timeout(LAST_READ_WAIT_MAX, reading).await.ok(),
        },
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_acceptor_that_accepts_nothing_blocks_nobody() {
        let secrets = Secrets {
            name: format!("{NAME_PREFIX}test-{}", std::process::id()),
            proof: Key::new(HMAC_SHA256, b"proof"),
            user: own_user().unwrap(),
        };
        let acceptor = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
        let acceptor = acceptor.unwrap();
        let address = socket2::SockAddr::unix(format!("\0{}", secrets.name)).unwrap();
        acceptor.bind(&address).unwrap();
        acceptor.listen(1).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match secrets.reach().await {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(waiting.len() <= 2, "{} sockets wait", waiting.len());
    }

    #[tokio::test]
    async fn whoever_took_the_acceptor_s_name_is_told_nothing() {
        let secrets = Secrets {
            name: format!("{NAME_PREFIX}taken-{}", std::process::id()),
            proof: Key::new(HMAC_SHA256, b"proof"),
            user: own_user().unwrap(),
        };
        let taken = sync::UnixListener::bind_addr(&secrets.address().unwrap()).unwrap();
        taken.set_nonblocking(true).unwrap();
        let taken = UnixListener::from_std(taken).unwrap();
        let impostor = async {
            let (mut stream, _) = taken.accept().await.unwrap();
            let mut proof = [0; SECRET_BYTES];
            stream.read_exact(&mut proof).await.unwrap();
            // All that it knows is what the dialer has sent.
            stream.write_all(&proof).await.unwrap();
            stream
        };
        let (refused, _stream) = tokio::join!(secrets.connect(), impostor);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
