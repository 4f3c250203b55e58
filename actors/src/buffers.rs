//! Flat float32 buffers that are frozen once, shared as slices and recycled, so that bulk bytes are
//! copied only where necessary.
//!
//! A [`Buffer`] returns to its [`Pool`] when the last reference to it is dropped, including the
//! transport's references.

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Elements of a chunk, the unit of streaming, summing and recycling (256 KiB).
pub const CHUNK_ELEMENTS: usize = 64 * 1024;
/// Bytes of one float32 value.
pub const VALUE_BYTES: usize = 4;

#[cfg(target_endian = "big")]
compile_error!(
    "values travel as little-endian bytes without conversion: big-endian targets are not supported"
);

#[cfg(not(target_pointer_width = "64"))]
compile_error!("models have up to 2^61 values, which 32 bits cannot count: 64-bit targets only");

/// Allocator of memory for buffers in place of the normal one. It is page-locked for a GPU; on CPUs
/// each large buffer has pages of its own, which the system gets back.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Allocates zeros; `None` if no such memory is left, in which case the buffer comes from the
    /// normal allocator.
    fn allocate(&self, elements: usize) -> Option<Box<dyn Block>>;
}

/// One buffer's block of such memory.
pub trait Block: Send + Sync + fmt::Debug {
    /// The values.
    fn values(&self) -> &[f32];

    /// The values, mutable.
    fn values_mut(&mut self) -> &mut [f32];
}

/// Storage of a buffer's values.
#[derive(Debug)]
enum Values {
    Vector(Vec<f32>),
    Block(Box<dyn Block>),
}

impl Values {
    fn get(&self) -> &[f32] {
        match self {
            Self::Vector(values) => values,
            Self::Block(block) => block.values(),
        }
    }

    fn get_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Vector(values) => values,
            Self::Block(block) => block.values_mut(),
        }
    }

    fn len(&self) -> usize {
        self.get().len()
    }
}

/// Spare buffers by length, reused to avoid page faults.
#[derive(Debug, Default)]
pub struct Pool {
    spare: Mutex<Spare>,
    memory: Option<Arc<dyn Memory>>,
}

#[derive(Debug, Default)]
struct Spare {
    by_length: BTreeMap<usize, SameLength>,
    elements: usize,
    elements_max: usize,
    takes: u64,
}

/// Spare values of one length.
#[derive(Debug, Default)]
struct SameLength {
    values: Vec<Values>,
    /// Number of the last take that asked for this length.
    asked: u64,
    /// The fewest spares since [`Pool::release_unused`]. Nobody has needed that many.
    fewest: usize,
}

impl Spare {
    fn take(&mut self, length: usize) -> Option<Values> {
        self.takes += 1;
        let of_length = self.by_length.entry(length).or_default();
        of_length.asked = self.takes;
        let reused = of_length.values.pop();
        of_length.fewest = of_length.fewest.min(of_length.values.len());
        if reused.is_some() {
            self.elements -= length;
        }
        reused
    }

    /// Removes and returns the values that nobody has needed since this was last called.
    fn unused(&mut self) -> Vec<Values> {
        let mut unused = Vec::new();
        for same in self.by_length.values_mut() {
            unused.extend(same.values.drain(..same.fewest));
            same.fewest = same.values.len();
        }
        self.elements -= unused.iter().map(Values::len).sum::<usize>();
        unused
    }

    /// Keeps values for reuse. If there is no room, drops spare values of lengths that were asked
    /// for less recently. Returns the values that are not kept.
    fn put(&mut self, values: Values) -> Vec<Values> {
        let length = values.len();
        let mut gone = Vec::new();
        let asked = self.by_length.get(&length).map_or(0, |same| same.asked);
        let older = self.by_length.values().filter(|other| other.asked < asked);
        let older: usize = older.flat_map(|other| &other.values).map(Values::len).sum();
        if self.elements - older + length > self.elements_max {
            return vec![values];
        }
        while self.elements + length > self.elements_max {
            let Some((oldest, same)) = self
                .by_length
                .iter_mut()
                .min_by_key(|(_, other)| other.asked)
            else {
                break;
            };
            match same.values.pop() {
                Some(spare) => {
                    same.fewest = same.fewest.min(same.values.len());
                    self.elements -= spare.len();
                    gone.push(spare);
                }
                None => {
                    let oldest = *oldest;
                    self.by_length.remove(&oldest);
                }
            }
        }
        self.elements += length;
        self.by_length
            .entry(length)
            .or_default()
            .values
            .push(values);
        gone
    }
}

impl Pool {
    /// A pool that keeps nothing until [`Pool::keep_at_most`] is called.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Like [`Pool::new`], but allocates the buffers from `memory`.
    #[must_use]
    pub fn of(memory: Arc<dyn Memory>) -> Arc<Self> {
        Arc::new(Self {
            spare: Mutex::default(),
            memory: Some(memory),
        })
    }

    /// Raises the most elements kept for reuse to this. It never falls.
    pub fn keep_at_most(&self, elements: usize) {
        let mut spare = self.spare();
        spare.elements_max = spare.elements_max.max(elements);
    }

    /// Frees the spare buffers that nobody has needed since this was last called. So a program that
    /// computes for long between two rounds gets its memory back. One whose rounds follow each other
    /// keeps what they need.
    pub fn release_unused(&self) {
        // Freed outside the lock, because returning memory to the system is slow.
        let unused = self.spare().unused();
        drop(unused);
    }

    /// A buffer of `length` elements with unspecified contents.
    #[must_use]
    pub fn take(self: &Arc<Self>, length: usize) -> Buffer {
        let reused = self.spare().take(length);
        let values = reused.or_else(|| self.memory.as_ref()?.allocate(length).map(Values::Block));
        Buffer {
            values: values.unwrap_or_else(|| Values::Vector(vec![0.0; length])),
            pool: Arc::downgrade(self),
        }
    }

    /// A buffer of `length` zeros.
    #[must_use]
    pub fn zeros(self: &Arc<Self>, length: usize) -> Buffer {
        let mut buffer = self.take(length);
        buffer.values_mut().fill(0.0);
        buffer
    }

    fn put_back(&self, values: Values) {
        if values.len() > 0 {
            // Freed outside the lock, because returning memory to the system is slow.
            let gone = self.spare().put(values);
            drop(gone);
        }
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock()
    }
}

/// Mutable values; [`Buffer::freeze`] turns them into shared, immutable ones.
#[derive(Debug)]
pub struct Buffer {
    values: Values,
    pool: Weak<Pool>,
}

impl Buffer {
    /// The values.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        self.values.get()
    }

    /// The values, mutable.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.values.get_mut()
    }

    /// The values as mutable little-endian bytes, to receive into.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self.values.get_mut())
    }

    /// Shares the values; they can no longer be written.
    #[must_use]
    pub fn freeze(self) -> Frozen {
        Frozen(Arc::new(self))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.put_back(std::mem::replace(
                &mut self.values,
                Values::Vector(Vec::new()),
            ));
        }
    }
}

/// Shared values that never change.
#[derive(Clone, Debug)]
pub struct Frozen(Arc<Buffer>);

struct LittleEndian(Arc<Buffer>);

impl AsRef<[u8]> for LittleEndian {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.values())
    }
}

impl Frozen {
    /// The values.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        self.0.values()
    }

    /// The values, mutable, if there is no other reference to them.
    pub fn values_mut(&mut self) -> Option<&mut [f32]> {
        Arc::get_mut(&mut self.0).map(Buffer::values_mut)
    }

    /// The buffer itself if there is no other reference to it; otherwise a copy.
    #[must_use]
    pub fn into_buffer(self, pool: &Arc<Pool>) -> Buffer {
        Arc::try_unwrap(self.0).unwrap_or_else(|shared| {
            let mut copy = pool.take(shared.values().len());
            copy.values_mut().copy_from_slice(shared.values());
            copy
        })
    }

    /// The values of `elements` as little-endian bytes, without a copy; the bytes keep the buffer
    /// alive.
    #[must_use]
    pub fn bytes(&self, elements: Range<usize>) -> Bytes {
        Bytes::from_owner(LittleEndian(Arc::clone(&self.0)))
            .slice(elements.start * VALUE_BYTES..elements.end * VALUE_BYTES)
    }
}

/// Consecutive ranges of at most [`CHUNK_ELEMENTS`] elements that cover `range`.
pub fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> + Send + use<> {
    let end = range.end;
    range
        .step_by(CHUNK_ELEMENTS)
        .map(move |start| start..(start + CHUNK_ELEMENTS).min(end))
}

/// A flat vector in pieces; each piece is a frozen chunk at its position.
#[derive(Clone, Debug, Default)]
pub struct ChunkedBuffer {
    pieces: BTreeMap<usize, Frozen>,
}

impl ChunkedBuffer {
    /// Inserts a chunk at its first element.
    pub fn insert(&mut self, start: usize, chunk: Frozen) {
        self.pieces.insert(start, chunk);
    }

    /// Adds the pieces of another part.
    pub fn extend(&mut self, other: Self) {
        self.pieces.extend(other.pieces);
    }

    /// Whether there are no pieces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Removes and returns the piece that starts at `start`, if it has `length` values.
    pub fn take_piece(&mut self, start: usize, length: usize) -> Option<Frozen> {
        self.piece(start)
            .filter(|piece| piece.values().len() == length)?;
        self.pieces.remove(&start)
    }

    /// Calls `change(first element, values)` for every piece; pieces with other references are
    /// copied first.
    pub fn update(&mut self, pool: &Arc<Pool>, mut change: impl FnMut(usize, &mut [f32])) {
        for (start, piece) in &mut self.pieces {
            if let Some(values) = piece.values_mut() {
                change(*start, values);
                continue;
            }
            let mut copy = piece.clone().into_buffer(pool);
            change(*start, copy.values_mut());
            *piece = copy.freeze();
        }
    }

    /// The chunks in ascending order with their first elements.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, &Frozen)> {
        self.pieces.iter().map(|(start, chunk)| (*start, chunk))
    }

    /// The chunks that start within `range`, in ascending order.
    pub fn pieces_within(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &Frozen)> {
        self.pieces
            .range(range)
            .map(|(start, chunk)| (*start, chunk))
    }

    /// The chunk that starts at `start`.
    #[must_use]
    pub fn piece(&self, start: usize) -> Option<&Frozen> {
        self.pieces.get(&start)
    }

    /// Whether the pieces cover `0..elements` without a gap.
    #[must_use]
    pub fn covers(&self, elements: usize) -> bool {
        let covered = self.pieces().try_fold(0, |next, (start, chunk)| {
            (start == next).then(|| next + chunk.values().len())
        });
        covered.is_some_and(|covered| covered >= elements)
    }

    /// Calls `visit(offset in target, values)` for the pieces of `start..start + length`, in order.
    pub fn visit(&self, start: usize, length: usize, mut visit: impl FnMut(usize, &[f32])) {
        let end = start + length;
        let first = self
            .pieces
            .range(..=start)
            .next_back()
            .map_or(start, |(piece, _)| *piece);
        for (piece, chunk) in self.pieces.range(first..end) {
            let from = start.max(*piece);
            let to = end.min(piece + chunk.values().len());
            if from < to {
                visit(from - start, &chunk.values()[from - piece..to - piece]);
            }
        }
    }

    /// Copies the values from element `start` on into `target`.
    pub fn copy_to(&self, start: usize, target: &mut [f32]) {
        let length = target.len();
        self.visit(start, length, |offset, values| {
            target[offset..offset + values.len()].copy_from_slice(values)
        });
    }
}

#[cfg(test)]
mod tests;
