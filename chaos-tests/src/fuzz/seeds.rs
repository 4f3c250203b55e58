//! Initial inputs for the decoders of bytes whose examples are not the protocol's golden bytes.
//! Those of text stand in the corpora alone.

use super::machines::{LINEAGE, spec, view};
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::changeable::ChangedSettings;
use slowmo_protocol::coordinator::{Base, Draft, Entry, Outcome, Proposal, Voter};
use slowmo_protocol::ident::{ClusterId, Epoch, Incarnation, NodeId, Round, Term};
use slowmo_protocol::published::{Digest, Signature, Signed};
use slowmo_protocol::wire::{
    Content, ContributionNotice, Datagram, Frame, Header, Life, LifeState, LifeUpdate, Message,
    RefusalReason, SwimMessage, SwimPacket,
};

type Seeds = Vec<(String, Vec<u8>)>;
/// Messages with their senders.
type Pieces = Vec<(u8, Vec<u8>)>;

/// Values of each wire type: a few, and a whole block plus one, with infinities and subnormal
/// numbers among them.
pub(super) fn values() -> Seeds {
    let numbers = |count: usize| {
        (0..count)
            .map(|index| (index as f32 - 3.5) * 0.37)
            .collect::<Vec<_>>()
    };
    let odd = vec![
        0.0,
        -0.0,
        f32::MIN_POSITIVE / 2.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        1e-30,
    ];
    let mut seeds = Seeds::new();
    let wires = [
        ("float32", WireType::Float32),
        ("bfloat16", WireType::BFloat16),
        ("int8", WireType::Int8),
    ];
    for (name, values) in [("few", numbers(7)), ("block", numbers(257)), ("odd", odd)] {
        for (number, (wire_name, wire)) in (0u8..).zip(wires) {
            let mut values = values.clone();
            let mut bytes = vec![0; wire.encoded_bytes(values.len())];
            wire.encode_in_place(&mut values, &mut bytes);
            seeds.push((
                format!("{name}-{wire_name}"),
                [vec![number], bytes].concat(),
            ));
        }
    }
    seeds
}

/// Blocks: some, one that is longer than allowed, one that is cut off.
pub(super) fn framing() -> Seeds {
    let seed = |name: &str, blocks: &[&[u8]], rest: &[u8]| {
        let mut bytes = vec![3];
        for block in blocks {
            bytes.extend_from_slice(&(block.len() as u32).to_le_bytes());
            bytes.extend_from_slice(block);
        }
        bytes.extend_from_slice(rest);
        (name.to_owned(), bytes)
    };
    vec![
        seed("some", &[b"abc", b"", b"d"], b""),
        seed("too-long", &[b"ab", b"abcd"], b""),
        seed("cut-off", &[b"ab"], &[3, 0, 0, 0, b'a']),
    ]
}

/// A piece in the format that the machines' targets read.
fn piece(sender: u8, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len().div_ceil(4);
    let mut piece = vec![sender, u8::try_from(length).unwrap_or(u8::MAX)];
    piece.extend_from_slice(bytes);
    piece.resize(2 + 4 * length, 0);
    piece
}

fn outcome(participants: &[u64]) -> Outcome {
    let members = view()
        .members()
        .iter()
        .filter(|member| participants.contains(&member.id.0))
        .cloned()
        .collect::<Vec<_>>();
    let changed = members.len() < view().size();
    let next = view()
        .succeeded_by(Epoch(1 + u64::from(changed)), members)
        .unwrap_or_else(|_| view());
    Outcome {
        contributors: participants.iter().copied().map(NodeId).collect(),
        leader: NodeId(1),
        ..Outcome::of_all(LINEAGE, Round::BOOTSTRAP, spec(), next)
    }
}

fn frame(round: Round, term: (u64, u64), message: Message) -> Vec<u8> {
    let term = Term {
        counter: term.0,
        node: NodeId(term.1),
    };
    // The target corrects cluster and sender.
    let cluster = ClusterId(1);
    let sender = NodeId(2);
    let incarnation = Incarnation(1);
    let header = Header {
        cluster,
        lineage: LINEAGE,
        epoch: Epoch::BOOTSTRAP,
        round,
        term,
        attempt: 0,
        sender,
        incarnation,
    };
    Frame::V1 {
        header,
        message: Box::new(message),
    }
    .encode()
    .unwrap_or_default()
}

/// Rounds in their normal order, and with disturbances that a peer may cause.
pub(super) fn coordinator() -> Seeds {
    let now = Round::BOOTSTRAP;
    let next = Round(1);
    let first = (0, 1);
    let second = (1, 2);
    let contributed = || ContributionNotice {
        spec: spec(),
        samples: None,
        rates: Vec::new(),
    };
    let contribute = |round| frame(round, first, Message::Contribute(contributed()));
    let outcome = outcome(&[1, 2]);
    let proposal = Proposal {
        outcome: outcome.clone(),
        participants: vec![NodeId(1), NodeId(2)],
    };
    let draft = Draft::new(
        &proposal,
        Base {
            round: now,
            view: &view(),
            order: &[],
            changed: ChangedSettings::default(),
            forks: &[],
        },
    );
    let ready = |round, term| frame(round, term, Message::Ready(Digest::default()));
    let accept = |entry| {
        let signature = Signature::default();
        frame(now, second, Message::Accept { entry, signature })
    };
    let decide = |term, entry, leaves| frame(now, term, Message::Decide { entry, leaves });
    let taken = Some((
        Term {
            counter: 0,
            node: NodeId(1),
        },
        outcome.clone(),
    ));
    let voters = view().members().iter().map(Voter::from).collect();
    let promise = Message::Promise {
        accepted: taken,
        floor: Term::default(),
        contributed: Some(contributed()),
    };
    let lists: Vec<(&str, Pieces)> = vec![
        (
            "round",
            vec![
                (0, contribute(now)),
                (1, contribute(now)),
                (0, ready(now, first)),
                (1, ready(now, first)),
                (0, contribute(next)),
            ],
        ),
        (
            "take-over",
            vec![
                (0, frame(now, second, Message::Prepare)),
                (0, frame(now, second, Message::Open)),
                (0, frame(now, second, Message::Attempt(draft.clone()))),
                (0, frame(now, second, Message::Closed)),
                (0, accept(Entry::Held(Digest::default()))),
                (0, decide(second, Entry::Held(Digest::default()), false)),
            ],
        ),
        (
            "finished",
            vec![
                (0, accept(Entry::Whole(outcome.clone()))),
                (0, decide(second, Entry::Whole(outcome.clone()), true)),
            ],
        ),
        (
            "late",
            vec![
                (0, decide(first, Entry::Whole(outcome.clone()), false)),
                (1, ready(next, first)),
                (0, frame(now, first, Message::Overtaken)),
                (0, frame(now, first, Message::Learn)),
                (0, frame(now, first, Message::Learned)),
                (0, frame(now, first, Message::GoesOn)),
                (0, frame(now, first, Message::AskCheckpoint)),
            ],
        ),
        (
            "promises",
            vec![
                (0, frame(now, (1, 1), promise)),
                (0, frame(now, (1, 1), Message::Opened)),
                (1, frame(now, (1, 1), Message::Accepted(Signed::default()))),
            ],
        ),
        (
            "broken",
            vec![
                (0, frame(now, first, Message::Broken(NodeId(3)))),
                (1, frame(now, (2, 3), Message::Overtaken)),
            ],
        ),
        (
            "abandoned",
            vec![(
                0,
                frame(
                    now,
                    first,
                    Message::Abandon(RefusalReason::MomentumLost { shards: 1 }),
                ),
            )],
        ),
        (
            "admitted",
            vec![(
                0,
                frame(
                    next,
                    second,
                    Message::Admit {
                        parent: outcome,
                        draft,
                    },
                ),
            )],
        ),
        (
            "forked",
            vec![(
                0,
                frame(
                    now,
                    second,
                    Message::Fork {
                        lineage: LINEAGE.parted(1),
                        ordered: false,
                        voters,
                    },
                ),
            )],
        ),
    ];
    let join = |list: Pieces| {
        list.iter()
            .flat_map(|(sender, bytes)| piece(*sender, bytes))
            .collect::<Vec<_>>()
    };
    lists
        .into_iter()
        .map(|(name, list)| (name.to_owned(), join(list)))
        .collect()
}

/// Each message of the liveness protocol, and unconfirmed deaths.
pub(super) fn liveness() -> Seeds {
    let life = |node: u64, renewals| Life {
        node: NodeId(node),
        incarnation: Incarnation(1),
        renewals,
    };
    let unconfirmed = |node, state| LifeUpdate {
        life: life(node, 0),
        refutations: 0,
        state,
    };
    let swim = |message, updates| {
        let packet = SwimPacket {
            source: life(2, 0),
            refutations: 0,
            destination: life(1, 0),
            message,
            updates,
        };
        Datagram::V1(Content::Swim(packet))
            .encode()
            .unwrap_or_default()
    };
    let bare = |content| Datagram::V1(content).encode().unwrap_or_default();
    let unconfirmed = vec![
        unconfirmed(3, LifeState::Down),
        unconfirmed(1, LifeState::Suspect),
        unconfirmed(2, LifeState::Alive),
    ];
    let probe = 1;
    let messages = [
        (
            "ping",
            swim(SwimMessage::Ping { probe }, unconfirmed.clone()),
        ),
        (
            "ping-request",
            swim(
                SwimMessage::PingRequest {
                    target: life(3, 0),
                    probe,
                },
                vec![],
            ),
        ),
        (
            "indirect-ping",
            swim(
                SwimMessage::IndirectPing {
                    origin: life(3, 0),
                    probe,
                },
                vec![],
            ),
        ),
        ("announce", swim(SwimMessage::Announce, vec![])),
        ("gossip", swim(SwimMessage::Gossip, unconfirmed)),
        ("believed-dead", swim(SwimMessage::BelievedDead, vec![])),
        ("ask", bare(Content::Ask)),
        ("ask-brief", bare(Content::AskStatusDigest { since_us: 1 })),
    ];
    let all: Vec<u8> = messages
        .iter()
        .flat_map(|(_, bytes)| piece(0, bytes))
        .collect();
    let mut seeds: Seeds = messages
        .iter()
        .map(|(name, bytes)| (String::from(*name), piece(0, bytes)))
        .collect();
    seeds.push(("all".to_owned(), all));
    seeds
}
