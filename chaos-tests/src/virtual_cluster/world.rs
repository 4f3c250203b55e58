//! A cluster and its faults: nodes start and end, links are disturbed and restored, and in the end
//! the faults are over.

use super::record::Record;
use super::training::{Training, train};
use super::{Report, settings};
use crate::sim::config::Config;
use async_trait::async_trait;
use parking_lot::Mutex;
use slowmo::internal::Network;
use slowmo::internal::transport::faulty;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::status::MemberState;
use slowmo::{Runtime, SpawnError};
use slowmo_actors::ports::discovery::{Discovery, DiscoveryError};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::trace::{End, Event, Fault, Link, Start, Timed};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Interval at which a run checks whether a rule is broken.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// One incarnation of a node.
struct Node {
    start: Start,
    runtime: Runtime,
    training: JoinHandle<()>,
    slowness: Arc<AtomicU32>,
    alive: bool,
    draining: bool,
}

/// The addresses at which the newest incarnations of all nodes listen.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<BTreeMap<NodeId, SocketAddr>>>);

#[async_trait]
impl Discovery for Addresses {
    async fn announce(&self, node: NodeId, address: SocketAddr) -> Result<(), DiscoveryError> {
        self.0.lock().insert(node, address);
        Ok(())
    }

    async fn peers(&self) -> Result<Vec<SocketAddr>, DiscoveryError> {
        Ok(self.0.lock().values().copied().collect())
    }

    /// Nodes that were killed leave their addresses behind.
    fn may_be_stale(&self) -> bool {
        true
    }
}

/// The cluster.
struct World {
    config: Config,
    record: Record,
    hub: MemoryHub,
    addresses: Addresses,
    /// Every incarnation, in order; dead ones stay, so that no node is told of their end.
    nodes: Vec<Node>,
    links: BTreeMap<(NodeId, NodeId), Link>,
    begun: Instant,
}

/// Runs a cluster to its end.
pub async fn run(config: Config, schedule: Vec<Timed>) -> Result<Report, SpawnError> {
    let record = Record::new(&config);
    let hub = MemoryHub::new(Some(config.seed));
    let seed = config.seed;
    let addresses = Addresses::default();
    let nodes = Vec::new();
    let links = BTreeMap::new();
    let mut world = World {
        config: config.clone(),
        record,
        hub,
        addresses,
        nodes,
        links,
        begun: Instant::now(),
    };
    tracing::debug!(seed, class = ?config.class, "a cluster begins");
    for id in config.founders.clone() {
        world.start(id).await?;
    }
    for timed in &schedule {
        if world.until(timed.at.0).await {
            break;
        }
        world.fault(&timed.fault).await?;
    }
    if !world.until(config.horizon).await {
        world.fall_quiet().await?;
        // The check is one interval later, so that everything demanded by then has happened by
        // then.
        let end = world.record.now().after(config.recovers_within);
        world.until(end.0 + 1_000).await;
    }
    let World { record, nodes, .. } = world;
    let now = record.now();
    let described = nodes
        .iter()
        .filter(|node| node.alive)
        .map(describe)
        .collect();
    let watch =
        record.with(|watch| std::mem::replace(watch, crate::sim::watch::Watch::new(&config)));
    let rounds = watch.rounds;
    let (verdicts, violation, trace) = watch.finish(now.0);
    Ok(Report {
        config,
        schedule,
        violation,
        verdicts,
        rounds,
        trace: trace.unwrap_or_default(),
        nodes: described,
    })
}

fn describe(node: &Node) -> String {
    let status = node.runtime.status();
    let standing = status.standing;
    let round = status.round;
    let members = status.members.len();
    let waiting = status.waiting_for.unwrap_or_default();
    format!(
        "{} {standing} round {round} of {members} members, training ended: {} {waiting}",
        node.start.node,
        node.training.is_finished()
    )
}

impl World {
    /// Waits until this many microseconds have passed since the beginning. Returns earlier, and
    /// true, if a rule is broken.
    async fn until(&mut self, micros: u64) -> bool {
        let until = self.begun + Duration::from_micros(micros);
        loop {
            self.mark_down();
            if self.record.with(|watch| watch.violation().is_some()) {
                return true;
            }
            let now = Instant::now();
            if now >= until {
                return false;
            }
            sleep_until(until.min(now + LOOK_INTERVAL)).await;
        }
    }

    /// Marks down nodes whose training has ended: they have left or failed.
    fn mark_down(&mut self) {
        for node in self
            .nodes
            .iter_mut()
            .filter(|node| node.alive && node.training.is_finished())
        {
            node.alive = false;
        }
    }

    async fn start(&mut self, id: NodeId) -> Result<(), SpawnError> {
        let count = self.nodes.len();
        let start = Start {
            node: id,
            incarnation: Incarnation(count as u64 + 1),
        };
        let address = SocketAddr::from((
            [127, 0, (count >> 14) as u8, 1],
            7_000 + (count & 0x3fff) as u16,
        ));
        // A node that comes when the others already train does not bootstrap another cluster.
        let founds = count < self.config.founders.len();
        let network = Network {
            hub: self.hub.clone(),
            address,
            peers: Vec::new(),
        };
        let builder = Runtime::builder()
            .config(settings::node(&self.config, id, founds))
            .network(network)
            .faulty();
        let builder = builder
            .recorder(Arc::new(self.record.clone()))
            .incarnation(start.incarnation.0);
        let runtime = builder
            .discovery(Arc::new(self.addresses.clone()))
            .spawn_here()
            .await?;
        let slowness = Arc::new(AtomicU32::new(100));
        let config = self.config.clone();
        let worker = runtime
            .worker(0)
            .map_err(|error| SpawnError::System(error.to_string()))?
            .into_async();
        let training = Training {
            start,
            config,
            worker,
            slowness: Arc::clone(&slowness),
        };
        let training = tokio::spawn(train(training, self.record.clone()));
        self.nodes.push(Node {
            start,
            runtime,
            training,
            slowness,
            alive: true,
            draining: false,
        });
        self.set_links();
        Ok(())
    }

    fn living(&self, id: NodeId) -> Option<&Node> {
        self.nodes
            .iter()
            .rfind(|node| node.start.node == id)
            .filter(|node| node.alive)
    }

    async fn fault(&mut self, fault: &Fault) -> Result<(), SpawnError> {
        if !self.is_allowed(fault) {
            return Ok(());
        }
        self.record.put(Event::Faulted {
            fault: fault.clone(),
        });
        match fault {
            Fault::Kill { node } => self.kill(*node),
            Fault::Start { node } => self.start(*node).await?,
            Fault::Drain { node } => {
                for node in self
                    .nodes
                    .iter_mut()
                    .filter(|other| other.alive && other.start.node == *node)
                {
                    node.draining = true;
                    node.runtime.drain();
                }
            }
            Fault::Slow { node, hundredths } => {
                if let Some(node) = self.living(*node) {
                    node.slowness.store(*hundredths, Ordering::Relaxed);
                }
            }
            Fault::Links { from, to, link } => {
                let pairs = from
                    .iter()
                    .flat_map(|from| to.iter().map(move |to| (*from, *to)))
                    .filter(|(from, to)| from != to);
                self.links.extend(pairs.map(|pair| (pair, *link)));
                self.set_links();
            }
            Fault::Break { one, other } => {
                if let (Some(node), Some(_)) = (self.living(*one), self.living(*other))
                    && let Some(faults) = node.runtime.faults()
                {
                    faults.disconnect(*other);
                }
            }
            Fault::Heal => self.heal(),
            // These faults are left out of every schedule.
            Fault::Pause { .. }
            | Fault::SlowDisk { .. }
            | Fault::FullDisk { .. }
            | Fault::Drift { .. } => {}
        }
        Ok(())
    }

    fn kill(&mut self, id: NodeId) {
        let record = self.record.clone();
        for node in self
            .nodes
            .iter_mut()
            .filter(|node| node.alive && node.start.node == id)
        {
            node.alive = false;
            if let Some(faults) = node.runtime.faults() {
                faults.crash();
            }
            node.training.abort();
            record.put(Event::Ended {
                start: node.start,
                end: End::Killed,
            });
        }
    }

    fn heal(&mut self) {
        self.links.clear();
        for faults in self.nodes.iter().filter_map(|node| node.runtime.faults()) {
            faults.heal();
        }
    }

    fn set_links(&self) {
        for node in self.nodes.iter().filter(|node| node.alive) {
            let Some(faults) = node.runtime.faults() else {
                continue;
            };
            for ((_, to), link) in self
                .links
                .range((node.start.node, NodeId(0))..=(node.start.node, NodeId(u64::MAX)))
            {
                faults.set(*to, fault_of(link));
            }
        }
    }

    /// Ends the faults and restarts every node that died and did not leave.
    async fn fall_quiet(&mut self) -> Result<(), SpawnError> {
        self.heal();
        self.nodes
            .iter()
            .for_each(|node| node.slowness.store(100, Ordering::Relaxed));
        self.mark_down();
        let all: BTreeSet<NodeId> = self.nodes.iter().map(|node| node.start.node).collect();
        for id in all {
            let newest = self.nodes.iter().rfind(|node| node.start.node == id);
            if newest.is_some_and(|node| !node.alive && !node.draining) {
                self.start(id).await?;
            }
        }
        self.record.put(Event::Quiet);
        Ok(())
    }

    /// Whether a fault leaves a node that holds the model: without one there is no state to
    /// continue from.
    fn is_allowed(&mut self, fault: &Fault) -> bool {
        self.mark_down();
        match fault {
            Fault::Kill { node } | Fault::Drain { node } => {
                self.living(*node).is_some() && self.may_go(*node)
            }
            Fault::Start { node } => self.living(*node).is_none(),
            _ => true,
        }
    }

    /// Whether a node may go: another member of the furthest history stays, so that what was
    /// decided last is held by one that can continue from it.
    fn may_go(&self, id: NodeId) -> bool {
        let furthest = self.record.with(|watch| {
            watch
                .history()
                .furthest()
                .map(|known| known.decided.next.clone())
        });
        let Some(members) = furthest else {
            return false;
        };
        let stays = |start: &Start| {
            let other = self
                .living(start.node)
                .filter(|other| other.start == *start && start.node != id);
            other.is_some_and(|other| {
                !other.draining && other.runtime.status().standing == MemberState::Member
            })
        };
        members.iter().any(stays)
    }
}

/// The faults that the transport can emulate for a link: control frames and streams come once and
/// in order, as over QUIC.
fn fault_of(link: &Link) -> faulty::Fault {
    faulty::Fault {
        cut: link.cut,
        delay: Duration::from_micros(link.delay_us),
        jitter: Duration::from_micros(link.jitter_us),
        bytes_per_second: Some(link.bytes_per_second).filter(|rate| *rate > 0),
        lost_per_thousand: (link.lost_per_million / 1_000) as u16,
    }
}
