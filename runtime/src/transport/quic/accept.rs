//! Accepting connections: each dialer is checked, admitted to its peer's session, and read from.

use super::Node;
use super::close::{CloseCode, CloseOnDrop, close};
use super::handshake::{HandshakeError, Introduced};
use super::socket::HANDSHAKES_MAX;
use super::tls::is_version_exchange;
use super::{bulk, incoming, port_probe};
use crate::transport::accepted::Accepted;
use crate::transport::sessions::{AdmitError, Part};
use quinn::{Connection, Incoming};
use slowmo_actors::ports::transport::{DialError, TransportEvent};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Longest time that a dialer may take to introduce itself.
const INTRODUCTION_MAX: Duration = Duration::from_secs(5);

/// Accepts connections until the endpoint is closed.
pub(super) async fn run(node: Arc<Node>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    while let Some(incoming) = node.endpoint.accept().await {
        let Ok(permit) = handshakes.clone().try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let node = node.clone();
        tokio::spawn(async move {
            admit(&node, incoming).await;
            drop(permit);
        });
    }
}

async fn admit(node: &Arc<Node>, incoming: Incoming) {
    let remote = incoming.remote_address();
    let introduced = timeout(INTRODUCTION_MAX, introduce(node, incoming)).await;
    let error = match introduced {
        Ok(Ok(())) | Ok(Err(HandshakeError::Needless)) => return,
        // The network failed or the dialer gave up: nobody was refused, so nothing is reported.
        Ok(Err(HandshakeError::Failed(DialError::NoAnswer | DialError::Other(_)))) => return,
        Ok(Err(HandshakeError::Failed(error))) => error,
        Err(_) => DialError::BadPreface("it did not introduce itself in time".into()),
    };
    // A flood of refusals must not block the node: an event that finds the queue full is only
    // logged.
    tracing::debug!(%remote, %error, "refused");
    let _ = node
        .events
        .try_send(TransportEvent::Refused { remote, error });
}

async fn introduce(node: &Arc<Node>, incoming: Incoming) -> Result<(), HandshakeError> {
    let connection = incoming
        .await
        .map_err(|error| node.introduction.failure(&error))?;
    node.track(&connection);
    let guard = CloseOnDrop::new(&connection, "it did not introduce itself in time");
    if is_version_exchange(&connection) {
        return Err(node.introduction.exchange_versions(&connection).await);
    }
    let (introduced, mut confirmation) = node.introduction.receive_preface(&connection).await?;
    node.introduction
        .check_not_self(&connection, introduced.peer)?;
    let accepted = Arc::new(Accepted::unused());
    let part = || {
        if introduced.bulk {
            Part::IncomingBulk(accepted.clone())
        } else {
            Part::IncomingControl(accepted.clone())
        }
    };
    let admissible = node.sessions.would_admit(introduced.peer, &part());
    admissible.map_err(|error| not_admitted(node, &connection, &introduced, error))?;
    let mut answer = node
        .introduction
        .send_preface(&connection, introduced.bulk)
        .await?;
    match confirmation.read_to_end(0).await {
        Ok(_) => {}
        Err(quinn::ReadToEndError::TooLong) => {
            let error = DialError::BadPreface("bytes follow its preface".into());
            return Err(node.introduction.refuse(&connection, error));
        }
        Err(_) => return Err(node.introduction.lost(&connection).await),
    }
    if let Some(error) = connection.close_reason() {
        // The connection ended before it was of use; admitting it could end the session of a later
        // connection of the same peer.
        return Err(node.introduction.failure(&error));
    }
    let admitted = node.sessions.admit(introduced.peer, part());
    let session = admitted.map_err(|error| not_admitted(node, &connection, &introduced, error))?;
    let connection = guard.keep();
    node.watch_accepted(&connection, &session, accepted.clone());
    if introduced.bulk {
        tokio::spawn(bulk::receive(connection, session, accepted));
    } else {
        incoming::start(connection, session, accepted);
        node.dialing.heard(introduced.peer.address);
    }
    // Tells the dialer that it was admitted; if this fails, the connection ends, and its session is
    // informed.
    let _ = answer.finish();
    Ok(())
}

fn not_admitted(
    node: &Arc<Node>,
    connection: &Connection,
    introduced: &Introduced,
    error: AdmitError,
) -> HandshakeError {
    match error {
        AdmitError::Duplicate(address) => {
            // If the earlier incarnation is gone, its host refuses the probe, and the dialer's next
            // attempt succeeds.
            port_probe::port_probe(node, introduced.peer.node, address);
            node.introduction
                .refuse(connection, DialError::DuplicateId(introduced.peer.node))
        }
        AdmitError::AlreadyConnected | AdmitError::Closed => {
            close(connection, CloseCode::Leave, "the node is closing");
            HandshakeError::Needless
        }
    }
}
