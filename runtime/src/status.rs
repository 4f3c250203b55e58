//! A node's report of itself and the cluster as JSON: for its admin socket, HTTP, and the page.

pub use crate::changes::SettingStatus;
use crate::changes::shown;
use serde::{Deserialize, Serialize};
use slowmo_actors::context::NodeContext;
use slowmo_actors::status::{Awaited, Gossiping, LOSS, NodeStatus};
pub use slowmo_actors::status::{CheckpointStatus, Event, MemberState};
use slowmo_protocol::coordinator::{self, AWAITED_TOLD_MAX};
use slowmo_protocol::gossip_peer::Straggler;
use slowmo_protocol::ident::{GroupId, Nodes};
use slowmo_protocol::real;
use slowmo_protocol::time::{Instant, Span};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A round that waits for contributions for less time than this says nothing of it.
const AWAITS_TOLD_AFTER: Span = Span::from_millis(2_000);

/// A node as it sees itself and the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The node's id.
    pub node: u64,
    /// The member state.
    pub standing: MemberState,
    /// The model history, 32 hexadecimal digits.
    pub lineage: String,
    /// The view's number.
    pub epoch: u64,
    /// The next round.
    pub round: u64,
    /// The inner step after the last decided round.
    pub step: u64,
    /// The step at which this node's own training is; `None` before its first `synchronize` ends.
    #[serde(default)]
    pub training: Option<TrainingStatus>,
    /// Members that live and contributed nothing to the last round, ascending.
    #[serde(default)]
    pub stragglers: Vec<StragglerStatus>,
    /// The device of each of its workers: `cpu`, or a GPU's number and name.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The members of the current view.
    pub members: Vec<MemberStatus>,
    /// Most members of the cluster (key `max_nodes`).
    #[serde(default)]
    pub max_nodes: usize,
    /// The last decided round, in three separate numbers: members, those of them alive, those of
    /// them that contributed.
    pub last_round: LastRound,
    /// The members whose contributions the last decided round averaged, ascending.
    pub contributors: Vec<u64>,
    /// Shards whose slow momentum restarted at zero since the bootstrap.
    pub momentum_lost: u64,
    /// The settings that may change in a running job, with the values in force.
    #[serde(default)]
    pub settings: Vec<SettingStatus>,
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
    pub loss: Option<Loss>,
    /// The last values that its training reported under names of its own, and the loss.
    #[serde(default)]
    pub measures: BTreeMap<String, Measure>,
    /// The state of its gossip, if it gossips.
    pub gossip: Option<GossipStatus>,
    /// Counts and errors of its parts of checkpoints, if it writes any.
    #[serde(default)]
    pub checkpoints: Option<CheckpointStatus>,
    /// The reason why no round can be decided now, and the remedy.
    pub waiting_for: Option<String>,
    /// Whose contribution the round waits for and how long yet, if this node leads the round and it
    /// has waited for 2 s.
    #[serde(default)]
    pub awaits: Option<String>,
    /// The address of its HTTP endpoint and page (key `http`).
    #[serde(default)]
    pub http: Option<SocketAddr>,
    /// The latest events, oldest first.
    pub events: Vec<Event>,
}

/// One member of the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The member's id.
    pub node: u64,
    /// The address at which it listens.
    pub address: String,
    /// Number of its workers.
    pub devices: u16,
    /// Whether this node considers the member alive.
    pub alive: bool,
    /// The number of its group (key `group`); `None` without one. Members with the same name have
    /// the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
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

/// Progress of a node's own training thread (of worker 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingStatus {
    /// The inner step that it works on.
    pub step: u64,
    /// Milliseconds since it began that step.
    pub ms: u64,
}

/// A member that lives and misses rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StragglerStatus {
    /// The member.
    pub node: u64,
    /// Rounds in a row to which it did not contribute.
    pub missed: u64,
    /// The inner step that its training had not finished when it was last heard of.
    pub step: u64,
    /// Milliseconds since the first of these rounds was decided.
    pub ms: u64,
    /// Whether the round under way waits for it, for at most `grace_ms`. After three misses in a
    /// row rounds wait for it again only when its training goes on.
    pub waited_for: bool,
}

/// The loss that a training loop reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// The inner step.
    pub step: u64,
    /// The loss.
    #[serde(with = "real")]
    pub loss: f64,
}

/// A value that a training loop reported under a name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// The inner step.
    pub step: u64,
    /// The value.
    #[serde(with = "real")]
    pub value: f64,
}

/// The state of a node's gossip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GossipStatus {
    /// The inner step that the next mix belongs to.
    pub step: u64,
    /// Push-sum weight of the node's own numerators.
    pub weight: f64,
    /// Push-sum weight in flight to others.
    pub escrowed: f64,
    /// Peers that are late, with their lag.
    pub late: Vec<LatePeer>,
}

/// A peer that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatePeer {
    /// The late peer.
    pub node: u64,
    /// Inner steps by which it lags this node, as far as known.
    pub steps: u64,
    /// Milliseconds for which gossip has waited for it, or skipped it.
    pub ms: u64,
    /// Whether gossip skips it.
    pub skipped: bool,
}

/// The node's current status.
pub(crate) fn status(context: &NodeContext) -> Status {
    let status = context.status.read();
    view(context, &status)
}

/// The status of a node that starts: it has no transport yet, and has met nobody.
pub(crate) fn starting(node: u64, max_nodes: usize, status: &NodeStatus) -> Status {
    Status {
        node,
        standing: status.standing,
        lineage: format!("{:032x}", status.lineage.0),
        epoch: 0,
        round: 0,
        step: 0,
        training: None,
        stragglers: Vec::new(),
        devices: status.devices.clone(),
        members: Vec::new(),
        max_nodes,
        last_round: LastRound {
            members: 0,
            alive: 0,
            contributors: 0,
            published_us: 0,
        },
        contributors: Vec::new(),
        momentum_lost: 0,
        settings: Vec::new(),
        push_sum_weight_lost: 0.0,
        push_sum_weight_doubled: 0.0,
        disagreement: None,
        loss: None,
        measures: BTreeMap::new(),
        gossip: None,
        checkpoints: None,
        waiting_for: status.waiting().map(str::to_owned),
        awaits: None,
        http: None,
        events: status.events.iter().cloned().collect(),
    }
}

/// The node's status as `status` has it, which `context` completes with what is fixed.
pub(crate) fn view(context: &NodeContext, status: &NodeStatus) -> Status {
    let member = |member: &slowmo_protocol::view::Member| MemberStatus {
        node: member.id.0,
        address: member.address.to_string(),
        devices: member.devices,
        alive: !status.dead.contains(&member.id),
        group: (member.group != GroupId::default()).then_some(member.group.0),
    };
    let now = context.clock.now();
    let straggler = |straggler: &coordinator::Straggler| StragglerStatus {
        node: straggler.node.0,
        missed: straggler.missed.into(),
        step: straggler.step.0,
        ms: now.since(straggler.since).as_millis(),
        waited_for: straggler.is_waited_for,
    };
    Status {
        node: context.settings.identity.node.0,
        standing: status.standing,
        lineage: format!("{:032x}", status.lineage.0),
        epoch: status.epoch.0,
        round: status.round.0,
        step: status.step.0,
        training: status.training.map(|(step, since)| TrainingStatus {
            step: step.0,
            ms: now.since(since).as_millis(),
        }),
        stragglers: status.stragglers.iter().map(straggler).collect(),
        devices: status.devices.clone(),
        members: status.members.iter().map(member).collect(),
        max_nodes: context.settings.max_nodes,
        last_round: LastRound {
            members: status.members_then,
            alive: status.alive_then,
            contributors: status.contributors.len(),
            published_us: status.published.0,
        },
        contributors: status.contributors.iter().map(|node| node.0).collect(),
        momentum_lost: status.momentum_lost,
        settings: shown(&context.settings, status.changed),
        push_sum_weight_lost: status.push_sum_weight_lost,
        push_sum_weight_doubled: status.push_sum_weight_doubled,
        disagreement: status.disagreement,
        loss: status.measures.get(LOSS).map(|(step, loss)| Loss {
            step: step.0,
            loss: *loss,
        }),
        measures: status
            .measures
            .iter()
            .map(|(name, (step, value))| {
                (
                    name.clone(),
                    Measure {
                        step: step.0,
                        value: *value,
                    },
                )
            })
            .collect(),
        http: context.peers.served_at(),
        gossip: status
            .gossip
            .as_ref()
            .map(|gossip| gossip_status(gossip, now)),
        checkpoints: status.checkpoints.clone(),
        waiting_for: status.waiting().map(str::to_owned),
        awaits: status
            .awaited
            .as_ref()
            .and_then(|awaited| told_awaited(awaited, now)),
        events: status.events.iter().cloned().collect(),
    }
}

/// Says whose contribution a round waits for; nothing while the wait is short.
fn told_awaited(awaited: &Awaited, now: Instant) -> Option<String> {
    let waited = now.since(awaited.since);
    if waited < AWAITS_TOLD_AFTER {
        return None;
    }
    let more = match awaited.nodes.len() {
        AWAITED_TOLD_MAX => " and perhaps more",
        _ => "",
    };
    Some(format!(
        "round {} waits for the contribution of {}{more}, for {} s by now; it closes without it \
         after {} s (grace_ms)",
        awaited.round.0,
        Nodes(&awaited.nodes),
        waited.as_millis() / 1_000,
        awaited.grace.as_millis() / 1_000
    ))
}

fn gossip_status(gossip: &Gossiping, now: Instant) -> GossipStatus {
    let late = |straggler: &Straggler| LatePeer {
        node: straggler.node.0,
        steps: straggler.steps,
        ms: now.since(straggler.since).as_millis(),
        skipped: straggler.skipped,
    };
    let late = gossip.stragglers.iter().map(late).collect();
    GossipStatus {
        step: gossip.step.0,
        weight: gossip.weight,
        escrowed: gossip.escrowed,
        late,
    }
}
