//! Settings that an operator changes while nodes train: all of them, also one that joins later, use
//! the new values from the same step on.

use crate::support::{
    PATIENCE, RATE, Training, bits, in_hub, local_sgd, overlapped, sgp, train, until,
};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Exchange, Runtime, StepReport};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const VALUES: usize = 600;
const FOUNDERS: [u64; 3] = [1, 2, 3];
const LATE: u64 = 4;

/// The value of a key that is in force on a node.
fn in_force(node: &Runtime, key: &str) -> String {
    let settings = node.status().settings;
    let found = settings.into_iter().find(|setting| setting.key == key);
    found.unwrap().value
}

/// Returns the exchanges of a node, by step.
fn exchanges(reports: &[StepReport]) -> BTreeMap<u64, (Exchange, bool)> {
    let exchange = |report: &StepReport| (report.step, (report.exchange, report.slow_step));
    reports.iter().map(exchange).collect()
}

/// Lets the training threads end when the test fails, which waits for them.
struct Ends<'a>(&'a AtomicU64);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(0, Ordering::SeqCst);
        }
    }
}

/// The exchanges of a node at each step, and the bits of its model after the last one.
type Trained = (BTreeMap<u64, (Exchange, bool)>, Vec<u32>);

/// Three nodes train with τ = 4, and with other settings after some steps; a fourth one, which is
/// configured as the others were, joins after that. Returns what each exchanged, from the step on
/// at which the settings were in force, and the model after the last step.
fn changed(config: &Config, settings: &[(&str, &str)]) -> Vec<Trained> {
    let hub = MemoryHub::new(None);
    let config = Config {
        min_nodes: FOUNDERS.len(),
        ..config.clone()
    };
    let nodes: Vec<Runtime> = FOUNDERS
        .iter()
        .map(|id| in_hub(&hub, *id, &FOUNDERS, &config))
        .collect();
    let last = &AtomicU64::new(u64::MAX);
    let training = |node: &Runtime| {
        let mut worker = node.worker(0).unwrap();
        let trained = train(&mut worker, node.node_id(), VALUES, |report| {
            thread::sleep(Duration::from_millis(1));
            report.step >= last.load(Ordering::SeqCst)
        });
        worker.leave().unwrap();
        trained
    };
    thread::scope(|scope| {
        let _ends = Ends(last);
        let founders: Vec<_> = nodes
            .iter()
            .map(|node| scope.spawn(move || training(node)))
            .collect();
        until("training goes on", || nodes[1].status().round > 3);
        for (key, value) in settings {
            // Each is asked for at another node.
            nodes[1].set(key, value).unwrap();
            until("the change is in force everywhere", || {
                nodes.iter().all(|node| in_force(node, key) == *value)
            });
        }
        let from = nodes.iter().map(|node| node.status().step).max().unwrap();
        let joins = Config {
            join: true,
            ..config.clone()
        };
        let late = Arc::new(in_hub(&hub, LATE, &FOUNDERS, &joins));
        let joined = scope.spawn({
            let late = Arc::clone(&late);
            move || training(&late)
        });
        until("it joins", || {
            nodes[0].status().contributors.len() == FOUNDERS.len() + 1
        });
        let newest: BTreeMap<&str, &str> = settings.iter().copied().collect();
        for (key, value) in newest {
            assert_eq!(in_force(&late, key), value);
        }
        // Far enough ahead that nobody is past it, and a slow step in both schedules.
        let ahead = nodes.iter().map(|node| node.status().step).max().unwrap() + 240;
        last.store(ahead - ahead % 12 - 1, Ordering::SeqCst);
        let all = founders.into_iter().chain([joined]);
        let seen = |Training { seen, .. }: Training| {
            let values = seen.values.last().map(|values| bits(values)).unwrap();
            let mut exchanged = exchanges(&seen.reports);
            exchanged.retain(|step, _| *step >= from);
            (exchanged, values)
        };
        all.map(|training| seen(training.join().unwrap())).collect()
    })
}

/// All nodes exchange the same at the same steps, by this schedule, and end with the same model.
fn agree(seen: &[Trained], due: impl Fn(u64) -> (Exchange, bool)) {
    for (exchanged, values) in seen {
        assert!(exchanged.len() > 100, "{exchanged:?}");
        for (step, found) in exchanged {
            assert_eq!(*found, due(*step), "step {step}");
        }
        assert_eq!(values, &seen[0].1);
    }
}

#[test]
fn local_sgd_changes_its_schedule_and_its_encoding_on_all_nodes_at_once() {
    let settings = [
        ("tau", "6"),
        ("frequency", "3"),
        ("round_wire", "int8"),
        ("grace_ms", "9000"),
        ("round_wire", "bf16"),
    ];
    let seen = changed(&local_sgd(1, 4, 1.0, 0.5), &settings);
    agree(&seen, |step| match step + 1 {
        steps if steps % 6 == 0 => (Exchange::SlowRound, true),
        steps if steps % 3 == 0 => (Exchange::Average, false),
        _ => (Exchange::Nothing, false),
    });
}

#[test]
fn gossip_changes_its_schedule_and_its_encoding_on_all_nodes_at_once() {
    for config in [sgp(4, 0.5), overlapped(4, 0.5)] {
        let settings = [
            ("gossip_wire", "int8"),
            ("tau", "6"),
            ("gossip_wire", "f32"),
        ];
        let seen = changed(&config, &settings);
        agree(&seen, |step| match step + 1 {
            steps if steps % 6 == 0 => (Exchange::SlowRound, true),
            _ => (Exchange::Gossip, false),
        });
    }
}

#[test]
fn what_cannot_change_is_refused_by_name() {
    let hub = MemoryHub::new(None);
    let config = Config {
        round_timeout_ms: 20_000,
        ..local_sgd(1, 4, 1.0, 0.5)
    };
    let node = in_hub(&hub, 1, &[1], &config);
    let refused = |key: &str, value: &str| node.set(key, value).unwrap_err().to_string();
    let cases = [
        (
            "tau",
            "0",
            "tau = 0 (from an order): tau must be a whole number of 1 or more",
        ),
        ("beta", "0.1", "beta does not change in a running job"),
        (
            "betta",
            "0.1",
            "unknown key betta (from an order): did you mean beta?",
        ),
        (
            "gossip_wire",
            "int8",
            "gossip_wire has no effect in this job: its base is not sgp",
        ),
        (
            "round_wire",
            "int4",
            "round_wire must be one of f32, bf16, int8",
        ),
        (
            "checkpoint_every",
            "3",
            "were started without checkpoint_every",
        ),
        ("grace_ms", "10001", "set grace_ms to at most 10000"),
    ];
    for (key, value, why) in cases {
        let told = refused(key, value);
        assert!(told.contains(why), "{told}");
    }
    // Nobody has called synchronize.
    let told = refused("tau", "6");
    assert!(told.contains("not a member"), "{told}");
}

#[test]
fn one_alone_changes_too() {
    let hub = MemoryHub::new(None);
    let node = in_hub(&hub, 1, &[1], &local_sgd(1, 4, 1.0, 0.5));
    let mut worker = node.worker(0).unwrap();
    let mut parameters = vec![1.0; 7];
    worker.synchronize(&mut parameters).unwrap();
    node.set("tau", "2").unwrap();
    let mut slow = Vec::new();
    let begun = std::time::Instant::now();
    while slow.len() < 3 && begun.elapsed() < PATIENCE {
        let report = worker.step(&mut parameters, RATE).unwrap();
        if report.slow_step && in_force(&node, "tau") == "2" {
            slow.push(report.step);
        }
    }
    assert!(
        slow.windows(2).all(|pair| pair[1] == pair[0] + 2),
        "{slow:?}"
    );
}
