//! A cluster in this process whose nodes crash, are cut off, come and go, and of which everything
//! is recorded.

use super::book::{BETA, TAU};
use super::nodes::{Armed, Shared, State, Training};
use super::points::{Point, Trap};
use crate::support::{in_hub, local_sgd};
use slowmo::WireType;
use slowmo::internal::Inspection;
use slowmo::internal::config::Bootstrap;
use slowmo::internal::transport::faulty::{Fate, Sending};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::status::MemberState;
use slowmo::{Config, Runtime, Worker};
use slowmo_chaos::cluster::in_its_half;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Far above what anything in a drill takes.
const PATIENCE: Duration = Duration::from_secs(15);
/// Rounds that the nodes that are left decide together before a drill ends: two slow steps, the
/// second one with replicas that were made after the failure.
const STEADY_ROUNDS: usize = 2 * TAU as usize;
/// How often a case is tried until it comes about.
const TRIES: usize = 5;
/// Cases that run at one time, of all tests; most of what they do is wait for a death to be
/// noticed.
const AT_ONCE: usize = 32;

/// How a drill's cluster is set up.
pub fn config(founders: usize, replicas: usize) -> Config {
    let round_timeout_ms = 2 * PATIENCE.as_millis() as u64;
    Config {
        min_nodes: founders,
        replicas,
        round_timeout_ms,
        grace_ms: round_timeout_ms / 2,
        ..local_sgd(1, TAU, 1.0, BETA)
    }
}

/// The cluster.
pub struct Drill(Arc<Shared>);

impl Drill {
    /// Founds a cluster of `founders`; `others` may come later.
    pub fn new(founders: &[u64], others: &[u64], config: Config, trap: Option<Trap>) -> Self {
        let ids = founders.iter().chain(others).copied().collect();
        let later = others.to_vec();
        // In every fourth case messages of different nodes arrive in another order than they were
        // sent in.
        let seed = trap
            .map(|trap| 64 * trap.node + trap.point.nth as u64)
            .filter(|seed| seed % 4 == 1);
        let armed = trap.map(|trap| Armed {
            trap,
            seen: 0,
            sprung: false,
        });
        let state = Mutex::new(State {
            armed,
            ..State::default()
        });
        let drill = Self(Arc::new(Shared {
            hub: MemoryHub::new(seed),
            config,
            ids,
            later,
            state,
            changed: Condvar::new(),
        }));
        founders.iter().for_each(|id| drill.start(*id));
        drill
    }

    /// Starts a node, also one that crashed.
    pub fn start(&self, id: u64) {
        let shared = &self.0;
        // Two that come later must not take each other for the founders.
        let join = shared.later.contains(&id);
        // They may have smaller addresses than the founders, of whom the first one bootstraps.
        let first = shared
            .ids
            .iter()
            .filter(|id| !shared.later.contains(id))
            .min()
            == Some(&id);
        let bootstrap = if first {
            Bootstrap::Yes
        } else {
            Bootstrap::Auto
        };
        let config = Config {
            join,
            bootstrap,
            ..in_its_half(&shared.config, id)
        };
        let node = Arc::new(in_hub(&shared.hub, id, &shared.ids, &config));
        let watching: Weak<Shared> = Arc::downgrade(shared);
        let watcher = move |to, sending: Sending<'_>| {
            watching
                .upgrade()
                .map_or(Fate::Sends, |shared| shared.judge(id, to, sending))
        };
        node.faults().unwrap().watch(Arc::new(watcher));
        let worker = node.worker(0).unwrap();
        let mut state = shared.state();
        // The round under way may still be decided with what an earlier start of the node sent.
        state.began_in = state.book.last() + 1;
        let earlier = state.nodes.insert(id, Arc::clone(&node));
        state.earlier.extend(earlier);
        let shared = Arc::clone(shared);
        let training = Arc::clone(&node);
        state.threads.push(Training {
            node,
            thread: thread::spawn(move || shared.train(&training, worker)),
        });
    }

    pub fn has_crashed(&self, id: u64) -> bool {
        self.0
            .node(id)
            .is_some_and(|node| node.faults().unwrap().has_crashed())
    }

    pub fn drain(&self, id: u64) {
        self.0.node(id).unwrap().drain();
    }

    /// Lets a node that was cut off be reached again.
    pub fn mend(&self, id: u64) {
        self.0.cut(id, false);
    }

    /// Keeps nodes from beginning a step.
    pub fn hold(&self, nodes: &[u64], step: u64) {
        nodes
            .iter()
            .for_each(|id| _ = self.0.state().holds.insert(*id, step));
    }

    /// The same, and waits until they have all come to that step.
    pub fn hold_all(&self, nodes: &[u64], step: u64) {
        self.hold(nodes, step);
        self.until(&format!("{nodes:?} come to step {step}"), |state| {
            nodes.iter().all(|id| state.steps.get(id) == Some(&step))
        });
    }

    /// Lets all nodes go on.
    pub fn release(&self) {
        self.0.state().holds.clear();
        self.0.changed.notify_all();
    }

    /// Waits until what these nodes' coordinators know is enough.
    pub fn until_known(&self, nodes: &[u64], what: &str, enough: impl Fn(&Inspection) -> bool) {
        let until = Instant::now() + PATIENCE;
        for id in nodes {
            let node = self.0.node(*id).unwrap();
            while !node.faults().unwrap().has_crashed()
                && !node.inspect().is_some_and(|inspection| enough(&inspection))
            {
                assert!(
                    Instant::now() < until,
                    "node {id} does not know that {what}; {}",
                    self.describe()
                );
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits until the trap has sprung, or the round for which it was set is over: not every run
    /// sends the same, where a message is answered that was late. A trap that has not sprung by
    /// then never does. Whether it has.
    pub fn until_sprung(&self, round: u64) -> bool {
        let has_sprung = |state: &State| state.armed.as_ref().is_some_and(|armed| armed.sprung);
        self.until("the trap springs", |state| {
            state.book.last() >= round + 2 || has_sprung(state)
        });
        let mut state = self.0.state();
        let sprung = has_sprung(&state);
        state.armed = None;
        sprung
    }

    /// Waits until these nodes have decided enough rounds together.
    pub fn until_steady(&self, members: &[u64], rounds: usize) {
        self.until(&format!("{members:?} go on"), |state| {
            state.book.rounds_of(members, state.began_in) >= rounds
        });
    }

    /// Waits until so many rounds are decided.
    pub fn until_round(&self, round: u64) {
        self.until(&format!("round {round} is decided"), |state| {
            state.book.last() >= round
        });
    }

    fn until(&self, what: &str, enough: impl Fn(&State) -> bool) {
        let until = Instant::now() + PATIENCE;
        let mut state = self.0.state();
        while !enough(&state) {
            let torn = state.book.torn().cloned();
            let failed = state.panicked();
            if torn.is_some() || failed || Instant::now() > until {
                drop(state);
                panic!("{what}: never; {torn:?}\n{}", self.describe());
            }
            state = self
                .0
                .changed
                .wait_timeout(state, Duration::from_millis(20))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn describe(&self) -> String {
        // Asked outside of the lock, which a node takes whenever it sends.
        let nodes = self.0.state().nodes.clone();
        let tell = |(id, node): (&u64, &Arc<Runtime>)| {
            let report = node.status();
            let inspection = node.inspect();
            let waits = report.waiting_for;
            let events: Vec<_> = report.events.into_iter().map(|event| event.what).collect();
            let crashed = node.faults().unwrap().has_crashed();
            let known = inspection.map(|inspection| {
                (
                    inspection.outcome.map(|outcome| outcome.round),
                    inspection.joiners,
                    inspection.leaving,
                )
            });
            format!(
                "node {id}: crashed {crashed}, {} at round {}, {known:?}, waits for {waits:?}; \
                 {events:?}",
                report.standing, report.round
            )
        };
        let nodes: Vec<_> = nodes.iter().map(tell).collect();
        let state = self.0.state();
        let last = state.book.outcome(state.book.last());
        let sent: Vec<_> = state
            .sent
            .iter()
            .filter(|((_, round, _), _)| *round + 1 >= state.book.last())
            .collect();
        format!(
            "{}\nlast outcome {last:?}\nsteps {:?}\nsent {sent:?}",
            nodes.join("\n"),
            state.steps
        )
    }

    /// Every point that a node passed in a round.
    pub fn points(&self, node: u64, round: u64) -> impl Iterator<Item = (u64, Point)> {
        let state = self.0.state();
        let mut points = Vec::new();
        for ((sender, at, kind), count) in &state.sent {
            if (*sender, *at) == (node, round) {
                let kind = *kind;
                points.extend((0..*count).map(|nth| (node, Point { round, kind, nth })));
            }
        }
        points.into_iter()
    }

    /// Waits until these nodes have decided enough rounds together, ends all of them and checks
    /// everything that was recorded. How many shards' momentum was lost.
    pub fn finish(self, members: &[u64]) -> u64 {
        self.until_steady(members, STEADY_ROUNDS);
        let mut state = self.0.state();
        // They are at most a round apart, and what they told a moment behind.
        state.last = Some(state.book.last() + 3);
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.0.changed.notify_all();
        self.end_those_left_out(&threads);
        // The nodes live until all of them are at the end.
        let workers: Vec<Worker> = threads
            .into_iter()
            .map(|training| {
                training
                    .thread
                    .join()
                    .unwrap_or_else(|panic| resume_unwind(panic))
            })
            .collect();
        let state = self.0.state();
        let Config {
            replicas,
            round_wire,
            ref group,
            ..
        } = self.0.config;
        match (round_wire, group) {
            (WireType::Float32, None) => state.book.check(replicas),
            // Sums over groups are rounded in another order.
            (WireType::Float32, Some(_)) => state.book.check_roughly(replicas, 1e-5),
            // A few steps of the wire type.
            _ => state.book.check_roughly(replicas, 0.03),
        }
        drop(workers);
        state.book.momentum_lost()
    }

    /// Waits until all nodes are at the end. A busy machine may leave a node out of the last round:
    /// the next one would let it in, and nobody begins that. Such a node crashes.
    fn end_those_left_out(&self, threads: &[Training]) {
        let until = Instant::now() + 4 * PATIENCE;
        loop {
            let on_their_way: Vec<_> = threads
                .iter()
                .filter(|training| !training.thread.is_finished())
                .collect();
            let left_out =
                |training: &&Training| training.node.status().standing != MemberState::Member;
            if on_their_way.iter().all(left_out) {
                let ids = on_their_way.iter().map(|training| training.node.node_id());
                return ids.for_each(|id| self.0.crash(id));
            }
            assert!(Instant::now() < until, "no end; {}", self.describe());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Drill {
    fn drop(&mut self) {
        // Whoever still waits does so no longer.
        self.0.ids.iter().for_each(|id| self.0.crash(*id));
        let (nodes, earlier, threads) = {
            let mut state = self.0.state();
            state.last = Some(0);
            (
                std::mem::take(&mut state.nodes),
                std::mem::take(&mut state.earlier),
                std::mem::take(&mut state.threads),
            )
        };
        threads
            .into_iter()
            .for_each(|training| _ = training.thread.join());
        drop((nodes, earlier));
    }
}

/// How many cases may begin.
static ROOM: (Mutex<usize>, Condvar) = (Mutex::new(AT_ONCE), Condvar::new());

/// Room for one case until it is dropped.
struct Place;

impl Place {
    fn take() -> Self {
        let free = ROOM.0.lock().unwrap_or_else(PoisonError::into_inner);
        *ROOM
            .1
            .wait_while(free, |free| *free == 0)
            .unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *ROOM.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        ROOM.1.notify_one();
    }
}

/// Runs a check on every case, some at one time; a failure names its case. `check` says whether the
/// case came about; if not it is tried again.
pub fn each<C: Clone + std::fmt::Debug + Send + Sync>(
    cases: &[C],
    check: impl Fn(&C) -> bool + Sync,
) {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let _place = Place::take();
            match catch_unwind(AssertUnwindSafe(|| (0..TRIES).any(|_| check(case)))) {
                Ok(true) => {}
                Ok(false) => missed.lock().unwrap().push(case.clone()),
                Err(panic) => {
                    eprintln!("failed at {case:?}");
                    resume_unwind(panic);
                }
            }
        }
    };
    thread::scope(|scope| (0..AT_ONCE.min(cases.len())).for_each(|_| _ = scope.spawn(work)));
    let missed = missed.into_inner().unwrap();
    assert!(
        missed.is_empty(),
        "{} of {} cases never came about: {missed:?}",
        missed.len(),
        cases.len()
    );
}
