//! 4. No decided momentum is lost while at most `R` holders of each shard die between two
//!    decisions.

use super::{Checked, History, Invariant};
use slowmo_protocol::ident::{NodeId, Round, ShardId};
use slowmo_protocol::shards::Layout;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line, Place};
use std::collections::{BTreeMap, BTreeSet};

/// If momentum restarts, more than `R` members had trouble since the proposal of the previous
/// round. Once all members have applied an outcome, each shard has all of its `R + 1` holders, and
/// their copies are equal.
#[derive(Default)]
pub struct MomentumKept {
    /// For the last rounds: the nodes that have applied them, and how many of those hold each
    /// shard.
    holders: BTreeMap<Place, (BTreeSet<NodeId>, BTreeMap<ShardId, Copies>)>,
    /// Every shard that any node held.
    shards: BTreeSet<ShardId>,
    checked: u64,
}

/// The holders of a shard: their number, and the copy of the first of them.
struct Copies {
    count: usize,
    digest: u64,
    first: NodeId,
}

/// Number of recent rounds for which the check waits for members.
const REMEMBERED: usize = 16;

impl Invariant for MomentumKept {
    fn name(&self) -> &'static str {
        "momentum_kept"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        self.count_holders(line, history)?;
        let (Event::Applied { .. }, Some(known), Some(setup)) =
            (&line.event, history.new_outcome(), history.setup())
        else {
            return Ok(());
        };
        let decided = &known.decided;
        self.checked += 1;
        let before = history.before(decided);
        let lost = decided
            .momentum_lost
            .saturating_sub(before.map_or(0, |known| known.decided.momentum_lost));
        if lost == 0 {
            return Ok(());
        }
        let since = before
            .and_then(|known| history.before(&known.decided))
            .map_or(Instant(0), |known| known.at);
        let troubled =
            |start: &&slowmo_protocol::trace::Start| history.troubles().since(**start, since);
        let troubled: Vec<NodeId> = decided
            .members
            .iter()
            .filter(troubled)
            .map(|start| start.node)
            .collect();
        if troubled.len() > setup.replicas {
            return Ok(());
        }
        let Round(round) = decided.place.round;
        Err(format!(
            "round {round} lost the momentum of {lost} shards with only {troubled:?} in trouble \
             and {} replicas",
            setup.replicas
        ))
    }

    fn finish(&mut self, history: &History) -> Result<Checked, String> {
        let sharded = history.setup().is_some_and(|setup| setup.sharded);
        Ok(if sharded {
            Checked::Times(self.checked)
        } else {
            Checked::NotShown("this run keeps no slow momentum in shards")
        })
    }
}

impl MomentumKept {
    fn count_holders(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (
            Event::Applied {
                start,
                decided,
                holds,
                ..
            },
            Some(setup),
        ) = (&line.event, history.setup())
        else {
            return Ok(());
        };
        if !setup.sharded || holds.is_empty() {
            return Ok(());
        }
        let (applied, counts) = self.holders.entry(decided.place).or_default();
        applied.insert(start.node);
        for held in holds
            .iter()
            .filter(|held| !decided.absent.contains(&held.shard))
        {
            let copies = counts.entry(held.shard).or_insert(Copies {
                count: 0,
                digest: held.digest,
                first: start.node,
            });
            copies.count += 1;
            if copies.digest != held.digest {
                let round = decided.place.round;
                let shard = held.shard;
                return Err(format!(
                    "{} and {} hold another state of {shard} after {round}",
                    start.node, copies.first
                ));
            }
        }
        if !decided
            .next
            .iter()
            .all(|member| applied.contains(&member.node))
        {
            return Ok(());
        }
        let Round(round) = decided.place.round;
        let wanted = (setup.replicas + 1).min(decided.next.len());
        self.shards.extend(counts.keys());
        // A real run does not report its number of parameters: then the shards are those that any
        // node ever held.
        let shards = Layout::new(usize::try_from(setup.parameters).unwrap_or(usize::MAX))
            .shards()
            .chain(self.shards.iter().copied());
        let found = |shard: &ShardId| counts.get(shard).map_or(0, |copies| copies.count);
        let mut shards = shards.filter(|shard| !decided.absent.contains(shard));
        let short = shards.find(|shard| found(shard) < wanted);
        let result = short.map(|shard| {
            format!(
                "after round {round} {shard} has {} holders instead of {wanted}",
                found(&shard)
            )
        });
        while self.holders.len() > REMEMBERED {
            self.holders.pop_first();
        }
        result.map_or(Ok(()), Err)
    }
}
