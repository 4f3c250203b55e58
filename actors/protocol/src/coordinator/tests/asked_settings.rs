//! Changes of settings that members ask for.

use super::*;
use crate::changeable::{ChangedSettings, SettingValues};
use crate::coordinator::events::MemberOrder;
use std::num::NonZeroU64;

const ALL: [u64; 3] = [1, 2, 3];

fn tau(steps: u64) -> SettingValues {
    SettingValues {
        tau: NonZeroU64::new(steps),
        ..SettingValues::default()
    }
}

fn grace_ms(grace: u64) -> SettingValues {
    SettingValues {
        grace_ms: NonZeroU64::new(grace),
        ..SettingValues::default()
    }
}

fn ask(number: u32, values: SettingValues) -> Message {
    Message::AskSettings { number, values }
}

/// The leader of three nodes whose bootstrap is decided.
fn leader() -> Bench {
    let mut leader = Bench::of(&ALL, 1);
    leader.lead(SPEC);
    leader.hear_all(&[2, 3], &leader.vote());
    leader
}

fn spec(kind: RoundKind, step: u64) -> RoundSpec {
    RoundSpec {
        kind,
        step: Step(step),
        ..SPEC
    }
}

/// Leads a round to its decision; returns what its entry says of settings.
fn decide(leader: &mut Bench, kind: RoundKind, step: u64) -> ChangedSettings {
    leader.lead(spec(kind, step));
    let effects = leader.hear_all(&[2, 3], &leader.vote());
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Apply { .. }))
    );
    leader.machine.changed_settings()
}

#[test]
fn what_a_member_asks_for_is_decided_by_the_next_entry_with_parameters() {
    let mut leader = leader();
    let effects = leader.hear(2, ask(0, tau(12)));
    let ordered = Effect::Ordered(NodeId(2), MemberOrder::Settings(tau(12)));
    assert!(effects.contains(&ordered), "{effects:?}");
    let again = leader.hear(2, ask(0, tau(12)));
    assert!(!again.contains(&ordered), "{again:?}");
    let gradients = decide(&mut leader, RoundKind::Gradients, 1);
    assert_eq!(gradients, ChangedSettings::default());
    let average = decide(&mut leader, RoundKind::Average, 1);
    let expected = ChangedSettings {
        number: 1,
        round: Round(2),
        values: tau(12),
    };
    assert_eq!(average, expected);
    assert_eq!(decide(&mut leader, RoundKind::Average, 2), expected);
    // Another setting leaves it as it is.
    leader.hear(3, ask(1, grace_ms(5)));
    let both = decide(&mut leader, RoundKind::Average, 3);
    assert_eq!((both.number, both.values), (2, tau(12).or(grace_ms(5))));
}

#[test]
fn an_order_is_void_once_an_entry_changed_settings() {
    let mut leader = leader();
    leader.hear(2, ask(0, tau(12)));
    assert_eq!(decide(&mut leader, RoundKind::Average, 1).number, 1);
    // Sent before, and on its way for long.
    leader.hear(3, ask(0, tau(99)));
    // From a future that nobody can know.
    leader.hear(3, ask(3, tau(98)));
    let after = decide(&mut leader, RoundKind::Average, 2);
    assert_eq!((after.number, after.values), (1, tau(12)));
}

#[test]
fn of_two_orders_at_once_the_last_that_the_leader_heard_counts() {
    let mut leader = leader();
    leader.hear(2, ask(0, tau(12)));
    leader.hear(3, ask(0, tau(24)));
    assert_eq!(decide(&mut leader, RoundKind::Average, 1).values, tau(24));
}

#[test]
fn nothing_changes_where_the_value_is_in_force() {
    let mut leader = leader();
    leader.hear(2, ask(0, tau(12)));
    decide(&mut leader, RoundKind::Average, 1);
    leader.hear(3, ask(1, tau(12)));
    assert_eq!(decide(&mut leader, RoundKind::Average, 2).number, 1);
}

/// Node 2 of three, which holds all data of the bootstrap, and the bootstrap's entry.
fn member_that_asks() -> (Bench, Outcome) {
    let (mut member, outcome) = Bench::ready(&ALL, 2, |_| {});
    let effects = member.tell(In::AskSettings(tau(12)));
    for other in [1, 3] {
        assert!(
            says!(effects, to other, Message::AskSettings { number: 0, .. }),
            "{effects:?}"
        );
    }
    (member, outcome)
}

#[test]
fn who_asks_tells_everybody_again_until_it_is_decided() {
    let (mut member, bootstrap) = member_that_asks();
    let effects = member.hear_decision(1, bootstrap.clone());
    assert!(
        says!(effects, to 3, Message::AskSettings { number: 0, .. }),
        "{effects:?}"
    );
    for (decided, number, again) in [(grace_ms(5), 1, true), (tau(12), 2, false)] {
        let values = decided.or(member.machine.changed_settings().values);
        let effects = take_part_in(&mut member, &bootstrap, number, values);
        let told = says!(effects, to 3, Message::AskSettings { .. });
        assert_eq!(told, again, "{decided}: {effects:?}");
    }
}

#[test]
fn who_asks_gives_way_to_another_value_that_is_decided() {
    let (mut member, bootstrap) = member_that_asks();
    member.hear_decision(1, bootstrap.clone());
    let effects = take_part_in(&mut member, &bootstrap, 1, tau(24));
    assert!(!says!(effects, Message::AskSettings { .. }), "{effects:?}");
    assert_eq!(member.machine.changed_settings().values, tau(24));
}

/// The member takes part in the round under way, which node 1 leads and which decides settings.
fn take_part_in(
    member: &mut Bench,
    bootstrap: &Outcome,
    number: u32,
    values: SettingValues,
) -> Vec<Effect> {
    let round = member.place().round;
    let spec = spec(RoundKind::Average, round.0);
    let opened = member.contribute_to(spec);
    let changed = ChangedSettings {
        number,
        round,
        values,
    };
    let proposed = Outcome {
        round,
        spec,
        contributors: ids(&ALL),
        changed,
        ..bootstrap.clone()
    };
    let mut attempted = member.hear_attempt(1, &proposed, &ALL);
    attempted.extend(opened);
    member.hold_all(&attempted);
    let entry = Outcome {
        published: member.root(),
        ..proposed
    };
    member.hear_decision(1, entry)
}

/// The leader dies before it makes an entry: the next leader knows the order too.
#[test]
fn the_next_leader_decides_what_the_dead_one_was_asked_for() {
    let (mut member, bootstrap) = Bench::ready(&ALL, 2, |_| {});
    member.hear_decision(1, bootstrap);
    member.hear(3, ask(0, tau(12)));
    let spec = spec(RoundKind::Average, 1);
    member.contribute_to(spec);
    member.tell(In::PeerUp(NodeId(3)));
    let prepares = member.lose(&[1], true);
    assert!(says!(prepares, to 3, Message::Prepare), "{prepares:?}");
    member.hear_promise(3, None, Some(contribution_to(spec)));
    let proposed = member.proposed.clone().unwrap();
    assert_eq!(proposed.changed.values, tau(12));
}

/// A joiner was configured with what the run began with.
#[test]
fn a_joiner_takes_what_is_in_force() {
    let mut joiner = Bench::outside(view(&[1, 2, 3]), 3, |_| {});
    joiner.contribute();
    let changed = ChangedSettings {
        number: 4,
        round: Round(3),
        values: tau(12),
    };
    let parent = Outcome {
        round: Round(5),
        changed,
        ..founded(&view(&[1, 2]), 1)
    };
    joiner.hear_admission(parent, 1, &[1, 2, 3]);
    assert_eq!(joiner.machine.changed_settings(), changed);
}

#[test]
fn rounds_wait_as_long_as_the_changed_grace_says() {
    let mut leader = leader();
    leader.hear(2, ask(0, grace_ms(5)));
    decide(&mut leader, RoundKind::Average, 1);
    let spec = spec(RoundKind::Average, 2);
    leader.contribute_to(spec);
    leader.hear(2, Message::Contribute(contribution_to(spec)));
    let effects = leader.wait(5_000);
    assert_eq!(
        leader.attempted(&effects),
        Some(vec![1, 2, 3]),
        "{effects:?}"
    );
    let draft = leader.proposed.clone().unwrap();
    assert_eq!(draft.contributors, ids(&[1, 2]), "without the straggler");
}
