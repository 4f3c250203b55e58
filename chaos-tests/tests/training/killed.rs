//! Nodes in processes of their own that are killed: a quorum goes on at once; whoever is none
//! waits, says why, and goes on when the lost nodes are back.

use crate::support::{PATIENCE, PATIENCE_MS, Training, bits, by_the_book, train};
use slowmo::internal::admin::{Answer, Request};
use slowmo::internal::launcher::LAUNCHER_VARIABLE;
use slowmo::status::Status;
use slowmo::{Config, Runtime, StepReport, digest};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const VALUES: usize = 600;
const TAU: usize = 4;
const BETA: f32 = 0.5;
/// Far above what a round takes that a node was lost in, far below every time-out of the
/// configuration.
const SOON: Duration = Duration::from_secs(2);
/// How long nothing happens where nothing may happen.
const SILENCE: Duration = Duration::from_secs(1);
/// How often a status is read.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Rounds of all nodes after which a node that came back ends, and the one that waited for it.
const TOGETHER: usize = 12;
/// Set in the process that is killed: it trains as the `SLOWMO_*` variables say.
const NODE_VARIABLE: &str = "CHAOS_TEST_NODE";

/// A cluster of processes that find each other in a folder.
struct Processes {
    rendezvous: TempDir,
    ids: &'static [u64],
    quorum: &'static str,
}

impl Processes {
    fn new(ids: &'static [u64], quorum: &'static str) -> Self {
        Self {
            rendezvous: tempfile::tempdir().unwrap(),
            ids,
            quorum,
        }
    }

    fn admin(&self, id: u64) -> std::path::PathBuf {
        self.rendezvous.path().with_extension(id.to_string())
    }

    /// Every node has all momentum, so that none is lost whoever dies.
    fn settings(&self, id: u64) -> Vec<(&'static str, String)> {
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        vec![
            ("node_id", id.to_string()),
            ("min_nodes", self.ids.len().to_string()),
            ("rendezvous", path(self.rendezvous.path())),
            ("cluster_key", "09".repeat(32)),
            ("admin", path(&self.admin(id))),
            ("frequency", "1".to_owned()),
            ("tau", TAU.to_string()),
            ("beta", BETA.to_string()),
            ("replicas", (self.ids.len() - 1).to_string()),
            ("quorum", self.quorum.to_owned()),
            ("on_quorum_loss", "fork".to_owned()),
            ("connect_timeout_ms", PATIENCE_MS.to_string()),
            ("meet_timeout_ms", PATIENCE_MS.to_string()),
            ("round_timeout_ms", PATIENCE_MS.to_string()),
            ("grace_ms", (PATIENCE_MS / 2).to_string()),
        ]
    }

    fn config(&self, id: u64) -> Config {
        self.settings(id)
            .into_iter()
            .fold(Config::default(), |config, (key, value)| {
                config.with(key, value).unwrap()
            })
    }

    /// Starts a node in a process of its own.
    fn start(&self, id: u64) -> Child {
        let variables = self
            .settings(id)
            .into_iter()
            .map(|(key, value)| (format!("SLOWMO_{}", key.to_uppercase()), value));
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "killed::a_node_in_a_process_of_its_own",
                "--nocapture",
            ])
            .env(NODE_VARIABLE, "")
            .envs(variables)
            // It ends with this process, also if an assertion fails before it is killed.
            .env(LAUNCHER_VARIABLE, std::process::id().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Trains a node in this process on a thread of its own until `done`, telling of every step.
    fn train(
        &self,
        id: u64,
        mut done: impl FnMut(&StepReport) -> bool + Send + 'static,
    ) -> (Receiver<StepReport>, thread::JoinHandle<Training>) {
        let config = self.config(id);
        let (tell, told) = channel();
        let training = thread::spawn(move || {
            train_node(config, |report| {
                // Whoever listened may have heard enough.
                _ = tell.send(*report);
                done(report)
            })
        });
        (told, training)
    }

    /// Why a node decides nothing, as soon as its status says it. A killed process is found dead
    /// within this time also where the machine is so busy that its ports are asked late.
    fn reason_to_wait(&self, id: u64) -> String {
        let until = Instant::now() + SOON;
        loop {
            match self.status(id).waiting_for {
                Some(why) => return why,
                None if Instant::now() < until => std::thread::sleep(LOOK_INTERVAL),
                None => panic!("no reason is named why nothing is decided"),
            }
        }
    }

    /// The model of `survivor` after each step, made again from who contributed: all, or the
    /// survivor alone.
    fn assert_by_the_book(&self, survivor: u64, Training { first, seen }: &Training) {
        assert_eq!(*first, 0);
        let contributors = |report: &StepReport| match report.contributors {
            1 => vec![survivor],
            all => {
                assert_eq!(all, self.ids.len(), "all were killed at once: {report:?}");
                self.ids.to_vec()
            }
        };
        let recorded: Vec<_> = seen.reports.iter().map(contributors).collect();
        for (step, (values, expected)) in seen
            .values
            .iter()
            .zip(by_the_book(VALUES, TAU, BETA, &recorded))
            .enumerate()
        {
            assert_eq!(bits(values), bits(&expected), "step {step}");
        }
    }

    fn status(&self, id: u64) -> Status {
        let mut stream = UnixStream::connect(self.admin(id)).unwrap();
        writeln!(
            stream,
            "{}",
            serde_json::to_string(&Request::Status).unwrap()
        )
        .unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let Answer::Status(report) = serde_json::from_str(&line).unwrap() else {
            panic!("no status: {line}")
        };
        *report
    }
}

fn train_node(config: Config, mut done: impl FnMut(&StepReport) -> bool) -> Training {
    let id = config.node_id.unwrap();
    let node = Runtime::builder().config(config).spawn().unwrap();
    let mut worker = node.worker(0).unwrap();
    let training = train(&mut worker, id, VALUES, |report| {
        thread::sleep(Duration::from_millis(2));
        done(report)
    });
    worker.leave().unwrap();
    training
}

/// The process that the tests below start and kill. Unless it is killed before, it trains
/// [`TOGETHER`] rounds with all other nodes and prints its digest after each step.
#[test]
#[ignore = "no test, but the process that the tests below start"]
fn a_node_in_a_process_of_its_own() {
    if std::env::var_os(NODE_VARIABLE).is_none() {
        return;
    }
    let config = Config::load().unwrap();
    let all = config.min_nodes;
    let mut together = 0;
    let training = train_node(config, |report| {
        together += usize::from(report.contributors == all);
        together == TOGETHER
    });
    digests(&training)
        .iter()
        .for_each(|line| println!("{line}"));
}

fn digests(Training { first, seen }: &Training) -> Vec<String> {
    (*first..)
        .zip(&seen.values)
        .map(|(step, values)| format!("trained {step} {}", digest(values).unwrap()))
        .collect()
}

/// Kills processes together; when.
fn kill(mut processes: Vec<Child>) -> Instant {
    processes
        .iter_mut()
        .for_each(|process| process.kill().unwrap());
    let killed = Instant::now();
    processes
        .iter_mut()
        .for_each(|process| _ = process.wait().unwrap());
    killed
}

/// Waits until some rounds are decided.
fn begun(told: &Receiver<StepReport>) {
    while told.recv_timeout(PATIENCE).unwrap().step < 5 {}
}

/// The others of `survivor` are killed and it goes on alone, at once.
fn assert_goes_on(ids: &'static [u64], quorum: &'static str, survivor: u64) {
    let processes = Processes::new(ids, quorum);
    let victims = ids
        .iter()
        .filter(|id| **id != survivor)
        .map(|id| processes.start(*id))
        .collect();
    let mut alone = 0;
    let (told, training) = processes.train(survivor, move |report| {
        assert_eq!(report.nodes, report.contributors, "{report:?}");
        alone += usize::from(report.contributors == 1);
        alone == TOGETHER
    });
    begun(&told);
    let killed = kill(victims);
    while told
        .recv_timeout(SOON)
        .expect("a decided round soon")
        .contributors
        > 1
    {}
    assert!(
        killed.elapsed() < SOON,
        "decided {:?} after the kill",
        killed.elapsed()
    );
    processes.assert_by_the_book(survivor, &training.join().unwrap());
}

#[test]
fn half_of_the_nodes_with_the_lowest_id_go_on() {
    assert_goes_on(&[4, 7], "majority", 4);
}

#[test]
fn the_last_of_three_goes_on_where_survivors_decide() {
    assert_goes_on(&[4, 5, 7], "survivors", 7);
}

/// The others of `survivor` are killed and it waits, says so, and goes on once all of them are
/// back.
fn assert_waits_for_all(ids: &'static [u64], survivor: u64, says: &[&str]) {
    let processes = Processes::new(ids, "majority");
    let lost: Vec<u64> = ids.iter().copied().filter(|id| *id != survivor).collect();
    let victims = lost.iter().map(|id| processes.start(*id)).collect();
    let all = ids.len();
    let mut excluded = false;
    let mut together = 0;
    let (told, training) = processes.train(survivor, move |report| {
        excluded |= report.contributors == 1;
        together += usize::from(excluded && report.contributors == all);
        together == TOGETHER
    });
    begun(&told);
    kill(victims);
    // What was decided before may still be applied.
    while let Ok(report) = told.recv_timeout(SILENCE) {
        assert_eq!(
            report.contributors, all,
            "no quorum decides nothing: {report:?}"
        );
    }
    let mut back = Vec::new();
    for id in &lost {
        let why = processes.reason_to_wait(survivor);
        says.iter()
            .for_each(|part| assert!(why.contains(part), "{why:?} should say {part:?}"));
        back.push(processes.start(*id));
        if back.len() < lost.len() {
            assert!(
                told.recv_timeout(SILENCE).is_err(),
                "who is still away may live elsewhere"
            );
        }
    }
    let printed = back
        .into_iter()
        .map(|process| String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap());
    let printed: Vec<String> = printed.collect();
    let training = training.join().unwrap();
    processes.assert_by_the_book(survivor, &training);
    let expected = digests(&training);
    for printed in printed {
        let trained: Vec<_> = printed
            .lines()
            .filter(|line| line.starts_with("trained "))
            .collect();
        assert_eq!(
            trained,
            expected[expected.len() - TOGETHER..],
            "who is back is the same from its first step on"
        );
    }
}

#[test]
fn half_of_the_nodes_without_the_lowest_id_wait_for_the_other_half() {
    let says = [
        "1 of 2 voters live (node 7)",
        "no quorum",
        "Bring back node 4",
        "slowmo recover",
    ];
    assert_waits_for_all(&[4, 7], 7, &says);
}

#[test]
fn the_last_of_three_waits_for_both_others() {
    assert_waits_for_all(
        &[4, 5, 7],
        7,
        &[
            "1 of 3 voters live (node 7)",
            "no quorum",
            "on_quorum_loss = fork",
        ],
    );
}
