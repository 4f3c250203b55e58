//! The first bytes of a connection: a preface in each direction or, between different protocol
//! versions, the version names.
//!
//! The dialer opens a stream with its preface, the accepting node answers with its own on another
//! stream, and the dialer ends its stream to confirm. Until then the accepting node changes no
//! state, so that a redundant connection does no harm. Then it admits the connection and ends its
//! own stream, so that a peer that is up is up at both ends.

use super::close::{CloseCode, close, dial_error, handshake_error};
use super::names::PeerName;
use super::tls::{certified_key, certified_name, names_of};
use crate::printable::{printable, printable_bytes};
use crate::transport::session::PeerIdentity;
use quinn::{Connection, ConnectionError, ReadError, ReadExactError, RecvStream, SendStream};
use slowmo_actors::ports::transport::{DialError, LocalPeer};
use slowmo_protocol::ident::ClusterId;
use slowmo_protocol::wire::{PREFACE_BYTES_MAX, Preface};
use std::net::SocketAddr;
use std::time::Duration;

/// Longest name of a protocol version, in bytes.
const VERSION_NAME_BYTES_MAX: usize = 64;
/// Characters that are told of the names in a certificate that was refused for them.
const NAMES_TOLD_MAX: usize = 200;
/// Longest time for the exchange of versions, including until the peer has read this node's
/// version.
const VERSION_WAIT_MAX: Duration = Duration::from_secs(1);

/// This node's data for introductions: what it sends, and what it requires of peers.
#[derive(Clone, Debug)]
pub(super) struct Introduction {
    pub local: LocalPeer,
    pub cluster: ClusterId,
    /// Whether peers' certificates must carry their id and incarnation.
    pub named: bool,
    /// The names that peers' certificates of an operator's CA must carry.
    pub peer_name: Option<PeerName>,
    /// The name of this node's protocol version.
    pub version: String,
}

/// The checked content of a peer's preface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduced {
    pub peer: PeerIdentity,
    pub bulk: bool,
}

/// Reason why an introduction did not complete.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The connection is redundant: the other end is this node itself, or it is connected already.
    Needless,
    /// An error that is to be reported.
    Failed(DialError),
}

impl From<DialError> for HandshakeError {
    fn from(error: DialError) -> Self {
        Self::Failed(error)
    }
}

impl Introduction {
    /// Maps the error of a handshake, whose peer is not authenticated yet.
    pub(super) fn stranger(&self, error: &ConnectionError) -> HandshakeError {
        HandshakeError::Failed(handshake_error(error, &self.version))
    }

    /// Maps a connection's error during an introduction to a handshake error.
    pub(super) fn failure(&self, error: &ConnectionError) -> HandshakeError {
        dial_error(error, self.local.node, &self.version)
            .map_or(HandshakeError::Needless, HandshakeError::Failed)
    }

    /// Sends this node's preface; the stream stays open.
    pub(super) async fn send_preface(
        &self,
        connection: &Connection,
        bulk: bool,
    ) -> Result<SendStream, HandshakeError> {
        let LocalPeer {
            node,
            incarnation,
            announced: listen,
            ..
        } = self.local;
        let preface = Preface::V1 {
            cluster: self.cluster,
            node,
            incarnation,
            listen,
            bulk,
        }
        .encode();
        let preface = preface.map_err(|error| DialError::Other(error.to_string()))?;
        let mut stream = connection
            .open_uni()
            .await
            .map_err(|error| self.failure(&error))?;
        let mut bytes = (preface.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&preface);
        if stream.write_all(&bytes).await.is_err() {
            return Err(self.lost(connection).await);
        }
        Ok(stream)
    }

    /// Reads and checks the peer's preface; a wrong one closes the connection.
    pub(super) async fn receive_preface(
        &self,
        connection: &Connection,
    ) -> Result<(Introduced, RecvStream), HandshakeError> {
        let mut stream = connection
            .accept_uni()
            .await
            .map_err(|error| self.failure(&error))?;
        let checked = match read_preface(&mut stream).await {
            Ok(bytes) => self.check(connection, &bytes),
            Err(ReadExactError::ReadError(ReadError::ConnectionLost(error))) => {
                return Err(self.failure(&error));
            }
            Err(error) => Err(DialError::BadPreface(error.to_string())),
        };
        match checked {
            Ok(introduced) => Ok((introduced, stream)),
            Err(error) => Err(self.refuse(connection, error)),
        }
    }

    /// Closes the connection with a code and a text that tell the peer the reason.
    pub(super) fn refuse(&self, connection: &Connection, error: DialError) -> HandshakeError {
        let code = match &error {
            DialError::SameId(_) => CloseCode::SameId,
            DialError::DuplicateId(_) => CloseCode::Duplicate,
            _ => CloseCode::BadPreface,
        };
        close(connection, code, &error.to_string());
        HandshakeError::Failed(error)
    }

    fn check(&self, connection: &Connection, bytes: &[u8]) -> Result<Introduced, DialError> {
        let preface =
            Preface::decode(bytes).map_err(|error| DialError::BadPreface(error.to_string()))?;
        let Preface::V1 {
            cluster,
            node,
            incarnation,
            listen,
            bulk,
        } = preface;
        if cluster != self.cluster {
            return Err(DialError::BadPreface(format!(
                "it belongs to {cluster}, this node to {}",
                self.cluster
            )));
        }
        if self.named {
            match certified_name(connection) {
                Some(certified) if certified == (node, incarnation) => {}
                Some((other, start)) => {
                    let told = format!(
                        "it says it is {node} ({incarnation}), its certificate says {other} \
                         ({start})"
                    );
                    return Err(DialError::BadPreface(told));
                }
                None => {
                    return Err(DialError::BadPreface(
                        "its certificate carries no node id".into(),
                    ));
                }
            }
        }
        if let Some(pattern) = &self.peer_name {
            let names = names_of(connection);
            if !names.iter().any(|name| pattern.admits(name, node)) {
                let carried = printable(&names.join(", "))
                    .chars()
                    .take(NAMES_TOLD_MAX)
                    .collect::<String>();
                return Err(DialError::BadPreface(format!(
                    "it says it is {node}, so its certificate must carry the name {}, and it \
                     carries: {carried}",
                    pattern.of(node)
                )));
            }
        }
        let address = reachable(listen, connection.remote_address());
        Ok(Introduced {
            peer: PeerIdentity {
                node,
                incarnation,
                address,
                host: Some(connection.remote_address().ip()),
                key: self.named.then(|| certified_key(connection)).flatten(),
            },
            bulk,
        })
    }

    /// Closes the connection and returns an error if the peer has this node's id.
    pub(super) fn check_not_self(
        &self,
        connection: &Connection,
        peer: PeerIdentity,
    ) -> Result<(), HandshakeError> {
        if peer.node != self.local.node {
            return Ok(());
        }
        if peer.incarnation == self.local.incarnation {
            close(
                connection,
                CloseCode::Needless,
                "both ends are the same node",
            );
            return Err(HandshakeError::Needless);
        }
        Err(self.refuse(connection, DialError::SameId(peer.node)))
    }

    /// Sends this node's version and reads the peer's; always returns an error.
    pub(super) async fn exchange_versions(&self, connection: &Connection) -> HandshakeError {
        let told = async {
            let mut stream = connection.open_uni().await.ok()?;
            stream.write_all(self.version.as_bytes()).await.ok()?;
            stream.finish().ok()?;
            Some(stream)
        };
        let heard = async {
            let mut stream = connection.accept_uni().await.ok()?;
            stream.read_to_end(VERSION_NAME_BYTES_MAX).await.ok()
        };
        let exchange = async {
            let (told, heard) = tokio::join!(told, heard);
            if let Some(told) = told {
                let _ = told.stopped().await;
            }
            heard
        };
        let heard = tokio::time::timeout(VERSION_WAIT_MAX, exchange)
            .await
            .ok()
            .flatten();
        close(connection, CloseCode::Version, &self.version);
        let theirs = heard.map_or_else(
            || "unknown".into(),
            |name| printable_bytes(&name, VERSION_NAME_BYTES_MAX),
        );
        DialError::ProtocolVersion {
            theirs,
            ours: self.version.clone(),
        }
        .into()
    }

    /// Closes a connection on which the introduction failed, and returns the error.
    pub(super) async fn lost(&self, connection: &Connection) -> HandshakeError {
        // If the connection is still open, only a stream was stopped; the introduction cannot
        // complete.
        close(
            connection,
            CloseCode::BadPreface,
            "the introduction was cut short",
        );
        self.failure(&connection.closed().await)
    }
}

/// The error of a process that comes in the name of another one.
pub(super) fn other_key(peer: PeerIdentity) -> DialError {
    DialError::BadPreface(format!(
        "it says it is {} ({}), which came with another key before",
        peer.node, peer.incarnation
    ))
}

async fn read_preface(stream: &mut RecvStream) -> Result<Vec<u8>, ReadExactError> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    // A longer preface is refused by the decoder, which accepts at most the bound.
    let length = (u32::from_le_bytes(length) as usize).min(PREFACE_BYTES_MAX + 1);
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// The address where a node can be reached; a node that listens on all its addresses is reached at
/// the remote address of its connection.
fn reachable(listen: SocketAddr, remote: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        SocketAddr::new(remote.ip(), listen.port())
    } else {
        listen
    }
}
