//! One example of every kind of message on the wire, with the golden bytes of each, composed from
//! the bytes of its parts.
#![allow(clippy::unwrap_used)]

use super::datagram::tests::{messages as swim_messages, packet};
use super::*;
use crate::algorithm::WireType;
use crate::changeable::{ChangedSettings, SettingValues};
use crate::coordinator::{Draft, Entry, Order, Origin, Outcome, RoundKind, RoundSpec, Voter};
use crate::forks::Fork;
use crate::ident::{
    ClusterId, Epoch, GroupId, Incarnation, Lineage, NodeId, Round, ShardId, Step, Term,
};
use crate::model::{ModelSize, TensorDigests, Types};
use crate::published::{Digest, PublicKey, SIGNATURE_BYTES, Signature, Signed};
use crate::sampler::{DecidedRound, Progress, Settings};
use crate::topology::Rate;
use crate::view::{Member, View};
use std::net::SocketAddr;
use std::num::NonZeroU64;

/// The version and the header at the start of every frame and stream header.
pub(super) const HEADER: &str = "\
000000000807060504030201201f1e1d1c1b1a19181716151413121103000000000000002a0000000000000001000000000000000500000000000000\
020000000900000000000000cdab000000000000";
pub(super) const PREFACE: &str =
    "0000000008070605040302010900000000000000cdab000000000000000000000a000009e81c00";
pub(super) const PREFACE_V6: &str = "\
0000000008070605040302010900000000000000cdab0000000000000100000020010db8000000000000000000000001e91c01";
const LINEAGE: &str = "201f1e1d1c1b1a191817161514131211";
/// Epoch, two members with incarnation, address, devices, group and key, two slots.
const VIEW: &str = "\
0300000000000000\
020000000000000005000000000000000100000000000000000000000a000005e81c080006000000\
6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b\
0900000000000000cdab0000000000000100000020010db8\
000000000000000000000001e91c010006000000\
6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b\
020000000000000001000000";
/// Step, learning rate, elements; the kind precedes them.
const TERMS: &str = "3000000000000000cdcccc3d40787d0100000000";
const BOOTSTRAP: &str = "00000000";
const AVERAGE: &str = "01000000";
const SLOW: &str = "02000000";
const GRADIENTS: &str = "03000000";
/// Samples, batch, seed; step, two ranges, front, skipped.
const PROGRESS: &str = "\
0a0000000000000002000000000000000700000000000000\
020000000000000002000000000000000000000000000000100000000000000012000000000000002200000000000000\
24000000000000000000000000000000";
/// Nodes 5 and 9.
const BOTH: &str = "020000000000000005000000000000000900000000000000";
/// Nodes 9 and 5.
const TURNED: &str = "020000000000000009000000000000000500000000000000";
/// Node 5 at 1,000 and node 9 at 2 kilobytes per second.
const RATES: &str = "02000000000000000500000000000000e8030000090000000000000002000000";
/// Address, devices, group, key, settings.
const INTRODUCTION: &str = "\
000000000a000009e81c020006000000\
6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b\
1400000000000000746175203d2034380a62657461203d20302e350a";
const KEY: PublicKey = PublicKey([0x6b; 32]);
/// A digest with its signature.
const SIGNED: &str = "\
d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1\
51515151515151515151515151515151515151515151515151515151515151515151515151515151515151515151515151515151515151515151515151515151";
const DIGEST: Digest = Digest([0xd1; 32]);

pub(super) fn header() -> Header {
    Header {
        cluster: ClusterId(0x0102_0304_0506_0708),
        lineage: Lineage(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20),
        epoch: Epoch(3),
        round: Round(42),
        term: Term {
            counter: 1,
            node: NodeId(5),
        },
        attempt: 2,
        sender: NodeId(9),
        incarnation: Incarnation(0xabcd),
    }
}

/// A view in which node 5 has the slot after node 9, which joined first.
pub(super) fn view() -> View {
    let v4 = SocketAddr::from(([10, 0, 0, 5], 7400));
    let v6 = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401));
    let member = |id, incarnation, address, devices| Member {
        id: NodeId(id),
        incarnation: Incarnation(incarnation),
        address,
        devices,
        group: GroupId(6),
        key: KEY,
    };
    let first = View::new(Epoch(2), vec![member(9, 0xabcd, v6, 1)]).unwrap();
    first
        .succeeded_by(
            Epoch(3),
            vec![member(5, 1, v4, 8), member(9, 0xabcd, v6, 1)],
        )
        .unwrap()
}

pub(super) fn spec(kind: RoundKind) -> RoundSpec {
    RoundSpec {
        kind,
        step: Step(48),
        gamma: 0.1,
        elements: 25_000_000,
    }
}

/// Progress after two steps of which only node 9's batches are used up.
pub(super) fn progress() -> Progress {
    let whole = Progress::new(Settings {
        samples: 10,
        batch: 2,
        seed: 7,
    })
    .unwrap();
    whole.after(&DecidedRound {
        until: Step(2),
        contributors: &[NodeId(9)],
        members: view().members(),
    })
}

pub(super) fn outcome(kind: RoundKind) -> Outcome {
    let lineage = header().lineage;
    let contributors = vec![NodeId(5), NodeId(9)];
    let absent = vec![ShardId(3), ShardId(511)];
    let samples = Some(progress());
    let order = vec![NodeId(9), NodeId(5)];
    Outcome {
        lineage,
        round: Round(42),
        spec: spec(kind),
        contributors,
        view: view(),
        published: DIGEST,
        absent,
        momentum_lost: 6,
        samples,
        order,
        origin: origin(),
        checkpoint: true,
        changed: changed(),
        forks: vec![fork()],
        waiting: vec![NodeId(9)],
        retained: vec![retained()],
        leader: NodeId(5),
    }
}

/// The second change: at round 41, everything but the frequency.
fn changed() -> ChangedSettings {
    ChangedSettings {
        number: 2,
        round: Round(41),
        values: values(),
    }
}

fn values() -> SettingValues {
    SettingValues {
        tau: NonZeroU64::new(12),
        frequency: None,
        grace_ms: NonZeroU64::new(500),
        gossip_wire: Some(WireType::Int8),
        round_wire: Some(WireType::BFloat16),
        checkpoint_every: NonZeroU64::new(3),
    }
}

/// Bytes of [`values`].
const VALUES: &str = "010c000000000000000001f40100000000000001020000000101000000010300000000000000";
/// Bytes of [`changed`].
const CHANGED: &str = "020000002900000000000000";

fn origin() -> Origin {
    Origin {
        run: 2,
        rounds: 40,
        momentum_lost: 1,
    }
}

/// A fork at round 41, with two contributors.
fn fork() -> Fork {
    Fork {
        round: Round(41),
        contributors: 2,
        lineage: header().lineage,
    }
}

/// A voter that is not a member.
pub(super) fn retained() -> Member {
    let address = std::net::SocketAddr::from(([10, 0, 0, 7], 7400));
    Member {
        id: NodeId(7),
        incarnation: Incarnation(3),
        address,
        devices: 1,
        group: GroupId(6),
        key: KEY,
    }
}

/// A voter in a fork.
pub(super) fn voter() -> Voter {
    Voter {
        node: NodeId(7),
        incarnation: Incarnation(3),
    }
}

/// Origin: two resumptions, 40 rounds, a lost shard.
const ORIGIN: &str = "0200000028000000000000000100000000000000";
/// A member that waits to vote, a voter that is not a member, the leader.
const VOTERS: &str = "\
0100000000000000090000000000000001000000000000000700000000000000030000000000000000000000\
0a000007e81c010006000000\
6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b\
0500000000000000";
/// A fork at round 41, with two contributors; its lineage follows.
const FORK: &str = "290000000000000002000000";
/// Shards 3 and 511.
const ABSENT: &str = "020000000000000003000000ff010000";

fn digest_bytes() -> &'static str {
    &SIGNED[..64]
}

pub(super) fn signed() -> Signed {
    Signed {
        digest: DIGEST,
        signature: Signature::from([0x51; SIGNATURE_BYTES]),
    }
}

fn outcome_bytes(kind: &str) -> String {
    let digest = digest_bytes();
    format!(
        "{LINEAGE}2a00000000000000{kind}{TERMS}{BOTH}{VIEW}{digest}{ABSENT}060000000000000001{PROGRESS}{TURNED}{ORIGIN}01{CHANGED}{VALUES}0100000000000000{FORK}{LINEAGE}{VOTERS}"
    )
}

/// A draft: of four members one takes no part, one does not contribute, two leave; another node
/// joins.
pub(super) fn draft(kind: RoundKind) -> Draft {
    let Outcome {
        lineage,
        spec,
        absent,
        samples,
        order,
        waiting,
        retained,
        leader,
        ..
    } = outcome(kind);
    Draft {
        spec,
        lineage,
        absent_members: vec![2],
        idle_members: vec![1],
        leaving_members: vec![1, 3],
        joining: vec![view().members()[0].clone()],
        waiting,
        retained,
        leader,
        absent_shards: absent,
        momentum_lost: 6,
        samples,
        order: Some(Order(order)),
        origin: origin(),
        checkpoint: true,
        changed: Some(changed()),
        fork: Some(fork()),
    }
}

/// The ranks of the members that take no part, do not contribute, and leave; the node that joins.
const CHANGES: &str = "\
01000000000000000200\
01000000000000000100\
020000000000000001000300\
010000000000000005000000000000000100000000000000000000000a000005e81c080006000000\
6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b";

fn draft_bytes(kind: &str) -> String {
    format!(
        "{kind}{TERMS}{LINEAGE}{CHANGES}{VOTERS}{ABSENT}060000000000000001{PROGRESS}01{TURNED}{ORIGIN}0101{CHANGED}{VALUES}01{FORK}{LINEAGE}"
    )
}

pub(super) fn standing() -> MemberState {
    MemberState {
        lineage: header().lineage,
        forks: Vec::new(),
        round: Round(42),
        view: view(),
        dead: vec![NodeId(9)],
    }
}

pub(super) fn contributed() -> ContributionNotice {
    ContributionNotice {
        spec: spec(RoundKind::Slow),
        samples: Some(progress()),
        rates: vec![rate(5, 1000), rate(9, 2)],
    }
}

fn rate(to: u64, kilobytes: u32) -> Rate {
    Rate {
        to: NodeId(to),
        kilobytes,
    }
}

/// Digests of two tensors.
fn digests(first: u64) -> TensorDigests {
    let mut digests = TensorDigests::default();
    for all in [first, first + 1] {
        digests.add(all << 32 | 1);
    }
    digests
}

/// The bytes of [`digests`]: how many, those of the first tensors, the one of all.
fn digests_bytes(first: u32) -> String {
    let le = |value: u32| {
        value
            .to_le_bytes()
            .map(|byte| format!("{byte:02x}"))
            .concat()
    };
    let unused = le(0).repeat(16);
    let [one, two] = [first, first + 1].map(le);
    format!("{}{one}{two}{unused}{}{two}", le(2), le(1))
}

/// Hellos of a node that is in no view yet, and of a member.
fn hellos() -> Vec<(Message, String)> {
    let hello = |parameters: Option<u64>, standing, lineage| {
        let settings = "tau = 48\nbeta = 0.5\n".to_owned();
        let address = SocketAddr::from(([10, 0, 0, 9], 7400));
        let model = parameters.map(|parameters| ModelSize {
            parameters,
            buffers: 3,
            optimizer: 5,
            types: Types {
                bf16: 7,
                f16: 9,
                digest: 11,
            },
            tensors: digests(13),
        });
        Message::Hello(Hello {
            address,
            devices: 2,
            group: GroupId(6),
            key: KEY,
            settings,
            model,
            standing,
            lineage,
        })
    };
    let alive = "01000000000000000900000000000000";
    let sizes = "0140787d010000000003000000000000000500000000000000\
                 070000000000000009000000000000000b00000000000000";
    let model = format!("{sizes}{}", digests_bytes(13));
    let member = format!(
        "00000000{INTRODUCTION}{model}01{LINEAGE}00000000000000002a00000000000000{VIEW}{alive}00"
    );
    let joiner = format!("00000000{INTRODUCTION}{model}0001{LINEAGE}");
    vec![
        (
            hello(None, None, None),
            format!("00000000{INTRODUCTION}000000"),
        ),
        (hello(Some(25_000_000), Some(standing()), None), member),
        (
            hello(Some(25_000_000), None, Some(header().lineage)),
            joiner,
        ),
    ]
}

fn refusals() -> Vec<(Message, String)> {
    let size = |first| {
        Box::new(ModelSize {
            parameters: first,
            buffers: first + 1,
            optimizer: first + 2,
            types: Types::default(),
            tensors: digests(first + 3),
        })
    };
    let reasons = [
        (
            JoinRefusal::SettingsDiffer {
                differences: "tau é".to_owned(),
            },
            "00000000060000000000000074617520c3a9".to_owned(),
        ),
        (
            JoinRefusal::ModelsDiffer {
                cluster: size(1),
                joiner: size(4),
            },
            format!(
                "01000000010000000000000002000000000000000300000000000000{types}{}\
                 040000000000000005000000000000000600000000000000{types}{}",
                digests_bytes(4),
                digests_bytes(7),
                types = "00".repeat(24),
            ),
        ),
        (
            JoinRefusal::Full { max_nodes: 64 },
            "0200000040000000".to_owned(),
        ),
        (
            JoinRefusal::OtherLineage {
                cluster: header().lineage,
                joiner: Lineage(1),
            },
            format!("03000000{LINEAGE}01000000000000000000000000000000"),
        ),
        (
            JoinRefusal::DuplicateId { node: NodeId(9) },
            "040000000900000000000000".to_owned(),
        ),
        (JoinRefusal::NoParameters, "05000000".to_owned()),
    ];
    reasons
        .map(|(reason, bytes)| (Message::Refused(reason), format!("03000000{bytes}")))
        .into()
}

fn abandons() -> Vec<(Message, String)> {
    let differ = RefusalReason::SpecsDiffer {
        one: NodeId(5),
        one_spec: "a".to_owned(),
        other: NodeId(9),
        other_spec: "bé".to_owned(),
    };
    let reasons = [
        (
            differ,
            "0000000005000000000000000100000000000000610900000000000000030000000000000062c3a9",
        ),
        (
            RefusalReason::MomentumLost { shards: 7 },
            "0100000007000000",
        ),
        (
            RefusalReason::Overflowed {
                node: NodeId(5),
                element: 258,
            },
            "0200000005000000000000000201000000000000",
        ),
    ];
    reasons
        .map(|(reason, bytes)| (Message::Abandon(reason), format!("16000000{bytes}")))
        .into()
}

fn attempts() -> Vec<(Message, String)> {
    let plain = Draft {
        samples: None,
        order: None,
        changed: None,
        fork: None,
        ..draft(RoundKind::Bootstrap)
    };
    let admit = Message::Admit {
        parent: outcome(RoundKind::Average),
        draft: draft(RoundKind::Slow),
    };
    vec![
        (
            Message::Attempt(plain),
            format!(
                "0b000000{BOOTSTRAP}{TERMS}{LINEAGE}{CHANGES}{VOTERS}{ABSENT}06000000000000000000{ORIGIN}010000"
            ),
        ),
        (
            Message::Attempt(draft(RoundKind::Gradients)),
            format!("0b000000{}", draft_bytes(GRADIENTS)),
        ),
        (
            admit,
            format!("0c000000{}{}", outcome_bytes(AVERAGE), draft_bytes(SLOW)),
        ),
        (
            Message::Ready(DIGEST),
            format!("0d000000{}", digest_bytes()),
        ),
    ]
}

fn promises() -> Vec<(Message, String)> {
    let accepted = Some((header().term, outcome(RoundKind::Average)));
    let floor = Term {
        counter: 2,
        node: NodeId(9),
    };
    vec![
        (Message::Prepare, "06000000".to_owned()),
        (
            Message::Promise {
                accepted: None,
                floor: Term::default(),
                contributed: None,
            },
            format!("07000000{}", "00".repeat(18)),
        ),
        (
            Message::Promise {
                accepted,
                floor,
                contributed: Some(contributed()),
            },
            format!(
                "070000000101000000000000000500000000000000{}0200000000000000090000000000000001{SLOW}{TERMS}01{PROGRESS}{RATES}",
                outcome_bytes(AVERAGE)
            ),
        ),
        (Message::Open, "08000000".to_owned()),
        (Message::Opened, "09000000".to_owned()),
        (Message::Closed, "0a000000".to_owned()),
    ]
}

fn decisions() -> Vec<(Message, String)> {
    let entry = Entry::Whole(outcome(RoundKind::Gradients));
    let digest = digest_bytes();
    vec![
        (
            Message::Accept {
                entry: Entry::Held(DIGEST),
                signature: signed().signature,
            },
            format!("0e00000001000000{SIGNED}"),
        ),
        (
            Message::Accept {
                entry: Entry::Whole(outcome(RoundKind::Slow)),
                signature: signed().signature,
            },
            format!("0e00000000000000{}{}", outcome_bytes(SLOW), &SIGNED[64..]),
        ),
        (Message::Accepted(signed()), format!("0f000000{SIGNED}")),
        (Message::Overtaken, "10000000".to_owned()),
        (
            Message::Decide {
                entry: Entry::Held(DIGEST),
                leaves: false,
            },
            format!("1100000001000000{digest}00"),
        ),
        (
            Message::Decide {
                entry,
                leaves: true,
            },
            format!("1100000000000000{}01", outcome_bytes(GRADIENTS)),
        ),
        (Message::Learn, "12000000".to_owned()),
        (Message::Learned, "13000000".to_owned()),
        (
            Message::Fork {
                lineage: header().lineage,
                ordered: true,
                voters: vec![voter()],
            },
            format!("14000000{LINEAGE}01010000000000000007000000000000000300000000000000"),
        ),
        (
            Message::Broken(NodeId(9)),
            "150000000900000000000000".to_owned(),
        ),
        (
            Message::Accuse(NodeId(9)),
            "240000000900000000000000".to_owned(),
        ),
        (Message::Compare, "1c000000".to_owned()),
        (
            Message::Published(vec![(NodeId(5), signed())]),
            format!("1d00000001000000000000000500000000000000{SIGNED}"),
        ),
        (
            Message::Equivocated {
                owner: NodeId(5),
                one: signed(),
                other: signed(),
            },
            format!("1e0000000500000000000000{SIGNED}{SIGNED}"),
        ),
        (Message::GoesOn, "1f000000".to_owned()),
        (Message::AskCheckpoint, "20000000".to_owned()),
        (
            Message::TwoEntries {
                one: signed(),
                other: signed(),
            },
            format!("21000000{SIGNED}{SIGNED}"),
        ),
        (Message::Undecided, "22000000".to_owned()),
        (
            Message::AskSettings {
                number: 2,
                values: values(),
            },
            format!("2300000002000000{VALUES}"),
        ),
    ]
}

/// One example of every control frame (including all options and reasons), with the golden bytes
/// after the header.
pub(super) fn messages() -> Vec<(Message, String)> {
    let mut all = hellos();
    all.push((
        Message::Bootstrap {
            view: view(),
            lineage: header().lineage,
        },
        format!("01000000{VIEW}{LINEAGE}"),
    ));
    all.push((Message::Join, "02000000".to_owned()));
    all.extend(refusals());
    all.push((
        Message::Leave { contributes: false },
        "0400000000".to_owned(),
    ));
    all.push((
        Message::Leave { contributes: true },
        "0400000001".to_owned(),
    ));
    let alone = ContributionNotice {
        samples: None,
        rates: vec![],
        ..contributed()
    };
    all.push((
        Message::Contribute(alone),
        format!("05000000{SLOW}{TERMS}000000000000000000"),
    ));
    all.push((
        Message::Contribute(contributed()),
        format!("05000000{SLOW}{TERMS}01{PROGRESS}{RATES}"),
    ));
    all.extend(promises());
    all.extend(attempts());
    all.extend(decisions());
    all.extend(abandons());
    all.push((
        Message::GossipMixed { step: Step(7) },
        "170000000700000000000000".to_owned(),
    ));
    all.push((
        Message::GossipRefused {
            step: Step(8),
            reached: Step(9),
        },
        "1800000008000000000000000900000000000000".to_owned(),
    ));
    all.push((
        Message::GossipSkipped {
            first: Step(1),
            last: Step(2),
        },
        "1900000001000000000000000200000000000000".to_owned(),
    ));
    all.push((
        Message::GossipAsk { step: Step(3) },
        "1a0000000300000000000000".to_owned(),
    ));
    all.push((
        Message::GossipReclaimed { step: Step(4) },
        "1b0000000400000000000000".to_owned(),
    ));
    all
}

/// One example of every stream header, with the golden bytes after the header.
pub(super) fn contents() -> Vec<(Bulk, String)> {
    let header = |wire| ContributionHeader {
        spec: spec(RoundKind::Gradients),
        weight: 0.75,
        wire,
    };
    let contribution = |wire| Bulk::Contribution(header(wire));
    let contributed = |wire: &str| format!("00000000{GRADIENTS}{TERMS}000000000000e83f{wire}");
    let summed = format!("{GRADIENTS}{TERMS}000000000000e83f00000000");
    let owner = NodeId(5);
    vec![
        (contribution(WireType::Float32), contributed("00000000")),
        (contribution(WireType::BFloat16), contributed("01000000")),
        (contribution(WireType::Int8), contributed("02000000")),
        (Bulk::Parameters, "01000000".to_owned()),
        (Bulk::State, "02000000".to_owned()),
        (
            Bulk::Gossip {
                step: Step(7),
                weight: 0.5,
                scale: 0.5,
                wire: WireType::Int8,
            },
            "030000000700000000000000000000000000e03f0000003f02000000".to_owned(),
        ),
        (Bulk::Buffers, "04000000".to_owned()),
        (
            Bulk::Update(WireType::BFloat16),
            "0500000001000000".to_owned(),
        ),
        (Bulk::Update(WireType::Int8), "0500000002000000".to_owned()),
        (
            Bulk::Relayed(header(WireType::Float32)),
            format!("06000000{summed}"),
        ),
        (
            Bulk::Partial(header(WireType::Float32)),
            format!("07000000{summed}"),
        ),
        (
            Bulk::Forwarded { owner, wire: None },
            "08000000050000000000000000".to_owned(),
        ),
        (
            Bulk::Forwarded {
                owner,
                wire: Some(WireType::Int8),
            },
            "0800000005000000000000000102000000".to_owned(),
        ),
    ]
}

pub(super) fn frame(message: Message) -> Frame {
    Frame::V1 {
        header: header(),
        message: Box::new(message),
    }
}

pub(super) fn stream(content: Bulk) -> BulkHeader {
    BulkHeader::V1 {
        header: header(),
        content,
    }
}

pub(super) fn preface(listen: SocketAddr, bulk: bool) -> Preface {
    let Header {
        cluster,
        sender,
        incarnation,
        ..
    } = header();
    Preface::V1 {
        cluster,
        node: sender,
        incarnation,
        listen,
        bulk,
    }
}

/// One example of every datagram; the golden bytes are in the tests of `datagram`.
pub(super) fn datagrams() -> Vec<Datagram> {
    let swim = swim_messages().map(|message| Content::Swim(packet(message, 3)));
    let watching = [
        Content::AskStatusDigest { since_us: 7 },
        Content::StatusDigest(Box::new(digest())),
        Content::Drain {
            incarnation: digest().incarnation,
            proof: [7; ORDER_PROOF_BYTES],
        },
    ];
    [Content::Ask, Content::Answer]
        .into_iter()
        .chain(swim)
        .chain(watching)
        .map(Datagram::V1)
        .collect()
}

/// A digest with one entry of each kind.
pub(super) fn digest() -> StatusDigest {
    let Header {
        lineage,
        epoch,
        round,
        incarnation,
        sender,
        ..
    } = header();
    StatusDigest {
        incarnation,
        at_us: 9,
        stands: Stands::Member,
        lineage,
        epoch,
        round,
        step: Step(24),
        measures: vec![Measure {
            name: "loss".to_owned(),
            step: Step(24),
            value: 0.5,
        }],
        disagreement: Some(0.25),
        weight: Some(1.0),
        waits: false,
        http: Some(([127, 0, 0, 1], 7070).into()),
        sent_bytes: 10,
        received_bytes: 11,
        links: vec![Link {
            to: sender,
            sent_bytes: 12,
            round_trip_us: 13,
        }],
        happened: vec![Happened {
            at_us: 8,
            what: "node 3 is dead".to_owned(),
        }],
    }
}
