//! Keeps the connections that this node dialed under its newest credential, without an
//! interruption.
//!
//! When the credential changes, new connections to the peer are dialed beside the old ones. They
//! join the peer's session, so neither end sees the peer go down. Frames go on in their order: the
//! peer reads the new stream after the end of the old one. Streams of values stay where they were
//! opened. The old connections are closed once the peer has received everything.
//!
//! A connection is renewed if it was dialed under another certificate of this node, if its peer is
//! not accepted any more, or if its peer has shown a certificate of an older key: then that peer
//! did not have the newest key yet, and is asked again later, or when it renews its own
//! connections.

use super::Node;
use super::close::{CloseCode, close};
use super::credential::{Credential, End};
use super::handshake::HandshakeError;
use super::outgoing::Outgoing;
use super::pair::{Purpose, handshake, introduce_both};
use super::tls::Standing;
use crate::transport::sessions::Session;
use slowmo_actors::ports::transport::DialError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Peers whose connections are renewed at once: each costs four signatures.
pub(super) const AT_ONCE_MAX: usize = 16;
/// Pause after the first failed renewal; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause: a peer that gets its new key later renews its own connections then, which ends
/// the pause, so this is for peers that could not be reached.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest time that one renewal may take: a handshake for each connection, and three round trips
/// each. Shorter than a connection stays that is not accepted any more, so that peers which do not
/// answer leave time for others.
const RENEWAL_MAX: Duration = Duration::from_secs(3);

/// The connections that are held, and the number of the credential with which they were dialed.
pub(super) struct Held {
    pub outgoing: Arc<Outgoing>,
    pub number: u64,
}

/// Renews the connections of a session until it ends.
pub(super) fn spawn(node: Arc<Node>, session: Arc<Session>, address: SocketAddr, held: Held) {
    node.runtime.clone().spawn(async move {
        tokio::select! {
            biased;
            _ = session.closing() => {}
            () = keep(&node, &session, address, held) => {}
        }
    });
}

async fn keep(node: &Arc<Node>, session: &Arc<Session>, address: SocketAddr, mut held: Held) {
    let mut changes = node.credential.subscribe();
    let mut pause = PAUSE_MIN;
    loop {
        let credential = changes.borrow_and_update().clone();
        let standing = node.standing(&held.outgoing.control_connection, End::Dialer);
        let is_due = standing != Standing::Current || held.number != credential.number;
        if is_due {
            let permit = node.renewals.acquire().await;
            let renewed = renew(node, session, address, &credential, (&held, &standing));
            let renewed = timeout(RENEWAL_MAX, renewed).await;
            drop(permit);
            match renewed {
                Ok(Ok(outgoing)) => {
                    let earlier = std::mem::replace(&mut held.outgoing, outgoing.clone());
                    held.number = credential.number;
                    node.runtime
                        .spawn(async move { earlier.give_way(&outgoing).await });
                    pause = PAUSE_MIN;
                    continue;
                }
                Ok(Err(error)) => {
                    tracing::debug!(
                        peer = %session.peer.node,
                        ?error,
                        "its connections are not renewed yet"
                    );
                }
                Err(_) => {
                    tracing::debug!(
                        peer = %session.peer.node,
                        "renewing its connections took too long"
                    );
                }
            }
        }
        tokio::select! {
            // The sender is part of the node.
            _ = changes.changed() => pause = PAUSE_MIN,
            () = session.peer_renewed.notified() => pause = PAUSE_MIN,
            () = sleep(pause), if is_due => pause = (pause * 2).min(PAUSE_MAX),
        }
    }
}

/// Dials both connections anew, and sends on them from now on.
async fn renew(
    node: &Arc<Node>,
    session: &Arc<Session>,
    address: SocketAddr,
    credential: &Credential,
    (held, before): (&Held, &Standing),
) -> Result<Arc<Outgoing>, HandshakeError> {
    let client = &credential.clients.control;
    let control = handshake(node, client, address, Purpose::Renewal).await?;
    let after = node.standing(&control, End::Dialer);
    if after != Standing::Current && after <= *before {
        close(&control, CloseCode::Needless, "it has no newer key yet");
        return Err(HandshakeError::Needless);
    }
    let both = introduce_both(node, credential, address, control, Purpose::Renewal).await?;
    let now = both.peer();
    let then = session.peer;
    if (now.node, now.incarnation, now.key) != (then.node, then.incarnation, then.key) {
        both.abandon("another node answered");
        return Err(DialError::Other("another node answered".into()).into());
    }
    let outgoing = held.outgoing.renewed(&both);
    if !node.sessions.renew_outgoing(session, outgoing.clone()) {
        both.abandon("the session is over");
        return Err(HandshakeError::Needless);
    }
    outgoing.watch(node, session);
    Ok(outgoing)
}
