//! The two connections that a node dials to a peer: for control and for values.

use super::Node;
use super::close::{CloseCode, CloseOnDrop, close};
use super::credential::{Credential, End};
use super::handshake::{HandshakeError, Introduced, other_key};
use super::tls::{RENEWAL_NAME, SERVER_NAME, Standing, is_version_exchange};
use super::{port_probe, same_host};
use crate::transport::session::PeerIdentity;
use crate::transport::sessions::AdmitError;
use quinn::{ClientConfig, Connection};
use slowmo_actors::ports::transport::DialError;
use std::net::SocketAddr;
use std::sync::Arc;

/// The purpose of dialing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To reach a peer.
    New,
    /// To take the place of the connections to a peer that is up.
    Renewal,
}

impl Purpose {
    /// The server name that tells the peer.
    fn name(self) -> &'static str {
        match self {
            Self::New => SERVER_NAME,
            Self::Renewal => RENEWAL_NAME,
        }
    }
}

/// Both connections to a peer, introduced.
pub(super) struct Both {
    pub control: Connection,
    pub bulk: Connection,
    /// The way of bulk streams, if the peer is on this machine.
    pub same_host: Option<same_host::Path>,
    first: Introduced,
}

impl Both {
    pub(super) fn peer(&self) -> PeerIdentity {
        self.first.peer
    }

    pub(super) fn abandon(&self, reason: &str) {
        for connection in [&self.control, &self.bulk] {
            close(connection, CloseCode::Needless, reason);
        }
    }
}

/// Establishes both connections to a peer, of which the control connection has answered. If it is
/// dropped half-way, no connection stays open.
pub(super) async fn introduce_both(
    node: &Arc<Node>,
    credential: &Credential,
    address: SocketAddr,
    control: Connection,
    purpose: Purpose,
) -> Result<Both, HandshakeError> {
    let (control, first) = introduce(node, control, false, purpose).await?;
    let bulk = handshake(node, &credential.clients.bulk, address, purpose).await?;
    let (bulk, second) = introduce(node, bulk, true, purpose).await?;
    let process = |peer: PeerIdentity| (peer.node, peer.incarnation, peer.key);
    if process(first.peer) != process(second.peer) {
        return Err(DialError::Other("another node answered the second connection".into()).into());
    }
    let control = control.keep();
    let bulk = bulk.keep();
    if let Some(error) = control.close_reason() {
        close(&bulk, CloseCode::Needless, "the other connection was lost");
        return Err(node.introduction.failure(&error));
    }
    let same_host = if node.same_host {
        same_host::Path::find(&bulk, &node.traffic.same_host()).await
    } else {
        None
    };
    Ok(Both {
        control,
        bulk,
        same_host,
        first,
    })
}

/// Why a dialed connection does not join its peer's session.
pub(super) fn not_admitted(
    node: &Arc<Node>,
    error: AdmitError,
    peer: PeerIdentity,
) -> HandshakeError {
    match error {
        AdmitError::Duplicate(address) => {
            port_probe::port_probe(node, peer.node, address);
            DialError::DuplicateId(peer.node).into()
        }
        AdmitError::TooMany => {
            DialError::Other("too many nodes are connected from its host".into()).into()
        }
        AdmitError::OtherKey => other_key(peer).into(),
        AdmitError::AlreadyConnected | AdmitError::Closed | AdmitError::NothingToRenew => {
            HandshakeError::Needless
        }
    }
}

/// Completes the handshake of one connection.
pub(super) async fn handshake(
    node: &Arc<Node>,
    client: &ClientConfig,
    address: SocketAddr,
    purpose: Purpose,
) -> Result<Connection, HandshakeError> {
    let connecting = node
        .endpoint
        .connect_with(client.clone(), address, purpose.name());
    let connecting = connecting.map_err(|error| DialError::Other(error.to_string()))?;
    let connection = connecting
        .await
        .map_err(|error| node.introduction.stranger(&error))?;
    node.gate.authenticated(connection.remote_address());
    Ok(connection)
}

/// Exchanges introductions on one connection, and waits until the peer has admitted it.
async fn introduce(
    node: &Arc<Node>,
    connection: Connection,
    bulk: bool,
    purpose: Purpose,
) -> Result<(CloseOnDrop, Introduced), HandshakeError> {
    node.track(&connection);
    let guard = CloseOnDrop::new(&connection, "the attempt was abandoned");
    if is_version_exchange(&connection) {
        return Err(node.introduction.exchange_versions(&connection).await);
    }
    let mut preface = node.introduction.send_preface(&connection, bulk).await?;
    let (introduced, mut admission) = node.introduction.receive_preface(&connection).await?;
    node.introduction
        .check_not_self(&connection, introduced.peer)?;
    // The handshake may have begun under the credential before.
    if let Standing::Refused(reason) = node.standing(&connection, End::Dialer) {
        let error = DialError::WrongClusterKey(reason);
        return Err(node.introduction.refuse(&connection, error));
    }
    let outgoing_exists = node.sessions.outgoing_incarnation(introduced.peer.node)
        == Some(introduced.peer.incarnation);
    if purpose == Purpose::New && outgoing_exists {
        close(&connection, CloseCode::Needless, "connected already");
        return Err(HandshakeError::Needless);
    }
    if node.sessions.knows_another_key_of(introduced.peer) {
        let error = other_key(introduced.peer);
        return Err(node.introduction.refuse(&connection, error));
    }
    if let Some(address) = node.sessions.duplicate_of(introduced.peer) {
        let error = AdmitError::Duplicate(address);
        return Err(not_admitted(node, error, introduced.peer));
    }
    // Confirms, and waits until the peer has admitted the connection, so that `PeerUp` holds at
    // both ends.
    if preface.finish().is_err() || admission.read_to_end(0).await.is_err() {
        return Err(node.introduction.lost(&connection).await);
    }
    Ok((guard, introduced))
}
