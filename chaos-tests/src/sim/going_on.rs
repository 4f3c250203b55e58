//! Checks whether the live nodes continue without the dead, once the faults are over.

use super::event::Event;
use super::network::Process;
use super::node::Bootstrapping;
use super::world::World;
use crate::invariants::{Verdict, Violation};
use slowmo_protocol::ident::{Lineage, NodeId};
use slowmo_protocol::membership::RETURN_WAIT;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::time::Span;
use slowmo_protocol::trace::{Decided, End, Start};

/// Interval of the check, in microseconds.
pub(super) const LOOK_EVERY: u64 = 500_000;

/// The rule that the live nodes continue.
const LIVENESS: &str = "liveness";
/// The rule that nodes that cannot continue say so.
const WAITING: &str = "waits_and_says_why";

/// How the live nodes continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoesOn {
    /// All live nodes are members, and rounds are decided.
    Decides,
    /// No quorum is alive, and every live node says why it waits.
    Waits,
}

/// Verdicts on the two rules.
pub(super) fn verdicts(
    went_on: Option<GoesOn>,
    violation: Option<&Violation>,
) -> [(&'static str, Verdict); 2] {
    let verdict = |how: GoesOn| match violation {
        Some(violation) if violation.invariant == LIVENESS && how == GoesOn::Decides => {
            Verdict::Violated(violation.clone())
        }
        _ if went_on == Some(how) => Verdict::Held { checked: 1 },
        _ => Verdict::NotShown {
            why: "no run came to that".to_owned(),
        },
    };
    [
        (LIVENESS, verdict(GoesOn::Decides)),
        (WAITING, verdict(GoesOn::Waits)),
    ]
}

impl World {
    /// Lets the dead come back once every live node is a member and rounds are decided or, without
    /// a live quorum, once every live node says why it waits. If that takes too long, a rule is
    /// broken.
    pub(super) fn judge_going_on(&mut self) {
        let mut within = self.config.goes_on_within.unwrap_or_default();
        if self.config.quorum == Quorum::Survivors && self.nobody_stands() {
            // A node that waits to be admitted must first find out that its connections are dead
            // and that no member is left.
            within = Span(within.0 + self.config.waits.idle.0 + RETURN_WAIT.0);
        }
        match self.going_on() {
            Ok(how) => {
                self.went_on = Some(how);
                self.fall_quiet();
            }
            Err(what) if self.now >= self.still.unwrap_or(self.now) + within.0 => {
                self.watch.broken(self.now, LIVENESS, what)
            }
            Err(_) => self.at(self.now + LOOK_EVERY, Event::GoesOn),
        }
    }

    /// Whether no live node is a member of anything: all wait to be admitted.
    pub(super) fn nobody_stands(&self) -> bool {
        let history = self.watch.history();
        let stands = |start: Start| history.applied(start).is_some() && !history.is_void(start);
        !self
            .living()
            .any(|process| stands(self.processes[process].node.start))
    }

    /// Whether every live node contributed to the newest outcome, decided after the faults were
    /// over.
    pub(super) fn is_settled(&self) -> bool {
        let history = self.watch.history();
        let (Some(quiet), Some(known)) = (history.quiet(), history.furthest()) else {
            return false;
        };
        let contributed = |process: Process| {
            let start = self.processes[process].node.start;
            self.processes[process].draining
                || (known.decided.members.contains(&start)
                    && known.decided.contributors.contains(&start.node))
        };
        known.at >= quiet && self.living().all(contributed)
    }

    fn going_on(&self) -> Result<GoesOn, String> {
        let still = self.still.unwrap_or(self.now);
        let within = (self.now - still) / 1_000;
        let living: Vec<Process> = self
            .living()
            .filter(|process| !self.processes[*process].draining)
            .collect();
        let starts: Vec<Start> = living
            .iter()
            .map(|process| self.processes[*process].node.start)
            .collect();
        let Some(known) = self.watch.history().furthest() else {
            let founders = living
                .iter()
                .filter(|process| self.processes[**process].bootstrap != Bootstrapping::Never)
                .count();
            let can = founders >= self.config.min_nodes;
            return if can {
                Err(format!(
                    "nobody founded within {within} ms; {starts:?} live"
                ))
            } else {
                self.all_wait(&living, still)
            };
        };
        // Until one of them has heard that the newest outcome is decided, the voters of the
        // previous round count too.
        let heard = if self.config.quorum == Quorum::Majority {
            self.watch.history().newest_heard()
        } else {
            None
        };
        if !std::iter::once(known)
            .chain(heard)
            .all(|known| self.can_go_on(&known.decided))
        {
            return self.all_wait(&living, still);
        }
        if known.at.0 < still {
            return Err(format!(
                "no round was decided within {within} ms; {starts:?} live, \
                 and {:?} are the members",
                known.decided.next
            ));
        }
        match starts
            .iter()
            .find(|start| !known.decided.next.contains(start))
        {
            // Runs that were bootstrapped apart never merge. A run that lost its quorum waits, and
            // so do the joiners that chose it; they have to say so.
            Some(_) if self.is_beside_another_run(&starts, known.decided.place.lineage) => {
                self.all_wait(&living, still).map(|_| GoesOn::Decides)
            }
            Some(start) => Err(format!(
                "{} is no member {within} ms after the faults",
                start.node
            )),
            None => Ok(GoesOn::Decides),
        }
    }

    /// Whether one of these incarnations stands in a run that was bootstrapped apart from this
    /// lineage.
    fn is_beside_another_run(&self, starts: &[Start], lineage: Lineage) -> bool {
        let history = self.watch.history();
        starts
            .iter()
            .filter(|start| !history.is_void(**start))
            .filter_map(|start| history.applied(*start))
            .any(|(place, _)| !place.lineage.is_akin(lineage))
    }

    /// Whether enough nodes that may decide the next round are alive.
    fn can_go_on(&self, decided: &Decided) -> bool {
        let history = self.watch.history();
        let goes_on = |start: &Start| {
            let process = self
                .process(start.node)
                .filter(|process| self.processes[*process].node.start == *start);
            // Under majority, an incarnation that has resigned knows of a later entry that leaves
            // it out.
            let left_out = self.config.quorum == Quorum::Majority && history.is_void(*start);
            process.is_some_and(|process| !self.processes[process].draining) && !left_out
        };
        if !decided.next.iter().any(goes_on) {
            return false;
        }
        let voters = decided.next_voters();
        let starts = voters.iter().map(|voter| Start {
            node: voter.node,
            incarnation: voter.incarnation,
        });
        let there = starts.filter(|start| {
            history.living().contains(start)
                && (decided.next.contains(start) || !self.leaves(*start))
        });
        self.config.quorum == Quorum::Survivors || voters.is_quorum(there.map(|start| start.node))
    }

    /// Whether an incarnation left in order, or is about to.
    fn leaves(&self, start: Start) -> bool {
        let running = self
            .processes
            .iter()
            .find(|running| running.node.start == start);
        running.is_some_and(|running| running.draining || running.ended == Some(End::Left))
    }

    fn all_wait(&self, living: &[Process], still: u64) -> Result<GoesOn, String> {
        let silent = |process: &&Process| {
            let node = &self.processes[**process].node;
            let goes_on = self
                .watch
                .history()
                .applied(node.start)
                .is_some_and(|(_, at)| at.0 >= still);
            !goes_on && node.membership.waiting.is_none() && node.rounds.waiting.is_none()
        };
        let silent: Vec<NodeId> = living
            .iter()
            .filter(silent)
            .map(|process| self.processes[*process].node.start.node)
            .collect();
        if silent.is_empty() {
            Ok(GoesOn::Waits)
        } else {
            Err(format!(
                "no quorum lives, and {silent:?} do not say why they wait"
            ))
        }
    }
}
