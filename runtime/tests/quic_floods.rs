//! Strangers who know only a node's address flood it: nothing of their text reaches a log, and
//! however many they are, members connect.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[expect(dead_code, reason = "shared with the tests of who is refused")]
#[path = "together/raw_peer.rs"]
mod raw_peer;

use raw_peer::RawPeer;
use slowmo::internal::transport::quic::initials::{Says, initial};
use slowmo::internal::transport::quic::{self, ClusterKey, Identity, QuicSettings};
use slowmo_actors::ports::transport::{DialError, Transport, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);
/// How long a node is given to report what it received.
const REPORT_WAIT: Duration = Duration::from_millis(300);
const KEY: ClusterKey = ClusterKey::from_bytes([1; 32]);
/// Longest time in which a member connects under a flood. Alone it takes some milliseconds, and
/// longer on a busy machine. Strangers once kept members out for 5 s.
const CONNECT_MAX: Duration = Duration::from_millis(2500);
/// A line that does not come from the node, on a terminal that it has cleared.
const REASON: &[u8] = b"\x1b[2J\nERROR slowmo: the disk is full\r\n";

type Node = (Arc<dyn Transport>, Receiver<TransportEvent>);

fn node(id: u64) -> Node {
    let node = NodeId(id);
    let incarnation = Incarnation(id * 10);
    let identity = Identity::issue(&KEY, node, incarnation).unwrap();
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    quic::bind(QuicSettings::new(node, incarnation, listen, identity)).unwrap()
}

/// A well-formed Initial; each number makes another one.
fn packet(number: u32, says: Says<'_>) -> Vec<u8> {
    let mut id = [7; 8];
    id[..4].copy_from_slice(&number.to_le_bytes());
    initial(&id, &id, says).unwrap()
}

/// A stranger's socket; the last byte of its address makes it another host.
fn stranger(host: u8) -> UdpSocket {
    UdpSocket::bind((std::net::Ipv4Addr::new(127, 0, 0, host), 0)).unwrap()
}

/// All errors that the node reports: at least so many, and those that follow within
/// [`REPORT_WAIT`].
async fn refusals(events: &mut Receiver<TransportEvent>, at_least: usize) -> Vec<DialError> {
    let mut all = Vec::new();
    let wait = |told: usize| {
        if told < at_least {
            PATIENCE
        } else {
            REPORT_WAIT
        }
    };
    while let Ok(Some(event)) = timeout(wait(all.len()), events.recv()).await {
        match event {
            TransportEvent::Refused { error, .. } => all.push(error),
            _ => panic!("only refusals are expected"),
        }
    }
    all
}

fn is_clean(text: &str) -> bool {
    !text.contains(char::is_control) && !text.contains("disk")
}

#[tokio::test]
async fn nothing_of_a_strangers_text_is_reported() {
    let (one, mut events) = node(1);
    let stranger = stranger(1);
    // Codes of TLS alerts first: of many handshakes at once the later ones have to try again.
    let alerts = [0x130, 0x12a, 0x178];
    let codes = alerts.into_iter().chain(0..10);
    for (number, code) in codes.enumerate() {
        for (kind, says) in [
            Says::Close(code, REASON),
            Says::ApplicationClose(code, REASON),
        ]
        .into_iter()
        .enumerate()
        {
            let packet = packet((number * 2 + kind) as u32, says);
            stranger.send_to(&packet, one.local().address).unwrap();
        }
    }
    let told = refusals(&mut events, alerts.len()).await;
    assert!(told.len() >= alerts.len(), "{told:?}");
    assert!(
        told.iter().all(|error| is_clean(&error.to_string())),
        "{told:?}"
    );
    assert!(
        told.iter().all(|error| matches!(
            error,
            DialError::WrongClusterKey(_) | DialError::ProtocolVersion { .. }
        )),
        "only what TLS says by number is told of a stranger: {told:?}"
    );
}

#[tokio::test]
async fn a_flood_of_refusals_is_reported_rarely() {
    let (one, mut events) = node(1);
    let stranger = stranger(1);
    let begun = Instant::now();
    for number in 0..200 {
        let packet = packet(number, Says::Close(0x130, REASON));
        stranger.send_to(&packet, one.local().address).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let told = refusals(&mut events, 1).await;
    // 16 at once, and then one a second.
    let most = 17 + begun.elapsed().as_secs() as usize;
    assert!((1..=most).contains(&told.len()), "{} reports", told.len());
}

#[tokio::test]
async fn an_authenticated_peers_text_is_escaped() {
    let (one, mut events) = node(1);
    let raw = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    let connection = raw.admitted(one.local().address, false).await;
    let mut stream = raw_peer::write(&connection, &[0; 4]).await;
    assert!(matches!(
        timeout(PATIENCE, events.recv()).await.unwrap(),
        Some(TransportEvent::Control { .. })
    ));
    connection.close(1u32.into(), REASON);
    let _ = stream.finish();
    let Some(TransportEvent::PeerDown { reason, .. }) =
        timeout(PATIENCE, events.recv()).await.unwrap()
    else {
        panic!("the peer is down")
    };
    let told = reason.to_string();
    assert!(
        !told.contains(char::is_control) && told.contains("the disk is full"),
        "{told:?}"
    );
}

/// Dials until the peer is up, and returns how long that took.
async fn time_to_connect(from: &mut Node, to: SocketAddr) -> Duration {
    let begun = Instant::now();
    from.0.connect(to, PATIENCE);
    loop {
        match timeout(PATIENCE, from.1.recv())
            .await
            .expect("an event in time")
        {
            Some(TransportEvent::PeerUp { .. }) => return begun.elapsed(),
            Some(TransportEvent::DialFailed { error, .. }) => panic!("not connected: {error}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn members_connect_while_strangers_take_handshakes() {
    let (one, _events) = node(1);
    for host in [1, 2] {
        let stranger = stranger(host);
        for number in 0..300 {
            let packet = packet(number + 1000 * u32::from(host), Says::Ping);
            stranger.send_to(&packet, one.local().address).unwrap();
        }
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut two = node(2);
    let took = time_to_connect(&mut two, one.local().address).await;
    assert!(took < CONNECT_MAX, "{took:?}");
}

#[tokio::test]
async fn members_connect_under_a_lasting_flood_from_their_own_address() {
    let (one, mut one_events) = node(1);
    let address = one.local().address;
    let flood = std::thread::spawn(move || {
        let strangers = [stranger(1), stranger(2), stranger(3)];
        let packets: Vec<_> = (0..3000).map(|number| packet(number, Says::Ping)).collect();
        let begun = Instant::now();
        for (number, packet) in packets.iter().cycle().take(6000).enumerate() {
            strangers[number % 3].send_to(packet, address).unwrap();
            let due = Duration::from_micros(500) * number as u32;
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    });
    let drained = tokio::spawn(async move { while one_events.recv().await.is_some() {} });
    tokio::time::sleep(Duration::from_millis(500)).await;
    for id in 2..5 {
        let mut member = node(id);
        let took = time_to_connect(&mut member, address).await;
        assert!(took < CONNECT_MAX, "member {id}: {took:?}");
    }
    tokio::task::spawn_blocking(move || flood.join().unwrap())
        .await
        .unwrap();
    drained.abort();
}
