//! Two histories that meet, told by hand to one member.
#![allow(clippy::unwrap_used)]

use super::super::tests::{
    Bench, FIRST, again, asked, at, formed, member, peer, resigns, says_to, view,
};
use super::*;
use crate::forks::Fork;
use crate::ident::Epoch;
use crate::membership::In;

/// A view in which some nodes are in their next incarnation.
fn view_with(epoch: u64, ids: &[u64], started_again: &[u64]) -> View {
    let start = |id: &u64| {
        if started_again.contains(id) {
            again(*id)
        } else {
            member(*id)
        }
    };
    View::new(Epoch(epoch), ids.iter().map(start).collect()).unwrap()
}

/// In the first history, in another bootstrap's, or in a fork that began with the round before.
fn standing(lineage: Lineage, round: u64, view: View) -> MemberState {
    let forked = lineage != FIRST && lineage.is_akin(FIRST) && round > 0;
    let fork = Fork {
        round: Round(round.saturating_sub(1)),
        contributors: 1,
        lineage,
    };
    MemberState {
        forks: if forked { vec![fork] } else { Vec::new() },
        ..at(lineage, round, view)
    }
}

/// Node `id` as a member of the first history in round 7, and then of what that became.
fn was_member(id: u64, before: View, after: &MemberState) -> Bench {
    let mut node = Bench::member(id, before);
    node.decide(after.clone());
    node
}

/// Effects of a node when `sender` introduces itself with its member state.
fn hears(node: &mut Bench, sender: u64, theirs: MemberState) -> Vec<Effect> {
    node.meet(&peer(sender, Some(theirs)))
}

fn loses(effects: &[Effect]) -> bool {
    let is = |effect: &Effect| matches!(effect, Effect::Lost { .. });
    effects.iter().any(is)
}

/// The other clusters of which a person is told.
fn others(effects: &[Effect]) -> usize {
    let is = |effect: &&Effect| matches!(effect, Effect::OtherCluster { .. });
    effects.iter().filter(is).count()
}

/// Nodes 2 and 3 went on with a new start of node 1, which sits lowest again or not; node 3 has yet
/// to hear of it.
#[test]
fn a_member_that_has_not_yet_heard_under_which_lineage_it_goes_on_is_one_all_the_same() {
    for (ids, next) in [
        (&[1, 2, 3][..], 9),
        (&[1, 2, 3], 6),
        (&[2, 3], 6),
        (&[2, 3], 9),
    ] {
        let before = view(1, &[1, 2, 3, 4, 5]);
        let after = standing(Lineage(1 << 64 | next), 8, view_with(2, ids, &[1]));
        let mut node = was_member(2, before.clone(), &after);
        let effects = hears(&mut node, 3, standing(FIRST, 7, before.clone()));
        assert!(
            !resigns(&effects) && !loses(&effects),
            "{ids:?} {next}: {effects:?}"
        );
        // The other way round: what the last round made of this node's history is on its way here.
        let effects = hears(&mut Bench::member(3, before), 2, after);
        assert!(!resigns(&effects) && !loses(&effects), "{effects:?}");
    }
}

/// Node 3 died and its new start joined a cluster that was founded apart, before a round was
/// decided here without it.
#[test]
fn a_node_that_moved_to_a_cluster_founded_apart_does_not_make_the_two_one() {
    let mut node = Bench::member(2, view(1, &[1, 2, 3]));
    let theirs = standing(Lineage(2 << 64 | 5), 40, view_with(9, &[3, 4, 5], &[3]));
    let effects = hears(&mut node, 4, theirs.clone());
    assert_eq!((resigns(&effects), others(&effects)), (false, 1));
    let effects = hears(&mut node, 5, theirs);
    assert_eq!(others(&effects), 0, "each is told of once");
}

#[test]
fn a_fork_goes_on_where_nobody_decided_its_first_round_and_ends_where_a_quorum_did() {
    let forked = |from: u64| MemberState {
        round: Round(40),
        ..standing(
            Lineage(1 << 64 | 5),
            from + 1,
            view_with(9, &[3, 4, 5], &[3]),
        )
    };
    let mut behind = Bench::member(2, view(1, &[1, 2, 3]));
    assert!(resigns(&hears(&mut behind, 4, forked(7))));
    let mut ahead = Bench::member(2, view(1, &[1, 2, 3]));
    let effects = hears(&mut ahead, 4, forked(6));
    assert!(!resigns(&effects));
    assert_eq!(
        says_to(&effects, 4),
        [ahead.machine.standing()],
        "the sender gives way once it knows"
    );
}

/// Two forks of one entry: the members of both sides choose the same.
#[test]
fn of_two_sides_of_survivors_one_gives_way() {
    let fork = |lineage: u128, contributors: u32, ids: &[u64]| {
        let lineage = Lineage(1 << 64 | lineage);
        MemberState {
            forks: vec![Fork {
                round: Round(7),
                contributors,
                lineage,
            }],
            ..at(lineage, 20, view(2, ids))
        }
    };
    let few = fork(9, 2, &[1, 2]);
    let many = fork(8, 3, &[3, 4, 5]);
    let before = view(1, &[1, 2, 3, 4, 5]);
    let mut one = was_member(1, before.clone(), &few);
    let mut other = was_member(3, before, &many);
    assert!(resigns(&hears(&mut one, 3, many)));
    assert!(!resigns(&hears(&mut other, 1, few)));
}

/// A node that waits to be admitted: to the first history, by its member 1.
fn joiner(brings: Option<Lineage>) -> Bench {
    let mut node = Bench::with(4, 2, |settings| {
        settings.join = true;
        settings.lineage = brings;
    });
    node.synchronize();
    node.up(1);
    let cluster = MemberState {
        dead: vec![NodeId(2), NodeId(3)],
        ..standing(FIRST, 7, view(1, &[1, 2, 3]))
    };
    assert_eq!(asked(&hears(&mut node, 1, cluster)), [1]);
    node
}

#[test]
fn who_was_admitted_under_a_new_lineage_does_not_ask_again() {
    let mut node = joiner(None);
    let admitted = standing(Lineage(1 << 64 | 9), 8, view(2, &[1, 4]));
    assert_eq!(asked(&hears(&mut node, 1, admitted)), [0u64; 0]);
}

#[test]
fn who_waits_while_its_history_goes_on_under_a_new_lineage_is_not_refused_for_it() {
    let mut node = joiner(Some(FIRST));
    let next = standing(Lineage(1 << 64 | 9), 8, view(2, &[1]));
    let effects = hears(&mut node, 1, next.clone());
    assert!(node.machine.life.has_asked_for(&next), "{effects:?}");
    let mut cluster = was_member(1, view(1, &[1, 2, 3]), &next);
    cluster.up(4);
    for effect in effects {
        if let Effect::Send {
            frame: crate::wire::Frame::V1 { header, message },
            ..
        } = effect
        {
            cluster.feed(In::Frame { header, message });
        }
    }
    assert!(cluster.machine.life.candidates.contains_key(&NodeId(4)));
}

/// Two runs were bootstrapped apart, and one of them decides no more.
#[test]
fn a_joiner_turns_to_the_run_that_goes_on() {
    let mut node = joiner(None);
    node.up(5);
    let other = |round: u64| at(Lineage(2 << 64 | 9), round, view(1, &[5]));
    assert_eq!(asked(&hears(&mut node, 5, other(6))), [0u64; 0]);
    assert_eq!(asked(&hears(&mut node, 5, other(8))), [5]);
}

/// Node 3 was taken for dead when the outcome was proposed, and had introduced itself again by the
/// time it was decided.
#[test]
fn who_is_left_out_is_told_so_also_if_it_stands_in_the_same_history() {
    let both = view(5, &[1, 2, 3]);
    let mut node = Bench::member(1, both.clone());
    node.connect(&peer(3, Some(at(FIRST, 8, both.clone()))));
    let effects = node.decide(at(FIRST, 9, view(6, &[1, 2])));
    assert_eq!(says_to(&effects, 3), [], "it may have heard so itself");
    let effects = hears(&mut node, 3, at(FIRST, 8, both));
    assert_eq!(says_to(&effects, 3), [node.machine.standing()]);
}

#[test]
fn who_hears_that_the_others_went_on_without_it_gives_its_place_up() {
    let mut node = Bench::member(3, view(5, &[1, 2, 3]));
    for (theirs, leaves) in [
        (at(FIRST, 20, view(6, &[1, 2, 3])), false),
        (at(FIRST, 6, view(6, &[1, 2])), false),
        (at(FIRST, 20, view(6, &[1, 2])), true),
    ] {
        assert_eq!(resigns(&hears(&mut node, 1, theirs)), leaves);
    }
}

/// Node 3 gives the founding of nodes 2 and 3 up for that of node 1.
fn gives_its_bootstrap_up() -> (Bench, Lineage, Lineage) {
    let mut node = Bench::new(3, 2);
    node.synchronize();
    node.up(1);
    node.up(2);
    let theirs = Lineage(1 << 64 | 20);
    let better = Lineage(1 << 64 | 10);
    let found = |founder: u64, lineage: Lineage| Message::Bootstrap {
        view: view(1, &[founder, 3]),
        lineage,
    };
    assert!(formed(&node.hear(&peer(2, None), found(2, theirs))));
    let effects = node.hear(&peer(1, None), found(1, better));
    assert!(effects.contains(&Effect::Resign(GivesUp::ForBootstrap)));
    // It may have helped to decide the first one, so it says of none that it stands there, and
    // enters none.
    let adopted = node.machine.adopted.as_ref().map(|(_, lineage)| *lineage);
    assert_eq!(
        (&node.machine.life.standing, adopted, formed(&effects)),
        (&None, Some(better), false)
    );
    (node, theirs, better)
}

#[test]
fn another_bootstrap_is_entered_once_the_first_one_is_given_up() {
    let (mut node, _, better) = gives_its_bootstrap_up();
    let effects = node.feed(In::Resigned(true));
    let enters =
        |effect: &Effect| matches!(effect, Effect::Formed { lineage, .. } if *lineage == better);
    assert!(effects.iter().any(enters), "{effects:?}");
}

#[test]
fn who_waits_in_another_bootstrap_is_told_that_one_is_decided() {
    let (mut node, theirs, better) = gives_its_bootstrap_up();
    node.feed(In::Resigned(false));
    hears(&mut node, 1, standing(better, 0, view(1, &[1, 3])));
    let decided = at(theirs, 1, view(1, &[2, 3]));
    let effects = node.decide(decided.clone());
    assert!(says_to(&effects, 1).contains(&Some(decided)), "{effects:?}");
}

#[test]
fn a_bootstrap_that_was_decided_before_it_was_given_up_stands() {
    for answered_first in [false, true] {
        let (mut node, theirs, _) = gives_its_bootstrap_up();
        let decided = at(theirs, 1, view(1, &[2, 3]));
        let mut events = vec![In::Decided(decided.clone()), In::Resigned(false)];
        if answered_first {
            events.reverse();
        }
        events.into_iter().for_each(|event| _ = node.feed(event));
        assert_eq!(
            node.machine.life.standing,
            Some(decided),
            "answered first: {answered_first}"
        );
    }
}

#[test]
fn what_was_decided_before_a_resignation_was_heard_is_void() {
    let mut node = Bench::member(3, view(5, &[1, 2, 3]));
    let without = standing(FIRST, 20, view(6, &[1, 2]));
    assert!(resigns(&hears(&mut node, 1, without)));
    node.decide(at(FIRST, 9, view(5, &[1, 2, 3])));
    assert_eq!(
        node.machine.life.standing, None,
        "its coordinator is about to leave that history"
    );
    node.feed(In::Resigned(true));
    let admitted = at(FIRST, 22, view(7, &[1, 2, 3]));
    node.decide(admitted.clone());
    assert_eq!(node.machine.life.standing, Some(admitted));
}
