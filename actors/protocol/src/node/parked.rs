//! Streams that wait until this node knows their attempt.

use super::data::{Arrived, StreamKind};
use crate::coordinator::Attempt;
use crate::ident::NodeId;
use crate::view::MEMBERS_MAX;
use std::collections::BTreeMap;

/// Most streams that wait: one contribution, one stream of parameters and one of state from every
/// member, for this round and the next.
pub const PARKED_MAX: usize = 6 * MEMBERS_MAX;

/// Streams by attempt, kind and sender.
#[derive(Debug)]
pub(super) struct Parked<S> {
    streams: BTreeMap<(Attempt, StreamKind, NodeId), Arrived<S>>,
    fullest: usize,
}

impl<S> Default for Parked<S> {
    fn default() -> Self {
        Self {
            streams: BTreeMap::new(),
            fullest: 0,
        }
    }
}

impl<S> Parked<S> {
    /// Keeps a stream. `false` if a stream of the same attempt, kind and sender waits already, or
    /// there is no room.
    pub fn put(&mut self, attempt: Attempt, kind: StreamKind, stream: Arrived<S>) -> bool {
        let key = (attempt, kind, stream.header.sender);
        let room = self.streams.len() < PARKED_MAX && !self.streams.contains_key(&key);
        if room {
            self.streams.insert(key, stream);
            self.fullest = self.fullest.max(self.streams.len());
        }
        room
    }

    /// Removes and returns the wanted streams of an attempt.
    pub fn take(
        &mut self,
        attempt: Attempt,
        wanted: impl Fn(StreamKind, NodeId) -> bool,
    ) -> Vec<(StreamKind, Arrived<S>)> {
        let all = (attempt, StreamKind::Contribution, NodeId(0))
            ..=(attempt, StreamKind::Buffers, NodeId(u64::MAX));
        let keys: Vec<_> = self
            .streams
            .range(all)
            .map(|(key, _)| *key)
            .filter(|(_, kind, from)| wanted(*kind, *from))
            .collect();
        keys.into_iter()
            .filter_map(|key| Some((key.1, self.streams.remove(&key)?)))
            .collect()
    }

    /// Drops the streams of earlier attempts.
    pub fn forget_below(&mut self, attempt: Attempt) {
        self.streams = self
            .streams
            .split_off(&(attempt, StreamKind::Contribution, NodeId(0)));
    }

    /// Number of waiting streams.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Most streams that waited at once since the last call.
    pub fn fullest(&mut self) -> usize {
        std::mem::replace(&mut self.fullest, self.streams.len())
    }
}
