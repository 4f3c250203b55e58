//! Living, joining and leaving nodes, as reported to this node, and whether those that live are
//! enough to decide.

use super::Coordinator;
use super::deciding::Lead;
use super::history::History;
use super::timers::Timer;
use crate::coordinator::error::RoundError;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Proposal;
use crate::coordinator::voters::Voter;
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Nodes, Round};
use crate::machine::Outbox;
use crate::planted::{self, Bug};
use crate::policy::{OnQuorumLoss, Quorum};
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member};
use crate::wire::{Header, Message};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of rounds for which a joiner that is too slow is excluded.
const ROUNDS_PASSED_OVER_MAX: u64 = 256;
/// How long the voters without which there is no quorum must have left in order before a node takes
/// the training for over: what they sent last may still be on its way.
pub const OVER_WAIT: Span = Span::from_millis(2_000);

/// How many rounds a frame must be behind a later one of its sender to prove that an old one was
/// sent again. A correct node contributes, votes and asks for votes only in the round that it is
/// in. Its frames can overtake each other only where a connection is replaced, and not by whole
/// rounds.
const ROUNDS_BACK: u64 = 3;

/// The incarnation that sent a frame.
pub(super) fn speaker(header: &Header) -> Voter {
    Voter {
        node: header.sender,
        incarnation: header.incarnation,
    }
}

/// Reason why an incarnation of a node takes part in nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Death {
    /// It is not heard, and may be alive.
    Silent,
    /// Its process is known to have ended.
    Ended,
}

/// Reports that this node got about others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Peers {
    dead: BTreeMap<Voter, Death>,
    /// Nodes that are ready to be admitted.
    pub joiners: BTreeMap<NodeId, Member>,
    slow_joiners: SlowJoiners,
    /// Incarnations that leave, and whether each still contributes to the next round.
    leaving: BTreeMap<Voter, bool>,
    /// The newest round that each node contributed to or asked votes in, and its history.
    newest: BTreeMap<Voter, (Lineage, Round)>,
}

impl Peers {
    pub fn lost(&mut self, start: Voter, ended: bool) {
        let death = if ended { Death::Ended } else { Death::Silent };
        let known = self.dead.entry(start).or_insert(death);
        *known = death.max(*known);
    }

    /// Marks a node as alive: its silent incarnations, or the only one that is recorded as dead.
    pub fn back(&mut self, node: NodeId) {
        let starts: Vec<(Voter, Death)> = self
            .dead
            .iter()
            .filter(|(start, _)| start.node == node)
            .map(|(start, death)| (*start, *death))
            .collect();
        let one = starts.len() == 1;
        for (start, death) in starts {
            if one || death == Death::Silent {
                self.dead.remove(&start);
            }
        }
    }

    pub fn is_dead(&self, start: Voter) -> bool {
        self.dead.contains_key(&start)
    }

    /// Whether no dead node and no joiner is known. Checked at every event, so not member by
    /// member.
    pub fn are_calm(&self) -> bool {
        self.dead.is_empty() && self.joiners.is_empty()
    }

    pub fn leaves(&mut self, start: Voter, contributes: bool) {
        self.leaving.insert(start, contributes);
    }

    pub fn nobody_leaves(&self) -> bool {
        self.leaving.is_empty()
    }

    pub fn is_leaving(&self, start: Voter) -> bool {
        self.leaving.contains_key(&start)
    }

    pub fn leavers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.leaving.keys().map(|start| start.node)
    }

    /// Whether a member leaves without another contribution.
    pub fn leaves_idle(&self, start: Voter) -> bool {
        self.leaving.get(&start) == Some(&false)
    }

    /// Whether an incarnation is known to be over, or about to be: its process ended, another
    /// incarnation of its node is here, or it leaves.
    pub fn has_ended(&self, start: Voter) -> bool {
        self.is_over(start) || self.leaving.contains_key(&start)
    }

    /// Whether an incarnation decides nothing any more: its process ended, another incarnation of
    /// its node is here, or it leaves without another contribution.
    fn is_over(&self, start: Voter) -> bool {
        let replaced = self
            .joiners
            .get(&start.node)
            .is_some_and(|joiner| joiner.incarnation != start.incarnation);
        replaced || self.dead.get(&start) == Some(&Death::Ended) || self.leaves_idle(start)
    }

    /// Notes the round that a node is in, by a frame that it sends only in that round.
    pub fn note_round(&mut self, header: &Header) {
        let newest = (header.lineage, header.round);
        self.newest.insert(speaker(header), newest);
    }

    /// Whether such a frame is of a round that is over for its sender: the same incarnation was in
    /// a round of the same history that is [`ROUNDS_BACK`] later, or more.
    pub fn was_beyond(&self, header: &Header) -> bool {
        let newest = self.newest.get(&speaker(header));
        newest.is_some_and(|(lineage, round)| {
            *lineage == header.lineage && round.0 >= header.round.0.saturating_add(ROUNDS_BACK)
        })
    }

    /// Whether a voter may answer. One that waits to be admitted may, if it is the incarnation that
    /// votes.
    pub fn votes(&self, voter: Voter) -> bool {
        let replaced = self
            .joiners
            .get(&voter.node)
            .is_some_and(|joiner| joiner.incarnation != voter.incarnation);
        !replaced && !self.is_dead(voter)
    }

    /// Forgets what does not concern the round after `history`'s entry.
    pub fn begin(&mut self, history: &History, another_view: bool) {
        if another_view {
            // Joiners are ready again once they can reach the new view's members.
            self.joiners.clear();
        }
        let concerned =
            |start: &Voter| history.view.contains(start.node) || history.voters.contains(*start);
        self.newest.retain(|start, _| concerned(start));
        let joiners = &self.joiners;
        self.dead
            .retain(|start, _| concerned(start) || joiners.contains_key(&start.node));
        self.leaving.retain(|start, _| {
            history
                .view
                .member(start.node)
                .is_some_and(|member| member.incarnation == start.incarnation)
        });
    }

    pub fn forget(&mut self) {
        let slow_joiners = std::mem::take(&mut self.slow_joiners);
        *self = Self {
            slow_joiners,
            ..Self::default()
        };
    }

    /// Nodes that are ready to be admitted to `round`, ascending, except those that were too slow
    /// for an earlier one.
    pub fn candidates(&self, round: Round) -> impl Iterator<Item = &Member> {
        let fit = move |joiner: &&Member| {
            !self.is_dead(Voter::from(*joiner)) && !self.slow_joiners.passes_over(joiner, round)
        };
        self.joiners.values().filter(fit)
    }
}

impl Coordinator {
    /// Whether a member of the view is gone: dead, or back as a joiner, which holds nothing.
    pub(super) fn is_gone(&self, member: &Member) -> bool {
        self.peers.is_dead(Voter::from(member))
            || (member.id != self.me() && self.peers.joiners.contains_key(&member.id))
    }

    /// Takes the nodes that are ready to join, which are therefore alive.
    pub(super) fn candidates(&mut self, epoch: Epoch, members: Vec<Member>) {
        if self.view().is_none_or(|view| view.epoch() != epoch) {
            return;
        }
        for member in &members {
            self.peers.dead.remove(&Voter::from(member));
        }
        let me = self.me();
        let links = &mut self.links;
        self.peers.joiners = members
            .into_iter()
            .filter(|member| member.id != me)
            .filter(|member| !links.is_distrusted(member.id, member.incarnation))
            .map(|member| (member.id, member))
            .collect();
    }

    /// Records a dead node. If it had this node's promise, the current leader may never have heard
    /// of that term, and would wait for an attempt that this node has left.
    pub(super) fn lost(&mut self, start: Voter, ended: bool, out: &mut Outbox<Effect>) {
        self.peers.lost(start, ended);
        self.end_if_refused(out);
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return;
        };
        let term = deciding.term();
        let leader = self.leader().filter(|leader| *leader != self.me());
        if let Some(leader) = leader
            && term.node == start.node
            && term != history.first_term()
        {
            self.send(leader, Message::Overtaken, out);
        }
    }

    /// Whether no node is known to be gone or unreachable.
    fn all_are_here(&self) -> bool {
        self.peers.are_calm() && self.links.all_are_reached()
    }

    /// Whether every member lives, contributes in time and is trusted, so that the plain attempt,
    /// which needs no proposal, fits.
    pub(super) fn is_plain(&self) -> bool {
        let Some(history) = self.history.as_ref().filter(|history| history.member) else {
            return false;
        };
        let fine =
            |member: &Member| !self.is_gone(member) && !self.peers.leaves_idle(Voter::from(member));
        let refused = |member: &Member| self.links.is_refused(member.id, member.incarnation);
        let members = history.view.members();
        if !self.waits_for_all() {
            return false;
        }
        let live = (self.all_are_here() && self.peers.nobody_leaves()) || members.iter().all(fine);
        live && (self.links.nobody_is_refused() || !members.iter().any(refused))
    }

    /// Whether the voters that live, and can be reached, may decide.
    pub(super) fn quorum_lives(&self) -> bool {
        let Some(history) = self.history.as_ref().filter(|history| history.member) else {
            return true;
        };
        if self.all_are_here() || planted::has(Bug::DecideWithoutQuorum) {
            return true;
        }
        let answers = |voter: &&Voter| {
            voter.node == self.me()
                || (self.peers.votes(**voter) && !self.links.is_given_up(voter.node))
        };
        history.voters.is_quorum(
            history
                .voters
                .iter()
                .filter(answers)
                .map(|voter| voter.node),
        )
    }

    /// Whether these voters may decide.
    pub(super) fn is_quorum(&self, group: impl IntoIterator<Item = NodeId>) -> bool {
        let quorum = |history: &History| history.voters.is_quorum(group);
        planted::has(Bug::DecideWithoutQuorum) || self.history.as_ref().is_some_and(quorum)
    }

    /// Whether a quorum has answered this node's last request as a leader. Voters may live and not
    /// answer: those of a fork do not.
    fn quorum_answers(&self) -> bool {
        match self.deciding.as_ref().map(|deciding| &deciding.lead) {
            Some(Lead::Prepare { promises, .. }) => self.is_quorum(promises.keys().copied()),
            Some(Lead::Accept { accepted, .. }) => self.is_quorum(accepted.iter().copied()),
            _ => true,
        }
    }

    /// Whether this node may continue in a history of its own once it has waited for a quorum.
    pub(super) fn may_fork(&self) -> bool {
        let Some(history) = self.history.as_ref().filter(|history| history.member) else {
            return false;
        };
        if self.settings.quorum == Quorum::Survivors {
            return !self.quorum_lives() || !self.quorum_answers();
        }
        if self.settings.on_quorum_loss == OnQuorumLoss::Wait || self.quorum_lives() {
            return false;
        }
        let returned = |voter: &Voter| {
            let joiner = self.peers.joiners.get(&voter.node);
            joiner.is_some_and(|joiner| joiner.incarnation != voter.incarnation)
        };
        history
            .voters
            .iter()
            .all(|voter| returned(voter) || self.peers.votes(*voter))
    }

    /// Whether survivors have nobody to wait for: every voter that does not answer is known to have
    /// ended.
    pub(super) fn missing_voters_ended(&self) -> bool {
        let Some(history) = &self.history else {
            return false;
        };
        let answers =
            |voter: &Voter| self.peers.votes(*voter) && !self.links.is_given_up(voter.node);
        history
            .voters
            .iter()
            .all(|voter| voter.node == self.me() || answers(voter) || self.peers.has_ended(*voter))
    }

    /// The voters that left in order, if those that stay are no quorum: no further round will be
    /// decided. Empty if a missing voter may come back: one that neither left nor ended.
    fn left_for_good(&self) -> Vec<NodeId> {
        let Some(history) = self.history.as_ref().filter(|history| history.member) else {
            return Vec::new();
        };
        if self.settings.quorum == Quorum::Survivors || self.quorum_lives() {
            return Vec::new();
        }
        let missing = || {
            let voters = history.voters.iter();
            voters.filter(|voter| {
                voter.node != self.me()
                    && (!self.peers.votes(**voter) || self.links.is_given_up(voter.node))
            })
        };
        if !missing().all(|voter| self.peers.is_over(*voter)) {
            return Vec::new();
        }
        let left = missing().filter(|voter| self.peers.leaves_idle(**voter));
        left.map(|voter| voter.node).collect()
    }

    /// Starts, or stops, the wait after which this node takes the training for over.
    pub(super) fn watch_for_the_end(&mut self, now: Instant) {
        if self.left_for_good().is_empty() {
            self.timers.stop(Timer::Over);
        } else {
            self.timers.start(Timer::Over, now.after(OVER_WAIT));
        }
    }

    /// Ends the run on this node if the training is still over after that wait.
    pub(super) fn end_with_the_others(&mut self, out: &mut Outbox<Effect>) {
        let left = self.left_for_good();
        if !left.is_empty() {
            let round = self.place().round;
            self.stop(RoundError::Over { round, left }, out);
        }
    }

    /// Nodes whose data or decision is missing: data first, then what a leader or a member waits
    /// for.
    pub(super) fn missing(&self) -> BTreeSet<NodeId> {
        let Some(deciding) = &self.deciding else {
            return BTreeSet::new();
        };
        let data = deciding
            .data
            .moving
            .as_ref()
            .map(super::data::Movement::missing)
            .unwrap_or_default();
        if !data.is_empty() {
            return data;
        }
        let voters = || self.history.iter().flat_map(|history| history.voters.ids());
        match &deciding.lead {
            Lead::Prepare { promises, .. } => voters()
                .filter(|node| !promises.contains_key(node))
                .collect(),
            Lead::Attempt(attempts) => {
                let receivers = attempts
                    .proposal
                    .as_ref()
                    .map(Proposal::receivers)
                    .unwrap_or_default();
                let ready = |node: &NodeId| attempts.ready.contains_key(node);
                let missing = receivers.into_iter().filter(|node| !ready(node));
                missing.chain(attempts.compared.iter().copied()).collect()
            }
            Lead::Accept { accepted, .. } => {
                voters().filter(|node| !accepted.contains(node)).collect()
            }
            Lead::Follow => self
                .leader()
                .into_iter()
                .filter(|leader| *leader != self.me())
                .collect(),
        }
    }

    /// Reports why no round can be decided, when that changes. If nobody contributed, nobody waits.
    pub(super) fn tell_waiting(&mut self, out: &mut Outbox<Effect>) {
        let begun = self
            .deciding
            .as_ref()
            .is_some_and(|deciding| !deciding.contributed.is_empty());
        let waiting = if !begun || self.quorum_lives() {
            None
        } else {
            self.describe_waiting()
        };
        if waiting != self.waiting {
            self.waiting.clone_from(&waiting);
            out.push(Effect::Waiting(waiting));
        }
    }

    fn describe_waiting(&self) -> Option<String> {
        let history = self.history.as_ref()?;
        let lives = |voter: &&Voter| voter.node == self.me() || self.peers.votes(**voter);
        let (alive, dead): (Vec<&Voter>, Vec<&Voter>) = history.voters.iter().partition(lives);
        let ids = |voters: &[&Voter]| voters.iter().map(|voter| voter.node).collect::<Vec<_>>();
        let size = history.voters.count();
        let found = format!(
            "{} of {size} voters live ({})",
            alive.len(),
            Nodes(&ids(&alive))
        );
        let half = history
            .voters
            .tie_breaker()
            .map(|node| format!(", or half with {node}"))
            .unwrap_or_default();
        let rule = format!("More than half must{half}");
        let away: Vec<NodeId> = alive
            .iter()
            .map(|voter| voter.node)
            .filter(|node| self.links.is_given_up(*node))
            .collect();
        if !away.is_empty() {
            return Some(format!(
                "{found}, but this node cannot reach {}: no quorum. {rule}. Check the links",
                Nodes(&away)
            ));
        }
        let missing = Nodes(&ids(&dead)).to_string();
        Some(format!(
            "{found}: no quorum. {rule}. Bring back {missing}: their processes may still run \
             elsewhere. A restarted process has no vote (unless on_quorum_loss = fork and all of \
             them were restarted). If they are gone for good, slowmo recover continues without \
             them"
        ))
    }

    /// Time that members wait for the joiners of an attempt to hold all data that they must: as
    /// long as for a straggler, twice as long each time that was too short, and at most half of the
    /// time that the round has left, so that it can still be made without them.
    pub(super) fn joiners_wait(&self, proposal: &Proposal, now: Instant) -> Span {
        let timeout = self.settings.round_timeout;
        let left = self
            .timers
            .at(super::timers::Timer::RoundTimeout)
            .map_or(timeout, |until| until.since(now));
        let times = proposal
            .joiners()
            .map(|joiner| self.peers.slow_joiners.times(joiner))
            .max()
            .unwrap_or(0);
        Span(self.grace().0.saturating_mul(1 << times)).min(Span(left.0 / 2))
    }

    /// Called when the wait for joiners is over: this round and the next ones are made without
    /// those that are not ready.
    pub(super) fn pass_slow_joiners_over(&mut self) {
        let (Some(history), Some(deciding)) = (&self.history, &mut self.deciding) else {
            return;
        };
        deciding.joiners_over = true;
        let Some(attempts) = deciding.lead.attempts() else {
            return;
        };
        let Some(proposal) = &attempts.proposal else {
            return;
        };
        for joiner in proposal
            .joiners()
            .filter(|joiner| !attempts.ready.contains_key(&joiner.id))
        {
            self.peers.slow_joiners.note(joiner, history.round);
        }
    }
}

/// Joiners that did not hold the model within the wait: how often, and from which round on they are
/// admitted again. Each time the others waited in vain, so the number of rounds until the next try
/// doubles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlowJoiners(BTreeMap<(NodeId, Incarnation), (u32, Round)>);

impl SlowJoiners {
    fn note(&mut self, joiner: &Member, round: Round) {
        self.0
            .retain(|_, (_, until)| round.0 < until.0 + ROUNDS_PASSED_OVER_MAX);
        if self.0.len() < MEMBERS_MAX {
            let (times, until) = self
                .0
                .entry((joiner.id, joiner.incarnation))
                .or_insert((0, round));
            *until = Round(round.0 + 1 + (1 << *times).min(ROUNDS_PASSED_OVER_MAX));
            *times = (*times + 1).min(ROUNDS_PASSED_OVER_MAX.ilog2());
        }
    }

    fn times(&self, joiner: &Member) -> u32 {
        self.0
            .get(&(joiner.id, joiner.incarnation))
            .map_or(0, |(times, _)| *times)
    }

    /// Whether a joiner is excluded from a round because it was too slow for an earlier one.
    fn passes_over(&self, joiner: &Member, round: Round) -> bool {
        self.0
            .get(&(joiner.id, joiner.incarnation))
            .is_some_and(|(_, until)| round < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{ClusterId, Term};

    #[test]
    fn a_frame_is_old_if_its_sender_was_rounds_beyond_it_in_the_same_history() {
        let header = |lineage, round, incarnation| Header {
            cluster: ClusterId(1),
            lineage: Lineage(lineage),
            epoch: Epoch(1),
            round: Round(round),
            term: Term::default(),
            attempt: 0,
            sender: NodeId(2),
            incarnation: Incarnation(incarnation),
        };
        let mut peers = Peers::default();
        assert!(
            !peers.was_beyond(&header(7, 0, 5)),
            "nothing is known of it"
        );
        peers.note_round(&header(7, 4, 5));
        assert!(!peers.was_beyond(&header(7, 4 - ROUNDS_BACK + 1, 5)));
        assert!(peers.was_beyond(&header(7, 4 - ROUNDS_BACK, 5)));
        assert!(
            !peers.was_beyond(&header(8, 0, 5)),
            "a fork counts rounds anew"
        );
        assert!(!peers.was_beyond(&header(7, 0, 6)), "it was restarted");
    }
}
