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

/// Checks that each variant has an example. A new variant does not compile here until it is named,
/// and the test fails until it has an example.
macro_rules! each_has_an_example {
    ($examples:expr, $type:ty: $($variant:pat),+ $(,)?) => {{
        let examples: Vec<$type> = $examples;
        // Never called: the compiler names a variant that is missing in the list.
        let _all_are_named = |value: &$type| match value {
            $($variant => ()),+
        };
        $(assert!(
            examples.iter().any(|example| matches!(example, $variant)),
            "no example of {}",
            stringify!($variant)
        );)+
    }};
}

#[test]
fn every_message_has_an_example() {
    each_has_an_example!(
        messages().into_iter().map(|(message, _)| message).collect(),
        Message:
        Message::Hello(_),
        Message::Bootstrap { .. },
        Message::Join,
        Message::Refused(_),
        Message::Leave { .. },
        Message::Contribute(_),
        Message::Prepare,
        Message::Promise { .. },
        Message::Open,
        Message::Opened,
        Message::Closed,
        Message::Attempt(_),
        Message::Admit { .. },
        Message::Ready(_),
        Message::Accept { .. },
        Message::Accepted(_),
        Message::Overtaken,
        Message::Decide { .. },
        Message::Learn,
        Message::Learned,
        Message::Fork { .. },
        Message::Broken(_),
        Message::Abandon(_),
        Message::GossipMixed { .. },
        Message::GossipRefused { .. },
        Message::GossipSkipped { .. },
        Message::GossipAsk { .. },
        Message::GossipReclaimed { .. },
        Message::Compare,
        Message::Published(_),
        Message::Equivocated { .. },
        Message::GoesOn,
        Message::AskCheckpoint,
        Message::TwoEntries { .. },
        Message::Undecided,
        Message::AskSettings { .. },
        Message::Accuse(_),
    );
    each_has_an_example!(
        contents().into_iter().map(|(content, _)| content).collect(),
        Bulk:
        Bulk::Contribution(_),
        Bulk::Parameters,
        Bulk::State,
        Bulk::Gossip { .. },
        Bulk::Buffers,
        Bulk::Update(_),
        Bulk::Relayed(_),
        Bulk::Partial(_),
        Bulk::Forwarded { .. },
    );
}

#[test]
fn every_reason_has_an_example() {
    let refusals = messages()
        .into_iter()
        .filter_map(|(message, _)| match message {
            Message::Refused(reason) => Some(reason),
            _ => None,
        });
    each_has_an_example!(
        refusals.collect(),
        JoinRefusal:
        JoinRefusal::SettingsDiffer { .. },
        JoinRefusal::ModelsDiffer { .. },
        JoinRefusal::Full { .. },
        JoinRefusal::OtherLineage { .. },
        JoinRefusal::DuplicateId { .. },
        JoinRefusal::NoParameters,
    );
    let reasons = messages()
        .into_iter()
        .filter_map(|(message, _)| match message {
            Message::Abandon(reason) => Some(reason),
            _ => None,
        });
    each_has_an_example!(
        reasons.collect(),
        RefusalReason:
        RefusalReason::SpecsDiffer { .. },
        RefusalReason::MomentumLost { .. },
        RefusalReason::Overflowed { .. },
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
