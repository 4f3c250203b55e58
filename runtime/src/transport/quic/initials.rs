//! QUIC Initials that are well formed and begin no connection: what a stranger who knows nothing
//! but the address of a node can send. For tests and floods only.
//!
//! The keys of an Initial follow from its destination connection id (RFC 9001, section 5.2), so
//! that anybody can make packets which a server must decrypt before it can judge them.

use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{Keys, Version};

/// Length of every Initial that is made here, in bytes: the least that a server answers.
pub const INITIAL_BYTES: usize = 1200;
/// Length of the packet number in every Initial, in bytes.
const PACKET_NUMBER_BYTES: usize = 4;
/// Length of an authentication tag, in bytes.
const TAG_BYTES: usize = 16;
/// First byte of an Initial of QUIC version 1 whose packet number has 4 bytes.
const FIRST_BYTE: u8 = 0xc3;
/// Frame types (RFC 9000, section 19).
const PING: u8 = 0x01;
const CONNECTION_CLOSE: u8 = 0x1c;
const APPLICATION_CLOSE: u8 = 0x1d;

/// The message of an Initial.
#[derive(Clone, Copy, Debug)]
pub enum Says<'a> {
    /// A PING: a server that takes the packet waits for a handshake which never comes.
    Ping,
    /// The connection is closed by the transport, with this code and reason.
    Close(u16, &'a [u8]),
    /// The connection is closed by the application, with this code and reason.
    ApplicationClose(u16, &'a [u8]),
}

/// An Initial from `source` to `destination` (connection ids of 8 to 20 bytes, and of 0 to 20).
/// `None` if an id or the reason is too long.
#[must_use]
pub fn initial(destination: &[u8], source: &[u8], says: Says<'_>) -> Option<Vec<u8>> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13()?;
    let keys = Keys::initial(Version::V1, suite, suite.quic?, destination, Side::Client).local;
    let mut packet = vec![FIRST_BYTE, 0, 0, 0, 1];
    for id in [destination, source] {
        packet.push(u8::try_from(id.len()).ok().filter(|length| *length <= 20)?);
        packet.extend_from_slice(id);
    }
    // No token follows.
    packet.push(0);
    let rest = INITIAL_BYTES.checked_sub(packet.len() + 2)?;
    packet.extend_from_slice(&two_bytes(u16::try_from(rest).ok()?));
    let number_at = packet.len();
    packet.extend_from_slice(&[0; PACKET_NUMBER_BYTES]);
    let mut payload = frame(says);
    let room = rest - PACKET_NUMBER_BYTES - TAG_BYTES;
    if payload.len() > room {
        return None;
    }
    payload.resize(room, 0);
    let tag = keys
        .packet
        .encrypt_in_place(0, &packet, &mut payload)
        .ok()?;
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(tag.as_ref());
    let (header, protected) = packet.split_at_mut(number_at + PACKET_NUMBER_BYTES);
    let (first, number) = header.split_at_mut(number_at);
    let sample = protected.get(..keys.header.sample_len())?;
    keys.header
        .encrypt_in_place(sample, first.first_mut()?, number)
        .ok()?;
    Some(packet)
}

fn frame(says: Says<'_>) -> Vec<u8> {
    let closes = |kind, code, reason: &[u8]| {
        let mut frame = vec![kind];
        frame.extend_from_slice(&two_bytes(code));
        if kind == CONNECTION_CLOSE {
            // The type of the frame that caused it: none.
            frame.push(0);
        }
        frame.extend_from_slice(&two_bytes(u16::try_from(reason.len()).unwrap_or(u16::MAX)));
        frame.extend_from_slice(reason);
        frame
    };
    match says {
        Says::Ping => vec![PING],
        Says::Close(code, reason) => closes(CONNECTION_CLOSE, code, reason),
        Says::ApplicationClose(code, reason) => closes(APPLICATION_CLOSE, code, reason),
    }
}

/// A number below 2^14 as a variable-length integer of two bytes (RFC 9000, section 16).
fn two_bytes(number: u16) -> [u8; 2] {
    (number & 0x3fff | 0x4000).to_be_bytes()
}
