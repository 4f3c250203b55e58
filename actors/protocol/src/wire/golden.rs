//! Golden bytes of every message, so that a change of the encoding is a change someone made on purpose.
//!
//! Changing any of them is a change of the protocol: nodes of the old and the new build would misread each other. Add a `V2`
//! variant and raise [`super::PROTOCOL_VERSION`] instead.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::coordinator::{Outcome, RoundKind, Terms};
use crate::ident::{Ballot, ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Step};
use crate::view::{Member, View};
use std::fmt::Write;
use std::net::SocketAddr;

fn header() -> Header {
    Header {
        cluster: ClusterId(0x0102_0304_0506_0708),
        lineage: Lineage(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20),
        epoch: Epoch(3),
        round: Round(42),
        ballot: Ballot { counter: 1, node: NodeId(5) },
        sender: NodeId(9),
        incarnation: Incarnation(0xabcd),
    }
}

fn view() -> View {
    let v4 = SocketAddr::from(([10, 0, 0, 5], 7400));
    let v6 = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401));
    let member = |id, incarnation, address, devices| Member { id: NodeId(id), incarnation: Incarnation(incarnation), address, devices };
    View::new(Epoch(3), vec![member(5, 1, v4, 8), member(9, 0xabcd, v6, 1)]).unwrap()
}

fn terms(kind: RoundKind) -> Terms {
    Terms { kind, step: Step(48), gamma: 0.1, elements: 25_000_000 }
}

fn outcome(kind: RoundKind) -> Outcome {
    let contributors = vec![NodeId(5), NodeId(9)];
    Outcome { lineage: header().lineage, round: Round(42), terms: terms(kind), contributors, view: view() }
}

/// One example of every control frame (all options and reasons too), with the golden bytes behind the header.
pub(super) fn messages() -> Vec<(Message, &'static str)> {
    let hello = |elements| {
        let settings = "tau = 48\nbeta = 0.5\n".to_owned();
        let address = SocketAddr::from(([10, 0, 0, 9], 7400));
        Message::Hello(Hello { address, devices: 2, settings, elements, buffer_elements: elements.map(|_| 0) })
    };
    let differ = RefusalReason::TermsDiffer { one: NodeId(5), one_terms: "a".to_owned(), other: NodeId(9), other_terms: "bé".to_owned() };
    vec![
        (hello(None), "00000000000000000a000009e81c02001400000000000000746175203d2034380a62657461203d20302e350a0000"),
        (
            hello(Some(25_000_000)),
            "\
00000000000000000a000009e81c02001400000000000000746175203d2034380a62657461203d20302e350a0140787d010000000001000000000000\
0000",
        ),
        (
            Message::Found { view: view(), lineage: header().lineage },
            "\
010000000300000000000000020000000000000005000000000000000100000000000000000000000a000005e81c08000900000000000000cdab0000\
000000000100000020010db8000000000000000000000001e91c0100201f1e1d1c1b1a191817161514131211",
        ),
        (Message::Prepare, "02000000"),
        (Message::Promise { accepted: None }, "0300000000"),
        (
            Message::Promise { accepted: Some((header().ballot, outcome(RoundKind::Average))) },
            "\
030000000101000000000000000500000000000000201f1e1d1c1b1a1918171615141312112a00000000000000010000003000000000000000cdcccc\
3d40787d0100000000020000000000000005000000000000000900000000000000030000000000000002000000000000000500000000000000010000\
0000000000000000000a000005e81c08000900000000000000cdab0000000000000100000020010db8000000000000000000000001e91c0100",
        ),
        (
            Message::Propose(outcome(RoundKind::Found)),
            "\
04000000201f1e1d1c1b1a1918171615141312112a00000000000000000000003000000000000000cdcccc3d40787d01000000000200000000000000\
050000000000000009000000000000000300000000000000020000000000000005000000000000000100000000000000000000000a000005e81c0800\
0900000000000000cdab0000000000000100000020010db8000000000000000000000001e91c0100",
        ),
        (Message::Prepared, "05000000"),
        (
            Message::Decide(outcome(RoundKind::Slow)),
            "\
06000000201f1e1d1c1b1a1918171615141312112a00000000000000020000003000000000000000cdcccc3d40787d01000000000200000000000000\
050000000000000009000000000000000300000000000000020000000000000005000000000000000100000000000000000000000a000005e81c0800\
0900000000000000cdab0000000000000100000020010db8000000000000000000000001e91c0100",
        ),
        (Message::Stale, "07000000"),
        (Message::Abandon(differ), "080000000000000005000000000000000100000000000000610900000000000000030000000000000062c3a9"),
        (Message::Abandon(RefusalReason::MemberLost { node: NodeId(5) }), "08000000010000000500000000000000"),
        (Message::Abandon(RefusalReason::StreamBroken { node: NodeId(9) }), "08000000020000000900000000000000"),
        (Message::GossipMixed { step: Step(7) }, "090000000700000000000000"),
        (Message::GossipRefused { step: Step(8) }, "0a0000000800000000000000"),
        (Message::Leave, "0b000000"),
    ]
}

/// One example of every stream header, with the golden bytes behind the header.
pub(super) fn contents() -> Vec<(Bulk, &'static str)> {
    let contribution = Contribution { terms: terms(RoundKind::Gradients), weight: 0.75 };
    vec![
        (Bulk::Contribution(contribution), "00000000030000003000000000000000cdcccc3d40787d0100000000000000000000e83f"),
        (Bulk::Parameters, "01000000"),
        (Bulk::Momentum, "02000000"),
        (Bulk::Gossip { step: Step(7), weight: 0.5, scale: 0.5 }, "030000000700000000000000000000000000e03f0000003f"),
    ]
}

/// The version and the header that every frame and stream header begins with.
const HEADER: &str = "\
000000000807060504030201201f1e1d1c1b1a19181716151413121103000000000000002a0000000000000001000000000000000500000000000000\
0900000000000000cdab000000000000";
const PREFACE: &str = "0000000008070605040302010900000000000000cdab000000000000000000000a000009e81c00";
const PREFACE_V6: &str = "\
0000000008070605040302010900000000000000cdab0000000000000100000020010db8000000000000000000000001e91c01";

pub(super) fn frame(message: Message) -> Frame {
    Frame::V1 { header: header(), message: Box::new(message) }
}

pub(super) fn stream(content: Bulk) -> BulkHeader {
    BulkHeader::V1 { header: header(), content }
}

pub(super) fn preface(listen: SocketAddr, bulk: bool) -> Preface {
    let Header { cluster, sender, incarnation, .. } = header();
    Preface::V1 { cluster, node: sender, incarnation, listen, bulk }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn control_frames() {
    for (message, golden) in messages() {
        let golden = format!("{HEADER}{golden}");
        assert_eq!(hex(&frame(message.clone()).encode().unwrap()), golden, "{message:?}");
        assert_eq!(Frame::decode(&bytes(&golden)), Ok(frame(message)));
    }
}

#[test]
fn every_message_has_an_example() {
    // A new variant does not compile here until it has one above.
    let number = |message: &Message| match message {
        Message::Hello(_) => 0,
        Message::Found { .. } => 1,
        Message::Prepare => 2,
        Message::Promise { .. } => 3,
        Message::Propose(_) => 4,
        Message::Prepared => 5,
        Message::Decide(_) => 6,
        Message::Stale => 7,
        Message::Abandon(_) => 8,
        Message::GossipMixed { .. } => 9,
        Message::GossipRefused { .. } => 10,
        Message::Leave => 11,
    };
    let mut numbers: Vec<u32> = messages().iter().map(|(message, _)| number(message)).collect();
    numbers.dedup();
    assert_eq!(numbers, (0..12).collect::<Vec<_>>());
    let kinds = |content: &Bulk| match content {
        Bulk::Contribution(_) => 0,
        Bulk::Parameters => 1,
        Bulk::Momentum => 2,
        Bulk::Gossip { .. } => 3,
    };
    assert_eq!(contents().iter().map(|(content, _)| kinds(content)).collect::<Vec<u32>>(), [0, 1, 2, 3]);
}

#[test]
fn stream_headers() {
    for (content, golden) in contents() {
        let golden = format!("{HEADER}{golden}");
        assert_eq!(hex(&stream(content.clone()).encode().unwrap()), golden, "{content:?}");
        assert_eq!(BulkHeader::decode(&bytes(&golden)), Ok(stream(content)));
    }
}

#[test]
fn prefaces() {
    let v4 = preface(SocketAddr::from(([10, 0, 0, 9], 7400)), false);
    let v6 = preface(SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401)), true);
    for (preface, golden) in [(v4, PREFACE), (v6, PREFACE_V6)] {
        assert_eq!(hex(&preface.encode().unwrap()), golden);
        assert_eq!(Preface::decode(&bytes(golden)), Ok(preface));
    }
}
