//! Golden bytes of every message, so that the encoding changes only on purpose.
//!
//! Changing any of them is a change of the protocol: nodes of the old and the new build would
//! misread each other. Raise [`super::PROTOCOL_VERSION`] with it: builds of different versions
//! refuse each other before a frame is read.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::examples::{HEADER, PREFACE, PREFACE_V6, contents, frame, messages, preface, stream};
use super::*;
use std::fmt::Write;
use std::net::SocketAddr;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn control_frames() {
    for (message, golden) in messages() {
        let golden = format!("{HEADER}{golden}");
        assert_eq!(
            hex(&frame(message.clone()).encode().unwrap()),
            golden,
            "{message:?}"
        );
        assert_eq!(Frame::decode(&bytes(&golden)), Ok(frame(message)));
    }
}

#[test]
fn every_message_has_an_example() {
    // A new variant does not compile here until it has an example.
    let number = |message: &Message| match message {
        Message::Hello(_) => 0,
        Message::Bootstrap { .. } => 1,
        Message::Join => 2,
        Message::Refused(_) => 3,
        Message::Leave { .. } => 4,
        Message::Contribute(_) => 5,
        Message::Prepare => 6,
        Message::Promise { .. } => 7,
        Message::Open => 8,
        Message::Opened => 9,
        Message::Closed => 10,
        Message::Attempt(_) => 11,
        Message::Admit { .. } => 12,
        Message::Ready => 13,
        Message::Accept(_) => 14,
        Message::Accepted => 15,
        Message::Overtaken => 16,
        Message::Decide { .. } => 17,
        Message::Learn => 18,
        Message::Learned => 19,
        Message::Fork { .. } => 20,
        Message::Broken(_) => 21,
        Message::Abandon(_) => 22,
        Message::GossipMixed { .. } => 23,
        Message::GossipRefused { .. } => 24,
        Message::GossipSkipped { .. } => 25,
        Message::GossipAsk { .. } => 26,
        Message::GossipReclaimed { .. } => 27,
    };
    let mut numbers: Vec<u32> = messages()
        .iter()
        .map(|(message, _)| number(message))
        .collect();
    numbers.dedup();
    assert_eq!(numbers, (0..28).collect::<Vec<_>>());
    let kinds = |content: &Bulk| match content {
        Bulk::Contribution(_) => 0,
        Bulk::Parameters => 1,
        Bulk::State => 2,
        Bulk::Gossip { .. } => 3,
        Bulk::Buffers => 4,
        Bulk::Update(_) => 5,
    };
    let mut numbers: Vec<u32> = contents()
        .iter()
        .map(|(content, _)| kinds(content))
        .collect();
    numbers.dedup();
    assert_eq!(numbers, (0..6).collect::<Vec<_>>());
}

#[test]
fn every_reason_has_an_example() {
    let refusal = |reason: &JoinRefusal| match reason {
        JoinRefusal::SettingsDiffer { .. } => 0,
        JoinRefusal::ModelsDiffer { .. } => 1,
        JoinRefusal::Full { .. } => 2,
        JoinRefusal::OtherLineage { .. } => 3,
        JoinRefusal::DuplicateId { .. } => 4,
        JoinRefusal::NoParameters => 5,
    };
    let abandoned = |reason: &RefusalReason| match reason {
        RefusalReason::SpecsDiffer { .. } => 10,
        RefusalReason::MomentumLost { .. } => 11,
        RefusalReason::Overflowed { .. } => 12,
    };
    let numbers = messages()
        .into_iter()
        .filter_map(|(message, _)| match message {
            Message::Refused(reason) => Some(refusal(&reason)),
            Message::Abandon(reason) => Some(abandoned(&reason)),
            _ => None,
        });
    assert_eq!(
        numbers.collect::<Vec<u32>>(),
        [0, 1, 2, 3, 4, 5, 10, 11, 12]
    );
}

#[test]
fn stream_headers() {
    for (content, golden) in contents() {
        let golden = format!("{HEADER}{golden}");
        assert_eq!(
            hex(&stream(content.clone()).encode().unwrap()),
            golden,
            "{content:?}"
        );
        assert_eq!(BulkHeader::decode(&bytes(&golden)), Ok(stream(content)));
    }
}

#[test]
fn prefaces() {
    let v4 = preface(SocketAddr::from(([10, 0, 0, 9], 7400)), false);
    let v6 = preface(
        SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401)),
        true,
    );
    for (preface, golden) in [(v4, PREFACE), (v6, PREFACE_V6)] {
        assert_eq!(hex(&preface.encode().unwrap()), golden);
        assert_eq!(Preface::decode(&bytes(golden)), Ok(preface));
    }
}
