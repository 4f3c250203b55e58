//! The executor that a node runs on: its own, or the caller's.

use crate::error::SpawnError;
use std::future::Future;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};

/// An executor; if it is the node's own, dropping it ends its tasks.
pub(crate) struct Executor {
    handle: Handle,
    own: Option<Runtime>,
}

impl Executor {
    /// Creates an executor of the node's own, with this many threads.
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

    /// The executor on which the caller runs.
    #[cfg(feature = "testing")]
    pub(crate) fn current() -> Self {
        Self {
            handle: Handle::current(),
            own: None,
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether this is the node's own executor, so that another thread may block on its tasks.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
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
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

/// Runs slow work outside the executor's own threads. An executor of one thread runs it in place:
/// it has no other thread that could continue meanwhile, and the order of other work relative to it
/// would be a matter of chance.
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
