//! `slowmo bench recovery`: nodes are killed or stopped at random moments; measures the time until
//! the others' next round is decided, and until the victim or its replacement contributes again.

use super::churn::{Closed, Cluster};
use super::churn_node::now_us;
use crate::console::{Console, table};
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use nix::sys::signal::Signal;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde::Serialize;
use slowmo_ops::limits::median;
use slowmo_ops::processes::{NODES_MAX, catch_signals};
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
#[derive(Debug, Args)]
pub struct RecoveryBench {
    /// Node processes.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(3..=NODES_MAX as i64))]
    nodes: u16,
    /// Number of nodes that are killed or stopped, one after the other.
    #[arg(long, value_name = "K", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Model size in MiB; a small model unless given.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    mib: Option<u32>,
    /// Fault applied to a node.
    #[arg(long, value_enum, default_value_t = Fault::Kill)]
    signal: Fault,
    /// Simulated computation before each step, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=10_000))]
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

/// Statistics over all faults, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    p50: f64,
    p99: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    nodes: u16,
    faults: u32,
    signal: Fault,
    model_bytes: u64,
    compute_ms: u64,
    /// Ordinary time between two rounds.
    round_ms: f64,
    next_round_ms: Figures,
    without_victim_ms: Figures,
    contributes_ms: Figures,
    pause_ms: Figures,
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
        catch_signals();
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
        let reports = run.cluster.reports();
        ensure!(
            reports.len() == run.nodes,
            "only {} of {} nodes answer",
            reports.len(),
            run.nodes
        );
        let report = Report {
            command: "bench recovery",
            nodes: self.nodes,
            faults: self.kills,
            signal: self.signal,
            model_bytes: parameters as u64 * 4,
            compute_ms: self.compute_ms,
            round_ms,
            next_round_ms: Figures::of(&recoveries, |recovery| recovery.next_round_ms),
            without_victim_ms: Figures::of(&recoveries, |recovery| recovery.without_victim_ms),
            contributes_ms: Figures::of(&recoveries, |recovery| recovery.contributes_ms),
            pause_ms: Figures::of(&recoveries, |recovery| recovery.pause_ms),
            leaders_hit: recoveries.iter().filter(|recovery| recovery.leader).count(),
            hit_inside_a_round: recoveries
                .iter()
                .filter(|recovery| recovery.inside_round)
                .count(),
            rounds_decided: run.cluster.decided(),
            // A violation of either would have ended the measurement.
            rounds_decided_twice: 0,
            digests_equal: true,
            momentum_lost: reports
                .iter()
                .map(|report| report.momentum_lost)
                .max()
                .unwrap_or(0),
            recoveries,
        };
        console.result(report.to_table(), &report)
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
        let from = now_us()?;
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
        median(
            &mut self
                .cluster
                .running()
                .into_iter()
                .flat_map(gaps)
                .collect::<Vec<_>>(),
        )
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
        let hit_us = now_us()?;
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
                let begin_us = now_us()?;
                self.cluster.join(victim)?;
                begin_us
            }
            Fault::Stop => {
                let begin_us = now_us()?;
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

impl Figures {
    fn of(recoveries: &[Recovery], value: impl Fn(&Recovery) -> f64) -> Self {
        let mut values: Vec<f64> = recoveries.iter().map(value).collect();
        let p50 = median(&mut values);
        // Nearest rank; `values` is sorted now.
        let rank = (values.len() * 99).div_ceil(100).max(1) - 1;
        Self {
            p50,
            p99: values.get(rank).copied().unwrap_or(0.0),
            max: values.last().copied().unwrap_or(0.0),
        }
    }

    fn to_text(self) -> String {
        format!(
            "{:.0} ms (p99 {:.0}, max {:.0})",
            self.p50, self.p99, self.max
        )
    }
}

impl Report {
    fn to_table(&self) -> comfy_table::Table {
        let title = format!(
            "{} nodes, {:.2} MB, {} faults",
            self.nodes,
            self.model_bytes as f64 / 1e6,
            self.faults
        );
        let back = if self.signal == Fault::Kill {
            "replacement contributes, after its start"
        } else {
            "contributes again, after SIGCONT"
        };
        let rows = [
            [
                "ordinary time between rounds".to_owned(),
                format!("{:.0} ms", self.round_ms),
            ],
            [
                "survivors' next round: p50".to_owned(),
                self.next_round_ms.to_text(),
            ],
            [
                "survivors' next round without the victim: p50".to_owned(),
                self.without_victim_ms.to_text(),
            ],
            [format!("{back}: p50"), self.contributes_ms.to_text()],
            [
                "survivors' pause for it: p50".to_owned(),
                self.pause_ms.to_text(),
            ],
            [
                "leaders hit, hit inside a round".to_owned(),
                format!("{}, {}", self.leaders_hit, self.hit_inside_a_round),
            ],
            [
                "rounds decided, twice".to_owned(),
                format!("{}, {}", self.rounds_decided, self.rounds_decided_twice),
            ],
            [
                "shards whose momentum was lost".to_owned(),
                self.momentum_lost.to_string(),
            ],
        ];
        table([title.as_str(), "figure"], rows)
    }
}
