//! Nodes in processes of their own, which train with burn and with candle: one is killed, another
//! one joins, and all hold the same parameters, bit for bit.
#![allow(clippy::unwrap_used)]

#[path = "../../candle/tests/cluster/mod.rs"]
mod cluster;
mod digits;

use digits::{Learner, WithBurn, WithCandle};
use slowmo::internal::launcher::LAUNCHER_VARIABLE;
use slowmo::{Config, Runtime, digest};
use slowmo_examples::digits::Dataset;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NODES: usize = 4;
const BATCH: usize = 16;
const TAU: u64 = 12;
const STEP: Duration = Duration::from_millis(2);
/// Rounds of all nodes after the join, whose parameters are compared.
const COMPARED: usize = 4;
/// Set in a node's process to the framework that it trains with.
const NODE_VARIABLE: &str = "BURN_TEST_NODE";

/// The process that the tests below start. It trains until it is killed, and prints each round: its
/// number, how many nodes contributed, and the digest of the parameters.
#[test]
#[ignore = "no test, but the process that the tests below start"]
fn a_node_in_a_process_of_its_own() {
    match std::env::var(NODE_VARIABLE).as_deref() {
        Ok("burn") => train(WithBurn::new(std::process::id().into())),
        Ok("candle") => train(WithCandle::new(std::process::id().into())),
        _ => {}
    }
}

fn train(mut learner: impl Learner) {
    let data = Dataset::train().unwrap();
    let runtime = Runtime::builder()
        .config(Config::load().unwrap())
        .spawn()
        .unwrap();
    let mut worker = runtime.worker(0).unwrap();
    let mut step = learner.begin(&mut worker) as usize;
    println!("begins {step}");
    loop {
        thread::sleep(STEP);
        let first = step * BATCH * runtime.node_id() as usize;
        let images: Vec<_> = (first..first + BATCH)
            .map(|index| index % data.len())
            .collect();
        let report = learner.step(&mut worker, &data.batch(&images));
        step = report.step as usize + 1;
        if let Some(round) = report.round {
            let values: Vec<Vec<f32>> = learner.parameters().into_iter().map(|one| one.1).collect();
            let digest = digest(&values).unwrap();
            println!("round {round} {} {digest}", report.contributors);
            std::io::stdout().flush().unwrap();
        }
    }
}

/// A node's process, which ends with this value.
struct Node {
    process: Child,
    lines: BufReader<ChildStdout>,
}

/// A node's report of a round.
#[derive(Clone, Debug, PartialEq)]
struct Round {
    number: u64,
    contributors: usize,
    digest: String,
}

impl Node {
    fn start(framework: &str, folder: &TempDir, id: usize, joins: bool) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "a_node_in_a_process_of_its_own"])
            .arg("--nocapture")
            .env(NODE_VARIABLE, framework)
            // It ends with this process, also if an assertion fails before it is killed.
            .env(LAUNCHER_VARIABLE, std::process::id().to_string())
            .env("SLOWMO_NODE_ID", id.to_string())
            .env("SLOWMO_MIN_NODES", NODES.to_string())
            .env("SLOWMO_JOIN", joins.to_string())
            .env("SLOWMO_RENDEZVOUS", folder.path())
            .env("SLOWMO_CLUSTER_KEY", "09".repeat(32))
            .env("SLOWMO_BASE", "none")
            .env("SLOWMO_TAU", TAU.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// The words of its next line that begins with `first`, which may stand behind others: the test
    /// runner prints too.
    fn said(&mut self, first: &str) -> Vec<String> {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it has ended");
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            if let Some(at) = words.iter().position(|word| word == first) {
                return words[at + 1..].to_vec();
            }
        }
    }

    fn round(&mut self) -> Round {
        let words = self.said("round");
        Round {
            number: words[0].parse().unwrap(),
            contributors: words[1].parse().unwrap(),
            digest: words[2].clone(),
        }
    }

    fn round_of(&mut self, contributors: usize) -> Round {
        loop {
            let round = self.round();
            if round.contributors == contributors {
                return round;
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may be dead already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn one_is_killed_and_another_joins(framework: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes: Vec<_> = (1..=NODES)
        .map(|id| Node::start(framework, &folder, id, false))
        .collect();
    for node in &mut nodes {
        assert_eq!(node.said("begins"), ["0"]);
    }
    nodes[0].round_of(NODES);
    nodes.remove(2).process.kill().unwrap();
    let killed = Instant::now();
    let without = nodes[0].round_of(NODES - 1);
    eprintln!("{framework}: the next round after {:?}", killed.elapsed());

    let mut joined = Node::start(framework, &folder, NODES + 1, true);
    let begins: u64 = joined.said("begins")[0].parse().unwrap();
    assert!(
        begins > 0 && begins.is_multiple_of(TAU),
        "with a round: {begins}"
    );
    let rounds: Vec<_> = (0..COMPARED).map(|_| joined.round_of(NODES)).collect();
    assert!(rounds[0].number > without.number);
    for node in &mut nodes {
        let mut round = node.round();
        while round.number < rounds[0].number {
            round = node.round();
        }
        for expected in &rounds {
            assert_eq!(round, *expected, "{framework}");
            round = node.round();
        }
    }
    let digests: Vec<_> = rounds.iter().map(|round| &round.digest).collect();
    assert!(digests.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn one_of_four_nodes_with_burn_is_killed_and_another_joins() {
    one_is_killed_and_another_joins("burn");
}

#[test]
fn one_of_four_nodes_with_candle_is_killed_and_another_joins() {
    one_is_killed_and_another_joins("candle");
}
