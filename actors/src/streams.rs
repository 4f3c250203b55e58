//! Where bulk streams meet the tasks that read them: a stream may arrive before or after its task asks for it.

use crate::ports::transport::BulkReceiver;
use slowmo_protocol::wire::{Bulk, Header};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// A bulk stream with its decoded header.
pub struct Arrived {
    /// Who, where in history.
    pub header: Header,
    /// What the values are.
    pub content: Bulk,
    /// The values.
    pub stream: Box<dyn BulkReceiver>,
}

/// Streams that nobody asked for yet and askers whose stream has not come yet, by key.
pub struct StreamInbox<K> {
    parked: BTreeMap<K, Arrived>,
    waiting: BTreeMap<K, oneshot::Sender<Arrived>>,
    parked_max: usize,
    fullest: usize,
}

impl<K: Ord + Copy> StreamInbox<K> {
    /// An inbox that parks at most `parked_max` streams; more are stopped.
    #[must_use]
    pub fn new(parked_max: usize) -> Self {
        Self { parked: BTreeMap::new(), waiting: BTreeMap::new(), parked_max, fullest: 0 }
    }

    /// Asks for the stream of `key`.
    pub fn expect(&mut self, key: K) -> oneshot::Receiver<Arrived> {
        let (sender, receiver) = oneshot::channel();
        match self.parked.remove(&key) {
            // The receiver is still in this function, so it cannot be gone.
            Some(arrived) => _ = sender.send(arrived),
            None => _ = self.waiting.insert(key, sender),
        }
        receiver
    }

    /// Hands over a stream that arrived; a second one of the same key is dropped, which stops it. `false` if dropped.
    pub fn deliver(&mut self, key: K, arrived: Arrived) -> bool {
        if let Some(waiting) = self.waiting.remove(&key) {
            return waiting.send(arrived).is_ok();
        }
        let room = self.parked.len() < self.parked_max && !self.parked.contains_key(&key);
        if room {
            self.parked.insert(key, arrived);
            self.fullest = self.fullest.max(self.parked.len());
        }
        room
    }

    /// The most streams that waited for somebody to ask for them since this was asked last, and how many may.
    pub fn fullest(&mut self) -> (usize, usize) {
        (std::mem::replace(&mut self.fullest, self.parked.len()), self.parked_max)
    }

    /// Drops the asker of `key`, who is told so; a stream that has come is left alone.
    pub fn give_up(&mut self, key: K) {
        self.waiting.remove(&key);
    }

    /// Drops every stream and asker below `key`.
    pub fn forget_below(&mut self, key: K) {
        self.parked = self.parked.split_off(&key);
        self.waiting = self.waiting.split_off(&key);
    }
}
