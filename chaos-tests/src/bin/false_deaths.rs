//! Trains for minutes where a careless failure detector would mark down live nodes: every node's
//! uplink is throttled and kept full with shard traffic, or every core is busy with something else.
//! Counts the nodes that are taken for dead; there must be none.

use clap::Parser;
use slowmo::BaseName;
use slowmo::{Config, Runtime, Worker};
use slowmo_chaos::cluster::{Cluster, Link, start};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the nodes are asked which nodes they take for dead.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Looks for false deaths.
#[derive(Debug, Parser)]
struct Arguments {
    /// Duration, in seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Number of nodes, all in this process.
    #[arg(long, default_value_t = 4)]
    nodes: u64,
    /// Number of values of the model: a round of the default takes seconds on the throttled links.
    #[arg(long, default_value_t = 1 << 20)]
    parameters: usize,
    /// Uplink of every node, in Mbit/s; 0 does not throttle.
    #[arg(long, default_value_t = 10)]
    mbit: u64,
    /// Threads that compute for nothing, at the same priority.
    #[arg(long, default_value_t = 0)]
    busy: usize,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the training and returns the number of false deaths that were seen.
fn run(arguments: &Arguments) -> Result<u64, Box<dyn std::error::Error>> {
    let ids: Vec<u64> = (1..=arguments.nodes).collect();
    let config = Config {
        base: BaseName::None,
        tau: 1,
        beta: 0.5,
        ..Config::default()
    };
    let Cluster {
        nodes,
        rendezvous: _rendezvous,
    } = start(&ids, Link::Faulty, &config)?;
    let stop = AtomicBool::new(false);
    let workers = nodes
        .iter()
        .map(|node| node.worker(0))
        .collect::<Result<Vec<_>, _>>()?;
    let mut deaths = 0;
    let mut rounds = 0;
    thread::scope(|scope| {
        for _ in 0..arguments.busy {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        for worker in workers {
            scope.spawn(|| train(worker, arguments.parameters, &stop));
        }
        let until = Instant::now() + Duration::from_secs(arguments.seconds);
        while Instant::now() < until {
            thread::sleep(LOOK_INTERVAL);
            let founded = nodes.iter().all(|node| node.status().round > 1);
            throttle(&nodes, arguments.mbit, founded);
            deaths += nodes.iter().map(marked_down).sum::<u64>();
            rounds = nodes
                .iter()
                .map(|node| node.status().round)
                .max()
                .unwrap_or(0);
        }
        stop.store(true, Ordering::Relaxed);
        throttle(&nodes, 0, true);
    });
    let nodes = nodes
        .iter()
        .map(|node| node.status().members.len())
        .min()
        .unwrap_or(0);
    println!(
        "{} s, {rounds} rounds decided, {nodes} members at the end, {deaths} sightings of a living \
         node taken for dead",
        arguments.seconds
    );
    Ok(deaths + u64::from(nodes as u64 != arguments.nodes))
}

/// Throttles the uplinks once the run is bootstrapped, since the bootstrap is not what is measured.
fn throttle(nodes: &[Runtime], mbit: u64, founded: bool) {
    let rate = Some(mbit * 125_000).filter(|rate| founded && *rate > 0);
    nodes
        .iter()
        .filter_map(Runtime::faults)
        .for_each(|faults| faults.throttle(rate));
}

/// Number of members that a node takes for dead now, plus members missing from the last decided
/// round.
fn marked_down(node: &Runtime) -> u64 {
    let status = node.status();
    let dead = status.members.iter().filter(|member| !member.alive).count();
    // The bootstrap has one contributor.
    let averaged = if status.round < 2 {
        status.last_round.members
    } else {
        status.last_round.contributors
    };
    let without = status.last_round.members.saturating_sub(averaged);
    if dead + without > 0 {
        let events: Vec<_> = status
            .events
            .iter()
            .rev()
            .take(3)
            .map(|event| &event.what)
            .collect();
        eprintln!(
            "node {} in round {}: {dead} taken for dead, {without} passed over; {events:?}",
            status.node, status.round
        );
    }
    (dead + without) as u64
}

fn train(mut worker: Worker, parameters: usize, stop: &AtomicBool) {
    let mut values = vec![0.5f32; parameters];
    let mut synchronized = worker.synchronize(&mut values).is_ok();
    while synchronized && !stop.load(Ordering::Relaxed) {
        values
            .iter_mut()
            .step_by(997)
            .for_each(|value| *value += 0.01);
        synchronized = worker.step(&mut values, 0.1).is_ok();
    }
    // At the end the other nodes may have left first.
    let _ended = worker.leave();
}
