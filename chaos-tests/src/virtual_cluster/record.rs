//! What the nodes of a cluster write down, judged event by event.

use crate::sim::config::Config;
use crate::sim::watch::Watch;
use slowmo_actors::ports::recorder::Recorder;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::Event;
use std::sync::{Arc, Mutex, PoisonError};

/// The run so far; all nodes of the cluster write into it.
#[derive(Clone)]
pub struct Record {
    begun: tokio::time::Instant,
    watch: Arc<Mutex<Watch>>,
}

impl Record {
    /// A run begins now.
    pub fn new(config: &Config) -> Self {
        let mut watch = Watch::new(config);
        watch.trace = Some(Vec::new());
        Self {
            begun: tokio::time::Instant::now(),
            watch: Arc::new(Mutex::new(watch)),
        }
    }

    /// Since it began.
    pub fn now(&self) -> Instant {
        Instant(u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Looks at it, or says something of it.
    pub fn with<T>(&self, act: impl FnOnce(&mut Watch) -> T) -> T {
        act(&mut self.watch.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes down what is done to the cluster.
    pub fn put(&self, event: Event) {
        let now = self.now();
        self.with(|watch| watch.observe(now, event));
    }
}

/// All nodes write into one record. A node that was made to crash is kept from it by its runtime.
impl Recorder for Record {
    fn is_on(&self) -> bool {
        true
    }

    fn record(&self, event: Event) {
        self.put(event);
    }
}
