//! Wire format between nodes: control frames and stream headers, in a versioned enum, with bounded
//! decoding.
//!
//! Only this module depends on bincode. The encoding is bincode's legacy one (little-endian,
//! fixed-size integers), which other implementations of the format read too, so the crate can be
//! replaced.

pub(crate) mod bounded;
mod bulk;
mod control;
#[cfg(test)]
mod corpora;
mod datagram;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hostile;
mod status_digest;

pub use bulk::{Bulk, BulkHeader};
pub use control::{
    ContributionHeader, ContributionNotice, DIFFERENCES_BYTES_MAX, Frame, Header, Hello,
    JoinRefusal, MemberState, Message, Preface, RefusalReason, SPEC_BYTES_MAX,
};
pub use datagram::{
    Content, Datagram, LIFE_UPDATES_MAX, Life, LifeState, LifeUpdate, ORDER_PROOF_BYTES,
    SwimMessage, SwimPacket,
};
pub use status_digest::{
    HAPPENED_BYTES_MAX, HAPPENED_MAX, Happened, LINKS_MAX, Link, MEASURE_NAME_BYTES_MAX,
    MEASURES_MAX, Measure, Stands, StatusDigest,
};

use crate::published::{Digest, Hasher};
use serde::{Serialize, de::DeserializeOwned};

/// Protocol version of this build; also the suffix of the ALPN name `slowmo/2`.
pub const PROTOCOL_VERSION: u32 = 2;
/// Maximum size of an encoded control frame, in bytes; a view of [`crate::view::MEMBERS_MAX`]
/// members fits.
pub const CONTROL_FRAME_BYTES_MAX: usize = 1 << 20;
/// Maximum size of an encoded stream header, in bytes.
pub const BULK_HEADER_BYTES_MAX: usize = 4096;
/// Maximum size of an encoded datagram, in bytes: one packet on any path that carries QUIC.
pub const DATAGRAM_BYTES_MAX: usize = 1100;
/// Maximum size of an encoded preface, in bytes.
pub const PREFACE_BYTES_MAX: usize = 256;

/// Reason why bytes are not a message. They had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Longer than its bound; refused before decoding.
    #[error("{length} bytes exceed the bound of {bound}")]
    TooLong {
        /// Bytes received.
        length: usize,
        /// The bound.
        bound: usize,
    },
    /// Not an encoding of the expected type.
    #[error("not a valid encoding: {0}")]
    Malformed(String),
    /// A valid encoding followed by other bytes.
    #[error("{0} bytes follow the end of the message")]
    Trailing(usize),
}

/// Reason why a message could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Longer than the bound that its receivers accept; nothing was sent.
    #[error("a message of {length} bytes exceeds the bound of {bound}")]
    TooLong {
        /// Bytes it would have.
        length: usize,
        /// The bound.
        bound: usize,
    },
    /// The value has no encoding.
    #[error("a message has no encoding: {0}")]
    Unencodable(String),
}

/// Encodes within `BOUND` bytes.
fn encode<T: Serialize, const BOUND: usize>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let bytes = bincode::serde::encode_to_vec(value, bincode::config::legacy());
    let bytes = bytes.map_err(|error| EncodeError::Unencodable(error.to_string()))?;
    if bytes.len() > BOUND {
        return Err(EncodeError::TooLong {
            length: bytes.len(),
            bound: BOUND,
        });
    }
    Ok(bytes)
}

/// The encoded size of a value, in bytes; `usize::MAX`, which exceeds every bound, if it has no
/// encoding.
fn encoded_bytes<T: Serialize>(value: &T) -> usize {
    let written = bincode::serde::encode_into_std_write(
        value,
        &mut std::io::sink(),
        bincode::config::legacy(),
    );
    written.unwrap_or(usize::MAX)
}

/// The digest of a value's encoding; all zero if it has none.
pub(crate) fn digest<T: Serialize>(value: &T) -> Digest {
    let mut hasher = std::io::BufWriter::new(Hasher::default());
    let written =
        bincode::serde::encode_into_std_write(value, &mut hasher, bincode::config::legacy());
    match (written, hasher.into_inner()) {
        (Ok(_), Ok(hasher)) => hasher.finish(),
        _ => Digest::default(),
    }
}

/// Decodes at most `BOUND` bytes; no length inside can make it allocate more than that.
fn decode<T: DeserializeOwned, const BOUND: usize>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > BOUND {
        return Err(DecodeError::TooLong {
            length: bytes.len(),
            bound: BOUND,
        });
    }
    let config = bincode::config::legacy().with_limit::<BOUND>();
    let (value, used) = bincode::serde::decode_from_slice(bytes, config)
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    match bytes.len() - used {
        0 => Ok(value),
        trailing => Err(DecodeError::Trailing(trailing)),
    }
}
