//! When a leader drops an attempt, and who is in the next one.

use super::*;
use crate::algorithm::BufferStrategy;
use crate::coordinator::Attempt;

/// Node 1 leads the round after the bootstrap, and node 9 is ready to join.
pub(super) fn admits(change: impl FnOnce(&mut Settings)) -> (Bench, Vec<Effect>) {
    let mut leader = Bench::with(&[1, 2, 3], 1, change);
    leader.lead(SPEC);
    leader.hear(2, leader.vote());
    leader.joiners(view(&[9]).members().to_vec());
    let mut effects = leader.contribute_to(FIRST);
    effects.extend(leader.hear_all(&[2, 3], &Message::Contribute(contribution_to(FIRST))));
    assert!(says!(effects, to 9, Message::Admit { .. }), "{effects:?}");
    (leader, effects)
}

#[test]
fn a_joiner_that_dies_or_takes_too_long_is_done_without() {
    for dies in [true, false] {
        let (mut leader, effects) = admits(|_| {});
        assert_eq!(
            newest(&leader, &effects),
            Some((vec![1, 2, 3, 9], vec![1, 2, 3]))
        );
        let effects = if dies {
            leader.lose(&[9], false)
        } else {
            let timeout = Settings::simulated(identity(&leader.view, 1)).round_timeout;
            leader.wait(timeout.0 / 2)
        };
        assert_eq!(
            newest(&leader, &effects),
            Some((vec![1, 2, 3], vec![1, 2, 3])),
            "dies: {dies}"
        );
    }
}

#[test]
fn a_straggler_is_closed_without_after_the_grace_and_stays_a_member() {
    let mut leader = Bench::of(&[1, 2, 3, 4], 1);
    leader.lead(SPEC);
    leader.hear_all(&[2, 3], &leader.vote());
    let mut effects = leader.contribute_to(FIRST);
    effects.extend(leader.hear_all(&[2, 3], &Message::Contribute(contribution_to(FIRST))));
    let grace = Settings::simulated(identity(&leader.view, 1)).grace;
    let waits = leader.wait(grace.0 - 1);
    assert_eq!(newest(&leader, &waits), None);
    let effects = leader.wait(1);
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 3, 4]));
    assert_eq!(
        newest(&leader, &effects),
        Some((vec![1, 2, 3, 4], vec![1, 2, 3]))
    );
}

/// Under a term only its first attempt admits anybody: who joins must be ready for it.
#[test]
fn within_a_term_the_participants_only_become_fewer() {
    let mut leader = Bench::leader(&[1, 2, 3, 4]);
    leader.hear_all(&[2, 3, 4], &Message::Contribute(contribution()));
    let effects = leader.lose(&[4], false);
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 3]));
    leader.tell(In::Back(NodeId(4)));
    let effects = leader.hear(2, Message::Broken(NodeId(3)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 3]));
}

#[test]
fn only_those_that_are_ready_for_the_newest_attempt_count() {
    let mut leader = Bench::leader(&[1, 2, 3]);
    leader.hear_all(&[2, 3], &Message::Contribute(contribution()));
    let first = leader.place();
    let begun = leader.hear(2, Message::Broken(NodeId(3)));
    leader.hold_all(&begun);
    let ready = leader.is_ready();
    leader.hear(2, ready.clone());
    let late = leader.hear_at(3, first, ready.clone());
    assert!(!says!(late, Message::Accept { .. }), "{late:?}");
    assert!(says!(leader.hear(3, ready), Message::Accept { .. }));
}

/// Node 2 is ready for an attempt of node 1, which dies. A leader of a higher term may be bound to
/// that attempt until a quorum knows that its term is open.
#[test]
fn data_that_is_ready_is_kept_until_a_quorum_knows_of_a_higher_term() {
    let discards =
        |effects: Vec<Effect>, attempt: Attempt| effects.contains(&Effect::Discard(attempt));
    // It leads itself.
    let (mut leader, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let first = Attempt::at(&leader.place());
    assert!(!discards(leader.lose(&[1], false), first));
    let opened = leader.hear_promise(3, None, Some(contribution()));
    assert!(says!(opened, Message::Open) && !discards(opened, first));
    assert!(discards(leader.hear(3, Message::Opened), first));
    // It follows node 3.
    let (mut member, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
    assert!(!discards(
        member.hear_under(3, term(1, 3), Message::Prepare),
        first
    ));
    assert!(!discards(member.hear(3, Message::Open), first));
    assert!(discards(member.hear(3, Message::Closed), first));
}

#[test]
fn a_third_attempt_waits_until_the_data_of_earlier_ones_may_go() {
    let (mut member, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let mut is_ready_for = |counter, leader| {
        let place = Place {
            term: term(counter, leader),
            attempt: 1,
            ..member.place()
        };
        let begun = member.hear_attempt_at(leader, place, &outcome, &[1, 2, 3]);
        says!(member.hold_all(&begun), to leader, Message::Ready(_))
    };
    assert!(is_ready_for(1, 3));
    assert!(!is_ready_for(2, 1));
    let closed = member.hear(1, Message::Closed);
    assert!(says!(closed, to 1, Message::Ready(_)), "{closed:?}");
}

#[test]
fn a_joiner_is_ready_once_it_has_the_buffers_of_the_lowest_contributor() {
    let mut joiner = Bench::outside(view(&[1, 2, 3]), 3, |settings| {
        settings.copies_buffers = Some(BufferStrategy::Maintain)
    });
    joiner.tell(In::Contribute {
        round: Round::BOOTSTRAP,
        spec: SPEC,
        samples: None,
        rates: vec![],
        buffers: 5,
    });
    let parent = founded(&view(&[1, 2]), 1);
    let begun = joiner.hear_admission(parent, 1, &[1, 2, 3]);
    let held = joiner.hold_all(&begun);
    assert!(!says!(held, Message::Ready(_)), "{held:?}");
    let attempt = Attempt::at(&joiner.place());
    let other = joiner.tell(In::BuffersHeld(attempt, NodeId(2)));
    assert!(!says!(other, Message::Ready(_)), "{other:?}");
    let ready = joiner.tell(In::BuffersHeld(attempt, NodeId(1)));
    assert!(says!(ready, Message::Ready(_)), "{ready:?}");
}

/// The request of a joiner may cross its admission, which it could not follow then. What it said
/// before it asked again does not count any more.
#[test]
fn a_joiner_that_asks_again_is_admitted_again_and_counts_once_it_says_again_that_it_is_ready() {
    let (mut leader, begun) = admits(|_| {});
    leader.hold_all(&begun);
    leader.hear(9, leader.is_ready());
    let again = leader.tell(In::JoinAsked(NodeId(9)));
    assert!(says!(again, to 9, Message::Admit { .. }), "{again:?}");
    let others = leader.hear_all(&[2, 3], &leader.is_ready());
    assert!(!says!(others, Message::Accept { .. }), "{others:?}");
    let ready = leader.hear(9, leader.is_ready());
    assert!(says!(ready, Message::Accept { .. }), "{ready:?}");
    // Whoever is in no attempt waits for the next one.
    let (mut leader, _) = admits(|_| {});
    let other = leader.tell(In::JoinAsked(NodeId(8)));
    assert!(!says!(other, Message::Admit { .. }), "{other:?}");
}

#[test]
fn a_joiner_that_is_admitted_again_says_again_that_it_is_ready() {
    let mut joiner = Bench::outside(view(&[1, 2, 3]), 3, |_| {});
    joiner.contribute_to(FIRST);
    let parent = founded(&view(&[1, 2]), 1);
    let begun = joiner.hear_admission(parent.clone(), 1, &[1, 2, 3]);
    let held = joiner.hold_all(&begun);
    assert!(says!(held, to 1, Message::Ready(_)), "{held:?}");
    let again = joiner.hear_admission(parent, 1, &[1, 2, 3]);
    assert!(says!(again, to 1, Message::Ready(_)), "{again:?}");
}

#[test]
fn whoever_joins_is_told_the_decision() {
    let (mut leader, begun) = admits(|_| {});
    leader.hold_all(&begun);
    let asked = leader.hear_all(&[2, 3, 9], &leader.is_ready());
    assert!(
        says!(
            asked,
            Message::Accept {
                entry: Entry::Held(_),
                ..
            }
        ),
        "{asked:?}"
    );
    let decided = leader.hear(2, leader.vote());
    for node in [2, 3, 9] {
        assert!(
            says!(decided, to node, Message::Decide { .. }),
            "{node}: {decided:?}"
        );
    }
}

#[test]
fn who_was_started_again_is_gone_and_who_leaves_is_in_no_next_view() {
    let mut leader = Bench::leader(&[1, 2, 3, 4]);
    leader.hear_all(&[2, 3, 4], &Message::Contribute(contribution()));
    let returned = again(&leader.view, 2);
    leader.leaves(4);
    let effects = leader.joiners(vec![returned]);
    assert_eq!(leader.attempted(&effects), Some(vec![1, 3, 4]));
    assert_eq!(
        newest(&leader, &effects),
        Some((vec![1, 3], vec![1])),
        "one node contributes to a bootstrap"
    );
}

#[test]
fn an_attempt_that_needs_a_contribution_waits_for_the_training() {
    let mut member = Bench::of(&[1, 2], 2);
    let outcome = Outcome {
        spec: FIRST,
        contributors: ids(&[1, 2]),
        ..founded(&member.view, 1)
    };
    let opens = |effect: &Effect| matches!(effect, Effect::Open(_));
    let early = member.hear_attempt(1, &outcome, &[1, 2]);
    assert!(!early.iter().any(opens), "{early:?}");
    assert!(member.contribute_to(FIRST).iter().any(opens));
}

#[test]
fn state_may_arrive_before_the_attempt_that_moves_it() {
    let slow = RoundSpec {
        kind: RoundKind::Slow,
        ..FIRST
    };
    let (mut member, bootstrap) = Bench::ready(&[1, 2, 3], 2, |_| {});
    member.hear_decision(1, bootstrap.clone());
    let begun = member.contribute_to(slow);
    let attempt = opened(&begun).attempt;
    for sender in [1, 3] {
        member.tell(In::StateHeld(attempt, NodeId(sender)));
    }
    member.hold_all(&begun);
    let outcome = Outcome {
        round: Round(1),
        spec: slow,
        contributors: ids(&[1, 2, 3]),
        ..bootstrap
    };
    let ready = member.hear_attempt(1, &outcome, &[1, 2, 3]);
    let moves = |effect: &Effect| match effect {
        Effect::Publish(publication) => publication.moves_to(NodeId(2)).count() > 0,
        _ => false,
    };
    assert!(ready.iter().any(moves), "{ready:?}");
    assert!(says!(ready, Message::Ready(_)), "{ready:?}");
}

/// Node 5 dies with its shards, then node 4: each loss is counted once.
#[test]
fn lost_momentum_is_counted_once_and_adds_up() {
    let mut leader = Bench::with(&[1, 2, 3, 4, 5], 1, |settings| settings.replicas = 0);
    leader.lead(SPEC);
    leader.hear_all(&[2, 3], &leader.vote());
    let mut lost = Vec::new();
    let mut alive = vec![2, 3, 4, 5];
    for (step, dies) in [(1, Some(5)), (2, Some(4)), (3, None)] {
        leader.lose(&Vec::from_iter(dies), true);
        alive.retain(|id| Some(*id) != dies);
        let spec = RoundSpec {
            step: Step(step),
            ..FIRST
        };
        let mut effects = leader.contribute_to(spec);
        effects.extend(leader.hear_all(&alive, &Message::Contribute(contribution_to(spec))));
        let counts = messages(&effects).filter_map(|(.., message)| match message {
            Message::Attempt(draft) => Some(draft.momentum_lost),
            _ => None,
        });
        lost.extend(counts.last());
        leader.hold_all(&effects);
        leader.hear_all(&alive, &leader.is_ready());
        leader.hear_all(&alive, &leader.vote());
        assert_eq!(leader.place().round, Round(step + 1));
    }
    let [first, second, third] = lost[..] else {
        panic!("{lost:?}")
    };
    assert!(0 < first && first < second && second == third, "{lost:?}");
}
