//! `slowmo bench recovery`: nodes are killed or stopped at random moments; measures the time until
//! the others' next round is decided, and until the victim or its replacement contributes again.

use super::churn::Cluster;
use super::harness::{Sheet, Spread};
use super::node::Closed;
use crate::console::Console;
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use nix::sys::signal::Signal;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde::Serialize;
use slowmo::internal::unix_us;
use slowmo_ops::processes::NODES_MAX;
use std::time::Duration;

/// Settings for an exact average with slow momentum after every step.
const SETTINGS: [(&str, &str); 4] = [
    ("SLOWMO_BASE", "none"),
    ("SLOWMO_TAU", "1"),
    ("SLOWMO_BETA", "0.5"),
    ("SLOWMO_DRAIN_ON_SIGTERM", "false"),
];
/// Time limit of the whole measurement.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// Longest wait for one event in the cluster; after this it is taken to never happen.
const WAIT_MAX: Duration = Duration::from_secs(90);
/// Rounds with all nodes between two faults.
const QUIET_ROUNDS: u64 = 5;

/// Recovery from killed or stopped nodes.
#[derive(Debug, Args, Serialize)]
pub struct RecoveryBench {
    /// Node processes.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(3..=NODES_MAX as i64)
    )]
    nodes: u16,
    /// Number of nodes that are killed or stopped, one after the other.
    #[serde(rename = "faults")]
    #[arg(
        long,
        value_name = "K",
        default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    kills: u32,
    /// Model size in MiB; a small model unless given.
    #[serde(skip)]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    mib: Option<u32>,
    /// Fault applied to a node.
    #[arg(long, value_enum, default_value_t = Fault::Kill)]
    signal: Fault,
    /// Simulated computation before each step, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(0..=10_000)
    )]
    compute_ms: u64,
    /// Seed of the victims and the times of the faults.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// Fault applied to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Fault {
    /// SIGKILL; a new process replaces the node.
    Kill,
    /// SIGSTOP; SIGCONT follows once the others have continued.
    Stop,
}

/// One fault and the recovery from it. Times in milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Recovery {
    victim: usize,
    /// Whether the victim had the lowest id.
    leader: bool,
    /// Whether the victim was in a round: in reduce, publish or decide.
    inside_round: bool,
    /// Time from the fault until the last of the others closed another round.
    next_round_ms: f64,
    /// Time from the fault until the last of the others closed a round without the victim.
    without_victim_ms: f64,
    /// Time from the start of the replacement's program, or from SIGCONT, until the node closed a
    /// round to which it contributed.
    contributes_ms: f64,
    /// Time before that: from the launch of the replacement until its program began.
    process_start_ms: f64,
    /// Longest time between two rounds on one of the others while the node came back, less an
    /// ordinary one.
    pause_ms: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    model_bytes: u64,
    /// Ordinary time between two rounds.
    round_ms: f64,
    next_round: Spread,
    without_victim: Spread,
    contributes: Spread,
    pause: Spread,
    leaders_hit: usize,
    hit_inside_a_round: usize,
    rounds_decided: u64,
    rounds_decided_twice: u64,
    digests_equal: bool,
    momentum_lost: u64,
    recoveries: Vec<Recovery>,
}

impl RecoveryBench {
    /// Measures and reports.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        // Without a given size: as many values as a small perceptron.
        let parameters = self.mib.map_or(16 << 10, |mib| (mib as usize) << 18);
        console.progress(format!("{} nodes, {} faults", self.nodes, self.kills));
        let cluster = Cluster::found(
            console,
            self.nodes.into(),
            parameters,
            self.compute_ms,
            &SETTINGS,
            TIME_MAX,
        )?;
        let mut run = Run {
            cluster,
            random: ChaCha8Rng::seed_from_u64(self.seed),
            fault: self.signal,
            nodes: self.nodes.into(),
        };
        let mut recoveries = Vec::new();
        for number in 1..=self.kills {
            let recovery = run.hit().with_context(|| format!("fault {number}"))?;
            console.progress(format!(
                "{number}/{}: node {}{}, next round after {:.0} ms, back after {:.0} ms",
                self.kills,
                recovery.victim,
                if recovery.leader { " (leader)" } else { "" },
                recovery.without_victim_ms,
                recovery.contributes_ms
            ));
            recoveries.push(recovery);
        }
        run.quiet()?;
        let round_ms = run.ordinary_ms();
        let answering = run.cluster.reports().len();
        ensure!(
            answering == run.nodes,
            "only {answering} of {} nodes answer",
            run.nodes
        );
        let spread = |value: fn(&Recovery) -> f64| Spread::of(recoveries.iter().map(value));
        let count = |is: fn(&&Recovery) -> bool| recoveries.iter().filter(is).count();
        let figures = Figures {
            model_bytes: parameters as u64 * 4,
            round_ms,
            next_round: spread(|recovery| recovery.next_round_ms),
            without_victim: spread(|recovery| recovery.without_victim_ms),
            contributes: spread(|recovery| recovery.contributes_ms),
            pause: spread(|recovery| recovery.pause_ms),
            leaders_hit: count(|recovery| recovery.leader),
            hit_inside_a_round: count(|recovery| recovery.inside_round),
            rounds_decided: run.cluster.decided(),
            // A violation of either would have ended the measurement.
            rounds_decided_twice: 0,
            digests_equal: true,
            momentum_lost: run.cluster.momentum_lost(),
            recoveries: recoveries.clone(),
        };
        self.sheet(&figures)
            .show(console, "bench recovery", &self, &figures)
    }

    fn sheet(&self, figures: &Figures) -> Sheet {
        let megabytes = figures.model_bytes as f64 / 1e6;
        let mut sheet = Sheet::new(format!(
            "{} nodes over loopback, {megabytes:.2} MB, {} faults",
            self.nodes, self.kills
        ));
        let back = match self.signal {
            Fault::Kill => "replacement contributes, after its start",
            Fault::Stop => "contributes again, after SIGCONT",
        };
        sheet.ms("ordinary time between rounds", figures.round_ms);
        for (what, time) in [
            ("survivors' next round", figures.next_round),
            (
                "survivors' next round without the victim",
                figures.without_victim,
            ),
            (back, figures.contributes),
            ("survivors' pause for it", figures.pause),
        ] {
            let Spread {
                p50_ms,
                p99_ms,
                max_ms,
                ..
            } = time;
            sheet.row(
                format!("{what}: p50"),
                format!("{p50_ms:.0} ms (p99 {p99_ms:.0}, max {max_ms:.0})"),
            );
        }
        sheet.row(
            "leaders hit, hit inside a round",
            format!("{}, {}", figures.leaders_hit, figures.hit_inside_a_round),
        );
        sheet.row(
            "rounds decided, twice",
            format!(
                "{}, {}",
                figures.rounds_decided, figures.rounds_decided_twice
            ),
        );
        sheet.row("shards whose momentum was lost", figures.momentum_lost);
        sheet
    }
}

struct Run {
    cluster: Cluster,
    random: ChaCha8Rng,
    fault: Fault,
    nodes: usize,
}

impl Run {
    /// Waits until all nodes have contributed to a few rounds in a row.
    fn quiet(&mut self) -> anyhow::Result<()> {
        let nodes = self.nodes;
        let from = unix_us();
        self.cluster
            .wait("rounds with everybody", WAIT_MAX, |cluster| {
                cluster.running().len() == nodes
                    && cluster.running().into_iter().all(|node| {
                        let whole =
                            |closed: &&Closed| closed.at_us > from && closed.contributors == nodes;
                        cluster
                            .node(node)
                            .closed
                            .iter()
                            .rev()
                            .take_while(whole)
                            .count() as u64
                            >= QUIET_ROUNDS
                    })
            })
    }

    /// Median time between two recent rounds.
    fn ordinary_ms(&self) -> f64 {
        let gaps = |node: usize| {
            let closed = &self.cluster.node(node).closed;
            let last = closed.iter().rev().take(QUIET_ROUNDS as usize);
            last.clone()
                .zip(last.skip(1))
                .map(|(after, before)| (after.at_us - before.at_us) as f64 / 1e3)
                .collect::<Vec<_>>()
        };
        Spread::of(self.cluster.running().into_iter().flat_map(gaps)).p50_ms
    }

    /// Applies the fault to one node at a random moment and waits until it, or its replacement,
    /// contributes again.
    fn hit(&mut self) -> anyhow::Result<Recovery> {
        self.quiet()?;
        let round_ms = self.ordinary_ms();
        let wait = Duration::from_secs_f64(self.below(2.0 * round_ms / 1e3));
        let moment = std::time::Instant::now() + wait;
        self.cluster.wait("the moment", WAIT_MAX, |_| {
            std::time::Instant::now() >= moment
        })?;
        let running = self.cluster.running();
        let victim = running[self.below(running.len() as f64) as usize % running.len()];
        let others: Vec<usize> = running
            .iter()
            .copied()
            .filter(|node| *node != victim)
            .collect();
        let signal = if self.fault == Fault::Kill {
            Signal::SIGKILL
        } else {
            Signal::SIGSTOP
        };
        let hit_us = unix_us();
        self.cluster.signal(victim, signal)?;
        let (next, without) = self.survivors(&others, hit_us)?;
        let told = self.cluster.node(victim);
        let inside_round = told
            .closed
            .last()
            .is_none_or(|last| told.entered_us > last.at_us);
        let (process_start_ms, contributes_ms, back) = self.bring_back(victim, &others)?;
        let pause = self.pause_ms(&others, back, round_ms);
        let leader = running.first() == Some(&victim);
        let since = |at_us: u64| at_us.saturating_sub(hit_us) as f64 / 1e3;
        let next_round_ms = since(next);
        let without_victim_ms = since(without);
        Ok(Recovery {
            victim,
            leader,
            inside_round,
            next_round_ms,
            without_victim_ms,
            contributes_ms,
            process_start_ms,
            pause_ms: pause,
        })
    }

    /// Uniformly random number, at least 0 and below `bound`.
    fn below(&mut self, bound: f64) -> f64 {
        f64::from(self.random.next_u32()) / (f64::from(u32::MAX) + 1.0) * bound
    }

    /// Times at which the last of the others closed another round, and one without the victim.
    fn survivors(&mut self, others: &[usize], hit_us: u64) -> anyhow::Result<(u64, u64)> {
        let fewer = self.nodes - 1;
        let closed = |cluster: &Cluster, node: usize, contributors: usize| {
            cluster
                .node(node)
                .closed_after(hit_us, |closed| closed.contributors <= contributors)
                .map(|closed| closed.at_us)
        };
        self.cluster
            .wait("a round without the victim", WAIT_MAX, |cluster| {
                others
                    .iter()
                    .all(|node| closed(cluster, *node, fewer).is_some())
            })?;
        let last = |contributors| {
            others
                .iter()
                .filter_map(|node| closed(&self.cluster, *node, contributors))
                .max()
                .unwrap_or(hit_us)
        };
        Ok((last(self.nodes), last(fewer)))
    }

    /// Brings the victim back. Returns the milliseconds until its program began, the milliseconds
    /// from then until it contributed, and the span of both in microseconds since 1970.
    fn bring_back(
        &mut self,
        victim: usize,
        others: &[usize],
    ) -> anyhow::Result<(f64, f64, (u64, u64))> {
        let begin_us = match self.fault {
            Fault::Kill => {
                self.cluster.wait("the victim's end", WAIT_MAX, |cluster| {
                    !cluster.running().contains(&victim)
                })?;
                let begin_us = unix_us();
                self.cluster.join(victim)?;
                begin_us
            }
            Fault::Stop => {
                let begin_us = unix_us();
                self.cluster.signal(victim, Signal::SIGCONT)?;
                begin_us
            }
        };
        // A stopped node may still get the result of the round in which it was stopped.
        let nodes = self.nodes;
        let known = others
            .iter()
            .filter_map(|node| self.cluster.node(*node).closed.last())
            .map(|closed| closed.round)
            .max();
        let contributed = |cluster: &Cluster| {
            let counts = |closed: &Closed| {
                closed.contributors == nodes && !closed.caught_up && Some(closed.round) > known
            };
            cluster
                .node(victim)
                .closed_after(begin_us, counts)
                .map(|closed| closed.at_us)
        };
        self.cluster
            .wait("the victim's return", WAIT_MAX, |cluster| {
                contributed(cluster).is_some()
            })?;
        let back_us = contributed(&self.cluster).unwrap_or(begin_us);
        let up_us = self
            .cluster
            .node(victim)
            .up_us
            .filter(|up_us| *up_us > begin_us)
            .unwrap_or(begin_us);
        Ok((
            (up_us - begin_us) as f64 / 1e3,
            back_us.saturating_sub(up_us) as f64 / 1e3,
            (up_us, back_us),
        ))
    }

    fn pause_ms(&self, others: &[usize], (from_us, to_us): (u64, u64), round_ms: f64) -> f64 {
        let gaps = others
            .iter()
            .flat_map(|node| self.cluster.node(*node).gaps(from_us, to_us));
        (gaps.max().unwrap_or(0) as f64 / 1e3 - round_ms).max(0.0)
    }
}
