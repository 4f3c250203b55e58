//! The whole history in one process: what every decided round must have made of the recorded
//! contributions. Histories may part, and each is judged by itself: an entry knows the one that it
//! follows.

use crate::coordinator::outcome::{Outcome, RoundKind};
use crate::ident::{Lineage, NodeId, Round, ShardId};
use crate::node::vectors::{SLOWMO, average, slow_step};
use crate::shards::Layout;
use std::collections::BTreeMap;

pub const GAMMA: f32 = 0.125;

/// What was decided in a round of a history, and what it made.
pub struct Entry {
    pub outcome: Outcome,
    /// The history of the entry before.
    pub began_in: Lineage,
    pub decided_at: u64,
    /// What the round made.
    pub values: Vec<f64>,
    /// The parameters after it.
    pub parameters: Vec<f64>,
    pub anchor: Vec<f64>,
    pub momentum: Vec<f64>,
}

/// Contributions as they were frozen, and the entries.
#[derive(Default)]
pub struct Oracle {
    /// By the history and the round that they were made for.
    pub contributions: BTreeMap<(Lineage, Round, NodeId), Vec<f64>>,
    /// The base optimizer's buffers as they were then.
    pub buffers: BTreeMap<(Lineage, Round, NodeId), Vec<f64>>,
    pub entries: BTreeMap<(Lineage, Round), Entry>,
    /// What anybody said was decided.
    pub said: BTreeMap<(Lineage, Round), Outcome>,
}

impl Oracle {
    /// The entry that another one follows.
    pub fn before(&self, began_in: Lineage, round: Round) -> Option<&Entry> {
        round
            .0
            .checked_sub(1)
            .and_then(|before| self.entries.get(&(began_in, Round(before))))
    }

    /// The entries of the history that decided most rounds, oldest first.
    pub fn longest(&self) -> Vec<&Entry> {
        let mut next = self
            .entries
            .values()
            .max_by_key(|entry| (entry.outcome.round, entry.outcome.lineage));
        let mut entries = Vec::new();
        while let Some(entry) = next {
            entries.push(entry);
            next = self.before(entry.began_in, entry.outcome.round);
        }
        entries.reverse();
        entries
    }

    /// In which round a history began; the founded one in the first.
    pub fn began(&self, lineage: Lineage) -> Option<Round> {
        self.entries
            .range((lineage, Round(0))..=(lineage, Round(u64::MAX)))
            .next()
            .map(|((_, round), _)| *round)
    }

    /// Somebody says that this was decided.
    pub fn hear(&mut self, outcome: &Outcome) {
        let known = self
            .said
            .entry((outcome.lineage, outcome.round))
            .or_insert_with(|| outcome.clone());
        assert_eq!(known, outcome, "two outcomes of one round");
    }

    /// Takes in an outcome the first time it is applied; `lost` are the shards whose state nobody
    /// had. `true` if it is new.
    pub fn decide(
        &mut self,
        outcome: &Outcome,
        began_in: Lineage,
        lost: &[ShardId],
        now: u64,
    ) -> bool {
        self.hear(outcome);
        let key = (outcome.lineage, outcome.round);
        if let Some(known) = self.entries.get(&key) {
            assert_eq!(
                (&known.outcome, known.began_in),
                (outcome, began_in),
                "two outcomes of one round"
            );
            return false;
        }
        let mut order = outcome.order.clone();
        order.sort_unstable();
        assert!(
            order.is_empty() || order.iter().copied().eq(outcome.view.ids()),
            "{:?}",
            outcome.order
        );
        let round = outcome.round;
        let before = self.before(began_in, round);
        assert!(
            before.is_some() || round == Round::BOOTSTRAP,
            "{round} follows nothing in {began_in}"
        );
        let contribution = |node: &NodeId| {
            (
                1.0,
                self.contributions[&(began_in, round, *node)].as_slice(),
            )
        };
        let pieces: Vec<(f64, &[f64])> = outcome.contributors.iter().map(contribution).collect();
        let mut values = average(&pieces);
        let mut anchor = before.map_or_else(|| values.clone(), |before| before.anchor.clone());
        let mut momentum =
            before.map_or_else(|| vec![0.0; values.len()], |before| before.momentum.clone());
        if outcome.spec.kind == RoundKind::Slow {
            let layout = Layout::new(values.len());
            for shard in layout.shards() {
                for index in layout.range(shard) {
                    let plain = (values[index], 0.0);
                    let stepped = || {
                        slow_step(
                            SLOWMO,
                            values[index],
                            anchor[index],
                            momentum[index],
                            f64::from(GAMMA),
                        )
                    };
                    let next = if lost.contains(&shard) {
                        plain
                    } else {
                        stepped()
                    };
                    (values[index], momentum[index]) = next;
                }
            }
        }
        if matches!(outcome.spec.kind, RoundKind::Slow | RoundKind::Bootstrap) {
            anchor.clone_from(&values);
        }
        let kept = if !outcome.spec.carries_parameters() {
            before
        } else {
            None
        };
        let parameters = kept.map_or_else(|| values.clone(), |before| before.parameters.clone());
        let entry = Entry {
            outcome: outcome.clone(),
            began_in,
            decided_at: now,
            values,
            parameters,
            anchor,
            momentum,
        };
        self.entries.insert(key, entry);
        true
    }
}
