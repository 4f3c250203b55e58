//! One simulated process: the machine, its sessions, and the events reported to its coordinator.

use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round};
use crate::membership::{BootstrapError, Effect, Membership};
use crate::model::ModelSize;
use crate::view::Member;
use crate::wire::JoinRefusal;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// How a process is started.
#[derive(Clone)]
pub struct Start {
    pub id: NodeId,
    pub model: ModelSize,
    pub shared: String,
    pub join: bool,
    /// Whether it was a member before.
    pub restarted: bool,
    /// The history whose state it brings.
    pub lineage: Option<Lineage>,
    pub refuses: Option<JoinRefusal>,
    /// Port on which it listens; `None` for any.
    pub port: Option<u16>,
}

/// The usual start of a node.
pub fn node(id: u64) -> Start {
    Start {
        id: NodeId(id),
        model: ModelSize::of(23),
        shared: "tau = 12".to_owned(),
        join: false,
        restarted: false,
        lineage: None,
        refuses: None,
        port: None,
    }
}

/// A connection to, or from, a process.
#[derive(Clone, Copy)]
pub struct Session {
    pub process: usize,
    /// Whether it can be sent to.
    pub up: bool,
}

/// The member state of a coordinator.
pub use crate::wire::MemberState as At;

pub struct Process {
    pub id: NodeId,
    pub incarnation: Incarnation,
    pub address: SocketAddr,
    pub machine: Membership,
    pub alive: bool,
    pub left: bool,
    pub search: bool,
    pub tick_at: Option<u64>,
    pub sessions: BTreeMap<NodeId, Session>,
    pub dialing: BTreeMap<SocketAddr, u64>,
    pub silent_since: BTreeMap<usize, u64>,
    pub watched: Vec<(NodeId, Incarnation)>,
    /// Nodes that liveness declared dead.
    pub declared: BTreeSet<(NodeId, Incarnation)>,
    pub coordinator: Option<At>,
    /// The member state before it resigned.
    pub before: Option<At>,
    pub lost: BTreeSet<(NodeId, Incarnation)>,
    pub joiners: (Epoch, Vec<Member>),
    pub leaving: BTreeSet<(NodeId, Incarnation)>,
    /// The round that its coordinator works towards, and since when (in microseconds).
    pub waits_since: Option<(Round, u64)>,
    pub failed: Option<BootstrapError>,
    pub resigned: usize,
    /// Reason, told to an operator, why it is no member.
    pub waiting: Option<String>,
    /// Other clusters of which an operator is told.
    pub others: Vec<Lineage>,
}

impl Process {
    pub fn new(
        id: NodeId,
        incarnation: Incarnation,
        address: SocketAddr,
        machine: Membership,
    ) -> Self {
        Self {
            id,
            incarnation,
            address,
            machine,
            alive: true,
            left: false,
            search: true,
            tick_at: None,
            sessions: BTreeMap::new(),
            dialing: BTreeMap::new(),
            silent_since: BTreeMap::new(),
            watched: Vec::new(),
            declared: BTreeSet::new(),
            coordinator: None,
            before: None,
            lost: BTreeSet::new(),
            joiners: (Epoch(0), Vec::new()),
            leaving: BTreeSet::new(),
            waits_since: None,
            failed: None,
            resigned: 0,
            waiting: None,
            others: Vec::new(),
        }
    }

    /// Notes a death; whether liveness has to report it.
    pub fn declare(&mut self, node: NodeId, incarnation: Incarnation) -> bool {
        self.watched.contains(&(node, incarnation)) && self.declared.insert((node, incarnation))
    }

    /// Notes an effect for the coordinator, liveness or the search.
    pub fn note(&mut self, effect: Effect) {
        match effect {
            Effect::Formed { view, lineage } => {
                assert_eq!(
                    self.coordinator, None,
                    "{} founds although it is a member",
                    self.id
                );
                self.coordinator = Some(At {
                    lineage,
                    forks: Vec::new(),
                    round: Round::BOOTSTRAP,
                    view,
                    dead: Vec::new(),
                });
            }
            Effect::Fail(error) => {
                assert_eq!(
                    (&self.failed, &self.coordinator),
                    (&None, &None),
                    "{} fails: {error}",
                    self.id
                );
                self.failed = Some(error);
            }
            Effect::Lost {
                node, incarnation, ..
            } => _ = self.lost.insert((node, incarnation)),
            Effect::Back(node) => self.lost.retain(|(lost, _)| *lost != node),
            Effect::Joiners { epoch, members } => {
                members
                    .iter()
                    .for_each(|member| _ = self.lost.remove(&(member.id, member.incarnation)));
                self.joiners = (epoch, members);
            }
            Effect::Leaving {
                node, incarnation, ..
            } => _ = self.leaving.insert((node, incarnation)),
            Effect::Waiting(why) => self.waiting = why,
            Effect::OtherCluster { lineage, .. } => self.others.push(lineage),
            Effect::Resign(_) => {
                self.before = self.coordinator.take().or(self.before.take());
                self.resigned += 1;
                self.lost.clear();
                self.leaving.clear();
                self.joiners = (Epoch(0), Vec::new());
            }
            Effect::Watch(nodes) => {
                self.declared.retain(|declared| nodes.contains(declared));
                self.watched = nodes;
            }
            Effect::Search(on) => self.search = on,
            Effect::Send { .. }
            | Effect::Connect(_)
            | Effect::Disconnect(_)
            | Effect::Drained
            | Effect::Return { .. }
            | Effect::Left => {}
        }
    }
}
