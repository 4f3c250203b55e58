//! A node in a process of its own that is killed: the other one passes it over at once where it is a quorum, and waits for its
//! return where it is none.

use crate::support::{Training, bits, by_the_book, local_sgd, train};
use slowmo::admin::{Answer, Report, Request};
use slowmo::config::ClusterKey;
use slowmo::launcher::LAUNCHER_VARIABLE;
use slowmo::{Config, Runtime, StepReport, digest};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const VALUES: usize = 600;
const TAU: usize = 4;
const BETA: f32 = 0.5;
/// The lowest id: half of two nodes with it are a quorum, half without it are none.
const LOW: u64 = 4;
const HIGH: u64 = 7;
/// Far above what a round takes that a node was lost in, far below every time-out of the configuration.
const SOON: Duration = Duration::from_secs(2);
/// How long nothing happens where nothing may happen.
const SILENCE: Duration = Duration::from_secs(1);
/// Rounds of both nodes after which a run ends.
const TOGETHER: usize = 12;
const KEY: ClusterKey = ClusterKey::from_bytes([9; 32]);
/// The environment of the process that is killed: its id, and the folder in which the nodes find each other.
const NODE_VARIABLE: &str = "CHAOS_TEST_NODE";
const RENDEZVOUS_VARIABLE: &str = "CHAOS_TEST_RENDEZVOUS";

/// Starts one of two nodes and trains it until `done`.
fn train_one(id: u64, rendezvous: &Path, mut done: impl FnMut(&StepReport) -> bool) -> Training {
    let admin = Some(rendezvous.with_extension(id.to_string()));
    let (folder, cluster_key) = (Some(rendezvous.to_owned()), Some(KEY));
    let config = Config { node_id: Some(id), min_nodes: 2, rendezvous: folder, cluster_key, admin, ..local_sgd(1, TAU as u64, 1.0, BETA) };
    let node = Runtime::builder().config(config).spawn().unwrap();
    let mut worker = node.worker(0).unwrap();
    let training = train(&mut worker, id, VALUES, |report| {
        thread::sleep(Duration::from_millis(2));
        done(report)
    });
    worker.leave().unwrap();
    training
}

/// The process that the tests below start and kill; as a test of its own it does nothing. Unless it is killed before, it trains
/// [`TOGETHER`] rounds with the other node and prints where it began and its digest after each step.
#[test]
fn a_node_in_a_process_of_its_own() {
    let Some(rendezvous) = std::env::var_os(RENDEZVOUS_VARIABLE) else { return };
    let id = std::env::var(NODE_VARIABLE).unwrap().parse().unwrap();
    let mut together = 0;
    let Training { first, seen } = train_one(id, Path::new(&rendezvous), |report| {
        together += usize::from(report.contributors == 2);
        together == TOGETHER
    });
    for (step, values) in (first..).zip(&seen.values) {
        println!("trained {step} {}", digest(values).unwrap());
    }
}

fn process(id: u64, rendezvous: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::a_node_in_a_process_of_its_own", "--nocapture"])
        .env(RENDEZVOUS_VARIABLE, rendezvous)
        .env(NODE_VARIABLE, id.to_string())
        // It ends with this process, also if an assertion fails before it is killed.
        .env(LAUNCHER_VARIABLE, std::process::id().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn kill(mut process: Child) -> Instant {
    process.kill().unwrap();
    let killed = Instant::now();
    process.wait().unwrap();
    killed
}

/// The model after each step, made again from who contributed: both, or `alone`.
fn assert_by_the_book(Training { first, seen }: &Training, alone: u64) {
    assert_eq!(*first, 0);
    let recorded = seen.reports.iter().map(|report| if report.contributors == 2 { vec![LOW, HIGH] } else { vec![alone] });
    let expected = by_the_book(VALUES, TAU, BETA, &recorded.collect::<Vec<_>>());
    for (step, (values, expected)) in seen.values.iter().zip(&expected).enumerate() {
        assert_eq!(bits(values), bits(expected), "step {step}");
    }
}

#[test]
fn a_quorum_goes_on_at_once() {
    let rendezvous = tempfile::tempdir().unwrap();
    let (mut victim, mut killed, mut passed_over, mut alone) = (Some(process(HIGH, rendezvous.path())), None, None, 0);
    let training = train_one(LOW, rendezvous.path(), |report| {
        if report.step == 5 {
            killed = victim.take().map(kill);
        }
        if report.contributors == 1 {
            passed_over.get_or_insert_with(Instant::now);
            alone += 1;
        }
        assert_eq!(report.nodes, report.contributors, "{report:?}");
        alone == 10
    });
    let waited = passed_over.unwrap() - killed.unwrap();
    assert!(waited < SOON, "decided {waited:?} after the kill");
    assert_by_the_book(&training, LOW);
}

fn status(socket: &Path) -> Report {
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, "{}", serde_json::to_string(&Request::Status).unwrap()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let Answer::Status(report) = serde_json::from_str(&line).unwrap() else { panic!("no status: {line}") };
    *report
}

#[test]
fn without_a_quorum_the_survivor_waits_and_says_so_until_the_other_one_is_back() {
    let rendezvous = tempfile::tempdir().unwrap();
    let victim = process(LOW, rendezvous.path());
    let (tell, told) = mpsc::channel();
    let folder = rendezvous.path().to_owned();
    let survivor = thread::spawn(move || {
        let (mut lost, mut together) = (false, 0);
        train_one(HIGH, &folder, |report| {
            tell.send(*report).unwrap();
            lost |= report.contributors == 1;
            together += usize::from(lost && report.contributors == 2);
            together == TOGETHER
        })
    });
    while told.recv_timeout(crate::support::PATIENCE).unwrap().step < 5 {}
    kill(victim);
    // What the lost node decided before it died may still be applied.
    while let Ok(report) = told.recv_timeout(SILENCE) {
        assert_eq!(report.contributors, 2, "half of two without the lowest id decides nothing: {report:?}");
    }
    let report = status(&rendezvous.path().with_extension(HIGH.to_string()));
    assert_eq!(report.members.iter().map(|member| (member.node, member.alive)).collect::<Vec<_>>(), [(LOW, false), (HIGH, true)]);
    let why = report.waiting_for.unwrap();
    for part in ["1 of 2 members live (node 7)", "no quorum", "Bring back node 4", "quorum = survivors"] {
        assert!(why.contains(part), "{why:?} should say {part:?}");
    }
    let returned = process(LOW, rendezvous.path()).wait_with_output().unwrap();
    let training = survivor.join().unwrap();
    assert_by_the_book(&training, HIGH);
    let printed = String::from_utf8(returned.stdout).unwrap();
    let expected: Vec<_> =
        (0..).zip(&training.seen.values).map(|(step, values)| format!("trained {step} {}", digest(values).unwrap())).collect();
    let trained: Vec<_> = printed.lines().filter(|line| line.starts_with("trained ")).collect();
    assert_eq!(trained.len(), TOGETHER, "{printed}");
    assert_eq!(trained, expected[expected.len() - TOGETHER..], "the node that is back is the same from its first step on");
}
