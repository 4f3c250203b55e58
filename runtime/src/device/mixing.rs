//! The one pass of overlapped gossip over tensors in main memory: correction in, numerators out, chunk by chunk.

use crate::tensors::threads;
use slowmo_actors::buffers::{Assembled, Buffer, Frozen, Pool, chunks};
use slowmo_actors::ports::device::{FreezeError, Mixed, TensorError, Tensors};
use slowmo_protocol::mean;
use std::ops::Range;
use std::sync::Arc;

/// Mixes; see [`slowmo_actors::ports::device::Device::mix`].
pub fn mix(correction: Arc<Assembled>, weight: f64, tensors: &mut dyn Tensors, keep: Option<&Arc<Pool>>) -> Result<Mixed, TensorError> {
    let scratch = Pool::new();
    // The correction is overwritten, unless other workers share it.
    let mut correction = Arc::try_unwrap(correction);
    let mut begin = |range: Range<usize>| {
        let ours = correction.as_mut().ok().and_then(|owned| owned.take_piece(range.start, range.len()));
        Chunk { range, ours, buffer: None }
    };
    let mut all: Vec<Chunk> = chunks(0..tensors.elements()?).map(&mut begin).collect();
    let shared = match &correction {
        Ok(owned) => owned,
        Err(shared) => &**shared,
    };
    let pass = Pass { shared, weight, pool: keep.unwrap_or(&scratch), keeps: keep.is_some() };
    let (mut start, mut not_finite) = (0, None);
    tensors.write(&mut |name, tensor| {
        let length = tensor.len();
        let found = threads::each(parts(&mut all, start, tensor), length, |part| pass.mix(part));
        if let Some((index, value)) = found.into_iter().flatten().next()
            && not_finite.is_none()
        {
            not_finite = Some(FreezeError::NotFinite { tensor: name.to_owned(), index, value });
        }
        start += length;
    })?;
    let mut numerators = Assembled::default();
    for Chunk { range, buffer, .. } in all {
        buffer.into_iter().for_each(|buffer| numerators.insert(range.start, buffer.freeze()));
    }
    Ok(Mixed { numerators, not_finite })
}

/// A chunk of the model: the correction, to become numerators.
struct Chunk {
    range: Range<usize>,
    /// The correction, if nobody else has it.
    ours: Option<Frozen>,
    /// What of it was reached is numerators.
    buffer: Option<Buffer>,
}

/// What a chunk and a tensor have in common.
struct Part<'a> {
    chunk: &'a mut Chunk,
    /// Where it begins in the chunk.
    from: usize,
    tensor: &'a mut [f32],
    /// Where it begins in the tensor.
    index: usize,
}

/// Cuts a tensor whose values begin at `start` at the borders of the chunks.
fn parts<'a>(all: &'a mut [Chunk], start: usize, tensor: &'a mut [f32]) -> Vec<Part<'a>> {
    let end = start + tensor.len();
    let first = all.partition_point(|chunk| chunk.range.end <= start);
    let (mut rest, mut at, mut parts) = (tensor, start, Vec::new());
    for chunk in all[first..].iter_mut().take_while(|chunk| chunk.range.start < end) {
        let (here, after) = rest.split_at_mut(chunk.range.end.min(end) - at);
        let part = Part { from: at - chunk.range.start, index: at - start, tensor: here, chunk };
        (rest, at) = (after, at + part.tensor.len());
        parts.push(part);
    }
    parts
}

/// What all chunks are mixed with.
struct Pass<'a> {
    /// The correction where it is not a chunk's own.
    shared: &'a Assembled,
    weight: f64,
    pool: &'a Arc<Pool>,
    /// Whether anybody wants the numerators.
    keeps: bool,
}

impl Pass<'_> {
    /// The first value of the part that is not finite, with its place in the tensor.
    fn mix(&self, part: Part<'_>) -> Option<(usize, f32)> {
        let Part { chunk, from, tensor, index } = part;
        let Chunk { range, ours, buffer } = chunk;
        let until = from + tensor.len();
        let whole = buffer.get_or_insert_with(|| match ours.take() {
            Some(ours) => ours.into_buffer(self.pool),
            None => self.correction(range),
        });
        let numerators = &mut whole.values_mut()[from..until];
        let finite = mean::correct(tensor, numerators, self.weight);
        let found = (!finite).then(|| numerators.iter().position(|value| !value.is_finite())).flatten();
        let found = found.map(|at| (index + at, numerators[at]));
        if !self.keeps && until == range.len() {
            *buffer = None;
        }
        found
    }

    /// A copy of the correction; zeros where there is none.
    fn correction(&self, range: &Range<usize>) -> Buffer {
        let mut buffer = self.pool.zeros(range.len());
        self.shared.copy_to(range.start, buffer.values_mut());
        buffer
    }
}
