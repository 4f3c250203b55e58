//! The one pass of overlapped gossip over tensors in main memory: correction in, numerators out, chunk by chunk.

use slowmo_actors::buffers::{Assembled, Buffer, CHUNK_ELEMENTS, Pool};
use slowmo_actors::ports::device::{FreezeError, Mixed, TensorError, Tensors};
use slowmo_protocol::mean;
use std::sync::Arc;

/// Mixes; see [`slowmo_actors::ports::device::Device::mix`].
pub fn mix(correction: Arc<Assembled>, weight: f64, tensors: &mut dyn Tensors, keep: Option<&Arc<Pool>>) -> Result<Mixed, TensorError> {
    let scratch = Pool::new();
    let pool = keep.unwrap_or(&scratch);
    let mut pass = Pass {
        correction: Arc::try_unwrap(correction),
        total: tensors.elements()?,
        pool,
        chunk: None,
        next: 0,
        done: Assembled::default(),
    };
    let mut not_finite = None;
    tensors.write(&mut |name, tensor| {
        let mut at = 0;
        while at < tensor.len() {
            let numerators = pass.rest();
            let count = numerators.len().min(tensor.len() - at);
            if !mean::correct(&mut tensor[at..at + count], &mut numerators[..count], weight) && not_finite.is_none() {
                let index = numerators[..count].iter().position(|value| !value.is_finite()).unwrap_or(0);
                not_finite = Some(FreezeError::NotFinite { tensor: name.to_owned(), index: at + index, value: numerators[index] });
            }
            pass.advance(count, keep.is_some());
            at += count;
        }
    })?;
    Ok(Mixed { numerators: pass.done, not_finite })
}

/// Where the pass stands.
struct Pass<'a> {
    /// The correction, to be overwritten, or shared with other workers.
    correction: Result<Assembled, Arc<Assembled>>,
    total: usize,
    pool: &'a Arc<Pool>,
    /// The chunk under way, and how much of it is done.
    chunk: Option<(Buffer, usize)>,
    /// Where the chunk under way, or the next one, begins.
    next: usize,
    done: Assembled,
}

impl Pass<'_> {
    /// What is left of the chunk under way: the correction, to become numerators.
    fn rest(&mut self) -> &mut [f32] {
        let (start, length) = (self.next, CHUNK_ELEMENTS.min(self.total.saturating_sub(self.next)));
        let (correction, pool) = (&mut self.correction, self.pool);
        let (buffer, done) = self.chunk.get_or_insert_with(|| (begin(correction, pool, start, length), 0));
        &mut buffer.values_mut()[*done..]
    }

    fn advance(&mut self, count: usize, keep: bool) {
        let Some((buffer, done)) = &mut self.chunk else { return };
        *done += count;
        if *done < buffer.values().len() {
            return;
        }
        if let Some((buffer, length)) = self.chunk.take() {
            if keep {
                self.done.insert(self.next, buffer.freeze());
            }
            self.next += length;
        }
    }
}

/// The correction of one chunk, in a buffer that may be written.
fn begin(correction: &mut Result<Assembled, Arc<Assembled>>, pool: &Arc<Pool>, start: usize, length: usize) -> Buffer {
    let shared = match correction {
        Ok(owned) => match owned.take_piece(start, length) {
            Some(piece) => return piece.into_buffer(pool),
            None => owned,
        },
        Err(shared) => &**shared,
    };
    let mut buffer = pool.zeros(length);
    shared.copy_to(start, buffer.values_mut());
    buffer
}
