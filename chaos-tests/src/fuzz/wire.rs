//! Data that nodes send each other. Every value has only one encoding, so whatever is decoded is
//! encoded to the same bytes again.

use slowmo::internal::transport::quic::framing::blocks_for_tests;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::wire::{BulkHeader, Datagram, DecodeError, EncodeError, Frame, Preface};
use std::fmt::Debug;

/// Decodes, encodes and compares the bytes.
fn round_trip<T: Debug>(
    data: &[u8],
    decode: fn(&[u8]) -> Result<T, DecodeError>,
    encode: fn(&T) -> Result<Vec<u8>, EncodeError>,
) -> bool {
    let Ok(value) = decode(data) else {
        return false;
    };
    let again = encode(&value);
    assert_eq!(again.as_deref(), Ok(data), "encodes differently: {value:?}");
    true
}

/// A control frame. All of these functions return whether the bytes were accepted.
pub fn control_frame(data: &[u8]) -> bool {
    round_trip(data, Frame::decode, Frame::encode)
}

/// The first bytes of a connection.
pub fn preface(data: &[u8]) -> bool {
    round_trip(data, Preface::decode, Preface::encode)
}

/// The header of a bulk stream.
pub fn bulk_header(data: &[u8]) -> bool {
    round_trip(data, BulkHeader::decode, BulkHeader::encode)
}

/// A datagram.
pub fn datagram(data: &[u8]) -> bool {
    round_trip(data, Datagram::decode, Datagram::encode)
}

/// Blocks after their lengths, which carry control frames and the headers of bulk streams. The first
/// byte is the bound of a block's length.
pub fn framing(data: &[u8]) -> bool {
    let Some((max, stream)) = data.split_first() else {
        return false;
    };
    let max = usize::from(*max);
    let blocks = blocks_for_tests(stream, max);
    let mut again = Vec::new();
    for block in &blocks {
        assert!(block.len() <= max, "a block is longer than its bound");
        again.extend_from_slice(&(block.len() as u32).to_le_bytes());
        again.extend_from_slice(block);
    }
    assert!(stream.starts_with(&again), "other bytes than were sent");
    !blocks.is_empty()
}

/// Values of a stream: the first byte names the wire type. Decoded values are encoded without loss.
pub fn values(data: &[u8]) -> bool {
    let Some((first, bytes)) = data.split_first() else {
        return false;
    };
    let wire = [WireType::Float32, WireType::BFloat16, WireType::Int8][usize::from(*first) % 3];
    let mut elements = bytes.len();
    while wire.encoded_bytes(elements) > bytes.len() {
        elements -= 1;
    }
    let bytes = &bytes[..wire.encoded_bytes(elements)];
    let mut received = vec![0.0f32; elements];
    wire.decode(bytes, &mut received);
    let mut mixed = vec![0.0f32; elements];
    wire.mix(bytes, 1.0, &mut mixed);
    // Adding to zero keeps every value except the sign of a zero.
    assert!(
        mixed
            .iter()
            .zip(&received)
            .all(|(one, other)| same(*one, *other + 0.0)),
        "mixed otherwise than decoded"
    );
    let mut encoded = vec![0u8; bytes.len()];
    wire.encode_in_place(&mut received, &mut encoded);
    let mut decoded = vec![0.0f32; elements];
    wire.decode(&encoded, &mut decoded);
    assert!(
        decoded
            .iter()
            .zip(&received)
            .all(|(one, other)| same(*one, *other)),
        "the sender sees other values than the receiver"
    );
    let mut again = vec![0u8; bytes.len()];
    wire.encode_in_place(&mut decoded, &mut again);
    assert!(
        decoded
            .iter()
            .zip(&received)
            .all(|(one, other)| same(*one, *other)),
        "encoded with a loss the second time"
    );
    true
}

/// Whether both have the same bits, or both are NaN.
fn same(one: f32, other: f32) -> bool {
    one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan())
}
