//! Nodes that do not fit together: which of them give up, and what the others say while they wait.

use super::bootstrapping::found;
use super::*;

/// Dialing node `id` failed.
pub(super) fn dial_failed(id: u64, fault: DialFault, error: &str) -> In {
    In::DialFailed {
        address: member(id).address,
        tried_for: Span::from_millis(12),
        fault,
        error: error.to_owned(),
    }
}

/// A node that knows the addresses of the nodes 1 to `min_nodes`, and has synchronized.
fn bench(id: u64, min_nodes: usize, change: impl FnOnce(&mut Settings)) -> Bench {
    let mut node = Bench::with(id, min_nodes, |settings| {
        settings.meet_timeout = Span::from_millis(600_000);
        settings.synchronize_timeout = Span::from_millis(600_000);
        change(settings);
    });
    let addresses = (1..=min_nodes as u64).map(|id| member(id).address);
    node.feed(In::Discovered(addresses.collect()));
    node.synchronize();
    node
}

/// Waits as long as a refused node stays for the others; the error, if it gives up.
fn gives_up(node: &Bench) -> Option<String> {
    let mut node = node.clone();
    if let Some(error) = &node.machine.failed {
        return Some(error.to_string());
    }
    let effects = node.tick_after(REFUSED_WAIT_MAX);
    fails(&effects).map(ToString::to_string)
}

fn other_tau(id: u64) -> Membership {
    Membership {
        model: Some(ModelSize::of(23)),
        ..machine(id, 2, "tau = 24")
    }
}

#[test]
fn of_two_the_one_with_the_smaller_address_stays_and_the_other_names_both_values() {
    let settings = vec![
        (machine(1, 2, "tau = 12"), 23),
        (machine(2, 2, "tau = 24"), 23),
    ];
    let models = vec![(machine(1, 2, ""), 23), (machine(2, 2, ""), 24)];
    for (machines, parts) in [
        (settings, ["node 1", "node 2", "tau", "12", "24"]),
        (models, ["node 1", "node 2", "model", "23", "24"]),
    ] {
        let seen = found(machines);
        assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [2]);
        let text = fails(&seen[&2]).unwrap().to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn the_node_that_bootstraps_by_its_key_stays() {
    let mut second = bench(2, 2, |settings| settings.bootstrap = Bootstrap::Yes);
    second.connect(&other_tau(1));
    assert_eq!(gives_up(&second), None);
    let mut first = bench(1, 2, |settings| settings.bootstrap = Bootstrap::No);
    first.connect(&other_tau(2));
    assert!(gives_up(&first).is_some());
}

#[test]
fn one_wrong_node_gives_up_and_the_right_ones_wait_and_name_it() {
    // The wrong one has the smallest address, and is met first.
    let mut right = bench(2, 3, |_| {});
    right.connect(&other_tau(1));
    assert_eq!(gives_up(&right), None, "node 3 has not been met");
    right.connect(&peer(3, None));
    assert_eq!(gives_up(&right), None);
    let waiting = right.waiting();
    assert!(
        waiting.starts_with(
            "2 of min_nodes = 3 nodes have met; 127.0.0.1:7001 is refused: node 1 has other \
             settings: tau"
        ),
        "{waiting}"
    );
    right.disconnect(1, false);
    assert!(right.waiting().contains("127.0.0.1:7001 is refused"));

    let mut wrong = bench(1, 3, |settings| settings.shared = "tau = 24".to_owned());
    wrong.connect(&peer(2, None));
    assert_eq!(gives_up(&wrong), None, "one says this, one says that");
    wrong.connect(&peer(3, None));
    let told = gives_up(&wrong).unwrap();
    assert!(told.contains("tau is 24 here, (not set) there"), "{told}");

    let mut corrected = peer(1, None);
    corrected.settings.identity.incarnation = Incarnation(7);
    right.connect(&corrected);
    let waiting = right.waiting();
    assert!(
        waiting.starts_with("127.0.0.1:7001 bootstraps") && !waiting.contains("refused"),
        "{waiting}"
    );
}

#[test]
fn a_node_that_most_addresses_refuse_gives_up_and_one_that_one_refuses_does_not() {
    let key = "its certificate was not issued under this cluster's key";
    let mut wrong = bench(1, 3, |_| {});
    wrong.feed(dial_failed(2, DialFault::Stranger, key));
    assert_eq!(gives_up(&wrong), None);
    wrong.feed(dial_failed(3, DialFault::Stranger, key));
    let told = gives_up(&wrong).unwrap();
    assert!(
        told.contains("127.0.0.1:7002 after 12 ms") && told.contains(key),
        "{told}"
    );
    let mut right = bench(2, 3, |_| {});
    right.feed(dial_failed(1, DialFault::Stranger, key));
    right.connect(&peer(3, None));
    assert_eq!(gives_up(&right), None);
    let waiting = right.waiting();
    assert!(
        waiting.contains("127.0.0.1:7001 is refused: its certificate"),
        "{waiting}"
    );
    right.feed(dial_failed(1, DialFault::Silent, "no answer"));
    assert!(right.waiting().contains("no answer"), "it is gone");
    let mut last = bench(2, 2, |_| {});
    last.feed(dial_failed(1, DialFault::Stranger, key));
    assert!(
        gives_up(&last).is_some(),
        "of two, the one with the larger address"
    );
}

#[test]
fn an_address_that_may_be_of_an_earlier_run_is_no_reason_to_give_up() {
    let mut node = bench(2, 2, |settings| settings.addresses_may_be_stale = true);
    node.feed(dial_failed(1, DialFault::Stranger, "another key"));
    assert_eq!(gives_up(&node), None);
    node.feed(dial_failed(1, DialFault::IdTaken, "it uses this node's id"));
    assert!(
        gives_up(&node).is_some(),
        "the other one has this cluster's key"
    );
}

#[test]
fn an_address_whose_node_dials_this_one_is_not_of_an_earlier_run() {
    let stale = |settings: &mut Settings| settings.addresses_may_be_stale = true;
    let mut wrong = bench(2, 3, stale);
    wrong.feed(In::StrangerDialed(member(1).address));
    assert!(wrong.machine.misfits.is_empty(), "anybody may dial");
    for other in [1, 3] {
        wrong.feed(dial_failed(other, DialFault::Stranger, "another key"));
    }
    assert_eq!(gives_up(&wrong), None);
    for other in [1, 3] {
        wrong.feed(In::StrangerDialed(member(other).address));
    }
    // It is dialed again before it gives up.
    wrong.feed(dial_failed(1, DialFault::Stranger, "another key"));
    assert!(gives_up(&wrong).is_some());
    let mut right = bench(1, 3, stale);
    right.feed(dial_failed(2, DialFault::Stranger, "another key"));
    right.feed(In::StrangerDialed(member(2).address));
    right.connect(&peer(3, None));
    assert_eq!(gives_up(&right), None);
}

#[test]
fn a_joiner_that_every_known_address_refuses_gives_up_at_once() {
    let mut node = bench(9, 2, |settings| settings.join = true);
    node.feed(dial_failed(1, DialFault::Stranger, "another key"));
    assert!(node.machine.failed.is_none(), "node 2 may let it in");
    assert!(
        node.waiting()
            .contains("127.0.0.1:7001 is refused: another key")
    );
    let effects = node.feed(dial_failed(2, DialFault::IdTaken, "it uses this node's id"));
    assert!(fails(&effects).unwrap().to_string().contains("another key"));
}

#[test]
fn a_joiner_waits_beside_nodes_with_other_settings_for_a_cluster() {
    let mut node = bench(9, 2, |settings| settings.join = true);
    node.connect(&other_tau(1));
    node.connect(&other_tau(2));
    assert_eq!(gives_up(&node), None);
}

#[test]
fn who_is_missing_is_named_when_the_time_to_meet_is_over() {
    let mut node = Bench::new(1, 2);
    node.synchronize();
    let late = Instant(100).after(DIAL_ERROR_WAIT_MAX);
    node.machine.look_by = None;
    assert_eq!(node.machine.next_deadline(), Some(late));
    node.feed(dial_failed(9, DialFault::Silent, "no answer"));
    let effects = node.tick_at(late);
    let Some(BootstrapError::TooFew {
        needed: 2,
        present,
        waited: Span(100),
        ..
    }) = fails(&effects)
    else {
        panic!("{effects:?}")
    };
    assert_eq!(present, &[NodeId(1)]);
    let told = fails(&effects).unwrap().to_string();
    assert!(
        told.ends_with("(last failure: no connection to 127.0.0.1:7009 after 12 ms: no answer)"),
        "{told}"
    );
}

#[test]
fn those_that_have_met_wait_for_each_other_from_then_on() {
    let mut node = bench(2, 2, |settings| {
        settings.synchronize_timeout = Span::from_millis(5_000)
    });
    node.now = Instant(0).after(Span::from_millis(500_000));
    let mut silent = peer(1, None);
    silent.model = None;
    node.connect(&silent);
    assert!(fails(&node.tick_after(Span::from_millis(4_999))).is_none());
    let effects = node.tick_after(Span::from_millis(1));
    assert!(
        fails(&effects)
            .unwrap()
            .to_string()
            .contains("within 5000 ms")
    );
}

#[test]
fn a_node_that_waits_says_so_now_and_then() {
    let mut node = bench(1, 2, |_| {});
    let mut told = Vec::new();
    while node.now < Instant(0).after(Span::from_millis(125_000)) {
        node.now = node.machine.next_deadline().unwrap();
        let mut out = Outbox::default();
        node.machine.handle(In::Tick, node.now, &mut out);
        let still = |effect: &Effect| matches!(effect, Effect::StillWaits(_));
        told.extend(
            out.take()
                .iter()
                .filter(|effect| still(effect))
                .map(|_| node.now),
        );
    }
    assert_eq!(told, [5, 65, 125].map(|s| Instant(s * 1_000_000)));
}

#[test]
fn a_node_that_is_gone_was_compared_with() {
    let mut second = peer(2, None);
    second.model = Some(ModelSize::of(24));
    let mut first = Bench::new(1, 2);
    first.connect(&second);
    first.disconnect(2, false);
    first.synchronize();
    let waiting = first.waiting();
    assert!(
        waiting.contains("127.0.0.1:7002 is refused: node 2 has another model: 23 parameters"),
        "{waiting}"
    );
}
