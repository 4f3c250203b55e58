//! What a broken or hostile sender can send: cut, padded, oversized, shuffled and random bytes. Decoders answer with an error,
//! allocate no more than the bytes received allow, and never panic.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::golden::{contents, frame, messages, preface, stream};
use super::*;
use crate::ident::Epoch;
use crate::view::{MEMBERS_MAX, Member, View};
use proptest::prelude::*;
use std::net::SocketAddr;

/// Golden frames, stream headers and prefaces, each with its decoder.
fn goldens() -> Vec<(Vec<u8>, Decoder)> {
    let frames = messages().into_iter().map(|(message, _)| (frame(message).encode().unwrap(), decodes::<Frame> as Decoder));
    let streams = contents().into_iter().map(|(content, _)| (stream(content).encode().unwrap(), decodes::<BulkHeader> as Decoder));
    let preface = preface(SocketAddr::from(([10, 0, 0, 9], 7400)), true).encode().unwrap();
    frames.chain(streams).chain([(preface, decodes::<Preface> as Decoder)]).collect()
}

type Decoder = fn(&[u8]) -> Result<Vec<u8>, DecodeError>;

trait Wire: Sized {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError>;
    fn write(&self) -> Vec<u8>;
}

macro_rules! wire {
    ($($name:ident),*) => {$(
        impl Wire for $name {
            fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
                Self::decode(bytes)
            }
            fn write(&self) -> Vec<u8> {
                self.encode().unwrap()
            }
        }
    )*};
}
wire!(Frame, BulkHeader, Preface);

/// Decodes, and encodes again what came out.
fn decodes<T: Wire>(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    T::read(bytes).map(|value| value.write())
}

#[test]
fn cut_at_any_length_is_refused() {
    for (bytes, decode) in goldens() {
        for length in 0..bytes.len() {
            assert!(matches!(decode(&bytes[..length]), Err(DecodeError::Malformed(_))), "{length} of {}", bytes.len());
        }
    }
}

#[test]
fn bytes_behind_the_end_are_refused() {
    for (bytes, decode) in goldens() {
        for extra in [1, 7, 100] {
            let padded = [bytes.as_slice(), &vec![0; extra]].concat();
            assert_eq!(decode(&padded), Err(DecodeError::Trailing(extra)));
        }
    }
}

#[test]
fn bounds_hold_on_both_sides() {
    let bounds = [CONTROL_FRAME_BYTES_MAX, BULK_HEADER_BYTES_MAX, PREFACE_BYTES_MAX];
    let decoders: [Decoder; 3] = [decodes::<Frame>, decodes::<BulkHeader>, decodes::<Preface>];
    for (bound, decode) in bounds.into_iter().zip(decoders) {
        assert_eq!(decode(&vec![0; bound + 1]), Err(DecodeError::TooLong { length: bound + 1, bound }));
        assert!(!matches!(decode(&vec![0; bound]), Err(DecodeError::TooLong { .. })));
    }
    let address = SocketAddr::from(([10, 0, 0, 9], 7400));
    let hello = |bytes: usize| {
        frame(Message::Hello(Hello { address, devices: 1, settings: "x".repeat(bytes), elements: None, buffer_elements: None }))
    };
    let overhead = hello(0).encode().unwrap().len();
    let largest = hello(CONTROL_FRAME_BYTES_MAX - overhead).encode().unwrap();
    assert!(Frame::decode(&largest).is_ok());
    let too_long = hello(CONTROL_FRAME_BYTES_MAX - overhead + 1).encode();
    assert_eq!(too_long, Err(EncodeError::TooLong { length: CONTROL_FRAME_BYTES_MAX + 1, bound: CONTROL_FRAME_BYTES_MAX }));
}

/// A view of `members` members with the longest addresses there are.
fn large_view(members: usize) -> Result<View, crate::view::ViewError> {
    let address = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401));
    let member = |id| Member { id: crate::ident::NodeId(id), incarnation: crate::ident::Incarnation(1), address, devices: 8 };
    View::new(Epoch(1), (0..members as u64).map(member).collect())
}

#[test]
fn the_largest_view_fits_a_control_frame_with_its_contributors() {
    let view = large_view(MEMBERS_MAX).unwrap();
    let (message, _) = messages().into_iter().find(|(message, _)| matches!(message, Message::Promise { accepted: Some(_) })).unwrap();
    let Message::Promise { accepted: Some((ballot, outcome)) } = message else { panic!() };
    let outcome = crate::coordinator::Outcome { contributors: view.ids().collect(), view, ..outcome };
    let promise = frame(Message::Promise { accepted: Some((ballot, outcome)) });
    assert_eq!(Frame::decode(&promise.encode().unwrap()), Ok(promise));
    assert!(large_view(MEMBERS_MAX + 1).is_err());
}

#[test]
fn a_claimed_length_beyond_the_frame_is_refused_before_it_is_allocated() {
    let mut refused = 0;
    for (bytes, decode) in goldens() {
        // Every aligned place where a length can stand; u64::MAX and lengths just above the bound.
        for at in 0..bytes.len().saturating_sub(7) {
            for length in [u64::MAX, u64::MAX / 2, 1 << 40, (CONTROL_FRAME_BYTES_MAX as u64) + 1] {
                let mut bytes = bytes.clone();
                bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
                match decode(&bytes) {
                    // Not a length: a number that may be anything. What comes out is what went in.
                    Ok(again) => assert_eq!(again, bytes),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(refused > 1_000);
}

/// The bytes of a `Found` frame whose view has `ids` as they are, checked by nobody.
fn found_with(ids: &[u64]) -> Vec<u8> {
    let view = large_view(ids.len()).unwrap();
    let encoded = frame(Message::Found { view, lineage: crate::ident::Lineage(1) }).encode().unwrap();
    let member = 8 + 8 + (4 + 16 + 2) + 2;
    let first = encoded.len() - 16 - member * ids.len();
    let mut encoded = encoded;
    for (index, id) in ids.iter().enumerate() {
        let at = first + index * member;
        encoded[at..at + 8].copy_from_slice(&id.to_le_bytes());
    }
    encoded
}

#[test]
fn a_view_out_of_order_or_with_duplicates_is_refused() {
    assert!(Frame::decode(&found_with(&[3, 5, 9])).is_ok());
    for ids in [&[5, 3, 9][..], &[3, 3, 9], &[9, 5, 3], &[3, 9, 9], &[0, u64::MAX, 1]] {
        let Err(DecodeError::Malformed(reason)) = Frame::decode(&found_with(ids)) else { panic!("{ids:?} was accepted") };
        assert!(reason.contains("ascending"), "{reason}");
    }
    // No member at all.
    let empty = [&found_with(&[3])[..0], &without_members()].concat();
    assert!(matches!(Frame::decode(&empty), Err(DecodeError::Malformed(_))));
}

/// A `Found` frame whose view counts no members.
fn without_members() -> Vec<u8> {
    let one = found_with(&[3]);
    let (member, lineage) = (8 + 8 + (4 + 16 + 2) + 2, 16);
    let count = one.len() - lineage - member - 8;
    [&one[..count], &0u64.to_le_bytes(), &one[one.len() - lineage..]].concat()
}

#[test]
fn other_versions_and_unknown_variants_are_refused() {
    for (bytes, decode) in goldens() {
        for version in [1u8, 2, 255] {
            let mut bytes = bytes.clone();
            bytes[0] = version;
            assert!(matches!(decode(&bytes), Err(DecodeError::Malformed(_))), "version {version}");
        }
    }
}

#[test]
fn settings_are_looked_at_within_their_bound_and_kept_within_it() {
    use crate::membership::settings::{SETTINGS_BYTES_MAX, differing_settings};
    let same = "tau = 48\n";
    let long = format!("{same}{}x = 1", "\n".repeat(SETTINGS_BYTES_MAX));
    assert!(differing_settings(same, &long).is_empty(), "what lies behind the bound is not looked at");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for decode in [decodes::<Frame> as Decoder, decodes::<BulkHeader>, decodes::<Preface>] {
            if let Ok(again) = decode(&bytes) {
                prop_assert_eq!(&again, &bytes);
            }
        }
    }

    #[test]
    fn mutated_messages_never_panic_and_have_one_encoding(
        which: prop::sample::Index,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let all = goldens();
        let (mut bytes, decode) = all[which.index(all.len())].clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        if let Ok(again) = decode(&bytes) {
            prop_assert_eq!(again, bytes);
        }
    }
}
