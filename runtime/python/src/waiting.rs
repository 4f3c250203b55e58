//! Waits: the interpreter's lock is released, and Ctrl-C is heard.

use pyo3::prelude::*;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Longest time for which a signal is not heard.
const SLICE: Duration = Duration::from_millis(50);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread until it is ready, without the interpreter's lock.
///
/// # Errors
/// A signal handler of Python raised, as Ctrl-C does. The future is dropped then: what it waited
/// for may happen without it.
pub fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current()));
    loop {
        let polled = py.detach(|| poll_for(SLICE, future.as_mut(), &waker));
        if let Some(output) = polled {
            return Ok(output);
        }
        py.check_signals()?;
    }
}

/// Polls a future for at most this long.
fn poll_for<F: Future>(
    limit: Duration,
    mut future: Pin<&mut F>,
    waker: &Arc<Unpark>,
) -> Option<F::Output> {
    let waker = Arc::clone(waker).into();
    let mut context = Context::from_waker(&waker);
    let end = Instant::now() + limit;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}
