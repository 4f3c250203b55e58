//! Over QUIC: attempts that take long or are given up half-way take nothing down, and what was
//! finished arrives before the end.

use crate::nodes::{Kind, PATIENCE, pattern};
use crate::raw_peer::{self, RawPeer};
use slowmo::internal::transport::quic::ClusterKey;
use slowmo_actors::ports::transport::TransportEvent;
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::sleep;

/// The key of the nodes of [`Kind`].
const KEY: ClusterKey = ClusterKey::from_bytes([42; 32]);
/// On the wire: connecting was needless.
const NEEDLESS: u32 = 6;

/// Carries datagrams to `target` and back, each `delay` late. Serves one dialer.
async fn slow_path(target: SocketAddr, delay: Duration) -> SocketAddr {
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let near = Arc::new(UdpSocket::bind(local).await.unwrap());
    let far = Arc::new(UdpSocket::bind(local).await.unwrap());
    let address = near.local_addr().unwrap();
    tokio::spawn(async move {
        let mut there = vec![0; 65_536];
        let mut back = vec![0; 65_536];
        let mut dialer = address;
        loop {
            let (socket, bytes, to) = tokio::select! {
                received = near.recv_from(&mut there) => {
                    let (length, from) = received.unwrap();
                    dialer = from;
                    (far.clone(), there[..length].to_vec(), target)
                }
                received = far.recv_from(&mut back) => (
                    near.clone(),
                    back[..received.unwrap().0].to_vec(),
                    dialer
                ),
            };
            tokio::spawn(async move {
                sleep(delay).await;
                socket.send_to(&bytes, to).await.unwrap();
            });
        }
    });
    address
}

#[tokio::test]
async fn a_long_round_trip_is_no_reason_to_begin_anew() {
    let mut one = Kind::Quic.node(1, 1);
    let mut two = Kind::Quic.node(2, 1);
    one.transport.connect(two.address(), PATIENCE);
    assert!(matches!(
        one.next().await,
        TransportEvent::PeerUp {
            node: NodeId(2),
            ..
        }
    ));
    // Six round trips of 300 ms: longer than the first attempt waits for its first answer.
    let path = slow_path(one.address(), Duration::from_millis(150)).await;
    two.transport.connect(path, PATIENCE);
    assert!(matches!(
        two.next().await,
        TransportEvent::PeerUp {
            node: NodeId(1),
            ..
        }
    ));
    two.transport.send_control(one.id, "here".into()).unwrap();
    assert_eq!(
        one.next_control().await,
        (two.id, "here".into()),
        "nothing went down on the way"
    );
}

#[tokio::test]
async fn a_peer_that_is_heard_is_dialed_anew_at_once() {
    let mut early = Kind::Quic.node(1, 1);
    // Takes what is sent to it and never answers, as the address of a machine that is down.
    let mute = UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let address = mute.local_addr().unwrap();
    early.transport.connect(address, PATIENCE);
    mute.recv(&mut [0; 2048]).await.unwrap();
    drop(mute);
    let begun = std::time::Instant::now();
    let late = Kind::Quic.node_at(2, 1, address);
    late.transport.connect(early.address(), PATIENCE);
    assert_eq!(early.wait_up(late.id).await, Incarnation(1));
    while early
        .transport
        .send_control(late.id, "here".into())
        .is_err()
    {
        sleep(Duration::from_millis(1)).await;
    }
    // What was sent to nobody is repeated after a second only.
    assert!(
        begun.elapsed() < Duration::from_millis(900),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn an_attempt_that_was_given_up_takes_no_later_one_down() {
    let mut node = Kind::Quic.node(1, 1);
    let peer = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    let abandoned = peer.admitted(node.address(), false).await;
    let unheard = peer.admitted(node.address(), false).await;
    abandoned.close(NEEDLESS.into(), b"the attempt was abandoned");
    let control = peer.admitted(node.address(), false).await;
    let bulk = peer.admitted(node.address(), true).await;
    let mut frames = raw_peer::write(&control, &[3, 0, 0, 0, b'o', b'n', b'e']).await;
    assert_eq!(node.next_control().await, (NodeId(2), "one".into()));
    // The earlier one's end was never heard of; the node closed it when the later one came.
    unheard.closed().await;
    frames
        .write_all(&[3, 0, 0, 0, b't', b'w', b'o'])
        .await
        .unwrap();
    assert_eq!(node.next_control().await, (NodeId(2), "two".into()));
    assert!(control.close_reason().is_none() && bulk.close_reason().is_none());
    control.close(1u32.into(), b"leaves");
    assert_eq!(
        node.next_down().await.0,
        NodeId(2),
        "the end of a connection that carried something counts"
    );
}

#[tokio::test]
async fn a_large_last_stream_arrives_although_its_sender_closes() {
    let (one, mut two) = Kind::QuicOnly.pair().await;
    // The first value that a node reads opens its window.
    let mut first = one
        .transport
        .open_bulk(two.id, "first".into())
        .await
        .unwrap();
    first.send(pattern(1, 5)).await.unwrap();
    first.finish().await.unwrap();
    let (_, mut opened) = two.next_bulk().await;
    opened.read_exact(&mut [0]).await.unwrap();
    opened.expect_end().await.unwrap();
    // All of it fits that window, so that it is under way when the sender closes.
    let message = pattern(12 << 20, 5);
    let mut stream = one
        .transport
        .open_bulk(two.id, "last".into())
        .await
        .unwrap();
    stream.send(message.clone()).await.unwrap();
    stream.finish().await.unwrap();
    let closing = tokio::spawn(async move { one.transport.close().await });
    let (header, mut stream) = two.next_bulk().await;
    assert_eq!(header, "last");
    let mut received = vec![0; message.len()];
    stream.read_exact(&mut received).await.unwrap();
    stream.expect_end().await.unwrap();
    assert!(received == message, "every byte arrived");
    closing.await.unwrap();
}
