//! Quotas of one authenticated peer: streams, unread bytes, node ids.

use crate::raw_peer::{self, RawPeer};
use quinn::Connection;
use slowmo::internal::transport::quic::{self, ClusterKey, Identity, QuicSettings};
use slowmo_actors::ports::transport::{Transport, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

const KEY: ClusterKey = ClusterKey::from_bytes([1; 32]);
/// How long a peer waits for room that it is not given.
const ROOM_WAIT: Duration = Duration::from_millis(300);

fn node(id: u64) -> (Arc<dyn Transport>, Receiver<TransportEvent>) {
    let node = NodeId(id);
    let incarnation = Incarnation(id * 10);
    let identity = Identity::issue(&KEY, node, incarnation).unwrap();
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    quic::bind(QuicSettings::new(node, incarnation, listen, identity)).unwrap()
}

/// Opens streams and writes to them until the node gives no more room; returns how many streams
/// and bytes it took.
async fn fill(connection: &Connection) -> (usize, usize) {
    let chunk = vec![0; 1 << 16];
    let mut streams = Vec::new();
    let mut bytes = 0;
    while let Ok(Ok(mut stream)) = timeout(ROOM_WAIT, connection.open_uni()).await {
        // The length of a frame or header that does not come: nothing after it is read.
        while let Ok(Ok(written)) = timeout(ROOM_WAIT, stream.write(&chunk)).await {
            bytes += written;
        }
        streams.push(stream);
    }
    (streams.len(), bytes)
}

#[tokio::test]
async fn a_control_connection_takes_two_streams_and_two_frames() {
    let (one, _events) = node(1);
    let raw = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    let connection = raw.admitted(one.local().address, false).await;
    // The node reads frames until its queue is full for this peer: the first stream is not read
    // here, because the second one takes all room.
    let first = connection.open_uni().await.unwrap();
    let (streams, bytes) = fill(&connection).await;
    drop(first);
    assert!((1..=2).contains(&streams), "{streams} streams");
    assert!((1..=3 << 20).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn a_bulk_connection_that_is_not_read_takes_little() {
    let (one, _events) = node(1);
    let raw = RawPeer::new(&KEY, NodeId(2), Incarnation(1));
    let connection = raw.admitted(one.local().address, true).await;
    let mut stream = raw_peer::write(&connection, &1u32.to_le_bytes()).await;
    stream.write_all(b"h").await.unwrap();
    let chunk = vec![0; 1 << 16];
    let mut bytes = 0;
    while let Ok(Ok(written)) = timeout(ROOM_WAIT, stream.write(&chunk)).await {
        bytes += written;
    }
    assert!((1..=3 << 20).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn one_host_takes_a_bounded_number_of_node_ids() {
    let (one, mut events) = node(1);
    let drained = tokio::spawn(async move { while events.recv().await.is_some() {} });
    let mut admitted = Vec::new();
    let mut told = String::new();
    for id in 2..400 {
        let raw = RawPeer::new(&KEY, NodeId(id), Incarnation(1));
        let connection = raw.connect(one.local().address).await;
        let mut stream = raw
            .introduce_as(&connection, NodeId(id), Incarnation(1), false)
            .await;
        let Ok(mut answer) = connection.accept_uni().await else {
            told = connection.closed().await.to_string();
            break;
        };
        let _ = stream.finish();
        answer.read_to_end(1000).await.unwrap();
        admitted.push((raw, connection));
    }
    assert_eq!(admitted.len(), 256);
    // The last ones fill little: 256 ids do not take 256 times what one takes.
    let (_, last) = admitted.last().unwrap();
    let _first = last.open_uni().await.unwrap();
    let (_, bytes) = fill(last).await;
    assert!((1..=256 << 10).contains(&bytes), "{bytes} bytes");
    assert!(told.contains("too many nodes"), "{told}");
    drained.abort();
}
