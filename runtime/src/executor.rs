//! The executor that a node runs on.

use crate::error::SpawnError;
use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime};

/// A node's executor; dropping it ends its tasks.
pub(crate) struct Executor {
    handle: Handle,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

impl Executor {
    /// Creates an executor with this many threads.
    pub(crate) fn new(threads: usize) -> Result<Self, SpawnError> {
        let built = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("slowmo")
            .enable_all()
            .build();
        let runtime = built.map_err(|error| SpawnError::System(error.to_string()))?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Builds a value from any thread, also from inside another executor.
    pub(crate) fn block_on_plain_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, SpawnError>> + Send + 'static,
    ) -> Result<T, SpawnError> {
        let (done, result) = std::sync::mpsc::channel();
        self.handle.spawn(async move {
            // The receiver waits below.
            _ = done.send(work.await);
        });
        result.recv().unwrap_or_else(|_| {
            Err(SpawnError::System(
                "the node's start was cancelled".to_owned(),
            ))
        })
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs slow work outside the executor's own threads.
pub(crate) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SpawnError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| SpawnError::System(error.to_string()))
}
