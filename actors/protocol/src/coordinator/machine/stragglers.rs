//! Members that live and do not contribute. Every member counts from the decided entries how many
//! rounds in a row each of the others has missed. After [`MISSES_WAITED_FOR`] of them a round no
//! longer waits for that member, until its training is known to go on.
//!
//! A member says so itself, when its training takes the result of a round that was made without
//! it. The next round waits for it again. If it waited in vain, as it does for a member that is
//! slower than the grace, the number of rounds until the next such wait doubles.

use super::Coordinator;
use crate::coordinator::events::{Effect, Straggler};
use crate::coordinator::outcome::{Outcome, RoundKind};
use crate::ident::{Incarnation, NodeId, Round, Step};
use crate::machine::Outbox;
use crate::time::Instant;
use crate::view::Member;
use crate::wire::Message;
use std::collections::BTreeMap;

/// Number of rounds in a row in which the others wait for a member that does not contribute.
pub const MISSES_WAITED_FOR: u32 = 3;

/// The most nodes that [`Coordinator::awaited`] names.
pub const AWAITED_TOLD_MAX: usize = 8;
/// Maximum number of rounds for which nobody waits for a member whose training goes on.
pub const ROUNDS_UNWAITED_MAX: u64 = 256;

/// Rounds that one incarnation of a member missed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Misses {
    incarnation: Incarnation,
    missed: u32,
    step: Step,
    since: Instant,
    /// Whether its training goes on since the last round that waited for it.
    goes_on: bool,
    /// How often a round waited in vain although its training went on.
    vain: u32,
    /// No round before this one waits for it.
    until: Round,
}

impl Misses {
    fn are_waited_out(&self, round: Round) -> bool {
        self.missed >= MISSES_WAITED_FOR && !(self.goes_on && round >= self.until)
    }
}

/// Members that missed the last round; at most as many as the view has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stragglers(BTreeMap<NodeId, Misses>);

impl Stragglers {
    /// Whether a round waits for a member that lives.
    pub fn are_waited_for(&self, member: &Member, round: Round) -> bool {
        self.0.get(&member.id).is_none_or(|misses| {
            misses.incarnation != member.incarnation || !misses.are_waited_out(round)
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Counts who missed the round of `outcome`, of those that were members (`before`) and stay.
    fn count(&mut self, outcome: &Outcome, before: &[Member], now: Instant) {
        let round = outcome.round;
        // Only one node contributes to a bootstrap.
        if outcome.spec.kind == RoundKind::Bootstrap {
            return self.0.clear();
        }
        let missed = |member: &&Member| {
            outcome.view.members().contains(member)
                && outcome.contributors.binary_search(&member.id).is_err()
        };
        let absent: BTreeMap<NodeId, &Member> = before
            .iter()
            .filter(missed)
            .map(|member| (member.id, member))
            .collect();
        self.0.retain(|node, misses| {
            absent
                .get(node)
                .is_some_and(|member| member.incarnation == misses.incarnation)
        });
        for (node, member) in absent {
            let misses = self.0.entry(node).or_insert(Misses {
                incarnation: member.incarnation,
                missed: 0,
                step: outcome.spec.step,
                since: now,
                goes_on: false,
                vain: 0,
                until: round,
            });
            let waited = !misses.are_waited_out(round);
            misses.missed = misses.missed.saturating_add(1);
            if !waited {
                continue;
            }
            if misses.goes_on && misses.missed > MISSES_WAITED_FOR {
                misses.vain = (misses.vain + 1).min(ROUNDS_UNWAITED_MAX.ilog2());
                misses.until = Round(round.0.saturating_add(1 + (1 << misses.vain)));
            }
            misses.goes_on = false;
        }
    }

    /// Notes that a member's training goes on from `step`. Returns whether it missed a round.
    fn goes_on(&mut self, node: NodeId, step: Step) -> bool {
        let Some(misses) = self.0.get_mut(&node) else {
            return false;
        };
        misses.goes_on = true;
        misses.step = step;
        true
    }

    fn list(&self, round: Round) -> Vec<Straggler> {
        let straggler = |(node, misses): (&NodeId, &Misses)| Straggler {
            node: *node,
            missed: misses.missed,
            step: misses.step,
            since: misses.since,
            is_waited_for: !misses.are_waited_out(round),
        };
        self.0.iter().map(straggler).collect()
    }
}

impl Coordinator {
    /// Members that live and contributed nothing to the last round, ascending.
    #[must_use]
    pub fn stragglers(&self) -> Vec<Straggler> {
        self.stragglers.list(self.place().round)
    }

    /// Members for whose contribution the round waits, if this node leads it: others have
    /// contributed, these live, and the grace is not over. The first few, ascending.
    #[must_use]
    pub fn awaited(&self) -> Vec<NodeId> {
        let (Some(deciding), Some(history)) = (&self.deciding, &self.history) else {
            return Vec::new();
        };
        let is_open = deciding.decided.is_none() && !deciding.grace_over;
        if deciding.contributed.is_empty() || !is_open || self.leader() != Some(self.me()) {
            return Vec::new();
        }
        let awaited = |member: &&Member| {
            !deciding.contributed.contains_key(&member.id)
                && !self.is_gone(member)
                && self.stragglers.are_waited_for(member, history.round)
        };
        let members = history.view.members().iter();
        members
            .filter(awaited)
            .map(|member| member.id)
            .take(AWAITED_TOLD_MAX)
            .collect()
    }

    /// Whether the round waits for every member that lives.
    pub(super) fn waits_for_all(&self) -> bool {
        self.stragglers.is_empty()
            || self.history.as_ref().is_some_and(|history| {
                let members = history.view.members().iter();
                members
                    .clone()
                    .all(|member| self.stragglers.are_waited_for(member, history.round))
            })
    }

    /// Whether the round waits for this member: it lives, and has missed few rounds or goes on.
    pub(super) fn waits_for(&self, node: NodeId) -> bool {
        self.history.as_ref().is_none_or(|history| {
            history
                .view
                .member(node)
                .is_none_or(|member| self.stragglers.are_waited_for(member, history.round))
        })
    }

    /// Counts who missed a decided round. `arrived` says whether this node's training waits for
    /// its result.
    pub(super) fn count_misses(
        &mut self,
        outcome: &Outcome,
        before: &[Member],
        arrived: bool,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let empty = self.stragglers.is_empty();
        self.stragglers.count(outcome, before, now);
        if arrived {
            self.training_goes_on(out);
        }
        if !(empty && self.stragglers.is_empty()) {
            out.push(Effect::Stragglers(self.stragglers()));
        }
    }

    /// Forgets them with the history in which they were members.
    pub(super) fn forget_stragglers(&mut self, out: &mut Outbox<Effect>) {
        if !self.stragglers.is_empty() {
            self.stragglers.forget();
            out.push(Effect::Stragglers(Vec::new()));
        }
    }

    /// This node's training takes the result of a round. If it missed that round, the others are
    /// told: the next one may wait for it again.
    pub(super) fn training_goes_on(&mut self, out: &mut Outbox<Effect>) {
        let me = self.me();
        let Some(history) = self.history.as_ref().filter(|history| history.member) else {
            return;
        };
        let step = history
            .last
            .as_ref()
            .map(|decided| decided.outcome.spec.next_step());
        if self.stragglers.goes_on(me, step.unwrap_or_default()) {
            let members: Vec<NodeId> = history.view.ids().collect();
            self.broadcast(members, &Message::GoesOn, out);
        }
    }

    /// A member says that its training took the result of the last round, which it had missed.
    pub(super) fn hear_training_goes_on(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        let last = self
            .history
            .as_ref()
            .and_then(|history| history.last.as_ref());
        let step = last.map(|decided| decided.outcome.spec.next_step());
        if self.stragglers.goes_on(node, step.unwrap_or_default()) {
            out.push(Effect::Stragglers(self.stragglers()));
        }
    }
}
