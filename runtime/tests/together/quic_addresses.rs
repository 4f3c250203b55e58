//! Addresses of QUIC nodes: wildcards, aliases and IPv6; and a peer that vanishes without a word.

use crate::nodes::executor;
use slowmo::internal::transport::quic::{self, ClusterKey, Identity, QuicSettings, Tuning};
use slowmo_actors::ports::transport::{DownReason, Transport, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(80);

type Node = (Arc<dyn Transport>, Receiver<TransportEvent>);

fn node(id: u64, listen: IpAddr, tuning: Tuning) -> Node {
    let node = NodeId(id);
    let incarnation = Incarnation(1);
    let identity = Identity::issue(&ClusterKey::from_bytes([3; 32]), node, incarnation).unwrap();
    let mut settings = QuicSettings::new(node, incarnation, SocketAddr::new(listen, 0), identity);
    settings.tuning = tuning;
    quic::bind(settings).unwrap()
}

async fn next(events: &mut Receiver<TransportEvent>) -> TransportEvent {
    timeout(PATIENCE, events.recv())
        .await
        .expect("an event in time")
        .expect("a live transport")
}

async fn assert_up(node: &mut Node, id: u64, at: SocketAddr) {
    let TransportEvent::PeerUp { node, address, .. } = next(&mut node.1).await else {
        panic!("up")
    };
    assert_eq!((node, address), (NodeId(id), at));
}

#[tokio::test]
async fn aliases_of_a_peer_and_of_oneself_do_nothing() {
    let mut wide = node(1, Ipv4Addr::UNSPECIFIED.into(), Tuning::default());
    let mut other = node(2, Ipv4Addr::LOCALHOST.into(), Tuning::default());
    let port = wide.0.local().address.port();
    let at = |last: u8| SocketAddr::from(([127, 0, 0, last], port));
    other.0.connect(at(1), PATIENCE);
    assert_up(&mut other, 1, at(1)).await;
    other.0.connect(at(2), PATIENCE);
    wide.0.connect(at(1), PATIENCE);
    assert!(
        timeout(SHORT, other.1.recv()).await.is_err(),
        "an alias of a peer that is up"
    );
    assert!(
        timeout(SHORT, wide.1.recv()).await.is_err(),
        "an alias of oneself"
    );
    other.0.send_control(NodeId(1), "still up".into()).unwrap();
    assert!(matches!(
        next(&mut wide.1).await,
        TransportEvent::Control { frame, .. } if frame == "still up"
    ));
}

#[tokio::test]
async fn ipv6_works_like_ipv4() {
    if let Err(error) = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        let lacks_ipv6 = !std::path::Path::new("/proc/net/if_inet6").exists();
        assert!(
            lacks_ipv6 || std::env::var_os("CI").is_none(),
            "this machine has IPv6, and ::1 cannot be bound: {error}"
        );
        eprintln!("not tried: ::1 cannot be bound on this machine ({error})");
        return;
    }
    let mut one = node(1, Ipv6Addr::LOCALHOST.into(), Tuning::default());
    let mut two = node(2, Ipv6Addr::LOCALHOST.into(), Tuning::default());
    let first = one.0.local().address;
    let second = two.0.local().address;
    one.0.connect(second, PATIENCE);
    two.0.connect(first, PATIENCE);
    assert_up(&mut one, 2, second).await;
    assert_up(&mut two, 1, first).await;
}

#[test]
fn a_peer_that_vanishes_is_found_silent() {
    let idle_timeout = Duration::from_millis(400);
    let tuning = Tuning {
        idle_timeout,
        keep_alive: Duration::from_millis(100),
        ..Tuning::default()
    };
    let here = executor();
    let there = executor();
    let vanishing = there.block_on(async { node(2, Ipv4Addr::LOCALHOST.into(), tuning) });
    let address = vanishing.0.local().address;
    here.block_on(async {
        let mut one = node(1, Ipv4Addr::LOCALHOST.into(), tuning);
        one.0.connect(address, PATIENCE);
        assert_up(&mut one, 2, address).await;
        assert!(
            timeout(2 * idle_timeout, one.1.recv()).await.is_err(),
            "a peer with nothing to say is not silent"
        );
        there.shutdown_background();
        let TransportEvent::PeerDown { node, reason, .. } = next(&mut one.1).await else {
            panic!("down")
        };
        assert_eq!(
            (node, reason),
            (NodeId(2), DownReason::Silent(idle_timeout))
        );
    });
    drop(vanishing);
}
