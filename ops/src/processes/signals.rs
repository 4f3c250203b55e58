//! Ctrl-C and SIGTERM, received by a thread instead of a handler.

use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The last signal caught; 0 before the first.
static LAST: AtomicI32 = AtomicI32::new(0);
/// Signals caught so far; those that come together count once.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Time within which further signals belong to the same wish: `timeout` signals its child and then
/// the group that the child is in.
const TOGETHER: Duration = Duration::from_millis(50);

/// Signals that end a launch.
fn ending() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect()
}

/// Makes SIGINT, SIGTERM and SIGHUP end the groups of this process, from now on, instead of the
/// process itself.
///
/// Must be called once, on the main thread, before any other thread exists. If the system refuses,
/// the signals keep their usual effect, and the nodes die with this process.
pub fn catch_signals() {
    if ending().thread_block().is_err() {
        return;
    }
    let wait = || {
        let mut counted: Option<Instant> = None;
        while let Ok(signal) = ending().wait() {
            LAST.store(signal as i32, Ordering::Relaxed);
            if counted.is_none_or(|at| at.elapsed() >= TOGETHER) {
                COUNT.fetch_add(1, Ordering::Relaxed);
                counted = Some(Instant::now());
            }
        }
    };
    if std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .is_err()
    {
        release();
    }
}

/// Restores the usual effect of the signals; needed because a child inherits its parent's blocked
/// signals.
pub(super) fn release() {
    let _refused = ending().thread_unblock();
}

/// The last signal caught.
pub fn caught() -> Option<Signal> {
    Signal::try_from(LAST.load(Ordering::Relaxed)).ok()
}

/// Whether a second signal was caught, which skips the grace period.
pub fn caught_again() -> bool {
    count() > 1
}

/// Number of signals caught; the second one skips the grace period.
pub(super) fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}
