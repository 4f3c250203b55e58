//! Forbidden and required states, judged by what the nodes send, hold and apply.

use super::shell::{Movement, Node};
use super::state::State;
use super::{Cluster, Setup};
use slowmo_protocol::changeable::ChangedSettings;
use slowmo_protocol::coordinator::{Attempt, Base, Draft, Entry, Outcome, Proposal, Voter, Voters};
use slowmo_protocol::ident::{NodeId, Round, Term};
use slowmo_protocol::published::Digest;
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{Header, Message};
use stateright::Property;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A forbidden event or state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A round has two outcomes.
    TwoOutcomes,
    /// Votes were asked for two entries under one term, or one attempt makes two.
    TwoEntries,
    /// A leader attempted or asked votes for a different entry above a term that had decided.
    ProposedAnew,
    /// A leader starts an attempt after it asked for votes under the same term.
    AttemptAfterAccept,
    /// A node takes part in an attempt although it did not in the previous one of the same term.
    ParticipantsGrew,
    /// A node says that it is ready without holding the data.
    ReadyWithoutData,
    /// A leader asked for votes before all nodes that had to be ready were.
    AskedBeforeReady,
    /// A leader finishes an entry for which nobody asked votes under an earlier term.
    FinishedUnasked,
    /// A node votes although it is no voter, or for an entry for which no votes were asked.
    WrongVote,
    /// A node announces or applies a decision for which no quorum of the voters voted.
    Undecided,
    /// A member of a decided view does not hold what was decided.
    MemberWithoutData,
    /// A node applied an outcome whose data it does not hold.
    AppliedWithoutData,
    /// A node gave up data that it was ready with and that may still be decided.
    DataGivenUp,
    /// A member of the view that was decided last must rejoin.
    MemberMustRejoin,
    /// A node gave a round up although all nodes expect the same.
    GaveUp,
    /// A machine violates an invariant that it must satisfy after every event.
    NotItself,
}

/// The decision of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Decision {
    term: Term,
    outcome: Arc<Outcome>,
}

/// The past that the checks remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Watch {
    decided: BTreeMap<Round, Decision>,
    attempts: BTreeMap<Attempt, Arc<Proposal>>,
    ready: BTreeMap<Attempt, BTreeSet<NodeId>>,
    asked: BTreeMap<(Round, Term), Arc<Outcome>>,
    votes: BTreeMap<(Round, Term), BTreeSet<NodeId>>,
    opened: BTreeMap<(Round, Term), BTreeSet<NodeId>>,
}

impl Watch {
    /// The outcome that was decided last.
    fn newest(&self) -> Option<&Outcome> {
        self.decided
            .last_key_value()
            .map(|(_, decided)| &*decided.outcome)
    }

    /// Voters of the round after the newest decided one.
    pub fn newest_voters(&self, first: &Voters) -> Voters {
        self.newest().map_or_else(|| first.clone(), Outcome::voters)
    }

    /// The outcome of an attempt.
    pub fn outcome_of(&self, attempt: Attempt) -> Option<Arc<Outcome>> {
        self.attempts
            .get(&attempt)
            .map(|proposal| Arc::new(proposal.outcome.clone()))
    }

    /// Forgets the details of rounds before this one.
    pub fn forget_before(&mut self, round: Round) {
        self.attempts.retain(|attempt, _| attempt.round >= round);
        self.ready.retain(|attempt, _| attempt.round >= round);
        self.asked.retain(|(of, _), _| *of >= round);
        self.votes.retain(|(of, _), _| *of >= round);
        self.opened.retain(|(of, _), _| *of >= round);
    }

    /// The attempts of one term of a round, by number.
    fn attempts_of(
        &self,
        round: Round,
        term: Term,
    ) -> impl Iterator<Item = (&Attempt, &Arc<Proposal>)> {
        self.attempts
            .iter()
            .filter(move |(attempt, _)| attempt.round == round && attempt.term == term)
    }
}

impl State {
    pub(super) fn check_sent(&mut self, node: &mut Node, header: &Header, message: &Message) {
        let key = (header.round, header.term);
        let is_leader = header.term.node == node.id();
        match message {
            Message::Attempt(draft) | Message::Admit { draft, .. } => {
                self.check_attempt(header, draft)
            }
            Message::Ready(_) => self.check_ready(node, header),
            Message::Accept { entry, .. } => self.check_asked(node, header, whole(entry)),
            Message::Accepted(_) => self.check_vote(node, key),
            Message::Open | Message::Opened => {
                self.watch
                    .change(|watch| _ = watch.opened.entry(key).or_default().insert(node.id()));
            }
            Message::Decide {
                entry: Entry::Whole(entry),
                ..
            } => self.check_decided(&as_drafted(entry)),
            Message::Decide {
                entry: Entry::Held(_),
                ..
            } if is_leader => {
                if let Some(entry) = self.watch.asked.get(&key).cloned() {
                    self.check_decided(&entry);
                }
            }
            Message::Abandon(_) => self.violate(Violation::GaveUp),
            _ => {}
        }
    }

    fn check_attempt(&mut self, header: &Header, draft: &Draft) {
        let base = Base {
            round: header.round,
            view: self.view_of(header.round),
            order: &[],
            changed: ChangedSettings::default(),
            forks: &[],
        };
        let Some(proposal) = draft.resolve(base) else {
            return self.violate(Violation::TwoEntries);
        };
        let attempt = Attempt::of(header);
        if let Some(known) = self.watch.attempts.get(&attempt) {
            if **known != proposal {
                self.violate(Violation::TwoEntries);
            }
            return;
        }
        if self.watch.asked.contains_key(&(header.round, header.term)) {
            self.violate(Violation::AttemptAfterAccept);
        }
        if self
            .watch
            .decided
            .get(&header.round)
            .is_some_and(|decided| header.term > decided.term)
        {
            self.violate(Violation::ProposedAnew);
        }
        let before = self
            .watch
            .attempts_of(header.round, header.term)
            .map(|(_, before)| before)
            .last();
        let grew = before.is_some_and(|before| {
            let stayed = proposal
                .participants
                .iter()
                .all(|node| before.participants.contains(node));
            !stayed || !proposal.receivers().is_subset(&before.receivers())
        });
        if grew {
            self.violate(Violation::ParticipantsGrew);
        }
        self.watch
            .change(|watch| _ = watch.attempts.insert(attempt, Arc::new(proposal)));
    }

    fn check_ready(&mut self, node: &mut Node, header: &Header) {
        let attempt = Attempt::of(header);
        let id = node.id();
        match node.movement(attempt) {
            Some(movement) if movement.held => movement.ready = true,
            _ => self.violate(Violation::ReadyWithoutData),
        }
        self.watch
            .change(|watch| _ = watch.ready.entry(attempt).or_default().insert(id));
    }

    /// Checks a leader that asks for votes, the first time or again.
    fn check_asked(&mut self, leader: &mut Node, header: &Header, entry: Option<Outcome>) {
        let key = (header.round, header.term);
        let attempt = Attempt::of(header);
        let known = self.watch.attempts.get(&attempt).cloned();
        let finishes = header.term.counter > 0 && header.attempt == 0;
        let entry = entry
            .map(Arc::new)
            .or_else(|| self.watch.outcome_of(attempt))
            .or_else(|| self.watch.asked.get(&key).cloned());
        let Some(entry) = entry else {
            return self.violate(Violation::TwoEntries);
        };
        if let Some(asked) = self.watch.asked.get(&key) {
            if *asked != entry {
                self.violate(Violation::TwoEntries);
            }
            return;
        }
        if self
            .watch
            .decided
            .get(&header.round)
            .is_some_and(|decided| header.term > decided.term && decided.outcome != entry)
        {
            self.violate(Violation::ProposedAnew);
        }
        if finishes {
            let earlier = |((round, term), asked): (&(Round, Term), &Arc<Outcome>)| {
                *round == key.0 && *term < key.1 && *asked == entry
            };
            if !self.watch.asked.iter().any(earlier) {
                self.violate(Violation::FinishedUnasked);
            }
        } else {
            self.check_everybody_ready(leader, attempt, known.as_deref(), &entry);
        }
        self.watch
            .change(|watch| _ = watch.asked.insert(key, entry));
        if self
            .voters_of(header.round)
            .contains(Voter::from(&leader.member))
        {
            self.note_vote(key, leader.id());
        }
    }

    fn check_everybody_ready(
        &mut self,
        leader: &mut Node,
        attempt: Attempt,
        proposal: Option<&Proposal>,
        entry: &Arc<Outcome>,
    ) {
        let id = leader.id();
        // An attempt that a leader makes alone is not sent to anybody.
        let receivers = proposal.map_or_else(|| BTreeSet::from([id]), Proposal::receivers);
        if proposal.is_some_and(|proposal| proposal.outcome != **entry) {
            self.violate(Violation::TwoEntries);
        }
        let Some(movement) = leader.movement(attempt).filter(|movement| movement.held) else {
            return self.violate(Violation::AskedBeforeReady);
        };
        movement.ready = true;
        if let (None, Some((_, outcome))) = (proposal, &mut movement.published) {
            *outcome = Some(Arc::clone(entry));
        }
        let ready = self.watch.ready.get(&attempt);
        let is_ready =
            |node: &NodeId| *node == id || ready.is_some_and(|ready| ready.contains(node));
        if !receivers.iter().all(is_ready)
            || !entry.view.ids().all(|node| receivers.contains(&node))
        {
            self.violate(Violation::AskedBeforeReady);
        }
    }

    fn check_vote(&mut self, voter: &Node, key: (Round, Term)) {
        if self.watch.decided.get(&key.0).is_some_and(|decided| {
            self.watch
                .asked
                .get(&key)
                .is_none_or(|asked| *asked == decided.outcome)
        }) {
            return;
        }
        if !self.voters_of(key.0).contains(Voter::from(&voter.member))
            || !self.watch.asked.contains_key(&key)
        {
            return self.violate(Violation::WrongVote);
        }
        self.note_vote(key, voter.id());
    }

    /// Counts a vote; a quorum of votes decides the entry, whether or not any node knows it.
    fn note_vote(&mut self, key: (Round, Term), voter: NodeId) {
        let Some(entry) = self.watch.asked.get(&key).cloned() else {
            return;
        };
        if self
            .watch
            .decided
            .get(&key.0)
            .is_some_and(|decided| decided.outcome == entry)
        {
            return;
        }
        self.watch
            .change(|watch| _ = watch.votes.entry(key).or_default().insert(voter));
        let voted = self.watch.votes.get(&key).cloned().unwrap_or_default();
        if self.voters_of(key.0).is_quorum(voted) {
            self.decide(key, entry);
        }
    }

    fn decide(&mut self, (round, term): (Round, Term), outcome: Arc<Outcome>) {
        if self.watch.decided.contains_key(&round) {
            return self.violate(Violation::TwoOutcomes);
        }
        let others = self
            .watch
            .asked
            .iter()
            .any(|((of, above), asked)| *of == round && *above > term && *asked != outcome);
        let anew = self
            .watch
            .attempts
            .keys()
            .any(|attempt| attempt.round == round && attempt.term > term);
        if others || anew {
            self.violate(Violation::ProposedAnew);
        }
        self.watch.change(|watch| {
            watch.votes.retain(|key, _| {
                key.0 != round || watch.asked.get(key).is_some_and(|asked| *asked != outcome)
            });
            watch.decided.insert(round, Decision { term, outcome });
        });
    }

    fn check_decided(&mut self, entry: &Outcome) {
        match self.watch.decided.get(&entry.round) {
            Some(decided) if *decided.outcome == *entry => {}
            Some(_) => self.violate(Violation::TwoOutcomes),
            // The bootstrap is not watched, and a sole voter asks nobody.
            None if entry.round == Round::BOOTSTRAP || self.voters_of(entry.round).count() == 1 => {
            }
            None => self.violate(Violation::Undecided),
        }
    }

    /// The view with which a round began.
    fn view_of(&self, round: Round) -> &View {
        let before = round
            .0
            .checked_sub(1)
            .and_then(|before| self.watch.decided.get(&Round(before)));
        before.map_or(&*self.bootstrap, |decided| &decided.outcome.view)
    }

    /// Voters of a round, as the previous entry names them.
    fn voters_of(&self, round: Round) -> Voters {
        let before = round
            .0
            .checked_sub(1)
            .and_then(|before| self.watch.decided.get(&Round(before)));
        before.map_or_else(
            || Voters::clone(&self.first_voters),
            |decided| decided.outcome.voters(),
        )
    }

    pub(super) fn check_applied(&mut self, node: &Node, outcome: &Outcome, held: bool) {
        let outcome = &as_drafted(outcome);
        let alone = self.voters_of(outcome.round);
        if !self.watch.decided.contains_key(&outcome.round)
            && alone.count() == 1
            && alone.contains(Voter::from(&node.member))
        {
            let decision = Decision {
                term: Term::default(),
                outcome: Arc::new(outcome.clone()),
            };
            self.watch
                .change(|watch| _ = watch.decided.insert(outcome.round, decision));
        }
        self.check_decided(outcome);
        if !held {
            self.violate(Violation::AppliedWithoutData);
        }
    }

    /// Checks that a node that was ready keeps its data until it knows what was decided, the
    /// attempt's leader dropped it, or a quorum of the voters acknowledged that a higher term is
    /// open.
    pub(super) fn check_discarded(&mut self, node: &Node, movement: &Movement) {
        let attempt = movement.plan.attempt;
        let is_past =
            node.machine.round_view().is_none() || node.machine.place().round > attempt.round;
        let knows = is_past && self.watch.decided.contains_key(&attempt.round);
        let dropped = self
            .watch
            .attempts_of(attempt.round, attempt.term)
            .any(|(other, _)| other.number > attempt.number);
        let voters = self.voters_of(attempt.round);
        let above = |((round, term), acknowledged): (&(Round, Term), &BTreeSet<NodeId>)| {
            *round == attempt.round
                && *term > attempt.term
                && voters.is_quorum(acknowledged.iter().copied())
        };
        if movement.ready && !knows && !dropped && !self.watch.opened.iter().any(above) {
            self.violate(Violation::DataGivenUp);
        }
    }

    pub(super) fn check_must_rejoin(&mut self, node: &Node) {
        if self
            .watch
            .newest()
            .is_some_and(|outcome| outcome.view.member(node.id()) == Some(&node.member))
        {
            self.violate(Violation::MemberMustRejoin);
        }
    }

    /// Checks that every member of the view that was decided last holds what was decided, or has
    /// applied it.
    pub(super) fn check_held(&mut self) {
        let lacks = |outcome: &Outcome| self.nodes.iter().any(|node| node.lacks(outcome));
        if self.watch.newest().is_some_and(lacks) {
            self.violate(Violation::MemberWithoutData);
        }
    }
}

/// An outcome as its attempt was drafted, which does not know yet what the owners publish.
pub(super) fn as_drafted(outcome: &Outcome) -> Outcome {
    Outcome {
        published: Digest::default(),
        ..outcome.clone()
    }
}

fn whole(entry: &Entry) -> Option<Outcome> {
    match entry {
        Entry::Whole(entry) => Some(as_drafted(entry)),
        Entry::Held(_) => None,
    }
}

/// The forbidden states, one property per violation.
pub(super) fn invariants() -> Vec<Property<Cluster>> {
    macro_rules! never {
        ($($name:literal: $violation:ident),* $(,)?) => {
            vec![
                $(
                    Property::always(
                        $name,
                        |_, state: &State| state.violation != Some(Violation::$violation)
                    )
                ),
                *
            ]
        };
    }
    never![
        "a round has one outcome": TwoOutcomes,
        "votes are asked for one entry under a term": TwoEntries,
        "nothing else is proposed above a term that decided": ProposedAnew,
        "nothing is attempted after votes were asked for under the same term": AttemptAfterAccept,
        "within a term participants only leave": ParticipantsGrew,
        "who is ready holds all it must": ReadyWithoutData,
        "votes are asked for once everybody is ready": AskedBeforeReady,
        "what is finished was asked for under an earlier term": FinishedUnasked,
        "only voters vote, for what was asked for": WrongVote,
        "a quorum of the voters that the entry before names decides": Undecided,
        "members of a decided view hold what was decided": MemberWithoutData,
        "who applies holds all it must": AppliedWithoutData,
        "who is ready keeps its data while it may be decided": DataGivenUp,
        "no member of the newest view is out": MemberMustRejoin,
        "nobody gives up": GaveUp,
        "every machine is what it must be": NotItself,
    ]
}

fn crashed(state: &State) -> impl Iterator<Item = NodeId> + '_ {
    state
        .nodes
        .iter()
        .filter(|node| !node.alive)
        .map(|node| node.id())
}

fn is_decided(state: &State, how: impl Fn(&Decision) -> bool) -> bool {
    state.watch.decided.values().any(how)
}

/// The states that must be possible.
pub(super) fn possibilities(setup: &Setup) -> Vec<Property<Cluster>> {
    let mut all: Vec<Property<Cluster>> = vec![
        Property::sometimes("decided under the first term", |_, state: &State| {
            is_decided(state, |decided| decided.term.counter == 0)
        }),
        Property::sometimes(
            "all rounds are decided",
            |model: &Cluster, state: &State| {
                let last = model.setup.last_round();
                state
                    .nodes
                    .iter()
                    .filter(|node| node.lives())
                    .all(|node| node.applied >= last)
            },
        ),
    ];
    if setup.crashes > 0 {
        all.extend(possibilities_of_crashes());
    }
    // Of two voters only the tie-breaker is a quorum with which it may lead.
    if setup.crashes > 0 && setup.members > 2 {
        all.extend(possibilities_of_take_overs());
    }
    if setup.crashes > 0 && !setup.ends_known {
        all.push(Property::sometimes(
            "a voter that is no member is kept",
            |_, state: &State| is_decided(state, |decided| !decided.outcome.retained.is_empty()),
        ));
    }
    if setup.crashes + setup.wrong_verdicts + setup.breaks > 0 {
        all.push(Property::sometimes(
            "a second attempt of a term",
            |_, state: &State| {
                state
                    .watch
                    .attempts
                    .keys()
                    .any(|attempt| state.watch.attempts_of(attempt.round, attempt.term).count() > 1)
            },
        ));
    }
    if setup.joins.is_some() || setup.restarts {
        all.push(Property::sometimes(
            "the joiner is a member",
            |_, state: &State| {
                let joined = |joiner: &Member| {
                    state.node(joiner.id).is_some_and(|node| {
                        node.machine
                            .view()
                            .is_some_and(|view| view.member(joiner.id) == Some(joiner))
                    })
                };
                state.joiner.as_ref().is_some_and(joined)
            },
        ));
    }
    if setup.leaves.is_some() {
        all.push(Property::sometimes(
            "the leaver is gone",
            |_, state: &State| state.nodes.iter().any(|node| node.drained),
        ));
    }
    if setup.wrong_verdicts > 0 {
        all.push(Property::sometimes(
            "a living node is left out",
            |_, state: &State| {
                let left = |node: &Node| {
                    node.lives()
                        && is_decided(state, |decided| !decided.outcome.view.contains(node.id()))
                };
                state.nodes.iter().any(|node| left(node))
            },
        ));
    }
    if setup.wrong_verdicts > 0 && setup.members > 2 {
        all.push(Property::sometimes(
            "data of two attempts is kept",
            |_, state: &State| {
                state.nodes.iter().any(|node| {
                    node.movements
                        .iter()
                        .filter(|movement| movement.ready)
                        .count()
                        > 1
                })
            },
        ));
    }
    all
}

fn possibilities_of_take_overs() -> [Property<Cluster>; 2] {
    [
        Property::sometimes(
            "a take-over finishes an entry of an earlier term",
            |_, state: &State| {
                let finishes = |(round, term): &(Round, Term)| {
                    term.counter > 0 && state.watch.attempts_of(*round, *term).next().is_none()
                };
                state.watch.asked.keys().any(finishes)
            },
        ),
        Property::sometimes("a take-over attempts the round anew", |_, state: &State| {
            is_decided(state, |decided| decided.term.counter > 0)
        }),
    ]
}

fn possibilities_of_crashes() -> [Property<Cluster>; 2] {
    [
        Property::sometimes(
            "a node that crashed is in the view no more",
            |_, state: &State| {
                crashed(state)
                    .any(|id| is_decided(state, |decided| !decided.outcome.view.contains(id)))
            },
        ),
        Property::sometimes(
            "all rounds are decided in spite of a crash",
            |model: &Cluster, state: &State| {
                crashed(state).next().is_some() && model.is_over(state)
            },
        ),
    ]
}
