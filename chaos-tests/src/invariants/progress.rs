//! 8. Progress: once faults stop, a round is decided within a bounded time, and soon all live nodes
//!    are members and contribute.

use super::history::Known;
use super::{Checked, History, Invariant};
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line, Start};
use std::collections::BTreeMap;

/// Reason why the rule says nothing about a run.
const UNFINISHED: &str = "the run ended before it had time to recover";

/// Every live node contributes to a decided round of the history that continues.
#[derive(Default)]
pub struct Progress {
    /// Time of the first decided round after the faults.
    first: Option<Instant>,
    /// For each incarnation, the time of the last round after the faults to which it contributed.
    contributed: BTreeMap<Start, Instant>,
    /// Incarnations that drain and need not contribute any more.
    drained: Vec<Start>,
}

impl Invariant for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let Event::Applied { start, drained, .. } = &line.event else {
            return Ok(());
        };
        if *drained {
            self.drained.push(*start);
        }
        if let (Some(known), Some(_)) = (history.new_outcome(), history.quiet()) {
            self.first.get_or_insert(line.at);
            let of = |node: &_| {
                known
                    .decided
                    .members
                    .iter()
                    .find(|start| start.node == *node)
            };
            known
                .decided
                .contributors
                .iter()
                .filter_map(of)
                .for_each(|start| _ = self.contributed.insert(*start, line.at));
        }
        Ok(())
    }

    fn finish(&mut self, history: &History) -> Result<Checked, String> {
        let (Some(quiet), Some(setup)) = (history.quiet(), history.setup()) else {
            return Ok(Checked::NotShown("the faults never ended"));
        };
        let by = quiet.after(setup.recovers_within);
        let waits: Vec<Start> = history
            .living()
            .iter()
            .copied()
            .filter(|start| !self.drained.contains(start))
            .collect();
        if waits.is_empty() {
            return Ok(Checked::Times(1));
        }
        if history.furthest().is_some_and(|known| {
            known
                .decided
                .next
                .iter()
                .all(|start| self.drained.contains(start))
        }) {
            // All remaining members were asked to leave. A node that was unreachable waits for a
            // cluster, as it reports, and bootstraps no new one over it.
            return Ok(Checked::NotShown(
                "the last member was drained, and the run with it",
            ));
        }
        let mut newest = history.furthest().into_iter().chain(history.newest_heard());
        if setup.quorum == Quorum::Majority && newest.any(|known| !has_quorum(known, history)) {
            return Ok(Checked::NotShown(
                "a quorum of the voters has ended: the others wait for an operator",
            ));
        }
        let within = setup.recovers_within.as_millis();
        let recovers = history.now() < by;
        if self.first.is_none_or(|first| first > by) {
            if recovers {
                return Ok(Checked::NotShown(UNFINISHED));
            }
            return Err(format!(
                "no round was decided within {within} ms after the faults; {waits:?} live"
            ));
        }
        let lineage = history.furthest().map(|known| known.decided.place.lineage);
        for start in &waits {
            let here = history.applied(*start).map(|(place, _)| place.lineage);
            if here
                .zip(lineage)
                .is_some_and(|(here, lineage)| !here.is_akin(lineage))
            {
                // Two runs that were bootstrapped separately never merge: each names the other.
                continue;
            }
            if !self.contributed.contains_key(start) || here != lineage {
                if recovers {
                    return Ok(Checked::NotShown(UNFINISHED));
                }
                return Err(format!(
                    "{} does not contribute {within} ms after the faults",
                    start.node
                ));
            }
        }
        Ok(Checked::Times(waits.len() as u64))
    }
}

/// Whether a quorum of the voters of the round after `known` lives, including a member: voters that
/// were left out hold nothing of it.
fn has_quorum(known: &Known, history: &History) -> bool {
    let voters = known.decided.next_voters();
    let lives = |start: &Start| history.living().contains(start);
    if !known
        .decided
        .next
        .iter()
        .any(|start| lives(start) && !history.is_void(*start))
    {
        return false;
    }
    let starts = voters.iter().map(|voter| Start {
        node: voter.node,
        incarnation: voter.incarnation,
    });
    voters.is_quorum(starts.filter(lives).map(|start| start.node))
}
