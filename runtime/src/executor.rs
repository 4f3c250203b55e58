//! What a node runs on: an executor of its own, or the caller's.

use crate::error::SpawnError;
use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};

/// Ends its tasks when it is dropped, if it is the node's own.
pub(crate) struct Executor {
    handle: Handle,
    own: Option<Runtime>,
}

impl Executor {
    /// One of the node's own, with so many threads.
    pub(crate) fn own(threads: usize) -> Result<Self, SpawnError> {
        let built = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("slowmo")
            .enable_all()
            .build();
        let own = built.map_err(|error| SpawnError::System(error.to_string()))?;
        Ok(Self {
            handle: own.handle().clone(),
            own: Some(own),
        })
    }

    /// The one that calls this.
    pub(crate) fn current() -> Self {
        Self {
            handle: Handle::current(),
            own: None,
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether somebody else's thread may wait for what runs here.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Builds something from any thread, also from inside another executor.
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
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

/// Runs work that takes its time beside the executor's own threads. An executor of one thread runs
/// it in place: it has no other that could go on meanwhile, and what others do there would come
/// before or after it by chance.
pub(crate) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SpawnError> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(work()),
        _ => tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| SpawnError::System(error.to_string())),
    }
}
