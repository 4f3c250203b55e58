//! Nodes that leave, and members that are lost.

use super::joining::joiner;
use super::*;

fn leaving(node: u64, contributes: bool) -> Effect {
    Effect::Leaving {
        node: NodeId(node),
        incarnation: member(node).incarnation,
        contributes,
    }
}

/// Nodes that are told that this node leaves.
fn told(effects: &[Effect]) -> Vec<u64> {
    let leaves = frames(effects).filter(|(_, message)| matches!(message, Message::Leave { .. }));
    leaves.map(|(to, _)| to).collect()
}

#[test]
fn a_node_leaves_when_all_others_left_or_died_or_the_wait_is_over() {
    let mut alone = Bench::new(1, 1);
    alone.synchronize();
    assert_eq!(alone.feed(In::Leave), [leaving(1, false), Effect::Left]);
    let last = |change: fn(&mut Bench) -> Vec<Effect>| {
        let mut node = Bench::member(1, view(4, &[1, 2, 3]));
        node.connect(&peer(2, None));
        node.dead(3, false);
        assert!(!node.feed(In::Leave).contains(&Effect::Left));
        change(&mut node).contains(&Effect::Left)
    };
    assert!(last(|node| node.dead(2, false)));
    assert!(last(|node| node.disconnect(2, true)));
    assert!(!last(|node| node.disconnect(2, false)), "it may come back");
    assert!(last(
        |node| node.hear(&peer(2, None), Message::Leave { contributes: false })
    ));
    assert!(!last(|node| node.tick_after(Span(LEAVE_WAIT_MAX.0 - 1))));
    assert!(last(|node| node.tick_after(LEAVE_WAIT_MAX)));
}

#[test]
fn a_node_that_leaves_does_not_ask_to_be_admitted_again() {
    for leave in [In::Leave, In::Drain] {
        let mut node = joiner(&[1, 2]);
        let without = at(FIRST, 9, view(6, &[1, 2]));
        node.decide(at(FIRST, 8, view(5, &[1, 2, 9])));
        node.feed(leave);
        // A faster member tells of the round that leaves this node out before this node's own
        // coordinator does.
        let mut effects = node.meet(&peer(1, Some(without.clone())));
        effects.extend(node.decide(without));
        assert_eq!(asked(&effects), [0u64; 0]);
    }
}

#[test]
fn a_node_that_was_told_to_drain_while_it_joined_leaves_once_it_is_admitted() {
    let mut node = joiner(&[1, 2]);
    assert_eq!(node.feed(In::Drain), [], "it asked: they may count on it");
    let admitted = view(5, &[1, 2, 9]);
    let effects = node.decide(at(FIRST, 8, admitted.clone()));
    let own = |effects: &[Effect]| {
        let own = leaving(9, true);
        effects.iter().filter(|effect| **effect == own).count()
    };
    assert_eq!((own(&effects), told(&effects)), (1, vec![1, 2]));
    let effects = node.decide(at(FIRST, 9, admitted));
    assert_eq!(own(&effects), 0, "once is enough");
}

fn drained(effects: &[Effect]) -> bool {
    effects.contains(&Effect::Drained)
}

#[test]
fn a_node_that_is_told_to_drain_before_anything_counts_on_it_ends_at_once() {
    let mut waits = Bench::new(2, 3);
    waits.synchronize();
    waits.connect(&peer(1, None));
    let joins = joiner(&[1]);
    assert!(!joins.machine.is_ready_to_join(), "node 2 was not met");
    let mut is_left_out = joiner(&[1, 2]);
    is_left_out.decide(at(FIRST, 8, view(5, &[1, 2, 9])));
    is_left_out.disconnect(1, false);
    is_left_out.feed(In::MustRejoin);
    let has_not_called = Bench::new(1, 2);
    for mut node in [waits.clone(), joins, has_not_called] {
        assert!(drained(&node.feed(In::Drain)));
        let later = node.tick_after(Span::from_millis(600_000));
        assert!(fails(&later).is_none() && !drained(&later));
    }
    assert!(
        !drained(&is_left_out.feed(In::Drain)),
        "its coordinator was not asked yet"
    );
    assert!(drained(&is_left_out.feed(In::Resigned(true))));

    // The others no longer count on it, nor does it enter their bootstrap.
    let models = |effects: &[Effect]| -> Vec<bool> {
        let hellos = frames(effects).filter_map(|(_, message)| match message {
            Message::Hello(hello) => Some(hello.model.is_some()),
            _ => None,
        });
        hellos.collect()
    };
    assert_eq!(models(&waits.feed(In::Drain)), [false]);
    let lineage = Lineage(5 << 64 | 1);
    let effects = waits.hear(
        &peer(1, None),
        Message::Bootstrap {
            view: view(1, &[1, 2]),
            lineage,
        },
    );
    assert!(!formed(&effects) && waits.machine.adopted.is_none());
    assert!(waits.feed(In::Leave).contains(&Effect::Left));
}

#[test]
fn a_node_that_asked_and_is_never_admitted_drains_without_an_error() {
    let mut node = joiner(&[1, 2]);
    assert!(!drained(&node.feed(In::Drain)));
    let effects = node.tick_after(Span::from_millis(600_000));
    assert!(drained(&effects) && fails(&effects).is_none());
}

#[test]
fn a_node_says_that_it_leaves_again_and_again_and_to_whoever_connects() {
    let mut node = Bench::member(1, view(4, &[1, 2, 3]));
    node.up(2);
    assert_eq!(told(&node.feed(In::Drain)), [2]);
    assert_eq!(
        told(&node.tick_after(Span(LEAVE_AGAIN_EVERY.0 - 1))),
        [0u64; 0]
    );
    assert_eq!(told(&node.tick_after(Span(1))), [2]);
    assert_eq!(told(&node.up(3)), [2, 3]);
    node.decide(at(FIRST, 8, view(5, &[2, 3])));
    assert_eq!(told(&node.tick_after(LEAVE_AGAIN_EVERY)), [0u64; 0]);
}

#[test]
fn a_node_that_drained_ends_though_the_decision_never_reaches_it() {
    let without = at(FIRST, 8, view(5, &[2, 3]));
    for decides in [false, true] {
        let mut node = Bench::member(1, view(4, &[1, 2, 3]));
        node.feed(In::Drain);
        let effects = node.meet(&peer(2, Some(without.clone())));
        assert!(!resigns(&effects) && !drained(&effects), "{effects:?}");
        assert!(!drained(&node.tick_after(Span(DECISION_WAIT.0 - 1))));
        if decides {
            node.decide(without.clone());
        }
        assert_eq!(drained(&node.tick_after(Span(1))), !decides);
    }
}

#[test]
fn a_node_that_drains_and_holds_nothing_any_more_ends_at_once() {
    let mut node = Bench::member(1, view(4, &[1, 2, 3]));
    node.feed(In::Drain);
    let effects = node.feed(In::MustRejoin);
    assert!(effects.contains(&Effect::Drained) && !resigns(&effects));
}

#[test]
fn lost_members_are_dialed_for_a_while_unless_they_said_goodbye() {
    let dials = |effects: &[Effect]| effects.contains(&Effect::Connect(member(3).address));
    for departed in [false, true] {
        let mut node = Bench::member(1, view(4, &[1, 2, 3]));
        node.up(2);
        node.up(3);
        node.disconnect(3, departed);
        let effects = node.decide(at(FIRST, 8, view(5, &[1, 2])));
        assert_eq!(dials(&effects), !departed);
        assert!(!dials(&node.tick_after(Span(MISSED_REDIAL_EVERY.0 - 1))));
        assert_eq!(dials(&node.tick_after(Span(1))), !departed);
        assert!(!dials(&node.tick_after(MISSED_FOR)));
    }
}

#[test]
fn members_that_cannot_be_sent_to_are_dialed_until_they_can() {
    let dialed = |effects: &[Effect]| effects.contains(&Effect::Connect(member(2).address));
    let mut node = Bench::new(1, 2);
    node.synchronize();
    assert!(dialed(&node.decide(at(FIRST, 7, view(4, &[1, 2])))));
    assert!(!dialed(&node.tick_after(Span(REDIAL_EVERY.0 - 1))));
    assert!(dialed(&node.tick_after(Span(1))));
    node.up(2);
    assert!(!dialed(&node.tick_after(REDIAL_EVERY)));
    assert!(dialed(&node.disconnect(2, false)));
}

/// Node 9, which was a member of round 7 with nodes 1 and 2 and was left out of it.
fn left_out() -> Bench {
    let mut node = Bench::member(9, view(4, &[1, 2, 9]));
    for id in [1, 2] {
        node.connect(&peer(id, Some(at(FIRST, 8, view(5, &[1, 2])))));
    }
    node.feed(In::Resigned(true));
    assert_eq!(
        node.waiting(),
        "the cluster decided no round; see its status"
    );
    node
}

/// Time passes from deadline to deadline; the error with which the node gives up in this span.
fn gives_up_within(node: &mut Bench, span: Span) -> Option<BootstrapError> {
    let end = node.now.after(span);
    loop {
        let deadline = node.machine.next_deadline().filter(|at| *at <= end)?;
        if let Some(error) = fails(&node.tick_at(deadline)) {
            return Some(error.clone());
        }
    }
}

#[test]
fn a_node_that_was_left_out_hears_that_the_training_is_over_once_all_others_left() {
    let leave = Message::Leave { contributes: false };
    let wait = Span(RETURN_WAIT.0 * 2);
    let mut node = left_out();
    node.hear(
        &peer(1, Some(at(FIRST, 8, view(5, &[1, 2])))),
        leave.clone(),
    );
    node.disconnect(1, true);
    assert_eq!(
        gives_up_within(&mut node, wait),
        None,
        "node 2 may admit it"
    );
    let mut crashed = node.clone();
    let mut drained = node.clone();
    node.hear(&peer(2, Some(at(FIRST, 8, view(5, &[1, 2])))), leave);
    assert_eq!(
        gives_up_within(&mut node, wait),
        None,
        "node 2 is still there"
    );
    node.disconnect(2, true);
    let over = |left: &[u64]| {
        Some(BootstrapError::Over {
            left: left.iter().copied().map(NodeId).collect(),
            last: Some(Round(7)),
            ours: Some(Round(6)),
        })
    };
    assert_eq!(gives_up_within(&mut node, wait), over(&[1, 2]));

    crashed.disconnect(2, false);
    assert_eq!(
        gives_up_within(&mut crashed, wait),
        None,
        "it may be cut off"
    );
    crashed.dead(2, true);
    assert_eq!(gives_up_within(&mut crashed, wait), over(&[1]));

    drained.disconnect(2, true);
    assert_eq!(
        gives_up_within(&mut drained, wait),
        None,
        "others replaced it"
    );
}

#[test]
fn a_return_that_only_leads_to_a_round_without_this_node_is_in_vain() {
    let (before, without) = (
        at(FIRST, 7, view(4, &[1, 2, 9])),
        at(FIRST, 8, view(5, &[1, 2])),
    );
    let mut node = left_out();
    for id in [1, 2] {
        let leave = Message::Leave { contributes: false };
        node.hear(&peer(id, Some(without.clone())), leave);
        node.disconnect(id, true);
    }
    let effects = node.tick_after(RETURN_WAIT);
    let returns = |effect: &Effect| matches!(effect, Effect::Return { .. });
    assert!(effects.iter().any(returns), "{effects:?}");
    // Its coordinator returns, and knows of the decision that left this node out.
    node.decide(before);
    node.feed(In::WentOn(without));
    assert!(resigns(&node.feed(In::MustRejoin)));
    node.feed(In::Resigned(true));
    let over = gives_up_within(&mut node, Span(RETURN_WAIT.0 * 2));
    assert!(
        matches!(over, Some(BootstrapError::Over { .. })),
        "{over:?}"
    );
}
