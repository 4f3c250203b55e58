//! Which process forms the bootstrap view, of whom, and when one is given up.

use super::*;
use crate::coordinator::GivesUp;
use crate::membership::bootstrap::VOID_LOOK_EVERY;

/// Connects all, lets each synchronize with its model size and carries every frame; what else
/// happened, by node.
pub(super) fn found(machines: Vec<(Membership, u64)>) -> BTreeMap<u64, Vec<Effect>> {
    let now = Instant(0);
    let peers: Vec<Identity> = machines
        .iter()
        .map(|(machine, _)| machine.settings.identity)
        .collect();
    let mut nodes: BTreeMap<NodeId, Bench> = BTreeMap::new();
    let mut pending = std::collections::VecDeque::new();
    for (machine, elements) in machines {
        let me = machine.me();
        let mut node = Bench { machine, now };
        for peer in peers.iter().filter(|peer| peer.node != me) {
            let effects = node.feed(In::PeerUp(peer.node, peer.incarnation));
            pending.extend(effects.into_iter().map(|effect| (me, effect)));
        }
        let effects = node.feed(In::Synchronize(ModelSize::of(elements)));
        pending.extend(effects.into_iter().map(|effect| (me, effect)));
        nodes.insert(me, node);
    }
    let mut seen: BTreeMap<u64, Vec<Effect>> = BTreeMap::new();
    while let Some((of, effect)) = pending.pop_front() {
        match effect {
            Effect::Send {
                to,
                frame: Frame::V1 { header, message },
            } => {
                let node = nodes.get_mut(&to).unwrap();
                let effects = node.feed(In::Frame { header, message });
                pending.extend(effects.into_iter().map(|effect| (to, effect)));
            }
            Effect::Formed { .. } | Effect::Fail(_) => seen.entry(of.0).or_default().push(effect),
            _ => {}
        }
    }
    seen
}

#[test]
fn all_nodes_form_the_same_view() {
    let seen = found([9, 4, 6].map(|id| (machine(id, 3, "tau = 12"), 23)).into());
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
fn one_node_founds_alone_unless_it_only_joins() {
    assert!(formed(&found(vec![(machine(4, 1, ""), 23)])[&4]));
    let mut joins = machine(4, 1, "");
    joins.settings.join = true;
    assert_eq!(found(vec![(joins, 23)]), BTreeMap::new());
    // Nor do bootstrap members count on it, although its id is lower than theirs.
    let mut joins = machine(1, 2, "");
    joins.settings.join = true;
    let seen = found(vec![
        (joins, 23),
        (machine(2, 2, ""), 23),
        (machine(3, 2, ""), 23),
    ]);
    let [Effect::Formed { view, .. }] = &seen[&2][..] else {
        panic!("{seen:?}")
    };
    assert_eq!(view.ids().collect::<Vec<_>>(), [NodeId(2), NodeId(3)]);
}

#[test]
fn a_view_is_acted_on_only_when_every_member_can_be_sent_to() {
    let mut node = Bench::new(2, 3);
    node.up(1);
    node.synchronize();
    let bootstrap = Message::Bootstrap {
        view: view(1, &[1, 2, 3]),
        lineage: Lineage(5),
    };
    assert_eq!(node.hear(&peer(1, None), bootstrap), []);
    assert!(formed(&node.up(3)), "node 3 can be sent to");
}

#[test]
fn a_hello_is_kept_within_the_bound_of_its_settings() {
    let mut node = Bench::new(1, 9);
    let sender = machine(2, 9, &"\nx = 1".repeat(1 << 16));
    assert_eq!(node.meet(&sender), [Effect::Connect(member(2).address)]);
    assert_eq!(
        node.machine.hellos[&NodeId(2)].settings("").len(),
        settings::SETTINGS_BYTES_MAX
    );
}

#[test]
fn little_is_kept_of_a_hello_with_a_large_view() {
    let mut node = Bench::new(1, 9);
    let view = view(4, &(2..4_000).collect::<Vec<_>>());
    for id in 2..40 {
        node.meet(&peer(id, Some(at(FIRST, 7, view.clone()))));
    }
    let hellos = &node.machine.hellos;
    assert_eq!(hellos.len(), 38);
    assert!(hellos.values().all(|known| known.stands_in == Some(FIRST)));
    assert!(
        std::mem::size_of::<known::Known>() <= 384,
        "it has no list of anything"
    );
    let cluster = node.machine.life.cluster.as_ref();
    assert_eq!(
        cluster.map(|cluster| cluster.view.size()),
        Some(view.size()),
        "the view is kept once"
    );
}

#[test]
fn a_node_that_gave_up_enters_no_view() {
    let mut node = Bench::new(2, 3);
    node.synchronize();
    let effects = node.tick_at(Instant(100).after(DIAL_ERROR_WAIT_MAX));
    assert!(fails(&effects).is_some());
    node.up(1);
    let bootstrap = Message::Bootstrap {
        view: view(1, &[1, 2]),
        lineage: Lineage(5),
    };
    assert_eq!(node.hear(&peer(1, None), bootstrap), []);
}

/// A node that knows three addresses, one of them its own, and has met the nodes of `met`, which
/// train the same; what the last of these events caused.
fn bootstrapper(id: u64, met: &[u64], change: impl FnOnce(&mut Settings)) -> (Bench, Vec<Effect>) {
    let mut node = Bench::with(id, 2, |settings| {
        settings.meet_timeout = Span::from_millis(60_000);
        settings.synchronize_timeout = Span::from_millis(60_000);
        change(settings);
    });
    node.synchronize();
    let addresses = [1, 2, 3].map(|id| member(id).address).to_vec();
    let mut effects = node.feed(In::Discovered(addresses));
    for id in met {
        effects.extend(node.connect(&peer(*id, None)));
    }
    (node, effects)
}

#[test]
fn the_smallest_address_bootstraps_once_all_have_answered_or_had_the_time_to() {
    let (mut first, effects) = bootstrapper(1, &[2], |_| {});
    assert!(!formed(&effects), "node 3 may know a run");
    let mut late = first.clone();
    assert!(formed(&first.connect(&peer(3, None))));
    let by = Instant(0).after(LOOK_FOR_RUN_WAIT);
    assert_eq!(late.machine.next_deadline(), Some(by));
    assert!(formed(&late.tick_at(by)));
    let (second, effects) = bootstrapper(2, &[1, 3], |_| {});
    assert!(!formed(&effects));
    let waiting = second.waiting();
    assert!(
        waiting.starts_with("127.0.0.1:7001 bootstraps the run"),
        "{waiting}"
    );
}

#[test]
fn the_key_bootstrap_names_who_founds() {
    let (_, effects) = bootstrapper(3, &[1, 2], |settings| settings.bootstrap = Bootstrap::Yes);
    assert!(formed(&effects));
    let (first, effects) = bootstrapper(1, &[2, 3], |settings| settings.bootstrap = Bootstrap::No);
    assert!(!formed(&effects));
    let waiting = first.waiting();
    assert!(waiting.contains("bootstrap = no here"), "{waiting}");
    let (_, effects) = bootstrapper(2, &[1, 3], |settings| {
        settings.addresses_may_be_stale = true
    });
    assert!(!formed(&effects), "node 1 is met, and smaller");
}

#[test]
fn who_was_started_again_founds_nothing_before_everybody_has_answered() {
    let names_model = |effects: &[Effect]| {
        frames(effects)
            .any(|(_, message)| matches!(message, Message::Hello(hello) if hello.model.is_some()))
    };
    let (mut first, mut effects) = bootstrapper(1, &[2], |settings| settings.restarted = true);
    effects.extend(first.tick_after(LOOK_FOR_RUN_WAIT));
    effects.extend(first.tick_after(Span::from_millis(100_000)));
    assert!(
        !formed(&effects) && fails(&effects).is_none(),
        "{effects:?}"
    );
    let waiting = first.waiting();
    assert!(
        waiting.starts_with("this node was restarted, and 1 of the known addresses"),
        "{waiting}"
    );
    assert!(!names_model(&effects), "no founder counts on it");
    let effects = first.connect(&peer(3, None));
    assert!(names_model(&effects) && formed(&effects), "{effects:?}");
    let (_, effects) = bootstrapper(1, &[2, 3], |settings| {
        settings.restarted = true;
        settings.bootstrap = Bootstrap::Yes;
    });
    assert!(formed(&effects));
}

#[test]
fn a_bootstrap_without_a_quorum_of_living_founders_is_left() {
    let (mut first, effects) = bootstrapper(1, &[2, 3], |_| {});
    assert!(formed(&effects));
    let mut resigns_after = |id: u64, ended: bool| {
        let mut effects = first.dead(id, ended);
        effects.extend(first.tick_after(VOID_LOOK_EVERY));
        effects.contains(&Effect::Resign(GivesUp::ForDecided))
    };
    assert!(!resigns_after(2, true), "two of three are a quorum");
    assert!(!resigns_after(3, false), "silence is no end");
    assert!(resigns_after(3, true));
    first.feed(In::Resigned(true));
    assert!(first.machine.life.is_new());
}

/// Node 3 waits for the bootstrap of nodes 1 and 2, which they give up.
#[test]
fn a_bootstrap_that_its_members_gave_up_is_waited_for_no_longer() {
    let mut node = Bench::new(3, 2);
    node.synchronize();
    for id in [1, 2] {
        node.connect(&peer(id, Some(at(FIRST, 0, view(1, &[1, 2])))));
    }
    node.meet(&peer(1, None));
    node.tick_after(VOID_LOOK_EVERY);
    assert!(
        node.machine.life.cluster.is_some(),
        "node 2 may still decide it"
    );
    node.meet(&peer(2, None));
    node.tick_after(VOID_LOOK_EVERY);
    assert_eq!(node.machine.life.cluster, None);
}

/// A coordinator that is ready for round 0 keeps its bootstrap.
#[test]
fn a_bootstrap_that_the_coordinator_keeps_is_entered_again() {
    let (mut first, _) = bootstrapper(1, &[2, 3], |_| {});
    let standing = first.machine.life.standing.clone();
    for id in [2, 3] {
        first.dead(id, true);
    }
    assert!(resigns(&first.tick_after(VOID_LOOK_EVERY)));
    let effects = first.feed(In::Resigned(false));
    assert_eq!(first.machine.life.standing, standing);
    assert!(effects.contains(&Effect::Search(false)), "{effects:?}");
}
