//! The trace that the nodes of a cluster write, judged event by event.

use crate::sim::config::Config;
use crate::sim::watch::Watch;
use parking_lot::Mutex;
use slowmo_actors::ports::recorder::Recorder;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::Event;
use std::sync::Arc;

/// The trace of the run so far; all nodes of the cluster write into it.
#[derive(Clone)]
pub struct Record {
    begun: tokio::time::Instant,
    watch: Arc<Mutex<Watch>>,
}

impl Record {
    /// Begins a run now.
    pub fn new(config: &Config) -> Self {
        let mut watch = Watch::new(config);
        watch.trace = Some(Vec::new());
        Self {
            begun: tokio::time::Instant::now(),
            watch: Arc::new(Mutex::new(watch)),
        }
    }

    /// Time since the beginning of the run.
    pub fn now(&self) -> Instant {
        Instant(u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Gives access to the watch, to read it or report to it.
    pub fn with<T>(&self, act: impl FnOnce(&mut Watch) -> T) -> T {
        act(&mut self.watch.lock())
    }

    /// Records a fault of the cluster.
    pub fn put(&self, event: Event) {
        let now = self.now();
        self.with(|watch| watch.observe(now, event));
    }
}

/// All nodes write into one record. The runtime keeps a node that was made to crash from writing.
impl Recorder for Record {
    fn is_on(&self) -> bool {
        true
    }

    fn record(&self, event: Event) {
        self.put(event);
    }
}
