//! Golden bytes of every datagram, and what a hostile sender can make of them. Changing the bytes
//! is changing the protocol.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::wire::DecodeError;
use proptest::prelude::*;
use std::fmt::Write;

fn life(node: u64, renewals: u32) -> Life {
    Life {
        node: NodeId(node),
        incarnation: Incarnation(0x0a0b),
        renewals,
    }
}

/// Every message, in the order of their numbers.
pub(crate) fn messages() -> [SwimMessage; 11] {
    let probe = 7;
    [
        SwimMessage::Ping { probe },
        SwimMessage::Acknowledge { probe },
        SwimMessage::PingRequest {
            target: life(2, 0),
            probe,
        },
        SwimMessage::IndirectPing {
            origin: life(2, 0),
            probe,
        },
        SwimMessage::IndirectAcknowledge {
            target: life(2, 0),
            probe,
        },
        SwimMessage::ForwardedAcknowledge {
            origin: life(2, 0),
            probe,
        },
        SwimMessage::Announce,
        SwimMessage::Feed,
        SwimMessage::Gossip,
        SwimMessage::Broadcast,
        SwimMessage::BelievedDead,
    ]
}

pub(crate) fn packet(message: SwimMessage, updates: usize) -> SwimPacket {
    let states = [LifeState::Alive, LifeState::Suspect, LifeState::Down];
    let update = |index: usize| LifeUpdate {
        life: life(index as u64, 3),
        refutations: 4,
        state: states[index % 3],
    };
    let updates = (0..updates).map(update).collect();
    SwimPacket {
        source: life(1, 2),
        refutations: 5,
        destination: life(9, 0),
        message,
        updates,
    }
}

fn swim(message: SwimMessage, updates: usize) -> Datagram {
    Datagram::V1(Content::Swim(packet(message, updates)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn golden_bytes() {
    let header = "000000000200000001000000000000000b0a00000000000002000000050009000000000000000b0a00000000000000000000";
    let target = "02000000000000000b0a00000000000000000000";
    let none = "0000000000000000";
    let goldens = ["0000000007", "0100000007"]
        .map(|message| format!("{header}{message}{none}"))
        .into_iter();
    let goldens =
        goldens.chain((2..6).map(|number| format!("{header}{number:02x}000000{target}07{none}")));
    let goldens = goldens.chain((6..11).map(|number| format!("{header}{number:02x}000000{none}")));
    for (message, golden) in messages().into_iter().zip(goldens) {
        assert_eq!(
            hex(&swim(message, 0).encode().unwrap()),
            golden,
            "{message:?}"
        );
    }
    assert_eq!(
        hex(&Datagram::V1(Content::Ask).encode().unwrap()),
        "0000000000000000"
    );
    assert_eq!(
        hex(&Datagram::V1(Content::Answer).encode().unwrap()),
        "0000000001000000"
    );
    assert_eq!(
        hex(&Datagram::V1(Content::AskStatusDigest { since_us: 7 })
            .encode()
            .unwrap()),
        "00000000030000000700000000000000"
    );
    assert_eq!(
        hex(&Datagram::V1(Content::Drain {
            incarnation: Incarnation(9),
            proof: [0xab; ORDER_PROOF_BYTES],
        })
        .encode()
        .unwrap()),
        format!("00000000050000000900000000000000{}", "ab".repeat(32))
    );
    let parts = [
        "0000000004000000", // version, content
        "cdab000000000000",
        "0900000000000000",
        "02000000", // incarnation, its clock, a member
        "201f1e1d1c1b1a191817161514131211",
        "0300000000000000", // lineage, epoch
        "2a00000000000000",
        "1800000000000000", // round, inner step
        "0100000000000000",
        "04000000000000006c6f7373",
        "1800000000000000",
        "000000000000e03f", // one measure: loss at step 24
        "010000803e",
        "01000000000000f03f",
        "00",                     // disagreement, weight, waits
        "01000000007f0000019e1b", // its page at 127.0.0.1:7070
        "0a00000000000000",
        "0b00000000000000", // sent, received
        "0100000000000000",
        "0900000000000000",
        "0c00000000000000",
        "0d000000", // one link
        "0100000000000000",
        "0800000000000000",
        "0e000000000000006e6f6465203320697320646561",
        "64", // one event: node 3 is dead
    ];
    let digest = Datagram::V1(Content::StatusDigest(Box::new(
        super::super::examples::digest(),
    )));
    assert_eq!(hex(&digest.encode().unwrap()), parts.concat());
    let update = |node: u8, state: u8| {
        format!("{node:02x}000000000000000b0a000000000000030000000400{state:02x}000000")
    };
    let golden = format!(
        "{header}080000000300000000000000{}{}{}",
        update(0, 0),
        update(1, 1),
        update(2, 2)
    );
    assert_eq!(hex(&swim(SwimMessage::Gossip, 3).encode().unwrap()), golden);
}

#[test]
fn cut_padded_and_oversized_datagrams_are_refused() {
    for message in messages() {
        let bytes = swim(message, 4).encode().unwrap();
        assert_eq!(Datagram::decode(&bytes), Ok(swim(message, 4)));
        for length in 0..bytes.len() {
            assert!(matches!(
                Datagram::decode(&bytes[..length]),
                Err(DecodeError::Malformed(_))
            ));
        }
        assert_eq!(
            Datagram::decode(&[bytes.as_slice(), &[0; 3]].concat()),
            Err(DecodeError::Trailing(3))
        );
    }
    let too_long = DecodeError::TooLong {
        length: DATAGRAM_BYTES_MAX + 1,
        bound: DATAGRAM_BYTES_MAX,
    };
    assert_eq!(
        Datagram::decode(&[0; DATAGRAM_BYTES_MAX + 1]),
        Err(too_long)
    );
    assert!(swim(SwimMessage::Gossip, 60).encode().is_err());
}

#[test]
fn a_claimed_length_is_refused_before_it_is_allocated() {
    let bytes = swim(SwimMessage::Gossip, 0).encode().unwrap();
    for claimed in [u64::MAX, 1 << 40, 1 << 20] {
        let mut bytes = bytes.clone();
        let at = bytes.len() - 8;
        bytes[at..].copy_from_slice(&claimed.to_le_bytes());
        assert!(matches!(
            Datagram::decode(&bytes),
            Err(DecodeError::Malformed(_))
        ));
    }
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(
        bytes in proptest::collection::vec(any::<u8>(), 0..DATAGRAM_BYTES_MAX)
    ) {
        if let Ok(datagram) = Datagram::decode(&bytes) {
            prop_assert_eq!(datagram.encode().unwrap(), bytes);
        }
    }
}
