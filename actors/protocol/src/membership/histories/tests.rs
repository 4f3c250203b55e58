//! Two histories that meet, told by hand to one member.
#![allow(clippy::unwrap_used)]

use super::super::tests::machine;
use super::*;
use crate::coordinator::GivesUp;
use crate::forks::Fork;
use crate::ident::{Epoch, Incarnation};
use crate::machine::Machine;
use crate::membership::In;
use crate::membership::tests::at;
use crate::model::ModelSize;
use crate::time::Instant;
use crate::view::Member;
use crate::wire::Frame;
use std::net::SocketAddr;

const FIRST: Lineage = Lineage(1 << 64 | 7);

/// A view of nodes with the incarnations that their machines have, but for those that are started
/// `again`.
fn view(epoch: u64, ids: &[u64], again: &[u64]) -> View {
    let address = |id: &u64| SocketAddr::from(([127, 0, 0, 1], 7000 + *id as u16));
    let start = |id: &u64| Incarnation(id + 100 + u64::from(again.contains(id)));
    let member = |id: &u64| Member {
        id: NodeId(*id),
        incarnation: start(id),
        address: address(id),
        devices: 1,
    };
    View::new(Epoch(epoch), ids.iter().map(member).collect()).unwrap()
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
        ..at(lineage, Round(round), view)
    }
}

/// Node `id` as a member of the first history in round 7, and then of what that became.
fn member(id: u64, before: View, after: &MemberState) -> Membership {
    let mut node = machine(id, 2, "");
    let mut out = Outbox::default();
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    node.handle(
        In::Decided(at(FIRST, Round(7), before)),
        Instant(0),
        &mut out,
    );
    node.handle(In::Decided(after.clone()), Instant(0), &mut out);
    node
}

/// What a node does when `peer` introduces itself with where it stands.
fn hears(node: &mut Membership, peer: u64, theirs: MemberState) -> Vec<Effect> {
    let mut sender = machine(peer, 2, "");
    sender.model = Some(ModelSize::of(23));
    let dead = theirs
        .view
        .members()
        .iter()
        .filter(|member| theirs.dead.contains(&member.id));
    dead.for_each(|member| _ = sender.life.declare_dead(member.id, member.incarnation));
    sender.life.standing = Some(theirs);
    let header = sender.settings.identity.header(sender.place());
    let mut out = Outbox::default();
    node.handle(
        In::Frame {
            header,
            message: Box::new(sender.hello()),
        },
        Instant(1),
        &mut out,
    );
    out.take()
}

fn gives_up(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Resign(_)))
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
        let before = view(1, &[1, 2, 3, 4, 5], &[]);
        let after = standing(Lineage(1 << 64 | next), 8, view(2, ids, &[1]));
        let mut node = member(2, before.clone(), &after);
        let effects = hears(&mut node, 3, standing(FIRST, 7, before.clone()));
        assert!(!gives_up(&effects), "{ids:?} {next}: {effects:?}");
        assert!(
            !effects
                .iter()
                .any(|effect| matches!(effect, Effect::Lost { .. })),
            "{ids:?} {next}: {effects:?}"
        );
        // The other way round: what the last round made of this node's history is on its way here.
        let mut late = member(3, before.clone(), &standing(FIRST, 7, before));
        let effects = hears(&mut late, 2, after);
        assert!(
            !gives_up(&effects)
                && !effects
                    .iter()
                    .any(|effect| matches!(effect, Effect::Lost { .. })),
            "{effects:?}"
        );
    }
}

/// Node 3 died and its new start joined a cluster that was founded apart, before a round was
/// decided here without it.
#[test]
fn a_node_that_moved_to_a_cluster_founded_apart_does_not_make_the_two_one() {
    let ours = standing(FIRST, 7, view(1, &[1, 2, 3], &[]));
    let mut node = member(2, ours.view.clone(), &ours);
    let theirs = standing(Lineage(2 << 64 | 5), 40, view(9, &[3, 4, 5], &[3]));
    let effects = hears(&mut node, 4, theirs);
    assert!(!gives_up(&effects), "{effects:?}");
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::OtherCluster { .. })),
        "{effects:?}"
    );
}

#[test]
fn a_fork_goes_on_where_nobody_decided_its_first_round_and_ends_where_a_quorum_did() {
    let ours = standing(FIRST, 7, view(1, &[1, 2, 3], &[]));
    let forked = |from: u64| MemberState {
        round: Round(40),
        ..standing(Lineage(1 << 64 | 5), from + 1, view(9, &[3, 4, 5], &[3]))
    };
    let mut behind = member(2, ours.view.clone(), &ours);
    assert!(gives_up(&hears(&mut behind, 4, forked(7))));
    let mut ahead = member(2, ours.view.clone(), &ours);
    assert!(!gives_up(&hears(&mut ahead, 4, forked(6))));
}

/// A node that waits to be admitted: to the first history, by its member 1.
fn joiner(brings: Option<Lineage>) -> Membership {
    let mut node = machine(4, 2, "");
    node.settings.join = true;
    node.settings.lineage = brings;
    let mut out = Outbox::default();
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    node.handle(
        In::PeerUp(NodeId(1), Incarnation(101)),
        Instant(0),
        &mut out,
    );
    hears(
        &mut node,
        1,
        MemberState {
            dead: vec![NodeId(2), NodeId(3)],
            ..standing(FIRST, 7, view(1, &[1, 2, 3], &[]))
        },
    );
    assert!(
        node.life
            .has_asked_for(&standing(FIRST, 7, view(1, &[1], &[])))
    );
    node
}

#[test]
fn who_was_admitted_under_a_new_lineage_does_not_ask_again() {
    let mut node = joiner(None);
    let admitted = standing(Lineage(1 << 64 | 9), 8, view(2, &[1, 4], &[]));
    let effects = hears(&mut node, 1, admitted);
    let joins = |effect: &&Effect| format!("{effect:?}").contains("Join");
    assert!(!effects.iter().any(|effect| joins(&effect)), "{effects:?}");
}

#[test]
fn who_waits_while_its_history_goes_on_under_a_new_lineage_is_not_refused_for_it() {
    let mut node = joiner(Some(FIRST));
    let next = standing(Lineage(1 << 64 | 9), 8, view(2, &[1], &[]));
    let effects = hears(&mut node, 1, next.clone());
    assert!(node.life.has_asked_for(&next), "{effects:?}");
    let mut cluster = member(1, view(1, &[1, 2, 3], &[]), &next);
    let mut out = Outbox::default();
    cluster.handle(
        In::PeerUp(NodeId(4), Incarnation(104)),
        Instant(1),
        &mut out,
    );
    out.take();
    for effect in effects {
        if let Effect::Send {
            frame: crate::wire::Frame::V1 { header, message },
            ..
        } = effect
        {
            cluster.handle(In::Frame { header, message }, Instant(2), &mut out);
        }
    }
    let effects = out.take();
    assert!(
        !format!("{effects:?}").contains("OtherLineage"),
        "{effects:?}"
    );
    assert!(
        cluster.life.candidates.contains_key(&NodeId(4)),
        "{effects:?}"
    );
}

/// Node 3 was taken for dead when the outcome was proposed, and had introduced itself again by the
/// time it was decided.
#[test]
fn who_is_left_out_is_told_so_also_if_it_stands_in_the_same_history() {
    let both = view(5, &[1, 2, 3], &[]);
    let mut node = member(1, both.clone(), &standing(FIRST, 8, both.clone()));
    let mut out = Outbox::default();
    node.handle(
        In::PeerUp(NodeId(3), Incarnation(103)),
        Instant(1),
        &mut out,
    );
    hears(&mut node, 3, standing(FIRST, 8, both));
    node.handle(
        In::Decided(at(FIRST, Round(9), view(6, &[1, 2], &[]))),
        Instant(2),
        &mut out,
    );
    let told = |effect: &Effect| matches!(effect, Effect::Send { to: NodeId(3), frame: Frame::V1 { message, .. } } if matches!(**message, Message::Hello(_)));
    let after = out.take();
    assert!(after.iter().any(told), "{after:?}");
}

/// Node 3 gives the founding of nodes 2 and 3 up for that of node 1.
fn gives_its_bootstrap_up() -> (Membership, Lineage) {
    let mut node = machine(3, 2, "");
    let mut out = Outbox::default();
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    let theirs = Lineage(1 << 64 | 20);
    let better = Lineage(1 << 64 | 10);
    for (founder, lineage) in [(2, theirs), (1, better)] {
        for peer in [1, 2] {
            node.handle(
                In::PeerUp(NodeId(peer), Incarnation(peer + 100)),
                Instant(0),
                &mut out,
            );
        }
        let sender = machine(founder, 2, "");
        let found = Message::Bootstrap {
            view: view(1, &[founder, 3], &[]),
            lineage,
        };
        let header = sender.settings.identity.header(sender.place());
        node.handle(
            In::Frame {
                header,
                message: Box::new(found),
            },
            Instant(1),
            &mut out,
        );
    }
    let effects = out.take();
    assert!(
        effects.contains(&Effect::Resign(GivesUp::ForBootstrap)),
        "{effects:?}"
    );
    // It may have helped to decide the first one, so it says of none that it stands there, and
    // enters none.
    assert_eq!(
        (
            node.life.standing.as_ref(),
            node.adopted.as_ref().map(|(_, lineage)| *lineage)
        ),
        (None, Some(better))
    );
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Formed { lineage, .. } if *lineage == better)),
        "{effects:?}"
    );
    (node, theirs)
}

#[test]
fn another_bootstrap_is_entered_once_the_first_one_is_given_up() {
    let (mut node, _) = gives_its_bootstrap_up();
    let mut out = Outbox::default();
    node.handle(In::Resigned(true), Instant(2), &mut out);
    let effects = out.take();
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Formed { lineage: Lineage(better), .. } if *better == 1 << 64 | 10)),
        "{effects:?}"
    );
}

#[test]
fn who_waits_in_another_bootstrap_is_told_that_one_is_decided() {
    let (mut node, theirs) = gives_its_bootstrap_up();
    let mut out = Outbox::default();
    node.handle(In::Resigned(false), Instant(2), &mut out);
    hears(
        &mut node,
        1,
        standing(Lineage(1 << 64 | 10), 0, view(1, &[1, 3], &[])),
    );
    node.handle(
        In::Decided(at(theirs, Round(1), view(1, &[2, 3], &[]))),
        Instant(3),
        &mut out,
    );
    let told = |effect: &Effect| matches!(effect, Effect::Send { to: NodeId(1), frame: Frame::V1 { message, .. } } if matches!(&**message, Message::Hello(hello) if hello.standing.as_ref().is_some_and(|standing| standing.round == Round(1))));
    let effects = out.take();
    assert!(effects.iter().any(told), "{effects:?}");
}

#[test]
fn a_bootstrap_that_was_decided_before_it_was_given_up_stands() {
    for answered_first in [false, true] {
        let (mut node, theirs) = gives_its_bootstrap_up();
        let mut out = Outbox::default();
        let decided = In::Decided(at(theirs, Round(1), view(1, &[2, 3], &[])));
        let mut events = vec![decided, In::Resigned(false)];
        if answered_first {
            events.reverse();
        }
        events
            .into_iter()
            .for_each(|event| node.handle(event, Instant(2), &mut out));
        let standing = node
            .life
            .standing
            .as_ref()
            .map(|standing| (standing.lineage, standing.round));
        assert_eq!(
            standing,
            Some((theirs, Round(1))),
            "answered first: {answered_first}"
        );
    }
}

#[test]
fn what_was_decided_before_a_resignation_was_heard_is_void() {
    let before = view(5, &[1, 2, 3], &[]);
    let mut node = member(3, before.clone(), &standing(FIRST, 8, before.clone()));
    assert!(gives_up(&hears(
        &mut node,
        1,
        standing(FIRST, 20, view(6, &[1, 2], &[]))
    )));
    let mut out = Outbox::default();
    let late = In::Decided(at(FIRST, Round(9), before));
    node.handle(late, Instant(2), &mut out);
    assert_eq!(
        node.life.standing, None,
        "its coordinator is about to leave that history"
    );
    node.handle(In::Resigned(true), Instant(3), &mut out);
    node.handle(
        In::Decided(at(FIRST, Round(22), view(7, &[1, 2, 3], &[]))),
        Instant(4),
        &mut out,
    );
    assert_eq!(
        node.life.standing.as_ref().map(|standing| standing.round),
        Some(Round(22))
    );
}
