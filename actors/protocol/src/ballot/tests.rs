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
    assert_eq!(acceptor.prepare(ballot(1, 5)), Ok(Promise { ballot: ballot(1, 5), accepted: Some((ballot(0, 3), 'a')) }));
    let stale = Stale { promised: ballot(1, 5) };
    assert_eq!(acceptor.accept(ballot(0, 3), 'b'), Err(stale));
    assert_eq!(acceptor.prepare(ballot(1, 3)), Err(stale));
    assert_eq!(acceptor.accepted(), Some(&(ballot(0, 3), 'a')));
    // Repeated messages of the promised ballot are fine, also an accept whose prepare was lost.
    acceptor.prepare(ballot(1, 5)).unwrap();
    acceptor.accept(ballot(2, 7), 'c').unwrap();
    assert_eq!(acceptor.promised(), ballot(2, 7));
    acceptor.next_decree(&view(&[5, 7]));
    assert_eq!((acceptor.promised(), acceptor.accepted()), (ballot(0, 5), None));
}

#[test]
fn the_value_of_the_highest_ballot_must_be_proposed() {
    type Answers = &'static [(u64, Option<(u64, char)>)];
    let cases: &[(Answers, Option<char>)] = &[
        (&[], None),
        (&[(1, None)], None),
        (&[(1, None), (1, None)], None),
        (&[(1, None), (9, None)], None),
        (&[(1, None), (2, None)], Some('o')),
        (&[(2, Some((0, 'a'))), (3, None)], Some('a')),
        (&[(1, Some((1, 'a'))), (2, Some((2, 'b')))], Some('b')),
        (&[(1, Some((2, 'b'))), (2, Some((1, 'a')))], Some('b')),
        (&[(1, None), (9, Some((2, 'x'))), (2, None)], Some('o')),
    ];
    for (answers, expected) in cases {
        let mut proposer = Proposer::new(ballot(3, 2), &view(&[1, 2, 3]));
        for (from, accepted) in *answers {
            let accepted = accepted.map(|(counter, value)| (ballot(counter, 1), value));
            proposer.promise(NodeId(*from), Promise { ballot: ballot(3, 2), accepted });
        }
        assert_eq!(proposer.propose(|| 'o').copied(), *expected, "{answers:?}");
    }
}

#[test]
fn the_first_ballot_decides_in_one_round_trip() {
    let members = view(&[1, 2, 3]);
    let mut proposer = Proposer::new(first_ballot(&members), &members);
    assert_eq!(proposer.propose(|| 'v'), Some(&'v'));
    assert_eq!(proposer.propose(|| 'w'), Some(&'v'), "a proposal is fixed");
    proposer.accept(NodeId(1), proposer.ballot());
    proposer.accept(NodeId(1), proposer.ballot());
    proposer.accept(NodeId(2), ballot(1, 1));
    proposer.accept(NodeId(9), proposer.ballot());
    assert_eq!(proposer.decided(), None);
    assert_eq!(proposer.missing().collect::<Vec<_>>(), [NodeId(2), NodeId(3)]);
    proposer.accept(NodeId(3), proposer.ballot());
    assert_eq!(proposer.decided(), Some(&'v'));
}

#[test]
fn promises_of_another_ballot_do_not_count() {
    let mut proposer = Proposer::<char>::new(ballot(3, 2), &view(&[1, 2]));
    proposer.promise(NodeId(1), Promise { ballot: ballot(2, 2), accepted: None });
    assert!(!proposer.may_propose());
    proposer.promise(NodeId(1), Promise { ballot: ballot(3, 2), accepted: None });
    assert!(proposer.may_propose(), "half with the lowest id is a quorum");
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
    for bug in [Bug::ForgetAccepted, Bug::AcceptStale] {
        let found = (0..2000u64).any(|seed| run(3, &noise(seed), bug).len() > 1);
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
}

#[derive(Clone, Debug)]
enum Message {
    Prepare(Ballot),
    Promise(Promise<Ballot>),
    Propose(Ballot, Ballot),
    Accepted(Ballot),
    Stale(Ballot),
}

/// Members that each may propose; a value is the ballot under which it was first proposed.
struct Network {
    members: View,
    bug: Bug,
    acceptors: BTreeMap<NodeId, Acceptor<Ballot>>,
    proposers: BTreeMap<NodeId, (Ballots, Option<Proposer<Ballot>>)>,
    messages: Vec<(NodeId, NodeId, Message)>,
    decided: BTreeSet<Ballot>,
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
        Self { members, bug, acceptors, proposers, messages: Vec::new(), decided: BTreeSet::new() }
    }

    /// A member begins an attempt; the lowest id's first one needs no promises.
    fn start(&mut self, which: usize) {
        let id = self.members.members()[which % self.members.size()].id;
        let (ballots, attempt) = self.proposers.get_mut(&id).unwrap();
        let fresh = attempt.is_none() && id == self.members.lowest();
        let ballot = if fresh { first_ballot(&self.members) } else { ballots.advance() };
        *attempt = Some(Proposer::new(ballot, &self.members));
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
            Message::Accepted(ballot) => attempt.accept(from, ballot),
            Message::Stale(ballot) => ballots.observe(ballot),
            Message::Prepare(_) | Message::Propose(..) => {}
        }
        self.advance(id);
    }

    /// Proposes as soon as it may; notes decisions.
    fn advance(&mut self, id: NodeId) {
        let Some(attempt) = self.proposers.get_mut(&id).unwrap().1.as_mut() else { return };
        let ballot = attempt.ballot();
        let fresh = attempt.proposal.is_none();
        let proposal = attempt.propose(|| ballot).copied();
        self.decided.extend(attempt.decided().copied());
        if let (Some(value), true) = (proposal, fresh) {
            self.broadcast(id, &Message::Propose(ballot, value));
        }
    }
}
