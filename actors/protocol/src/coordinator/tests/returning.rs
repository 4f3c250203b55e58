//! The place that a node returns to when nobody is left to admit it.

use super::*;
use crate::coordinator::GivesUp;
use crate::policy::Quorum;

/// Node 3, which resigned after the bootstrap, and the bootstrap's outcome.
fn resigned(quorum: Quorum) -> (Bench, Outcome) {
    let (mut node, bootstrap) = Bench::ready(&[1, 2, 3], 3, |settings| settings.quorum = quorum);
    node.hear_decision(1, bootstrap.clone());
    node.hear_decision(2, bootstrap.clone());
    assert_eq!(node.place().round, Round(1));
    node.tell(In::Resign(GivesUp::Membership));
    (node, bootstrap)
}

/// The round in which the node stands once all the others have ended.
fn stands_in(node: &mut Bench) -> Option<Round> {
    let effects = node.tell(In::Return { ended: true });
    effects.iter().find_map(|effect| match effect {
        Effect::Stands(standing) => Some(standing.round),
        _ => None,
    })
}

#[test]
fn who_resigned_returns_to_its_place() {
    for quorum in [Quorum::Majority, Quorum::Survivors] {
        let (mut node, _) = resigned(quorum);
        assert_eq!(stands_in(&mut node), Some(Round(1)), "{quorum:?}");
    }
}

/// The others decided round 1 with node 3 as a member, and then heard that it had resigned.
#[test]
fn who_never_held_an_entry_does_not_stand_with_it() {
    for (quorum, expected) in [
        (Quorum::Majority, None),
        // It still has what it held before.
        (Quorum::Survivors, Some(Round(1))),
    ] {
        let (mut node, bootstrap) = resigned(quorum);
        let missed = Outcome {
            round: Round(1),
            ..bootstrap
        };
        node.hear_admission(missed, 1, &[1, 2, 3]);
        assert_eq!(node.place().round, Round(2));
        assert_eq!(stands_in(&mut node), expected, "{quorum:?}");
    }
}

/// The others decided round 1 without node 3, which had resigned before it heard of that.
#[test]
fn a_survivor_that_resigned_and_follows_the_others_keeps_what_it_holds() {
    let (mut node, bootstrap) = resigned(Quorum::Survivors);
    let without = Outcome {
        round: Round(1),
        view: next_view(&node.view, view(&[1, 2]).members()),
        ..bootstrap
    };
    let place = Place {
        round: Round(2),
        epoch: without.view.epoch(),
        ..node.place()
    };
    for teller in [1, 2] {
        let told = Place {
            round: Round(1),
            ..place
        };
        node.hear_at(teller, told, decision(without.clone()));
    }
    assert_ne!(node.place().round, Round(1));
    assert_eq!(stands_in(&mut node), Some(Round(1)));
}
