//! Members that live and cannot reach each other: links may break between two nodes that everybody else reaches, and liveness, which
//! asks others, rightly calls both alive. A round that needs both would wait for that link, so it is made without one of them; who is
//! left out joins again once it reaches every member.
//!
//! ```text
//!   3 ──✗── 1   3 waits for streams of 1:  Broken(1) to the owner of the ballot   (AWAY_WAIT after the connection was lost, or as soon
//!                                                                              as 1 would be dead if others did not hear it)
//!   owner       a pair reported under REPORTS_TO_PART ballots: the next one takes no part with one of the two
//!   owner ✗ 3   3 takes no part once it was away for AWAY_WAIT
//!   3 ✗ leader  3 leads itself, if it was away for twice AWAY_WAIT (and a little more, the higher its rank)
//! ```

use super::{Coordinator, STREAM_BROKEN_WAIT};
use crate::coordinator::events::Effect;
use crate::ident::{Ballot, NodeId, Round};
use crate::machine::Outbox;
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member};
use crate::wire::Message;
use std::collections::{BTreeMap, BTreeSet};

/// How long a living member that cannot be sent to is waited for: most connections are made anew at once.
pub const AWAY_WAIT: Span = Span::from_millis(1_500);
/// How much longer each next member leaves the lead to those before it, where the leader is away.
pub const STAND_IN_STEP: Span = Span::from_millis(250);
/// At most so many of these steps.
pub const STAND_IN_STEPS_MAX: usize = 16;
/// Most that a leader waits before another attempt where streams break again and again, and that a member waits before it stands in
/// again: the waits double, so that data that takes long arrives in between.
pub const ATTEMPT_WAIT_MAX: Span = Span::from_millis(32_000);
/// Most pairs of which reports are kept.
pub const PAIRS_REPORTED_MAX: usize = 4096;
/// Under how many ballots of a round a pair must be reported before the round is made without one of the two.
pub const REPORTS_TO_PART: u32 = 2;

/// Whom this node cannot send to, though it could.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Away {
    /// Since when there is no connection; at most [`MEMBERS_MAX`].
    since: BTreeMap<NodeId, Instant>,
    /// Since when they are heard by others only, less [`AWAY_WAIT`], as they were waited for already; at most [`MEMBERS_MAX`].
    unheard: BTreeMap<NodeId, Instant>,
    /// Those that are waited for no longer.
    given_up: BTreeSet<NodeId>,
    /// Those whose lead is waited for no longer.
    deposed: BTreeSet<NodeId>,
}

impl Away {
    pub fn lost(&mut self, node: NodeId, now: Instant) {
        self.since.entry(node).or_insert(now);
        if self.since.len() > MEMBERS_MAX
            && let Some(first) = self.since.iter().min_by_key(|(_, since)| **since).map(|(node, _)| *node)
        {
            self.found(first);
        }
    }

    /// All that are heard by others only.
    pub fn unheard(&mut self, nodes: &BTreeSet<NodeId>, now: Instant) {
        let since = Instant(now.0.saturating_sub(AWAY_WAIT.0));
        let known = |node: &NodeId| self.unheard.get(node).copied().unwrap_or(since);
        self.unheard = nodes.iter().take(MEMBERS_MAX).map(|node| (*node, known(node))).collect();
        // Who is heard again is waited for again at once: a node that was paused finds for a moment that it heard nobody itself.
        let Self { since, unheard, .. } = &*self;
        let is_away = |node: &NodeId| since.contains_key(node) || unheard.contains_key(node);
        let stays = |set: &BTreeSet<NodeId>| set.iter().copied().filter(is_away).collect();
        (self.given_up, self.deposed) = (stays(&self.given_up), stays(&self.deposed));
    }

    /// All that this node cannot reach, and since when.
    fn all(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        self.since.iter().chain(&self.unheard).map(|(node, since)| (*node, *since))
    }

    /// Who is in no view any more is missed by nobody.
    pub fn retain(&mut self, stays: impl Fn(NodeId) -> bool) {
        self.unheard.retain(|node, _| stays(*node));
        self.since.retain(|node, _| stays(*node));
        self.given_up.retain(|node| stays(*node));
        self.deposed.retain(|node| stays(*node));
    }

    pub fn found(&mut self, node: NodeId) {
        self.since.remove(&node);
        self.unheard.remove(&node);
        self.given_up.remove(&node);
        self.deposed.remove(&node);
    }

    fn deadlines(&self, deposed_after: Span) -> impl Iterator<Item = Instant> {
        let given_up = self.all().filter(|(node, _)| !self.given_up.contains(node)).map(|(_, since)| since.after(AWAY_WAIT));
        let deposed = self.all().filter(|(node, _)| !self.deposed.contains(node)).map(move |(_, since)| since.after(deposed_after));
        given_up.chain(deposed)
    }

    fn pass(&mut self, now: Instant, deposed_after: Span) {
        let over = |after: Span| self.all().filter(move |(_, since)| now >= since.after(after)).map(|(node, _)| node).collect();
        (self.given_up, self.deposed) = (over(AWAY_WAIT), over(deposed_after));
    }
}

/// What the owner of the ballots of a round was told about links that are broken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Apart {
    /// By pair, the lower id first: under how many ballots it was reported, and the last of them. A node alone: it fails by itself.
    /// At most [`PAIRS_REPORTED_MAX`].
    reports: BTreeMap<(NodeId, NodeId), (u32, Ballot)>,
    /// Who takes no part in this round.
    left_out: BTreeSet<NodeId>,
}

impl Apart {
    fn report(&mut self, (one, other): (NodeId, NodeId), ballot: Ballot) -> bool {
        let pair = (one.min(other), one.max(other));
        if self.reports.len() >= PAIRS_REPORTED_MAX && !self.reports.contains_key(&pair) {
            return false;
        }
        let (reports, last) = self.reports.entry(pair).or_insert((0, Ballot::default()));
        if *reports == 0 || *last != ballot {
            (*reports, *last) = (*reports + 1, ballot);
        }
        *reports >= REPORTS_TO_PART
    }

    /// In how many reported pairs a node is.
    fn pairs_of(&self, node: NodeId) -> usize {
        self.reports.keys().filter(|(one, other)| *one == node || *other == node).count()
    }
}

/// `span`, doubled so often, at most [`ATTEMPT_WAIT_MAX`].
fn doubled(span: Span, times: u32) -> Span {
    Span(span.0.saturating_mul(1 << times.min(16)).min(ATTEMPT_WAIT_MAX.0))
}

impl Coordinator {
    /// Members that live and take part in what this node leads: those that can be reached if they are a quorum, else all. Survivors,
    /// too, go on without somebody who lives only as a quorum.
    pub(super) fn taking_part(&self) -> Vec<NodeId> {
        let Some(history) = &self.history else { return Vec::new() };
        let lives = history.view.members().iter().filter(|member| !self.is_gone(member));
        let reached: Vec<NodeId> = lives.clone().filter(|member| !self.is_apart(member)).map(|member| member.id).collect();
        if history.view.is_quorum(reached.iter().copied()) { reached } else { lives.map(|member| member.id).collect() }
    }

    /// Whether a member that lives cannot be sent to, or others cannot reach it.
    fn is_apart(&self, member: &Member) -> bool {
        let left_out = self.current.as_ref().is_some_and(|current| current.apart.left_out.contains(&member.id));
        left_out || self.away.given_up.contains(&member.id)
    }

    /// Whether a member that was to take part, and has not accepted, cannot be sent to any more, and the others are enough.
    pub(super) fn can_go_on_without_whom_it_waits_for(&self) -> bool {
        let Some(leading) = self.current.as_ref().and_then(|current| current.leading.as_ref()) else { return false };
        if self.away.given_up.is_empty() || leading.proposal().is_none() {
            return false;
        }
        let taking_part = self.taking_part();
        leading.missing().any(|node| self.away.given_up.contains(&node) && !taking_part.contains(&node))
    }

    /// Members that cannot be sent to, and are waited for no longer.
    pub(super) fn given_up(&self) -> impl Iterator<Item = NodeId> {
        self.away.given_up.iter().copied()
    }

    /// Whether this node leads because it was cut off from whoever should, and so was whoever else does.
    pub(super) fn stands_in(&self) -> bool {
        let Some(current) = self.current.as_ref().filter(|_| !self.away.deposed.is_empty()) else { return false };
        let deposed = |node: NodeId| self.away.deposed.contains(&node);
        let owner = current.ballots.highest().node;
        if current.stand_in_at.is_some() {
            return false;
        }
        let without = |leader: NodeId| deposed(leader) && !self.taking_part().contains(&leader);
        self.leader().is_some_and(without) && (owner == self.me() || deposed(owner))
    }

    fn deposed_after(&self) -> Span {
        let rank = self.view().map_or(0, |view| view.ids().take_while(|id| *id < self.me()).count());
        Span(2 * AWAY_WAIT.0 + rank.min(STAND_IN_STEPS_MAX) as u64 * STAND_IN_STEP.0)
    }

    pub(super) fn away_deadline(&self) -> Option<Instant> {
        self.view()?;
        let current = self.current.as_ref();
        let others = [current.and_then(|current| current.retry_at), current.and_then(|current| current.stand_in_at)];
        self.away.deadlines(self.deposed_after()).chain(others.into_iter().flatten()).min()
    }

    pub(super) fn pass_time_away(&mut self, now: Instant) {
        self.away.pass(now, self.deposed_after());
        let Some(current) = &mut self.current else { return };
        current.stand_in_at.take_if(|at| now >= *at);
        current.retry |= current.retry_at.take_if(|at| now >= *at).is_some();
    }

    /// This node takes the lead: if that is for another one, it leaves what it began some time, and longer every time.
    pub(super) fn note_standing_in(&mut self, now: Instant) {
        let stands_in = self.stands_in() && self.leader() != Some(self.me());
        if let Some(current) = self.current.as_mut().filter(|_| stands_in) {
            current.stood_in += 1;
            current.stand_in_at = Some(now.after(doubled(Span(2 * AWAY_WAIT.0), current.stood_in)));
        }
    }

    /// A stream of the attempt under way broke, or does not come, between live nodes: another attempt, if this node owns the ballot;
    /// else its owner is asked for one. One break is seen by many nodes, and costs one attempt.
    pub(super) fn ask_for_another_attempt(&mut self, (reporter, node): (NodeId, NodeId), now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        let Some(current) = &mut self.current else { return };
        let ballot = current.ballot();
        if ballot.node != me {
            if reporter == me {
                self.send(ballot.node, Message::Broken(node), out);
            }
            return;
        }
        if !current.retry && current.retry_at.is_none() {
            current.broken += 1;
            // The first ones at once: most breaks are over when they are noticed.
            let wait = current.broken.checked_sub(REPORTS_TO_PART + 1).map(|times| doubled(STREAM_BROKEN_WAIT, times));
            (current.retry, current.retry_at) = (wait.is_none(), wait.map(|wait| now.after(wait)));
        }
        let Some(history) = &self.history else { return };
        let lives = |id: NodeId| history.view.member(id).is_some_and(|member| !self.is_gone(member));
        // Who changes over to this founding asks for its streams again, which did not break.
        let changes_over = history.round == Round::FOUNDING && reporter == node;
        if changes_over || !lives(reporter) || !lives(node) {
            return;
        }
        let Some(current) = &mut self.current else { return };
        if current.apart.report((reporter, node), ballot) {
            self.part((reporter, node));
        }
    }

    /// Leaves one of two members out: whoever more members cannot reach, then the higher id, never this node; and nobody without whom
    /// the others would not be enough.
    fn part(&mut self, (one, other): (NodeId, NodeId)) {
        let (Some(history), Some(current)) = (&self.history, &self.current) else { return };
        let mut pair = [one, other];
        pair.sort_by_cached_key(|node| std::cmp::Reverse((current.apart.pairs_of(*node), *node)));
        let members = self.taking_part();
        if pair.iter().any(|node| !members.contains(node)) {
            return;
        }
        let enough = |left_out: NodeId| history.view.is_quorum(members.iter().copied().filter(|member| *member != left_out));
        let chosen = pair.into_iter().find(|node| *node != self.me() && enough(*node));
        if let (Some(chosen), Some(current)) = (chosen, &mut self.current) {
            current.apart.left_out.insert(chosen);
        }
    }
}
