//! One simulated process: the parts of a node, as the actors drive them, and a training thread.

mod aggregator;
mod gossip;
mod membership;
mod rounds;
pub mod training;

pub use gossip::Gossips;
pub use membership::{Heard, Members};
pub use rounds::Rounds;
pub use training::{Doing, GAMMA, TrainingPart};

use super::config::Config;
use super::mail::{Mail, Output, Part};
use aggregator::Exchanges;
use slowmo_protocol::algorithm::OuterOptimizer;
use slowmo_protocol::gossip_peer::{self, Waits};
use slowmo_protocol::ident::{ClusterId, GroupId, NodeId};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::node::{self, ToAggregator, settle_wait};
use slowmo_protocol::policy::Bootstrap;
use slowmo_protocol::published::PublicKey;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::topology::Rate;
use slowmo_protocol::trace::Start;
use slowmo_protocol::{coordinator, liveness, membership as members};
use std::net::SocketAddr;

/// The cluster of every simulated run.
pub const CLUSTER: ClusterId = ClusterId(1);

/// A process from its start to its end.
pub struct Node {
    /// Node id and incarnation.
    pub start: Start,
    /// Address at which it listens.
    pub address: SocketAddr,
    /// The membership part.
    pub membership: Members,
    /// The coordinator part.
    pub rounds: Rounds,
    /// The gossip part.
    pub gossip: Gossips,
    aggregator: Exchanges,
    /// The training thread.
    pub training: TrainingPart,
}

impl Node {
    /// A process that has met no peer.
    pub fn new(
        start: Start,
        address: SocketAddr,
        bootstrap: Bootstrapping,
        config: &Config,
    ) -> Self {
        let identity = Identity {
            cluster: CLUSTER,
            node: start.node,
            incarnation: start.incarnation,
        };
        let round_trip = Span(2 * (config.delay.0 + config.delay.1 / 2));
        Self {
            start,
            address,
            membership: Members::new(
                members_settings(identity, address, bootstrap, config),
                liveness_settings(identity, config),
                round_trip,
            ),
            rounds: Rounds::new(rounds_settings(identity, config), optimizer(config)),
            gossip: Gossips::new(identity, config.algorithm, waits(config)),
            aggregator: Exchanges::new(config, rates(start.node, config)),
            training: TrainingPart::new(start.node, start.incarnation, config),
        }
    }

    /// Handles a message.
    pub fn take(&mut self, mail: Mail, heard: &Heard, now: Instant, outputs: &mut Vec<Output>) {
        match mail {
            Mail::Node(node::Mail::Membership(message)) => {
                self.membership.take(message, heard, now, outputs)
            }
            Mail::Node(node::Mail::Rounds(message)) => {
                self.rounds.after = self.training.after;
                self.rounds.take(message, now, outputs);
            }
            Mail::Node(node::Mail::Gossip(message)) => self.gossip.take(message, now, outputs),
            Mail::Node(node::Mail::Aggregator(message)) => {
                self.aggregator.take(message, now, outputs)
            }
            Mail::Arrive(arrival) => self.aggregator.arrive(*arrival, now, outputs),
            Mail::Training(message) => self.training.take(message, outputs),
        }
    }

    /// Time at which a part needs its next tick.
    pub fn next_deadline(&self, part: Part) -> Option<Instant> {
        match part {
            Part::Membership => self.membership.next_deadline(),
            Part::Rounds => self.rounds.next_deadline(),
            Part::Gossip => self.gossip.next_deadline(),
            Part::Aggregator => self.aggregator.next_deadline(),
            Part::Training => None,
        }
    }
}

/// Whether a process may be part of a bootstrap view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bootstrapping {
    /// The process only joins.
    Never,
    /// The process may bootstrap.
    Allowed,
    /// The process may bootstrap, and knows that it was a member before it was restarted.
    Again,
}

/// The message that tells a part that time has passed.
#[must_use]
pub fn tick(part: Part) -> Option<Mail> {
    Some(match part {
        Part::Membership => members::In::Tick.into(),
        Part::Rounds => coordinator::In::Tick.into(),
        Part::Gossip => gossip_peer::In::Tick.into(),
        Part::Aggregator => ToAggregator::Tick.into(),
        Part::Training => return None,
    })
}

/// The group of a node; groups are of any size.
fn group_of(node: NodeId, groups: u32) -> GroupId {
    let mixed = node.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    GroupId((mixed % u64::from(groups.max(1))) as u32)
}

fn members_settings(
    identity: Identity,
    address: SocketAddr,
    bootstrap: Bootstrapping,
    config: &Config,
) -> members::Settings {
    members::Settings {
        identity,
        address,
        devices: 1,
        group: group_of(identity.node, config.groups),
        key: PublicKey::default(),
        min_nodes: config.min_nodes,
        max_nodes: slowmo_protocol::view::MEMBERS_MAX,
        join: bootstrap == Bootstrapping::Never,
        lineage: None,
        bootstrap: Bootstrap::Auto,
        restarted: bootstrap == Bootstrapping::Again,
        refuses: None,
        shared: "simulated = 1".to_owned(),
        addresses_may_be_stale: true,
        meet_timeout: config.waits.connect,
        // Longer than any simulated fault.
        rejoin_timeout: Span::from_millis(3_600_000),
        synchronize_timeout: config.waits.round,
    }
}

fn liveness_settings(identity: Identity, config: &Config) -> liveness::Settings {
    let mut settings = liveness::Settings::new(identity);
    settings.probe_interval = config.waits.probe;
    settings.suspect = config.waits.suspect;
    settings
}

fn rounds_settings(identity: Identity, config: &Config) -> coordinator::Settings {
    coordinator::Settings {
        replicas: config.replicas,
        keeps_state: config.algorithm.outer.is_some_and(|outer| outer.sharded),
        copies_buffers: (config.buffers > 0).then_some(config.algorithm.buffers),
        orders_by_rate: config.algorithm.orders_by_rate(),
        quorum: config.quorum,
        grace: coordinator::capped_grace(config.waits.grace, config.waits.round),
        round_timeout: config.waits.round,
        votes_wait: coordinator::VOTES_WAIT,
        ..coordinator::Settings::simulated(identity)
    }
}

/// The outer optimizer; an arbitrary one if there is no slow step.
fn optimizer(config: &Config) -> OuterOptimizer {
    config.algorithm.outer.map_or(
        OuterOptimizer::SlowMo {
            alpha: 1.0,
            beta: 0.0,
        },
        |outer| outer.optimizer,
    )
}

fn waits(config: &Config) -> Waits {
    Waits {
        message: config.waits.grace,
        settle: settle_wait(config.waits.grace, config.waits.round),
        leave: config.waits.round,
    }
}

/// Rates that a node measured to all others. Even and odd ids form one site each.
fn rates(of: NodeId, config: &Config) -> Vec<Rate> {
    if !config.algorithm.orders_by_rate() {
        return Vec::new();
    }
    let rate = |to: &NodeId| Rate {
        to: *to,
        kilobytes: if to.0 % 2 == of.0 % 2 {
            1_000_000
        } else {
            1_000
        },
    };
    config
        .founders
        .iter()
        .take(slowmo_protocol::topology::RATES_MAX)
        .map(rate)
        .collect()
}
