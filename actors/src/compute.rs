//! Runs arithmetic that takes too long for the executor's own threads.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work` on a thread where it blocks no other task; `None` if the executor is shutting down.
/// A single-threaded executor runs it in place: it has no other thread that could continue
/// meanwhile, and everything on it then happens in one order.
pub(crate) async fn compute<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Some(work()),
        _ => tokio::task::spawn_blocking(work).await.ok(),
    }
}
