//! An authenticated peer that sends garbage, lies about who it is, or has no part in the run: the
//! run's bits do not change.

use crate::support::{Job, PATIENCE, bits, descend, local_sgd, noise, noisy, sgp, uneven};
use slowmo::internal::Network;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime};
use slowmo_actors::ports::transport::{SendError, Transport, TransportEvent};
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::changeable::{ChangedSettings, SettingValues};
use slowmo_protocol::coordinator::{
    Base, Draft, Entry, Outcome, Proposal, RoundKind, RoundSpec, Voter,
};
use slowmo_protocol::ident::{
    ClusterId, Epoch, GroupId, Incarnation, Lineage, NodeId, Round, Step, Term,
};
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::published::{Digest, PublicKey, Signature, Signed};
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{
    BULK_HEADER_BYTES_MAX, Bulk, BulkHeader, CONTROL_FRAME_BYTES_MAX, Content, ContributionHeader,
    ContributionNotice, Datagram, Frame, Header, Hello, JoinRefusal, Life, LifeState, LifeUpdate,
    MemberState, Message, RefusalReason, SwimMessage, SwimPacket,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const STEPS: usize = 30;
const STRANGER: NodeId = NodeId(99);
/// Longer than a suspicion lasts before it is a death.
const TIME_TO_WORK: Duration = Duration::from_millis(1_300);

fn address(id: u64) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 43_000 + id as u16))
}

/// A header of this sender, right in all that a stranger can know or guess.
fn header(sender: NodeId, round: u64) -> Header {
    let lineage = Lineage(1);
    let term = Term {
        counter: 1,
        node: sender,
    };
    Header {
        cluster: ClusterId(0),
        lineage,
        epoch: Epoch(1),
        round: Round(round),
        term,
        attempt: 0,
        sender,
        incarnation: Incarnation(1),
    }
}

/// A view of the next epoch in which only the stranger is left.
fn usurped() -> View {
    let stranger = Member {
        id: STRANGER,
        incarnation: Incarnation(1),
        address: address(99),
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    View::new(Epoch(2), vec![stranger]).unwrap()
}

/// Introduces the stranger: with another configuration, another model, and a place far ahead in a
/// history of its own.
fn hello(standing: bool) -> Message {
    let lineage = Lineage(1);
    let round = Round(9_999);
    let dead = vec![STRANGER, NodeId(2)];
    let standing = standing.then(|| MemberState {
        lineage,
        forks: Vec::new(),
        round,
        view: usurped(),
        dead,
    });
    let model = Some(ModelSize::of(1));
    Message::Hello(Hello {
        address: address(99),
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
        settings: "tau = 1".to_owned(),
        model,
        standing,
        lineage: Some(Lineage(1)),
    })
}

fn spec() -> RoundSpec {
    RoundSpec {
        kind: RoundKind::Slow,
        step: Step(3),
        gamma: 0.1,
        elements: 600,
    }
}

/// An outcome of round 1 that the stranger decided alone.
fn forged() -> Outcome {
    Outcome {
        contributors: vec![STRANGER],
        leader: STRANGER,
        ..Outcome::of_all(Lineage(1), Round(1), spec(), usurped())
    }
}

/// Every message there is, from somebody who is no member: all well-formed, all wrong.
fn wrong_messages() -> Vec<Message> {
    let proposal = Proposal {
        outcome: forged(),
        participants: vec![STRANGER, NodeId(2)],
    };
    let view = usurped();
    let draft = Draft::new(
        &proposal,
        Base {
            round: Round(1),
            view: &view,
            order: &[],
            changed: ChangedSettings::default(),
            forks: &[],
        },
    );
    let voters = vec![Voter {
        node: STRANGER,
        incarnation: Incarnation(1),
    }];
    let contributed = ContributionNotice {
        spec: RoundSpec {
            step: Step(99),
            ..spec()
        },
        samples: None,
        rates: vec![],
    };
    let accepted = Some((header(STRANGER, 1).term, forged()));
    vec![
        hello(false),
        hello(true),
        Message::Bootstrap {
            view: usurped(),
            lineage: Lineage(1),
        },
        Message::Join,
        Message::Refused(JoinRefusal::NoParameters),
        Message::Leave { contributes: true },
        Message::Leave { contributes: false },
        Message::Contribute(contributed.clone()),
        Message::Prepare,
        Message::Promise {
            accepted: None,
            floor: Term::default(),
            contributed: None,
        },
        Message::Promise {
            accepted,
            floor: Term {
                counter: 9,
                node: STRANGER,
            },
            contributed: Some(contributed),
        },
        Message::Open,
        Message::Opened,
        Message::Closed,
        Message::Attempt(draft.clone()),
        Message::Admit {
            parent: Outcome {
                round: Round(0),
                ..forged()
            },
            draft,
        },
        Message::Ready(Digest::default()),
        Message::Accept {
            entry: Entry::Held(Digest::default()),
            signature: Signature::default(),
        },
        Message::Accept {
            entry: Entry::Whole(forged()),
            signature: Signature::default(),
        },
        Message::Accepted(Signed::default()),
        Message::Overtaken,
        Message::Decide {
            entry: Entry::Held(Digest::default()),
            leaves: false,
        },
        Message::Decide {
            entry: Entry::Whole(forged()),
            leaves: true,
        },
        Message::Learn,
        Message::Learned,
        Message::Fork {
            lineage: Lineage(2),
            ordered: false,
            voters,
        },
        Message::Broken(NodeId(1)),
        Message::Abandon(RefusalReason::MomentumLost { shards: 3 }),
        Message::GossipMixed { step: Step(1) },
        Message::GossipRefused {
            step: Step(2),
            reached: Step(u64::MAX),
        },
        Message::GossipSkipped {
            first: Step(0),
            last: Step(u64::MAX),
        },
        Message::GossipAsk { step: Step(3) },
        Message::GossipReclaimed { step: Step(4) },
        Message::AskSettings {
            number: 0,
            values: SettingValues {
                tau: NonZeroU64::new(1_000),
                ..SettingValues::default()
            },
        },
    ]
}

/// Frames that are well-formed and wrong: lies about the sender, and a stranger's opinions about
/// the run.
fn wrong_frames() -> Vec<Vec<u8>> {
    let senders = [STRANGER, NodeId(1), NodeId(2)];
    let frame = |sender, message| Frame::V1 {
        header: header(sender, 1),
        message: Box::new(message),
    };
    let frames = wrong_messages()
        .into_iter()
        .flat_map(|message| senders.map(|sender| frame(sender, message.clone())));
    frames.map(|frame| frame.encode().unwrap()).collect()
}

fn wrong_stream_headers() -> Vec<Vec<u8>> {
    let contents = [
        Bulk::Contribution(ContributionHeader {
            spec: spec(),
            weight: f64::NAN,
            wire: WireType::Float32,
        }),
        Bulk::Contribution(ContributionHeader {
            spec: spec(),
            weight: 1.0,
            wire: WireType::Int8,
        }),
        Bulk::Parameters,
        Bulk::Update(WireType::Float32),
        Bulk::Update(WireType::BFloat16),
        Bulk::Relayed(ContributionHeader {
            spec: spec(),
            weight: 1.0,
            wire: WireType::Float32,
        }),
        Bulk::Partial(ContributionHeader {
            spec: spec(),
            weight: f64::INFINITY,
            wire: WireType::Float32,
        }),
        Bulk::Forwarded {
            owner: NodeId(1),
            wire: None,
        },
        Bulk::State,
        Bulk::Buffers,
        Bulk::Gossip {
            step: Step(1),
            weight: 1.0,
            scale: 0.5,
            wire: WireType::Float32,
        },
    ];
    let senders = [STRANGER, NodeId(1), NodeId(2)];
    let headers = contents.into_iter().flat_map(|content| {
        senders.map(|sender| BulkHeader::V1 {
            header: header(sender, 1),
            content: content.clone(),
        })
    });
    headers.map(|header| header.encode().unwrap()).collect()
}

/// Every message of SWIM, well-formed, from the stranger and in the members' names, with the news
/// that the members are dead: they can be met, so their lives are no secret.
fn wrong_datagrams(to: NodeId, lives: &[Life; 2]) -> Vec<Vec<u8>> {
    let stranger = Life {
        node: STRANGER,
        incarnation: Incarnation(1),
        renewals: 0,
    };
    let destination = lives.iter().copied().find(|life| life.node == to).unwrap();
    let news = |state| {
        lives
            .map(|life| LifeUpdate {
                life,
                refutations: u16::MAX,
                state,
            })
            .to_vec()
    };
    let messages = [
        SwimMessage::Ping { probe: 1 },
        SwimMessage::Acknowledge { probe: 1 },
        SwimMessage::PingRequest {
            target: lives[0],
            probe: 1,
        },
        SwimMessage::IndirectPing {
            origin: lives[1],
            probe: 1,
        },
        SwimMessage::IndirectAcknowledge {
            target: lives[0],
            probe: 1,
        },
        SwimMessage::ForwardedAcknowledge {
            origin: lives[1],
            probe: 1,
        },
        SwimMessage::Announce,
        SwimMessage::Feed,
        SwimMessage::Gossip,
        SwimMessage::Broadcast,
        SwimMessage::BelievedDead,
    ];
    let sources = [stranger, lives[0], lives[1]];
    let packets = sources.into_iter().flat_map(|source| {
        let states = [LifeState::Suspect, LifeState::Down];
        messages
            .into_iter()
            .zip(states.into_iter().cycle())
            .map(move |(message, state)| (source, message, state))
    });
    let contents = packets.map(|(source, message, state)| {
        Content::Swim(SwimPacket {
            source,
            refutations: u16::MAX,
            destination,
            message,
            updates: news(state),
        })
    });
    let datagrams = [Content::Ask, Content::Answer]
        .into_iter()
        .chain(contents)
        .map(Datagram::V1);
    datagrams
        .map(|datagram| datagram.encode().unwrap())
        .collect()
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

/// Sends a control frame as soon as there is room for it.
async fn deliver(stranger: &Arc<dyn Transport>, to: NodeId, frame: Vec<u8>) {
    let begun = Instant::now();
    while let Err(error) = stranger.send_control(to, frame.clone().into()) {
        assert!(
            matches!(error, SendError::QueueFull(_)) && begun.elapsed() < PATIENCE,
            "the stranger reaches node {to} no more: {error}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Everything that a stranger can send to one node, once. All of it is delivered.
async fn attack(stranger: &Arc<dyn Transport>, to: NodeId, seed: u64, lives: &[Life; 2]) {
    let mut control: Vec<Vec<u8>> = wrong_frames();
    control.extend(wrong_frames().into_iter().map(|mut frame| {
        frame.truncate(frame.len() / 2);
        frame
    }));
    control.extend([0, 1, 17, 400, 70_000].map(|length| garbage(seed, length)));
    control.push(vec![0xff; CONTROL_FRAME_BYTES_MAX]);
    for frame in control {
        deliver(stranger, to, frame).await;
    }
    let oversized = stranger.send_control(to, vec![0; CONTROL_FRAME_BYTES_MAX + 1].into());
    assert!(
        matches!(oversized, Err(SendError::TooLarge { .. })),
        "{oversized:?}"
    );
    let mut datagrams = wrong_datagrams(to, lives);
    datagrams.extend([0, 1, 30, 1_000].map(|length| garbage(seed, length)));
    for datagram in datagrams {
        stranger.send_datagram(to, datagram.into()).unwrap();
    }
    let mut headers = wrong_stream_headers();
    headers.extend([0, 3, 200, BULK_HEADER_BYTES_MAX].map(|length| garbage(seed ^ 1, length)));
    for header in headers {
        let mut stream = stranger.open_bulk(to, header.into()).await.unwrap();
        // Refused streams are stopped by their receiver; whether this one notices does not matter.
        _ = stream.send(garbage(seed ^ 2, 5_000).into()).await;
    }
}

/// The run of [`undisturbed`] with a stranger in the hub; what each node held at the end.
fn attacked(config: &Config) -> Vec<Vec<f32>> {
    let hub = MemoryHub::new(None);
    let start = |id: u64| {
        let network = Network {
            hub: hub.clone(),
            address: address(id),
            peers: vec![address(3 - id)],
        };
        let config = Config {
            node_id: Some(id),
            min_nodes: 2,
            ..config.clone()
        };
        Runtime::builder()
            .config(config)
            .network(network)
            .spawn()
            .unwrap()
    };
    let nodes = [1, 2].map(start);
    let executor = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (stranger, mut events) =
        executor.block_on(async { hub.join(STRANGER, Incarnation(1), address(99)) });
    // The stranger comes after the founding, of which it would be a misconfigured part, and is done
    // before the last steps.
    let founded = Barrier::new(3);
    let attacked = Barrier::new(3);
    thread::scope(|scope| {
        let training = nodes.each_ref().map(|node| {
            let mut worker = node.worker(0).unwrap();
            let founded = &founded;
            let attacked = &attacked;
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
                        thread::sleep(TIME_TO_WORK);
                    }
                }
                worker.leave().unwrap();
                values
            })
        });
        founded.wait();
        executor.block_on(async {
            [1, 2]
                .into_iter()
                .for_each(|id| stranger.connect(address(id), Duration::from_secs(5)));
            let mut lives = [1, 2].map(|node| Life {
                node: NodeId(node),
                incarnation: Incarnation(0),
                renewals: 0,
            });
            while lives.iter().any(|life| life.incarnation == Incarnation(0)) {
                if let Some(TransportEvent::PeerUp {
                    node, incarnation, ..
                }) = events.recv().await
                {
                    lives
                        .iter_mut()
                        .filter(|life| life.node == node)
                        .for_each(|life| life.incarnation = incarnation);
                }
            }
            for seed in 0..2 {
                attack(&stranger, NodeId(1), seed, &lives).await;
                attack(&stranger, NodeId(2), seed + 7, &lives).await;
            }
        });
        attacked.wait();
        training.map(|thread| thread.join().unwrap()).into()
    })
}

fn assert_undisturbed(config: &Config) {
    let job = Job {
        initial: uneven(600),
        steps: STEPS,
        ..Job::new(2, config.clone(), noise())
    };
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
fn a_stranger_does_not_disturb_encoded_rounds() {
    assert_undisturbed(&Config {
        round_wire: WireType::Int8,
        ..local_sgd(1, 3, 1.0, 0.5)
    });
}

#[test]
fn a_stranger_does_not_disturb_gossip() {
    assert_undisturbed(&sgp(5, 0.5));
}
