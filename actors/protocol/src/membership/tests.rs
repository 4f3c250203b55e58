//! Bootstrapping of a few machines whose frames are carried by hand.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::bootstrap::VOID_LOOK_EVERY;
use super::*;
use crate::coordinator::GivesUp;
use crate::ident::{ClusterId, Incarnation};
use crate::policy::Bootstrap;
use crate::wire::{Frame, Hello, MemberState};
use std::net::SocketAddr;

pub(super) fn machine(id: u64, min_nodes: usize, shared: &str) -> Membership {
    let identity = Identity {
        cluster: ClusterId(7),
        node: NodeId(id),
        incarnation: Incarnation(id + 100),
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 7000 + id as u16));
    let connect_timeout = Span(100);
    let synchronize_timeout = Span(1000);
    let shared = shared.to_owned();
    let addresses_may_be_stale = false;
    let mut machine = Membership::new(Settings {
        identity,
        address,
        devices: 1,
        min_nodes,
        max_nodes: 4,
        join: false,
        lineage: None,
        bootstrap: Bootstrap::Auto,
        restarted: false,
        refuses: None,
        shared,
        addresses_may_be_stale,
        connect_timeout,
        synchronize_timeout,
    });
    machine.discovered = Some(Vec::new());
    machine
}

pub(super) fn at(lineage: Lineage, round: Round, view: View) -> MemberState {
    MemberState {
        lineage,
        forks: Vec::new(),
        round,
        view,
        dead: Vec::new(),
    }
}

/// What came out, but for what a person is told while the machine waits.
fn said(out: &mut Outbox<Effect>) -> Vec<Effect> {
    out.take()
        .into_iter()
        .filter(|effect| !matches!(effect, Effect::Waiting(_)))
        .collect()
}

/// Connects all, lets each synchronize with its model size and carries every frame; returns what
/// else happened.
fn found(mut machines: Vec<(Membership, u64)>) -> BTreeMap<u64, Vec<Effect>> {
    let ids: Vec<_> = machines.iter().map(|(machine, _)| machine.me()).collect();
    let mut pending: Vec<(NodeId, Frame)> = Vec::new();
    let mut seen: BTreeMap<u64, Vec<Effect>> = BTreeMap::new();
    let mut out = Outbox::default();
    let collect = |me: NodeId,
                   effects: Vec<Effect>,
                   pending: &mut Vec<_>,
                   seen: &mut BTreeMap<u64, Vec<Effect>>| {
        for effect in effects {
            match effect {
                Effect::Send { to, frame } => pending.push((to, frame)),
                Effect::Watch(_)
                | Effect::Search(_)
                | Effect::Joiners { .. }
                | Effect::Connect(_)
                | Effect::Waiting(_) => {}
                other => seen.entry(me.0).or_default().push(other),
            }
        }
    };
    for (machine, elements) in &mut machines {
        let me = machine.me();
        for peer in ids.iter().filter(|id| **id != me) {
            machine.handle(
                In::PeerUp(*peer, Incarnation(peer.0 + 100)),
                Instant(0),
                &mut out,
            );
        }
        machine.handle(
            In::Synchronize(ModelSize::of(*elements)),
            Instant(0),
            &mut out,
        );
        collect(machine.me(), out.take(), &mut pending, &mut seen);
    }
    while !pending.is_empty() {
        let (to, Frame::V1 { header, message }) = pending.remove(0);
        let (machine, _) = machines
            .iter_mut()
            .find(|(machine, _)| machine.me() == to)
            .unwrap();
        machine.handle(In::Frame { header, message }, Instant(0), &mut out);
        collect(to, out.take(), &mut pending, &mut seen);
    }
    seen
}

#[test]
fn all_nodes_form_the_same_view() {
    let seen = found(vec![
        (machine(9, 3, "tau = 12"), 23),
        (machine(4, 3, "tau = 12"), 23),
        (machine(6, 3, "tau = 12"), 23),
    ]);
    assert_eq!(seen.len(), 3);
    let [Effect::Formed { view, lineage }] = &seen[&4][..] else {
        panic!("{seen:?}")
    };
    assert_eq!(
        view.ids().collect::<Vec<_>>(),
        [NodeId(4), NodeId(6), NodeId(9)]
    );
    assert!(lineage.is_decided());
    assert!(seen.values().all(|effects| effects == &seen[&4]));
}

#[test]
fn one_node_founds_alone() {
    let seen = found(vec![(machine(4, 1, ""), 23)]);
    assert!(matches!(&seen[&4][..], [Effect::Formed { .. }]));
}

#[test]
fn different_settings_name_both_nodes_and_both_values() {
    let seen = found(vec![
        (machine(1, 2, "tau = 12"), 23),
        (machine(2, 2, "tau = 24"), 23),
    ]);
    for effects in seen.values() {
        let [Effect::Fail(error)] = &effects[..] else {
            panic!("{effects:?}")
        };
        let text = error.to_string();
        for part in ["node 1", "node 2", "tau", "12", "24"] {
            assert!(text.contains(part), "{text}");
        }
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn different_models_name_both_sizes() {
    let seen = found(vec![(machine(1, 2, ""), 23), (machine(2, 2, ""), 24)]);
    let text = format!("{seen:?}");
    assert!(
        text.contains("our_model: ModelSize { parameters: 23")
            && text.contains("their_model: ModelSize { parameters: 24"),
        "{text}"
    );
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_view_is_acted_on_only_when_every_member_can_be_sent_to() {
    let mut member = machine(2, 3, "");
    let mut out = Outbox::default();
    member.handle(
        In::PeerUp(NodeId(1), Incarnation(101)),
        Instant(0),
        &mut out,
    );
    member.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    out.take();
    let view = crate::view::tests::view(&[1, 2, 3]);
    let members = view.members().iter().map(|member| Member {
        incarnation: Incarnation(member.id.0 + 100),
        ..member.clone()
    });
    let view = View::new(Epoch::BOOTSTRAP, members.collect()).unwrap();
    let founder = machine(1, 3, "");
    let header = founder.settings.identity.header(founder.place());
    member.handle(
        In::Frame {
            header,
            message: Box::new(Message::Bootstrap {
                view,
                lineage: Lineage(5),
            }),
        },
        Instant(0),
        &mut out,
    );
    assert_eq!(out.take(), [], "node 3 cannot be sent to yet");
    member.handle(
        In::PeerUp(NodeId(3), Incarnation(103)),
        Instant(0),
        &mut out,
    );
    assert!(matches!(
        out.take()[..],
        [Effect::Send { .. }, Effect::Formed { .. }, ..]
    ));
}

#[test]
fn missing_nodes_and_unreachable_addresses_are_named() {
    let mut machine = machine(1, 2, "");
    let mut out = Outbox::default();
    machine.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    let late = Instant(100).after(DIAL_ERROR_WAIT_MAX);
    assert_eq!(
        machine.next_deadline(),
        Some(Instant(1000)),
        "the timeout of synchronize comes before"
    );
    let mut refused = machine.clone();
    machine.synchronize_by = None;
    machine.look_by = None;
    assert_eq!(machine.next_deadline(), Some(late));
    machine.handle(In::Tick, late, &mut out);
    let expected = BootstrapError::TooFew {
        needed: 2,
        present: vec![NodeId(1)],
        waited: Span(100),
        unreachable: None,
    };
    assert_eq!(said(&mut out), [Effect::Fail(expected)]);
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    refused.handle(
        In::DialFailed {
            address,
            tried_for: Span::from_millis(30_000),
            error: "no answer".into(),
        },
        Instant(1),
        &mut out,
    );
    assert_eq!(
        said(&mut out),
        [],
        "others may meet this node and are told the same"
    );
    assert_eq!(refused.next_deadline(), Some(Instant(1000)));
    refused.synchronize_by = None;
    refused.handle(In::Tick, Instant(1).after(REFUSED_WAIT_MAX), &mut out);
    let text = format!(
        "{}",
        match &said(&mut out)[..] {
            [Effect::Fail(error)] => error.clone(),
            other => panic!("{other:?}"),
        }
    );
    assert!(
        text.contains("127.0.0.1:9") && text.contains("30000 ms") && text.contains("no answer"),
        "{text}"
    );
}

#[test]
fn a_node_with_other_settings_stays_until_everybody_met_it() {
    let mut third = machine(3, 3, "tau = 12");
    let mut out = Outbox::default();
    third.handle(
        In::PeerUp(NodeId(1), Incarnation(101)),
        Instant(0),
        &mut out,
    );
    out.take();
    let first = machine(1, 3, "tau = 24");
    let Frame::V1 { header, message } = first.settings.identity.frame(first.place(), first.hello());
    third.handle(In::Frame { header, message }, Instant(7), &mut out);
    assert_eq!(out.take(), []);
    let mut alone = third.clone();
    third.handle(
        In::PeerUp(NodeId(2), Incarnation(102)),
        Instant(8),
        &mut out,
    );
    assert!(matches!(
        out.take()[..],
        [
            Effect::Send { to: NodeId(2), .. },
            Effect::Fail(BootstrapError::SettingsDiffer { .. })
        ]
    ));
    let deadline = Instant(7).after(REFUSED_WAIT_MAX);
    assert_eq!(alone.next_deadline(), Some(deadline));
    alone.handle(In::Tick, deadline, &mut out);
    assert!(matches!(
        out.take()[..],
        [Effect::Fail(BootstrapError::SettingsDiffer { .. })]
    ));
}

#[test]
fn a_node_that_is_gone_was_compared_with() {
    let mut first = machine(1, 2, "");
    let mut second = machine(2, 2, "");
    let mut out = Outbox::default();
    second.model = Some(ModelSize::of(24));
    first.handle(
        In::PeerUp(NodeId(2), Incarnation(102)),
        Instant(0),
        &mut out,
    );
    let Frame::V1 { header, message } = second
        .settings
        .identity
        .frame(second.place(), second.hello());
    first.handle(In::Frame { header, message }, Instant(0), &mut out);
    first.handle(
        In::PeerDown {
            node: NodeId(2),
            departed: false,
        },
        Instant(0),
        &mut out,
    );
    said(&mut out);
    first.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    first.handle(In::Tick, Instant(0).after(REFUSED_WAIT_MAX), &mut out);
    assert!(matches!(
        said(&mut out)[..],
        [Effect::Fail(BootstrapError::ModelsDiffer {
            theirs: NodeId(2),
            ..
        })]
    ));
}

#[test]
fn a_node_leaves_when_the_others_left_or_the_wait_is_over() {
    let mut out = Outbox::default();
    let mut alone = machine(1, 1, "");
    alone.handle(In::Synchronize(ModelSize::of(1)), Instant(0), &mut out);
    out.take();
    alone.handle(In::Leave, Instant(5), &mut out);
    assert_eq!(
        out.take(),
        [
            Effect::Leaving {
                node: NodeId(1),
                incarnation: Incarnation(101),
                contributes: false
            },
            Effect::Left
        ]
    );
}

#[test]
fn a_hello_is_kept_within_the_bound_of_its_settings() {
    let mut node = machine(1, 9, "tau = 12");
    let mut out = Outbox::default();
    let mut peer = machine(2, 9, "tau = 12");
    peer.settings.shared.push_str(&"\nx = 1".repeat(1 << 16));
    let Frame::V1 { header, message } = peer.settings.identity.frame(peer.place(), peer.hello());
    node.handle(In::Frame { header, message }, Instant(0), &mut out);
    assert_eq!(out.take(), [Effect::Connect(peer.settings.address)]);
    assert_eq!(
        node.hellos[&NodeId(2)].settings("").len(),
        settings::SETTINGS_BYTES_MAX
    );
}

#[test]
fn little_is_kept_of_a_hello_with_a_large_view() {
    let mut node = machine(1, 9, "tau = 12");
    let mut out = Outbox::default();
    let address = node.settings.address;
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address,
        devices: 1,
    };
    let view = View::new(Epoch(4), (2..4_000).map(member).collect()).unwrap();
    for id in 2..40 {
        let mut peer = machine(id, 9, "tau = 12");
        peer.life.standing = Some(at(Lineage(5), Round(7), view.clone()));
        let Frame::V1 { header, message } =
            peer.settings.identity.frame(peer.place(), peer.hello());
        node.handle(In::Frame { header, message }, Instant(0), &mut out);
    }
    assert_eq!(node.hellos.len(), 38);
    assert!(
        node.hellos
            .values()
            .all(|known| known.settings("same") == "same" && known.stands_in == Some(Lineage(5)))
    );
    assert!(
        std::mem::size_of::<known::Known>() <= 256,
        "it has no list of anything"
    );
    assert_eq!(
        node.life
            .cluster
            .as_ref()
            .map(|cluster| cluster.view.size()),
        Some(view.size()),
        "the view is kept once"
    );
}

#[test]
fn a_node_that_gave_up_enters_no_view() {
    let mut node = machine(2, 3, "");
    let mut out = Outbox::default();
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    node.handle(In::Tick, Instant(100).after(DIAL_ERROR_WAIT_MAX), &mut out);
    assert!(matches!(
        said(&mut out)[..],
        [Effect::Fail(BootstrapError::TooFew { .. })]
    ));
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: node.settings.address,
        devices: 1,
    };
    let view = View::new(Epoch::BOOTSTRAP, vec![member(1), member(2)]).unwrap();
    let founder = machine(1, 3, "");
    let header = founder.settings.identity.header(founder.place());
    node.handle(
        In::PeerUp(NodeId(1), Incarnation(101)),
        Instant(0),
        &mut out,
    );
    said(&mut out);
    node.handle(
        In::Frame {
            header,
            message: Box::new(Message::Bootstrap {
                view,
                lineage: Lineage(5),
            }),
        },
        Instant(0),
        &mut out,
    );
    assert_eq!(said(&mut out), []);
}

#[test]
fn an_address_of_an_earlier_run_does_not_end_the_bootstrap() {
    let mut node = machine(1, 2, "");
    let mut out = Outbox::default();
    node.settings.addresses_may_be_stale = true;
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    node.handle(
        In::DialFailed {
            address,
            tried_for: Span::from_millis(3),
            error: "another key".into(),
        },
        Instant(1),
        &mut out,
    );
    assert_eq!(said(&mut out), []);
    assert_eq!(
        node.next_deadline(),
        Some(Instant(1000)),
        "only the usual timeouts run"
    );
    node.handle(In::Tick, Instant(100).after(DIAL_ERROR_WAIT_MAX), &mut out);
    let [Effect::Fail(error @ BootstrapError::TooFew { .. })] = &said(&mut out)[..] else {
        panic!("nobody appeared")
    };
    let told = error.to_string();
    assert!(
        told.contains("127.0.0.1:9") && told.contains("another key"),
        "{told}"
    );
}

/// A node that met node 1 of a running cluster, whose members are 1 and 2; connected and introduced
/// to `met`.
fn joiner(met: &[u64]) -> Membership {
    let mut node = machine(9, 1, "");
    let mut out = Outbox::default();
    node.settings.join = true;
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: node.settings.address,
        devices: 1,
    };
    let view = View::new(Epoch(4), vec![member(1), member(2)]).unwrap();
    for id in met {
        let mut peer = machine(*id, 1, "");
        peer.life.standing = Some(at(Lineage(5), Round(7), view.clone()));
        node.handle(
            In::PeerUp(NodeId(*id), Incarnation(id + 100)),
            Instant(0),
            &mut out,
        );
        let Frame::V1 { header, message } =
            peer.settings.identity.frame(peer.place(), peer.hello());
        node.handle(In::Frame { header, message }, Instant(0), &mut out);
    }
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    node
}

/// Lets time pass from deadline to deadline; when and how the node gave up.
fn gives_up(mut node: Membership) -> (Instant, String) {
    let mut out = Outbox::default();
    while let Some(deadline) = node.next_deadline() {
        node.handle(In::Tick, deadline, &mut out);
        if let Some(Effect::Fail(error)) = out
            .take()
            .into_iter()
            .find(|effect| matches!(effect, Effect::Fail(_)))
        {
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
        node.settings.synchronize_timeout = Span::from_millis(5_000);
        node.synchronize_by = Some(Instant(0).after(Span::from_millis(5_000)));
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
    let address = refused.settings.address;
    refused.handle(
        In::DialFailed {
            address,
            tried_for: Span(9),
            error: "node 9 is alive".into(),
        },
        Instant(5),
        &mut Outbox::default(),
    );
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
fn a_member_that_joins_again_is_not_late_for_its_bootstrap() {
    let mut node = joiner(&[1, 2]);
    let mut out = Outbox::default();
    let members = [1, 2, 9].map(|id| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: node.settings.address,
        devices: 1,
    });
    let view = View::new(Epoch(5), members.into()).unwrap();
    node.handle(
        In::Decided(at(Lineage(5), Round(8), view)),
        Instant(1),
        &mut out,
    );
    node.handle(In::MustRejoin, Instant(2), &mut out);
    node.handle(
        In::Tick,
        Instant(0).after(Span::from_millis(99_000)),
        &mut out,
    );
    assert!(
        out.take()
            .iter()
            .all(|effect| !matches!(effect, Effect::Fail(_)))
    );
}

#[test]
fn a_member_that_was_must_rejoin_founds_no_cluster_of_its_own() {
    let mut node = machine(1, 1, "");
    let mut out = Outbox::default();
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    let MemberState { view, lineage, .. } = node.life.standing.clone().unwrap();
    node.handle(
        In::Decided(at(lineage, Round(8), view)),
        Instant(1),
        &mut out,
    );
    node.handle(In::MustRejoin, Instant(2), &mut out);
    out.take();
    node.handle(
        In::PeerUp(NodeId(2), Incarnation(102)),
        Instant(3),
        &mut out,
    );
    let effects = out.take();
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Formed { .. })),
        "{effects:?}"
    );
    assert!(
        node.life
            .waiting
            .as_deref()
            .is_some_and(|why| { why.starts_with("the cluster continued without this node") })
    );
}

#[test]
fn a_node_that_leaves_does_not_ask_to_be_admitted_again() {
    for leave in [In::Leave, In::Drain] {
        let mut node = joiner(&[1, 2]);
        let mut out = Outbox::default();
        let member = |id: u64| Member {
            id: NodeId(id),
            incarnation: Incarnation(id + 100),
            address: node.settings.address,
            devices: 1,
        };
        let view = |epoch: u64, ids: &[u64]| {
            View::new(Epoch(epoch), ids.iter().map(|id| member(*id)).collect()).unwrap()
        };
        let with = view(5, &[1, 2, 9]);
        let without = view(6, &[1, 2]);
        node.handle(
            In::Decided(at(Lineage(5), Round(8), with)),
            Instant(1),
            &mut out,
        );
        node.handle(leave, Instant(2), &mut out);
        out.take();
        // A faster member tells of the round that leaves this node out before this node's own
        // coordinator does.
        let mut peer = machine(1, 1, "");
        peer.life.standing = Some(at(Lineage(5), Round(9), without.clone()));
        let Frame::V1 { header, message } =
            peer.settings.identity.frame(peer.place(), peer.hello());
        node.handle(In::Frame { header, message }, Instant(3), &mut out);
        node.handle(
            In::Decided(at(Lineage(5), Round(9), without)),
            Instant(4),
            &mut out,
        );
        let asks = |effect: &Effect| matches!(effect, Effect::Send { frame: Frame::V1 { message, .. }, .. } if **message == Message::Join);
        assert!(!out.take().iter().any(asks));
    }
}

#[test]
fn a_node_that_was_told_to_drain_while_it_joined_leaves_once_it_is_admitted() {
    let mut node = joiner(&[1, 2]);
    let mut out = Outbox::default();
    node.handle(In::Drain, Instant(1), &mut out);
    assert_eq!(out.take(), [], "nobody counts on it yet");
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: node.settings.address,
        devices: 1,
    };
    let view = View::new(Epoch(5), vec![member(1), member(2), member(9)]).unwrap();
    node.handle(
        In::Decided(at(Lineage(5), Round(8), view.clone())),
        Instant(2),
        &mut out,
    );
    let leaving = |effect: &Effect| {
        matches!(
            effect,
            Effect::Leaving {
                node: NodeId(9),
                contributes: true,
                ..
            }
        )
    };
    let told = |effect: &Effect| {
        let Effect::Send {
            frame: Frame::V1 { message, .. },
            ..
        } = effect
        else {
            return false;
        };
        **message == Message::Leave { contributes: true }
    };
    let effects = out.take();
    assert_eq!(
        (
            effects.iter().filter(|effect| leaving(effect)).count(),
            effects.iter().filter(|effect| told(effect)).count()
        ),
        (1, 2)
    );
    node.handle(
        In::Decided(at(Lineage(5), Round(9), view)),
        Instant(3),
        &mut out,
    );
    assert!(!out.take().iter().any(leaving), "once is enough");
}

#[test]
fn a_member_that_resigned_while_others_counted_on_it_asks_again() {
    let mut node = joiner(&[1, 2]);
    let mut out = Outbox::default();
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: node.settings.address,
        devices: 1,
    };
    let view = |epoch: u64, ids: &[u64]| {
        View::new(Epoch(epoch), ids.iter().map(|id| member(*id)).collect()).unwrap()
    };
    let before = view(5, &[1, 2, 9]);
    let after = view(6, &[2, 9]);
    node.handle(
        In::Decided(at(Lineage(5), Round(8), before.clone())),
        Instant(1),
        &mut out,
    );
    node.handle(In::MustRejoin, Instant(2), &mut out);
    node.handle(In::Resigned(true), Instant(2), &mut out);
    // One has not heard of the round that stranded this node; the other has, and that round's view
    // has this node in it.
    for (id, round, view) in [(1, 8, before), (2, 9, after)] {
        let mut peer = machine(id, 1, "");
        peer.life.standing = Some(at(Lineage(5), Round(round), view));
        let Frame::V1 { header, message } =
            peer.settings.identity.frame(peer.place(), peer.hello());
        node.handle(In::Frame { header, message }, Instant(3), &mut out);
    }
    let asked = |out: &mut Outbox<Effect>| -> Vec<Epoch> {
        let joins = out.take().into_iter().filter_map(|effect| match effect {
            Effect::Send {
                frame: Frame::V1 { header, message },
                ..
            } if *message == Message::Join => Some(header.epoch),
            _ => None,
        });
        joins.collect()
    };
    assert!(
        asked(&mut out).iter().all(|epoch| *epoch == Epoch(5)),
        "the decision may be on its way here"
    );
    let late = node.next_deadline().unwrap();
    assert!(late <= Instant(3).after(DECISION_WAIT));
    let now = Instant(3).after(DECISION_WAIT);
    node.handle(In::Tick, now, &mut out);
    // It has asked, so that view may have it in: it votes on nothing there once it asks again.
    assert!(out.take().contains(&Effect::Resign(GivesUp::Membership)));
    node.handle(In::Resigned(true), now, &mut out);
    assert_eq!(asked(&mut out), [Epoch(6)], "it was none that admitted it");
}

#[test]
fn a_cluster_of_which_nobody_is_left_is_no_longer_waited_for() {
    let mut node = joiner(&[1, 2]);
    let mut out = Outbox::default();
    out.take();
    // All of the cluster ended; new starts go on from an older round, in another history.
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 200),
        address: node.settings.address,
        devices: 1,
    };
    let view = View::new(Epoch(3), vec![member(1), member(2)]).unwrap();
    for id in [1, 2] {
        let mut peer = machine(id, 1, "");
        peer.settings.identity.incarnation = Incarnation(id + 200);
        peer.life.standing = Some(at(Lineage(6), Round(4), view.clone()));
        node.handle(
            In::PeerDown {
                node: NodeId(id),
                departed: false,
            },
            Instant(1),
            &mut out,
        );
        node.handle(
            In::PeerUp(NodeId(id), Incarnation(id + 200)),
            Instant(1),
            &mut out,
        );
    }
    for id in [1, 2] {
        let mut peer = machine(id, 1, "");
        peer.settings.identity.incarnation = Incarnation(id + 200);
        peer.life.standing = Some(at(Lineage(6), Round(4), view.clone()));
        let Frame::V1 { header, message } =
            peer.settings.identity.frame(peer.place(), peer.hello());
        node.handle(In::Frame { header, message }, Instant(2), &mut out);
    }
    assert_eq!(
        node.life.cluster.as_ref().map(|cluster| cluster.lineage),
        Some(Lineage(6))
    );
    let asks = |effect: &Effect| matches!(effect, Effect::Send { frame: Frame::V1 { message, .. }, .. } if **message == Message::Join);
    assert!(out.take().iter().any(asks));
}

/// Node 4 is admitted, hears of it from node 2 before its own decision arrives, resigns and asks for
/// the new view. Node 1 hears that before it enters the view itself, and must not wait for node 4 as
/// for a member: it votes on nothing.
#[test]
fn a_request_for_the_view_that_is_about_to_be_entered_is_kept() {
    let mut node = machine(1, 1, "");
    let mut out = Outbox::default();
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: node.settings.address,
        devices: 1,
    };
    let before = View::new(Epoch(4), [1, 2].map(member).to_vec()).unwrap();
    let after = View::new(Epoch(5), [1, 2, 4].map(member).to_vec()).unwrap();
    let decided = |round: u64, view: &View| In::Decided(at(Lineage(5), Round(round), view.clone()));
    node.handle(decided(7, &before), Instant(1), &mut out);
    let up = In::PeerUp(NodeId(4), Incarnation(104));
    node.handle(up, Instant(1), &mut out);
    let peer = machine(4, 1, "");
    let mut place = peer.place();
    place.lineage = Lineage(5);
    place.epoch = after.epoch();
    for message in [peer.hello(), Message::Join] {
        let Frame::V1 { header, message } = peer.settings.identity.frame(place, message);
        node.handle(In::Frame { header, message }, Instant(2), &mut out);
    }
    _ = out.take();
    node.handle(decided(8, &after), Instant(3), &mut out);
    let asks = |effect: &Effect| match effect {
        Effect::Joiners { epoch, members } => {
            *epoch == after.epoch() && members.iter().any(|member| member.id == NodeId(4))
        }
        _ => false,
    };
    let effects = out.take();
    assert!(effects.iter().any(asks), "{effects:?}");
}

#[test]
fn a_member_that_has_resigned_learns_who_of_the_view_died() {
    let mut node = machine(1, 1, "");
    let mut out = Outbox::default();
    let member = |id: u64| Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: node.settings.address,
        devices: 1,
    };
    let view = View::new(Epoch(5), [1, 2, 3].map(member).to_vec()).unwrap();
    node.handle(
        In::Decided(at(Lineage(5), Round(8), view)),
        Instant(1),
        &mut out,
    );
    node.handle(
        In::PeerUp(NodeId(2), Incarnation(102)),
        Instant(1),
        &mut out,
    );
    // It stands nowhere.
    let peer = machine(2, 1, "");
    let Frame::V1 { header, message } = peer.settings.identity.frame(peer.place(), peer.hello());
    node.handle(In::Frame { header, message }, Instant(1), &mut out);
    _ = out.take();
    node.handle(
        In::Down {
            node: NodeId(3),
            incarnation: Incarnation(103),
            ended: false,
        },
        Instant(2),
        &mut out,
    );
    let dead = out.take().into_iter().find_map(|effect| match effect {
        Effect::Send {
            to: NodeId(2),
            frame: Frame::V1 { message, .. },
        } => match *message {
            Message::Hello(Hello {
                standing: Some(standing),
                ..
            }) => Some(standing.dead),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(dead, Some(vec![NodeId(3)]));
}

/// A node that knows three addresses, one of them its own, and has met the nodes of `met`, which
/// train the same.
fn bootstrapper(
    id: u64,
    met: &[u64],
    change: impl FnOnce(&mut Settings),
) -> (Membership, Outbox<Effect>) {
    let mut node = machine(id, 2, "");
    let mut out = Outbox::default();
    node.settings.connect_timeout = Span::from_millis(60_000);
    node.settings.synchronize_timeout = Span::from_millis(60_000);
    change(&mut node.settings);
    let addresses = [1, 2, 3]
        .map(|id| machine(id, 2, "").settings.address)
        .to_vec();
    node.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    node.handle(In::Discovered(addresses), Instant(0), &mut out);
    for peer in met {
        introduce(&mut node, *peer, &mut out);
    }
    (node, out)
}

fn introduce(node: &mut Membership, peer: u64, out: &mut Outbox<Effect>) {
    let mut peer = machine(peer, 2, "");
    peer.model = Some(ModelSize::of(23));
    let start = peer.settings.identity;
    node.handle(In::PeerUp(start.node, start.incarnation), Instant(1), out);
    let Frame::V1 { header, message } = peer.settings.identity.frame(peer.place(), peer.hello());
    node.handle(In::Frame { header, message }, Instant(1), out);
}

fn founded(out: &mut Outbox<Effect>) -> bool {
    out.take()
        .iter()
        .any(|effect| matches!(effect, Effect::Formed { .. }))
}

fn waiting(node: &Membership) -> &str {
    node.life.waiting.as_deref().unwrap_or_default()
}

#[test]
fn the_smallest_address_bootstraps_once_all_have_answered_or_had_the_time_to() {
    let (mut first, mut out) = bootstrapper(1, &[2], |_| {});
    assert!(!founded(&mut out), "node 3 may know a run");
    let mut late = first.clone();
    introduce(&mut first, 3, &mut out);
    assert!(founded(&mut out));
    assert_eq!(
        late.next_deadline(),
        Some(Instant(0).after(LOOK_FOR_RUN_WAIT))
    );
    late.handle(In::Tick, Instant(0).after(LOOK_FOR_RUN_WAIT), &mut out);
    assert!(founded(&mut out));
    let (second, mut out) = bootstrapper(2, &[1, 3], |_| {});
    assert!(!founded(&mut out));
    assert!(
        waiting(&second).starts_with("127.0.0.1:7001 bootstraps the run"),
        "{}",
        waiting(&second)
    );
}

#[test]
fn the_key_bootstrap_names_who_founds() {
    let (_, mut out) = bootstrapper(3, &[1, 2], |settings| settings.bootstrap = Bootstrap::Yes);
    assert!(founded(&mut out));
    let (first, mut out) = bootstrapper(1, &[2, 3], |settings| settings.bootstrap = Bootstrap::No);
    assert!(!founded(&mut out));
    assert!(
        waiting(&first).contains("bootstrap = no here"),
        "{}",
        waiting(&first)
    );
    let (_, mut out) = bootstrapper(2, &[1, 3], |settings| {
        settings.addresses_may_be_stale = true
    });
    assert!(!founded(&mut out), "node 1 is met, and smaller");
}

#[test]
fn who_was_started_again_founds_nothing_before_everybody_has_answered() {
    let (mut first, mut out) = bootstrapper(1, &[2], |settings| settings.restarted = true);
    first.handle(In::Tick, Instant(0).after(LOOK_FOR_RUN_WAIT), &mut out);
    first.handle(
        In::Tick,
        Instant(0).after(Span::from_millis(100_000)),
        &mut out,
    );
    let effects = out.take();
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Formed { .. } | Effect::Fail(_))),
        "{effects:?}"
    );
    assert!(
        waiting(&first).starts_with("this node was restarted, and 1 of the known addresses"),
        "{}",
        waiting(&first)
    );
    let names_model = |effects: &[Effect]| {
        effects.iter().any(|effect| match effect {
            Effect::Send {
                frame: Frame::V1 { message, .. },
                ..
            } => matches!(&**message, Message::Hello(hello) if hello.model.is_some()),
            _ => false,
        })
    };
    assert!(!names_model(&effects), "no founder counts on it");
    introduce(&mut first, 3, &mut out);
    let effects = out.take();
    assert!(
        names_model(&effects)
            && effects
                .iter()
                .any(|effect| matches!(effect, Effect::Formed { .. })),
        "{effects:?}"
    );
    let (_, mut out) = bootstrapper(1, &[2, 3], |settings| {
        (settings.restarted, settings.bootstrap) = (true, Bootstrap::Yes)
    });
    assert!(founded(&mut out));
}

#[test]
fn a_bootstrap_without_a_quorum_of_living_founders_is_left() {
    let (mut first, mut out) = bootstrapper(1, &[2, 3], |_| {});
    assert!(founded(&mut out));
    let down = |id: u64, ended: bool| In::Down {
        node: NodeId(id),
        incarnation: Incarnation(id + 100),
        ended,
    };
    let mut now = Instant(0);
    let mut resigns_after = |event: In| {
        first.handle(event, now, &mut out);
        now = now.after(VOID_LOOK_EVERY);
        first.handle(In::Tick, now, &mut out);
        out.take().contains(&Effect::Resign(GivesUp::ForDecided))
    };
    assert!(!resigns_after(down(2, true)), "two of three are a quorum");
    assert!(!resigns_after(down(3, false)), "silence is no end");
    assert!(resigns_after(down(3, true)));
    first.handle(In::Resigned(true), now, &mut out);
    assert!(first.life.is_new());
}

/// Over a long run more nodes come and go than a view has room for.
#[test]
fn a_run_admits_nodes_however_many_have_come_and_gone() {
    let mut out = Outbox::default();
    let mut member = machine(1, 1, "");
    member.handle(In::Synchronize(ModelSize::of(23)), Instant(0), &mut out);
    let standing = member.life.standing.clone().unwrap();
    member.handle(
        In::Decided(at(standing.lineage, Round(5), standing.view)),
        Instant(0),
        &mut out,
    );
    for id in 10..15 + MEMBERS_MAX as u64 {
        let identity = Identity {
            cluster: ClusterId(7),
            node: NodeId(id),
            incarnation: Incarnation(id),
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 7000 + (id % 50_000) as u16));
        let model = Some(ModelSize::of(23));
        let hello = Hello {
            address,
            devices: 1,
            settings: String::new(),
            model,
            standing: None,
            lineage: None,
        };
        let header = identity.header(member.place());
        member.handle(
            In::PeerUp(identity.node, identity.incarnation),
            Instant(0),
            &mut out,
        );
        out.take();
        for message in [Message::Hello(hello), Message::Join] {
            member.handle(
                In::Frame {
                    header,
                    message: Box::new(message),
                },
                Instant(0),
                &mut out,
            );
        }
        let admits = |effect: &Effect| matches!(effect, Effect::Joiners { members, .. } if members.iter().any(|known| known.id.0 == id));
        assert!(out.take().iter().any(admits), "node {id} is not admitted");
        member.handle(
            In::PeerDown {
                node: identity.node,
                departed: true,
            },
            Instant(0),
            &mut out,
        );
    }
}
