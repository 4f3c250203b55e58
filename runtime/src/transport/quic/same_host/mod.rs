//! Traffic between nodes of one machine: over Unix sockets, without encryption and packets.
//!
//! Both ends of an authenticated connection derive two secrets from its TLS session. The accepting
//! node listens at an abstract socket whose name is the first. Only its peer can know the name
//! before, and finds it only in the same network namespace. A socket begins with a proof of the
//! second secret, and the kernel tells each end that the other runs as the same user. If any of
//! this is not so, traffic goes over QUIC as between hosts.
//!
//! `streams` moves values, `control` frames. Datagrams stay on the QUIC connections, which tell that
//! the peer is alive. The end of a connection ends its sockets.

mod control;
mod streams;

pub(super) use control::{ControlListener, ControlReader, ControlWriter};
pub(super) use streams::{Listener, Path};

use super::close::error_text;
use bytes::Bytes;
use quinn::Connection;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use slowmo_actors::ports::transport::BulkError;
use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as sync;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// Longest time from a socket's beginning until its proof, and the first header, are here.
const HEADER_WAIT_MAX: Duration = Duration::from_secs(2);
/// Pause after the system refused to accept a socket, for example because the process has too many
/// open files.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that a receiver reads at once where less is wanted. Larger reads go past this buffer.
const READ_BUFFER_BYTES: usize = 8 << 10;
/// Bytes that the kernel may hold of a socket; it grants at most net.core.wmem_max.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;
/// Beginning of the sockets' names, by which an operator knows them.
const NAME_PREFIX: &str = "slowmo-";
/// Length of each secret and of the proof.
const SECRET_BYTES: usize = 32;

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

    /// Reads the proof with which a socket begins; `None` if the other end is not the peer.
    async fn is_proved(&self, stream: &mut BufReader<UnixStream>) -> Option<()> {
        if !self.is_own_user(stream.get_ref()) {
            return None;
        }
        let mut proof = [0; SECRET_BYTES];
        stream.read_exact(&mut proof).await.ok()?;
        self.proves(&proof).then_some(())
    }

    /// Opens a socket to the acceptor of the connection. Nothing is sent yet. Fails where the
    /// acceptor has no room, for example because it is stopped: to wait would block the thread.
    async fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect_addr(&self.address()?.into()).await?;
        // A smaller buffer only costs speed.
        let _ = socket2::SockRef::from(&stream).set_send_buffer_size(SOCKET_BUFFER_BYTES);
        if self.is_own_user(&stream) {
            Ok(stream)
        } else {
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        }
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

    /// Waits for the next socket; nobody knows yet whose it is.
    async fn next(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
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
            match secrets.connect().await {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(waiting.len() <= 2, "{} sockets wait", waiting.len());
    }
}
