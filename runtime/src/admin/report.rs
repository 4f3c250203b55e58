//! A node's report of itself and the cluster as JSON: for its admin socket, HTTP, and the page.

use serde::{Deserialize, Serialize};
use slowmo_actors::context::NodeContext;
use slowmo_actors::status::{Checkpointing, Gossiping, LOSS, MemberState, NodeStatus};
use slowmo_protocol::gossip_peer::Straggler;
use slowmo_protocol::real;
use slowmo_protocol::time::Instant;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A node as it sees itself and the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The node's id.
    pub node: u64,
    /// The member state: `bootstrapping`, `joining`, `member`, `leaving` or `left`.
    pub standing: String,
    /// The model history, 32 hexadecimal digits.
    pub lineage: String,
    /// The view's number.
    pub epoch: u64,
    /// The next round.
    pub round: u64,
    /// The inner step after the last decided round.
    pub step: u64,
    /// The device of each of its workers: `cpu`, or a GPU's number and name.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The members of the current view.
    pub members: Vec<MemberReport>,
    /// The last decided round, in three separate numbers: members, those of them alive, those of
    /// them that contributed.
    pub last_round: LastRound,
    /// The members whose contributions the last decided round averaged, ascending.
    pub contributors: Vec<u64>,
    /// Shards whose slow momentum restarted at zero since the bootstrap.
    pub momentum_lost: u64,
    /// Push-sum weight that was in no average since this node joined: the weight of members that
    /// died or were excluded. Exact averages detect it: gossip alone does not know what was lost
    /// with a member.
    pub push_sum_weight_lost: f64,
    /// Push-sum weight that was in an average twice: of members that were marked down but were
    /// alive.
    pub push_sum_weight_doubled: f64,
    /// `‖x − x̄‖ / ‖x̄‖` of this node when it last contributed.
    pub disagreement: Option<f32>,
    /// The loss that its training reported last.
    #[serde(default)]
    pub loss: Option<LossReport>,
    /// The last values that its training reported under names of its own, and the loss.
    #[serde(default)]
    pub measures: BTreeMap<String, MeasureReport>,
    /// The state of its gossip, if it gossips.
    pub gossip: Option<GossipReport>,
    /// Counts and errors of its parts of checkpoints, if it writes any.
    #[serde(default)]
    pub checkpoints: Option<Checkpoints>,
    /// The reason why no round can be decided now, and the remedy.
    pub waiting_for: Option<String>,
    /// The address of its HTTP endpoint and page (key `http`).
    #[serde(default)]
    pub http: Option<SocketAddr>,
    /// The latest events, oldest first.
    pub events: Vec<EventReport>,
}

/// Counts and errors of a node's parts of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Parts that were written.
    pub written: u64,
    /// Parts that were not written because the disk failed.
    pub failed: u64,
    /// Parts that were not started when the next one came.
    pub skipped: u64,
    /// The inner step that follows the last part that was written.
    pub last_step: Option<u64>,
    /// Bytes of that part.
    pub last_bytes: u64,
    /// The reason why the last part was not written, if it was not.
    pub error: Option<String>,
    /// The inner step that follows the newest whole checkpoint known to this node.
    #[serde(default)]
    pub whole_step: Option<u64>,
    /// Checkpoints that were due since and did not become whole; the last one that was due is not
    /// counted, because others may still be writing it.
    #[serde(default)]
    pub not_whole: u64,
}

/// One member of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// The member's id.
    pub node: u64,
    /// The address at which it listens.
    pub address: String,
    /// Number of its workers.
    pub devices: u16,
    /// Whether this node considers the member alive.
    pub alive: bool,
}

/// The last decided round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRound {
    /// Members of its view.
    pub members: usize,
    /// Members that were alive.
    pub alive: usize,
    /// Members whose contributions were averaged.
    pub contributors: usize,
    /// Microseconds from the moment when all contributions had been sent until the round was
    /// decided.
    pub published_us: u64,
}

/// The loss that a training loop reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// The inner step.
    pub step: u64,
    /// The loss.
    #[serde(with = "real")]
    pub loss: f64,
}

/// A value that a training loop reported under a name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasureReport {
    /// The inner step.
    pub step: u64,
    /// The value.
    #[serde(with = "real")]
    pub value: f64,
}

/// The state of a node's gossip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GossipReport {
    /// The inner step that the next mix belongs to.
    pub step: u64,
    /// Push-sum weight of the node's own numerators.
    pub weight: f64,
    /// Push-sum weight in flight to others.
    pub escrowed: f64,
    /// Peers that are late, with their lag.
    pub late: Vec<LateReport>,
}

/// A peer that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateReport {
    /// The late peer.
    pub node: u64,
    /// Inner steps by which it lags this node, as far as known.
    pub steps: u64,
    /// Milliseconds for which gossip has waited for it, or skipped it.
    pub ms: u64,
    /// Whether gossip skips it.
    pub skipped: bool,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventReport {
    /// Microseconds since 1970.
    pub at_us: u64,
    /// Description of the event.
    pub what: String,
}

/// The node's current report.
pub(crate) fn report(context: &NodeContext) -> Report {
    let status: NodeStatus = context.status.read();
    let standing = match status.standing {
        MemberState::Bootstrapping if !status.members.is_empty() => MemberState::Member,
        MemberState::Bootstrapping if context.settings.join => MemberState::Joining,
        standing => standing,
    };
    let member = |member: &slowmo_protocol::view::Member| MemberReport {
        node: member.id.0,
        address: member.address.to_string(),
        devices: member.devices,
        alive: !status.dead.contains(&member.id),
    };
    Report {
        node: context.settings.identity.node.0,
        standing: standing.name().to_owned(),
        lineage: format!("{:032x}", status.lineage.0),
        epoch: status.epoch.0,
        round: status.round.0,
        step: status.step.0,
        devices: status.devices.clone(),
        members: status.members.iter().map(member).collect(),
        last_round: LastRound {
            members: status.members_then,
            alive: status.alive_then,
            contributors: status.contributors.len(),
            published_us: status.published.0,
        },
        contributors: status.contributors.iter().map(|node| node.0).collect(),
        momentum_lost: status.momentum_lost,
        push_sum_weight_lost: status.push_sum_weight_lost,
        push_sum_weight_doubled: status.push_sum_weight_doubled,
        disagreement: status.disagreement,
        loss: status.measures.get(LOSS).map(|(step, loss)| LossReport {
            step: step.0,
            loss: *loss,
        }),
        measures: status
            .measures
            .iter()
            .map(|(name, (step, value))| {
                (
                    name.clone(),
                    MeasureReport {
                        step: step.0,
                        value: *value,
                    },
                )
            })
            .collect(),
        http: context.watching.served_at(),
        gossip: status
            .gossip
            .map(|gossip| gossip_report(&gossip, context.clock.now())),
        checkpoints: status.checkpoints.map(|told| {
            let Checkpointing {
                written,
                failed,
                skipped,
                last_step,
                last_bytes,
                error,
                whole_step,
                not_whole,
            } = told;
            Checkpoints {
                written,
                failed,
                skipped,
                last_step,
                last_bytes,
                error,
                whole_step,
                not_whole,
            }
        }),
        waiting_for: status.waiting_for.or(status.waiting_to_join),
        events: status
            .events
            .into_iter()
            .map(|event| EventReport {
                at_us: event.at_us,
                what: event.what,
            })
            .collect(),
    }
}

fn gossip_report(gossip: &Gossiping, now: Instant) -> GossipReport {
    let late = |straggler: &Straggler| LateReport {
        node: straggler.node.0,
        steps: straggler.steps,
        ms: now.since(straggler.since).as_millis(),
        skipped: straggler.skipped,
    };
    let late = gossip.stragglers.iter().map(late).collect();
    GossipReport {
        step: gossip.step.0,
        weight: gossip.weight,
        escrowed: gossip.escrowed,
        late,
    }
}
