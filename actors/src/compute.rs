//! Runs arithmetic that takes too long for the executor's own threads.

/// Runs `work` on a thread where it blocks no other task; `None` if the executor is shutting down.
pub(crate) async fn compute<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
