//! A node's credential is replaced while it runs: its sessions stay up and lose nothing, and the
//! credential before is refused once it is gone.

use crate::raw_peer::{self, RawPeer};
use bytes::Bytes;
use slowmo::internal::transport::quic::{
    self, ClusterKey, ClusterKeys, Identity, IdentityError, QuicSettings, Renewer,
};
use slowmo_actors::ports::transport::{DialError, Transport, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};

const OLD: ClusterKey = ClusterKey::from_bytes([1; 32]);
const NEW: ClusterKey = ClusterKey::from_bytes([2; 32]);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(15);
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

struct Node {
    id: NodeId,
    transport: Arc<dyn Transport>,
    events: Receiver<TransportEvent>,
    renewer: Renewer,
}

impl Node {
    fn new(id: u64, keys: &ClusterKeys) -> Self {
        let id = NodeId(id);
        let identity = Identity::issue_all(keys, id, INCARNATION, None).unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let settings = QuicSettings::new(id, INCARNATION, listen, identity);
        let ((transport, events), renewer) = quic::bind_renewable(settings).unwrap();
        Self {
            id,
            transport,
            events,
            renewer,
        }
    }

    fn address(&self) -> SocketAddr {
        self.transport.local().address
    }

    fn renew(&self, keys: &ClusterKeys) {
        let identity = Identity::issue_all(keys, self.id, INCARNATION, None).unwrap();
        self.renewer.renew(&identity).unwrap();
    }

    async fn next(&mut self) -> TransportEvent {
        timeout(PATIENCE, self.events.recv())
            .await
            .expect("an event in time")
            .expect("a live transport")
    }

    async fn dial_error(&mut self) -> DialError {
        match self.next().await {
            TransportEvent::DialFailed { error, .. } => error,
            _ => panic!("a failed dial"),
        }
    }
}

async fn pair(one: &ClusterKeys, two: &ClusterKeys) -> (Node, Node) {
    let mut nodes = (Node::new(1, one), Node::new(2, two));
    nodes.0.transport.connect(nodes.1.address(), PATIENCE);
    nodes.1.transport.connect(nodes.0.address(), PATIENCE);
    for node in [&mut nodes.0, &mut nodes.1] {
        assert!(matches!(node.next().await, TransportEvent::PeerUp { .. }));
    }
    nodes
}

/// Reads numbered frames and one stream until both are whole; nothing else may come.
async fn read_all(node: &mut Node, frames: u64, length: usize) {
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
        let identity = Identity::issue_all(keys, to, INCARNATION, None).unwrap();
        renewer.renew(&identity).unwrap();
    };
    let rotating = async {
        sleep(Duration::from_millis(300)).await;
        one.renew(&both());
        // The other node gets the file later.
        sleep(Duration::from_millis(300)).await;
        renew_two(&both());
        sleep(RENEWED).await;
        renew_two(&last());
        one.renew(&last());
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
    let one = Node::new(1, &first());
    let mut two = Node::new(2, &last());
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
        node.renew(&last());
    }
    let ended = timeout(PATIENCE, old.closed()).await.unwrap().to_string();
    assert!(ended.contains("not accepted any more"), "{ended}");
    let TransportEvent::PeerDown { node, reason, .. } = one.next().await else {
        panic!("the session of the old key ends");
    };
    assert_eq!(node, NodeId(9));
    assert!(reason.to_string().contains("not accepted"), "{reason}");

    let mut late = Node::new(3, &first());
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
