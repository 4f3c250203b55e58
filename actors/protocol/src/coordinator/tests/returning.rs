//! The place that a node returns to when nobody is left to admit it.

use super::*;
use crate::coordinator::{GivesUp, VOTES_WAIT};
use crate::policy::Quorum;
use crate::sound::Unsound;

/// Node 3, which resigned after the bootstrap, and the bootstrap's outcome.
fn resigned(quorum: Quorum) -> (Bench, Outcome) {
    resigned_with(|settings| settings.quorum = quorum)
}

fn resigned_with(change: impl FnOnce(&mut Settings)) -> (Bench, Outcome) {
    let (mut node, bootstrap) = Bench::ready(&[1, 2, 3], 3, change);
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

/// The others decided round 1 in two histories, of which first the one and then the other admits
/// node 3. Nobody is left of the second.
#[test]
fn who_is_admitted_again_keeps_what_it_promised() {
    for quorum in [Quorum::Majority, Quorum::Survivors] {
        let (mut node, bootstrap) = resigned(quorum);
        let one = Outcome {
            round: Round(1),
            ..bootstrap
        };
        let other = Outcome {
            lineage: LINEAGE.parted(99),
            ..one.clone()
        };
        node.hear_admission(one.clone(), 2, &[1, 2, 3]);
        let promised = node.term();
        assert_eq!(promised, term(1, 2));
        node.hear_admission(other, 1, &[1, 2, 3]);
        assert_eq!(node.place().lineage, LINEAGE.parted(99));
        // A lower term of the round in which it promised.
        node.hear_admission(one, 1, &[1, 2, 3]);
        let place = node.place();
        assert_eq!((place.lineage, place.round), (LINEAGE, Round(2)));
        assert_eq!(node.term(), promised, "{quorum:?}");
    }
}

/// Three histories admit node 3 in turn. In the second one, node 2 asks it for a vote. Once it is
/// back there, node 2 asks it to vote for another entry.
#[test]
fn who_is_admitted_again_knows_for_which_entry_it_was_asked() {
    let (mut node, bootstrap) = resigned_with(|settings| settings.votes_wait = VOTES_WAIT);
    let of = |lineage: u128| Outcome {
        round: Round(1),
        lineage: LINEAGE.parted(lineage),
        ..bootstrap.clone()
    };
    let of_round_2 = Outcome {
        round: Round(2),
        ..of(99)
    };
    let another_of_round_2 = Outcome {
        leader: NodeId(3),
        ..of_round_2.clone()
    };
    node.hear_admission(of(99), 2, &[1, 2, 3]);
    let place = node.place();
    node.hear_at(2, place, ask(Entry::Whole(of_round_2)));
    node.hear_admission(of(98), 1, &[1, 2, 3]);
    node.hear_admission(of(99), 2, &[1, 2, 3]);
    assert_eq!(node.place(), place);
    let effects = node.hear_at(2, place, ask(Entry::Whole(another_of_round_2)));
    let lies = Effect::Unsound(NodeId(2), Unsound::TwoEntries);
    assert!(effects.contains(&lies), "{effects:?}");
}

/// A joiner, ready with the entry that admits it, hears of a later round instead of hearing that
/// its own is decided. Then all the others end.
#[test]
fn a_joiner_that_missed_its_decision_goes_on_with_the_entry_that_it_holds() {
    for admitted_again in [true, false] {
        let members = view(&[1, 2, 3]);
        let mut joiner = Bench::outside(members, 3, |settings| settings.quorum = Quorum::Survivors);
        joiner.contribute_to(FIRST);
        let bootstrap = founded(&view(&[1, 2]), 1);
        let begun = joiner.hear_admission(bootstrap.clone(), 1, &[1, 2, 3]);
        let held = joiner.hold_all(&begun);
        assert!(says!(held, to 1, Message::Ready(_)), "{held:?}");

        let missed = Outcome {
            round: Round(1),
            view: next_view(&bootstrap.view, view(&[1, 2, 3]).members()),
            spec: FIRST,
            ..bootstrap
        };
        if admitted_again {
            joiner.hear_admission(missed, 1, &[1, 2, 3]);
            assert_eq!(joiner.place().round, Round(2));
        } else {
            let later = Outcome {
                round: Round(2),
                view: next_view(&missed.view, view(&[1, 2]).members()),
                ..missed.clone()
            };
            let place = Place {
                round: Round(2),
                epoch: missed.view.epoch(),
                ..joiner.place()
            };
            for teller in [1, 2] {
                joiner.hear_at(teller, place, decision(later.clone()));
            }
            assert_ne!(joiner.place().round, Round(1));
        }
        let effects = joiner.tell(In::Return { ended: true });
        let applied = effects.iter().find_map(|effect| match effect {
            Effect::Apply { outcome, .. } => Some(outcome.round),
            _ => None,
        });
        assert_eq!(applied, Some(Round(1)), "{effects:?}");
    }
}
