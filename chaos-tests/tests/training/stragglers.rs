//! A training thread that sleeps while its node lives: the others stop to wait for it, name it, and
//! wait again when it goes on.

use crate::support::{IN_ORDER, local_sgd, train, until};
use slowmo::status::StragglerStatus;
use slowmo::{Config, Runtime};
use slowmo_chaos::cluster::{Cluster, start};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const GRACE: Duration = Duration::from_millis(400);
/// Rounds in a row that wait for it.
const WAITED: u64 = 3;

/// Before a round has waited for its grace, the member that leads it says for whom it waits.
#[test]
fn a_round_that_waits_says_for_whom() {
    let config = local_sgd(1, 2, 1.0, 0.5);
    let Cluster {
        nodes,
        rendezvous: _rendezvous,
    } = start(&[3, 4, 5], IN_ORDER, &config).unwrap();
    let (wake, sleeps) = mpsc::channel::<()>();
    let mut sleeps = Some(sleeps);
    let threads: Vec<_> = nodes
        .iter()
        .map(|node| {
            let mut worker = node.worker(0).unwrap();
            let id = node.node_id();
            let mut sleeps = if id == 5 { sleeps.take() } else { None };
            thread::spawn(move || {
                train(&mut worker, id, 12, |report| {
                    if report.step >= 5
                        && let Some(sleeps) = sleeps.take()
                    {
                        sleeps.recv().unwrap();
                    }
                    report.step >= 10
                });
                worker
            })
        })
        .collect();
    let awaits = || nodes.iter().find_map(|node| node.status().awaits);
    until("a node says for whom it waits", || awaits().is_some());
    let told = awaits().unwrap();
    assert!(
        told.contains(" waits for the contribution of node 5, for ")
            && told.ends_with(" s (grace_ms)"),
        "{told}"
    );
    wake.send(()).unwrap();
    until("nobody is waited for", || awaits().is_none());
    for thread in threads {
        thread.join().unwrap();
    }
}

fn straggler_of(node: &Runtime) -> Option<StragglerStatus> {
    node.status().stragglers.first().copied()
}

#[test]
fn rounds_go_on_without_a_sleeping_thread_and_wait_for_it_when_it_wakes() {
    let config = Config {
        grace_ms: GRACE.as_millis() as u64,
        ..local_sgd(1, 2, 1.0, 0.5)
    };
    let Cluster {
        mut nodes,
        rendezvous: _rendezvous,
    } = start(&[3, 4, 5], IN_ORDER, &config).unwrap();
    nodes.sort_by_key(Runtime::node_id);
    let last = Arc::new(AtomicU64::new(u64::MAX));
    let (wake, sleeps) = mpsc::channel::<()>();
    let mut sleeps = Some(sleeps);
    let threads: Vec<_> = nodes
        .iter()
        .map(|node| {
            let mut worker = node.worker(0).unwrap();
            let id = node.node_id();
            let last = Arc::clone(&last);
            let mut sleeps = if id == 5 { sleeps.take() } else { None };
            thread::spawn(move || {
                let seen = train(&mut worker, id, 12, |report| {
                    if report.step >= 5
                        && let Some(sleeps) = sleeps.take()
                    {
                        sleeps.recv().unwrap();
                    }
                    // A step takes its time, or the sleeper would be late for ever.
                    thread::sleep(Duration::from_millis(5));
                    report.step >= last.load(Ordering::SeqCst)
                });
                (seen, worker)
            })
        })
        .collect();

    until("nobody waits for it", || {
        straggler_of(&nodes[0]).is_some_and(|straggler| !straggler.waited_for)
    });
    let named = straggler_of(&nodes[0]).unwrap();
    assert_eq!((named.node, named.step), (5, 6), "{named:?}");
    assert!(
        named.missed >= WAITED && named.ms >= 2 * GRACE.as_millis() as u64,
        "{named:?}"
    );
    let before = nodes[0].status();
    let began = Instant::now();
    until("rounds are quick", || {
        nodes[0].status().round >= before.round + 20
    });
    let each = began.elapsed() / 20;
    assert!(each < GRACE / 2, "a round without it took {each:?}");
    let asleep = nodes[2].status();
    let training = asleep.training.unwrap();
    assert_eq!(
        training.step, 6,
        "its own step does not move with the rounds"
    );
    assert!(
        asleep.step > 20 && training.ms > 2 * GRACE.as_millis() as u64,
        "{asleep:?}"
    );

    wake.send(()).unwrap();
    until("it contributes again", || {
        nodes[0].status().contributors == [3, 4, 5]
    });
    until("nobody is late", || {
        nodes.iter().all(|node| straggler_of(node).is_none())
    });
    let told = nodes[0].status().events;
    let says = |text: &str| told.iter().any(|event| event.what.contains(text));
    assert!(
        says("rounds do not wait for it until its training goes on"),
        "{told:?}"
    );
    assert!(says("node 5 contributes again"), "{told:?}");
    last.store(nodes[0].status().step + 50, Ordering::SeqCst);
    for thread in threads {
        let (training, _worker) = thread.join().unwrap();
        assert_eq!(training.seen.reports.last().unwrap().contributors, 3);
    }
}
