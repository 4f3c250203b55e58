//! Dialing: opens two connections to a peer, with retries until both are established or the time is
//! up.

use super::Node;
use super::close::{CloseCode, CloseOnDrop, close};
use super::handshake::{HandshakeError, Introduced};
use super::outgoing::Outgoing;
use super::port_probe;
use super::tls::{SERVER_NAME, is_version_exchange};
use crate::transport::sessions::{AdmitError, Part};
use quinn::{ClientConfig, Connection};
use slowmo_actors::ports::transport::{DialError, TransportEvent};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// Pause after the first failed attempt; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Longest pause between attempts while another process with the same id is connected.
const DUPLICATE_BACKOFF_MAX: Duration = Duration::from_millis(80);
/// Time that the first attempt waits for an answer; doubles up to [`ANSWER_WAIT_MAX`].
const ANSWER_WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest wait for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(4);
/// Longest time that a peer that has answered may take for the rest: three more round trips, then a
/// handshake and three round trips again. The caller's time limit does not shorten it: the peer is
/// present and may have admitted half of the attempt.
const REST_MAX: Duration = Duration::from_secs(10);

/// Dials in the background and reports a failure as an event.
pub(super) fn spawn(node: Arc<Node>, address: SocketAddr, give_up_after: Duration) {
    node.runtime.clone().spawn(async move {
        let mut next = Some(give_up_after);
        while let Some(give_up_after) = next {
            let begun = Instant::now();
            let outcome = node
                .until_stopped(dial(&node, address, give_up_after))
                .await;
            if let Some(Err(HandshakeError::Failed(error))) = outcome {
                let _ = node
                    .events
                    .send(TransportEvent::DialFailed {
                        address,
                        tried_for: begun.elapsed(),
                        error,
                    })
                    .await;
            }
            next = node
                .dialing
                .end(address, || node.sessions.is_up_at(address));
        }
    });
}

async fn dial(
    node: &Arc<Node>,
    address: SocketAddr,
    give_up_after: Duration,
) -> Result<(), HandshakeError> {
    let give_up = Instant::now() + give_up_after;
    let mut backoff = BACKOFF_MIN;
    let mut patience = ANSWER_WAIT_MIN;
    let heard = node.dialing.hearing(address);
    loop {
        let remaining = give_up.saturating_duration_since(Instant::now());
        let error = match attempt(node, address, patience.min(remaining), &heard).await {
            Err(HandshakeError::Failed(error)) => error,
            other => return other,
        };
        if error.is_final() || Instant::now() + backoff >= give_up {
            return Err(error.into());
        }
        tracing::debug!(%address, %error, "dialing again");
        tokio::select! { () = sleep(backoff) => {}, () = heard.notified() => {} }
        // If the other process is gone, a port probe shows it soon, so the retries stay frequent.
        let longest = if matches!(error, DialError::DuplicateId(_)) {
            DUPLICATE_BACKOFF_MAX
        } else {
            BACKOFF_MAX
        };
        backoff = (backoff * 2).min(longest);
        patience = (patience * 2).min(ANSWER_WAIT_MAX);
    }
}

/// Makes one attempt: waits up to `patience` for an answer, then up to [`REST_MAX`] for the rest.
/// Stops waiting for the answer when the peer is `heard`: what was sent before may have reached
/// nobody, and QUIC would repeat it only after a second or more.
async fn attempt(
    node: &Arc<Node>,
    address: SocketAddr,
    patience: Duration,
    heard: &Notify,
) -> Result<(), HandshakeError> {
    let control = tokio::select! {
        answered = timeout(patience, handshake(node, &node.clients.control, address)) => answered.unwrap_or(Err(DialError::NoAnswer.into()))?,
        () = heard.notified() => return Err(DialError::NoAnswer.into()),
    };
    let rest = timeout(REST_MAX, connect_both(node, address, control)).await;
    rest.unwrap_or_else(|_| Err(DialError::Other("it answered, and was then silent".into()).into()))
}

/// Establishes both connections to a peer, of which the control connection has answered. If it is
/// dropped half-way, no connection stays open.
async fn connect_both(
    node: &Arc<Node>,
    address: SocketAddr,
    control: Connection,
) -> Result<(), HandshakeError> {
    let (control, first) = introduce(node, control, false).await?;
    let bulk = handshake(node, &node.clients.bulk, address).await?;
    let (bulk, second) = introduce(node, bulk, true).await?;
    if (first.peer.node, first.peer.incarnation) != (second.peer.node, second.peer.incarnation) {
        return Err(DialError::Other("another node answered the second connection".into()).into());
    }
    let control = control.keep();
    let bulk = bulk.keep();
    if let Some(error) = control.close_reason() {
        close(&bulk, CloseCode::Needless, "the other connection was lost");
        return Err(node.introduction.failure(&error));
    }
    let (outgoing, queue) = Outgoing::new(first.peer.node, control, bulk);
    match node
        .sessions
        .admit(first.peer, Part::Outgoing(outgoing.clone(), address))
    {
        Ok(session) => {
            outgoing.start(node, &session, queue);
            Ok(())
        }
        Err(error) => {
            close(
                &outgoing.control_connection,
                CloseCode::Needless,
                "connected already",
            );
            close(
                &outgoing.bulk_connection,
                CloseCode::Needless,
                "connected already",
            );
            Err(not_admitted(node, error, &first))
        }
    }
}

fn not_admitted(node: &Arc<Node>, error: AdmitError, introduced: &Introduced) -> HandshakeError {
    match error {
        AdmitError::Duplicate(address) => {
            port_probe::port_probe(node, introduced.peer.node, address);
            DialError::DuplicateId(introduced.peer.node).into()
        }
        AdmitError::TooMany => {
            DialError::Other("too many nodes are connected from its host".into()).into()
        }
        AdmitError::AlreadyConnected | AdmitError::Closed => HandshakeError::Needless,
    }
}

async fn handshake(
    node: &Arc<Node>,
    client: &ClientConfig,
    address: SocketAddr,
) -> Result<Connection, HandshakeError> {
    let connecting = node
        .endpoint
        .connect_with(client.clone(), address, SERVER_NAME);
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
    let outgoing_exists = node.sessions.outgoing_incarnation(introduced.peer.node)
        == Some(introduced.peer.incarnation);
    if outgoing_exists {
        close(&connection, CloseCode::Needless, "connected already");
        return Err(HandshakeError::Needless);
    }
    if let Some(address) = node.sessions.duplicate_of(introduced.peer) {
        return Err(not_admitted(
            node,
            AdmitError::Duplicate(address),
            &introduced,
        ));
    }
    // Confirms, and waits until the peer has admitted the connection, so that `PeerUp` holds at
    // both ends.
    if preface.finish().is_err() || admission.read_to_end(0).await.is_err() {
        return Err(node.introduction.lost(&connection).await);
    }
    Ok((guard, introduced))
}
