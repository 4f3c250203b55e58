//! Living members that cannot reach each other. Links may break between two nodes that every other
//! node reaches, and liveness, which asks others, rightly calls both alive. A round that needs both
//! would wait for that link, so it is made without one of them; the excluded node joins again once
//! it reaches every member.
//!
//! ```text
//!   3 ──✗── 1   3 waits for streams of 1: Broken(1) to the leader, AWAY_WAIT after the connection
//!               was lost, or as soon as 1 would be dead if others did not hear it
//!   leader      a pair reported under REPORTS_TO_PART attempts: the next one goes without one of
//!               them
//!   leader ✗ 3  3 takes no part once it was unreachable for AWAY_WAIT
//!   3 ✗ leader  3 takes over, if the leader was unreachable for twice AWAY_WAIT (and a little
//!               more, the higher its rank)
//! ```
//!
//! A node that sent values that no correct node sends counts as one that cannot be reached, and at
//! once: the round is made without it where the others are a quorum, another member stands in for
//! it if it leads, its frames are ignored, and it is not admitted again until its process is
//! restarted. Where a leader has not seen it itself, as the values that a relay sends to one owner,
//! the word of one member stands against that of another, until a second one speaks, in the same
//! round or a later one. An accuser that is still alone in the next attempt is left out of the
//! round. A member's word has at most one other member refused.
//!
//! A member that abandons a round or expects another one is refused too, and what it says of others
//! proves nothing. Once such members are half of the voters, the run ends here.
//!
//! Streams may be lost unnoticed. A sender is done with a stream when its transport has taken it;
//! if the connection breaks before the stream's beginning has arrived, no node sees a broken
//! stream. The only sign is that the sender's connection is new, so a node that then waits for its
//! streams in vain reports them as broken. A new connection costs one attempt at most.

use super::Coordinator;
use super::deciding::{Deciding, Lead};
use super::reports::REPORTS_TO_PART;
use super::timers::Timer;
use crate::coordinator::events::Effect;
use crate::coordinator::plan::Attempt;
use crate::coordinator::voters::Voter;
use crate::ident::{Incarnation, NodeId, Round};
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::sound::Unsound;
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member};
use crate::wire::{Header, Message};
use std::collections::{BTreeMap, BTreeSet};

/// Time to wait for a living member that cannot be sent to: most connections are made anew at once.
pub const AWAY_WAIT: Span = Span::from_millis(1_500);
/// Additional time for which each next member leaves the lead to those before it, if the leader is
/// unreachable.
pub const STAND_IN_STEP: Span = Span::from_millis(250);
/// Maximum number of [`STAND_IN_STEP`]s that a member adds.
pub const STAND_IN_STEPS_MAX: usize = 16;
/// Maximum time that a leader waits before another attempt if streams break again and again, and
/// that a member waits before it stands in again: the waits double, so that data that takes long
/// arrives in between.
pub const ATTEMPT_WAIT_MAX: Span = Span::from_millis(32_000);
/// Time for which a broken stream may go unexplained before the leader is asked for another
/// attempt: its other end may be found dead, or another attempt may be on its way.
pub const STREAM_BROKEN_WAIT: Span = Span::from_millis(500);
/// Number of members that must say that a member sent them what no correct node sends, before a
/// node believes it that has not seen it itself.
pub const ACCUSERS_TO_REFUSE: usize = 2;

/// Nodes that this node can and cannot reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Links {
    /// Nodes without a connection, and since when; at most [`MEMBERS_MAX`].
    since: BTreeMap<NodeId, Instant>,
    /// Nodes heard only indirectly, and since when, less [`AWAY_WAIT`], as they were waited for
    /// already; at most [`MEMBERS_MAX`].
    unheard: BTreeMap<NodeId, Instant>,
    /// Nodes that are no longer waited for.
    given_up: BTreeSet<NodeId>,
    /// Nodes whose lead is no longer waited for.
    deposed: BTreeSet<NodeId>,
    /// Nodes that could be sent to at some time; at most [`MEMBERS_MAX`].
    met: BTreeSet<NodeId>,
    /// Nodes of `met` that can be sent to again, and the round of this node when that began.
    again: BTreeMap<NodeId, Round>,
    /// Nodes that sent what no correct node sends, in this incarnation; at most [`MEMBERS_MAX`].
    distrusted: BTreeMap<NodeId, Incarnation>,
    /// Members of which others say that they sent them what no correct node sends; at most
    /// [`MEMBERS_MAX`].
    accused: BTreeMap<NodeId, Accused>,
    /// Members whose accusations had another one refused.
    believed: BTreeSet<NodeId>,
}

/// What a leader thinks of an accusation.
enum Belief {
    /// Another member has accused the same one.
    Confirmed,
    /// The accuser is still alone with it in a later attempt, or alone against several members.
    Alone,
    /// It may be confirmed in the next attempt.
    Open,
}

/// An accused member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Accused {
    incarnation: Incarnation,
    /// Its accusers, at most [`ACCUSERS_TO_REFUSE`].
    by: BTreeSet<NodeId>,
    /// The newest attempt under which it was accused.
    last: Option<Attempt>,
}

impl Links {
    pub fn lost(&mut self, node: NodeId, now: Instant) {
        self.since.entry(node).or_insert(now);
        if self.since.len() > MEMBERS_MAX
            && let Some(first) = self
                .since
                .iter()
                .min_by_key(|(_, since)| **since)
                .map(|(node, _)| *node)
        {
            self.forget(first);
        }
    }

    /// Replaces the nodes that are heard only indirectly.
    pub fn unheard(&mut self, nodes: &BTreeSet<NodeId>, now: Instant) {
        let since = Instant(now.0.saturating_sub(AWAY_WAIT.0));
        let known = |node: &NodeId| self.unheard.get(node).copied().unwrap_or(since);
        self.unheard = nodes
            .iter()
            .take(MEMBERS_MAX)
            .map(|node| (*node, known(node)))
            .collect();
    }

    /// Records that a peer can be sent to, perhaps again.
    pub fn found(&mut self, node: NodeId, round: Round) {
        self.forget(node);
        if self.met.contains(&node) {
            if !planted::has(Bug::LostStreamsUnnoticed) {
                self.again.insert(node, round);
            }
        } else if self.met.len() < MEMBERS_MAX {
            self.met.insert(node);
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.since.remove(&node);
        self.unheard.remove(&node);
        self.given_up.remove(&node);
        self.deposed.remove(&node);
    }

    /// Keeps only what concerns `round`: nobody misses a node that is in no view any more, and
    /// nothing of this round or a later one was sent before the new connections that are forgotten.
    pub fn begin(&mut self, round: Round, concerns: impl Fn(NodeId) -> bool) {
        self.unheard.retain(|node, _| concerns(*node));
        self.since.retain(|node, _| concerns(*node));
        self.given_up.retain(|node| concerns(*node));
        self.deposed.retain(|node| concerns(*node));
        self.accused.retain(|node, _| concerns(*node));
        self.believed.retain(|node| concerns(*node));
        // A sender that is ahead has sent while this node was in the previous round.
        self.again.retain(|_, then| then.next() >= round);
    }

    pub fn forget_new_connections(&mut self) {
        self.again.clear();
    }

    pub fn all_are_reached(&self) -> bool {
        self.given_up.is_empty() && self.distrusted.is_empty()
    }

    /// Whether a node is no longer waited for: it could not be reached for [`AWAY_WAIT`], or its
    /// newest known incarnation sent what no correct node sends.
    pub fn is_given_up(&self, node: NodeId) -> bool {
        self.given_up.contains(&node) || self.distrusted.contains_key(&node)
    }

    /// Whether the lead of a node is no longer waited for.
    fn is_deposed(&self, node: NodeId) -> bool {
        self.deposed.contains(&node) || self.distrusted.contains_key(&node)
    }

    /// Records a node that sent what no correct node sends.
    fn distrust(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.distrusted.len() < MEMBERS_MAX || self.distrusted.contains_key(&node) {
            self.distrusted.insert(node, incarnation);
        }
    }

    /// Records an accusation of a member, under the attempt in force or (`None`) an earlier one.
    fn accuse(&mut self, accuser: NodeId, node: &Member, attempt: Option<Attempt>) -> Belief {
        if self.accused.len() >= MEMBERS_MAX && !self.accused.contains_key(&node.id) {
            return Belief::Open;
        }
        let new = || Accused {
            incarnation: node.incarnation,
            by: BTreeSet::new(),
            last: None,
        };
        let accused = self.accused.entry(node.id).or_insert_with(new);
        if accused.incarnation != node.incarnation {
            *accused = new();
        }
        if accused.by.len() < ACCUSERS_TO_REFUSE && !self.believed.contains(&accuser) {
            accused.by.insert(accuser);
        }
        if accused.by.len() >= ACCUSERS_TO_REFUSE {
            return Belief::Confirmed;
        }
        let Some(attempt) = attempt else {
            return Belief::Open;
        };
        let last = accused.last.replace(attempt);
        let again = last.is_some_and(|last| last != attempt && last.round == attempt.round);
        let alone = |accused: &&Accused| accused.by.len() == 1 && accused.by.contains(&accuser);
        if again || self.accused.values().filter(alone).count() > 1 {
            Belief::Alone
        } else {
            Belief::Open
        }
    }

    /// Called once a node is refused because of its accusers: their word counts no second time, so
    /// that two members that lie do not have one after the other refused.
    fn believe(&mut self, node: NodeId) {
        if let Some(accused) = self.accused.remove(&node) {
            self.believed.extend(accused.by);
        }
    }

    /// Whether frames of this incarnation of a node are ignored: it sent what no correct node
    /// sends.
    pub fn is_refused(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.distrusted.get(&node) == Some(&incarnation)
    }

    /// Whether the newest known incarnation of a node sent what no correct node sends.
    pub fn is_anything_refused_of(&self, node: NodeId) -> bool {
        self.distrusted.contains_key(&node)
    }

    /// Whether no node has sent what no correct node sends.
    pub fn nobody_is_refused(&self) -> bool {
        self.distrusted.is_empty()
    }

    /// Whether this incarnation of a node sent what no correct node sends. Another one is another
    /// process: what the previous one sent is forgotten.
    pub fn is_distrusted(&mut self, node: NodeId, incarnation: Incarnation) -> bool {
        let Some(known) = self.distrusted.get(&node) else {
            return false;
        };
        if *known != incarnation {
            self.distrusted.remove(&node);
            return false;
        }
        true
    }

    /// Nodes whose streams may be lost: those with new connections, and those whose streams cannot
    /// arrive.
    fn doubtful(&self) -> impl Iterator<Item = NodeId> + '_ {
        let unreached = self.given_up.iter().chain(self.distrusted.keys());
        self.again.keys().chain(unreached).copied()
    }

    /// All nodes that are unreachable from this one, and since when.
    fn away(&self) -> impl Iterator<Item = (NodeId, Instant)> + '_ {
        self.since
            .iter()
            .chain(&self.unheard)
            .map(|(node, since)| (*node, *since))
    }

    fn next_deadline(&self, deposed_after: Span) -> Option<Instant> {
        let given_up = self
            .away()
            .filter(|(node, _)| !self.given_up.contains(node))
            .map(|(_, since)| since.after(AWAY_WAIT));
        let deposed = self
            .away()
            .filter(|(node, _)| !self.deposed.contains(node))
            .map(|(_, since)| since.after(deposed_after));
        given_up.chain(deposed).min()
    }

    fn pass_time(&mut self, now: Instant, deposed_after: Span) {
        self.given_up = self.away_for(AWAY_WAIT, now);
        self.deposed = self.away_for(deposed_after, now);
    }

    /// Waits again for those that were not away for so long after all.
    fn take_back(&mut self, now: Instant, deposed_after: Span) {
        let away = self.away_for(AWAY_WAIT, now);
        self.given_up.retain(|node| away.contains(node));
        let away = self.away_for(deposed_after, now);
        self.deposed.retain(|node| away.contains(node));
    }

    fn away_for(&self, wait: Span, now: Instant) -> BTreeSet<NodeId> {
        self.away()
            .filter(|(_, since)| now >= since.after(wait))
            .map(|(node, _)| node)
            .collect()
    }
}

/// `span`, doubled `times` times, at most [`ATTEMPT_WAIT_MAX`].
fn doubled(span: Span, times: u32) -> Span {
    Span(
        span.0
            .saturating_mul(1 << times.min(16))
            .min(ATTEMPT_WAIT_MAX.0),
    )
}

impl Coordinator {
    /// Living members that take part in what this node leads: those that can be reached if they
    /// include a quorum of the voters, else all. In a fork only those that it began with: nobody
    /// else follows it before it has decided something.
    pub(super) fn taking_part(&self) -> Vec<NodeId> {
        let Some(history) = &self.history else {
            return Vec::new();
        };
        let lives = |member: &&Member| {
            !self.is_gone(member) && (!history.is_fork || history.voters.of(member.id).is_some())
        };
        let partitioned = |node: NodeId| self.links.is_given_up(node) || self.is_left_out(node);
        let answers = |voter: &&Voter| {
            (voter.node == self.me() || self.peers.votes(**voter)) && !partitioned(voter.node)
        };
        let enough = history.voters.is_quorum(
            history
                .voters
                .iter()
                .filter(answers)
                .map(|voter| voter.node),
        );
        let living = history
            .view
            .members()
            .iter()
            .filter(lives)
            .map(|member| member.id);
        living
            .filter(|node| !enough || !partitioned(*node))
            .collect()
    }

    fn is_left_out(&self, node: NodeId) -> bool {
        self.deciding
            .as_ref()
            .is_some_and(|deciding| deciding.reports.left_out.contains(&node))
    }

    /// Whether this node leads because it is cut off from the node that should lead, and also from
    /// the owner of the highest term, unless that is this node.
    pub(super) fn stands_in(&self) -> bool {
        if self.links.deposed.is_empty() && self.links.distrusted.is_empty() {
            return false;
        }
        let Some(deciding) = &self.deciding else {
            return false;
        };
        if self.timers.runs(Timer::StandIn) || !self.may_lead() {
            return false;
        }
        let deposed = |node: NodeId| self.links.is_deposed(node);
        let owner = deciding.highest.node;
        let without = |leader: NodeId| deposed(leader) && !self.taking_part().contains(&leader);
        self.leader().is_some_and(without) && (owner == self.me() || deposed(owner))
    }

    fn deposed_after(&self) -> Span {
        let rank = self.view().map_or(0, |view| {
            view.ids().take_while(|id| *id < self.me()).count()
        });
        Span(2 * AWAY_WAIT.0 + rank.min(STAND_IN_STEPS_MAX) as u64 * STAND_IN_STEP.0)
    }

    pub(super) fn links_deadline(&self) -> Option<Instant> {
        self.view()?;
        self.links.next_deadline(self.deposed_after())
    }

    pub(super) fn pass_time_away(&mut self, now: Instant) {
        let deposed_after = self.deposed_after();
        self.links.pass_time(now, deposed_after);
    }

    /// Replaces the nodes that are heard only indirectly. A node that is heard again is waited for
    /// again at once: a node that was paused finds for a moment that it heard nobody itself.
    pub(super) fn hears_all_but(&mut self, nodes: &BTreeSet<NodeId>, now: Instant) {
        self.links.unheard(nodes, now);
        let deposed_after = self.deposed_after();
        self.links.take_back(now, deposed_after);
    }

    /// Called when this node takes over. If it does so for a leader that it cannot reach, it waits
    /// before it does so again, longer each time, to give what it began some time.
    pub(super) fn note_standing_in(&mut self, now: Instant) {
        let stands_in = self.stands_in() && self.leader() != Some(self.me());
        if let Some(deciding) = self.deciding.as_mut()
            && stands_in
        {
            deciding.stood_in += 1;
            self.timers.set(
                Timer::StandIn,
                now.after(doubled(Span(2 * AWAY_WAIT.0), deciding.stood_in)),
            );
        }
    }

    /// Handles a stream of the attempt under way that broke, or does not arrive, between live
    /// nodes: another attempt, if this node leads; else its leader is asked for one. One break is
    /// seen by many nodes, and costs one attempt.
    pub(super) fn ask_for_another_attempt(
        &mut self,
        reporter: NodeId,
        node: NodeId,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let me = self.me();
        let place = self.place();
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if place.term.node != me {
            if reporter == me {
                self.send(place.term.node, Message::Broken(node), out);
            }
            return;
        }
        if !matches!(deciding.lead, Lead::Attempt(_)) {
            return;
        }
        self.attempt_again(now);
        let Some(history) = &self.history else { return };
        let lives = |id: NodeId| {
            history
                .view
                .member(id)
                .is_some_and(|member| !self.is_gone(member))
        };
        // A node that switches to this bootstrap asks for its streams again, which did not break.
        let changes_over = history.round == Round::BOOTSTRAP && reporter == node;
        if changes_over || !lives(reporter) || !lives(node) {
            return;
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if deciding.reports.note((reporter, node), Attempt::at(&place)) {
            self.part(reporter, node);
        }
    }

    /// Ends the attempt under way for another one: the first times at once, as most breaks are over
    /// when they are noticed. Without an attempt under way the next one begins anew anyway.
    fn attempt_again(&mut self, now: Instant) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let under_way = matches!(&deciding.lead, Lead::Attempt(lead) if lead.proposal.is_some());
        if !under_way || deciding.retry || self.timers.runs(Timer::Retry) {
            return;
        }
        deciding.broken += 1;
        match deciding.broken.checked_sub(REPORTS_TO_PART + 1) {
            None => deciding.retry = true,
            Some(times) => self
                .timers
                .set(Timer::Retry, now.after(doubled(STREAM_BROKEN_WAIT, times))),
        }
    }

    /// Handles values of a stream of an attempt that no correct node sends: the leader is told.
    pub(super) fn unsound(
        &mut self,
        attempt: Attempt,
        node: NodeId,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        // A leader does not judge itself.
        let message = if node == self.place().term.node {
            Message::Broken(node)
        } else {
            Message::Accuse(node)
        };
        self.attempt_without(attempt, node, message, now, out);
    }

    /// Counts a node as unreachable until its process is restarted, and ends this attempt if it is
    /// under way; if another node leads, it is told with this message.
    pub(super) fn attempt_without(
        &mut self,
        attempt: Attempt,
        node: NodeId,
        message: Message,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        self.distrust(node);
        let me = self.me();
        let leader = self.place().term.node;
        let is_moving = |deciding: &mut Deciding| deciding.data.moving_at(attempt).is_some();
        // Its other end is no death that may still be found, so nothing is waited for.
        if attempt == Attempt::at(&self.place()) && self.deciding.as_mut().is_some_and(is_moving) {
            if leader == me {
                self.ask_for_another_attempt(me, node, now, out);
            } else {
                self.send(leader, message, out);
            }
        }
    }

    /// Handles a member that says that another one sent it what no correct node sends. Only the
    /// leader judges.
    pub(super) fn accused(
        &mut self,
        header: &Header,
        node: NodeId,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let accuser = header.sender;
        let place = self.place();
        let leads = |deciding: &Deciding| matches!(deciding.lead, Lead::Attempt(_));
        if [accuser, self.me()].contains(&node) || !self.deciding.as_ref().is_some_and(leads) {
            return;
        }
        let members = self.taking_part();
        if [accuser, node].iter().any(|one| !members.contains(one)) {
            return;
        }
        let Some(member) = self.view().and_then(|view| view.member(node)).cloned() else {
            return;
        };
        // Of an attempt that is over it is no second time.
        let is_late = (header.term, header.attempt) < (place.term, place.attempt);
        let attempt = (!is_late).then(|| Attempt::at(&place));
        match self.links.accuse(accuser, &member, attempt) {
            Belief::Confirmed if self.is_quorum_without(node) => {
                self.links.believe(node);
                out.push(Effect::Unsound(node, Unsound::Accused));
                self.distrust(node);
            }
            Belief::Alone => self.leave_one_out([accuser, node]),
            Belief::Confirmed | Belief::Open => {}
        }
        if is_late {
            self.lead_again(accuser, out);
        } else {
            self.attempt_again(now);
        }
    }

    /// Whether more than half of the voters live and have sent nothing that no correct node sends.
    /// The tie-breaker does not count twice: of two nodes that contradict each other, neither is
    /// right.
    pub(super) fn most_are_trusted(&self) -> bool {
        let Some(history) = &self.history else {
            return true;
        };
        let trusted = |voter: &&Voter| {
            voter.node == self.me()
                || (self.peers.votes(**voter)
                    && !self.links.is_refused(voter.node, voter.incarnation))
        };
        2 * history.voters.iter().filter(trusted).count() > history.voters.count()
    }

    /// Counts a node as unreachable until its process is restarted.
    pub(super) fn distrust(&mut self, node: NodeId) {
        let member = self
            .history
            .as_ref()
            .and_then(|history| history.view.member(node));
        // A node that was left out may ask to join again before it is named.
        let known = member.or_else(|| self.peers.joiners.get(&node));
        let Some(incarnation) = known.map(|member| member.incarnation) else {
            return;
        };
        if node != self.settings.identity.node {
            self.links.distrust(node, incarnation);
            self.peers
                .joiners
                .retain(|id, joiner| *id != node || joiner.incarnation != incarnation);
        }
    }

    /// Excludes one of two members: the one in more reported pairs, then the one that alone says
    /// so, then the one with the higher id. So a member that lies about its links excludes itself.
    /// Never excludes this node, nor a node without which the others would not be a quorum.
    fn part(&mut self, one: NodeId, other: NodeId) {
        let Some(deciding) = &self.deciding else {
            return;
        };
        let mut pair = [one, other];
        pair.sort_by_cached_key(|node| {
            let peer = if *node == one { other } else { one };
            let alone = deciding.reports.is_alone(*node, peer);
            std::cmp::Reverse((deciding.reports.pairs_of(*node), alone, *node))
        });
        let members = self.taking_part();
        if pair.iter().all(|node| members.contains(node)) {
            self.leave_one_out(pair);
        }
    }

    /// Whether the living members without this one, and without those that are left out, are a
    /// quorum.
    fn is_quorum_without(&self, without: NodeId) -> bool {
        let Some(history) = &self.history else {
            return false;
        };
        let votes = |voter: &&Voter| {
            let remains = voter.node != without && !self.is_left_out(voter.node);
            remains && (voter.node == self.me() || self.peers.votes(**voter))
        };
        let others = history.voters.iter().filter(votes).map(|voter| voter.node);
        history.voters.is_quorum(others)
    }

    /// Excludes the first of these members that is not this node, if the others are a quorum.
    fn leave_one_out(&mut self, members: [NodeId; 2]) {
        let chosen = members
            .into_iter()
            .find(|node| *node != self.me() && self.is_quorum_without(*node));
        if let (Some(chosen), Some(deciding)) = (chosen, &mut self.deciding) {
            deciding.reports.left_out.insert(chosen);
        }
    }

    /// Starts the wait for the streams of new connections, once everything that this node waits for
    /// is on its way.
    pub(super) fn watch_new_connections(&mut self, now: Instant) {
        let Some(movement) = self
            .deciding
            .as_ref()
            .and_then(|deciding| deciding.data.moving.as_ref())
        else {
            return;
        };
        let waits = movement.published.is_some() && !self.timers.runs(Timer::LostStreams);
        if waits && self.links.doubtful().any(|node| movement.waits_for(node)) {
            self.timers
                .set(Timer::LostStreams, now.after(STREAM_BROKEN_WAIT));
        }
    }

    /// Called when the wait is over: streams that have not arrived were lost.
    pub(super) fn give_lost_streams_up(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        let attempt = Attempt::at(&self.place());
        let Some(movement) = self
            .deciding
            .as_ref()
            .and_then(|deciding| deciding.data.moving.as_ref())
        else {
            return;
        };
        let lost: BTreeSet<NodeId> = self
            .links
            .doubtful()
            .filter(|node| movement.waits_for(*node))
            .collect();
        let under_way = movement.attempt() == attempt;
        self.links.forget_new_connections();
        if under_way {
            for node in lost {
                self.ask_for_another_attempt(me, node, now, out);
            }
        }
    }
}
