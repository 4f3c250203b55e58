//! Survivors: if no quorum answers for a while, the leader starts a new history whose voters are
//! the members that it reaches.
//!
//! ```text
//!   leader                         the others that it reaches
//!     ├─ Fork{lineage, voters} ──────▶│   they vote in the new history, on the same round
//!     │◀─────────── Promise{accepted} ┤   an accepted entry counts: every next member has its data
//!     ├─ Accept(that), or an attempt ▶│   the latter if none of them is a next member of that
//! ```
//! A node that takes part in a fork answers nothing of the previous history: to that one it is as
//! good as dead. If two nodes begin to fork from one entry at the same time, every node switches to
//! the fork of the higher term until either has decided.

use super::Coordinator;
use super::following::is_member;
use super::history::History;
use super::seen::Seen;
use super::timers::Timer;
use crate::coordinator::error::RecoveryError;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::{Entry, Outcome};
use crate::coordinator::voters::{Voter, Voters};
use crate::forks::FORKS_MAX;
use crate::ident::{Lineage, NodeId, Round, Term};
use crate::machine::{Outbox, Place};
use crate::policy::{OnQuorumLoss, Quorum};
use crate::time::Instant;
use crate::view::Member;
use crate::wire::{Header, Message};
use xxhash_rust::xxh3::xxh3_128;

/// Result of an operator's order to continue without a quorum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recovery {
    /// The history that continues.
    pub lineage: Lineage,
    /// The round under way in that history.
    pub round: Round,
    /// Members that it continues with, ascending.
    pub goes_on: Vec<NodeId>,
    /// Voters that it continues without, ascending.
    pub missing: Vec<NodeId>,
}

impl Coordinator {
    /// Starts a history without a quorum, once the wait for the quorum was long enough, or nobody
    /// is left to wait for.
    pub(super) fn fork_when_due(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let contributed = self
            .deciding
            .as_ref()
            .is_some_and(|deciding| !deciding.contributed.is_empty() && deciding.decided.is_none());
        let room = self
            .history
            .as_ref()
            .is_some_and(|history| history.forks.len() < FORKS_MAX);
        if !contributed || !room || !self.may_fork() {
            self.timers.stop(Timer::Fork);
            return self.with_deciding(|deciding| deciding.fork_due = false);
        }
        let due = self
            .deciding
            .as_ref()
            .is_some_and(|deciding| deciding.fork_due);
        if due || (!self.quorum_lives() && self.missing_voters_ended()) {
            return self.fork(false, now, out);
        }
        self.timers
            .start(Timer::Fork, now.after(self.settings.fork_after));
    }

    fn fork(&mut self, ordered: bool, now: Instant, out: &mut Outbox<Effect>) {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return;
        };
        let voters: Vec<Voter> = self.reached_members(history).map(Voter::from).collect();
        let term = deciding.highest.next_of(self.me());
        let lineage = forked(history.began_in, history.round.0, term, &voters);
        self.enter_fork(lineage, ordered, voters, term.node);
        self.ask_for_promises(term, now, out);
    }

    /// The result that an operator's order to continue without a quorum would have.
    ///
    /// # Errors
    /// The reason why it must not be done; nothing was changed.
    pub fn recovery(&self) -> Result<Recovery, RecoveryError> {
        let Some(history) = self.history.as_ref().filter(|history| history.member) else {
            return Err(RecoveryError::NoMember);
        };
        let undecided = self
            .deciding
            .as_ref()
            .is_some_and(|deciding| deciding.decided.is_none());
        if history.last.is_none() || !undecided {
            return Err(RecoveryError::NothingDecided);
        }
        if self.quorum_lives() {
            return Err(RecoveryError::QuorumLives);
        }
        if history.forks.len() >= FORKS_MAX {
            return Err(RecoveryError::ForkedTooOften);
        }
        let goes_on: Vec<NodeId> = self
            .reached_members(history)
            .map(|member| member.id)
            .collect();
        let missing = history
            .voters
            .ids()
            .filter(|voter| !goes_on.contains(voter))
            .collect();
        Ok(Recovery {
            lineage: history.lineage,
            round: history.round,
            goes_on,
            missing,
        })
    }

    /// Carries out an operator's order, which names the history that continues.
    pub(super) fn recover(&mut self, lineage: Lineage, now: Instant, out: &mut Outbox<Effect>) {
        if self
            .recovery()
            .is_ok_and(|recovery| recovery.lineage == lineage)
        {
            self.fork(true, now, out);
        }
    }

    /// Members that live and can be reached, ascending, including this node.
    fn reached_members<'a>(&'a self, history: &'a History) -> impl Iterator<Item = &'a Member> {
        history
            .view
            .members()
            .iter()
            .filter(|member| !self.is_gone(member) && !self.links.is_given_up(member.id))
    }

    /// Tells a voter of the fork under way, whichever fork that voter has entered itself.
    pub(super) fn tell_fork(&self, to: NodeId, term: Term, out: &mut Outbox<Effect>) {
        let Some(history) = self
            .history
            .as_ref()
            .filter(|history| history.is_fork && history.voters.of(to).is_some())
        else {
            return;
        };
        let place = Place {
            term,
            lineage: history.began_in,
            ..self.place()
        };
        let voters = history.voters.iter().copied().collect();
        self.send_from(
            place,
            to,
            Message::Fork {
                lineage: history.lineage,
                ordered: history.is_ordered,
                voters,
            },
            out,
        );
    }

    pub(super) fn enter_fork(
        &mut self,
        lineage: Lineage,
        ordered: bool,
        voters: Vec<Voter>,
        leader: NodeId,
    ) {
        self.remember_promises();
        if let Some(history) = &mut self.history {
            history.lineage = lineage;
            history.voters = Voters::new(voters, leader);
            history.leader = leader;
            history.is_fork = true;
            history.is_ordered = ordered;
        }
        self.with_deciding(|deciding| {
            deciding.fork_due = false;
            // These were votes of the previous history.
            deciding.seen = Seen::default();
        });
        self.timers.stop(Timer::Fork);
    }

    pub(super) fn receive_fork(
        &mut self,
        header: &Header,
        (lineage, ordered): (Lineage, bool),
        voters: Vec<Voter>,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if !self.may_follow_a_fork(ordered) {
            return;
        }
        let Some(history) = &self.history else { return };
        let akin =
            lineage.is_decided() && lineage != history.lineage && lineage.is_akin(history.lineage);
        let members = voters.iter().all(|voter| {
            history
                .view
                .member(voter.node)
                .is_some_and(|member| member.incarnation == voter.incarnation)
        });
        let leads = voters.iter().any(|voter| voter.node == header.sender);
        if !(akin && members && leads && voters.contains(&self.myself()) && history.member) {
            return;
        }
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if deciding.acceptor.prepare(header.term).is_err() {
            // The sender has switched to the fork.
            return self.send_from(
                Place {
                    lineage,
                    ..self.place()
                },
                header.sender,
                Message::Overtaken,
                out,
            );
        }
        self.enter_fork(lineage, ordered, voters, header.sender);
        self.follow(header.term, now);
        self.tell_promise(header.term, out);
    }

    /// Handles a frame of another history: of a fork, or from a node that forked from the same
    /// history as this one.
    pub(super) fn hear_of_fork(
        &mut self,
        header: &Header,
        message: Message,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let rivals = self.history.as_ref().is_some_and(|history| {
            history.is_fork
                && (header.lineage, header.round) == (history.began_in, history.round)
                && is_member(&history.view, header)
        });
        match message {
            Message::Fork {
                lineage,
                ordered,
                voters,
            } if rivals && header.sender == header.term.node => {
                self.receive_fork(header, (lineage, ordered), voters, now, out);
            }
            // The sender was not told of the fork.
            Message::Learn if rivals => self.lead_again(header.sender, out),
            Message::Decide {
                entry: Entry::Whole(entry),
                ..
            } => self.follow_fork(header, entry, out),
            _ => {}
        }
    }

    /// Follows an entry that survivors finished and that has this node as a member, although none
    /// of them asked it to take part: it holds the data, and follows them unless it voted for
    /// something else. Those of the fork that it leaves are told: they would wait for it.
    fn follow_fork(&mut self, header: &Header, entry: Outcome, out: &mut Outbox<Effect>) {
        let allowed = self.may_follow_a_fork(false);
        let myself = self.myself();
        let (Some(history), Some(deciding)) = (&mut self.history, &mut self.deciding) else {
            return;
        };
        let akin = entry.lineage.is_decided()
            && entry.lineage == header.lineage
            && entry.lineage.is_akin(history.lineage);
        let counted = entry.round == history.round
            && entry
                .view
                .members()
                .iter()
                .any(|member| Voter::from(member) == myself);
        let bound = deciding
            .acceptor
            .accepted()
            .is_some_and(|(_, accepted)| !accepted.has_the_data_of(&entry));
        let holds = deciding.decided.is_none() && deciding.data.of(&entry).is_some();
        if allowed && akin && counted && !bound && holds && is_member(&history.view, header) {
            let mut left_behind: Vec<NodeId> = Vec::new();
            if history.is_fork {
                left_behind.extend(history.voters.ids().filter(|id| *id != myself.node));
            }
            history.lineage = entry.lineage;
            deciding.seen = Seen::default();
            deciding.decided = Some(entry.clone());
            for to in left_behind {
                let decide = Message::Decide {
                    entry: Entry::Whole(entry.clone()),
                    leaves: false,
                };
                self.send_from(header.place(), to, decide, out);
            }
        }
    }

    /// Whether this node follows a fork that another node tells of. Among survivors it always does.
    /// Else a fork is followed where a quorum is lost, and nowhere else: whoever says that there is
    /// one may lie. A node that finds out later is told again when it asks.
    fn may_follow_a_fork(&self, ordered: bool) -> bool {
        if self.settings.quorum == Quorum::Survivors {
            return true;
        }
        (ordered || self.may_follow_forks()) && !self.quorum_lives()
    }

    /// Whether this node continues in histories that began without a quorum.
    pub(super) fn may_follow_forks(&self) -> bool {
        self.settings.quorum == Quorum::Survivors
            || self.settings.on_quorum_loss == OnQuorumLoss::Fork
    }

    /// Converts an entry into one of this history. In a fork, only the voters of the fork vote on
    /// the next round.
    pub(super) fn as_entry_of_this_history(&self, outcome: Outcome) -> Outcome {
        let Some(history) = self.history.as_ref().filter(|history| history.is_fork) else {
            return outcome;
        };
        let votes = |id: &NodeId| history.voters.of(*id).is_some();
        let waiting = outcome.view.ids().filter(|id| !votes(id)).collect();
        let leader = outcome.view.ids().find(votes).unwrap_or(outcome.leader);
        let forks = history.forks_after(outcome.contributors.len());
        Outcome {
            lineage: history.lineage,
            forks,
            waiting,
            retained: Vec::new(),
            leader,
            ..outcome
        }
    }
}

/// Id of a fork: the same on every node that takes part in it, and different for every other fork.
pub(super) fn forked(from: Lineage, round: u64, term: Term, voters: &[Voter]) -> Lineage {
    let mut bytes = from.0.to_le_bytes().to_vec();
    bytes.extend(round.to_le_bytes());
    bytes.extend(term.counter.to_le_bytes());
    bytes.extend(term.node.0.to_le_bytes());
    for voter in voters {
        bytes.extend(voter.node.0.to_le_bytes());
        bytes.extend(voter.incarnation.0.to_le_bytes());
    }
    from.parted(xxh3_128(&bytes))
}
