//! Initial inputs for the decoders whose examples are not the protocol's golden bytes.

use super::machines::{LINEAGE, spec, view};
use crate::sim::{Look, search};
use slowmo::internal::admin::{Answer, Request};
use slowmo::internal::checkpoints::{self, Ancestor, Kept, KeptShard, Kind, Part, Tensor};
use slowmo::internal::config::keys::KEYS;
use slowmo::internal::transport::quic::{CLUSTER_KEY_BYTES, ClusterKey, Identity};
use slowmo::status::{LastRound, MemberState, MemberStatus, Status};
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator::{Base, Draft, Origin, Outcome, Proposal, Voter};
use slowmo_protocol::ident::{ClusterId, Epoch, Incarnation, NodeId, Round, Term};
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::wire::{
    Content, Contributed, Datagram, Frame, Header, Life, LifeState, LifeUpdate, Message,
    RefusalReason, SwimMessage, SwimPacket,
};
use std::collections::BTreeSet;

type Seeds = Vec<(String, Vec<u8>)>;
/// Messages with their senders.
type Pieces = Vec<(u8, Vec<u8>)>;

fn named(name: &str, bytes: impl Into<Vec<u8>>) -> (String, Vec<u8>) {
    (name.to_owned(), bytes.into())
}

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
            let (mut values, mut bytes) =
                (values.clone(), vec![0; wire.encoded_bytes(values.len())]);
            wire.encode_in_place(&mut values, &mut bytes);
            seeds.push((
                format!("{name}-{wire_name}"),
                [vec![number], bytes].concat(),
            ));
        }
    }
    seeds
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
        lineage: LINEAGE,
        round: Round::BOOTSTRAP,
        spec: spec(),
        contributors: participants.iter().copied().map(NodeId).collect(),
        view: next,
        absent: Vec::new(),
        momentum_lost: 0,
        samples: None,
        order: Vec::new(),
        origin: Origin::default(),
        forks: Vec::new(),
        waiting: Vec::new(),
        retained: Vec::new(),
        leader: NodeId(1),
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
    let contributed = || Contributed {
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
            forks: &[],
        },
    );
    let ready = |round, term| frame(round, term, Message::Ready);
    let accept = |entry| frame(now, second, Message::Accept(entry));
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
                (0, accept(None)),
                (0, decide(second, None, false)),
            ],
        ),
        (
            "finished",
            vec![
                (0, accept(Some(outcome.clone()))),
                (0, decide(second, Some(outcome.clone()), true)),
            ],
        ),
        (
            "late",
            vec![
                (0, decide(first, Some(outcome.clone()), false)),
                (1, ready(next, first)),
                (0, frame(now, first, Message::Overtaken)),
                (0, frame(now, first, Message::Learn)),
                (0, frame(now, first, Message::Learned)),
            ],
        ),
        (
            "promises",
            vec![
                (0, frame(now, (1, 1), promise)),
                (0, frame(now, (1, 1), Message::Opened)),
                (1, frame(now, (1, 1), Message::Accepted)),
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
        ("ask-brief", bare(Content::AskBrief { since_us: 1 })),
    ];
    let all: Vec<u8> = messages
        .iter()
        .flat_map(|(_, bytes)| piece(0, bytes))
        .collect();
    let mut seeds: Seeds = messages
        .iter()
        .map(|(name, bytes)| (String::from(*name), piece(0, bytes)))
        .collect();
    seeds.push(named("all", all));
    seeds
}

/// Configuration files: one key in each way that TOML can write it, and all keys with their
/// defaults.
pub(super) fn config_files() -> Seeds {
    let defaults: String = KEYS
        .iter()
        .filter(|key| !key.default.is_empty())
        .map(|key| format!("{} = \"{}\"\n", key.name, key.default))
        .collect();
    vec![
        named("defaults", defaults),
        named(
            "plain",
            "min_nodes = 3\ntau = 12\nbeta = 0.5\npeers = [\"10.0.0.1:7400\", \"node-2:7400\"]\njoin = true\n",
        ),
        named(
            "numbers",
            "tau = 0x1f\nmin_nodes = 0b11\nalpha = 1e0\nbeta = 5e-1\n",
        ),
        named(
            "strings",
            "listen = '''0.0.0.0:0'''\nquorum = \"sur\\u0076ivors\"\n# a comment\n",
        ),
        named("unknown", "[table]\ntua = 12\n"),
        named("mixed", "peers = [1, \"a\"]\ntau = 1979-05-27\n"),
    ]
}

/// Environment variables, then arguments.
pub(super) fn config_sources() -> Seeds {
    vec![
        named(
            "variables",
            "SLOWMO_TAU=12\nSLOWMO_BETA=0.5\nSLOWMO_MIN_NODES=2\nHOME=/root\nSLOWMO_LOG=debug",
        ),
        named(
            "flags",
            "\n\n--slowmo-tau=12\n--slowmo-beta\n0.5\n--mine\n--\n--slowmo-tau\n",
        ),
        named(
            "both",
            "SLOWMO_TAU=8\n\n--slowmo-tau\n12\n--slowmo_join=true\nfile.bin",
        ),
        named("unknown", "SLOWMO_TUA=8\n\n--slowmo-bteta=1"),
    ]
}

/// A fixed key, as text and as what is derived from it.
fn key() -> ClusterKey {
    ClusterKey::from_bytes([7; CLUSTER_KEY_BYTES])
}

/// A key, and PEM armour around nothing.
pub(super) fn credentials() -> Seeds {
    let armour =
        |what: &str, body: &str| format!("-----BEGIN {what}-----\n{body}\n-----END {what}-----\n");
    let files = [
        armour("CERTIFICATE", "MAMCAQE="),
        armour("CERTIFICATE", "MAMCAQE="),
        armour("PRIVATE KEY", "MAMCAQE="),
    ];
    vec![
        named("key", key().to_hex()),
        named("blanks", format!(" {}\n", key().to_hex())),
        named("pem", files.join("\0")),
    ]
}

/// A node's certificate, new each time because its key is new, and names.
pub(super) fn certificates() -> Seeds {
    let mut seeds = vec![
        named("name", "n18446744073709551615.i3.slowmo"),
        named("no-name", "n1.i2.slowmo.org"),
    ];
    if let Ok(identity) = Identity::issue(&key(), NodeId(9), Incarnation(3)) {
        seeds.push(named("issued", identity.certificate_for_tests()));
    }
    seeds
}

/// Admin requests and answers.
pub(super) fn admin() -> Seeds {
    let report = Status {
        node: 9,
        standing: MemberState::Member,
        lineage: format!("{:032x}", LINEAGE.0),
        epoch: 3,
        round: 42,
        step: 48,
        devices: vec!["cpu".to_owned()],
        members: vec![MemberStatus {
            node: 9,
            address: "10.0.0.9:7400".to_owned(),
            devices: 2,
            alive: true,
        }],
        last_round: LastRound {
            members: 2,
            alive: 1,
            contributors: 1,
            published_us: 1234,
        },
        contributors: vec![9],
        momentum_lost: 0,
        push_sum_weight_lost: 0.1,
        push_sum_weight_doubled: 1e-300,
        disagreement: Some(0.25),
        loss: None,
        measures: std::collections::BTreeMap::new(),
        gossip: None,
        checkpoints: None,
        waiting_for: None,
        http: None,
        events: Vec::new(),
    };
    let answers = [
        Answer::Done,
        Answer::Status(Box::new(report)),
        Answer::Refused {
            error: "é\n".to_owned(),
        },
    ];
    let requests = [
        Request::Status,
        Request::Drain,
        Request::Exited { node: u64::MAX },
    ];
    let answers = answers
        .iter()
        .filter_map(|answer| serde_json::to_vec(answer).ok());
    let requests = requests
        .iter()
        .filter_map(|request| serde_json::to_vec(request).ok());
    requests
        .chain(answers)
        .enumerate()
        .map(|(index, bytes)| (format!("{index}"), bytes))
        .collect()
}

/// The manifest of a small part, with and without everything optional.
pub(super) fn manifests() -> Seeds {
    let progress = Progress::new(slowmo_protocol::sampler::Settings {
        samples: 10,
        batch: 2,
        seed: 7,
    })
    .ok();
    let tensors = vec![Tensor {
        name: "layer.weight".to_owned(),
        shape: vec![5, 4],
        kind: Kind::Parameter,
    }];
    let checkpoint = checkpoints::Header {
        run: 1,
        lineage: LINEAGE.0,
        step: 96,
        round: 8,
        rounds_before: 40,
        elements: 23,
        parameters: 20,
        outer: Some("slowmo".to_owned()),
        momentum_lost: 1,
        members: vec![5, 9],
        samples: progress,
        tensors,
    };
    let whole = Part {
        format: 1,
        node: 9,
        incarnation: 3,
        written_at_us: 1_700_000_000_000_000,
        file: "node-9.safetensors".to_owned(),
        bytes: 400,
        shards: vec![
            KeptShard {
                shard: 0,
                values: 1 << 100,
                momentum: Some(7),
            },
            KeptShard {
                shard: 1,
                values: 3,
                momentum: Some(8),
            },
        ],
        optimizer: Some(Kept {
            values: 20,
            digest: 9,
        }),
        cursor: Some("é".to_owned()),
        ancestors: vec![Ancestor {
            run: 0,
            lineage: 5,
            step: 48,
        }],
        checkpoint,
    };
    let mut bare = whole.clone();
    bare.optimizer = None;
    bare.cursor = None;
    bare.checkpoint.samples = None;
    bare.checkpoint.outer = None;
    // The previous form had no digest, so that mutations of it get further.
    let before = serde_json::to_string(&whole).unwrap_or_default();
    let text = |part: &Part| String::from_utf8(part.text().unwrap_or_default()).unwrap_or_default();
    vec![
        named("whole", text(&whole)),
        named("bare", text(&bare)),
        named("before", before),
    ]
}

/// Two values of one tensor.
pub(super) fn tensor_files() -> Seeds {
    let header = r#"{"values.0":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   "#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend([0; 8]);
    vec![("two-values".to_owned(), file)]
}

/// Two small trajectories.
pub(super) fn trajectories() -> Seeds {
    let case = |base: &str, extra: &str| {
        format!(
            "{{\"name\":\"small\",\"workers\":2,\"gpus_per_node\":1,\"steps\":1,\"lr\":0.1,\"lr_drop_at\":null,\"lr_drop_to\":null,\
             \"base\":\"{base}\",\"slowmo_momentum\":0.5,\"slowmo_lr\":1.0,\"slowmo_frequency\":12,\"memory_efficient\":true,{extra}\
             \"shapes\":[[1,1]],\"initial\":[0.5],\"curvature\":[[1.0],[2.0]],\"target\":[[[1.0]],[[2.0]]],\"params\":[[[0.5]],[[0.25]]]}}"
        )
    };
    vec![
        named("localsgd", case("localsgd", "\"localsgd_frequency\":3,")),
        named(
            "sgp",
            case("sgp", "\"peers_per_step\":1,\"sgp_average_params\":true,"),
        ),
    ]
}

/// The first line of every kind of event and fault in two simulated runs.
pub(super) fn traces() -> Seeds {
    let mut seeds = Seeds::new();
    let mut seen = BTreeSet::new();
    for seed in [1, 2] {
        let report = search::seed(
            seed,
            &(3..=3),
            Look {
                keeps_trace: true,
                verbose: false,
            },
        );
        for line in report.trace.unwrap_or_default() {
            let Ok(json) = serde_json::to_value(&line) else {
                continue;
            };
            let word = |key: &str| {
                json.get(key)
                    .and_then(serde_json::Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let kind = format!("{}{}", word("event"), word("fault"));
            let text = json.to_string();
            if text.len() < 4096 && seen.insert(kind.clone()) {
                seeds.push((kind, text.into_bytes()));
            }
        }
    }
    seeds
}

/// Address list files.
pub(super) fn address_lists() -> Seeds {
    vec![
        named(
            "comments",
            "# the old rack\n10.0.0.1:7000\n\n  node-2:7001  # slow\n[::1]:7002\r\n",
        ),
        named("wrong", "node-1:7000\nnode-2\n"),
    ]
}

/// Slurm's variables.
pub(super) fn host_lists() -> Seeds {
    vec![
        named("hosts", "node[01-03,07],gpu5"),
        named("tasks", "r[1-2]n[1,3]-ib\n2(x3),1"),
        named("large", "n[0-999999999]"),
        named("open", "n[1-"),
    ]
}
