//! The single pass of overlapped gossip over tensors in main memory: chunk by chunk it copies out
//! the model from before the mix, and mixes in the correction.

use crate::tensors::threads;
use slowmo_actors::buffers::{Buffer, ChunkedBuffer, Pool, chunks};
use slowmo_actors::ports::device::{
    FreezeError, MixFactors, Mixed, TensorError, Tensors, ValuesMut,
};
use slowmo_protocol::mean;
use slowmo_protocol::sound::{SENT_MAX, first_beyond};
use std::ops::Range;
use std::sync::Arc;

/// Mixes the correction into the model; see [`slowmo_actors::ports::device::Device::mix`].
pub fn mix(
    correction: &ChunkedBuffer,
    factors: MixFactors,
    tensors: &mut dyn Tensors,
    keep: Option<&Arc<Pool>>,
) -> Result<Mixed, TensorError> {
    let pass = Pass {
        correction,
        factors,
        keep,
    };
    let mut all: Vec<Chunk> = chunks(0..tensors.elements()?)
        .map(|range| Chunk {
            range,
            before: None,
        })
        .collect();
    let mut start = 0;
    let mut not_finite = None;
    tensors.lend_mut(&mut |name, tensor| {
        let length = tensor.len();
        let found = threads::each(parts(&mut all, start, tensor), length, |part| {
            pass.mix(part)
        });
        if let Some((index, value)) = found.into_iter().flatten().next()
            && not_finite.is_none()
        {
            not_finite = Some(FreezeError::NotFinite {
                tensor: name.to_owned(),
                index,
                value,
            });
        }
        start += length;
    })?;
    let mut before = ChunkedBuffer::default();
    for Chunk {
        range,
        before: buffer,
    } in all
    {
        buffer
            .into_iter()
            .for_each(|buffer| before.insert(range.start, buffer.freeze()));
    }
    Ok(Mixed { before, not_finite })
}

/// A chunk of the model.
struct Chunk {
    range: Range<usize>,
    /// The values before the mix, of the chunks that were reached; only if requested.
    before: Option<Buffer>,
}

/// The overlap of a chunk and a tensor.
struct Part<'a> {
    chunk: &'a mut Chunk,
    /// Index of the first value in the chunk.
    from: usize,
    tensor: ValuesMut<'a>,
    /// Index of the first value in the tensor.
    index: usize,
}

/// Cuts a tensor whose values begin at `start` at the chunk borders.
fn parts<'a>(all: &'a mut [Chunk], start: usize, tensor: ValuesMut<'a>) -> Vec<Part<'a>> {
    let end = start + tensor.len();
    let first = all.partition_point(|chunk| chunk.range.end <= start);
    let mut rest = tensor;
    let mut at = start;
    let mut parts = Vec::new();
    for chunk in all[first..]
        .iter_mut()
        .take_while(|chunk| chunk.range.start < end)
    {
        let (here, after) = rest.split_at(chunk.range.end.min(end) - at);
        let part = Part {
            from: at - chunk.range.start,
            index: at - start,
            tensor: here,
            chunk,
        };
        rest = after;
        at += part.tensor.len();
        parts.push(part);
    }
    parts
}

/// Parameters that are the same for all chunks of a mix.
struct Pass<'a> {
    correction: &'a ChunkedBuffer,
    factors: MixFactors,
    keep: Option<&'a Arc<Pool>>,
}

impl Pass<'_> {
    /// Mixes one part. Returns its first numerator that is not finite, or too large to be sent,
    /// with the index in the tensor.
    fn mix(&self, part: Part<'_>) -> Option<(usize, f32)> {
        let Part {
            chunk,
            from,
            tensor,
            index,
        } = part;
        let found = match tensor {
            ValuesMut::Float32(values) => self.mix_values(chunk, from, values),
            ValuesMut::Half(half, bits) => {
                let mut values = vec![0.0; bits.len()];
                half.widen_all(bits, &mut values);
                let found = self.mix_values(chunk, from, &mut values);
                half.round_all(&values, bits);
                found
            }
        };
        found.map(|(at, value)| (index + at, value))
    }

    /// Mixes values that begin at `from` in their chunk. Returns the first numerator that is not
    /// finite, or too large to be sent, with its index.
    fn mix_values(
        &self,
        chunk: &mut Chunk,
        from: usize,
        tensor: &mut [f32],
    ) -> Option<(usize, f32)> {
        let Chunk { range, before } = chunk;
        let MixFactors { stays, weight } = self.factors;
        let until = from + tensor.len();
        let mut copy = Vec::new();
        let correction = match self
            .correction
            .piece(range.start)
            .map(|piece| piece.values())
        {
            Some(piece) if piece.len() == range.len() => &piece[from..until],
            _ => {
                copy.resize(tensor.len(), 0.0);
                self.correction.copy_to(range.start + from, &mut copy);
                &copy
            }
        };
        let finite = match self.keep {
            Some(pool) => {
                let before = before.get_or_insert_with(|| pool.take(range.len()));
                mean::correct_and_keep(
                    tensor,
                    &mut before.values_mut()[from..until],
                    correction,
                    stays,
                    weight,
                )
            }
            None => mean::correct(tensor, correction, stays, weight),
        };
        let found = (!finite).then(|| first_beyond(tensor, SENT_MAX)).flatten();
        found.map(|at| (at, tensor[at]))
    }
}
