//! Incoming messages: offered, being read, or held until the next mix; and the messages that a step
//! waits for.

use super::events::Key;
use crate::algorithm::STALENESS_MAX;
use crate::ident::{Epoch, Lineage, NodeId, Round, Step};
use crate::planted::{self, Bug};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of parked streams, which wait until there is room to read them or until this node
/// is in their round.
pub const PARKED_MAX: usize = 1024;
/// Maximum number of verdicts remembered per sender; a sender has fewer unanswered messages to one
/// node.
pub const VERDICTS_MAX: usize = STALENESS_MAX as usize + 8;
/// Maximum number of skipped ranges of steps remembered per peer.
const SKIPS_MAX: usize = 64;

/// Verdict on a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The message is held here or was mixed: its push-sum weight belongs to this node.
    Accepted(f64),
    /// The message will never be mixed here.
    Refused,
}

/// A message that was offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parked {
    /// Its push-sum weight.
    pub weight: f64,
    /// The lineage that it belongs to.
    pub lineage: Lineage,
    /// The view that it was sent in.
    pub epoch: Epoch,
}

/// The inbox of one gossip peer.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    /// Offered messages.
    parked: BTreeMap<Key, Parked>,
    /// Messages being read, with their weights.
    reading: BTreeMap<Key, f64>,
    /// Messages received completely and acknowledged, not mixed yet, with their weights.
    held: BTreeMap<Key, f64>,
    /// Verdicts by sender, oldest first.
    verdicts: BTreeMap<NodeId, VecDeque<(Step, Verdict)>>,
    /// Ranges of steps (both ends included) for which a peer sends nothing more; ascending, neither
    /// overlapping nor adjacent.
    skips: BTreeMap<NodeId, Vec<(Step, Step)>>,
    awaited: BTreeSet<(Step, NodeId)>,
    /// Maximum number of messages being read or held, apart from those that a step waits for.
    pub reads_max: usize,
}

impl Inbox {
    /// Forgets everything except skips and parked messages of `round` or a later one; returns the
    /// messages that are dropped.
    pub fn go_to(&mut self, round: Round) -> Vec<Key> {
        let later = self.parked.split_off(&(round, Step(0), NodeId(0)));
        let skips = std::mem::take(&mut self.skips);
        let before = std::mem::replace(
            self,
            Self {
                parked: later,
                skips,
                reads_max: self.reads_max,
                ..Self::default()
            },
        );
        before
            .parked
            .into_keys()
            .chain(before.reading.into_keys())
            .chain(before.held.into_keys())
            .collect()
    }

    /// Parks a stream for later; `false` if there is no room.
    pub fn park(&mut self, key: Key, offer: Parked) -> bool {
        let room = self.parked.len() < PARKED_MAX;
        if room {
            self.parked.insert(key, offer);
        }
        room
    }

    /// Takes out the parked messages that belong neither to the current view nor to one that may
    /// still come.
    pub fn take_strays(
        &mut self,
        is_of_view: impl Fn(NodeId, Lineage, Epoch) -> bool,
        epoch: Epoch,
    ) -> Vec<(Key, Parked)> {
        let fits = |(key, offer): &(&Key, &Parked)| {
            offer.epoch > epoch || is_of_view(key.2, offer.lineage, offer.epoch)
        };
        let strays: Vec<_> = self
            .parked
            .iter()
            .filter(|offered| !fits(offered))
            .map(|(key, offer)| (*key, *offer))
            .collect();
        strays
            .iter()
            .for_each(|(key, _)| _ = self.parked.remove(key));
        strays
    }

    /// Whether this message is offered, being read or held.
    pub fn has(&self, key: Key) -> bool {
        self.parked.contains_key(&key)
            || self.reading.contains_key(&key)
            || self.held.contains_key(&key)
    }

    /// Takes the next parked message of this round and view to read, if there is room or a step
    /// waits for it.
    pub fn next_to_read(&mut self, round: Round, view: (Lineage, Epoch)) -> Option<Key> {
        let room = self.reading.len() + self.held.len() < self.reads_max;
        let mut of_round = self
            .parked
            .range((round, Step(0), NodeId(0))..(round.next(), Step(0), NodeId(0)));
        let wanted = |(_, step, from): &Key| room || self.awaited.contains(&(*step, *from));
        let next =
            of_round.find(|(key, offer)| (offer.lineage, offer.epoch) == view && wanted(key));
        let (key, weight) = next.map(|(key, offer)| (*key, offer.weight))?;
        self.parked.remove(&key);
        self.reading.insert(key, weight);
        Some(key)
    }

    /// Takes a message that was being read; `None` if it was dropped meanwhile.
    pub fn take_read(&mut self, key: Key) -> Option<f64> {
        self.reading.remove(&key)
    }

    /// Holds a message until the next mix.
    pub fn hold(&mut self, key: Key, weight: f64) {
        self.held.insert(key, weight);
        self.judge(key.2, key.1, Verdict::Accepted(weight));
    }

    /// Records the verdict on a message; it is no longer awaited.
    pub fn judge(&mut self, from: NodeId, step: Step, verdict: Verdict) {
        self.awaited.remove(&(step, from));
        let verdicts = self.verdicts.entry(from).or_default();
        verdicts.retain(|(known, _)| *known != step);
        if verdicts.len() == VERDICTS_MAX {
            verdicts.pop_front();
        }
        verdicts.push_back((step, verdict));
    }

    /// The verdict on a message, if it is known.
    pub fn verdict(&self, from: NodeId, step: Step) -> Option<Verdict> {
        let verdicts = self.verdicts.get(&from)?;
        verdicts
            .iter()
            .find(|(known, _)| *known == step)
            .map(|(_, verdict)| *verdict)
    }

    /// Drops a message that is not held; `true` if it was offered or being read.
    pub fn drop_message(&mut self, key: Key) -> bool {
        self.parked.remove(&key).is_some() || self.reading.remove(&key).is_some()
    }

    /// Drops all messages of `round` that are not held, and returns them.
    pub fn close(&mut self, round: Round) -> Vec<Key> {
        let open: Vec<Key> = self
            .parked
            .keys()
            .chain(self.reading.keys())
            .copied()
            .filter(|key| key.0 == round)
            .collect();
        open.iter().for_each(|key| _ = self.drop_message(*key));
        self.awaited.clear();
        open
    }

    /// Takes the held messages for the mix of `step`: all, or if `exact` only those sent in that
    /// step or before.
    pub fn take_held(&mut self, step: Step, exact: bool) -> Vec<(Key, f64)> {
        let later = if exact {
            self.held
                .iter()
                .filter(|(key, _)| key.1 > step)
                .map(|(key, weight)| (*key, *weight))
                .collect()
        } else {
            BTreeMap::new()
        };
        let later = if planted::has(Bug::MixedTwice) {
            self.held.clone()
        } else {
            later
        };
        let mut taken: Vec<_> = std::mem::replace(&mut self.held, later)
            .into_iter()
            .filter(|(key, _)| !exact || key.1 <= step)
            .collect();
        taken.sort_by_key(|((_, step, from), _)| (*step, *from));
        taken
    }

    /// Total weight of the held messages.
    pub fn held_weight(&self) -> f64 {
        self.held.values().sum()
    }

    /// Records that `from` sends nothing more for `first..=last`; such ranges may arrive in any
    /// order.
    pub fn skip(&mut self, from: NodeId, first: Step, last: Step) {
        self.awaited
            .retain(|(step, node)| *node != from || !(first..=last).contains(step));
        let skips = self.skips.entry(from).or_default();
        let mut whole = (first, last);
        skips.retain(|(first, last)| {
            let apart =
                first.0 > whole.1.0.saturating_add(1) || whole.0.0 > last.0.saturating_add(1);
            if !apart {
                whole = (whole.0.min(*first), whole.1.max(*last));
            }
            apart
        });
        skips.insert(skips.partition_point(|before| *before < whole), whole);
        // The earliest are needed first.
        skips.truncate(SKIPS_MAX);
    }

    /// Forgets the skips of these peers: they are gone, or another history is at other steps.
    pub fn forget_skips(&mut self, goes: impl Fn(NodeId) -> bool) {
        self.skips.retain(|node, _| !goes(*node));
    }

    /// Waits for the message of `step` from `from`, unless it has a verdict or is skipped.
    pub fn expect(&mut self, step: Step, from: NodeId) {
        let skips = self.skips.entry(from).or_default();
        skips.retain(|(_, last)| *last >= step);
        let skipped = skips.iter().any(|(first, _)| *first <= step);
        if !skipped && self.verdict(from, step).is_none() {
            self.awaited.insert((step, from));
        }
    }

    /// Stops waiting for messages from `from`.
    pub fn give_up(&mut self, from: NodeId) {
        self.awaited.retain(|(_, node)| *node != from);
    }

    /// Nodes whose awaited messages of `step` or an earlier step are missing, ascending.
    pub fn missing(&self, step: Step) -> BTreeSet<NodeId> {
        self.awaited
            .range(..=(step, NodeId(u64::MAX)))
            .map(|(_, node)| *node)
            .collect()
    }

    /// The messages that steps wait for, ascending.
    #[cfg(test)]
    pub fn awaited(&self) -> impl Iterator<Item = (Step, NodeId)> {
        self.awaited.iter().copied()
    }
}
