//! A member that lies among honest ones: whether an honest node fails, waits in vain or decides
//! something else than the others, and whether the liar is named.

mod lies;

pub use lies::{Gap, LIES_FROM, Liar, Lie};

use crate::cluster::{self, Cluster, ClusterError, Link};
use clap::{Parser, ValueEnum};
use parking_lot::Mutex;
use serde::Serialize;
use slowmo::{BaseName, Config, Runtime, StepReport, Worker};
use slowmo_protocol::ident::NodeId;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Ids of the nodes. The first leads.
const IDS: [u64; 5] = [1, 2, 3, 4, 5];
/// Values of the model: each node owns some.
const VALUES: usize = 600;
/// Time between two groups of frames that the liar sends of its own accord. Shorter than a round: a
/// frame of a round that is over proves nothing.
const PESTERS_EVERY: Duration = Duration::from_millis(5);
/// Longest time without a round at an honest node: more than that is a hang.
pub const HANG: Duration = Duration::from_secs(30);
/// Rounds after the first lie within which the liar must be named.
const NAMED_WITHIN: u64 = 3;
/// Rounds of which the entries are compared: all honest nodes are within as many of each other.
const ROUNDS_KEPT: usize = 4096;
/// Differences that are told.
const DIFFERENCES_KEPT: usize = 8;
/// Times of rounds of which the percentiles are told; later ones do not count.
const TIMES_KEPT: usize = 1 << 20;
/// Time that a step of training takes beside its round.
const COMPUTES: Duration = Duration::from_millis(10);

/// Exit status if the only lies that did harm, or whose teller was not named, are known gaps.
const ONLY_KNOWN_GAPS: u8 = 3;

/// Trains five nodes in this process, one of which lies; prints one line of JSON per lie. Exits
/// with 1 if a lie did harm or its teller was not named, with 3 if that is so only for known gaps.
#[derive(Clone, Debug, Parser)]
pub struct Hostile {
    /// How long each lie is told.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The lie, or `all`.
    #[arg(long, default_value = "all", value_parser = lies_named)]
    lie: Lies,
    /// The node that lies: 1 leads. By default each lie is told by node 1 and by node 5.
    #[arg(long)]
    liar: Option<u64>,
    /// The seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Lies to be told.
#[derive(Clone, Debug)]
struct Lies(Vec<Lie>);

fn lies_named(text: &str) -> Result<Lies, String> {
    match text {
        "all" => Ok(Lies(Lie::value_variants().to_vec())),
        name => Lie::from_str(name, true).map(|lie| Lies(vec![lie])),
    }
}

impl Hostile {
    /// Tells the lies, one after the other.
    ///
    /// # Errors
    /// The nodes did not start.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let mut is_failure = false;
        let mut is_gap = false;
        for lie in &self.lie.0 {
            let ids = [IDS[0], IDS[IDS.len() - 1]];
            let liars = self.liar.map_or(ids.to_vec(), |id| vec![id]);
            for liar in liars {
                if lie.leads() && liar != IDS[0] {
                    continue;
                }
                let trial = Trial {
                    lie: *lie,
                    liar,
                    seed: self.seed,
                    length: Duration::from_secs(self.seconds),
                    rounds: None,
                };
                let found = trial.run()?;
                crate::say!("{}", serde_json::to_string(&found)?);
                let harms = !found.harms.is_empty();
                let is_known = if harms {
                    lie.gap() == Some(Gap::Harms)
                } else {
                    lie.gap().is_some()
                };
                if harms || (!found.is_named() && *lie != Lie::Nothing) {
                    is_failure |= !is_known;
                    is_gap |= is_known;
                }
            }
        }
        if is_failure {
            return Ok(ExitCode::FAILURE);
        }
        if is_gap {
            return Ok(ExitCode::from(ONLY_KNOWN_GAPS));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One liar among honest nodes.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The lie that it tells.
    pub lie: Lie,
    /// Its id.
    pub liar: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// How long it lies, at most.
    pub length: Duration,
    /// Rounds of each honest node after which that is enough.
    pub rounds: Option<u64>,
}

/// The findings of a trial.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The lie, as it is called in arguments.
    pub lie: String,
    /// The liar.
    pub liar: u64,
    /// Lies told.
    pub told: u64,
    /// Rounds of the honest node that completed fewest, after the first lie.
    pub rounds: u64,
    /// Errors that honest nodes got.
    pub errors: Vec<String>,
    /// Median time of a step with its round at the honest nodes, after the first lie.
    pub round_p50_ms: f64,
    /// The time below which 95 of 100 of them are.
    pub round_p95_ms: f64,
    /// Longest time without a round at an honest node.
    pub longest_round_ms: u64,
    /// Rounds that two honest nodes decided differently.
    pub differences: Vec<String>,
    /// Rounds between the first lie and the first event that names the liar.
    pub named_after: Option<u64>,
    /// The event.
    pub named_as: Option<String>,
    /// Honest nodes that an event of an honest node names.
    pub accused: Vec<String>,
    /// How often an honest node was left out and caught up.
    pub caught_up: u64,
    /// The known gap in the defence against the lie.
    pub known_gap: Option<Gap>,
    /// The effects of the lie that no lie may have.
    pub harms: Vec<String>,
}

impl Found {
    fn find_harms(&self) -> Vec<String> {
        let mut harms = self.errors.clone();
        harms.extend(self.differences.clone());
        harms.extend(self.accused.clone());
        if u128::from(self.longest_round_ms) > HANG.as_millis() {
            harms.push(format!("a round took {} ms", self.longest_round_ms));
        }
        if self.rounds == 0 {
            harms.push("a node completed no round".to_owned());
        }
        harms
    }

    /// Whether an honest node named the liar soon enough.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.named_after.is_some_and(|after| after <= NAMED_WITHIN)
    }
}

/// The observations of honest nodes, and their rounds.
#[derive(Default)]
struct Book {
    /// By round: the first node that completed it, and what it knows of it.
    entries: Mutex<BTreeMap<u64, (u64, Entry)>>,
    /// The round of an honest node when it first saw that lies are told.
    lied_in: Mutex<Option<u64>>,
    named: Mutex<Option<(u64, String)>>,
    accused: Mutex<Vec<String>>,
    differences: Mutex<Vec<String>>,
    errors: Mutex<Vec<String>>,
    /// Microseconds of the steps with rounds since the first lie.
    times: Mutex<Vec<u32>>,
    longest: AtomicU64,
    caught_up: AtomicU64,
    /// When the trial was over.
    over: Mutex<Option<Instant>>,
}

/// A node's view of a decided round.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    values: Vec<u32>,
    nodes: usize,
}

impl Trial {
    /// Runs the trial.
    ///
    /// # Errors
    /// The nodes did not start.
    pub fn run(&self) -> Result<Found, ClusterError> {
        let config = Config {
            base: BaseName::LocalSgd,
            frequency: 1,
            tau: 4,
            beta: 0.5,
            round_timeout_ms: 2 * HANG.as_millis() as u64,
            grace_ms: HANG.as_millis() as u64,
            ..Config::default()
        };
        let Cluster {
            nodes,
            rendezvous: _rendezvous,
        } = cluster::start(&IDS, Link::Faulty, &config)?;
        let honest = IDS.iter().filter(|id| **id != self.liar);
        let honest: Vec<NodeId> = honest.copied().map(NodeId).collect();
        let liar = Arc::new(Liar::new(
            self.lie,
            NodeId(self.liar),
            honest.clone(),
            self.seed,
        ));
        let book = Book::default();
        let counts: Vec<AtomicU64> = IDS.iter().map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for ((id, node), count) in IDS.iter().zip(&nodes).zip(&counts) {
                let worker = match node.worker(0) {
                    Ok(worker) => worker,
                    Err(error) => {
                        book.errors.lock().push(format!("node {id}: {error}"));
                        continue;
                    }
                };
                let book = &book;
                let liar = &liar;
                if *id == self.liar {
                    scope.spawn(move || lie(worker, book));
                } else {
                    scope.spawn(move || book.train(*id, node, worker, liar, count));
                }
            }
            let liars = IDS.iter().zip(&nodes).find(|(id, _)| **id == self.liar);
            if let Some(faults) = liars.and_then(|(_, node)| node.faults()) {
                let tampers = liar.clone();
                let falsifies = liar.clone();
                let hears = liar.clone();
                faults.tamper(Arc::new(move |to, frame| tampers.tamper(to, frame)));
                faults.mishear(Arc::new(move |from, frame| hears.hear(from, frame)));
                faults.falsify(Arc::new(move |to, header| falsifies.falsify(to, header)));
                let begun = Instant::now();
                while begun.elapsed() < self.length && !self.is_enough(&counts) {
                    thread::sleep(PESTERS_EVERY);
                    for to in &honest {
                        for frame in liar.pester(*to) {
                            faults.inject(*to, &frame);
                        }
                    }
                }
            }
            *book.over.lock() = Some(Instant::now());
            // Whoever waits for a round is told that there is none any more.
            for faults in nodes.iter().filter_map(Runtime::faults) {
                faults.crash();
            }
        });
        let fewest = IDS.iter().zip(&counts).filter(|(id, _)| **id != self.liar);
        let named = book.named.into_inner();
        let mut times = book.times.into_inner();
        times.sort_unstable();
        let percentile = |hundredths: usize| {
            let at = times.len() * hundredths / 100;
            times.get(at).map_or(0.0, |us| f64::from(*us) / 1e3)
        };
        let mut found = Found {
            lie: self
                .lie
                .to_possible_value()
                .map(|value| value.get_name().to_owned())
                .unwrap_or_default(),
            liar: self.liar,
            told: liar.told(),
            rounds: fewest
                .map(|(_, count)| count.load(Ordering::Relaxed))
                .min()
                .unwrap_or(0),
            errors: book.errors.into_inner(),
            round_p50_ms: percentile(50),
            round_p95_ms: percentile(95),
            longest_round_ms: book.longest.into_inner(),
            differences: book.differences.into_inner(),
            named_after: named.as_ref().map(|(after, _)| *after),
            named_as: named.map(|(_, what)| what),
            accused: book.accused.into_inner(),
            caught_up: book.caught_up.into_inner(),
            known_gap: self.lie.gap(),
            harms: Vec::new(),
        };
        found.harms = found.find_harms();
        Ok(found)
    }

    fn is_enough(&self, counts: &[AtomicU64]) -> bool {
        let Some(rounds) = self.rounds else {
            return false;
        };
        let enough = |(_, count): &(&u64, &AtomicU64)| count.load(Ordering::Relaxed) >= rounds;
        let honest = IDS.iter().zip(counts).filter(|(id, _)| **id != self.liar);
        honest.clone().all(|node| enough(&node))
    }
}

impl Book {
    /// Trains an honest node until the trial is over.
    fn train(&self, id: u64, node: &Runtime, mut worker: Worker, liar: &Liar, count: &AtomicU64) {
        let mut values = vec![0.0f32; VALUES];
        if let Err(error) = worker.synchronize(&mut values) {
            return self.errors.lock().push(format!("node {id}: {error}"));
        }
        let mut since = Instant::now();
        loop {
            thread::sleep(COMPUTES);
            for (index, value) in values.iter_mut().enumerate() {
                *value += 0.01 * (id as f32 - *value) + index as f32 * 1e-4;
            }
            let stepped = worker.step(&mut values, 0.1);
            let until = self.over.lock().unwrap_or_else(Instant::now);
            let took = until.saturating_duration_since(since);
            self.longest
                .fetch_max(took.as_millis() as u64, Ordering::Relaxed);
            if liar.told() > 0 {
                let mut times = self.times.lock();
                if times.len() < TIMES_KEPT {
                    times.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
                }
            }
            since = Instant::now();
            match stepped {
                Ok(report) => self.note(id, node, &report, &values, liar, count),
                Err(error) => {
                    if self.over.lock().is_none() {
                        self.errors.lock().push(format!("node {id}: {error}"));
                    }
                    return;
                }
            }
        }
    }

    fn note(
        &self,
        id: u64,
        node: &Runtime,
        report: &StepReport,
        values: &[f32],
        liar: &Liar,
        count: &AtomicU64,
    ) {
        let Some(round) = report.round else { return };
        self.caught_up
            .fetch_add(u64::from(report.caught_up), Ordering::Relaxed);
        self.compare(id, round, report, values);
        if liar.told() == 0 {
            return;
        }
        let lied_in = *self.lied_in.lock().get_or_insert(round);
        count.fetch_add(1, Ordering::Relaxed);
        for event in node.status().events {
            let Some((named, _)) = event.what.split_once(" sent what no correct node sends") else {
                continue;
            };
            if *named == liar.id().to_string() {
                let mut known = self.named.lock();
                known.get_or_insert_with(|| (round.saturating_sub(lied_in), event.what.clone()));
            } else {
                let mut accused = self.accused.lock();
                let accusation = format!("node {id} says: {}", event.what);
                if !accused.contains(&accusation) {
                    accused.push(accusation);
                }
            }
        }
    }

    /// Compares what this node knows of a round with what the first one knew.
    fn compare(&self, id: u64, round: u64, report: &StepReport, values: &[f32]) {
        let entry = Entry {
            values: values.iter().map(|value| value.to_bits()).collect(),
            nodes: report.nodes,
        };
        let mut entries = self.entries.lock();
        let (first, known) = entries.entry(round).or_insert_with(|| (id, entry.clone()));
        let same = known.values == entry.values && known.nodes == entry.nodes;
        if !same {
            let differs = known.values.iter().zip(&entry.values);
            let differs = differs.filter(|(one, other)| one != other).count();
            let what = format!(
                "round {round}: {differs} values of node {first} and node {id} differ, of {} and \
                 {} members",
                known.nodes, entry.nodes
            );
            let mut differences = self.differences.lock();
            if differences.len() < DIFFERENCES_KEPT {
                differences.push(what);
            }
        }
        if entries.len() > ROUNDS_KEPT {
            entries.pop_first();
        }
    }
}

/// Trains the node that lies. Whatever it is told, it goes on.
fn lie(mut worker: Worker, book: &Book) {
    let mut values = vec![0.0f32; VALUES];
    if worker.synchronize(&mut values).is_err() {
        return;
    }
    while book.over.lock().is_none() {
        thread::sleep(COMPUTES);
        if worker.step(&mut values, 0.1).is_err() {
            thread::sleep(PESTERS_EVERY);
        }
    }
}
