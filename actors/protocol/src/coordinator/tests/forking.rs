//! Survivors without a quorum: how long they wait, and which entry they continue with.

use super::*;
use crate::coordinator::Voter;
use crate::policy::{OnQuorumLoss, Quorum};

const IDS: [u64; 5] = [1, 2, 3, 4, 5];

fn survivor() -> Bench {
    let mut node = Bench::with(&IDS, 2, |settings| settings.quorum = Quorum::Survivors);
    node.contribute();
    node
}

fn forks(effects: &[Effect]) -> bool {
    says!(effects, Message::Fork { .. })
}

#[test]
fn survivors_wait_for_a_quorum_unless_the_others_are_known_to_have_ended() {
    let mut node = survivor();
    let silent = node.lose(&[1, 4, 5], false);
    assert!(!forks(&silent), "they may live: {silent:?}");
    assert!(!forks(&node.wait(FORK_AFTER.0 - 1)));
    assert!(forks(&node.wait(1)));

    let mut node = survivor();
    node.lose(&[1, 4, 5], false);
    assert!(!forks(&node.lose(&[1, 4], true)));
    assert!(forks(&node.lose(&[5], true)), "nobody is left to wait for");
}

#[test]
fn survivors_fork_unless_a_quorum_answers() {
    for answering in [&[][..], &[3u64], &[3, 4]] {
        let mut node = survivor();
        node.lose(&[1, 4, 5], false);
        node.wait(FORK_AFTER.0 - 1);
        node.tell(In::Back(NodeId(4)));
        for id in answering {
            node.hear_promise(*id, None, Some(contribution()));
        }
        // Voters that live and say nothing may have gone on in another history.
        assert_eq!(
            forks(&node.wait(10 * FORK_AFTER.0)),
            answering.len() < 2,
            "{answering:?}"
        );
    }
}

/// Nodes 2 and 4 fork at a time, each with the same others.
#[test]
fn of_two_forks_that_begin_the_one_of_the_higher_term_goes_on() {
    let mut node = survivor();
    node.lose(&[1, 3, 5], true);
    let base = node.place();
    node.lose(&[4], false);
    let begun = node.wait(FORK_AFTER.0);
    assert!(forks(&begun) || node.place().lineage != LINEAGE);
    let own = node.place().lineage;
    let ours = node.term();
    let voters: Vec<Voter> = node
        .view
        .members()
        .iter()
        .filter(|member| [2, 4].contains(&member.id.0))
        .map(Voter::from)
        .collect();
    let fork = Message::Fork {
        lineage: LINEAGE.parted(99),
        ordered: false,
        voters,
    };
    let place = |counter| Place {
        term: term(counter, 4),
        ..base
    };
    let refused = node.hear_at(4, place(ours.counter - 1), fork.clone());
    assert!(says!(refused, Message::Overtaken), "{refused:?}");
    assert_eq!(node.place().lineage, own);
    let promised = node.hear_at(4, place(ours.counter + 1), fork);
    assert!(says!(promised, Message::Promise { .. }), "{promised:?}");
    assert_eq!(node.place().lineage, LINEAGE.parted(99));
}

#[test]
fn who_was_not_reached_when_a_fork_began_takes_no_part_in_it() {
    let mut node = survivor();
    node.lose(&[1, 5], true);
    node.lose(&[4], false);
    assert!(forks(&node.wait(FORK_AFTER.0)));
    let begun = node.hear_promise(3, None, Some(contribution()));
    assert_eq!(node.attempted(&begun), Some(vec![2, 3]));
    // It is in the history before, and follows nothing of this one.
    node.tell(In::Back(NodeId(4)));
    let alone = node.lose(&[3], true);
    assert_eq!(
        node.attempted(&alone),
        None,
        "node 2 goes on alone: {alone:?}"
    );
}

/// Node 2 leads survivors. The nodes in `promised` promise and have accepted `accepted`; all others
/// have ended. Returns node 2 and its effects.
fn survivors_go_on(accepted: &Outcome, promised: &[u64]) -> (Bench, Vec<Effect>) {
    let mut node = survivor();
    let gone: Vec<u64> = IDS
        .into_iter()
        .filter(|id| *id != 2 && !promised.contains(id))
        .collect();
    node.lose(&gone, true);
    let accepted = Some((term(0, 1), accepted.clone()));
    let effects = promised
        .iter()
        .flat_map(|id| node.hear_promise(*id, accepted.clone(), Some(contribution())))
        .collect();
    (node, effects)
}

fn asked_for(effects: &[Effect]) -> Option<&Outcome> {
    messages(effects).find_map(|(.., message)| match message {
        Message::Accept {
            entry: Entry::Whole(entry),
            ..
        } => Some(entry),
        _ => None,
    })
}

#[test]
fn fewer_than_a_quorum_go_on_with_what_may_be_chosen_in_a_history_of_their_own() {
    let outcome = founded(&view(&IDS), 1);
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
    let outcome = founded(&view(&[1, 4, 5]), 1);
    let (node, effects) = survivors_go_on(&outcome, &[3]);
    assert_eq!(asked_for(&effects), None);
    assert_eq!(node.attempted(&effects), Some(vec![2, 3]));
    assert_ne!(
        node.place().lineage,
        LINEAGE,
        "others may have gone on with it"
    );
    let outcome = founded(&view(&[1, 3, 5]), 1);
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
        let mut node = Bench::with(&[1, 2, 3], 2, |settings| {
            settings.on_quorum_loss = on_quorum_loss
        });
        node.contribute();
        let mut effects = node.lose(&[1, 3], true);
        let returned_members = returned.iter().map(|id| again(&node.view, *id)).collect();
        effects.extend(node.joiners(returned_members));
        effects.extend(node.wait(2 * FORK_AFTER.0));
        assert_eq!(
            node.place().lineage != LINEAGE,
            expected,
            "{on_quorum_loss:?} {returned:?}: {effects:?}"
        );
    }
}

#[test]
fn a_fork_that_counts_on_another_start_of_a_member_is_refused() {
    for wrong in [false, true] {
        let mut node = survivor();
        let third = if wrong {
            again(&node.view, 4)
        } else {
            node.view.members()[3].clone()
        };
        let members = node.view.members();
        let voters = vec![
            Voter::from(&members[0]),
            Voter::from(&members[1]),
            Voter::from(&third),
        ];
        let fork = Message::Fork {
            lineage: LINEAGE.parted(99),
            ordered: false,
            voters,
        };
        let effects = node.hear_under(1, term(1, 1), fork);
        assert_eq!(
            says!(effects, Message::Promise { .. }),
            !wrong,
            "{effects:?}"
        );
    }
}

#[test]
fn an_order_to_continue_without_a_quorum_is_followed_only_where_it_is_lost() {
    for lost in [false, true] {
        let mut member = Bench::of(&[1, 2, 3, 4, 5], 2);
        member.contribute();
        if lost {
            member.lose(&[3, 4, 5], false);
        }
        let fork = LINEAGE.parted(99);
        let voters = view(&[1, 2]).members().iter().map(Voter::from).collect();
        let order = Message::Fork {
            lineage: fork,
            ordered: true,
            voters,
        };
        let effects = member.hear_under(1, term(1, 1), order);
        assert_eq!(member.place().lineage == fork, lost, "{effects:?}");
    }
}
