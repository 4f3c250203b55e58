//! Streams that wait until this node knows their attempt.

use super::data::{Arrived, StreamKind};
use crate::coordinator::Attempt;
use crate::ident::NodeId;
use crate::view::MEMBERS_MAX;
use std::collections::BTreeMap;

/// Most streams that wait: as many as one contribution, one stream of parameters and one of state
/// from every member, for this round and the next. A round over groups needs fewer. Where there is
/// no room, those of the latest attempt go first: nobody keeps others out with streams of rounds
/// that do not come.
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
    /// Keeps a stream, in place of one of a later attempt if there is no room. `false` if a stream
    /// of the same attempt, kind and sender waits already, or all that wait are of earlier ones.
    pub fn put(&mut self, attempt: Attempt, kind: StreamKind, stream: Arrived<S>) -> bool {
        let key = (attempt, kind, stream.header.sender);
        if self.streams.contains_key(&key) {
            return false;
        }
        if self.streams.len() >= PARKED_MAX
            && let Some(last) = self.streams.last_entry()
            && *last.key() > key
        {
            last.remove();
        }
        if self.streams.len() >= PARKED_MAX {
            return false;
        }
        self.streams.insert(key, stream);
        self.fullest = self.fullest.max(self.streams.len());
        true
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{ClusterId, Epoch, Incarnation, Lineage, Round, Term};
    use crate::machine::{Identity, Place};
    use crate::wire::{Bulk, Frame, Message};

    fn arrived(sender: u64, round: u64) -> (Attempt, Arrived<()>) {
        let speaker = Identity {
            cluster: ClusterId(1),
            node: NodeId(sender),
            incarnation: Incarnation(1),
        };
        let place = Place {
            lineage: Lineage(7),
            epoch: Epoch(1),
            round: Round(round),
            term: Term::default(),
            attempt: 0,
        };
        let Frame::V1 { header, .. } = speaker.frame(place, Message::Learn);
        let arrived = Arrived {
            header,
            content: Bulk::Parameters,
            stream: (),
        };
        (Attempt::at(&place), arrived)
    }

    #[test]
    fn streams_of_rounds_that_do_not_come_keep_nobody_out() {
        let mut parked = Parked::default();
        let mut put = |sender, round| {
            let (attempt, stream) = arrived(sender, round);
            parked.put(attempt, StreamKind::Parameters, stream)
        };
        let floods = (0..PARKED_MAX as u64).all(|nth| put(2, 1_000_000 + nth));
        assert!(floods && !put(2, 9_000_000), "it is full");
        assert!(put(3, 5) && put(4, 5));
        assert!(!put(3, 5), "it came twice");
        assert_eq!(parked.len(), PARKED_MAX);
    }
}
