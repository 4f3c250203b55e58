//! Accepting connections: each dialer is checked, admitted to its peer's session, and read from.

use super::Node;
use super::admissions::{Admission, Admissions, Dialer};
use super::close::{CloseCode, CloseOnDrop, close};
use super::credential::End;
use super::handshake::{HandshakeError, Introduced, other_key};
use super::rate::{Bucket, Rate};
use super::settings::admit_control;
use super::tls::{Standing, is_renewal, is_version_exchange};
use super::{bulk, incoming, port_probe, same_host};
use crate::transport::accepted::Accepted;
use crate::transport::sessions::{AdmitError, Part};
use parking_lot::Mutex;
use quinn::{Connection, ConnectionError, Incoming};
use slowmo_actors::ports::transport::{DialError, TransportEvent};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longest time from a dialer's first packet until its handshake has begun: its first flight is one
/// packet or two, and QUIC sends a lost one again within a tenth of a second.
const FIRST_FLIGHT_MAX: Duration = Duration::from_millis(500);
/// Longest time that a dialer may take to introduce itself.
const INTRODUCTION_MAX: Duration = Duration::from_secs(5);
/// Refusals that are reported; the others are counted.
const REPORTS: Rate = Rate {
    per_second: 1,
    burst: 16,
};
/// Shortest time between two warnings that tell how many refusals were not reported.
const LEFT_OUT_WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest time between two warnings that packets are dropped.
const FLOOD_WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// Dropped packets between two warnings below which nobody floods the node: some are always lost
/// between restarts.
const FLOOD_PACKETS_MIN: u64 = 1000;

/// Accepts connections until the endpoint is closed.
pub(super) async fn run(node: Arc<Node>) {
    let admissions = Admissions::default();
    let reports = Arc::new(Reports::new());
    let mut flood = Flood::new();
    while let Some(incoming) = node.endpoint.accept().await {
        flood.warn(node.gate.dropped());
        let address = incoming.remote_address();
        let dialer = Dialer {
            address,
            is_member: node.gate.is_marked(&incoming.orig_dst_cid()) || node.gate.is_known(address),
            is_validated: incoming.remote_address_validated(),
        };
        let permit = match admissions.ask(dialer) {
            Admission::Granted(permit) => permit,
            Admission::Retry => {
                // It fails only for a validated address, of which no retry is asked.
                let _ = incoming.retry();
                continue;
            }
            // Its QUIC tries again soon; an answer would only make it give up.
            Admission::Full => {
                incoming.ignore();
                continue;
            }
        };
        let node = node.clone();
        let reports = reports.clone();
        tokio::spawn(async move {
            admit(&node, incoming, &reports).await;
            drop(permit);
        });
    }
}

/// Warns of floods, rarely.
struct Flood {
    told: u64,
    told_at: Instant,
}

impl Flood {
    fn new() -> Self {
        Self {
            told: 0,
            told_at: Instant::now(),
        }
    }

    fn warn(&mut self, dropped: u64) {
        let since = dropped.saturating_sub(self.told);
        if self.told_at.elapsed() < FLOOD_WARNING_INTERVAL {
            return;
        }
        if since >= FLOOD_PACKETS_MIN {
            tracing::warn!(
                packets = since,
                seconds = self.told_at.elapsed().as_secs(),
                "a flood of packets that belong to no connection was dropped"
            );
        }
        self.told = dropped;
        self.told_at = Instant::now();
    }
}

/// Reports refusals, and only so many of them.
struct Reports(Mutex<Reported>);

struct Reported {
    bucket: Bucket,
    left_out: u64,
    left_out_told: Instant,
}

impl Reports {
    fn new() -> Self {
        Self(Mutex::new(Reported {
            bucket: Bucket::full(REPORTS, Instant::now()),
            left_out: 0,
            left_out_told: Instant::now(),
        }))
    }

    fn refused(&self, node: &Node, remote: SocketAddr, error: DialError) {
        tracing::debug!(%remote, %error, "refused");
        let mut reported = self.0.lock();
        if !reported.bucket.take(REPORTS, Instant::now()) {
            reported.left_out += 1;
            return;
        }
        let is_due = reported.left_out_told.elapsed() >= LEFT_OUT_WARNING_INTERVAL;
        if is_due && reported.left_out > 0 {
            let left_out = std::mem::take(&mut reported.left_out);
            reported.left_out_told = Instant::now();
            tracing::warn!(
                left_out,
                last = %remote,
                %error,
                "further connections were refused, more than are named one by one"
            );
        }
        drop(reported);
        // An event that finds the queue full is only logged: nothing may block on strangers.
        let _ = node
            .events
            .try_send(TransportEvent::Refused { remote, error });
    }
}

async fn admit(node: &Arc<Node>, incoming: Incoming, reports: &Reports) {
    let remote = incoming.remote_address();
    let introduced = timeout(INTRODUCTION_MAX, introduce(node, incoming)).await;
    let error = match introduced {
        Ok(Ok(())) | Ok(Err(HandshakeError::Needless)) => return,
        // The network failed or the dialer gave up: nobody was refused, so nothing is reported.
        Ok(Err(HandshakeError::Failed(DialError::NoAnswer | DialError::Other(_)))) => return,
        Ok(Err(HandshakeError::Failed(error))) => error,
        Err(_) => DialError::BadPreface("it did not introduce itself in time".into()),
    };
    reports.refused(node, remote, error);
}

/// Completes the handshake of a dialer, which must begin it at once.
async fn handshake(node: &Node, incoming: Incoming) -> Result<Connection, ConnectionError> {
    let mut connecting = incoming.accept()?;
    timeout(FIRST_FLIGHT_MAX, connecting.handshake_data())
        .await
        .map_err(|_| ConnectionError::TimedOut)??;
    let connection = connecting.await?;
    node.gate.authenticated(connection.remote_address());
    Ok(connection)
}

async fn introduce(node: &Arc<Node>, incoming: Incoming) -> Result<(), HandshakeError> {
    let connection = handshake(node, incoming)
        .await
        .map_err(|error| node.introduction.stranger(&error))?;
    node.track(&connection);
    let guard = CloseOnDrop::new(&connection, "it did not introduce itself in time");
    if is_version_exchange(&connection) {
        return Err(node.introduction.exchange_versions(&connection).await);
    }
    let (introduced, mut confirmation) = node.introduction.receive_preface(&connection).await?;
    node.introduction
        .check_not_self(&connection, introduced.peer)?;
    // The handshake may have begun under the credential before.
    if let Standing::Refused(reason) = node.standing(&connection, End::Acceptor) {
        let error = DialError::WrongClusterKey(reason);
        return Err(node.introduction.refuse(&connection, error));
    }
    let is_renewal = is_renewal(&connection);
    let accepted = Arc::new(Accepted::unused());
    let part = || {
        if introduced.bulk {
            Part::IncomingBulk(accepted.clone())
        } else {
            Part::IncomingControl(accepted.clone())
        }
    };
    if !is_renewal {
        let admissible = node.sessions.would_admit(introduced.peer, &part());
        admissible.map_err(|error| not_admitted(node, &connection, &introduced, error))?;
    }
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
    let admitted = if is_renewal {
        let peer = introduced.peer;
        let is_bulk = introduced.bulk;
        let renewed = node.sessions.admit_renewal(peer, is_bulk, accepted.clone());
        renewed.map(|(session, earlier)| (session, Some(earlier)))
    } else {
        let admitted = node.sessions.admit(introduced.peer, part());
        admitted.map(|session| (session, None))
    };
    let (session, earlier) =
        admitted.map_err(|error| not_admitted(node, &connection, &introduced, error))?;
    let connection = guard.keep();
    node.watch_accepted(&connection, &session, accepted.clone());
    if introduced.bulk {
        if node.same_host
            && let Some(listener) = same_host::Listener::bind(&connection)
        {
            let bytes = node.traffic.same_host();
            let connection = connection.clone();
            let session = session.clone();
            tokio::spawn(listener.receive(connection, session, accepted.clone(), bytes));
        }
        tokio::spawn(bulk::receive(connection, session, accepted));
    } else {
        admit_control(&connection, session.is_one_of_many);
        // It listens before the dialer is told that it was admitted.
        let same_host = node.same_host.then(|| node.traffic.same_host());
        let same_host =
            same_host.and_then(|bytes| same_host::ControlListener::bind(&connection, bytes));
        incoming::start(connection, session, accepted, earlier, same_host);
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
        AdmitError::TooMany => {
            let told = "too many nodes are connected from this host";
            close(connection, CloseCode::Dropped, told);
            DialError::BadPreface(told.into()).into()
        }
        AdmitError::OtherKey => {
            let error = other_key(introduced.peer);
            node.introduction.refuse(connection, error)
        }
        AdmitError::NothingToRenew => {
            close(connection, CloseCode::Dropped, "nothing is to be renewed");
            HandshakeError::Needless
        }
        AdmitError::AlreadyConnected | AdmitError::Closed => {
            close(connection, CloseCode::Leave, "the node is closing");
            HandshakeError::Needless
        }
    }
}
