//! What survivors do without a quorum: how long they wait, and what they go on with.

use super::streams::{FORK_AFTER, LINEAGE, Leader, attempted, contribution, founded, said, says};
use crate::coordinator::{Effect, In, Outcome, Settings, Voter};
use crate::ident::{NodeId, Term};
use crate::machine::Place;
use crate::policy::{OnQuorumLoss, Quorum};
use crate::view::Member;
use crate::wire::Message;

const IDS: [u64; 5] = [1, 2, 3, 4, 5];

fn survivor() -> Leader {
    let mut node = Leader::with(&IDS, 2, |settings| Settings {
        quorum: Quorum::Survivors,
        ..settings
    });
    node.contribute();
    node
}

fn forks(effects: &[Effect]) -> bool {
    says(effects, |message| matches!(message, Message::Fork { .. }))
}

#[test]
fn survivors_wait_for_a_quorum_unless_the_others_are_known_to_have_ended() {
    let mut node = survivor();
    let silent: Vec<Effect> = [1, 4, 5]
        .into_iter()
        .flat_map(|id| node.lose(id, false))
        .collect();
    assert!(!forks(&silent), "they may live: {silent:?}");
    node.now += FORK_AFTER.0 - 1;
    assert!(!forks(&node.tell(In::Tick)));
    node.now += 1;
    assert!(forks(&node.tell(In::Tick)));

    let mut node = survivor();
    [1, 4, 5]
        .into_iter()
        .for_each(|id| _ = node.lose(id, false));
    assert!(!forks(&node.lose(1, true)) && !forks(&node.lose(4, true)));
    assert!(forks(&node.lose(5, true)), "nobody is left to wait for");
}

#[test]
fn survivors_fork_unless_a_quorum_answers() {
    for answering in [&[][..], &[3u64], &[3, 4]] {
        let mut node = survivor();
        [1, 4, 5]
            .into_iter()
            .for_each(|id| _ = node.lose(id, false));
        node.now += FORK_AFTER.0 - 1;
        node.tell(In::Tick);
        node.tell(In::Back(NodeId(4)));
        for id in answering {
            node.hear(
                *id,
                Message::Promise {
                    accepted: None,
                    floor: Term::default(),
                    contributed: Some(contribution()),
                },
            );
        }
        node.now += 10 * FORK_AFTER.0;
        // Voters that live and say nothing may have gone on in another history.
        assert_eq!(
            forks(&node.tell(In::Tick)),
            answering.len() < 2,
            "{answering:?}"
        );
    }
}

/// Nodes 2 and 4 fork at a time, each with the same others.
#[test]
fn of_two_forks_that_begin_the_one_of_the_higher_term_goes_on() {
    let mut node = survivor();
    [1, 3, 5].into_iter().for_each(|id| _ = node.lose(id, true));
    let base = node.machine.place();
    node.lose(4, false);
    node.now += FORK_AFTER.0;
    assert!(forks(&node.tell(In::Tick)) || node.machine.place().lineage != LINEAGE);
    let own = node.machine.place().lineage;
    let ours = node.term();
    let voters: Vec<Voter> = node
        .view
        .members()
        .iter()
        .filter(|member| [2, 4].contains(&member.id.0))
        .map(Voter::from)
        .collect();
    let fork = |counter: u64| {
        let place = Place {
            term: Term {
                counter,
                node: NodeId(4),
            },
            ..base
        };
        (
            place,
            Message::Fork {
                lineage: LINEAGE.parted(99),
                ordered: false,
                voters: voters.clone(),
            },
        )
    };
    let (place, lower) = fork(ours.counter - 1);
    let refused = node.hear_at(4, place, lower);
    assert!(
        says(&refused, |message| matches!(message, Message::Overtaken)),
        "{refused:?}"
    );
    assert_eq!(node.machine.place().lineage, own);
    let (place, higher) = fork(ours.counter + 1);
    let promised = node.hear_at(4, place, higher);
    assert!(
        says(&promised, |message| matches!(
            message,
            Message::Promise { .. }
        )),
        "{promised:?}"
    );
    assert_eq!(node.machine.place().lineage, LINEAGE.parted(99));
}

#[test]
fn who_was_not_reached_when_a_fork_began_takes_no_part_in_it() {
    let mut node = survivor();
    [1, 5].into_iter().for_each(|id| _ = node.lose(id, true));
    node.lose(4, false);
    node.now += FORK_AFTER.0;
    assert!(forks(&node.tell(In::Tick)));
    let begun = node.hear_promise(3, true);
    assert_eq!(attempted(&node, &begun), Some(vec![2, 3]));
    // It is in the history before, and follows nothing of this one.
    node.tell(In::Back(NodeId(4)));
    let alone = node.lose(3, true);
    assert_eq!(
        attempted(&node, &alone),
        None,
        "node 2 goes on alone: {alone:?}"
    );
}

/// What survivors led by node 2 ask votes for, or attempt, with the promises of `promised`, each of
/// which accepted `accepted`. Everybody else is known to have ended.
fn survivors_go_on(accepted: &Outcome, promised: &[u64]) -> (Leader, Vec<Effect>) {
    let mut node = survivor();
    IDS.iter()
        .filter(|id| **id != 2 && !promised.contains(id))
        .for_each(|id| _ = node.lose(*id, true));
    let accepted = Some((
        Term {
            counter: 0,
            node: NodeId(1),
        },
        accepted.clone(),
    ));
    let promise = Message::Promise {
        accepted,
        floor: Term::default(),
        contributed: Some(contribution()),
    };
    let effects = promised
        .iter()
        .flat_map(|id| node.hear(*id, promise.clone()))
        .collect();
    (node, effects)
}

fn asked_for(effects: &[Effect]) -> Option<Outcome> {
    said(effects, |message| {
        if let Message::Accept(Some(entry)) = message {
            Some(entry.clone())
        } else {
            None
        }
    })
}

#[test]
fn fewer_than_a_quorum_go_on_with_what_may_be_chosen_in_a_history_of_their_own() {
    let outcome = founded(&crate::view::tests::view(&IDS), NodeId(1));
    for promised in [&[3u64][..], &[3, 4]] {
        let (_, effects) = survivors_go_on(&outcome, promised);
        let entry = asked_for(&effects).unwrap();
        assert!(entry.has_the_data_of(&outcome));
        // The others may have decided something else in the history that all were in.
        let quorum = promised.len() + 1 > 2;
        assert_eq!(entry.lineage == LINEAGE, quorum, "{promised:?}");
        let voters: Vec<u64> = entry.voters().ids().map(|id| id.0).collect();
        assert_eq!(
            voters,
            if quorum { IDS.to_vec() } else { vec![2, 3] },
            "in a fork only its voters vote"
        );
    }
}

#[test]
fn survivors_do_not_go_on_with_an_outcome_whose_data_none_of_them_holds() {
    // Nodes 2 and 3 leave with the outcome.
    let outcome = founded(&crate::view::tests::view(&[1, 4, 5]), NodeId(1));
    let (node, effects) = survivors_go_on(&outcome, &[3]);
    assert_eq!(asked_for(&effects), None);
    assert_eq!(attempted(&node, &effects), Some(vec![2, 3]));
    assert_ne!(
        node.machine.place().lineage,
        LINEAGE,
        "others may have gone on with it"
    );
    let outcome = founded(&crate::view::tests::view(&[1, 3, 5]), NodeId(1));
    let (_, effects) = survivors_go_on(&outcome, &[3]);
    assert!(
        asked_for(&effects).unwrap().has_the_data_of(&outcome),
        "node 3 holds it"
    );
}

#[test]
fn a_majority_goes_on_without_a_quorum_only_if_it_may_and_all_others_were_started_again() {
    for (on_quorum_loss, returned, expected) in [
        (OnQuorumLoss::Wait, &[1u64, 3][..], false),
        (OnQuorumLoss::Fork, &[1], false),
        (OnQuorumLoss::Fork, &[1, 3], true),
    ] {
        let mut node = Leader::with(&[1, 2, 3], 2, |settings| Settings {
            on_quorum_loss,
            ..settings
        });
        node.contribute();
        let mut effects: Vec<Effect> = [1, 3]
            .into_iter()
            .flat_map(|id| node.lose(id, true))
            .collect();
        let again = |id: &u64| {
            let member = node.view.member(NodeId(*id)).unwrap();
            Member {
                incarnation: crate::ident::Incarnation(member.incarnation.0 + 1),
                ..member.clone()
            }
        };
        let members = returned.iter().map(again).collect();
        effects.extend(node.tell(In::Joiners {
            epoch: node.view.epoch(),
            members,
        }));
        node.now += 2 * FORK_AFTER.0;
        effects.extend(node.tell(In::Tick));
        assert_eq!(
            node.machine.place().lineage != LINEAGE,
            expected,
            "{on_quorum_loss:?} {returned:?}: {effects:?}"
        );
    }
}
