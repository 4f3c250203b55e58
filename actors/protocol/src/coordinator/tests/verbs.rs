//! Who is told what, and whose word counts: one machine, told by hand what the others say.

use super::streams::{LINEAGE, Leader, SPEC, contribution, founded, says};
use crate::coordinator::{
    Effect, In, Outcome, Recovery, RecoveryError, RoundKind, RoundSpec, Settings,
};
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round, Step, Term};
use crate::machine::Place;
use crate::policy::Quorum;
use crate::view::{Member, View};
use crate::wire::{Frame, Message};

/// The next start of a node.
fn again(view: &View, node: u64) -> Member {
    let member = view.member(NodeId(node)).unwrap();
    Member {
        incarnation: Incarnation(member.incarnation.0 + 1),
        ..member.clone()
    }
}

/// Node `node` holds all of an attempt of node 1.
fn ready(ids: &[u64], node: u64, change: impl FnOnce(Settings) -> Settings) -> (Leader, Outcome) {
    let mut member = Leader::with(ids, node, change);
    let opened = member.contribute();
    let plan = opened
        .iter()
        .find_map(|effect| {
            if let Effect::Open(plan) = effect {
                Some(plan.clone())
            } else {
                None
            }
        })
        .unwrap();
    let outcome = founded(&member.view, NodeId(1));
    member.hear_attempt(1, &outcome, ids);
    member.tell(In::Reduced(plan.attempt));
    for owner in plan.other_owners() {
        member.tell(In::ParametersHeld(plan.attempt, owner));
    }
    (member, outcome)
}

#[test]
fn survivors_that_count_on_a_node_are_followed_unless_it_voted_for_something_else() {
    let survives = |settings| Settings {
        quorum: Quorum::Survivors,
        ..settings
    };
    for (votes, follows) in [(None, true), (Some(true), true), (Some(false), false)] {
        // Nodes 2 and 3 went on without the others and finished what all were ready for.
        let (mut member, outcome) = ready(&[1, 2, 3, 4, 5], 4, survives);
        if let Some(same) = votes {
            let entry = if same {
                outcome.clone()
            } else {
                Outcome {
                    contributors: vec![NodeId(2)],
                    ..outcome.clone()
                }
            };
            member.hear_under(
                1,
                Term {
                    counter: 1,
                    node: NodeId(1),
                },
                Message::Accept(Some(entry)),
            );
        }
        let fork = LINEAGE.parted(5);
        let waiting = [1, 4, 5].map(NodeId).to_vec();
        let entry = Outcome {
            lineage: fork,
            waiting,
            leader: NodeId(2),
            ..outcome
        };
        let place = Place {
            lineage: fork,
            term: Term {
                counter: 1,
                node: NodeId(2),
            },
            ..member.machine.place()
        };
        let effects = member.hear_at(
            2,
            place,
            Message::Decide {
                entry: Some(entry),
                leaves: false,
            },
        );
        let applies = effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::Apply {
                    began_in: LINEAGE,
                    ..
                }
            )
        });
        assert_eq!(
            (applies, member.machine.place().lineage == fork),
            (follows, follows),
            "{votes:?}: {effects:?}"
        );
    }
}

#[test]
fn another_start_of_a_voter_that_joins_does_not_lead() {
    let mut member = Leader::of(&[1, 2, 3], 2);
    member.contribute();
    let returned = again(&member.view, 3);
    let members = vec![
        member.view.member(NodeId(1)).unwrap().clone(),
        member.view.member(NodeId(2)).unwrap().clone(),
        returned.clone(),
    ];
    let view = member
        .view
        .succeeded_by(Epoch(member.view.epoch().0 + 1), members)
        .unwrap();
    let outcome = Outcome {
        view,
        ..founded(&member.view, NodeId(1))
    };
    member.hear_attempt(1, &outcome, &[1, 2]);
    let term = Term {
        counter: 1,
        node: NodeId(3),
    };
    let old = member.view.clone();
    let promises = |effects: &[Effect]| {
        says(effects, |message| {
            matches!(message, Message::Promise { .. })
        })
    };
    // It may speak: the outcome that is attempted admits it.
    member.view = outcome.view;
    assert!(
        !promises(&member.hear_under(3, term, Message::Prepare)),
        "it has no vote, and leads nothing"
    );
    member.view = old;
    assert!(
        promises(&member.hear_under(3, term, Message::Prepare)),
        "the start that votes may"
    );
}

#[test]
fn joiners_hear_that_the_data_of_earlier_terms_may_go() {
    let (mut leader, outcome) = ready(&[1, 2, 3], 2, |settings| settings);
    leader.hear(
        1,
        Message::Decide {
            entry: Some(outcome),
            leaves: false,
        },
    );
    let spec = RoundSpec {
        kind: RoundKind::Slow,
        step: Step(3),
        ..SPEC
    };
    leader.tell(In::Contribute {
        round: Round(1),
        spec,
        samples: None,
        rates: vec![],
        buffers: 0,
    });
    let joiner = Member {
        id: NodeId(9),
        ..again(&leader.view, 3)
    };
    leader.tell(In::Joiners {
        epoch: leader.view.epoch(),
        members: vec![joiner],
    });
    leader.lose(1, false);
    let contributed = Some(crate::wire::ContributionNotice {
        spec,
        ..contribution()
    });
    let promise = Message::Promise {
        accepted: None,
        floor: Term::default(),
        contributed,
    };
    let told = |effects: &[Effect], wanted: fn(&Message) -> bool| {
        let is = |effect: &Effect| matches!(effect, Effect::Send { to: NodeId(9), frame: Frame::V1 { message, .. } } if wanted(message));
        effects.iter().any(is)
    };
    let begun = leader.hear(3, promise);
    assert!(
        told(&begun, |message| matches!(message, Message::Admit { .. })),
        "{begun:?}"
    );
    let closed = leader.hear(3, Message::Opened);
    assert!(
        told(&closed, |message| matches!(message, Message::Closed)),
        "{closed:?}"
    );
    // Whoever is told of the attempt later is told so too.
    let again = leader.tell(In::PeerUp(NodeId(9)));
    assert!(
        told(&again, |message| matches!(message, Message::Closed)),
        "{again:?}"
    );
}

#[test]
fn a_voter_that_was_left_out_asks_whoever_is_ahead() {
    let mut voter = Leader::of(&[1, 2, 3], 3);
    let all = crate::view::tests::view(&[1, 2, 3, 9]);
    voter.view = all;
    let place = Place {
        round: Round(7),
        term: Term {
            counter: 1,
            node: NodeId(9),
        },
        ..voter.machine.place()
    };
    let asks = |effects: &[Effect]| says(effects, |message| matches!(message, Message::Learn));
    // Node 9 joined while nobody reached node 3, and leads by now.
    assert!(asks(&voter.hear_at(9, place, Message::Prepare)));
    assert!(
        !asks(&voter.hear_at(9, place, Message::Prepare)),
        "once a round"
    );
}

#[test]
fn an_operator_names_the_history_that_goes_on_where_a_quorum_is_lost() {
    let (mut member, outcome) = ready(&[1, 2, 3], 2, |settings| settings);
    [1, 3].into_iter().for_each(|id| _ = member.lose(id, false));
    assert_eq!(
        member.machine.recovery(),
        Err(RecoveryError::NothingDecided)
    );
    member.tell(In::Back(NodeId(1)));
    member.tell(In::Back(NodeId(3)));
    member.hear(
        1,
        Message::Decide {
            entry: Some(outcome),
            leaves: false,
        },
    );
    assert_eq!(member.machine.recovery(), Err(RecoveryError::QuorumLives));
    [1, 3].into_iter().for_each(|id| _ = member.lose(id, false));
    let expected = Recovery {
        lineage: LINEAGE,
        round: Round(1),
        goes_on: vec![NodeId(2)],
        missing: vec![NodeId(1), NodeId(3)],
    };
    assert_eq!(member.machine.recovery(), Ok(expected));
    member.tell(In::Recover(Lineage(LINEAGE.0 + 1)));
    assert_eq!(
        member.machine.place().lineage,
        LINEAGE,
        "that is another history"
    );
    member.tell(In::Recover(LINEAGE));
    let place = member.machine.place();
    assert!(
        place.lineage != LINEAGE && place.lineage.is_akin(LINEAGE),
        "{place:?}"
    );
    // A history of its own needs nobody's vote, nor to be recovered.
    assert_eq!(member.machine.recovery(), Err(RecoveryError::QuorumLives));
}
