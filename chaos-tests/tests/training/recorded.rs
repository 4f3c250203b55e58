//! The trace of real nodes is judged by the same rules as the simulation.

use slowmo::internal::transport::faulty::Fault;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{BaseName, Config, ElasticSampler, Runtime, StepError};
use slowmo_chaos::cluster::{Link, in_memory, start};
use slowmo_chaos::invariants::{Judge, Verdict};
use slowmo_chaos::processes::collect;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::{End, Event, Line, Setup};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const IDS: [u64; 3] = [4, 9, 13];
const PARAMETERS: usize = 40;
const SAMPLES: usize = 60;
const STEPS: u64 = 24;
/// Longest connection, founding or round, in milliseconds.
const PATIENCE_MS: u64 = 20_000;

fn config(folder: &Path) -> Config {
    Config {
        trace: Some(folder.to_owned()),
        frequency: 2,
        tau: 4,
        suspect_ms: 300,
        probe_interval_ms: 50,
        connect_timeout_ms: PATIENCE_MS,
        meet_timeout_ms: Some(PATIENCE_MS),
        round_timeout_ms: PATIENCE_MS,
        grace_ms: PATIENCE_MS / 2,
        ..Config::default()
    }
}

/// Trains until `STEPS`, or until the node crashes as it begins `crashes_at`; whether it came
/// through.
fn train(node: &Runtime, crashes_at: Option<u64>) -> bool {
    train_until(node, crashes_at, |step| step == STEPS)
}

/// The same until `is_over` says so of the next step.
fn train_until(
    node: &Runtime,
    crashes_at: Option<u64>,
    mut is_over: impl FnMut(u64) -> bool,
) -> bool {
    let mut worker = node.worker(0).unwrap();
    let mut parameters = vec![node.node_id() as f32; PARAMETERS];
    let mut sampler = ElasticSampler::new(SAMPLES, 3, 7).unwrap();
    worker.attach_sampler(&sampler);
    let mut step = worker.synchronize(&mut parameters).unwrap().step;
    while !is_over(step) {
        if crashes_at == Some(step) {
            node.faults().unwrap().crash();
        }
        let gradient: f32 = sampler
            .next_batch()
            .iter()
            .map(|sample| *sample as f32 / SAMPLES as f32)
            .sum();
        parameters
            .iter_mut()
            .for_each(|value| *value -= 0.1 * (gradient + *value / 8.0));
        worker.report_loss(f64::from(gradient));
        match worker.step(&mut parameters, 0.1) {
            Ok(report) => step = report.step + 1,
            Err(StepError::Exchange { .. }) if crashes_at.is_some() => return false,
            Err(error) => panic!("{error}"),
        }
    }
    worker.leave().unwrap();
    true
}

/// Judges the traces in the folder by every rule. Nodes that say nothing of their end were killed.
fn judge(folder: &Path, replicas: usize) -> (BTreeMap<&'static str, Verdict>, Vec<Line>) {
    let mut found = Vec::new();
    let mut open = BTreeMap::new();
    collect::merge(folder, &mut |line| found.push(line)).unwrap();
    for (index, line) in found.iter().enumerate() {
        match &line.event {
            Event::Started(start) => _ = open.insert(*start, index),
            Event::Ended { start, .. } => _ = open.remove(start),
            Event::Applied { start, .. } | Event::Contributed { start, .. } => {
                _ = open.insert(*start, index)
            }
            _ => {}
        }
    }
    let setup = Setup {
        seed: 0,
        quorum: Quorum::Majority,
        replicas,
        groups: 1,
        parameters: PARAMETERS as u64,
        sharded: true,
        optimizer: None,
        recovers_within: Span::from_millis(PATIENCE_MS),
        samples: Some(SAMPLES as u64),
    };
    let mut lines = vec![Line {
        at: Instant(0),
        event: Event::Begun(setup),
    }];
    for (index, line) in found.into_iter().enumerate() {
        let at = line.at;
        lines.push(line);
        let killed = open.iter().filter(|(_, last)| **last == index);
        lines.extend(killed.map(|(start, _)| Line {
            at,
            event: Event::Ended {
                start: *start,
                end: End::Killed,
            },
        }));
    }
    let end = lines.last().unwrap().at;
    lines.push(Line {
        at: end,
        event: Event::Over,
    });
    let mut judge = Judge::default();
    lines.iter().for_each(|line| _ = judge.observe(line));
    (judge.finish().into_iter().collect(), lines)
}

fn held(verdicts: &BTreeMap<&'static str, Verdict>, name: &str) -> u64 {
    match &verdicts[name] {
        Verdict::Held { checked } => *checked,
        other => panic!("{name}: {other:?}"),
    }
}

fn run(link: Link, crashes_at: Option<u64>) -> (BTreeMap<&'static str, Verdict>, Vec<Line>) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    if crashes_at.is_none() {
        // A busy machine may stop a node for a while; nobody is to take it for dead.
        config.suspect_ms = PATIENCE_MS;
    }
    let cluster = start(&IDS, link, &config).unwrap();
    let begin = |node: Runtime| {
        let crashes_at = if node.node_id() == IDS[1] {
            crashes_at
        } else {
            None
        };
        thread::spawn(move || train(&node, crashes_at))
    };
    let threads: Vec<_> = cluster.nodes.into_iter().map(begin).collect();
    let through: Vec<bool> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(through, [true, crashes_at.is_none(), true]);
    judge(folder.path(), 1)
}

fn assert_nothing_is_violated(verdicts: &BTreeMap<&'static str, Verdict>) {
    let violated: Vec<_> = verdicts
        .iter()
        .filter(|(_, verdict)| matches!(verdict, Verdict::Violated(_)))
        .collect();
    assert!(violated.is_empty(), "{violated:?}");
}

#[test]
fn a_calm_run_holds_every_rule_that_it_shows() {
    for link in [Link::Memory(Some(5)), Link::Quic] {
        let (verdicts, lines) = run(link, None);
        assert_nothing_is_violated(&verdicts);
        // The founding, twelve averages on three nodes.
        assert_eq!(
            (
                held(&verdicts, "one_outcome"),
                held(&verdicts, "identical_parameters")
            ),
            (39, 39)
        );
        assert_eq!(held(&verdicts, "fresh_parameters"), 36);
        assert_eq!(held(&verdicts, "samples_once"), STEPS * 3 * 3);
        assert!(held(&verdicts, "bounds") >= 39 * 3);
        let losses = lines
            .iter()
            .filter(|line| matches!(line.event, Event::Loss { .. }))
            .count();
        let left = lines
            .iter()
            .filter(|line| matches!(line.event, Event::Ended { end: End::Left, .. }))
            .count();
        assert_eq!((losses as u64, left), (3 * STEPS, 3));
    }
}

#[test]
fn a_node_that_crashes_says_nothing_more_and_the_others_keep_the_rules() {
    let (verdicts, lines) = run(Link::Faulty, Some(11));
    assert_nothing_is_violated(&verdicts);
    assert!(
        held(&verdicts, "majority") >= 13
            && held(&verdicts, "momentum_kept") >= 13
            && held(&verdicts, "samples_once") > 0
    );
    let of_the_dead = lines
        .iter()
        .rev()
        .find(|line| matches!(&line.event, Event::Loss { start, .. } if start.node.0 == 9))
        .unwrap();
    assert!(
        matches!(of_the_dead.event, Event::Loss { step, .. } if step.0 == 10),
        "{of_the_dead:?}"
    );
}

#[test]
fn a_torn_last_line_is_left_out_and_the_rest_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = start(&[4, 9], Link::Memory(None), &config(folder.path())).unwrap();
    let threads: Vec<_> = cluster
        .nodes
        .into_iter()
        .map(|node| thread::spawn(move || train(&node, None)))
        .collect();
    threads
        .into_iter()
        .for_each(|thread| assert!(thread.join().unwrap()));
    let mut paths: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    // As SIGKILL may leave it.
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(&paths[0])
        .unwrap();
    file.write_all(b"{\"at\":17000000000000,\"event\":\"applied\",\"node\":4,\"incar")
        .unwrap();
    let (verdicts, _) = judge(folder.path(), 1);
    assert_nothing_is_violated(&verdicts);
    assert_eq!(held(&verdicts, "identical_parameters"), 26);
}

/// Steps that the node which crashed takes once it is back.
const STEPS_BACK: u64 = 40;
/// Longest time that the others train for the node to come back.
const RETURN_MAX: Duration = Duration::from_secs(60);

/// Starts a node whose links are late and lossy.
fn in_bad_network(hub: &MemoryHub, id: u64, config: Config) -> Runtime {
    let config = Config {
        node_id: Some(id),
        min_nodes: IDS.len(),
        runtime_threads: Some(1),
        ..config
    };
    let network = in_memory(hub, id, &IDS);
    let builder = Runtime::builder().config(config).network(network).faulty();
    let node = builder.spawn().unwrap();
    for other in IDS {
        let fault = Fault {
            delay: Duration::from_micros(500),
            jitter: Duration::from_millis(2),
            lost_per_thousand: 50,
            ..Fault::default()
        };
        node.faults().unwrap().set(NodeId(other), fault);
    }
    node
}

/// One node of three crashes and comes back, and a connection of the others breaks meanwhile.
fn assert_keeps_the_rules_in_a_bad_network(change: impl Fn(Config) -> Config) {
    let folder = tempfile::tempdir().unwrap();
    let config = change(config(folder.path()));
    let hub = MemoryHub::new(Some(3));
    let [first, victim, last] = IDS.map(|id| in_bad_network(&hub, id, config.clone()));
    let first_faults = first.faults().unwrap();
    let over = AtomicBool::new(false);
    let begun = std::time::Instant::now();
    let stays = |node: &Runtime| {
        train_until(node, None, |step| {
            if step == 20 {
                first_faults.disconnect(NodeId(IDS[2]));
            }
            thread::sleep(Duration::from_millis(1));
            // If the node does not come back, the others leave, and it fails.
            over.load(Ordering::SeqCst) || begun.elapsed() > RETURN_MAX
        })
    };
    thread::scope(|scope| {
        let staying = [scope.spawn(|| stays(&first)), scope.spawn(|| stays(&last))];
        assert!(!train(&victim, Some(11)));
        let config = Config {
            join: true,
            ..config.clone()
        };
        let back = in_bad_network(&hub, IDS[1], config);
        let mut steps = 0;
        let came_through = train_until(&back, None, |_| {
            steps += 1;
            steps > STEPS_BACK
        });
        over.store(true, Ordering::SeqCst);
        assert!(came_through);
        assert!(staying.into_iter().all(|node| node.join().unwrap()));
    });
    let (verdicts, lines) = judge(folder.path(), 1);
    assert_nothing_is_violated(&verdicts);
    assert!(held(&verdicts, "one_outcome") > 0);
    assert!(held(&verdicts, "identical_parameters") > 0);
    assert!(held(&verdicts, "samples_once") > 0);
    let starts = lines
        .iter()
        .filter(|line| matches!(line.event, Event::Started(_)))
        .count();
    assert_eq!(starts, IDS.len() + 1);
}

#[test]
fn a_node_that_crashes_and_returns_in_a_bad_network_breaks_no_rule() {
    assert_keeps_the_rules_in_a_bad_network(|config| config);
    assert_keeps_the_rules_in_a_bad_network(|config| Config {
        base: BaseName::Sgp,
        staleness: 1,
        frequency: 1,
        ..config
    });
}
