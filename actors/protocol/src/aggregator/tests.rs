//! Exchanges that run through, that are overtaken by a round, and that fail.
#![allow(clippy::panic)]

use super::*;
use crate::ident::Lineage;
use crate::view::tests::view;

fn request(step: u64, exchange: Exchange, whole_slow_step: bool) -> Request {
    let task = Task::Due(Due {
        exchange,
        whole_slow_step,
    });
    Request {
        step: Step(step),
        task,
        gamma: 0.1,
        elements: 23,
    }
}

fn feed(machine: &mut Aggregator, event: In) -> Vec<Effect> {
    let mut effects = feed_all(machine, event);
    effects.retain(|effect| *effect != Effect::TrainingGoesOn);
    effects
}

/// Like [`feed`], with what the coordinator is told.
fn feed_all(machine: &mut Aggregator, event: In) -> Vec<Effect> {
    let mut out = Outbox::default();
    machine.handle(event, Instant(0), &mut out);
    out.take()
}

fn arrive(machine: &mut Aggregator, worker: usize, request: Request) -> Vec<Effect> {
    feed(machine, In::Arrive { worker, request })
}

fn tick_at(machine: &mut Aggregator, now: Instant) -> Vec<Effect> {
    let mut out = Outbox::default();
    machine.handle(In::Tick, now, &mut out);
    out.take()
}

fn settled(step: u64, weight: f64) -> In {
    let step = Step(step);
    In::Settled { step, weight }
}

/// Checks that these effects are a single one that matches.
macro_rules! assert_only {
    ($effects:expr, $effect:pat) => {
        assert!(matches!($effects[..], [$effect]), "{:?}", $effects)
    };
}

fn gossiped(step: u64) -> In {
    In::GossipDone {
        step: Step(step),
        weight: 0.5,
        contributors: 2,
        next_step: Step(step + 1),
    }
}

fn decided(round: u64, kind: RoundKind, step: u64) -> In {
    let spec = RoundSpec {
        kind,
        step: Step(step),
        gamma: 0.1,
        elements: 23,
    };
    In::RoundDecided {
        outcome: Arc::new(Outcome::of_all(
            Lineage(1),
            Round(round),
            spec,
            view(&[1, 2]),
        )),
        drained: false,
    }
}

#[test]
fn a_round_that_overtakes_a_gossip_is_what_the_workers_get() {
    let mut machine = Aggregator::new(1, true, Span(9));
    arrive(&mut machine, 0, request(4, Exchange::Gossip, false));
    let released = feed(&mut machine, decided(3, RoundKind::Slow, 7));
    let [
        Effect::Release {
            values: Values::Decided,
            weight,
            next_step: Step(8),
            ..
        },
    ] = released[..]
    else {
        panic!("{released:?}")
    };
    assert_eq!((weight, machine.round()), (1.0, Round(4)));
    arrive(&mut machine, 0, request(8, Exchange::Gossip, false));
    assert_eq!(
        feed(&mut machine, gossiped(4)),
        [],
        "of the gossip that was overtaken"
    );
    let released = feed(&mut machine, gossiped(8));
    assert_only!(
        released,
        Effect::Release {
            values: Values::Gossiped,
            outcome: None,
            ..
        }
    );
}

#[test]
fn a_round_decided_while_nobody_waits_comes_first() {
    let mut machine = Aggregator::new(1, true, Span(9));
    feed(&mut machine, decided(3, RoundKind::Slow, 7));
    let released = arrive(&mut machine, 0, request(4, Exchange::Gossip, false));
    assert_only!(
        released,
        Effect::Release {
            values: Values::Decided,
            next_step: Step(8),
            ..
        }
    );
}

#[test]
fn a_round_decided_while_nobody_waits_outlives_an_exchange_that_fails() {
    for fails in ["missing", "disagree"] {
        let mut machine = Aggregator::new(2, true, Span(5));
        feed(&mut machine, decided(3, RoundKind::Slow, 7));
        arrive(&mut machine, 0, request(4, Exchange::Gossip, false));
        let effects = if fails == "missing" {
            tick_at(&mut machine, Instant(5))
        } else {
            arrive(&mut machine, 1, request(5, Exchange::Gossip, false))
        };
        assert_only!(effects, Effect::Missing { .. } | Effect::Disagree { .. });
        for worker in [0, 1] {
            let released = arrive(&mut machine, worker, request(4, Exchange::Gossip, false));
            let taken = matches!(
                released[..],
                [Effect::Release {
                    values: Values::Decided,
                    outcome: Some(_),
                    next_step: Step(8),
                    ..
                }]
            );
            assert_eq!(taken, worker == 1, "{released:?}");
        }
    }
}

#[test]
fn a_round_whose_whole_step_fails_is_not_handed_out_without_its_values() {
    let mut machine = Aggregator::new(1, false, Span(9));
    arrive(&mut machine, 0, request(4, Exchange::Average, true));
    let begun = feed(&mut machine, decided(0, RoundKind::Average, 4));
    assert_only!(
        begun,
        Effect::WholeStep {
            values: Values::Decided,
            ..
        }
    );
    assert_eq!(feed(&mut machine, In::Failed), []);
    let next = arrive(&mut machine, 0, request(5, Exchange::Gossip, false));
    assert_only!(next, Effect::Gossip { .. });
}

#[test]
fn a_whole_step_that_a_round_overtakes_is_not_handed_out() {
    let mut machine = Aggregator::new(1, true, Span(9));
    arrive(&mut machine, 0, request(4, Exchange::Nothing, true));
    assert_eq!(
        feed(&mut machine, decided(3, RoundKind::Average, 7)),
        [],
        "the step is let finish"
    );
    let released = feed(&mut machine, In::WholeStepDone);
    assert_only!(
        released,
        Effect::Release {
            values: Values::Decided,
            next_step: Step(8),
            ..
        }
    );
}

#[test]
fn starts_when_all_workers_arrived_and_releases_when_done() {
    let mut machine = Aggregator::new(2, true, Span(9));
    let gossip = request(4, Exchange::Gossip, true);
    assert_eq!(arrive(&mut machine, 1, gossip), []);
    let started = arrive(&mut machine, 0, gossip);
    assert_eq!(
        started,
        [Effect::Gossip {
            step: Step(4),
            round: Round(0)
        }]
    );
    assert_eq!(feed(&mut machine, gossiped(3)), [], "of another step");
    assert_eq!(
        feed(&mut machine, gossiped(4)),
        [Effect::WholeStep {
            values: Values::Gossiped,
            gamma: 0.1
        }]
    );
    let released = feed(&mut machine, In::WholeStepDone);
    let next_step = Step(5);
    let expected = Effect::Release {
        values: Values::Stepped,
        weight: 0.5,
        outcome: None,
        contributors: 2,
        next_step,
        drained: false,
    };
    assert_eq!(released, [expected]);
}

#[test]
fn workers_that_do_not_come_are_named() {
    let mut machine = Aggregator::new(3, true, Span(5));
    arrive(&mut machine, 1, request(0, Exchange::Average, false));
    assert_eq!(machine.next_deadline(), Some(Instant(5)));
    assert_eq!(
        tick_at(&mut machine, Instant(5)),
        [Effect::Missing {
            workers: vec![0, 2],
            waited: Span(5)
        }]
    );
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn workers_that_are_late_are_named_until_they_come() {
    let mut machine = Aggregator::new(3, true, Span::from_millis(9_000));
    arrive(&mut machine, 1, request(0, Exchange::Average, false));
    assert_eq!(machine.next_deadline(), Some(Instant(0).after(LATE_AFTER)));
    assert_eq!(machine.late_workers(), [0; 0]);
    assert_eq!(tick_at(&mut machine, Instant(0).after(LATE_AFTER)), []);
    assert_eq!(machine.late_workers(), [0, 2]);
    let until = Instant(0).after(Span::from_millis(9_000));
    assert_eq!(machine.next_deadline(), Some(until));
    arrive(&mut machine, 0, request(0, Exchange::Average, false));
    assert_eq!(machine.late_workers(), [2]);
    arrive(&mut machine, 2, request(0, Exchange::Average, false));
    assert_eq!(machine.late_workers(), [0; 0]);
    assert_eq!(machine.next_deadline(), None);
}

#[test]
fn an_exchange_starts_once_whoever_arrives_again() {
    let mut machine = Aggregator::new(1, true, Span(9));
    let gossip = request(4, Exchange::Gossip, false);
    assert_eq!(
        arrive(&mut machine, 7, gossip),
        [],
        "there is no such worker"
    );
    assert_eq!(arrive(&mut machine, 0, gossip).len(), 1);
    assert_eq!(arrive(&mut machine, 0, gossip), []);
}

#[test]
fn workers_that_ask_for_different_things_are_told() {
    let mut machine = Aggregator::new(2, true, Span(9));
    arrive(&mut machine, 0, request(4, Exchange::Gossip, false));
    let effects = arrive(&mut machine, 1, request(5, Exchange::Gossip, false));
    assert!(matches!(effects[..], [Effect::Disagree { worker: 1, .. }]));
}

#[test]
fn an_average_begins_when_what_is_in_flight_is_in_it() {
    let mut machine = Aggregator::new(1, true, Span(9));
    let settling = arrive(&mut machine, 0, request(4, Exchange::SlowRound, false));
    assert_eq!(
        settling,
        [Effect::Settle {
            step: Step(4),
            round: Round(0)
        }]
    );
    assert_eq!(feed(&mut machine, settled(3, 0.5)), [], "of another step");
    let spec = RoundSpec {
        kind: RoundKind::Slow,
        step: Step(4),
        gamma: 0.1,
        elements: 23,
    };
    let begun = feed(&mut machine, settled(4, 0.75));
    assert_eq!(
        begun,
        [Effect::Round {
            round: Round(0),
            spec,
            weight: 0.75
        }]
    );
    assert_eq!(feed(&mut machine, settled(4, 0.75)), [], "once");
}

#[test]
fn a_round_that_overtakes_settling_is_what_the_workers_get() {
    let mut machine = Aggregator::new(1, true, Span(9));
    arrive(&mut machine, 0, request(4, Exchange::Average, false));
    let released = feed(&mut machine, decided(3, RoundKind::Average, 7));
    assert_only!(
        released,
        Effect::Release {
            values: Values::Decided,
            next_step: Step(8),
            ..
        }
    );
    assert_eq!(feed(&mut machine, settled(4, 0.75)), []);
}

fn gradients(step: u64) -> In {
    In::Arrive {
        worker: 0,
        request: Request {
            step: Step(step),
            task: Task::Gradients,
            gamma: 0.0,
            elements: 23,
        },
    }
}

/// The kind of the outcome that was released, the step that follows, and the round.
fn released(effects: &[Effect]) -> Option<(RoundKind, Step, Round)> {
    match effects {
        [
            Effect::Release {
                values: Values::Decided,
                outcome: Some(outcome),
                next_step,
                ..
            },
        ] => Some((outcome.spec.kind, *next_step, outcome.round)),
        _ => None,
    }
}

#[test]
fn parameters_outlive_the_means_that_follow_them_and_each_mean_is_taken_at_its_step() {
    let mut machine = Aggregator::new(1, false, Span(9));
    feed(&mut machine, decided(40, RoundKind::Slow, 7));
    feed(&mut machine, decided(41, RoundKind::Gradients, 8));
    feed(&mut machine, decided(42, RoundKind::Gradients, 9));
    assert_eq!(
        feed(&mut machine, gradients(3)),
        [Effect::Unchanged],
        "gradients of parameters that are replaced"
    );
    let taken = arrive(&mut machine, 0, request(3, Exchange::Nothing, false));
    assert_eq!(
        released(&taken),
        Some((RoundKind::Slow, Step(8), Round(40)))
    );
    assert_eq!(
        released(&feed(&mut machine, gradients(8))),
        Some((RoundKind::Gradients, Step(8), Round(41)))
    );
    assert_eq!(
        released(&feed(&mut machine, gradients(9))),
        Some((RoundKind::Gradients, Step(9), Round(42)))
    );
    let contributes = feed(&mut machine, gradients(10));
    assert_only!(
        contributes,
        Effect::Round {
            round: Round(43),
            ..
        }
    );
}

#[test]
fn a_node_that_missed_too_many_means_joins_again_and_contributes_nothing_until_then() {
    let mut machine = Aggregator::new(1, false, Span(9));
    for missed in 0..MEANS_UNTAKEN_MAX as u64 {
        assert_eq!(
            feed(
                &mut machine,
                decided(5 + missed, RoundKind::Gradients, 3 + missed)
            ),
            []
        );
    }
    let last = MEANS_UNTAKEN_MAX as u64;
    assert_eq!(
        feed(
            &mut machine,
            decided(5 + last, RoundKind::Gradients, 3 + last)
        ),
        [Effect::Behind]
    );
    assert_eq!(
        feed(&mut machine, gradients(3)),
        [],
        "it would name a step that the others have behind them"
    );
    assert_eq!(
        feed(&mut machine, decided(20, RoundKind::Slow, 15)),
        [Effect::Unchanged]
    );
    let taken = arrive(&mut machine, 0, request(3, Exchange::Nothing, false));
    assert_eq!(
        released(&taken),
        Some((RoundKind::Slow, Step(16), Round(20)))
    );
    let contributes = feed(&mut machine, gradients(16));
    assert_only!(
        contributes,
        Effect::Round {
            round: Round(21),
            ..
        }
    );
}

#[test]
fn a_mean_of_a_later_step_than_the_workers_are_at_says_that_they_are_behind() {
    let mut machine = Aggregator::new(1, false, Span(9));
    let begun = feed(&mut machine, gradients(3));
    assert_only!(begun, Effect::Round { .. });
    assert_eq!(
        feed(&mut machine, decided(0, RoundKind::Gradients, 4)),
        [Effect::Behind]
    );
}

#[test]
fn a_mean_that_no_exchange_took_is_forgotten_once_its_step_is_over() {
    let mut machine = Aggregator::new(1, false, Span(9));
    feed(&mut machine, decided(5, RoundKind::Gradients, 3));
    let contributes = feed(&mut machine, gradients(4));
    assert_only!(
        contributes,
        Effect::Round {
            round: Round(6),
            ..
        }
    );
}

#[test]
fn a_mean_that_is_decided_during_a_whole_step_waits_for_its_own_exchange() {
    let mut machine = Aggregator::new(1, false, Span(9));
    arrive(&mut machine, 0, request(4, Exchange::Nothing, true));
    assert_eq!(feed(&mut machine, decided(3, RoundKind::Gradients, 5)), []);
    let stepped = feed(&mut machine, In::WholeStepDone);
    assert_only!(
        stepped,
        Effect::Release {
            values: Values::Stepped,
            outcome: None,
            next_step: Step(5),
            ..
        }
    );
    assert_eq!(
        released(&feed(&mut machine, gradients(5))),
        Some((RoundKind::Gradients, Step(5), Round(3)))
    );
}

#[test]
fn the_coordinator_hears_when_workers_take_a_round_for_which_they_did_not_wait() {
    let mut machine = Aggregator::new(1, false, Span(9));
    feed(&mut machine, decided(3, RoundKind::Slow, 7));
    let arrive = |step, exchange| In::Arrive {
        worker: 0,
        request: request(step, exchange, false),
    };
    let overdue = feed_all(&mut machine, arrive(4, Exchange::Gossip));
    assert!(overdue.contains(&Effect::TrainingGoesOn), "{overdue:?}");
    feed(&mut machine, arrive(8, Exchange::SlowRound));
    let awaited = feed_all(&mut machine, decided(4, RoundKind::Slow, 8));
    assert!(!awaited.contains(&Effect::TrainingGoesOn), "{awaited:?}");
}
