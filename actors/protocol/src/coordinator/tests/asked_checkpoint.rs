//! Checkpoints beside the schedule.

use super::*;
use crate::algorithm::{Algorithm, Base, BufferStrategy, Outer, OuterOptimizer, WireType};
use crate::changeable::SettingValues;
use crate::checkpoint::Points;
use crate::coordinator::events::MemberOrder;
use std::num::NonZeroU64;

const ALL: [u64; 3] = [1, 2, 3];
/// An average after each second step, the slow step after each fourth.
const POINT: u64 = 4;

fn points() -> Option<Points> {
    Points::of(&Algorithm {
        base: Base::LocalSgd { frequency: 2 },
        outer: Some(Outer {
            frequency: POINT,
            optimizer: OuterOptimizer::SlowMo {
                alpha: 1.0,
                beta: 0.5,
            },
            sharded: true,
            average: true,
        }),
        average_every: None,
        buffers: BufferStrategy::Maintain,
        round_wire: WireType::Float32,
    })
}

/// The leader of three nodes whose bootstrap is decided.
fn leader() -> Bench {
    let mut leader = Bench::with(&ALL, 1, |settings| settings.checkpoints = points());
    leader.lead(SPEC);
    leader.hear_all(&[2, 3], &leader.vote());
    leader
}

fn spec(kind: RoundKind, steps: u64) -> RoundSpec {
    RoundSpec {
        kind,
        step: Step(steps - 1),
        ..SPEC
    }
}

/// Leads a round to its decision; returns its entry.
fn decide(leader: &mut Bench, spec: RoundSpec) -> Outcome {
    leader.lead(spec);
    let effects = leader.hear_all(&[2, 3], &leader.vote());
    let applied = effects.into_iter().find_map(|effect| match effect {
        Effect::Apply { outcome, .. } => Some(outcome),
        _ => None,
    });
    applied.unwrap()
}

#[test]
fn what_a_member_asks_for_is_made_once_after_the_round_that_follows() {
    let mut leader = leader();
    assert!(!decide(&mut leader, spec(RoundKind::Slow, POINT)).checkpoint);
    let effects = leader.hear(2, Message::AskCheckpoint);
    assert!(
        effects.contains(&Effect::CheckpointAsked(true)),
        "{effects:?}"
    );
    let ordered = |effects: &[Effect]| {
        let by_two = Effect::Ordered(NodeId(2), MemberOrder::Checkpoint);
        effects.contains(&by_two)
    };
    assert!(ordered(&effects), "{effects:?}");
    assert!(!ordered(&leader.hear(2, Message::AskCheckpoint)), "again");
    let same = decide(&mut leader, spec(RoundKind::Slow, 2 * POINT));
    assert!(!same.checkpoint, "it was asked for in this very round");
    let average = decide(&mut leader, spec(RoundKind::Average, 2 * POINT + 2));
    assert!(!average.checkpoint, "anchors differ from parameters then");
    assert!(decide(&mut leader, spec(RoundKind::Slow, 3 * POINT)).checkpoint);
    assert!(!decide(&mut leader, spec(RoundKind::Slow, 4 * POINT)).checkpoint);
}

#[test]
fn who_asks_tells_every_member() {
    let mut leader = leader();
    let effects = leader.tell(In::AskCheckpoint);
    assert!(says!(effects, to 2, Message::AskCheckpoint));
    assert!(says!(effects, to 3, Message::AskCheckpoint));
    decide(&mut leader, spec(RoundKind::Average, 2));
    assert!(decide(&mut leader, spec(RoundKind::Slow, POINT)).checkpoint);
}

/// A node leaves after the next exact average. If all of them do, that must not be one whose state
/// cannot be kept.
#[test]
fn all_members_leave_together_with_a_checkpoint() {
    let mut leader = leader();
    for node in [2, 3] {
        leader.leaves_after_contributing(node);
    }
    leader.leaves_after_contributing(1);
    let stay = decide(&mut leader, spec(RoundKind::Average, 2));
    assert_eq!((stay.view.size(), stay.checkpoint), (3, false));
    let last = decide(&mut leader, spec(RoundKind::Slow, POINT));
    assert_eq!((last.view.size(), last.checkpoint), (1, true), "{last:?}");
}

/// The last member is ordered to leave when the entry without the others is composed already.
#[test]
fn the_last_member_leaves_with_a_checkpoint_too() {
    for kind in [RoundKind::Average, RoundKind::Slow] {
        let mut leader = leader();
        for node in [2, 3] {
            leader.leaves_after_contributing(node);
        }
        leader.lead(spec(kind, POINT));
        leader.leaves_after_contributing(1);
        let effects = leader.hear_all(&[2, 3], &leader.vote());
        assert!(
            !effects
                .iter()
                .any(|effect| matches!(effect, Effect::Resigned(_))),
            "{kind:?}: {effects:?}"
        );
        // Alone, it leads as soon as it contributes.
        let opened = leader.contribute_to(spec(RoundKind::Slow, 2 * POINT));
        let effects = leader.hold_all(&opened);
        let last = effects.into_iter().find_map(|effect| match effect {
            Effect::Apply {
                outcome, drained, ..
            } => Some((outcome.checkpoint, drained)),
            _ => None,
        });
        assert_eq!(last, Some((true, true)), "{kind:?}");
    }
}

#[test]
fn some_members_leave_at_once() {
    let mut leader = leader();
    for node in [2, 3] {
        leader.leaves_after_contributing(node);
    }
    let average = decide(&mut leader, spec(RoundKind::Average, 2));
    assert_eq!((average.view.size(), average.checkpoint), (1, false));
}

/// An entry that changes how often checkpoints are due still follows what was due before it: for
/// that the optimizer's buffers were lent.
#[test]
fn an_entry_that_changes_the_schedule_is_the_last_of_the_one_before() {
    for (every, expected) in [(1, true), (2, false)] {
        let mut leader = Bench::with(&ALL, 1, |settings| {
            settings.checkpoints = points().map(|points| points.every(every));
        });
        leader.lead(SPEC);
        leader.hear_all(&[2, 3], &leader.vote());
        let values = SettingValues {
            tau: NonZeroU64::new(3),
            ..SettingValues::default()
        };
        leader.hear(2, Message::AskSettings { number: 0, values });
        let changes = decide(&mut leader, spec(RoundKind::Slow, POINT));
        assert_eq!((changes.changed.number, changes.checkpoint), (1, expected));
        assert!(!decide(&mut leader, spec(RoundKind::Slow, 2 * POINT)).checkpoint);
        // By the new schedule the state after this round may be kept.
        leader.hear(2, Message::AskCheckpoint);
        decide(&mut leader, spec(RoundKind::Slow, 9));
        assert!(decide(&mut leader, spec(RoundKind::Slow, 12)).checkpoint);
    }
}
