//! An authenticated peer that sends garbage, lies about who it is, or has no part in the run: the run's bits do not change.

use crate::support::{Job, bits, descend, local_sgd, noise, noisy, sgp, uneven};
use slowmo::transport::memory::MemoryHub;
use slowmo::{Config, Network, Runtime};
use slowmo_actors::ports::transport::{SendError, Transport, TransportEvent};
use slowmo_protocol::coordinator::{RoundKind, Terms};
use slowmo_protocol::ident::{Ballot, ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Step};
use slowmo_protocol::wire::{
    BULK_HEADER_BYTES_MAX, Bulk, BulkHeader, CONTROL_FRAME_BYTES_MAX, Contribution, Frame, Header, Hello, Message, RefusalReason,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const STEPS: usize = 30;
const STRANGER: NodeId = NodeId(99);

fn address(id: u64) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 43_000 + id as u16))
}

/// A header of this sender, right in all that a stranger can know or guess.
fn header(sender: NodeId, round: u64) -> Header {
    let (lineage, ballot) = (Lineage(1), Ballot { counter: 1, node: sender });
    Header { cluster: ClusterId(0), lineage, epoch: Epoch(1), round: Round(round), ballot, sender, incarnation: Incarnation(1) }
}

/// Frames that are well-formed and wrong: lies about the sender, and a stranger's opinions about the run.
fn wrong_frames() -> Vec<Vec<u8>> {
    let reason = RefusalReason::MemberLost { node: NodeId(1) };
    let hello = Hello { address: address(99), devices: 1, settings: "tau = 1".to_owned(), elements: Some(1), buffer_elements: Some(0) };
    let messages = [
        Message::Hello(hello),
        Message::Prepare,
        Message::Prepared,
        Message::Promise { accepted: None },
        Message::Stale,
        Message::Abandon(reason),
        Message::GossipMixed { step: Step(1) },
        Message::GossipRefused { step: Step(2) },
        Message::Leave,
    ];
    let senders = [STRANGER, NodeId(1), NodeId(2)];
    let frames =
        messages.into_iter().flat_map(|message| senders.map(|sender| Frame::V1 { header: header(sender, 1), message: message.clone() }));
    frames.map(|frame| frame.encode().unwrap()).collect()
}

fn wrong_stream_headers() -> Vec<Vec<u8>> {
    let terms = Terms { kind: RoundKind::Slow, step: Step(3), gamma: 0.1, elements: 600 };
    let contents = [
        Bulk::Contribution(Contribution { terms, weight: f64::NAN }),
        Bulk::Parameters,
        Bulk::Momentum,
        Bulk::Gossip { step: Step(1), weight: 1.0, scale: 0.5 },
    ];
    let senders = [STRANGER, NodeId(1), NodeId(2)];
    let headers = contents
        .into_iter()
        .flat_map(|content| senders.map(|sender| BulkHeader::V1 { header: header(sender, 1), content: content.clone() }));
    headers.map(|header| header.encode().unwrap()).collect()
}

/// Bytes that follow no format, seeded.
fn garbage(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Everything that a stranger can send to one node, once.
async fn attack(stranger: &Arc<dyn Transport>, to: NodeId, seed: u64) {
    let mut control: Vec<Vec<u8>> = wrong_frames();
    control.extend(wrong_frames().into_iter().map(|mut frame| {
        frame.truncate(frame.len() / 2);
        frame
    }));
    control.extend([0, 1, 17, 400, 70_000].map(|length| garbage(seed, length)));
    control.push(vec![0xff; CONTROL_FRAME_BYTES_MAX]);
    for frame in control {
        // A full queue is the stranger's own problem.
        _ = stranger.send_control(to, frame.into());
    }
    let oversized = stranger.send_control(to, vec![0; CONTROL_FRAME_BYTES_MAX + 1].into());
    assert!(matches!(oversized, Err(SendError::TooLarge { .. } | SendError::NotConnected(_))), "{oversized:?}");
    _ = stranger.send_datagram(to, garbage(seed, 1_000).into());
    let mut headers = wrong_stream_headers();
    headers.extend([0, 3, 200, BULK_HEADER_BYTES_MAX].map(|length| garbage(seed ^ 1, length)));
    for header in headers {
        if let Ok(mut stream) = stranger.open_bulk(to, header.into()).await {
            // Refused streams are stopped by their receiver; whether this one notices does not matter.
            _ = stream.send(garbage(seed ^ 2, 5_000).into()).await;
        }
    }
}

/// The run of [`undisturbed`] with a stranger in the hub; what each node held at the end.
fn attacked(config: &Config) -> Vec<Vec<f32>> {
    let hub = MemoryHub::new(None);
    let start = |id: u64| {
        let network = Network { hub: hub.clone(), address: address(id), peers: vec![address(3 - id)] };
        let config = Config { node_id: Some(id), min_nodes: 2, ..config.clone() };
        Runtime::builder().config(config).network(network).spawn().unwrap()
    };
    let nodes = [1, 2].map(start);
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stranger, mut events) = executor.block_on(async { hub.join(STRANGER, Incarnation(1), address(99)) });
    // The stranger comes after the founding, of which it would be a misconfigured part, and is done before the last steps.
    let (founded, attacked) = (Barrier::new(3), Barrier::new(3));
    thread::scope(|scope| {
        let training = nodes.each_ref().map(|node| {
            let (mut worker, founded, attacked) = (node.worker(0).unwrap(), &founded, &attacked);
            scope.spawn(move || {
                let mut values = uneven(600);
                let rank = worker.synchronize(&mut values).unwrap().node_rank;
                founded.wait();
                for step in 0..STEPS {
                    let gradients = noisy(rank, step, &values);
                    descend(&mut values, &gradients, 0.1);
                    worker.step(&mut values, 0.1).unwrap();
                    thread::sleep(Duration::from_millis(2));
                    if step + 5 == STEPS {
                        attacked.wait();
                    }
                }
                worker.leave().unwrap();
                values
            })
        });
        founded.wait();
        executor.block_on(async {
            [1, 2].into_iter().for_each(|id| stranger.connect(address(id), Duration::from_secs(5)));
            for seed in 0..2 {
                while !matches!(events.recv().await, Some(TransportEvent::PeerUp { .. })) {}
                attack(&stranger, NodeId(1), seed).await;
                attack(&stranger, NodeId(2), seed + 7).await;
            }
        });
        attacked.wait();
        training.map(|thread| thread.join().unwrap()).into()
    })
}

fn assert_undisturbed(config: &Config) {
    let job = Job { initial: uneven(600), steps: STEPS, ..Job::new(2, config.clone(), noise()) };
    let expected = job.values();
    for (seen, expected) in attacked(config).iter().zip(&expected) {
        assert_eq!(bits(seen), bits(&expected[STEPS - 1]));
    }
}

#[test]
fn a_stranger_does_not_disturb_outer_rounds() {
    assert_undisturbed(&local_sgd(1, 3, 1.0, 0.5));
}

#[test]
fn a_stranger_does_not_disturb_gossip() {
    assert_undisturbed(&sgp(5, 0.5));
}
