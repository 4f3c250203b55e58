//! `slowmo bench join`: nodes join a running cluster and leave it again; measures the bytes that a
//! joiner receives and the delay of the others.

use super::churn::Cluster;
use super::harness::{Sheet, Spread, mebibytes, ratio};
use super::node::Closed;
use super::sizes::{REPLICAS, Sizes};
use crate::console::Console;
use anyhow::{Context, ensure};
use clap::Args;
use nix::sys::signal::Signal;
use serde::Serialize;
use slowmo::internal::unix_us;
use std::time::Duration;

/// Settings for an outer round after every step.
const SETTINGS: [(&str, &str); 3] = [
    ("SLOWMO_BASE", "none"),
    ("SLOWMO_TAU", "1"),
    ("SLOWMO_BETA", "0.5"),
];
/// Time limit of the whole measurement.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// Longest wait for one event in the cluster.
const WAIT_MAX: Duration = Duration::from_secs(180);
/// Ordinary rounds measured before each join; their median is taken.
const QUIET_ROUNDS: usize = 5;

/// Joins of nodes to a running cluster.
#[derive(Debug, Args, Serialize)]
pub struct JoinBench {
    #[command(flatten)]
    #[serde(flatten)]
    sizes: Sizes,
    /// Number of nodes that join, one after the other; each leaves again before the next.
    #[serde(skip)]
    #[arg(
        long,
        value_name = "J",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    joins: u32,
    /// Simulated computation before each step, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(0..=10_000)
    )]
    compute_ms: u64,
}

/// One join. Times in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Join {
    /// UDP payload bytes that the joiner received until it had the model.
    received_bytes: u64,
    /// Those bytes relative to the model and the shares of the momentum that it holds from then on.
    received_vs_needed: f64,
    /// Time from the start of the joiner's program until it had the model.
    ready_ms: f64,
    /// Median time that the others spent in an ordinary round.
    ordinary_round_ms: f64,
    /// Time that the slowest other node spent in the round whose result the joiner received.
    join_round_ms: f64,
    /// Excess of that time over an ordinary round, the slowest.
    grew_ms: f64,
    /// Excess of that round's publish phase over an ordinary one, the slowest. The phase lasts
    /// until all nodes hold the new values, the joiner among them.
    publish_grew_ms: f64,
    /// Excess of the round beyond the excess of its publish phase, the slowest.
    waited_beyond_ms: f64,
    /// Time that the bytes received by the joiner take at the rate of an ordinary round.
    joiner_bytes_ms: f64,
    /// Rounds in between that the others did not close or from which they were excluded.
    rounds_missed: u64,
    /// Time from SIGTERM until the node had handed over and ended successfully.
    drain_ms: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    /// Bytes of the model and the momentum shares that a joiner needs.
    needed_bytes: f64,
    received_vs_needed_max: f64,
    grew_ms: f64,
    publish_grew_ms: f64,
    waited_beyond_ms: f64,
    joiner_bytes_ms: f64,
    rounds_missed: u64,
    momentum_lost: u64,
    joins: Vec<Join>,
}

impl JoinBench {
    /// Measures and reports.
    pub fn run(mut self, console: Console) -> anyhow::Result<()> {
        ensure!(
            self.sizes.hosts.is_empty(),
            "joins are measured over loopback only; leave out --hosts"
        );
        self.sizes.check()?;
        let sizes = &self.sizes;
        let title = format!("{}, {} joins", sizes.title(), self.joins);
        console.progress(&title);
        let mut cluster = Cluster::found(
            console,
            sizes.nodes.into(),
            sizes.parameters(),
            self.compute_ms,
            &SETTINGS,
            TIME_MAX,
        )?;
        let mut joins = Vec::new();
        for number in 1..=self.joins {
            let join = join(&mut cluster, sizes).with_context(|| format!("join {number}"))?;
            console.progress(format!(
                "{number}/{}: ready after {:.0} ms, drained within {:.0} ms",
                self.joins, join.ready_ms, join.drain_ms
            ));
            joins.push(join);
        }
        let middle = |value: fn(&Join) -> f64| Spread::of(joins.iter().map(value)).p50_ms;
        let figures = Figures {
            needed_bytes: needed_bytes(sizes),
            received_vs_needed_max: joins
                .iter()
                .map(|join| join.received_vs_needed)
                .fold(0.0, f64::max),
            grew_ms: middle(|join| join.grew_ms),
            publish_grew_ms: middle(|join| join.publish_grew_ms),
            waited_beyond_ms: middle(|join| join.waited_beyond_ms),
            joiner_bytes_ms: middle(|join| join.joiner_bytes_ms),
            rounds_missed: joins.iter().map(|join| join.rounds_missed).sum(),
            momentum_lost: cluster.momentum_lost(),
            joins: joins.clone(),
        };
        let mut sheet = Sheet::new(title);
        let needed = mebibytes(figures.needed_bytes);
        sheet.row(
            "a joiner needs: model, shares of the momentum",
            format!("{needed:.0} MiB"),
        );
        sheet.row(
            "it received, at most",
            format!("{:.3} of that", figures.received_vs_needed_max),
        );
        sheet.ms("it had the model after, p50", middle(|join| join.ready_ms));
        sheet.ms(
            "ordinary round of the others, p50",
            middle(|join| join.ordinary_round_ms),
        );
        sheet.ms("the joiner's round grew by, p50", figures.grew_ms);
        sheet.ms("its publish phase grew by, p50", figures.publish_grew_ms);
        sheet.ms("a node waited beyond that, p50", figures.waited_beyond_ms);
        sheet.ms(
            "its bytes take at an ordinary round's rate, p50",
            figures.joiner_bytes_ms,
        );
        sheet.row("rounds missed by the others", figures.rounds_missed);
        sheet.ms(
            "drained and ended within, p50",
            middle(|join| join.drain_ms),
        );
        sheet.row("shards whose momentum was lost", figures.momentum_lost);
        sheet.show(console, "bench join", &self, &figures)
    }
}

/// Bytes of the model and of `(1+R)/W` of the momentum, for the last of `W` members. The anchor is
/// the model that the round gives it.
fn needed_bytes(sizes: &Sizes) -> f64 {
    let members = f64::from(sizes.nodes) + 1.0;
    let holders = f64::from(REPLICAS.min(sizes.nodes)) + 1.0;
    sizes.model_bytes() as f64 * (1.0 + holders / members)
}

fn join(cluster: &mut Cluster, sizes: &Sizes) -> anyhow::Result<Join> {
    let nodes = usize::from(sizes.nodes);
    let joiner = nodes + 1;
    let others: Vec<usize> = cluster.running();
    let quiet_us = unix_us();
    let of = |cluster: &Cluster, node: usize, members: usize| {
        cluster
            .node(node)
            .closed
            .iter()
            .filter(|closed| closed.at_us > quiet_us && closed.members == members)
            .count()
    };
    cluster.wait("ordinary rounds", WAIT_MAX, |cluster| {
        others
            .iter()
            .all(|node| of(cluster, *node, nodes) > QUIET_ROUNDS)
    })?;
    let ordinary = |node: &usize| {
        cluster
            .node(*node)
            .closed
            .iter()
            .rev()
            .take(QUIET_ROUNDS)
            .map(Times::of)
            .collect::<Vec<_>>()
    };
    let ordinary = Times::median(&others.iter().flat_map(ordinary).collect::<Vec<_>>());
    let begin_us = unix_us();
    cluster.join(joiner)?;
    let contributed = |cluster: &Cluster, node: usize| {
        cluster
            .node(node)
            .closed_after(begin_us, |closed| closed.contributors > nodes)
            .is_some()
    };
    cluster.wait("the joiner's contribution", WAIT_MAX, |cluster| {
        cluster
            .running()
            .iter()
            .all(|node| contributed(cluster, *node))
    })?;
    let told = cluster.node(joiner);
    let ready = told
        .ready
        .context("the joiner did not say that it was ready")?;
    let received_bytes = ready.received_bytes;
    let ready_ms = (ready.at_us - told.up_us.unwrap_or(ready.at_us)) as f64 / 1e3;
    let received = ready.round.saturating_sub(1);
    let in_round = |node: &usize| {
        cluster
            .node(*node)
            .closed
            .iter()
            .find(|closed| closed.round == received)
            .map(Times::of)
    };
    let with_joiner: Vec<Times> = others.iter().filter_map(in_round).collect();
    let slowest = |value: fn(&Times, &Times) -> f64| {
        with_joiner
            .iter()
            .map(|times| value(times, &ordinary))
            .fold(0.0, f64::max)
    };
    let rounds_missed = others
        .iter()
        .map(|node| missed(&cluster.node(*node).closed, begin_us))
        .sum();
    let drain_ms = drain(cluster, joiner, nodes)?;
    let ordinary_bytes = f64::from(sizes.nodes) * sizes.outer_round_bytes();
    Ok(Join {
        received_bytes,
        received_vs_needed: ratio(received_bytes as f64, needed_bytes(sizes)),
        ready_ms,
        ordinary_round_ms: ordinary.round_ms,
        join_round_ms: slowest(|times, _| times.round_ms),
        grew_ms: slowest(|times, ordinary| times.round_ms - ordinary.round_ms),
        publish_grew_ms: slowest(|times, ordinary| times.publish_ms - ordinary.publish_ms),
        waited_beyond_ms: slowest(|times, ordinary| {
            (times.round_ms - ordinary.round_ms) - (times.publish_ms - ordinary.publish_ms)
        }),
        joiner_bytes_ms: ratio(received_bytes as f64, ordinary_bytes) * ordinary.round_ms,
        rounds_missed,
        drain_ms,
    })
}

/// Time that a node spent in a round, and the duration of its publish phase.
#[derive(Clone, Copy)]
struct Times {
    round_ms: f64,
    publish_ms: f64,
}

impl Times {
    fn of(closed: &Closed) -> Self {
        let round_ms = (closed.at_us - closed.entered_us) as f64 / 1e3;
        Self {
            round_ms,
            publish_ms: closed.published_us as f64 / 1e3,
        }
    }

    fn median(all: &[Self]) -> Self {
        let middle = |value: fn(&Self) -> f64| Spread::of(all.iter().map(value)).p50_ms;
        Self {
            round_ms: middle(|times| times.round_ms),
            publish_ms: middle(|times| times.publish_ms),
        }
    }
}

/// Rounds after `since_us` whose result a node got without contributing, or did not get at all.
fn missed(closed: &[Closed], since_us: u64) -> u64 {
    let pairs = closed.windows(2).filter(|pair| pair[1].at_us > since_us);
    pairs
        .map(|pair| pair[1].round - pair[0].round - 1 + u64::from(pair[1].caught_up))
        .sum()
}

/// Lets the node hand over; returns the milliseconds until its process has ended.
fn drain(cluster: &mut Cluster, node: usize, left: usize) -> anyhow::Result<f64> {
    let begin_us = unix_us();
    cluster.signal(node, Signal::SIGTERM)?;
    cluster.wait("the end of the drained node", WAIT_MAX, |cluster| {
        !cluster.running().contains(&node)
    })?;
    let end_us = unix_us();
    ensure!(
        cluster.ended_well(node),
        "the drained node did not end with exit code 0"
    );
    cluster.wait("rounds without the drained node", WAIT_MAX, |cluster| {
        cluster.running().into_iter().all(|node| {
            cluster
                .node(node)
                .closed
                .last()
                .is_some_and(|closed| closed.members == left)
        })
    })?;
    Ok((end_us - begin_us) as f64 / 1e3)
}
