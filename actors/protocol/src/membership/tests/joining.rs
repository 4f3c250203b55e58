//! Nodes that ask to be admitted, and the members that admit or refuse them.

use super::misfits::dial_failed;
use super::*;
use crate::coordinator::GivesUp;
use crate::wire::JoinRefusal;

/// Where the members 1 and 2 of a running cluster stand.
fn running() -> MemberState {
    at(FIRST, 7, view(4, &[1, 2]))
}

/// A node that met members of a running cluster.
pub(super) fn joiner(met: &[u64]) -> Bench {
    let mut node = Bench::with(9, 1, |settings| settings.join = true);
    for id in met {
        node.connect(&peer(*id, Some(running())));
    }
    node.synchronize();
    node
}

/// Lets time pass from deadline to deadline; when and how the node gave up.
fn gives_up(mut node: Bench) -> (Instant, String) {
    while let Some(deadline) = node.machine.next_deadline() {
        if let Some(error) = fails(&node.tick_at(deadline)) {
            return (deadline, error.to_string());
        }
    }
    panic!("it waits for ever");
}

#[test]
fn a_joiner_waits_for_members_as_long_as_for_peers_and_then_for_one_round() {
    let connected_by = Instant(100).after(DIAL_ERROR_WAIT_MAX);
    let settle = |met: &[u64]| {
        let mut node = joiner(met);
        node.machine.settings.synchronize_timeout = Span::from_millis(5_000);
        // The wait for a round begins anew with the setting.
        node.machine.synchronize_by = None;
        node.feed(In::Tick);
        gives_up(node)
    };
    for (met, missing) in [
        (&[][..], "no running cluster was met"),
        (&[1], "this node and node 2 cannot reach each other"),
    ] {
        let (at, told) = settle(met);
        assert_eq!(at, connected_by, "{told}");
        assert!(told.contains(missing), "{told}");
    }
    let mut refused = joiner(&[]);
    refused.feed(In::Discovered(vec![member(1).address, member(2).address]));
    refused.feed(dial_failed(1, DialFault::IdTaken, "node 9 is alive"));
    let (_, told) = gives_up(refused);
    assert!(
        told.contains("no running cluster was met") && told.contains("node 9 is alive"),
        "{told}"
    );
    let (at, told) = settle(&[1, 2]);
    assert_eq!(at, Instant(0).after(Span::from_millis(5_000)));
    assert!(
        told.contains("within 5000 ms: the cluster decided no round")
            && told.contains("met node 1, node 2"),
        "{told}"
    );
}

#[test]
fn a_joiner_asks_once_it_can_send_to_every_living_member_and_has_heard_from_it() {
    let mut node = joiner(&[1]);
    assert_eq!(asked(&node.up(2)), [0u64; 0], "it was not heard from");
    assert_eq!(asked(&node.meet(&peer(2, Some(running())))), [1, 2]);
    let mut node = joiner(&[1]);
    let dead = MemberState {
        dead: vec![NodeId(2)],
        ..running()
    };
    assert_eq!(asked(&node.meet(&peer(1, Some(dead)))), [1]);
    let waiting = node.waiting();
    assert!(waiting.contains("decided no round"), "{waiting}");
}

#[test]
fn a_request_that_may_be_lost_is_made_again() {
    let mut node = joiner(&[1, 2]);
    node.disconnect(1, false);
    assert_eq!(asked(&node.up(1)), [1, 2], "a new connection");
    assert_eq!(
        asked(&node.meet(&peer(2, Some(running())))),
        [2],
        "it was no member yet when it was asked"
    );
}

#[test]
fn a_member_that_joins_again_is_not_late_for_its_bootstrap() {
    let mut node = joiner(&[1, 2]);
    node.decide(at(FIRST, 8, view(5, &[1, 2, 9])));
    node.feed(In::MustRejoin);
    let effects = node.tick_after(Span::from_millis(99_000));
    assert_eq!(fails(&effects), None);
}

#[test]
fn a_member_that_is_not_admitted_again_gives_up_in_the_end() {
    let mut node = joiner(&[1, 2]);
    node.machine.settings.rejoin_timeout = Span::from_millis(200_000);
    node.decide(at(FIRST, 8, view(5, &[1, 2, 9])));
    node.feed(In::MustRejoin);
    node.feed(In::Resigned(true));
    let begun = node.now;
    node.disconnect(1, false);
    let (at, told) = gives_up(node.clone());
    assert_eq!(at, begun.after(Span::from_millis(200_000)), "{told}");
    assert!(
        told.contains("not admitted to a running cluster within 200000 ms"),
        "{told}"
    );
    // One that is admitted meanwhile begins anew.
    node.decide(at_round_nine());
    assert_eq!(node.machine.return_by, None);
}

fn at_round_nine() -> MemberState {
    at(FIRST, 9, view(6, &[1, 2, 9]))
}

#[test]
fn a_member_that_must_rejoin_founds_no_cluster_of_its_own() {
    let mut node = Bench::new(1, 1);
    assert!(formed(&node.synchronize()));
    let standing = node.machine.life.standing.clone().unwrap();
    node.decide(at(standing.lineage, 8, standing.view));
    node.feed(In::MustRejoin);
    assert!(!formed(&node.up(2)));
    let waiting = node.waiting();
    assert!(
        waiting.starts_with("the cluster continued without this node"),
        "{waiting}"
    );
}

/// The only node that knows where the others went tells the decision, and dies before it says where
/// it stands.
#[test]
fn a_member_that_the_others_continued_without_returns_when_nobody_is_left_of_them() {
    let mut node = joiner(&[1, 2]);
    node.decide(at(FIRST, 8, view(5, &[1, 2, 9])));
    node.feed(In::WentOn(at(FIRST, 9, view(6, &[1, 2]))));
    node.feed(In::MustRejoin);
    node.feed(In::Resigned(true));
    let returns = |effects: &[Effect]| effects.contains(&Effect::Return { ended: false });
    for peer in [1, 2] {
        node.disconnect(peer, false);
    }
    node.tick_after(Span(1));
    let effects = node.tick_after(RETURN_WAIT);
    assert!(returns(&effects), "{effects:?}");
}

#[test]
fn a_member_that_resigned_asks_for_the_same_view_whoever_still_counts_on_it() {
    let mut node = joiner(&[1, 2]);
    let standing = at(FIRST, 8, view(5, &[1, 2, 9]));
    node.decide(standing.clone());
    node.feed(In::MustRejoin);
    node.feed(In::Resigned(true));
    for (hears, asks) in [(1, vec![1, 2]), (2, vec![2]), (1, vec![1])] {
        let effects = node.meet(&peer(hears, Some(standing.clone())));
        assert_eq!(asked(&effects), asks);
    }
}

#[test]
fn a_member_that_resigned_while_others_counted_on_it_asks_again() {
    let mut node = joiner(&[1, 2]);
    let before = at(FIRST, 8, view(5, &[1, 2, 9]));
    let after = at(FIRST, 9, view(6, &[2, 9]));
    node.decide(before.clone());
    node.feed(In::MustRejoin);
    node.feed(In::Resigned(true));
    // Node 1 has not heard of the round that stranded this node; node 2 has, and that round's view
    // has this node in it.
    let mut effects = node.meet(&peer(1, Some(before)));
    effects.extend(node.meet(&peer(2, Some(after))));
    let epochs = |effects: &[Effect]| -> Vec<Epoch> {
        let joins = effects.iter().filter_map(|effect| match effect {
            Effect::Send {
                frame: Frame::V1 { header, message },
                ..
            } if **message == Message::Join => Some(header.epoch),
            _ => None,
        });
        joins.collect()
    };
    assert!(
        epochs(&effects).iter().all(|epoch| *epoch == Epoch(5)),
        "the decision may be on its way here"
    );
    assert!(node.machine.next_deadline().unwrap() <= node.now.after(DECISION_WAIT));
    // It has asked, so that view may have it in: it votes on nothing there once it asks again.
    let effects = node.tick_after(DECISION_WAIT);
    assert!(effects.contains(&Effect::Resign(GivesUp::Membership)));
    let effects = node.feed(In::Resigned(true));
    assert_eq!(epochs(&effects), [Epoch(6)], "it was none that admitted it");
}

#[test]
fn a_cluster_of_which_nobody_is_left_is_no_longer_waited_for() {
    let mut node = joiner(&[1, 2]);
    // All of the cluster ended; new incarnations go on from an older round, in another history.
    let members = [1, 2].map(again).to_vec();
    let next = at(Lineage(6), 4, View::new(Epoch(3), members).unwrap());
    let starts = [1, 2].map(|id| {
        let mut start = peer(id, Some(next.clone()));
        start.settings.identity.incarnation = again(id).incarnation;
        start
    });
    for start in &starts {
        node.disconnect(start.me().0, false);
        let identity = start.settings.identity;
        node.feed(In::PeerUp(identity.node, identity.incarnation));
    }
    let effects: Vec<Effect> = starts.iter().flat_map(|start| node.meet(start)).collect();
    let cluster = node.machine.life.cluster.as_ref();
    assert_eq!(cluster.map(|cluster| cluster.lineage), Some(Lineage(6)));
    assert_eq!(asked(&effects), [1, 2]);
}

#[test]
fn who_waits_for_a_deserted_cluster_returns_after_a_while_and_says_whether_that_ended() {
    let returns = |node: &mut Bench, after: Span| {
        let effects = node.tick_after(after);
        effects.iter().find_map(|effect| match effect {
            Effect::Return { ended } => Some(*ended),
            _ => None,
        })
    };
    let mut node = joiner(&[1, 2]);
    node.disconnect(1, false);
    assert_eq!(returns(&mut node, RETURN_WAIT), None, "node 2 may admit it");
    node.disconnect(2, false);
    assert_eq!(returns(&mut node, Span(RETURN_WAIT.0 - 1)), None);
    assert_eq!(returns(&mut node, Span(1)), Some(false));
    assert_eq!(returns(&mut node, Span(1)), None);
    node.dead(1, true);
    node.dead(2, true);
    assert_eq!(returns(&mut node, RETURN_WAIT), Some(true));
}

/// A stranger that asks a member of `view` to be admitted; what the member does.
fn asks(member: &mut Bench, stranger: &mut Membership) -> (Option<JoinRefusal>, Option<Vec<u64>>) {
    stranger.life.cluster = member.machine.life.standing.clone();
    let mut effects = member.connect(stranger);
    effects.extend(member.hear(stranger, Message::Join));
    let refusal = frames(&effects).find_map(|(to, message)| match message {
        Message::Refused(reason) if to == stranger.me().0 => Some(reason.clone()),
        _ => None,
    });
    (refusal, joiners(&effects))
}

#[test]
fn a_leader_hears_of_a_request_anew_where_the_joiner_was_a_member_meanwhile() {
    let mut member = Bench::member(1, view(4, &[1, 2, 3]));
    let mut stranger = peer(9, None);
    let asked = |effects: &[Effect]| effects.contains(&Effect::JoinAsked(NodeId(9)));
    stranger.life.cluster = member.machine.life.standing.clone();
    member.connect(&stranger);
    assert!(asked(&member.hear(&stranger, Message::Join)));
    assert!(!asked(&member.hear(&stranger, Message::Join)), "it waits");
    let elsewhere = at(FIRST, 3, view(2, &[1, 2, 9]));
    member.meet(&peer(9, Some(elsewhere)));
    assert!(asked(&member.hear(&stranger, Message::Join)), "again");
    let mut stranger = peer(8, None);
    stranger.model = Some(ModelSize::of(5));
    member.connect(&stranger);
    let refused = member.hear(&stranger, Message::Join);
    assert!(!joiners(&refused).is_some_and(|joiners| joiners.contains(&8)));
    assert!(!refused.contains(&Effect::JoinAsked(NodeId(8))));
}

#[test]
fn refusals_name_the_reason() {
    let mut member = Bench::member(1, view(4, &[1, 2, 3]));
    let refusal = |change: fn(&mut Membership)| {
        let mut stranger = peer(9, None);
        change(&mut stranger);
        asks(&mut member.clone(), &mut stranger).0
    };
    let cluster = ModelSize::of(23);
    let joiner = ModelSize {
        optimizer: 5,
        ..cluster
    };
    assert_eq!(refusal(|_| {}), None);
    assert_eq!(
        refusal(|stranger| {
            stranger.model = Some(ModelSize {
                optimizer: 5,
                ..ModelSize::of(23)
            });
        }),
        Some(JoinRefusal::ModelsDiffer {
            cluster: Box::new(cluster),
            joiner: Box::new(joiner),
        })
    );
    assert_eq!(
        refusal(|stranger| stranger.settings.lineage = Some(Lineage(5))),
        Some(JoinRefusal::OtherLineage {
            cluster: FIRST,
            joiner: Lineage(5)
        })
    );
    assert_eq!(
        refusal(|stranger| stranger.settings.lineage = Some(FIRST)),
        None
    );
    let differs = refusal(|stranger| stranger.settings.shared = "tau = 24".to_owned());
    assert!(
        matches!(
            &differs,
            Some(JoinRefusal::SettingsDiffer { differences }) if differences.contains("24")
        ),
        "{differs:?}"
    );
    member.machine.settings.refuses = Some(JoinRefusal::NoParameters);
    assert_eq!(
        asks(&mut member, &mut peer(9, None)).0,
        Some(JoinRefusal::NoParameters)
    );
}

#[test]
fn who_is_refused_gives_up() {
    let mut node = joiner(&[1, 2]);
    let reason = JoinRefusal::Full { max_nodes: 4 };
    let effects = node.hear(&peer(1, Some(running())), Message::Refused(reason.clone()));
    let by = NodeId(1);
    let refused = BootstrapError::Refused { by, reason };
    assert_eq!(fails(&effects), Some(&refused));
}

#[test]
fn no_more_join_than_there_is_room_for_but_a_member_that_returns_always_may() {
    let mut member = Bench::member(1, view(4, &[1, 2, 3]));
    let ready = asks(&mut member, &mut peer(8, None)).1;
    assert_eq!(ready, Some(vec![8]));
    let ready = asks(&mut member, &mut peer(9, None)).1;
    assert_eq!(ready, Some(vec![8]), "one slot is free");
    member.decide(at(FIRST, 8, view(5, &[1, 2, 3, 8])));
    let (refusal, _) = asks(&mut member, &mut peer(10, None));
    assert_eq!(refusal, Some(JoinRefusal::Full { max_nodes: 4 }));
    let mut returns = peer(3, None);
    returns.settings.identity.incarnation = again(3).incarnation;
    assert_eq!(asks(&mut member, &mut returns), (None, Some(vec![3])));
}

/// Another incarnation can reach anybody only once the earlier one is gone.
#[test]
fn who_asks_under_a_members_id_shows_that_the_member_has_ended() {
    let mut member = Bench::member(1, view(4, &[1, 2, 3]));
    let mut stranger = peer(3, None);
    stranger.settings.identity.incarnation = again(3).incarnation;
    stranger.life.cluster = member.machine.life.standing.clone();
    member.connect(&stranger);
    let effects = member.hear(&stranger, Message::Join);
    let lost = Effect::Lost {
        node: NodeId(3),
        incarnation: super::member(3).incarnation,
        ended: true,
    };
    assert!(effects.contains(&lost), "{effects:?}");
    assert!(
        !effects.contains(&Effect::Disconnect(NodeId(3))),
        "the connections are the new incarnation's"
    );
}

#[test]
fn who_is_declared_dead_is_disconnected_and_asks_in_vain() {
    let mut member = Bench::member(1, view(4, &[1, 2, 3]));
    member.connect(&peer(3, None));
    assert_eq!(asks(&mut member, &mut peer(9, None)).1, Some(vec![9]));
    let effects = member.dead(3, false);
    assert!(effects.contains(&Effect::Disconnect(NodeId(3))));
    assert_eq!(member.dead(3, false), [], "once");
    member.dead(9, false);
    assert!(member.machine.life.candidates.is_empty());
}

/// Node 4 is admitted, hears of it from node 2 before its own decision arrives, resigns and asks
/// for the new view. Node 1 hears that before it enters the view itself, and must not wait for node
/// 4 as for a member: it votes on nothing.
#[test]
fn a_request_for_the_view_that_is_about_to_be_entered_is_kept() {
    let mut node = Bench::member(1, view(4, &[1, 2]));
    let after = at(FIRST, 8, view(5, &[1, 2, 4]));
    let mut sender = peer(4, None);
    sender.life.cluster = Some(after.clone());
    node.connect(&sender);
    node.hear(&sender, Message::Join);
    let effects = node.decide(after);
    assert_eq!(joiners(&effects), Some(vec![4]), "{effects:?}");
}

#[test]
fn a_member_that_has_resigned_learns_who_of_the_view_died() {
    let mut node = Bench::member(1, view(5, &[1, 2, 3]));
    node.connect(&peer(2, None));
    let effects = node.dead(3, false);
    let said = says_to(&effects, 2);
    let dead = said.iter().flatten().map(|standing| &standing.dead);
    assert_eq!(dead.collect::<Vec<_>>(), [&vec![NodeId(3)]]);
}

/// Over a long run more nodes come and go than a view has room for.
#[test]
fn a_run_admits_nodes_however_many_have_come_and_gone() {
    let mut node = Bench::member(1, view(4, &[1]));
    for id in 10..15 + MEMBERS_MAX as u64 {
        let ready = asks(&mut node, &mut peer(id, None)).1.unwrap_or_default();
        assert!(ready.contains(&id), "node {id} is not admitted");
        node.disconnect(id, true);
    }
}

/// Node 2 is started again before node 9 is told of the entry that admits it beside its
/// predecessor.
#[test]
fn who_is_admitted_late_knows_which_members_were_started_again_meanwhile() {
    let mut node = joiner(&[1, 2]);
    node.disconnect(2, false);
    node.feed(In::PeerUp(NodeId(2), again(2).incarnation));
    let effects = node.decide(at(FIRST, 8, view(5, &[1, 2, 9])));
    let lost = effects.iter().filter_map(|effect| match effect {
        Effect::Lost {
            node,
            incarnation,
            ended,
        } => Some((*node, *incarnation, *ended)),
        _ => None,
    });
    assert_eq!(
        lost.collect::<Vec<_>>(),
        [(NodeId(2), member(2).incarnation, true)]
    );
}
