//! A node's credential is replaced while it runs: its sessions stay up and lose nothing, and the
//! credential before is refused once it is gone.

use crate::nodes::{PATIENCE, Renewable};
use crate::raw_peer::{self, RawPeer};
use bytes::Bytes;
use slowmo::internal::transport::quic::{ClusterKey, ClusterKeys, Identity, IdentityError};
use slowmo_actors::ports::transport::{DialError, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const OLD: ClusterKey = ClusterKey::from_bytes([1; 32]);
const NEW: ClusterKey = ClusterKey::from_bytes([2; 32]);
/// Far above what a renewal takes between two nodes that have the same keys.
const RENEWED: Duration = Duration::from_millis(1500);
const INCARNATION: Incarnation = Incarnation(7);

fn first() -> ClusterKeys {
    ClusterKeys::of(OLD)
}

fn both() -> ClusterKeys {
    first().rotated(NEW).unwrap()
}

fn last() -> ClusterKeys {
    both().retired().unwrap()
}

/// The identity of a process, whose key pair is the same whatever cluster keys it has.
fn identity(id: NodeId, keys: &ClusterKeys) -> Identity {
    static FIRST: Mutex<BTreeMap<NodeId, Identity>> = Mutex::new(BTreeMap::new());
    let mut identities = FIRST.lock().unwrap();
    let earlier = identities
        .entry(id)
        .or_insert_with(|| Identity::issue_all(&first(), id, INCARNATION, None).unwrap());
    Identity::issue_all(keys, id, INCARNATION, Some(earlier)).unwrap()
}

fn new(id: u64, keys: &ClusterKeys) -> Renewable {
    let id = NodeId(id);
    Renewable::new(id, INCARNATION, identity(id, keys))
}

fn renew(node: &Renewable, keys: &ClusterKeys) {
    node.renewer.renew(&identity(node.id, keys)).unwrap();
}

async fn pair(one: &ClusterKeys, two: &ClusterKeys) -> (Renewable, Renewable) {
    let mut nodes = (new(1, one), new(2, two));
    nodes.0.transport.connect(nodes.1.address(), PATIENCE);
    nodes.1.transport.connect(nodes.0.address(), PATIENCE);
    for node in [&mut nodes.0, &mut nodes.1] {
        assert!(matches!(node.next().await, TransportEvent::PeerUp { .. }));
    }
    nodes
}

/// Reads numbered frames and one stream until both are whole; nothing else may come.
async fn read_all(node: &mut Renewable, frames: u64, length: usize) {
    let mut read = 0;
    let mut streams = 0;
    while read < frames || streams == 0 {
        match node.next().await {
            TransportEvent::Control { frame, .. } => {
                assert_eq!(frame[..], read.to_le_bytes());
                read += 1;
            }
            TransportEvent::Bulk { mut stream, .. } => {
                let mut values = vec![0; length];
                timeout(PATIENCE, stream.read_exact(&mut values))
                    .await
                    .unwrap()
                    .unwrap();
                assert!(values.iter().all(|value| *value == 9));
                stream.expect_end().await.unwrap();
                streams += 1;
            }
            TransportEvent::PeerDown { reason, .. } => panic!("the session ended: {reason}"),
            _ => panic!("nothing else happens"),
        }
    }
}

#[tokio::test]
async fn a_session_loses_nothing_while_the_key_is_rotated() {
    const CHUNK: usize = 1 << 16;
    const CHUNKS: usize = 100;
    const FRAMES: u64 = 2_000;
    let (one, mut two) = pair(&first(), &first()).await;
    let sender = one.transport.clone();
    let to = two.id;
    // One stream is open over the whole rotation; frames are sent all the time.
    let values = tokio::spawn(async move {
        let mut stream = sender
            .open_bulk(to, Bytes::from_static(b"h"))
            .await
            .unwrap();
        for _ in 0..CHUNKS {
            stream.send(Bytes::from(vec![9; CHUNK])).await.unwrap();
            sleep(Duration::from_millis(50)).await;
        }
        stream.finish().await.unwrap();
    });
    let sender = one.transport.clone();
    let frames = tokio::spawn(async move {
        for number in 0..FRAMES {
            let frame = Bytes::copy_from_slice(&number.to_le_bytes());
            sender.send_control(to, frame).unwrap();
            sleep(Duration::from_millis(2)).await;
        }
    });
    let renewer = two.renewer.clone();
    let renew_two = |keys: &ClusterKeys| {
        renewer.renew(&identity(to, keys)).unwrap();
    };
    let rotating = async {
        sleep(Duration::from_millis(300)).await;
        renew(&one, &both());
        // The other node gets the file later.
        sleep(Duration::from_millis(300)).await;
        renew_two(&both());
        sleep(RENEWED).await;
        renew_two(&last());
        renew(&one, &last());
    };
    tokio::join!(read_all(&mut two, FRAMES, CHUNK * CHUNKS), rotating);
    values.await.unwrap();
    frames.await.unwrap();
    // Connections under the older key would be closed by now.
    sleep(Duration::from_secs(3)).await;
    let frame = Bytes::from_static(b"after");
    one.transport.send_control(to, frame.clone()).unwrap();
    let TransportEvent::Control { frame: read, .. } = two.next().await else {
        panic!("a frame");
    };
    assert_eq!(read, frame);
    assert!(two.events.try_recv().is_err(), "nothing else happened");
}

#[tokio::test]
async fn nodes_with_one_key_in_common_reach_each_other() {
    for (one, two) in [
        (first(), both()),
        (both(), first()),
        (both(), last()),
        (last(), both()),
    ] {
        pair(&one, &two).await;
    }
    let one = new(1, &first());
    let mut two = new(2, &last());
    two.transport.connect(one.address(), PATIENCE);
    assert!(matches!(
        two.dial_error().await,
        DialError::WrongClusterKey(_)
    ));
}

#[tokio::test]
async fn a_retired_key_opens_no_session_and_keeps_none() {
    let (mut one, mut two) = pair(&both(), &both()).await;
    let raw = RawPeer::new(&OLD, NodeId(9), INCARNATION);
    let old = raw.admitted(one.address(), false).await;
    raw_peer::write(&old, &[1, 0, 0, 0, 5]).await;
    assert!(matches!(one.next().await, TransportEvent::Control { .. }));
    for node in [&one, &two] {
        renew(node, &last());
    }
    let ended = timeout(PATIENCE, old.closed()).await.unwrap().to_string();
    assert!(ended.contains("not accepted any more"), "{ended}");
    let TransportEvent::PeerDown { node, reason, .. } = one.next().await else {
        panic!("the session of the old key ends");
    };
    assert_eq!(node, NodeId(9));
    assert!(reason.to_string().contains("not accepted"), "{reason}");

    let mut late = new(3, &first());
    late.transport.connect(one.address(), PATIENCE);
    assert!(matches!(
        late.dial_error().await,
        DialError::WrongClusterKey(_)
    ));
    assert!(two.events.try_recv().is_err(), "the members stay connected");
}

#[tokio::test]
async fn a_credential_of_another_cluster_is_not_taken() {
    let (one, mut two) = pair(&first(), &first()).await;
    let other = Identity::issue(&NEW, one.id, INCARNATION).unwrap();
    assert!(matches!(
        one.renewer.renew(&other),
        Err(IdentityError::AnotherCluster { .. })
    ));
    one.transport
        .send_control(two.id, Bytes::from_static(b"still"))
        .unwrap();
    assert!(matches!(two.next().await, TransportEvent::Control { .. }));
}
