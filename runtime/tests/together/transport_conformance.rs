//! One suite of promises, kept by every transport: in memory, in memory with seeded delays, behind
//! faults, and QUIC.

use crate::nodes::{Kind, PATIENCE, over_every_transport, pattern};
use bytes::Bytes;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo_actors::ports::transport::{
    BulkError, CONTROL_QUEUE_FRAMES_MAX, DATAGRAM_BYTES_MAX, DialError, DownReason, SendError,
    TransportEvent,
};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::wire::{BULK_HEADER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX};
use std::cmp::Ordering;
use std::time::Duration;
use tokio::time::timeout;

async fn control_frames_arrive_in_order_once(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    for index in 0..1000u32 {
        one.transport
            .send_control(two.id, Bytes::copy_from_slice(&index.to_le_bytes()))
            .unwrap();
    }
    for index in 0..1000u32 {
        let (from, frame) = two.next_control().await;
        assert_eq!((from, &frame[..]), (one.id, &index.to_le_bytes()[..]));
    }
    one.transport.send_control(two.id, Bytes::new()).unwrap();
    assert!(two.next_control().await.1.is_empty());
}

async fn three_nodes_reach_each_other(kind: Kind) {
    let mut nodes = kind.cluster(3).await;
    for from in &nodes {
        for to in 0..3 {
            let sent = from
                .transport
                .send_control(NodeId(to), Bytes::from(format!("{} to {to}", from.id.0)));
            assert_eq!(
                sent.is_ok(),
                NodeId(to) != from.id,
                "nobody is connected to itself"
            );
        }
    }
    for node in &mut nodes {
        for _ in 0..2 {
            let (from, frame) = node.next_control().await;
            assert_eq!(frame, format!("{} to {}", from.0, node.id.0));
        }
    }
}

async fn oversize_is_refused_by_the_sender(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    let too_large = |length: usize, bound: usize| SendError::TooLarge { length, bound };
    let length = CONTROL_FRAME_BYTES_MAX + 1;
    let refused = one.transport.send_control(two.id, vec![0; length].into());
    assert_eq!(refused, Err(too_large(length, CONTROL_FRAME_BYTES_MAX)));
    let length = DATAGRAM_BYTES_MAX + 1;
    let refused = one.transport.send_datagram(two.id, vec![0; length].into());
    assert_eq!(refused, Err(too_large(length, DATAGRAM_BYTES_MAX)));
    let length = BULK_HEADER_BYTES_MAX + 1;
    let refused = one
        .transport
        .open_bulk(two.id, vec![0; length].into())
        .await
        .err();
    assert_eq!(
        refused,
        Some(BulkError::HeaderTooLarge {
            length,
            bound: BULK_HEADER_BYTES_MAX
        })
    );
    one.transport
        .send_control(two.id, pattern(CONTROL_FRAME_BYTES_MAX, 1))
        .unwrap();
    assert_eq!(
        two.next_control().await.1,
        pattern(CONTROL_FRAME_BYTES_MAX, 1)
    );
}

async fn strangers_are_not_connected(kind: Kind) {
    let one = kind.node(1, 1);
    let nobody = NodeId(9);
    assert_eq!(
        one.transport.send_control(nobody, Bytes::new()),
        Err(SendError::NotConnected(nobody))
    );
    assert_eq!(
        one.transport.send_datagram(nobody, Bytes::new()),
        Err(SendError::NotConnected(nobody))
    );
    assert_eq!(
        one.transport.open_bulk(nobody, Bytes::new()).await.err(),
        Some(BulkError::NotConnected(nobody))
    );
}

async fn bulk_streams_arrive_whole(kind: Kind) {
    const STREAMS: usize = 3;
    const BYTES: usize = 8 << 20;
    let (one, mut two) = kind.pair().await;
    let mut tasks = Vec::new();
    for stream in 0..STREAMS {
        let transport = one.transport.clone();
        let to = two.id;
        tasks.push(tokio::spawn(async move {
            let mut sender = transport
                .open_bulk(to, Bytes::from(stream.to_string()))
                .await
                .unwrap();
            let values = pattern(BYTES, stream);
            for start in (0..BYTES).step_by(1 << 20) {
                sender
                    .send(values.slice(start..start + (1 << 20)))
                    .await
                    .unwrap();
            }
            sender.finish().await.unwrap();
        }));
    }
    for _ in 0..STREAMS {
        let (header, mut stream) = two.next_bulk().await;
        tasks.push(tokio::spawn(async move {
            let salt: usize = std::str::from_utf8(&header).unwrap().parse().unwrap();
            let mut values = vec![0; BYTES];
            for part in values.chunks_mut(300_000) {
                stream.read_exact(part).await.unwrap();
            }
            stream.expect_end().await.unwrap();
            assert!(values == pattern(BYTES, salt), "stream {salt} differs");
        }));
    }
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
}

async fn a_sender_waits_for_its_receiver(kind: Kind) {
    const CHUNK: usize = 1 << 20;
    const BUFFERED_MAX: usize = 100 << 20;
    let (one, mut two) = kind.pair().await;
    let mut sender = one.transport.open_bulk(two.id, Bytes::new()).await.unwrap();
    let (_, mut stream) = two.next_bulk().await;
    let chunk = pattern(CHUNK, 0);
    let mut sent = 0;
    while timeout(Duration::from_millis(150), sender.send(chunk.clone()))
        .await
        .is_ok()
    {
        sent += CHUNK;
        assert!(sent <= BUFFERED_MAX, "nothing bounds what is buffered");
    }
    let mut into = vec![0; CHUNK];
    let reading = async {
        for _ in 0..sent / CHUNK {
            stream.read_exact(&mut into).await.unwrap();
        }
    };
    timeout(PATIENCE, reading).await.unwrap();
}

async fn a_full_control_queue_is_an_error(kind: Kind) {
    let (one, two) = kind.pair().await;
    let frame = pattern(64 << 10, 0);
    let sends = 20 * CONTROL_QUEUE_FRAMES_MAX;
    let full = (0..sends).find_map(|_| one.transport.send_control(two.id, frame.clone()).err());
    assert_eq!(full, Some(SendError::QueueFull(two.id)));
}

/// Lengths of streams, among them those at which QUIC's streams change (see `quic/stripes.rs`).
const LENGTHS: [usize; 9] = [
    1000,
    (32 << 10) - 1,
    32 << 10,
    (32 << 10) + 1,
    100_000,
    (224 << 10) + 1,
    256 << 10,
    288 << 10,
    (512 << 10) + 1,
];

async fn a_reset_stream_ends_with_reset(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    let mut explicit = one
        .transport
        .open_bulk(two.id, Bytes::from_static(b"reset"))
        .await
        .unwrap();
    explicit.send(pattern(1000, 0)).await.unwrap();
    let (_, mut stream) = two.next_bulk().await;
    explicit.reset();
    assert_eq!(
        stream.read_exact(&mut vec![0; 2000]).await,
        Err(BulkError::Reset)
    );

    // Longer than what one QUIC stream carries in turn.
    for length in LENGTHS {
        let mut sender = one.transport.open_bulk(two.id, Bytes::new()).await.unwrap();
        sender.send(pattern(length, 0)).await.unwrap();
        let (_, mut stream) = two.next_bulk().await;
        let mut values = vec![0; length];
        let reading = async {
            stream.read_exact(&mut values).await.unwrap();
            sender.reset();
            stream.read_exact(&mut [0; 1]).await
        };
        let read = timeout(PATIENCE, reading).await.unwrap();
        assert_eq!(read, Err(BulkError::Reset), "{length}");
    }

    let dropped = one
        .transport
        .open_bulk(two.id, Bytes::from_static(b"drop"))
        .await
        .unwrap();
    let (_, mut stream) = two.next_bulk().await;
    drop(dropped);
    assert_eq!(stream.expect_end().await, Err(BulkError::Reset));
}

async fn a_stopped_stream_fails_at_its_sender(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    let mut sender = one.transport.open_bulk(two.id, Bytes::new()).await.unwrap();
    let (_, stream) = two.next_bulk().await;
    drop(stream);
    let chunk = pattern(1 << 20, 0);
    let stopped = async {
        loop {
            if let Err(error) = sender.send(chunk.clone()).await {
                return error;
            }
        }
    };
    assert_eq!(timeout(PATIENCE, stopped).await.unwrap(), BulkError::Reset);
}

async fn a_stream_of_another_length_is_an_error(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    for length in LENGTHS {
        for expected in [length - 1, length, length + 1, length + 1_000_000] {
            let mut sender = one.transport.open_bulk(two.id, Bytes::new()).await.unwrap();
            sender.send(pattern(length, 0)).await.unwrap();
            sender.finish().await.unwrap();
            let (_, mut stream) = two.next_bulk().await;
            let mut values = vec![0; expected];
            let reading = async {
                let read = stream.read_exact(&mut values).await;
                let end = match read {
                    Ok(()) => stream.expect_end().await,
                    Err(_) => Ok(()),
                };
                (read, end)
            };
            let seen = timeout(PATIENCE, reading).await.unwrap();
            let right = match expected.cmp(&length) {
                Ordering::Less => (Ok(()), Err(BulkError::TooLong)),
                Ordering::Equal => (Ok(()), Ok(())),
                Ordering::Greater => (Err(BulkError::EndedEarly), Ok(())),
            };
            assert_eq!(seen, right, "{expected} of {length} bytes");
        }
    }
}

async fn closing_delivers_what_was_queued_and_tells_peers(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    for index in 0..100u8 {
        one.transport
            .send_control(two.id, Bytes::from(vec![index]))
            .unwrap();
    }
    one.transport.close().await;
    for index in 0..100u8 {
        assert_eq!(two.next_control().await.1[..], [index]);
    }
    let (node, reason) = two.next_down().await;
    assert_eq!(
        (node, reason.contains("leaves")),
        (one.id, true),
        "{reason}"
    );
    assert_eq!(
        two.transport.send_control(one.id, Bytes::new()),
        Err(SendError::NotConnected(one.id))
    );
}

async fn dropping_a_transport_takes_it_down(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    let mut sender = two.transport.open_bulk(one.id, Bytes::new()).await.unwrap();
    let id = one.id;
    drop(one);
    assert_eq!(two.next_down().await.0, id);
    assert!(matches!(
        sender.send(pattern(10, 0)).await,
        Err(BulkError::Broken(_))
    ));
    two.quiet(Duration::from_millis(50)).await;
}

async fn a_disconnected_peer_can_connect_again(kind: Kind) {
    let (mut one, mut two) = kind.pair().await;
    one.transport.disconnect(two.id, "it misbehaved");
    let (node, reason) = one.next_down().await;
    assert_eq!(
        (node, reason.contains("it misbehaved")),
        (two.id, true),
        "{reason}"
    );
    assert_eq!(
        two.wait_down(one.id).await,
        DownReason::Dropped("it misbehaved".into()),
        "it knows to dial again"
    );
    one.transport.connect(two.address(), PATIENCE);
    let TransportEvent::PeerUp { node, .. } = one.next().await else {
        panic!("up again")
    };
    assert_eq!(node, two.id);
    one.transport
        .send_control(two.id, Bytes::from_static(b"again"))
        .unwrap();
    assert_eq!(
        two.next_control().await,
        (one.id, Bytes::from_static(b"again"))
    );
}

async fn connecting_twice_or_to_oneself_does_nothing(kind: Kind) {
    let (mut one, mut two) = kind.pair().await;
    for _ in 0..3 {
        one.transport.connect(two.address(), PATIENCE);
        one.transport.connect(one.address(), PATIENCE);
    }
    one.quiet(Duration::from_millis(60)).await;
    two.quiet(Duration::from_millis(1)).await;
    one.transport
        .send_control(two.id, Bytes::from_static(b"still here"))
        .unwrap();
    assert_eq!(two.next_control().await.1, "still here");
}

async fn dialing_is_given_up(kind: Kind) {
    let mut one = kind.node(1, 1);
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    one.transport.connect(nobody, Duration::from_millis(120));
    let TransportEvent::DialFailed {
        address,
        tried_for,
        error,
    } = one.next().await
    else {
        panic!("given up")
    };
    assert_eq!((address, error), (nobody, DialError::NoAnswer));
    assert!(
        tried_for >= Duration::from_millis(60) && tried_for < Duration::from_secs(1),
        "{tried_for:?}"
    );
}

async fn a_late_listener_is_found(kind: Kind) {
    let mut one = kind.node(1, 1);
    let later = kind.node(2, 1);
    let address = later.address();
    later.transport.close().await;
    drop(later);
    one.transport.connect(address, PATIENCE);
    one.quiet(Duration::from_millis(50)).await;
    let later = kind.node_at(2, 2, address);
    let TransportEvent::PeerUp {
        node, incarnation, ..
    } = one.next().await
    else {
        panic!("up")
    };
    assert_eq!((node, incarnation), (later.id, Incarnation(2)));
}

async fn datagrams_arrive(kind: Kind) {
    let (one, mut two) = kind.pair().await;
    for size in [0, 1, DATAGRAM_BYTES_MAX] {
        one.transport
            .send_datagram(two.id, pattern(size, size))
            .unwrap();
        let TransportEvent::Datagram { from, datagram, .. } = two.next().await else {
            panic!("a datagram")
        };
        assert_eq!((from, datagram), (one.id, pattern(size, size)));
    }
}

async fn traffic_is_counted(kind: Kind) {
    const BYTES: usize = 1 << 20;
    let (one, mut two) = kind.pair().await;
    let before_one = one.transport.traffic();
    let before_two = two.transport.traffic();
    let mut sender = one.transport.open_bulk(two.id, Bytes::new()).await.unwrap();
    sender.send(pattern(BYTES, 0)).await.unwrap();
    sender.finish().await.unwrap();
    let (_, mut stream) = two.next_bulk().await;
    stream.read_exact(&mut vec![0; BYTES]).await.unwrap();
    stream.expect_end().await.unwrap();
    let sent = one.transport.traffic().sent_bytes - before_one.sent_bytes;
    let received = two.transport.traffic().received_bytes - before_two.received_bytes;
    for counted in [sent, received] {
        assert!(
            counted >= BYTES as u64 && counted < BYTES as u64 * 13 / 10,
            "{counted} bytes for {BYTES}"
        );
    }
}

over_every_transport! {
    control_frames_arrive_in_order_once
    three_nodes_reach_each_other
    oversize_is_refused_by_the_sender
    strangers_are_not_connected
    bulk_streams_arrive_whole
    a_sender_waits_for_its_receiver
    a_full_control_queue_is_an_error
    a_reset_stream_ends_with_reset
    a_stopped_stream_fails_at_its_sender
    a_stream_of_another_length_is_an_error
    closing_delivers_what_was_queued_and_tells_peers
    dropping_a_transport_takes_it_down
    a_disconnected_peer_can_connect_again
    connecting_twice_or_to_oneself_does_nothing
    dialing_is_given_up
    a_late_listener_is_found
    datagrams_arrive
    traffic_is_counted
}

/// Each of these streams needs eight QUIC streams at its end. Together they need more than a
/// connection has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_long_streams_of_quic_arrive() {
    const STREAMS: usize = 200;
    const BLOCK: usize = 32 << 10;
    const BLOCKS: usize = 9;
    let (one, mut two) = Kind::QuicOnly.pair().await;
    let mut tasks = Vec::new();
    for stream in 0..STREAMS {
        let transport = one.transport.clone();
        let to = two.id;
        tasks.push(tokio::spawn(async move {
            let mut sender = transport.open_bulk(to, Bytes::new()).await.unwrap();
            for block in 0..BLOCKS {
                sender.send(pattern(BLOCK, stream + block)).await.unwrap();
                // All streams are at about the same block.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            sender.finish().await.unwrap();
        }));
    }
    for _ in 0..STREAMS {
        let (_, mut stream) = two.next_bulk().await;
        tasks.push(tokio::spawn(async move {
            let mut values = vec![0; BLOCK * BLOCKS];
            stream.read_exact(&mut values).await.unwrap();
            stream.expect_end().await.unwrap();
        }));
    }
    for task in tasks {
        timeout(PATIENCE, task).await.unwrap().unwrap();
    }
}

/// Returns the senders in the order they were heard, when two nodes send to a third at the same
/// time.
async fn arrivals(seed: u64) -> Vec<NodeId> {
    let mut nodes = Kind::Memory(MemoryHub::new(Some(seed))).cluster(3).await;
    for index in 0..20u8 {
        for from in &nodes[1..] {
            from.transport
                .send_control(NodeId(0), vec![index].into())
                .unwrap();
        }
    }
    let mut order = Vec::new();
    for _ in 0..40 {
        order.push(nodes[0].next_control().await.0);
    }
    order
}

#[tokio::test]
async fn seeds_change_the_order_between_peers() {
    let mut orders = Vec::new();
    for seed in 0..4 {
        orders.push(arrivals(seed).await);
    }
    orders.dedup();
    assert!(orders.len() > 1, "four seeds, one order");
}
