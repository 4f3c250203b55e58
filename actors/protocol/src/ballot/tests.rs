//! Tables for single steps, and random networks that lose, repeat and reorder everything.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::view::tests::view;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn ballot(counter: u64, node: u64) -> Ballot {
    Ballot { counter, node: NodeId(node) }
}

#[test]
fn acceptors_never_go_back() {
    let mut acceptor = Acceptor::new(&view(&[3, 5, 7]));
    assert_eq!(acceptor.promised(), ballot(0, 3));
    acceptor.accept(ballot(0, 3), 'a').unwrap();
    assert_eq!(
        acceptor.prepare(ballot(1, 5)),
        Ok(Promise { ballot: ballot(1, 5), accepted: Some((ballot(0, 3), 'a')), refuted: ballot(0, 3) })
    );
    let stale = Stale { promised: ballot(1, 5) };
    assert_eq!(acceptor.accept(ballot(0, 3), 'b'), Err(stale));
    assert_eq!(acceptor.prepare(ballot(1, 3)), Err(stale));
    assert_eq!(acceptor.accepted(), Some(&(ballot(0, 3), 'a')));
    // Repeated messages of the promised ballot are fine, also an accept whose prepare was lost.
    acceptor.prepare(ballot(1, 5)).unwrap();
    acceptor.accept(ballot(2, 7), 'c').unwrap();
    assert_eq!(acceptor.promised(), ballot(2, 7));
    acceptor.release(ballot(2, 7));
    assert_eq!(acceptor.accepted(), Some(&(ballot(2, 7), 'c')));
    acceptor.prepare(ballot(3, 7)).unwrap();
    acceptor.release(ballot(3, 7));
    assert_eq!((acceptor.promised(), acceptor.accepted()), (ballot(3, 7), None));
    acceptor.next_decree(&view(&[5, 7]));
    assert_eq!((acceptor.promised(), acceptor.accepted()), (ballot(0, 5), None));
}

/// A value, named by the ballot under which it was first proposed, and who votes on it.
#[derive(Clone, Debug, PartialEq)]
struct Vote {
    value: Ballot,
    voters: Vec<NodeId>,
    inherited: bool,
}

impl Motion for Vote {
    fn voters(&self) -> &[NodeId] {
        &self.voters
    }

    fn is_inherited(&self) -> bool {
        self.inherited
    }
}

fn vote(counter: u64, voters: &[u64], inherited: bool) -> Vote {
    Vote { value: ballot(counter, 1), voters: voters.iter().copied().map(NodeId).collect(), inherited }
}

#[test]
fn a_proposer_is_bound_where_nobody_proves_that_nothing_was_chosen() {
    let fresh = |counter| Some((ballot(counter, 1), vote(counter, &[1, 2, 3], false)));
    let inherited = |counter| Some((ballot(counter, 1), vote(counter, &[1, 2, 3], true)));
    type Answers = Vec<(u64, Option<(Ballot, Vote)>)>;
    let cases: [(Answers, Option<u64>); 9] = [
        (vec![], None),
        (vec![(1, None), (2, None)], None),
        (vec![(3, fresh(0)), (2, fresh(0))], Some(0)),
        (vec![(3, fresh(0)), (2, None)], None),
        (vec![(3, fresh(2)), (2, fresh(0))], None),
        (vec![(3, inherited(2)), (2, None)], Some(2)),
        (vec![(3, inherited(1)), (2, fresh(2))], None),
        // Node 1 proposed it, and says with its promise that it was not chosen; unless it was bound itself.
        (vec![(1, fresh(0)), (2, fresh(0))], None),
        (vec![(1, inherited(2)), (2, inherited(2))], Some(2)),
    ];
    for (answers, expected) in cases {
        let mut proposer = Proposer::new(ballot(3, 2));
        for (from, accepted) in answers.clone() {
            proposer.promise(NodeId(from), Promise { ballot: ballot(3, 2), accepted, refuted: Ballot::default() });
        }
        let bound = proposer.bound_to().map(|bound| bound.value);
        assert_eq!(bound, expected.map(|counter| ballot(counter, 1)), "{answers:?}");
    }
}

/// A proposer that asked a quorum was free, and threw what it and others had accepted away. Somebody who has not heard of it inherits
/// that, under a ballot between the two: nobody is bound to it, and fewer and fewer hold its data.
#[test]
fn what_was_refuted_binds_nobody_who_hears_so() {
    let inherited = Some((ballot(1, 3), vote(0, &[1, 2, 3], true)));
    for (refuted, bound) in [(ballot(0, 1), true), (ballot(1, 3), true), (ballot(2, 1), false), (ballot(9, 9), false)] {
        let mut proposer = Proposer::new(ballot(4, 2));
        let (promised, nothing) = (ballot(4, 2), ballot(0, 1));
        proposer.promise(NodeId(3), Promise { ballot: promised, accepted: inherited.clone(), refuted: nothing });
        proposer.promise(NodeId(2), Promise { ballot: promised, accepted: None, refuted });
        assert_eq!(proposer.bound_to().is_some(), bound, "{refuted}");
    }
}

#[test]
fn all_voters_must_accept() {
    let mut proposer = Proposer::new(ballot(0, 1));
    assert!(proposer.chosen().is_none());
    proposer.propose(vote(0, &[1, 2, 3], false));
    assert_eq!(proposer.propose(vote(9, &[1], false)).value, ballot(0, 1), "a proposal is fixed");
    for node in [1, 1, 9, 2] {
        proposer.accept(NodeId(node));
    }
    assert_eq!(proposer.missing().collect::<Vec<_>>(), [NodeId(3)]);
    assert!(proposer.chosen().is_none());
    proposer.accept(NodeId(3));
    assert!(proposer.chosen().is_some());
}

#[test]
fn promises_of_another_ballot_do_not_count() {
    let mut proposer = Proposer::<Vote>::new(ballot(3, 2));
    proposer.promise(NodeId(1), Promise { ballot: ballot(2, 2), accepted: None, refuted: Ballot::default() });
    assert_eq!(proposer.promised().count(), 0);
    proposer.promise(NodeId(1), Promise { ballot: ballot(3, 2), accepted: None, refuted: Ballot::default() });
    assert_eq!(proposer.promised().collect::<Vec<_>>(), [NodeId(1)]);
}

proptest! {
    #[test]
    fn ballots_are_never_reused(nodes in 1u64..5, observed in prop::collection::vec((0u64..6, 0u64..5, prop::bool::ANY), 0..40)) {
        let members = view(&(0..nodes).collect::<Vec<_>>());
        let mut ballots = Ballots::new(NodeId(nodes - 1), &members);
        let mut last = first_ballot(&members);
        for (counter, node, corrupt) in observed {
            ballots.observe(ballot(if corrupt { u64::MAX } else { counter }, node));
            let next = ballots.advance();
            prop_assert!(next > last && next.node == NodeId(nodes - 1) && next != first_ballot(&members));
            last = next;
        }
    }

    #[test]
    fn no_schedule_decides_two_values(size in 1u64..6, choices in prop::collection::vec(any::<u16>(), 0..400)) {
        let decided = run(size, &choices, Bug::None);
        prop_assert!(decided.len() <= 1, "{decided:?}");
    }
}

#[test]
fn the_checker_finds_planted_bugs() {
    for bug in [Bug::ForgetAccepted, Bug::AcceptStale, Bug::ForgetInherited, Bug::ReleaseInherited, Bug::NeverGiveUp] {
        let found = (0..6000u64).any(|seed| run(3, &noise(seed), bug).len() > 1);
        assert!(found, "{bug:?}");
    }
}

#[test]
fn quiet_networks_decide() {
    let mut network = Network::new(4, Bug::None);
    network.start(0);
    while !network.messages.is_empty() {
        network.deliver(0);
    }
    assert_eq!(network.decided.len(), 1);
}

/// Mistakes that must show.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// Promises do not carry what was accepted.
    ForgetAccepted,
    /// Acceptors accept below their promise.
    AcceptStale,
    /// Proposers do not say that they had no choice.
    ForgetInherited,
    /// Acceptors forget what they accepted when the same is proposed again.
    ReleaseInherited,
    /// Proposers go on with an attempt after they promised a higher ballot.
    NeverGiveUp,
}

#[derive(Clone, Debug)]
enum Message {
    Prepare(Ballot),
    Promise(Promise<Vote>),
    Propose(Ballot, Vote),
    Accepted(Ballot),
    Stale(Ballot),
}

/// Members that each may propose; a value is the ballot under which it was first proposed.
struct Network {
    members: View,
    bug: Bug,
    acceptors: BTreeMap<NodeId, Acceptor<Vote>>,
    proposers: BTreeMap<NodeId, (Ballots, Option<Proposer<Vote>>)>,
    messages: Vec<(NodeId, NodeId, Message)>,
    decided: BTreeSet<Ballot>,
    /// Who knows what was decided.
    done: BTreeSet<NodeId>,
    /// The attempts whose data moves.
    open: BTreeSet<(NodeId, Ballot)>,
}

/// Plays a schedule: each choice starts an attempt, delivers, repeats or loses a message.
fn run(size: u64, choices: &[u16], bug: Bug) -> BTreeSet<Ballot> {
    let mut network = Network::new(size, bug);
    network.start(0);
    for choice in choices {
        let (action, which) = (choice % 16, usize::from(choice / 16));
        match action {
            0 => network.start(which),
            1 => network.repeat(which),
            2 => network.lose(which),
            _ => network.deliver(which),
        }
    }
    network.decided
}

/// Choices from a seed, for tests that must not depend on proptest's own seed.
fn noise(seed: u64) -> Vec<u16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u16::try_from(state >> 48).unwrap()
    };
    (0..200).map(|_| next()).collect()
}

impl Network {
    fn new(size: u64, bug: Bug) -> Self {
        let members = view(&(1..=size).collect::<Vec<_>>());
        let acceptors = members.ids().map(|id| (id, Acceptor::new(&members))).collect();
        let proposers = members.ids().map(|id| (id, (Ballots::new(id, &members), None))).collect();
        Self {
            members,
            bug,
            acceptors,
            proposers,
            messages: Vec::new(),
            decided: BTreeSet::new(),
            done: BTreeSet::new(),
            open: BTreeSet::new(),
        }
    }

    /// A member begins an attempt; the lowest id's first one needs no promises.
    fn start(&mut self, which: usize) {
        let id = self.members.members()[which % self.members.size()].id;
        let (ballots, attempt) = self.proposers.get_mut(&id).unwrap();
        let unused = attempt.is_none() && ballots.highest() == first_ballot(&self.members);
        let fresh = unused && id == self.members.lowest();
        let ballot = if fresh { first_ballot(&self.members) } else { ballots.advance() };
        *attempt = Some(Proposer::new(ballot));
        self.broadcast(id, &Message::Prepare(ballot));
        self.advance(id);
    }

    fn broadcast(&mut self, from: NodeId, message: &Message) {
        self.messages.extend(self.members.ids().map(|to| (from, to, message.clone())));
    }

    fn repeat(&mut self, which: usize) {
        if let Some(message) = self.messages.get(which % self.messages.len().max(1)).cloned() {
            self.messages.push(message);
        }
    }

    fn lose(&mut self, which: usize) {
        if !self.messages.is_empty() {
            self.messages.swap_remove(which % self.messages.len());
        }
    }

    fn deliver(&mut self, which: usize) {
        if self.messages.is_empty() {
            return;
        }
        let (from, to, message) = self.messages.swap_remove(which % self.messages.len());
        if let Message::Prepare(ballot) | Message::Propose(ballot, _) = &message {
            if self.done.contains(&to) {
                // It answers with the decision instead.
                return;
            }
            let (ballots, attempt) = self.proposers.get_mut(&to).unwrap();
            ballots.observe(*ballot);
            attempt.take_if(|attempt| attempt.ballot() < *ballot && self.bug != Bug::NeverGiveUp);
        }
        let acceptor = self.acceptors.get_mut(&to).unwrap();
        let stale = |stale: Stale| Message::Stale(stale.promised);
        match message {
            Message::Prepare(ballot) => {
                let answer = acceptor.prepare(ballot).map_or_else(stale, Message::Promise);
                self.messages.push((to, from, answer));
            }
            Message::Propose(ballot, value) => {
                if self.bug == Bug::AcceptStale {
                    acceptor.promised = acceptor.promised.min(ballot);
                }
                // Its data has to arrive before it is accepted; that of earlier ballots is thrown away.
                let releases = !value.inherited || self.bug == Bug::ReleaseInherited;
                if releases && ballot >= acceptor.promised() && self.open.insert((to, ballot)) {
                    acceptor.prepare(ballot).unwrap();
                    acceptor.release(ballot);
                    acceptor.refute(ballot);
                    return self.messages.push((from, to, Message::Propose(ballot, value)));
                }
                let answer = acceptor.accept(ballot, value).map_or_else(stale, |()| Message::Accepted(ballot));
                self.messages.push((to, from, answer));
            }
            answer => self.answered(to, from, answer),
        }
    }

    fn answered(&mut self, id: NodeId, from: NodeId, answer: Message) {
        let (ballots, attempt) = self.proposers.get_mut(&id).unwrap();
        let Some(attempt) = attempt else { return };
        match answer {
            Message::Promise(mut promise) => {
                if self.bug == Bug::ForgetAccepted {
                    promise.accepted = None;
                }
                attempt.promise(from, promise);
            }
            Message::Accepted(ballot) if ballot == attempt.ballot() => attempt.accept(from),
            Message::Accepted(_) => {}
            Message::Stale(ballot) => ballots.observe(ballot),
            Message::Prepare(_) | Message::Propose(..) => {}
        }
        self.advance(id);
    }

    /// Proposes as soon as a quorum promised, to those that promised; notes decisions.
    fn advance(&mut self, id: NodeId) {
        let Some(attempt) = self.proposers.get_mut(&id).unwrap().1.as_mut() else { return };
        let ballot = attempt.ballot();
        let first = ballot == first_ballot(&self.members);
        let voters: Vec<NodeId> = if first { self.members.ids().collect() } else { attempt.promised().collect() };
        if attempt.proposal().is_none() && self.members.is_quorum(voters.iter().copied()) {
            let bound = attempt.bound_to().map(|bound| bound.value);
            let inherited = bound.is_some() && self.bug != Bug::ForgetInherited;
            let vote = Vote { value: bound.unwrap_or(ballot), voters, inherited };
            attempt.propose(vote.clone());
            self.broadcast(id, &Message::Propose(ballot, vote));
        }
        let attempt = self.proposers.get_mut(&id).unwrap().1.as_ref();
        if let Some(chosen) = attempt.and_then(Proposer::chosen) {
            self.decided.insert(chosen.value);
            self.done.insert(id);
        }
    }
}

#[test]
fn an_acceptance_below_the_highest_one_is_overshadowed() {
    let report = |counter| Some((ballot(counter, 1), vote(counter, &[1, 2, 3], false)));
    let mut proposer = Proposer::new(ballot(9, 4));
    for (voter, accepted, overshadows) in [(4, None, false), (5, report(2), false), (6, report(2), false), (3, report(1), true)] {
        proposer.promise(NodeId(voter), Promise { ballot: ballot(9, 4), accepted, refuted: Ballot::default() });
        assert_eq!(proposer.overshadows(), overshadows, "after node {voter}");
    }
}
