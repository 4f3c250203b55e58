//! The nodes of a drill: their training threads, the traps on what they send, and what is recorded
//! of them.

use super::book::{Book, VALUES};
use super::points::{Act, Kind, Trap, classify};
use crate::support::{RATE, descend, noisy, uneven};
use slowmo::internal::transport::faulty::{Fate, Fault, Sending};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime, Worker};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::wire::Frame;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub(super) struct Shared {
    pub(super) hub: MemoryHub,
    pub(super) config: Config,
    /// All nodes that may ever be there.
    pub(super) ids: Vec<u64>,
    /// Those of them that only join.
    pub(super) later: Vec<u64>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) book: Book,
    pub(super) armed: Option<Armed>,
    pub(super) sent: BTreeMap<(u64, u64, Kind), usize>,
    /// The rounds of which a node told another the decision.
    pub(super) told: BTreeSet<(u64, u64, NodeId)>,
    /// The last start of each node.
    pub(super) nodes: BTreeMap<u64, Arc<Runtime>>,
    /// Earlier starts, dead, whose connections stay as they are.
    pub(super) earlier: Vec<Arc<Runtime>>,
    /// The round under way when the last node was started.
    pub(super) began_in: u64,
    /// Which step a node does not begin yet.
    pub(super) holds: BTreeMap<u64, u64>,
    /// Which step a node came to.
    pub(super) steps: BTreeMap<u64, u64>,
    /// The step after which all end.
    pub(super) last: Option<u64>,
    pub(super) threads: Vec<Training>,
    pub(super) drained: Vec<u64>,
}

/// The training thread of one start of a node; hands its worker back, so that the node lives until
/// all of them end.
pub(super) struct Training {
    pub(super) node: Arc<Runtime>,
    pub(super) thread: thread::JoinHandle<Worker>,
}

pub(super) struct Armed {
    pub(super) trap: Trap,
    pub(super) seen: usize,
    pub(super) sprung: bool,
}

impl Armed {
    /// The failure of a node that is about to send its next message of a kind in a round, if the
    /// trap is set there.
    fn spring(&mut self, node: u64, round: u64, kind: Kind) -> Option<Act> {
        let point = self.trap.point;
        if self.sprung || (self.trap.node, point.round, point.kind) != (node, round, kind) {
            return None;
        }
        self.sprung = self.seen == point.nth;
        self.seen += 1;
        self.sprung.then_some(self.trap.act)
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides the fate of something that a node is about to send to another.
    pub(super) fn judge(&self, node: u64, to: NodeId, sending: Sending<'_>) -> Fate {
        let mut state = self.state();
        if let Sending::Control(Frame::V1 { header, message }) = sending {
            state.book.overhear(node, header, message);
        }
        let Some((round, kind)) = classify(sending) else {
            return Fate::Sends;
        };
        // A decision that is told again answers a message that came late. Whether one does depends
        // on the run, so it is no phase of the round.
        if kind == Kind::Decide && !state.told.insert((node, round.0, to)) {
            return Fate::Sends;
        }

        *state.sent.entry((node, round.0, kind)).or_default() += 1;
        let act = state
            .armed
            .as_mut()
            .and_then(|armed| armed.spring(node, round.0, kind));
        self.changed.notify_all();
        drop(state);
        match act {
            None => Fate::Sends,
            Some(Act::Crash) => Fate::Crashes,
            Some(Act::CutOff) => {
                self.cut(node, true);
                Fate::Sends
            }
        }
    }

    pub(super) fn node(&self, id: u64) -> Option<Arc<Runtime>> {
        self.state().nodes.get(&id).cloned()
    }

    pub(super) fn crash(&self, id: u64) {
        if let Some(node) = self.node(id) {
            node.faults().unwrap().crash();
        }
        self.changed.notify_all();
    }

    /// Cuts a node off from everybody, or mends that.
    pub(super) fn cut(&self, id: u64, cut: bool) {
        let nodes = self.state().nodes.clone();
        for (other, node) in nodes {
            let faults = node.faults().unwrap();
            let set = |to: u64| {
                faults.set(
                    NodeId(to),
                    Fault {
                        cut,
                        ..Fault::default()
                    },
                )
            };
            if other == id {
                self.ids
                    .iter()
                    .filter(|to| **to != id)
                    .copied()
                    .for_each(set)
            } else {
                set(id)
            }
        }
    }

    /// Waits until a node may begin a step; `false` if it is not to any more.
    pub(super) fn begins(&self, node: &Runtime, step: u64) -> bool {
        let mut state = self.state();
        state.steps.insert(node.node_id(), step);
        self.changed.notify_all();
        loop {
            if node.faults().unwrap().has_crashed() || state.last.is_some_and(|last| step > last) {
                return false;
            }
            if state
                .holds
                .get(&node.node_id())
                .is_none_or(|hold| step < *hold)
            {
                return true;
            }
            state = self
                .changed
                .wait_timeout(state, Duration::from_millis(20))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl State {
    /// A thread that ended in a panic leaves its node behind.
    pub(super) fn panicked(&self) -> bool {
        let ended = |node: &Runtime| {
            node.faults().unwrap().has_crashed() || self.drained.contains(&node.node_id())
        };
        self.threads
            .iter()
            .any(|Training { node, thread }| thread.is_finished() && !ended(node))
    }
}

impl Shared {
    pub(super) fn train(&self, node: &Runtime, mut worker: Worker) -> Worker {
        let id = node.node_id();
        let faults = node.faults().unwrap();
        let mut parameters = uneven(VALUES);
        let mut step = match worker.synchronize(&mut parameters) {
            Ok(found) => found.step,
            Err(_) if faults.has_crashed() => return worker,
            Err(error) => panic!("node {id}: {error}"),
        };
        while self.begins(node, step) {
            let gradients = noisy(id as usize, step as usize, &parameters);
            descend(&mut parameters, &gradients, RATE);
            let report = match worker.step(&mut parameters, RATE) {
                Ok(report) => report,
                Err(_) if faults.has_crashed() => return worker,
                Err(error) => panic!("node {id}: {error}"),
            };
            let inspection = node.inspect();
            let mut state = self.state();
            if report.round.is_some() {
                state.book.note(id, &report, &parameters, inspection);
            }
            assert!(
                report.round.is_some() || report.drained,
                "node {id}: {report:?}"
            );
            if report.drained {
                state.drained.push(id);
            }
            drop(state);
            self.changed.notify_all();
            step = report.step + 1;
            if report.drained {
                break;
            }
        }
        worker
    }
}
