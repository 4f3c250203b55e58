//! Numerators as they travel: float32 values, or bytes of a smaller wire type.

use crate::buffers::{ChunkedBuffer, Pool, VALUE_BYTES, chunks};
use bytes::Bytes;
use slowmo_protocol::algorithm::WireType;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Encoded chunks, in flat order.
pub type Chunks = Vec<(Range<usize>, Bytes)>;

/// One message's values; cheap to clone.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Plain float32 values.
    Float32(ChunkedBuffer),
    /// Plain float32 values that are filled in later, like [`Payload::Encoded`].
    Awaited(Arc<OnceLock<ChunkedBuffer>>),
    /// Encoded values. Kept from the moment that the message counts as in flight, because it may
    /// come back; the arithmetic fills it in before any job that folds it.
    Encoded(WireType, Arc<OnceLock<Chunks>>),
}

impl Payload {
    /// An empty message that [`Payload::fill`] fills in later.
    pub fn awaited(wire: WireType) -> Self {
        match wire {
            WireType::Float32 => Self::Awaited(Arc::default()),
            wire => Self::Encoded(wire, Arc::default()),
        }
    }

    /// Fills in numerators, encoded chunk by chunk. `residual` is the mass that rounding of earlier
    /// messages dropped (zeros in chunks that it lacks), and becomes the residual after this
    /// message; `factor` is the fraction of the mass that is given away.
    pub fn fill(
        &self,
        values: ChunkedBuffer,
        residual: &mut ChunkedBuffer,
        factor: f32,
        pool: &Arc<Pool>,
    ) {
        let (wire, encoded) = match self {
            Self::Encoded(wire, encoded) => (wire, encoded),
            Self::Awaited(awaited) => {
                awaited.get_or_init(|| values);
                return;
            }
            Self::Float32(_) => return,
        };
        let ranges = values
            .pieces()
            .flat_map(|(start, piece)| chunks(start..start + piece.values().len()));
        let encode = |range: Range<usize>| {
            let mut numerators = pool.take(range.len());
            values.copy_to(range.start, numerators.values_mut());
            let owed = residual
                .take_piece(range.start, range.len())
                .map(|piece| piece.into_buffer(pool));
            let mut owed = owed.unwrap_or_else(|| pool.zeros(range.len()));
            let mut bytes = vec![0; wire.encoded_bytes(range.len())];
            wire.encode_gossip(numerators.values(), owed.values_mut(), factor, &mut bytes);
            residual.insert(range.start, owed.freeze());
            (range, Bytes::from(bytes))
        };
        encoded.get_or_init(|| ranges.map(encode).collect());
    }

    /// Length of the values in bytes; 0 if they are not filled in yet.
    pub fn length(&self) -> usize {
        let of = |values: &ChunkedBuffer| {
            values
                .pieces()
                .map(|(_, piece)| piece.values().len() * VALUE_BYTES)
                .sum()
        };
        match self {
            Self::Float32(values) => of(values),
            Self::Awaited(awaited) => awaited.get().map_or(0, of),
            Self::Encoded(_, encoded) => encoded
                .get()
                .into_iter()
                .flatten()
                .map(|(_, bytes)| bytes.len())
                .sum(),
        }
    }

    /// The chunks as bytes, in flat order.
    pub fn bytes(&self) -> Vec<Bytes> {
        let of = |values: &ChunkedBuffer| {
            values
                .pieces()
                .flat_map(|(_, piece)| {
                    chunks(0..piece.values().len()).map(|range| piece.bytes(range))
                })
                .collect()
        };
        match self {
            Self::Float32(values) => of(values),
            Self::Awaited(awaited) => awaited.get().map_or_else(Vec::new, of),
            Self::Encoded(_, encoded) => encoded
                .get()
                .into_iter()
                .flatten()
                .map(|(_, bytes)| bytes.clone())
                .collect(),
        }
    }

    /// The values as receivers decode them.
    pub fn into_values(self, pool: &Arc<Pool>) -> ChunkedBuffer {
        match self {
            Self::Float32(values) => values,
            Self::Awaited(awaited) => awaited.get().cloned().unwrap_or_default(),
            Self::Encoded(wire, encoded) => {
                let mut values = ChunkedBuffer::default();
                for (range, bytes) in encoded.get().into_iter().flatten() {
                    let mut chunk = pool.take(range.len());
                    wire.decode(bytes, chunk.values_mut());
                    values.insert(range.start, chunk.freeze());
                }
                values
            }
        }
    }
}
