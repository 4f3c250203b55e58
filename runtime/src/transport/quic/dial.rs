//! Dialing: opens two connections to a peer, with retries until both are established or the time is
//! up.

use super::Node;
use super::close::{CloseCode, CloseOnDrop, close};
use super::credential::{Credential, End};
use super::handshake::{HandshakeError, Introduced};
use super::outgoing::Outgoing;
use super::port_probe;
use super::renewal::{self, Held};
use super::tls::{RENEWAL_NAME, SERVER_NAME, Standing, is_version_exchange};
use crate::transport::session::PeerIdentity;
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
    let credential = node.credential.borrow().clone();
    let client = &credential.clients.control;
    let control = tokio::select! {
        answered = timeout(patience, handshake(node, client, address, Purpose::New)) => answered.unwrap_or(Err(DialError::NoAnswer.into()))?,
        () = heard.notified() => return Err(DialError::NoAnswer.into()),
    };
    let rest = timeout(REST_MAX, connect_both(node, &credential, address, control)).await;
    rest.unwrap_or_else(|_| Err(DialError::Other("it answered, and was then silent".into()).into()))
}

/// What connections are dialed for.
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
    if (first.peer.node, first.peer.incarnation) != (second.peer.node, second.peer.incarnation) {
        return Err(DialError::Other("another node answered the second connection".into()).into());
    }
    let control = control.keep();
    let bulk = bulk.keep();
    if let Some(error) = control.close_reason() {
        close(&bulk, CloseCode::Needless, "the other connection was lost");
        return Err(node.introduction.failure(&error));
    }
    Ok(Both {
        control,
        bulk,
        first,
    })
}

/// Connects to a peer whose control connection has answered.
async fn connect_both(
    node: &Arc<Node>,
    credential: &Credential,
    address: SocketAddr,
    control: Connection,
) -> Result<(), HandshakeError> {
    let both = introduce_both(node, credential, address, control, Purpose::New).await?;
    let first = both.first;
    let (outgoing, queue) = Outgoing::new(first.peer.node, both.control.clone(), both.bulk.clone());
    match node
        .sessions
        .admit(first.peer, Part::Outgoing(outgoing.clone(), address))
    {
        Ok(session) => {
            outgoing.watch(node, &session);
            outgoing.start(node, queue);
            let held = Held {
                outgoing,
                number: credential.number,
            };
            renewal::spawn(node.clone(), session, address, held);
            Ok(())
        }
        Err(error) => {
            both.abandon("connected already");
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
        AdmitError::AlreadyConnected | AdmitError::Closed | AdmitError::NothingToRenew => {
            HandshakeError::Needless
        }
    }
}

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
