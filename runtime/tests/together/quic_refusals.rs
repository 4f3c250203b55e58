//! The QUIC transport refuses strangers and tells both sides why; and nothing that an authenticated
//! peer sends harms.

use crate::raw_peer::{self, RawPeer};
use slowmo::internal::transport::quic::{
    self, BindError, ClusterKey, Identity, IdentityError, QuicSettings,
};
use slowmo_actors::ports::transport::{DialError, DownReason, Transport, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::wire::{
    BULK_HEADER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, PROTOCOL_VERSION, Preface,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);
const KEY: ClusterKey = ClusterKey::from_bytes([1; 32]);
const OTHER_KEY: ClusterKey = ClusterKey::from_bytes([2; 32]);

type Node = (Arc<dyn Transport>, Receiver<TransportEvent>);

fn settings(id: u64, key: &ClusterKey) -> QuicSettings {
    let node = NodeId(id);
    let incarnation = Incarnation(id * 10);
    let identity = Identity::issue(key, node, incarnation).unwrap();
    QuicSettings::new(
        node,
        incarnation,
        SocketAddr::from(([127, 0, 0, 1], 0)),
        identity,
    )
}

fn node(id: u64) -> Node {
    quic::bind(settings(id, &KEY)).unwrap()
}

async fn next(events: &mut Receiver<TransportEvent>) -> TransportEvent {
    timeout(PATIENCE, events.recv())
        .await
        .expect("an event in time")
        .expect("a live transport")
}

async fn dial_error(events: &mut Receiver<TransportEvent>) -> DialError {
    match next(events).await {
        TransportEvent::DialFailed {
            tried_for, error, ..
        } => {
            assert!(
                tried_for < Duration::from_secs(5),
                "a final error is reported at once"
            );
            error
        }
        _ => panic!("a failure to dial"),
    }
}

async fn refusal(events: &mut Receiver<TransportEvent>) -> DialError {
    match next(events).await {
        TransportEvent::Refused { error, .. } => error,
        _ => panic!("a refusal"),
    }
}

async fn violation(events: &mut Receiver<TransportEvent>) -> String {
    match next(events).await {
        TransportEvent::PeerDown {
            reason: DownReason::ProtocolViolation(told),
            ..
        } => told,
        _ => panic!("a violation"),
    }
}

/// Shows that a node still serves its peers.
async fn assert_alive(node: &mut Node, id: u64) {
    let (peer, mut peer_events) = self::node(id);
    peer.connect(node.0.local().address, PATIENCE);
    assert!(matches!(
        next(&mut peer_events).await,
        TransportEvent::PeerUp { .. }
    ));
    peer.send_control(node.0.local().node, "alive".into())
        .unwrap();
    assert!(
        matches!(next(&mut node.1).await, TransportEvent::Control { frame, .. } if frame == "alive")
    );
}

#[tokio::test]
async fn another_cluster_key_is_refused_on_both_sides() {
    let (one, mut one_events) = node(1);
    let (two, mut two_events) = quic::bind(settings(2, &OTHER_KEY)).unwrap();
    two.connect(one.local().address, Duration::from_secs(60));
    assert!(matches!(
        dial_error(&mut two_events).await,
        DialError::WrongClusterKey(_)
    ));
    assert!(matches!(
        refusal(&mut one_events).await,
        DialError::WrongClusterKey(_)
    ));
}

#[tokio::test]
async fn another_protocol_version_is_refused_with_both_named_on_both_sides() {
    let (one, mut one_events) = node(1);
    let mut newer = settings(2, &KEY);
    newer.protocol_version = PROTOCOL_VERSION + 1;
    let (two, mut two_events) = quic::bind(newer).unwrap();
    two.connect(one.local().address, Duration::from_secs(60));
    let version = |theirs: &str, ours: &str| DialError::ProtocolVersion {
        theirs: theirs.into(),
        ours: ours.into(),
    };
    let older = format!("slowmo/{PROTOCOL_VERSION}");
    let newer = format!("slowmo/{}", PROTOCOL_VERSION + 1);
    assert_eq!(dial_error(&mut two_events).await, version(&older, &newer));
    assert_eq!(refusal(&mut one_events).await, version(&newer, &older));
}

#[tokio::test]
async fn a_taken_port_is_named_with_what_to_do() {
    let (one, _events) = node(1);
    let mut same = settings(2, &KEY);
    same.listen = one.local().address;
    let Err(error) = quic::bind(same) else {
        panic!("the port is taken")
    };
    let told = error.to_string();
    assert!(matches!(error, BindError::AddressInUse { .. }));
    assert!(
        told.contains(&one.local().address.to_string()) && told.contains("port 0"),
        "{told}"
    );

    let mut elsewhere = settings(2, &KEY);
    elsewhere.listen = SocketAddr::from(([192, 0, 2, 1], 0));
    assert!(matches!(
        quic::bind(elsewhere),
        Err(BindError::AddressNotHere { .. })
    ));
}

#[tokio::test]
async fn an_unreachable_peer_is_named_with_how_long_it_was_tried() {
    let (one, mut events) = node(1);
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let dialed = nobody.local_addr().unwrap();
    one.connect(dialed, Duration::from_millis(150));
    let TransportEvent::DialFailed {
        address,
        tried_for,
        error,
    } = next(&mut events).await
    else {
        panic!("given up")
    };
    assert_eq!((address, error), (dialed, DialError::NoAnswer));
    assert!(
        tried_for >= Duration::from_millis(100) && tried_for < Duration::from_secs(1),
        "{tried_for:?}"
    );
}

#[tokio::test]
async fn a_node_with_the_same_id_is_refused_on_both_sides() {
    let (one, mut one_events) = node(1);
    let mut twin = settings(1, &KEY);
    twin.incarnation = Incarnation(11);
    twin.identity = Identity::issue(&KEY, NodeId(1), Incarnation(11)).unwrap();
    let (two, mut two_events) = quic::bind(twin).unwrap();
    two.connect(one.local().address, Duration::from_secs(60));
    assert_eq!(
        dial_error(&mut two_events).await,
        DialError::SameId(NodeId(1))
    );
    assert_eq!(refusal(&mut one_events).await, DialError::SameId(NodeId(1)));
}

#[tokio::test]
async fn of_two_live_nodes_with_one_id_the_one_that_is_connected_stays() {
    let (center, mut center_events) = node(1);
    let bind = |incarnation| {
        let identity = Identity::issue(&KEY, NodeId(7), Incarnation(incarnation)).unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        quic::bind(QuicSettings::new(
            NodeId(7),
            Incarnation(incarnation),
            listen,
            identity,
        ))
        .unwrap()
    };
    let (later, mut later_events) = bind(2);
    later.connect(center.local().address, PATIENCE);
    assert!(matches!(
        next(&mut later_events).await,
        TransportEvent::PeerUp { .. }
    ));
    let (earlier, mut earlier_events) = bind(1);
    earlier.connect(center.local().address, Duration::from_millis(250));
    assert_eq!(
        dial_error(&mut earlier_events).await,
        DialError::DuplicateId(NodeId(7))
    );
    assert_eq!(
        refusal(&mut center_events).await,
        DialError::DuplicateId(NodeId(7))
    );
}

/// Whoever holds the cluster key can issue itself a certificate in any node's name.
#[tokio::test]
async fn who_comes_in_the_name_of_a_known_node_is_refused() {
    let mut one = node(1);
    let mut two = node(2);
    two.0.connect(one.0.local().address, PATIENCE);
    assert!(matches!(
        next(&mut two.1).await,
        TransportEvent::PeerUp { .. }
    ));
    let impostor = RawPeer::new(&KEY, NodeId(2), two.0.local().incarnation);
    for (bulk, name) in [
        (false, "slowmo"),
        (true, "slowmo"),
        (false, "renewal.slowmo"),
        (true, "renewal.slowmo"),
    ] {
        let connection = impostor.connect_as(one.0.local().address, name).await;
        let incarnation = two.0.local().incarnation;
        let mut stream = impostor
            .introduce_as(&connection, NodeId(2), incarnation, bulk)
            .await;
        let _ = stream.finish();
        let DialError::BadPreface(told) = refusal(&mut one.1).await else {
            panic!("a bad preface")
        };
        assert!(told.contains("another key"), "{told}");
    }
    two.0.send_control(NodeId(1), "alive".into()).unwrap();
    assert!(
        matches!(next(&mut one.1).await, TransportEvent::Control { frame, .. } if frame == "alive")
    );

    // Nor is it the node once that one is gone.
    two.0.close().await;
    assert!(matches!(
        next(&mut one.1).await,
        TransportEvent::PeerDown { .. }
    ));
    let connection = impostor.connect(one.0.local().address).await;
    let incarnation = two.0.local().incarnation;
    let _stream = impostor
        .introduce_as(&connection, NodeId(2), incarnation, false)
        .await;
    assert!(matches!(
        refusal(&mut one.1).await,
        DialError::BadPreface(_)
    ));
}

#[tokio::test]
async fn a_certificate_that_contradicts_the_preface_is_refused() {
    let (one, mut events) = node(1);
    let raw = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    let connection = raw.connect(one.local().address).await;
    let _stream = raw
        .introduce_as(&connection, NodeId(3), Incarnation(1), false)
        .await;
    let DialError::BadPreface(told) = refusal(&mut events).await else {
        panic!("a bad preface")
    };
    assert!(told.contains("node 3") && told.contains("node 2"), "{told}");
    assert!(
        connection
            .closed()
            .await
            .to_string()
            .contains("certificate")
    );
}

#[tokio::test]
async fn garbage_instead_of_a_preface_is_refused() {
    let mut one = node(1);
    let raw = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    for garbage in [
        vec![0xff; 4096],
        vec![5, 0, 0, 0, 1, 2, 3, 4, 5],
        vec![0; 4],
    ] {
        let connection = raw.connect(one.0.local().address).await;
        raw_peer::write(&connection, &garbage).await;
        assert!(matches!(
            refusal(&mut one.1).await,
            DialError::BadPreface(_)
        ));
        connection.closed().await;
    }
    assert_alive(&mut one, 3).await;
}

#[tokio::test]
async fn an_oversized_control_frame_ends_the_connection_only() {
    let mut one = node(1);
    let raw = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    let connection = raw.admitted(one.0.local().address, false).await;
    raw_peer::write(&connection, &3u32.to_le_bytes())
        .await
        .write_all(b"one")
        .await
        .unwrap();
    assert!(
        matches!(next(&mut one.1).await, TransportEvent::Control { frame, .. } if frame == "one")
    );
    let connection = raw.admitted(one.0.local().address, false).await;
    assert!(
        matches!(next(&mut one.1).await, TransportEvent::PeerDown { .. }),
        "the second connection replaces the first"
    );
    raw_peer::write(&connection, &3u32.to_le_bytes())
        .await
        .write_all(b"two")
        .await
        .unwrap();
    assert!(
        matches!(next(&mut one.1).await, TransportEvent::Control { frame, .. } if frame == "two")
    );

    let connection = raw.admitted(one.0.local().address, false).await;
    assert!(matches!(
        next(&mut one.1).await,
        TransportEvent::PeerDown { .. }
    ));
    let mut stream = raw_peer::write(&connection, &0u32.to_le_bytes()).await;
    assert!(
        matches!(next(&mut one.1).await, TransportEvent::Control { frame, .. } if frame.is_empty())
    );
    stream.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    let told = violation(&mut one.1).await;
    assert!(
        told.contains(&u32::MAX.to_string()) && told.contains(&CONTROL_FRAME_BYTES_MAX.to_string()),
        "{told}"
    );
    connection.closed().await;
    assert_alive(&mut one, 3).await;
}

#[tokio::test]
async fn an_oversized_stream_header_ends_the_connection_only() {
    let mut one = node(1);
    let raw = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    let connection = raw.admitted(one.0.local().address, true).await;
    raw_peer::write(&connection, &1u32.to_le_bytes())
        .await
        .write_all(b"h")
        .await
        .unwrap();
    assert!(matches!(next(&mut one.1).await, TransportEvent::Bulk { header, .. } if header == "h"));
    raw_peer::write(
        &connection,
        &(BULK_HEADER_BYTES_MAX as u32 + 1).to_le_bytes(),
    )
    .await;
    assert!(violation(&mut one.1).await.contains("stream header"));
    connection.closed().await;
    assert_alive(&mut one, 3).await;
}

#[tokio::test]
async fn certificates_of_the_operator_are_accepted() {
    let files = raw_peer::operator_files();
    let bind = |id: u64| {
        let identity = Identity::from_pem(
            files.ca.as_bytes(),
            files.certificate.as_bytes(),
            files.key.as_bytes(),
        )
        .unwrap();
        quic::bind(QuicSettings::new(
            NodeId(id),
            Incarnation(1),
            SocketAddr::from(([127, 0, 0, 1], 0)),
            identity,
        ))
        .unwrap()
    };
    let (one, _one_events) = bind(1);
    let (two, mut two_events) = bind(2);
    two.connect(one.local().address, PATIENCE);
    let TransportEvent::PeerUp { node: up, .. } = next(&mut two_events).await else {
        panic!("up")
    };
    assert_eq!(up, NodeId(1));

    let (stranger, mut stranger_events) = node(3);
    stranger.connect(one.local().address, Duration::from_secs(60));
    assert!(matches!(
        dial_error(&mut stranger_events).await,
        DialError::WrongClusterKey(_)
    ));
    let unusable = Identity::from_pem(b"", files.certificate.as_bytes(), b"not PEM");
    assert!(matches!(unusable, Err(IdentityError::Certificate { .. })));
}

/// The preface is public wire format: what these tests write by hand must be what nodes write.
#[test]
fn raw_prefaces_are_real_ones() {
    let bytes = raw_peer::preface(
        &KEY,
        NodeId(2),
        Incarnation(1),
        SocketAddr::from(([127, 0, 0, 1], 1)),
        false,
    );
    assert!(Preface::decode(&bytes).is_ok());
}
