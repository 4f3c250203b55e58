//! Members that live and do not contribute.

use super::*;
use crate::coordinator::{MISSES_WAITED_FOR, Straggler};

const ALL: [u64; 4] = [1, 2, 3, 4];

/// The leader of four nodes whose bootstrap is decided.
fn leader() -> Bench {
    let mut leader = Bench::of(&ALL, 1);
    leader.lead(SPEC);
    leader.hear_all(&[2, 3], &leader.vote());
    leader
}

fn spec(step: u64) -> RoundSpec {
    RoundSpec {
        step: Step(step),
        ..FIRST
    }
}

fn grace(leader: &Bench) -> u64 {
    Settings::simulated(identity(&leader.view, 1)).grace.0
}

/// The round at `step`, to which node 4 does not contribute, up to the decision. Returns whether
/// it waited for the grace, and all effects.
fn round_without_4(leader: &mut Bench, step: u64) -> (bool, Vec<Effect>) {
    let mut effects = leader.contribute_to(spec(step));
    effects.extend(leader.hear_all(&[2, 3], &Message::Contribute(contribution_to(spec(step)))));
    // A leader that waits for everybody attempts the round with everybody at once.
    let everybody = Some((ALL.to_vec(), ALL.to_vec()));
    let waited = newest(leader, &effects) == everybody;
    if waited {
        effects.extend(leader.wait(grace(leader)));
    }
    let without = Some((vec![1, 2, 3, 4], vec![1, 2, 3]));
    assert_eq!(newest(leader, &effects), without, "step {step}");
    let held = leader.hold_all(&effects);
    effects.extend(held);
    effects.extend(leader.hear_all(&[2, 3, 4], &leader.is_ready()));
    effects.extend(leader.hear_all(&[2, 3], &leader.vote()));
    (waited, effects)
}

fn stragglers(effects: &[Effect]) -> Option<&[Straggler]> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Stragglers(list) => Some(&**list),
        _ => None,
    })
}

#[test]
fn the_leader_says_whom_a_round_waits_for() {
    let mut leader = leader();
    let mut other = self::leader();
    assert_eq!(leader.machine.awaited(), [], "nobody contributed");
    leader.contribute_to(spec(1));
    assert_eq!(leader.machine.awaited(), [2, 3, 4].map(NodeId));
    let all = Message::Contribute(contribution_to(spec(1)));
    leader.hear_all(&[2, 3], &all);
    assert_eq!(leader.machine.awaited(), [NodeId(4)]);
    leader.wait(grace(&leader));
    assert_eq!(leader.machine.awaited(), [], "the grace is over");
    other.hear_all(&[2, 3, 4], &all);
    assert_eq!(other.machine.awaited(), [NodeId(1)], "its own training");
}

#[test]
fn after_a_few_misses_in_a_row_no_round_waits_for_a_member() {
    let mut leader = leader();
    for step in 1..=u64::from(MISSES_WAITED_FOR) {
        let (waited, effects) = round_without_4(&mut leader, step);
        assert!(waited, "step {step}");
        let [straggler] = stragglers(&effects).unwrap() else {
            panic!("{effects:?}");
        };
        assert_eq!(straggler.node, NodeId(4));
        assert_eq!(straggler.missed, u32::try_from(step).unwrap());
        assert_eq!(straggler.step, Step(1), "it has not finished this one");
        assert_eq!(straggler.is_waited_for, step < u64::from(MISSES_WAITED_FOR));
    }
    for step in 4..40 {
        assert!(!round_without_4(&mut leader, step).0, "step {step}");
    }
    assert_eq!(
        leader.machine.view().unwrap().size(),
        4,
        "it stays a member"
    );
}

#[test]
fn a_member_whose_training_goes_on_is_waited_for_and_then_contributes_again() {
    let mut leader = leader();
    for step in 1..10 {
        round_without_4(&mut leader, step);
    }
    let effects = leader.hear(4, Message::GoesOn);
    let [straggler] = stragglers(&effects).unwrap() else {
        panic!("{effects:?}");
    };
    assert!(straggler.is_waited_for);
    assert_eq!(straggler.step, Step(10));
    let mut effects = leader.contribute_to(spec(10));
    let all = Message::Contribute(contribution_to(spec(10)));
    effects.extend(leader.hear_all(&[2, 3], &all));
    effects.extend(leader.hear(4, all));
    let everybody = Some((ALL.to_vec(), ALL.to_vec()));
    assert_eq!(newest(&leader, &effects), everybody);
    let held = leader.hold_all(&effects);
    effects.extend(held);
    effects.extend(leader.hear_all(&[2, 3, 4], &leader.is_ready()));
    effects.extend(leader.hear_all(&[2, 3], &leader.vote()));
    assert_eq!(stragglers(&effects), Some(&[][..]));
    assert!(round_without_4(&mut leader, 11).0, "counted anew");
}

/// A node whose steps take longer than the grace goes on after every round, and misses the next.
#[test]
fn rounds_wait_more_and_more_rarely_for_a_member_that_goes_on_and_is_always_late() {
    let mut leader = leader();
    let mut waits = Vec::new();
    for step in 1..100 {
        if round_without_4(&mut leader, step).0 {
            waits.push(step);
        }
        leader.hear(4, Message::GoesOn);
    }
    assert_eq!(waits, [1, 2, 3, 4, 7, 12, 21, 38, 71]);
}

#[test]
fn a_contribution_that_comes_in_time_counts_without_being_waited_for() {
    let mut leader = leader();
    for step in 1..6 {
        round_without_4(&mut leader, step);
    }
    let contribution = Message::Contribute(contribution_to(spec(6)));
    let mut effects = leader.contribute_to(spec(6));
    effects.extend(leader.hear_all(&[2, 4], &contribution));
    assert_eq!(newest(&leader, &effects), None, "node 3 is waited for");
    effects.extend(leader.hear(3, contribution));
    assert_eq!(
        newest(&leader, &effects),
        Some((ALL.to_vec(), ALL.to_vec()))
    );
}

/// Each member knows who is not waited for, so its contribution waits for the leader's attempt
/// instead of a plain one that is thrown away.
#[test]
fn a_member_moves_no_data_before_the_attempt_without_a_straggler_is_made() {
    let mut member = Bench::of(&ALL, 2);
    let opened = member.contribute();
    let founded = founded(&member.view, 1);
    member.hear_attempt(1, &founded, &ALL);
    member.hold_all(&opened);
    member.hear_decision(
        1,
        Outcome {
            published: member.root(),
            ..founded
        },
    );
    for step in 1..=u64::from(MISSES_WAITED_FOR) + 1 {
        let effects = member.contribute_to(spec(step));
        let plain = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Open(_)));
        assert_eq!(plain, step <= u64::from(MISSES_WAITED_FOR), "step {step}");
        let place = Place {
            attempt: 1,
            ..member.place()
        };
        let outcome = Outcome {
            contributors: ids(&[1, 2, 3]),
            published: Digest::default(),
            ..Outcome::of_all(LINEAGE, place.round, spec(step), member.view.clone())
        };
        let effects = member.hear_attempt_at(1, place, &outcome, &ALL);
        member.hold_all(&effects);
        member.hear_decision(
            1,
            Outcome {
                published: member.root(),
                ..outcome
            },
        );
        assert_eq!(member.place().round, place.round.next());
    }
}

#[test]
fn a_member_that_missed_a_round_says_when_its_training_goes_on() {
    let mut member = Bench::of(&ALL, 4);
    let opened = member.contribute();
    let founded = founded(&member.view, 1);
    member.hear_attempt(1, &founded, &ALL);
    member.hold_all(&opened);
    member.hear_decision(
        1,
        Outcome {
            published: member.root(),
            ..founded
        },
    );
    let effects = member.tell(In::TrainingGoesOn);
    assert!(!says!(effects, Message::GoesOn), "it missed nothing");
    let place = Place {
        attempt: 1,
        ..member.place()
    };
    let outcome = Outcome {
        contributors: ids(&[1, 2, 3]),
        ..Outcome::of_all(LINEAGE, place.round, spec(1), member.view.clone())
    };
    let effects = member.hear_attempt_at(1, place, &outcome, &ALL);
    member.hold_all(&effects);
    let effects = member.hear_decision(
        1,
        Outcome {
            published: member.root(),
            ..outcome
        },
    );
    assert!(
        !says!(effects, Message::GoesOn),
        "its training has not come by"
    );
    let effects = member.tell(In::TrainingGoesOn);
    for id in [1, 2, 3] {
        assert!(says!(effects, to id, Message::GoesOn), "{effects:?}");
    }
}
