//! Streams that break, and who still contributes: one machine, told by hand what the others say.

use super::node::CLUSTER;
use crate::coordinator::{
    Attempt, Coordinator, Effect, GivesUp, In, Origin, Outcome, Proposal, RoundKind, RoundSpec, STREAM_BROKEN_WAIT, Settings,
};
use crate::ident::{Lineage, NodeId, Round, Step, Term};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::policy::{OnMomentumLoss, Quorum};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{Contributed, Frame, Message};

pub const TERMS: RoundSpec = RoundSpec { kind: RoundKind::Found, step: Step(0), gamma: 0.0, elements: 23 };
pub const LINEAGE: Lineage = Lineage(77);

/// The coordinator of a node, the lowest one for the most part, and what it asks for.
pub struct Leader {
    pub machine: Coordinator,
    pub view: View,
    pub now: u64,
}

fn identity(view: &View, node: u64) -> Identity {
    Identity { cluster: CLUSTER, node: NodeId(node), incarnation: view.member(NodeId(node)).unwrap().incarnation }
}

fn settings(view: &View, node: u64) -> Settings {
    Settings {
        identity: identity(view, node),
        replicas: 1,
        keeps_state: true,
        origin: Origin::default(),
        restores: false,
        copies_buffers: None,
        orders_by_rate: false,
        quorum: Quorum::Majority,
        on_momentum_loss: OnMomentumLoss::Reset,
        grace: Span::from_millis(60_000),
        round_timeout: Span::from_millis(300_000),
    }
}

impl Leader {
    pub fn new(ids: &[u64]) -> Self {
        let mut leader = Self::of(ids, ids[0]);
        leader.tell(In::Contribute { round: Round::FOUNDING, spec: TERMS, samples: None, rates: vec![], buffers: 0 });
        leader
    }

    /// Node `node` of the view, before its first contribution.
    pub fn of(ids: &[u64], node: u64) -> Self {
        Self::with(ids, node, |settings| settings)
    }

    fn with(ids: &[u64], node: u64, change: impl FnOnce(Settings) -> Settings) -> Self {
        let view = crate::view::tests::view(ids);
        let machine = Coordinator::new(change(settings(&view, node)));
        let mut member = Self { machine, view: view.clone(), now: 1 };
        member.tell(In::Formed { view, lineage: LINEAGE });
        member
    }

    pub fn tell(&mut self, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        self.machine.handle(event, Instant(self.now), &mut out);
        out.take()
    }

    pub fn hear(&mut self, from: u64, term: Term, message: Message) -> Vec<Effect> {
        let place = Place { lineage: LINEAGE, epoch: self.view.epoch(), round: Round::FOUNDING, term };
        let Frame::V1 { header, message } = identity(&self.view, from).frame(place, message);
        self.tell(In::Frame { header, message })
    }

    /// A member's promise under the term in force.
    pub fn hear_promise(&mut self, from: u64, contributes: bool) -> Vec<Effect> {
        let contributed = contributes.then_some(Contributed { spec: TERMS, samples: None, rates: vec![] });
        self.hear(from, self.term(), Message::Promise { accepted: None, refuted: Term::default(), holds: false, contributed })
    }

    pub fn term(&self) -> Term {
        self.machine.place().term
    }
}

/// The founding of a view with this node's parameters.
pub fn founded(view: &View, contributor: NodeId) -> Outcome {
    Outcome {
        lineage: LINEAGE,
        round: Round::FOUNDING,
        spec: TERMS,
        contributors: vec![contributor],
        view: view.clone(),
        absent: vec![],
        momentum_lost: 0,
        samples: None,
        order: vec![],
        origin: Origin::default(),
    }
}

pub fn says(effects: &[Effect], wanted: fn(&Message) -> bool) -> bool {
    let is = |effect: &Effect| matches!(effect, Effect::Send { frame: Frame::V1 { message, .. }, .. } if wanted(message));
    effects.iter().any(is)
}

#[test]
fn one_death_breaks_the_streams_of_many_members_and_costs_one_attempt() {
    let ids: Vec<u64> = (1..=14).collect();
    let mut leader = Leader::new(&ids);
    let first = leader.term();
    // Node 14 dies while node 13 still computes: its streams of the first attempt break everywhere, then it is found dead.
    let dead = leader.view.member(NodeId(14)).unwrap().incarnation;
    leader.tell(In::StreamBroken(Attempt { round: Round::FOUNDING, term: first, lineage: LINEAGE }, NodeId(14)));
    leader.tell(In::Lost(NodeId(14), dead));
    let second = leader.term();
    assert!(second > first);
    for id in 2..=12 {
        leader.hear_promise(id, true);
    }
    leader.hear_promise(13, false);
    // What broke was of the first attempt; the second one waits for node 13's contribution.
    leader.now += 600_000;
    assert!(!says(&leader.tell(In::Tick), |message| matches!(message, Message::Prepare)));
    for id in 2..=12 {
        for term in [first, second] {
            let effects = leader.hear(id, term, Message::Broken(NodeId(14)));
            assert!(!says(&effects, |message| matches!(message, Message::Abandon(_))), "{effects:?}");
        }
    }
}

#[test]
fn who_leaves_after_it_contributed_cuts_nobody_short() {
    let mut leader = Leader::new(&[1, 2, 3, 4]);
    let dead = leader.view.member(NodeId(4)).unwrap().incarnation;
    leader.tell(In::Lost(NodeId(4), dead));
    leader.hear_promise(2, false);
    let incarnation = identity(&leader.view, 3).incarnation;
    leader.tell(In::Leaving { node: NodeId(3), incarnation, contributes: false });
    let early = leader.hear_promise(3, true);
    assert!(!says(&early, |message| matches!(message, Message::Propose(_))), "node 2 is still expected: {early:?}");
    let complete = leader.hear(2, leader.term(), Message::Contribute(Contributed { spec: TERMS, samples: None, rates: vec![] }));
    assert!(says(&complete, |message| matches!(message, Message::Propose(_))));
}

/// Nodes 2 and 3 were about to admit node 4 and died; node 1 is in an earlier round of a history that parted from theirs.
#[test]
fn a_joiner_is_admitted_to_another_history_also_where_that_is_behind() {
    let all = crate::view::tests::view(&[1, 2, 3, 4]);
    let mut joiner = Leader { machine: Coordinator::new(settings(&all, 4)), view: all, now: 1 };
    joiner.tell(In::Contribute { round: Round::FOUNDING, spec: TERMS, samples: None, rates: vec![], buffers: 0 });
    for (lineage, round, members, next) in [(LINEAGE, 90, vec![2, 3], [2, 3, 4]), (Lineage(78), 50, vec![1, 2, 3], [1, 3, 4])] {
        let (before, view) = (crate::view::tests::view(&members), crate::view::tests::view(&next));
        let term = Term { counter: 1, node: NodeId(members[0]) };
        let (spec, contributors) = (RoundSpec { kind: RoundKind::Slow, ..TERMS }, vec![NodeId(members[0])]);
        let (participants, round) = (contributors.clone(), Round(round));
        let outcome = Outcome {
            lineage,
            round,
            spec,
            contributors,
            view,
            absent: vec![],
            momentum_lost: 0,
            samples: None,
            order: vec![],
            origin: Origin::default(),
        };
        let admit = Message::Admit { proposal: Proposal { outcome, participants, inherited: false }, view: before.clone() };
        let place = Place { lineage, epoch: before.epoch(), round, term };
        let Frame::V1 { header, message } = identity(&joiner.view, members[0]).frame(place, admit);
        joiner.tell(In::Frame { header, message });
        assert_eq!((joiner.machine.place().lineage, joiner.machine.place().round), (lineage, round));
    }
}

/// Node 2 has averaged its own shards and waits for those of node 1, whose stream was finished and then lost with its connection.
#[test]
fn what_was_lost_with_a_connection_is_asked_for_when_that_is_new_again() {
    let mut member = Leader::of(&[1, 2, 3], 2);
    for peer in [1, 3] {
        member.tell(In::PeerUp(NodeId(peer)));
    }
    let opened = member.tell(In::Contribute { round: Round::FOUNDING, spec: TERMS, samples: None, rates: vec![], buffers: 0 });
    let plan = opened.iter().find_map(|effect| if let Effect::Open(plan) = effect { Some(plan.clone()) } else { None }).unwrap();
    let others = plan.other_owners();
    let outcome = founded(&member.view, NodeId(1));
    let participants = member.view.ids().collect();
    member.hear(1, plan.attempt.term, Message::Propose(Proposal { outcome, participants, inherited: false }));
    member.tell(In::Reduced(plan.attempt));
    for owner in others.iter().filter(|owner| **owner != NodeId(3)) {
        member.tell(In::ParametersHeld(plan.attempt, *owner));
    }
    assert!(others.contains(&NodeId(3)), "node 3 owns a shard");
    let broken = |effects: &[Effect]| says(effects, |message| matches!(message, Message::Broken(NodeId(3))));
    member.now += 600_000;
    assert!(!broken(&member.tell(In::Tick)), "nothing is known to be wrong");
    // A new connection of a node that has brought all it must is of no interest.
    member.tell(In::PeerUp(NodeId(1)));
    member.now += 600_000;
    assert!(!broken(&member.tell(In::Tick)));
    member.tell(In::PeerUp(NodeId(3)));
    assert_eq!(member.machine.next_deadline(), Some(Instant(member.now).after(STREAM_BROKEN_WAIT)));
    member.now += 400_000;
    assert!(!broken(&member.tell(In::Tick)), "it may still come");
    member.now += 200_000;
    assert!(broken(&member.tell(In::Tick)));
    member.now += 600_000;
    assert!(!broken(&member.tell(In::Tick)), "a new connection costs one attempt");
}

/// Node 2 takes node 1, which leads, for dead, and dies itself when it has admitted it again.
#[test]
fn a_member_that_was_left_out_votes_again_when_whoever_admits_it_dies() {
    let mut member = Leader::new(&[1, 2, 3, 4]);
    let taken_over = Term { counter: 1, node: NodeId(2) };
    let outcome = founded(&member.view, NodeId(2));
    let proposal = Proposal { outcome, participants: vec![NodeId(2), NodeId(3), NodeId(4)], inherited: false };
    let admit = Message::Admit { proposal, view: member.view.clone() };
    let admitted = member.hear(2, taken_over, admit.clone());
    assert!(admitted.iter().any(|effect| matches!(effect, Effect::Open(_))) && member.machine.view().is_none(), "{admitted:?}");
    let dead = identity(&member.view, 2).incarnation;
    let resumed = member.tell(In::Lost(NodeId(2), dead));
    assert!(says(&resumed, |message| matches!(message, Message::Prepare)), "it leads again: {resumed:?}");
    assert!(member.machine.view().is_some() && member.term() > taken_over);
    let late = member.hear(2, taken_over, admit);
    assert!(member.machine.view().is_some(), "what a dead leader has sent admits nobody: {late:?}");
    member.hear_promise(3, true);
    let proposed = member.hear_promise(4, true);
    assert!(says(&proposed, |message| matches!(message, Message::Propose(_))), "{proposed:?}");
}

#[test]
fn a_promise_is_told_again_when_its_leader_can_be_reached() {
    let mut member = Leader::of(&[1, 2, 3], 2);
    member.tell(In::Contribute { round: Round::FOUNDING, spec: TERMS, samples: None, rates: vec![], buffers: 0 });
    let promises = |effects: &[Effect]| says(effects, |message| matches!(message, Message::Promise { contributed: Some(_), .. }));
    assert!(!promises(&member.tell(In::PeerUp(NodeId(1)))), "the first term needs no promises");
    let term = member.term().next_of(NodeId(1));
    // It may be lost: the leader can be heard, but not answered yet.
    assert!(promises(&member.hear(1, term, Message::Prepare)));
    assert!(!promises(&member.tell(In::PeerUp(NodeId(3)))));
    assert!(promises(&member.tell(In::PeerUp(NodeId(1)))));
}

#[test]
fn a_founding_is_given_up_unless_it_is_decided() {
    let mut member = Leader::of(&[2, 3], 3);
    assert_eq!(member.tell(In::Resign(GivesUp::ForFounding)), [Effect::Resigned(true)]);
    assert_eq!(member.machine.view(), None);
    // What the founding that it goes over to has sent it meanwhile was refused: it asks for that again.
    let view = crate::view::tests::view(&[1, 3]);
    let effects = member.tell(In::Formed { view: view.clone(), lineage: Lineage(78) });
    assert!(says(&effects, |message| matches!(message, Message::Broken(NodeId(3)))), "{effects:?}");

    let mut alone = Leader::of(&[2], 2);
    let contribute = In::Contribute { round: Round::FOUNDING, spec: TERMS, samples: None, rates: vec![], buffers: 0 };
    let opened = alone.tell(contribute);
    let plan = opened.iter().find_map(|effect| if let Effect::Open(plan) = effect { Some(plan.clone()) } else { None });
    let applied = alone.tell(In::Reduced(plan.unwrap().attempt));
    assert!(applied.iter().any(|effect| matches!(effect, Effect::Apply { .. })), "{applied:?}");
    assert_eq!(alone.tell(In::Resign(GivesUp::ForDecided)), [Effect::Resigned(false)]);
    assert!(alone.machine.view().is_some());
}

/// What survivors propose, led by node 2, with the promises of `promised`: each of them accepted `accepted` from node 1 and holds its data
/// if it is one of `holders`. Everybody else is dead.
fn survivors_propose(accepted: &Outcome, promised: &[u64], holders: &[u64]) -> Proposal {
    let ids = [1, 2, 3, 4, 5];
    let whole = crate::view::tests::view(&ids);
    let mut node = Leader::with(&ids, 2, |settings| Settings { quorum: Quorum::Survivors, ..settings });
    node.tell(In::Contribute { round: Round::FOUNDING, spec: TERMS, samples: None, rates: vec![], buffers: 0 });
    let gone = ids.iter().filter(|id| **id != 2 && !promised.contains(id));
    gone.for_each(|id| _ = node.tell(In::Lost(NodeId(*id), whole.member(NodeId(*id)).unwrap().incarnation)));
    let proposal = Proposal { outcome: accepted.clone(), participants: whole.ids().collect(), inherited: true };
    let accepted = Some((Term { counter: 1, node: NodeId(1) }, proposal));
    let (refuted, contributed) = (Term::default(), Contributed { spec: TERMS, samples: None, rates: vec![] });
    let promise = |id| {
        let (holds, contributed) = (holders.contains(id), Some(contributed.clone()));
        Message::Promise { accepted: accepted.clone(), refuted, holds, contributed }
    };
    let effects: Vec<Effect> = promised.iter().flat_map(|id| node.hear(*id, node.term(), promise(id))).collect();
    let proposed = effects.iter().find_map(|effect| match effect {
        Effect::Send { frame: Frame::V1 { message, .. }, .. } => match &**message {
            Message::Propose(proposal) => Some(proposal.clone()),
            _ => None,
        },
        _ => None,
    });
    proposed.unwrap()
}

/// What node 1 proposed before it died; its next view is of `next`.
fn founding_outcome(next: &[u64]) -> Outcome {
    Outcome {
        lineage: LINEAGE,
        round: Round::FOUNDING,
        spec: TERMS,
        contributors: vec![NodeId(1)],
        view: crate::view::tests::view(next),
        absent: vec![],
        momentum_lost: 0,
        samples: None,
        order: vec![],
        origin: Origin::default(),
    }
}

#[test]
fn fewer_than_a_quorum_go_on_with_what_may_be_chosen_in_a_history_of_their_own() {
    let outcome = founding_outcome(&[1, 2, 3, 4, 5]);
    for promised in [&[3u64][..], &[3, 4]] {
        let Proposal { outcome: proposed, inherited, .. } = survivors_propose(&outcome, promised, promised);
        assert!(inherited && proposed.has_the_data_of(&outcome));
        // The others may have refuted it, and decided something else in the history that all were in.
        let quorum = promised.len() + 1 > 2;
        assert_eq!(proposed.lineage == LINEAGE, quorum, "{promised:?}");
    }
}

#[test]
fn survivors_do_not_go_on_with_an_outcome_whose_data_nobody_who_stays_holds() {
    // Node 3 leaves with the outcome: nobody holds its data, or node 3 alone.
    let outcome = founding_outcome(&[1, 2, 4, 5]);
    for holders in [&[][..], &[3]] {
        let Proposal { outcome: proposed, inherited, .. } = survivors_propose(&outcome, &[3, 4], holders);
        assert!(!inherited && proposed.lineage != LINEAGE, "others may have gone on with it: {proposed:?}");
        assert_eq!(proposed.contributors, [NodeId(2)], "{holders:?}");
    }
    let kept = survivors_propose(&outcome, &[3, 4], &[4]);
    assert!(kept.inherited && kept.outcome.has_the_data_of(&outcome));
}
