//! Passes over many values, split over a few threads: a single thread waits for memory most of the
//! time.

use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::thread::{Builder, available_parallelism, scope};

/// Maximum threads of one pass; on most machines more threads do not increase memory throughput.
pub const THREADS_MAX: usize = 4;
/// Number of values (4 MiB) that justify one thread.
pub const VALUES_PER_THREAD: usize = 1 << 20;

/// Cores that this process may use. Asked once: the answer takes files of the system, which cost
/// more than a pass over a small model.
static CORES: LazyLock<usize> =
    LazyLock::new(|| available_parallelism().map_or(1, NonZeroUsize::get));

/// Does `work` on every item and returns the results in the order of the items; `values` is the
/// number of values in all items. If a thread cannot be started the pass runs on fewer.
pub fn each<T: Send, R: Send>(
    items: Vec<T>,
    values: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let helpers = (values / VALUES_PER_THREAD)
        .min(THREADS_MAX)
        .min(*CORES)
        .min(items.len())
        .saturating_sub(1);
    if helpers == 0 {
        return items.into_iter().map(work).collect();
    }
    let queue = Mutex::new(items.into_iter().enumerate());
    let results = Mutex::new(Vec::new());
    let run = || {
        loop {
            // Not in the condition of a `while let`, where the lock would be held during the work.
            let next = queue.lock().next();
            let Some((index, item)) = next else { return };
            let result = work(item);
            results.lock().push((index, result));
        }
    };
    scope(|scope| {
        for _ in 0..helpers {
            if Builder::new()
                .name("slowmo-pass".into())
                .spawn_scoped(scope, run)
                .is_err()
            {
                break;
            }
        }
        run();
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_items_however_many_threads_there_are() {
        for values in [0, VALUES_PER_THREAD, 2 * VALUES_PER_THREAD, usize::MAX] {
            for count in [0, 1, 2, 1000] {
                let doubled = each((0..count).collect(), values, |item: u64| 2 * item);
                assert_eq!(doubled, (0..count).map(|item| 2 * item).collect::<Vec<_>>());
            }
        }
    }
}
