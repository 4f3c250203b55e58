//! Turns a machine's next deadline into one tick message.

use ractor::{ActorRef, Message};
use slowmo_protocol::time::Instant;
use std::time::Duration;
use tokio::task::AbortHandle;

/// Holds at most one pending tick; a new deadline replaces the old one.
#[derive(Debug, Default)]
pub struct Timer {
    armed: Option<(Instant, AbortHandle)>,
}

impl Timer {
    /// Sends `tick` to `actor` at `deadline`; with `None` no tick is pending afterwards.
    pub fn arm<M: Message>(
        &mut self,
        deadline: Option<Instant>,
        now: Instant,
        actor: &ActorRef<M>,
        tick: impl FnOnce() -> M + Send + 'static,
    ) {
        if self.armed.as_ref().map(|(armed, _)| *armed) == deadline {
            return;
        }
        self.disarm();
        let Some(deadline) = deadline else { return };
        let actor = actor.clone();
        let wait = Duration::from_micros(deadline.since(now).0);
        let sleeping = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // A stopped actor needs no tick.
            _ = actor.cast(tick());
        });
        self.armed = Some((deadline, sleeping.abort_handle()));
    }

    /// Cancels the pending tick; also called when the tick has arrived.
    pub fn disarm(&mut self) {
        if let Some((_, handle)) = self.armed.take() {
            handle.abort();
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.disarm();
    }
}
