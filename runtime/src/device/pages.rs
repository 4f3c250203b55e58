//! Memory of the host in pages of its own, which the system gets back as soon as a buffer is freed.
//! An allocator mostly keeps freed blocks of a chunk's size.

use memmap2::{MmapMut, MmapOptions};
use slowmo_actors::buffers::{Block, Memory, Pool};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Values of a buffer from which on it has pages of its own (64 KiB). A smaller one would waste a
/// part of its last page, and costs more system calls than it is worth.
const OWN_PAGES_MIN: usize = 16 * 1024;
/// Bytes of a page, and of a line of the cache. Where pages are larger, each buffer takes up to one
/// of those more.
const PAGE: usize = 4096;
const LINE: usize = 64;
/// A buffer begins this many lines later in its first page than the one before. If all began at the
/// same place, a pass over several of them would be slower: an exact average between processes of
/// one machine took 5 % more.
const LINES_FURTHER: usize = 5;
/// Buffers with pages of their own at most. Linux allows a process 65,530 mappings, and refuses all
/// others then; further buffers come from the allocator.
const MAPPINGS_MAX: usize = 16 * 1024;
/// How often spare buffers are freed that nobody needed since the last time. The next round then
/// fills new pages, which takes a tenth of a second or more for each GiB. That must stay a small
/// part of the time between rounds.
const RELEASE_INTERVAL: Duration = Duration::from_secs(10);

/// Allocates each buffer in pages of its own.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Buffers so far.
    allocated: AtomicUsize,
    /// Those that live.
    mapped: Arc<AtomicUsize>,
}

impl Memory for Pages {
    fn allocate(&self, elements: usize) -> Option<Box<dyn Block>> {
        if elements < OWN_PAGES_MIN || self.mapped.load(Ordering::Relaxed) >= MAPPINGS_MAX {
            return None;
        }
        let bytes = elements.checked_mul(size_of::<f32>())?;
        let whole = bytes.checked_add(PAGE)?;
        let before = self.allocated.fetch_add(LINES_FURTHER, Ordering::Relaxed);
        let begin = before % (PAGE / LINE) * LINE;
        // Linux fills them at once: a fault for each page takes longer.
        let mapped = MmapOptions::new().len(whole).populate().map_anon().ok()?;
        self.mapped.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(Mapped {
            mapped: Arc::clone(&self.mapped),
            pages: mapped,
            used: begin..begin + bytes,
        }))
    }
}

/// The pages of one buffer.
#[derive(Debug)]
struct Mapped {
    mapped: Arc<AtomicUsize>,
    pages: MmapMut,
    /// The bytes of the values, at a whole line.
    used: Range<usize>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.mapped.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Block for Mapped {
    fn values(&self) -> &[f32] {
        bytemuck::cast_slice(&self.pages[self.used.clone()])
    }

    fn values_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.pages[self.used.clone()])
    }
}

/// Frees spare buffers that nobody needs, until the pool is gone.
pub(crate) async fn release_spares(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(RELEASE_INTERVAL).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        // To return gigabytes to the system takes too long for the executor's threads.
        let released = tokio::task::spawn_blocking(move || pool.release_unused()).await;
        if let Err(error) = released {
            tracing::warn!(%error, "spare memory is no longer freed");
            return;
        }
    }
}

/// A pool of such memory.
pub(super) fn pool() -> Arc<Pool> {
    Pool::of(Arc::new(Pages::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_as_many_values_as_were_asked_for() {
        let pool = pool();
        for length in [0, 1, OWN_PAGES_MIN - 1, OWN_PAGES_MIN, OWN_PAGES_MIN + 1] {
            let mut buffer = pool.take(length);
            assert_eq!(buffer.values().len(), length);
            assert!(buffer.values().iter().all(|value| *value == 0.0));
            buffer.values_mut().fill(1.0);
            assert_eq!(buffer.bytes_mut().len(), length * 4);
        }
    }

    #[test]
    fn buffers_begin_at_different_places_of_their_pages() {
        let pool = pool();
        let buffers: Vec<_> = (0..130).map(|_| pool.take(OWN_PAGES_MIN)).collect();
        let places: Vec<usize> = buffers
            .iter()
            .map(|buffer| buffer.values().as_ptr().addr() % PAGE)
            .collect();
        assert!(places.iter().all(|place| place % LINE == 0));
        assert!(places.windows(2).all(|two| two[0] != two[1]));
    }

    #[test]
    fn there_are_only_so_many_mappings() {
        let pages = Pages::default();
        pages.mapped.store(MAPPINGS_MAX - 1, Ordering::Relaxed);
        let last = pages.allocate(OWN_PAGES_MIN);
        assert!(last.is_some() && pages.allocate(OWN_PAGES_MIN).is_none());
        drop(last);
        assert!(pages.allocate(OWN_PAGES_MIN).is_some());
    }

    #[test]
    fn more_than_the_address_space_is_refused() {
        let pages = Pages::default();
        for elements in [usize::MAX / 8, usize::MAX / 4, usize::MAX] {
            assert!(pages.allocate(elements).is_none());
        }
    }
}
