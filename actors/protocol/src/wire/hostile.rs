//! Tests against broken or hostile senders: truncated, padded, oversized, shuffled and random
//! bytes. Decoders answer with an error, allocate no more than the bytes received allow, and never
//! panic.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::examples::{contents, contributed, datagrams, draft, frame, messages, preface, stream};
use super::*;
use crate::coordinator::{Draft, RoundKind};
use crate::ident::{Epoch, GroupId, Incarnation, Lineage, NodeId};
use crate::membership::settings::SETTINGS_BYTES_MAX;
use crate::published::PublicKey;
use crate::view::{Member, View};
use proptest::prelude::*;
use std::net::SocketAddr;

/// All encoded examples, each with its decoder.
fn goldens() -> Vec<(Vec<u8>, Decoder)> {
    let v4 = preface(SocketAddr::from(([10, 0, 0, 9], 7400)), true);
    let v6 = preface(
        SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401)),
        false,
    );
    let mut all = Vec::new();
    all.extend(
        messages()
            .into_iter()
            .map(|(message, _)| (frame(message).write(), decodes::<Frame> as Decoder)),
    );
    all.extend(
        contents()
            .into_iter()
            .map(|(content, _)| (stream(content).write(), decodes::<BulkHeader> as Decoder)),
    );
    all.extend([v4, v6].map(|preface| (preface.write(), decodes::<Preface> as Decoder)));
    all.extend(
        datagrams()
            .iter()
            .map(|datagram| (datagram.write(), decodes::<Datagram> as Decoder)),
    );
    all
}

pub(super) type Decoder = fn(&[u8]) -> Result<Vec<u8>, DecodeError>;

pub(super) trait Wire: Sized {
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
wire!(Frame, BulkHeader, Preface, Datagram);

/// Decodes bytes and encodes the result again.
pub(super) fn decodes<T: Wire>(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    T::read(bytes).map(|value| value.write())
}

#[test]
fn cut_at_any_length_is_refused() {
    for (bytes, decode) in goldens() {
        for length in 0..bytes.len() {
            assert!(
                matches!(decode(&bytes[..length]), Err(DecodeError::Malformed(_))),
                "{length} of {}",
                bytes.len()
            );
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
fn any_flipped_bit_is_another_message_or_none() {
    for (bytes, decode) in goldens() {
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // Decoding and encoding gives the same bytes: no two encodings mean the same.
            assert!(decode(&bytes).is_ok_and(|again| again == bytes) || decode(&bytes).is_err());
        }
    }
}

#[test]
fn bounds_hold_on_both_sides() {
    let bounds = [
        CONTROL_FRAME_BYTES_MAX,
        BULK_HEADER_BYTES_MAX,
        PREFACE_BYTES_MAX,
        DATAGRAM_BYTES_MAX,
    ];
    let decoders: [Decoder; 4] = [
        decodes::<Frame>,
        decodes::<BulkHeader>,
        decodes::<Preface>,
        decodes::<Datagram>,
    ];
    for (bound, decode) in bounds.into_iter().zip(decoders) {
        assert_eq!(
            decode(&vec![0; bound + 1]),
            Err(DecodeError::TooLong {
                length: bound + 1,
                bound
            })
        );
        assert!(!matches!(
            decode(&vec![0; bound]),
            Err(DecodeError::TooLong { .. })
        ));
    }
    let attempt = |waiting: usize| {
        let waiting = vec![NodeId(1); waiting];
        frame(Message::Attempt(Draft {
            waiting,
            ..draft(RoundKind::Slow)
        }))
        .encode()
    };
    let overhead = attempt(0).unwrap().len();
    assert!(attempt((CONTROL_FRAME_BYTES_MAX - overhead) / 8).is_ok());
    let too_long = (CONTROL_FRAME_BYTES_MAX - overhead) / 8 + 1;
    let length = overhead + 8 * too_long;
    assert_eq!(
        attempt(too_long),
        Err(EncodeError::TooLong {
            length,
            bound: CONTROL_FRAME_BYTES_MAX
        })
    );
}

#[test]
fn a_claimed_length_beyond_the_frame_is_refused_before_it_is_allocated() {
    let mut refused = 0;
    for (bytes, decode) in goldens() {
        // Every offset at which a length can be; u64::MAX and lengths just above the bound.
        for at in 0..bytes.len().saturating_sub(7) {
            for length in [
                u64::MAX,
                u64::MAX / 2,
                1 << 40,
                (CONTROL_FRAME_BYTES_MAX as u64) + 1,
            ] {
                let mut bytes = bytes.clone();
                bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
                match decode(&bytes) {
                    // Not a length but a number of any value: decoding and encoding gives the same
                    // bytes.
                    Ok(again) => assert_eq!(again, bytes),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(refused > 1_000);
}

/// A view of `members` members with addresses of the maximum length.
pub(super) fn large_view(members: usize) -> Result<View, crate::view::ViewError> {
    let address = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401));
    let member = |id| Member {
        id: NodeId(id),
        incarnation: Incarnation(1),
        address,
        devices: 8,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    View::new(Epoch(1), (0..members as u64).map(member).collect())
}

/// Encoded size of a member with a long address, and of a slot, in bytes.
pub(super) const MEMBER: usize = 8 + 8 + (4 + 16 + 2) + 2 + 4 + 32;
pub(super) const SEAT: usize = 2;

/// The bytes of a `Found` frame whose view contains `ids` unchecked.
pub(super) fn found_with(ids: &[u64]) -> Vec<u8> {
    let view = large_view(ids.len()).unwrap();
    let mut encoded = frame(Message::Bootstrap {
        view,
        lineage: Lineage(1),
    })
    .write();
    let first = encoded.len() - 16 - (8 + SEAT * ids.len()) - MEMBER * ids.len();
    for (index, id) in ids.iter().enumerate() {
        let at = first + index * MEMBER;
        encoded[at..at + 8].copy_from_slice(&id.to_le_bytes());
    }
    encoded
}

#[test]
fn a_view_out_of_order_or_with_duplicates_is_refused() {
    assert!(Frame::decode(&found_with(&[3, 5, 9])).is_ok());
    for ids in [
        &[5, 3, 9][..],
        &[3, 3, 9],
        &[9, 5, 3],
        &[3, 9, 9],
        &[0, u64::MAX, 1],
    ] {
        let Err(DecodeError::Malformed(reason)) = Frame::decode(&found_with(ids)) else {
            panic!("{ids:?} was accepted")
        };
        assert!(reason.contains("ascending"), "{reason}");
    }
    let Err(DecodeError::Malformed(reason)) = Frame::decode(&without_members()) else {
        panic!("a view of nobody was accepted")
    };
    assert!(reason.contains("at least one member"), "{reason}");
}

/// A `Found` frame whose view has no members and no slots.
fn without_members() -> Vec<u8> {
    let one = found_with(&[3]);
    let behind = one.len() - 16;
    [
        &one[..behind - (8 + SEAT) - (8 + MEMBER)],
        &[0; 16],
        &one[behind..],
    ]
    .concat()
}

#[test]
fn a_view_that_does_not_give_each_member_a_slot_is_refused() {
    let with_seats = |slots: &[u16]| {
        let found = found_with(&[3, 5, 9]);
        let behind = found.len() - 16;
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        [
            &found[..behind - (8 + 3 * SEAT)],
            &(slots.len() as u64).to_le_bytes(),
            &bytes,
            &found[behind..],
        ]
        .concat()
    };
    assert!(Frame::decode(&with_seats(&[2, 0, 1])).is_ok());
    for slots in [
        &[][..],
        &[0, 1],
        &[0, 1, 1],
        &[0, 1, 3],
        &[0, 1, u16::MAX],
        &[0, 1, 2, 3],
    ] {
        let Err(DecodeError::Malformed(reason)) = Frame::decode(&with_seats(slots)) else {
            panic!("{slots:?} was accepted")
        };
        assert!(reason.contains("one slot"), "{reason}");
    }
}

#[test]
fn a_progress_out_of_order_is_refused() {
    let bytes = frame(Message::Contribute(contributed())).write();
    // Two ranges, then front and skipped.
    let first = bytes.len() - 16 - 32;
    for ranges in [
        [18, 34, 0, 16],
        [0, 19, 18, 34],
        [16, 0, 18, 34],
        [0, 16, 18, 37],
        [0, 16, 18, u64::MAX],
    ] {
        let mut bytes = bytes.clone();
        let ranges_bytes: Vec<u8> = ranges
            .iter()
            .flat_map(|bound| bound.to_le_bytes())
            .collect();
        bytes[first..first + 32].copy_from_slice(&ranges_bytes);
        let Err(DecodeError::Malformed(reason)) = Frame::decode(&bytes) else {
            panic!("{ranges:?} was accepted")
        };
        assert!(reason.contains("progress is malformed"), "{reason}");
    }
}

#[test]
fn other_versions_and_unknown_variants_are_refused() {
    for (bytes, decode) in goldens() {
        for version in [1u8, 2, 255] {
            let mut bytes = bytes.clone();
            bytes[0] = version;
            assert!(
                matches!(decode(&bytes), Err(DecodeError::Malformed(_))),
                "version {version}"
            );
        }
    }
}

#[test]
fn settings_are_looked_at_within_their_bound_and_kept_within_it() {
    use crate::membership::settings::differing_settings;
    let same = "tau = 48\n";
    let long = format!("{same}{}x = 1", "\n".repeat(SETTINGS_BYTES_MAX));
    assert!(
        differing_settings(same, &long).is_empty(),
        "what lies behind the bound is not looked at"
    );
}

proptest! {
    #![
        proptest_config(
            ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() }
        )
    ]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for decode in [
            decodes::<Frame> as Decoder,
            decodes::<BulkHeader>,
            decodes::<Preface>,
            decodes::<Datagram>
        ] {
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

    #[test]
    fn random_tails_of_real_messages_never_panic(
        which: prop::sample::Index,
        at: prop::sample::Index,
        tail in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let all = goldens();
        let (bytes, decode) = &all[which.index(all.len())];
        let bytes = [&bytes[..at.index(bytes.len())], &tail].concat();
        if let Ok(again) = decode(&bytes) {
            prop_assert_eq!(again, bytes);
        }
    }
}
