//! Every transport reports who is alive: restarts, duplicates, returns, signs of life, port probes.

use crate::nodes::{Kind, PATIENCE, executor, over_every_transport, pattern};
use bytes::Bytes;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo_actors::ports::transport::{DialError, DownReason, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Time for which a duplicate is dialed in vain: much more than an answer takes, and less than the
/// time for which a silent peer counts as alive.
const IN_VAIN: Duration = Duration::from_millis(600);

async fn a_restarted_peer_replaces_its_predecessor(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    let id = one.id;
    // As good as killed: nobody listens at its address, and nobody was told.
    drop(one);
    let restarted = kind.node(id.0, 2);
    restarted.transport.connect(two.address(), PATIENCE);
    two.wait_down(id).await;
    two.transport.connect(restarted.address(), PATIENCE);
    let TransportEvent::PeerUp {
        node,
        incarnation,
        address,
    } = two.next().await
    else {
        panic!("up again")
    };
    assert_eq!(
        (node, incarnation, address),
        (id, Incarnation(2), restarted.address())
    );
}

async fn a_duplicate_of_a_live_peer_waits_until_it_is_dropped(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    let mut twin = kind.node_at(one.id.0, 2, kind.other_address());
    let showing_life = tokio::spawn({
        let transport = one.transport.clone();
        let to = two.id;
        async move {
            while transport.send_datagram(to, Bytes::new()).is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    let begun = std::time::Instant::now();
    twin.transport.connect(two.address(), IN_VAIN);
    let TransportEvent::DialFailed { error, .. } = twin.next().await else {
        panic!("refused")
    };
    assert_eq!(error, DialError::DuplicateId(one.id));
    assert!(
        !error.is_final() && begun.elapsed() >= IN_VAIN / 2,
        "it was tried again"
    );
    assert!(
        one.transport.send_control(two.id, Bytes::new()).is_ok(),
        "the live one is not harmed"
    );

    twin.transport.connect(two.address(), PATIENCE);
    tokio::time::sleep(Duration::from_millis(50)).await;
    two.transport.disconnect(one.id, "it is taken for dead");
    assert_eq!(
        two.wait_down(one.id).await,
        DownReason::ClosedHere("it is taken for dead".into())
    );
    assert_eq!(twin.wait_up(two.id).await, Incarnation(1));
    showing_life.await.unwrap();
    // Now that the other one is connected and alive, this one is not let in again.
    one.transport.connect(two.address(), IN_VAIN);
    let mut one = one;
    one.wait_down(two.id).await;
    loop {
        if let TransportEvent::DialFailed { error, .. } = one.next().await {
            return assert_eq!(error, DialError::DuplicateId(one.id));
        }
    }
}

async fn a_duplicate_of_a_silent_peer_is_let_in(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    let mut twin = kind.node_at(one.id.0, 2, kind.other_address());
    if matches!(kind, Kind::Quic | Kind::QuicOnly) {
        // It goes on answering pings; what a silent one looks like is in the tests of QUIC.
        drop(one);
    }
    twin.transport.connect(two.address(), PATIENCE);
    assert_eq!(twin.wait_up(two.id).await, Incarnation(1));
    two.wait_down(NodeId(0)).await;
}

async fn peers_come_and_go_in_both_directions(kind: Kind) {
    let (mut one, mut two) = kind.pair().await;
    for round in 0..4u8 {
        if round % 2 == 0 {
            one.transport.disconnect(two.id, "away")
        } else {
            two.transport.disconnect(one.id, "away")
        }
        one.wait_down(two.id).await;
        two.wait_down(one.id).await;
        one.transport.connect(two.address(), PATIENCE);
        two.transport.connect(one.address(), PATIENCE);
        one.wait_up(two.id).await;
        two.wait_up(one.id).await;
        one.transport
            .send_control(two.id, vec![round].into())
            .unwrap();
        two.transport
            .send_control(one.id, vec![round].into())
            .unwrap();
        assert_eq!(one.next_control().await.1[..], [round]);
        assert_eq!(two.next_control().await.1[..], [round]);
    }
    one.quiet(Duration::from_millis(20)).await;
}

async fn signs_of_life_are_counted(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    assert_eq!(two.transport.heard(NodeId(9)), 0, "a stranger");
    tokio::time::sleep(Duration::from_millis(60)).await;
    let before = two.transport.heard(one.id);
    one.transport.send_datagram(two.id, Bytes::new()).unwrap();
    two.next().await;
    let heard = two.transport.heard(one.id);
    assert!(heard > before && before > 0, "{heard} after {before}");
    let mut sender = one.transport.open_bulk(two.id, Bytes::new()).await.unwrap();
    sender.send(pattern(200_000, 0)).await.unwrap();
    let (_, mut stream) = two.next_bulk().await;
    stream.read_exact(&mut vec![0; 200_000]).await.unwrap();
    assert!(two.transport.heard(one.id) > heard, "bulk counts too");
    assert!(
        one.transport
            .round_trip(two.id)
            .is_some_and(|took| took < Duration::from_secs(1))
    );
    assert_eq!(one.transport.round_trip(NodeId(9)), None);
}

async fn port_probes_tell_whether_anybody_listens(kind: Kind) {
    let (mut one, two) = kind.pair().await;
    one.transport.port_probe(NodeId(9));
    for _ in 0..3 {
        one.transport.port_probe(two.id);
    }
    one.quiet(Duration::from_millis(60)).await;
    assert!(
        one.transport.send_control(two.id, Bytes::new()).is_ok(),
        "a probe does no harm"
    );
    let id = two.id;
    drop(two);
    one.wait_down(id).await;
    // The socket may take a moment to be closed.
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "never refused");
        one.transport.port_probe(id);
        if let Ok(Some(TransportEvent::PortRefused { node })) =
            timeout(Duration::from_millis(20), one.events.recv()).await
        {
            return assert_eq!(node, id);
        }
    }
}

over_every_transport! {
    a_restarted_peer_replaces_its_predecessor
    a_duplicate_of_a_live_peer_waits_until_it_is_dropped
    a_duplicate_of_a_silent_peer_is_let_in
    peers_come_and_go_in_both_directions
    signs_of_life_are_counted
    port_probes_tell_whether_anybody_listens
}

/// Over QUIC, a process that is stopped: it answers nothing, and its host refuses nothing.
#[test]
fn a_later_start_of_a_stopped_process_is_let_in_after_a_while() {
    let here = executor();
    let there = executor();
    let stopped = there.block_on(async { Kind::Quic.node(7, 1) });
    here.block_on(async {
        let mut one = Kind::Quic.node(1, 1);
        stopped.transport.connect(one.address(), PATIENCE);
        one.transport.connect(stopped.address(), PATIENCE);
        one.wait_up(NodeId(7)).await;
        there.shutdown_background();
        let begun = std::time::Instant::now();
        let mut later = Kind::Quic.node(7, 2);
        later.transport.connect(one.address(), PATIENCE);
        later.wait_up(NodeId(1)).await;
        let took = begun.elapsed();
        assert!(
            took >= Duration::from_millis(900) && took < Duration::from_millis(2_500),
            "{took:?}"
        );
        one.wait_down(NodeId(7)).await;
    });
    drop(stopped);
}

/// Over QUIC: control has its own connection, so that bulk which fills the line does not hold it
/// up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_is_quick_while_bulk_saturates() {
    let (one, mut two) = Kind::QuicOnly.pair().await;
    let mut sender = one.transport.open_bulk(two.id, Bytes::new()).await.unwrap();
    let (_, mut stream) = two.next_bulk().await;
    let reading = tokio::spawn(async move {
        let mut into = vec![0; 1 << 20];
        while stream.read_exact(&mut into).await.is_ok() {}
    });
    let sending = tokio::spawn(async move {
        let chunk = pattern(1 << 20, 0);
        while sender.send(chunk.clone()).await.is_ok() {}
    });
    let mut times = Vec::new();
    for _ in 0..100 {
        let begun = std::time::Instant::now();
        one.transport
            .send_control(two.id, Bytes::from_static(b"now"))
            .unwrap();
        two.next_control().await;
        times.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    sending.abort();
    reading.abort();
    times.sort();
    println!(
        "control while bulk saturates: p50 {:?}, p99 {:?}",
        times[50], times[98]
    );
    assert!(times[90] < Duration::from_millis(100), "{:?}", times[90]);
}
