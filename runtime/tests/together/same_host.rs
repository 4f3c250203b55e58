//! Values and frames between nodes of one machine go over Unix sockets, which nobody but the peer
//! can use.
#![cfg(target_os = "linux")]

use crate::nodes::{self, Kind, Node, pattern};
use bytes::Bytes;
use slowmo_actors::ports::transport::BulkError;
use slowmo_protocol::ident::NodeId;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;
use tokio::time::timeout;

/// Time in which nothing arrives that is not going to.
const SILENCE: Duration = Duration::from_millis(300);
/// Length of the proof with which a stream begins.
const PROOF_BYTES: usize = 32;
/// Bytes that idle connections send in that time, at most.
const STILL_BYTES: u64 = 1 << 10;
/// Bytes that QUIC adds to this test's values, at least: packet headers, tags, acknowledgements.
const QUIC_OVERHEAD: u64 = 32 << 10;
/// Bytes that QUIC adds to this test's frames, at least.
const FRAMES_OVERHEAD: u64 = 8 << 10;

/// Names of the sockets on which nodes of this machine listen for values.
fn listening() -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = table.lines().filter_map(|line| line.split_once('@'));
    names
        .map(|(_, name)| name.to_owned())
        .filter(|name| name.starts_with("slowmo-"))
        .collect()
}

fn connect(name: &str) -> std::io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap())
}

async fn send(from: &Node, to: NodeId, values: &Bytes) {
    let opened = from.transport.open_bulk(to, "header".into()).await;
    let mut stream = opened.unwrap();
    stream.send(values.clone()).await.unwrap();
    stream.finish().await.unwrap();
}

async fn receive(node: &mut Node, bytes: usize) -> Vec<u8> {
    let (header, mut stream) = node.next_bulk().await;
    assert_eq!(header, "header");
    let mut values = vec![0; bytes];
    stream.read_exact(&mut values).await.unwrap();
    stream.expect_end().await.unwrap();
    values
}

/// The bytes that a node has sent, once its connections have found the largest packets.
async fn still(node: &Node) -> u64 {
    let mut before = 0;
    loop {
        let sent = node.transport.traffic().sent_bytes;
        if sent - before < STILL_BYTES {
            return sent;
        }
        before = sent;
        tokio::time::sleep(SILENCE).await;
    }
}

/// Sends 8 MiB and returns how many bytes were counted beyond them.
async fn overhead(kind: Kind) -> u64 {
    let (one, mut two) = kind.pair().await;
    let to = two.id;
    let values = pattern(8 << 20, 3);
    let before = still(&one).await;
    let ((), received) = tokio::join!(send(&one, to, &values), receive(&mut two, values.len()));
    assert!(received == values, "every byte arrived");
    one.transport.traffic().sent_bytes - before - values.len() as u64
}

#[tokio::test]
async fn values_go_past_quic() {
    assert!(overhead(Kind::QuicOnly).await > QUIC_OVERHEAD);
    let overhead = overhead(Kind::Quic).await;
    assert!(overhead < QUIC_OVERHEAD, "{overhead} bytes were added");
}

/// Sends frames one by one and returns how many bytes were counted beyond them.
async fn overhead_of_frames(kind: Kind) -> u64 {
    const FRAMES: usize = 500;
    let (one, mut two) = kind.pair().await;
    let before = still(&one).await;
    for number in 0..FRAMES {
        let frame = Bytes::from(format!("frame {number:3}"));
        one.transport.send_control(two.id, frame.clone()).unwrap();
        assert_eq!(two.next_control().await, (one.id, frame));
    }
    one.transport.traffic().sent_bytes - before - (FRAMES * "frame 000".len()) as u64
}

#[tokio::test]
async fn frames_go_past_quic() {
    assert!(overhead_of_frames(Kind::QuicOnly).await > FRAMES_OVERHEAD);
    let overhead = overhead_of_frames(Kind::Quic).await;
    assert!(overhead < FRAMES_OVERHEAD, "{overhead} bytes were added");
}

#[tokio::test]
async fn nobody_but_the_peer_can_send_values() {
    let before = listening();
    let (one, mut two) = Kind::Quic.pair().await;
    let sockets: Vec<String> = listening().difference(&before).cloned().collect();
    // Other tests of this process may listen at the same time.
    assert!(sockets.len() >= 2, "each node listens for the other");
    let mut strangers = Vec::new();
    for name in &sockets {
        for said in [
            Vec::new(),
            vec![0; PROOF_BYTES],
            [vec![7; PROOF_BYTES], vec![4, 0, 0, 0], vec![1; 4096]].concat(),
        ] {
            let Ok(mut stranger) = connect(name) else {
                continue;
            };
            // The node may have hung up already.
            let _ = stranger.write_all(&said);
            strangers.push((said, stranger));
        }
    }
    assert!(!strangers.is_empty());
    two.quiet(SILENCE).await;
    for (said, mut stranger) in strangers {
        if said.len() >= PROOF_BYTES {
            stranger.set_read_timeout(Some(nodes::PATIENCE)).unwrap();
            // An end, or a reset if the node left bytes unread.
            assert_eq!(stranger.read(&mut [0; 1]).unwrap_or(0), 0, "hung up");
        }
    }
    let to = two.id;
    let values = pattern(1 << 20, 5);
    let ((), received) = tokio::join!(send(&one, to, &values), receive(&mut two, values.len()));
    assert!(received == values, "the peer still can");
}

/// The most sockets of this machine that have one of these names.
fn most_sockets(names: &[String]) -> usize {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let of = |name: &String| table.lines().filter(|line| line.ends_with(name)).count();
    names.iter().map(of).max().unwrap()
}

#[tokio::test]
async fn streams_one_after_the_other_share_a_socket() {
    const STREAMS: usize = 40;
    let before = listening();
    let (one, mut two) = Kind::Quic.pair().await;
    let sockets: Vec<String> = listening().difference(&before).cloned().collect();
    let to = two.id;
    for sent in 0..STREAMS {
        let values = pattern(sent * 1_000, sent);
        let ((), received) = tokio::join!(send(&one, to, &values), receive(&mut two, values.len()));
        assert!(received == values, "every byte arrived");
    }
    // One listens; others are left where a word of the receiver came late.
    let most = most_sockets(&sockets);
    assert!(most < STREAMS / 2, "{most} sockets");
}

#[tokio::test]
async fn a_stream_that_is_not_read_takes_no_other_one_with_it() {
    let (one, mut two) = Kind::Quic.pair().await;
    let to = two.id;
    let values = pattern(10_000, 1);
    for _ in 0..20 {
        let ((), unread) = tokio::join!(send(&one, to, &values), two.next_bulk());
        let ((), received) = tokio::join!(send(&one, to, &values), receive(&mut two, values.len()));
        assert!(received == values, "it came by another socket");
        drop(unread);
        let ((), received) = tokio::join!(send(&one, to, &values), receive(&mut two, values.len()));
        assert!(received == values, "every byte arrived");
    }
}

#[tokio::test]
async fn sockets_end_with_their_session() {
    let before = listening();
    let (one, mut two) = Kind::Quic.pair().await;
    let sockets: Vec<String> = listening().difference(&before).cloned().collect();
    let mut stream = one
        .transport
        .open_bulk(two.id, "header".into())
        .await
        .unwrap();
    let (_, mut receiving) = two.next_bulk().await;
    one.transport.disconnect(two.id, "it is thought dead");
    two.wait_down(one.id).await;
    // Without bytes, and without an end: only the session's end tells.
    let read = timeout(nodes::PATIENCE, receiving.read_exact(&mut [0; 1])).await;
    assert!(matches!(read, Ok(Err(BulkError::Broken(_)))), "{read:?}");
    let sent = async {
        let chunk = pattern(1 << 20, 0);
        loop {
            if let Err(error) = stream.send(chunk.clone()).await {
                return error;
            }
        }
    };
    let error = timeout(nodes::PATIENCE, sent).await.unwrap();
    assert!(matches!(error, BulkError::Broken(_)), "{error:?}");
    drop((one, two, receiving));
    let until = std::time::Instant::now() + nodes::PATIENCE;
    while sockets.iter().any(|name| listening().contains(name)) {
        assert!(std::time::Instant::now() < until, "the sockets are closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
