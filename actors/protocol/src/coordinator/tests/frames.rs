//! Frames fed by hand to one coordinator: who may say what, and what is answered.

use super::node::LINEAGE;
use crate::ballot::{BALLOT_COUNTER_MAX, first_ballot};
use crate::coordinator::{Attempt, Coordinator, EARLY_FRAMES_PER_MEMBER_MAX, Effect, Founding, In, Outcome, RoundError, RoundKind, Terms};
use crate::ident::{Ballot, ClusterId, Epoch, Incarnation, NodeId, Round, Step};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::view::tests::view;
use crate::wire::{Frame, Header, Message, RefusalReason};

const TERMS: Terms = Terms { kind: RoundKind::Average, step: Step(3), gamma: 0.0, elements: 3 };

/// The coordinator of one member of `ids`.
struct Fixture {
    machine: Coordinator,
    view: View,
}

impl Fixture {
    fn new(me: u64, ids: &[u64]) -> Self {
        let view = view(ids);
        let identity = Identity { cluster: ClusterId(1), node: NodeId(me), incarnation: Incarnation(1) };
        let founding = Founding { identity, view: view.clone(), lineage: LINEAGE, replicas: 1, round_timeout: Span(1_000) };
        Self { machine: Coordinator::new(founding), view }
    }

    fn feed(&mut self, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        self.machine.handle(event, Instant(0), &mut out);
        out.take()
    }

    fn header(&self, sender: u64, ballot: Ballot) -> Header {
        let identity = Identity { cluster: ClusterId(1), node: NodeId(sender), incarnation: Incarnation(1) };
        identity.header(Place { lineage: LINEAGE, epoch: Epoch(1), round: self.machine.place().round, ballot })
    }

    fn frame(&mut self, sender: u64, ballot: Ballot, message: Message) -> Vec<Effect> {
        let header = self.header(sender, ballot);
        self.feed(In::Frame { header, message })
    }

    fn outcome(&self, terms: Terms) -> Outcome {
        let contributors = if terms.kind == RoundKind::Found { vec![self.view.lowest()] } else { self.view.ids().collect() };
        Outcome { lineage: LINEAGE, round: self.machine.place().round, terms, contributors, view: self.view.clone() }
    }

    /// Contributes, and holds at once everything that the round wants.
    fn contribute_and_hold(&mut self) -> Vec<Effect> {
        let mut effects = self.feed(In::Contribute { terms: TERMS });
        let Some(Effect::Open(plan)) = effects.iter().find(|effect| matches!(effect, Effect::Open(_))) else { panic!("{effects:?}") };
        let (attempt, owners) = (plan.attempt(), plan.other_owners());
        effects.extend(self.feed(In::Reduced(attempt)));
        for owner in owners {
            effects.extend(self.feed(In::ParametersHeld(attempt, owner)));
        }
        effects
    }
}

fn ballot(counter: u64, node: u64) -> Ballot {
    Ballot { counter, node: NodeId(node) }
}

/// The only message sent, and to whom.
fn sent(effects: &[Effect]) -> (NodeId, &Message) {
    let [Effect::Send { to, frame: Frame::V1 { message, .. } }] = effects else { panic!("{effects:?}") };
    (*to, message)
}

fn sends(effects: &[Effect], wanted: &Message) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Send { frame: Frame::V1 { message, .. }, .. } if message == wanted)).count()
}

fn applies(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Apply(_))).count()
}

#[test]
fn prepare_is_answered_with_promise_or_stale_and_only_to_its_own_leader() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    let promise = Message::Promise { accepted: None };
    assert_eq!(sent(&node.frame(1, ballot(0, 1), Message::Prepare)), (NodeId(1), &promise));
    assert_eq!(sent(&node.frame(2, ballot(4, 2), Message::Prepare)), (NodeId(2), &promise));
    assert_eq!(sent(&node.frame(2, ballot(4, 2), Message::Prepare)), (NodeId(2), &promise), "asking twice is harmless");
    assert_eq!(sent(&node.frame(1, ballot(4, 1), Message::Prepare)), (NodeId(1), &Message::Stale));
    assert!(node.frame(1, ballot(9, 2), Message::Prepare).is_empty(), "node 1 is not the leader of 9.2");
    assert!(node.frame(2, ballot(BALLOT_COUNTER_MAX + 1, 2), Message::Prepare).is_empty());
    assert!(node.frame(2, ballot(u64::MAX, 2), Message::Prepare).is_empty());
    assert_eq!(node.machine.place().ballot, ballot(4, 2));
}

#[test]
fn a_promise_reports_what_was_accepted() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    let outcome = node.outcome(TERMS);
    node.frame(1, ballot(0, 1), Message::Propose(outcome.clone()));
    assert_eq!(sends(&node.contribute_and_hold(), &Message::Prepared), 1);
    let accepted = Message::Promise { accepted: Some((ballot(0, 1), outcome.clone())) };
    assert_eq!(sent(&node.frame(2, ballot(1, 2), Message::Prepare)), (NodeId(2), &accepted));
    // The old leader can propose no more, but what it decided before stays decided.
    assert_eq!(sent(&node.frame(1, ballot(0, 1), Message::Propose(outcome.clone()))), (NodeId(1), &Message::Stale));
    assert_eq!(applies(&node.frame(1, ballot(0, 1), Message::Decide(outcome))), 1);
}

#[test]
fn nothing_is_accepted_under_a_ballot_whose_data_is_not_held() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    let outcome = node.outcome(TERMS);
    node.frame(1, ballot(0, 1), Message::Propose(outcome.clone()));
    node.feed(In::Contribute { terms: TERMS });
    node.frame(2, ballot(1, 2), Message::Prepare);
    let attempt = Attempt { round: Round(0), ballot: ballot(0, 1) };
    for event in [In::Reduced(attempt), In::ParametersHeld(attempt, NodeId(1)), In::ParametersHeld(attempt, NodeId(2))] {
        assert!(node.feed(event).is_empty(), "neither leader may be told that it was accepted");
    }
    assert!(node.frame(2, ballot(1, 2), Message::Propose(outcome)).is_empty());
}

#[test]
fn a_decision_counts_only_from_its_leader_and_once() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    node.contribute_and_hold();
    let outcome = node.outcome(TERMS);
    assert!(node.frame(2, ballot(0, 1), Message::Decide(outcome.clone())).is_empty(), "node 2 does not lead 0.1");
    assert_eq!(applies(&node.frame(1, ballot(0, 1), Message::Decide(outcome.clone()))), 1);
    assert!(node.frame(1, ballot(0, 1), Message::Decide(outcome)).is_empty(), "an outcome of the last round is not of this one");
}

#[test]
fn prepared_counts_only_under_the_ballot_in_force() {
    let mut leader = Fixture::new(1, &[1, 2, 3]);
    let ballot_one = first_ballot(&leader.view);
    assert!(leader.frame(2, ballot_one, Message::Prepared).is_empty(), "nothing is proposed yet");
    leader.contribute_and_hold();
    assert!(leader.frame(2, ballot(1, 2), Message::Prepared).is_empty());
    assert!(leader.frame(3, ballot(1, 1), Message::Prepared).is_empty());
    assert!(leader.frame(2, ballot_one, Message::Prepared).is_empty());
    assert!(leader.frame(2, ballot_one, Message::Prepared).is_empty(), "a second one is no second member");
    assert_eq!(applies(&leader.frame(3, ballot_one, Message::Prepared)), 1);
}

#[test]
fn impossible_outcomes_are_not_acted_on() {
    type Change = fn(&mut Outcome);
    let changes: [Change; 9] = [
        |outcome| outcome.lineage.0 += 1,
        |outcome| outcome.round = Round(u64::MAX),
        |outcome| outcome.view = view(&[1, 2]),
        |outcome| outcome.view = view(&[1, 2, 3, 4]),
        |outcome| outcome.contributors.reverse(),
        |outcome| outcome.contributors.clear(),
        |outcome| outcome.contributors.push(NodeId(3)),
        |outcome| outcome.contributors[2] = NodeId(9),
        |outcome| outcome.terms.kind = RoundKind::Found,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut node = Fixture::new(3, &[1, 2, 3]);
        node.contribute_and_hold();
        let mut outcome = node.outcome(TERMS);
        change(&mut outcome);
        assert!(node.frame(1, ballot(0, 1), Message::Propose(outcome.clone())).is_empty(), "change {index}");
        assert!(node.frame(1, ballot(0, 1), Message::Decide(outcome)).is_empty(), "change {index}");
    }
}

#[test]
fn huge_terms_from_another_node_are_a_difference_and_cost_nothing() {
    let huge = Terms { elements: u64::MAX, ..TERMS };
    for decide in [false, true] {
        let mut node = Fixture::new(3, &[1, 2, 3]);
        node.contribute_and_hold();
        let outcome = node.outcome(huge);
        let message = if decide { Message::Decide(outcome) } else { Message::Propose(outcome) };
        let effects = node.frame(1, ballot(0, 1), message);
        assert!(matches!(effects.last(), Some(Effect::Fail(RoundError::TermsDiffer { .. }))), "{effects:?}");
    }
    // One's own huge terms are cut into a bounded number of shards.
    let mut node = Fixture::new(3, &[1, 2, 3]);
    assert!(matches!(&node.feed(In::Contribute { terms: huge })[..], [Effect::Open(_)]));
}

#[test]
fn a_contribution_that_differs_from_what_was_proposed_or_decided_fails_at_once() {
    for decide in [false, true] {
        let mut node = Fixture::new(3, &[1, 2, 3]);
        let outcome = node.outcome(TERMS);
        let message = if decide { Message::Decide(outcome) } else { Message::Propose(outcome) };
        assert!(node.frame(1, ballot(0, 1), message).is_empty());
        let effects = node.feed(In::Contribute { terms: Terms { step: Step(4), ..TERMS } });
        assert!(matches!(effects.last(), Some(Effect::Fail(RoundError::TermsDiffer { .. }))), "{effects:?}");
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Open(_))));
    }
}

#[test]
fn frames_of_the_next_round_are_kept_per_member_and_checked_when_their_time_comes() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    let next = |sender: u64, ballot: Ballot, node: &Fixture| Header { round: Round(1), ..node.header(sender, ballot) };
    for _ in 0..10 * EARLY_FRAMES_PER_MEMBER_MAX {
        let header = next(2, ballot(7, 2), &node);
        assert!(node.feed(In::Frame { header, message: Message::Prepared }).is_empty());
    }
    let header = next(1, ballot(0, 1), &node);
    let reason = RefusalReason::StreamBroken { node: NodeId(2) };
    node.feed(In::Frame { header, message: Message::Abandon(reason) });
    node.contribute_and_hold();
    let outcome = node.outcome(TERMS);
    assert_eq!(applies(&node.frame(1, ballot(0, 1), Message::Decide(outcome))), 1);
    let effects = node.feed(In::Contribute { terms: TERMS });
    assert!(matches!(&effects[..], [Effect::Fail(RoundError::StreamBroken { round: Round(1), .. })]), "a flood lost it: {effects:?}");
}

#[test]
fn what_an_earlier_rounds_movements_report_is_of_no_interest() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    node.contribute_and_hold();
    let outcome = node.outcome(TERMS);
    node.frame(1, ballot(0, 1), Message::Decide(outcome));
    node.feed(In::Contribute { terms: TERMS });
    let late = Attempt { round: Round(0), ballot: ballot(0, 1) };
    assert!(node.feed(In::StreamBroken(late, NodeId(1))).is_empty());
    assert!(node.feed(In::TermsDiffer(late, NodeId(1), TERMS)).is_empty());
    assert!(node.feed(In::Reduced(late)).is_empty());
}

#[test]
fn a_decided_round_ends_although_a_member_that_it_needs_no_more_is_gone() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    let effects = node.feed(In::Contribute { terms: TERMS });
    let [Effect::Open(plan)] = &effects[..] else { panic!("{effects:?}") };
    let attempt = plan.attempt();
    let outcome = node.outcome(TERMS);
    node.feed(In::Reduced(attempt));
    node.feed(In::ParametersHeld(attempt, NodeId(1)));
    node.frame(1, ballot(0, 1), Message::Decide(outcome));
    assert!(node.feed(In::MemberLost(NodeId(1))).is_empty());
    assert_eq!(applies(&node.feed(In::ParametersHeld(attempt, NodeId(2)))), 1);
    let effects = node.feed(In::Contribute { terms: TERMS });
    assert!(matches!(&effects[..], [Effect::Fail(RoundError::MemberLost { round: Round(1), node: NodeId(1) })]), "{effects:?}");
}

#[test]
fn a_stopped_node_tells_a_leader_that_is_ahead_why() {
    let mut node = Fixture::new(3, &[1, 2, 3]);
    node.feed(In::MemberLost(NodeId(2)));
    let header = Header { round: Round(1), ..node.header(1, ballot(0, 1)) };
    let outcome = Outcome { round: Round(1), ..node.outcome(TERMS) };
    let answer = Message::Abandon(RefusalReason::MemberLost { node: NodeId(2) });
    assert_eq!(sent(&node.feed(In::Frame { header, message: Message::Propose(outcome) })), (NodeId(1), &answer));
}

#[test]
fn a_leader_passes_on_why_the_run_ended_and_says_it_once() {
    let reason = RefusalReason::StreamBroken { node: NodeId(2) };
    let abandon = Message::Abandon(reason);
    let mut leader = Fixture::new(1, &[1, 2, 3]);
    leader.contribute_and_hold();
    assert_eq!(sends(&leader.frame(2, ballot(0, 1), abandon.clone()), &abandon), 2, "to every other member");
    assert!(leader.frame(2, ballot(0, 1), abandon.clone()).is_empty(), "no echo");
    let mut member = Fixture::new(3, &[1, 2, 3]);
    member.contribute_and_hold();
    let effects = member.frame(2, ballot(0, 1), abandon.clone());
    assert_eq!(sends(&effects, &abandon), 0);
    assert!(matches!(effects.last(), Some(Effect::Fail(RoundError::StreamBroken { .. }))));
}

#[test]
fn a_leader_that_holds_everything_names_who_has_not_prepared() {
    let mut leader = Fixture::new(1, &[1, 2, 3]);
    leader.contribute_and_hold();
    leader.frame(2, ballot(0, 1), Message::Prepared);
    let mut out = Outbox::default();
    leader.machine.handle(In::Tick, Instant(1_000), &mut out);
    let effects = out.take();
    let [Effect::Discard(_), Effect::Fail(RoundError::TimedOut { waiting_for, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*waiting_for, [NodeId(3)]);
    assert_eq!(leader.machine.next_deadline(), None);
}

#[test]
fn a_learning_rate_that_is_not_a_number_equals_itself() {
    let terms = Terms { gamma: f32::NAN, ..TERMS };
    assert_eq!(terms, terms);
    assert_ne!(terms, TERMS);
}
