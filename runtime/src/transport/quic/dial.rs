//! Dialing: reaches a peer, with retries until both connections are established or the time is up.

use super::Node;
use super::credential::Credential;
use super::handshake::HandshakeError;
use super::outgoing::Outgoing;
use super::pair::{Purpose, handshake, introduce_both, not_admitted};
use super::renewal::{self, Held};
use crate::transport::sessions::Part;
use quinn::Connection;
use slowmo_actors::ports::transport::{DUPLICATE_DIALED_MAX, DialError, TransportEvent};
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
    let mut before = None;
    let mut duplicate_since = None;
    loop {
        let remaining = give_up.saturating_duration_since(Instant::now());
        let error = match attempt(node, address, patience.min(remaining), &heard).await {
            Err(HandshakeError::Failed(error)) => error,
            other => return other,
        };
        let error = told(error, remaining < patience, before);
        if !matches!(error, DialError::DuplicateId(_)) {
            duplicate_since = None;
        } else if duplicate_since.get_or_insert_with(Instant::now).elapsed() >= DUPLICATE_DIALED_MAX
        {
            return Err(error.into());
        }
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
        before = Some(error);
    }
}

/// Returns the error to report: the newest attempt's, unless the caller's time cut that one short;
/// then that of the attempt before it.
fn told(error: DialError, is_cut_short: bool, before: Option<DialError>) -> DialError {
    match before {
        Some(before) if is_cut_short && error == DialError::NoAnswer => before,
        _ => error,
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
        answered = timeout(patience, handshake(node, client, address, Purpose::New)) => {
            answered.unwrap_or(Err(DialError::NoAnswer.into()))?
        }
        () = heard.notified() => return Err(DialError::NoAnswer.into()),
    };
    let rest = timeout(REST_MAX, connect_both(node, &credential, address, control)).await;
    rest.unwrap_or_else(|_| Err(DialError::Other("it answered, and was then silent".into()).into()))
}

/// Connects to a peer whose control connection has answered.
async fn connect_both(
    node: &Arc<Node>,
    credential: &Credential,
    address: SocketAddr,
    control: Connection,
) -> Result<(), HandshakeError> {
    let both = introduce_both(node, credential, address, control, Purpose::New).await?;
    let peer = both.peer();
    let (outgoing, queue) = Outgoing::new(peer.node, &both);
    match node
        .sessions
        .admit(peer, Part::Outgoing(outgoing.clone(), address))
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
            Err(not_admitted(node, error, peer))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slowmo_protocol::ident::NodeId;

    #[test]
    fn the_answer_before_is_told_if_time_was_up_for_another_one() {
        let duplicate = || DialError::DuplicateId(NodeId(1));
        let none = || DialError::NoAnswer;
        assert_eq!(told(none(), true, Some(duplicate())), duplicate());
        assert_eq!(told(none(), false, Some(duplicate())), none());
        assert_eq!(told(none(), true, None), none());
        assert_eq!(told(duplicate(), true, Some(none())), duplicate());
    }
}
