//! Status that a node shows of itself: written by the actor shells, read by the admin endpoint.
//! Cheap to update; no other work waits for it.

use crate::timeline::{DISAGREEMENT, Timeline};
use crate::unix_time::unix_us;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use slowmo_protocol::changeable::SettingValues;
use slowmo_protocol::coordinator::{MISSES_WAITED_FOR, Outcome, Straggler};
use slowmo_protocol::gossip_peer;
use slowmo_protocol::ident::{Epoch, Lineage, NodeId, Round, Step};
use slowmo_protocol::sound::Unsound;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::view::{MEMBERS_MAX, Member, View};
pub use slowmo_protocol::wire::Stands as MemberState;
use slowmo_protocol::wire::{MEASURE_NAME_BYTES_MAX, MEASURES_MAX};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// Most events that are kept.
pub const EVENTS_MAX: usize = 64;
/// Most refusals, by address and reason, that have events; further ones are logged only.
pub const REFUSED_MAX: usize = 16;

/// Name of the measure that is shown first.
pub const LOSS: &str = "loss";

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event, in microseconds since 1970.
    pub at_us: u64,
    /// Description of the event, for a person to read.
    pub what: String,
}

/// State of a node's gossip.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gossiping {
    /// Push-sum weight of the node's own numerators.
    pub weight: f64,
    /// Push-sum weight of in-flight messages to other nodes.
    pub escrowed: f64,
    /// The inner step that the next mix belongs to.
    pub step: Step,
    /// Peers for which the node's training threads wait, and late peers without which they
    /// continue.
    pub stragglers: Vec<gossip_peer::Straggler>,
}

/// Outcomes of a node's parts of checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// Parts that were written.
    pub written: u64,
    /// Parts that were not written because the disk failed.
    pub failed: u64,
    /// Parts that were dropped because their writing had not begun when the next one arrived.
    pub skipped: u64,
    /// The inner step that follows the last part that was written.
    pub last_step: Option<u64>,
    /// Bytes of that part.
    pub last_bytes: u64,
    /// Error of the last part, if it was not written.
    pub error: Option<String>,
    /// The inner step that follows the newest complete checkpoint, as far as this node knows.
    #[serde(default)]
    pub whole_step: Option<u64>,
    /// Checkpoints that were due since then and did not become complete. The last one that was due
    /// is not counted, because other nodes may still be writing it.
    #[serde(default)]
    pub not_whole: u64,
}

impl CheckpointStatus {
    /// The last error, if it is new and worth a line: the first one since a part was written, or
    /// one whose number is a power of two. A disk that stays full fills no log.
    #[must_use]
    pub fn error_to_tell(&self, before: Option<&Self>) -> Option<&str> {
        let failed_before = before.map_or(0, |before| before.failed);
        let is_first = before.is_none_or(|before| before.error.is_none());
        let told = self.failed > failed_before && (is_first || self.failed.is_power_of_two());
        self.error.as_deref().filter(|_| told)
    }
}

/// Members that live and have not contributed to a round that others have contributed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The round.
    pub round: Round,
    /// The first of them, ascending.
    pub nodes: Vec<NodeId>,
    /// When the round began to wait for members.
    pub since: Instant,
    /// How long after that the round closes without them.
    pub grace: Span,
}

/// A node's view of itself and of the cluster.
#[derive(Clone, Debug, Default)]
pub struct NodeStatus {
    /// The device of each worker, for a person to read.
    pub devices: Vec<String>,
    /// The node's member state.
    pub standing: MemberState,
    /// The model history of the node.
    pub lineage: Lineage,
    /// Epoch of the view.
    pub epoch: Epoch,
    /// Number of the next round.
    pub round: Round,
    /// The inner step after the last decided round.
    pub step: Step,
    /// The inner step at which the training thread of worker 0 is, and when it began that step.
    pub training: Option<(Step, Instant)>,
    /// Members that live and contributed nothing to the last round, ascending.
    pub stragglers: Vec<Straggler>,
    /// The members of the view.
    pub members: Vec<Member>,
    /// The view after the last decided round, and the number of values in the vector that its
    /// members share.
    pub view: Option<(View, usize)>,
    /// Members that are considered dead.
    pub dead: BTreeSet<NodeId>,
    /// Number of members that do not answer but are not yet considered dead.
    pub suspected: usize,
    /// The contributors to the last decided round.
    pub contributors: Vec<NodeId>,
    /// Number of members when the last round was decided.
    pub members_then: usize,
    /// Number of members alive when the last round was decided.
    pub alive_then: usize,
    /// The settings that changed while the job runs.
    pub changed: SettingValues,
    /// Time from the moment when all contributions of the last round were on their way until the
    /// round was decided.
    pub published: Span,
    /// Number of shards whose momentum restarted at zero since bootstrap.
    pub momentum_lost: u64,
    /// Push-sum weight that was in no average: that of members that died, were excluded, or held
    /// weight that other members had sent them.
    pub push_sum_weight_lost: f64,
    /// Push-sum weight that was in an average twice: a live member was declared dead, and both
    /// sides counted the weight.
    pub push_sum_weight_doubled: f64,
    /// `‖x − x̄‖ / ‖x̄‖` of this node at its last contribution.
    pub disagreement: Option<f32>,
    /// The values that the training last reported, by name, with their inner steps; at most
    /// [`MEASURES_MAX`].
    pub measures: BTreeMap<String, (Step, f64)>,
    /// State of the node's gossip, if it gossips.
    pub gossip: Option<Gossiping>,
    /// Number of outcomes that changed the view since this node became a member.
    pub view_changes: u64,
    /// Number of times that a member was declared dead.
    pub deaths: u64,
    /// State of the node's parts of checkpoints, if it writes any.
    pub checkpoints: Option<CheckpointStatus>,
    /// The work of the node before it looks for others.
    pub starting: Option<String>,
    /// The reason why no round is decided, and what would end the wait.
    pub waiting_for: Option<String>,
    /// The members for whose contribution the round waits, if this node leads it.
    pub awaited: Option<Awaited>,
    /// The reason why this node is not a member yet.
    pub waiting_to_join: Option<String>,
    /// The workers of this node for which its other workers wait.
    pub waiting_for_workers: Option<String>,
    /// Whether all workers of this node have called `synchronize`.
    pub synchronizes: bool,
    /// When the first certificate of the node's chain expires, in seconds since 1970; `None` if it
    /// has a cluster key.
    pub certificate_expires_at: Option<i64>,
    /// The most recent events, oldest first; at most [`EVENTS_MAX`].
    pub events: VecDeque<Event>,
}

/// The shared status of a node, which its actor shells update.
#[derive(Debug, Default)]
pub struct StatusBoard {
    status: Mutex<NodeStatus>,
    timeline: Mutex<Timeline>,
    /// How often each node sent what no correct node sends; at most [`MEMBERS_MAX`].
    accused: Mutex<BTreeMap<NodeId, u64>>,
    /// How often each address was refused for each reason; at most [`REFUSED_MAX`].
    refused: Mutex<BTreeMap<(SocketAddr, String), u64>>,
}

impl NodeStatus {
    /// Says why this node waits: for its own start, for its workers, for a round that is not
    /// decided, or to become a member. A node whose workers are missing may be the cause of the
    /// other reasons.
    #[must_use]
    pub fn waiting(&self) -> Option<&str> {
        self.starting
            .as_deref()
            .or(self.waiting_for_workers.as_deref())
            .or(self.waiting_for.as_deref())
            .or(self.waiting_to_join.as_deref())
    }
}

impl StatusBoard {
    /// The status of a node that has met no other node.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets the devices of the node's workers.
    pub fn runs_on(&self, devices: Vec<String>) {
        self.with(|status| status.devices = devices);
    }

    /// Sets when the node's certificate expires, in seconds since 1970.
    pub fn certificate_expires_at(&self, at: Option<i64>) {
        self.with(|status| status.certificate_expires_at = at);
    }

    /// A copy of the current status.
    #[must_use]
    pub fn read(&self) -> NodeStatus {
        self.with(|status| status.clone())
    }

    /// Records a decided round, decided `published` after its publication began; `disagreement` is
    /// known if this node contributed.
    pub fn decided(&self, outcome: &Outcome, disagreement: Option<f32>, published: Span) {
        self.timeline(|timeline| timeline.decided(outcome, disagreement, published));
        self.with(|status| {
            let before = ids(&status.members);
            let after = ids(outcome.view.members());
            if before.is_empty() {
                note(
                    status,
                    format!(
                        "a member since {}, with {} others",
                        outcome.round,
                        after.len().saturating_sub(1)
                    ),
                );
            } else {
                after
                    .difference(&before)
                    .for_each(|node| note(status, format!("{node} joined in {}", outcome.round)));
            }
            before.difference(&after).for_each(|node| {
                note(status, format!("{node} left the view in {}", outcome.round))
            });
            // Nodes that joined, or came back as a new incarnation, are alive; nodes that are no
            // members are not tracked.
            let then = std::mem::take(&mut status.dead);
            status.members_then = if before.is_empty() {
                after.len()
            } else {
                before.len()
            };
            status.alive_then = status.members_then - before.intersection(&then).count();
            let stayed = |id: &NodeId| {
                status
                    .members
                    .iter()
                    .any(|member| member.id == *id && outcome.view.members().contains(member))
            };
            status.dead = then.into_iter().filter(stayed).collect();
            status.view_changes +=
                u64::from(!status.members.is_empty() && status.epoch != outcome.view.epoch());
            status.members = outcome.view.members().to_vec();
            status.view = Some((
                outcome.view.clone(),
                usize::try_from(outcome.spec.elements).unwrap_or(usize::MAX),
            ));
            status.lineage = outcome.lineage;
            status.epoch = outcome.view.epoch();
            status.round = outcome.round.next();
            status.step = outcome.spec.next_step();
            status.contributors.clone_from(&outcome.contributors);
            let lost = outcome.momentum_lost.saturating_sub(status.momentum_lost);
            if lost > 0 && status.standing == MemberState::Member {
                let told = format!(
                    "the slow momentum of {lost} shards restarts at zero: nobody that holds it is \
                     left"
                );
                tracing::warn!("{told}");
                note(status, told);
            }
            status.momentum_lost = outcome.momentum_lost;
            let news = outcome.changed.values.unlike(status.changed);
            if !news.is_empty() {
                note(status, format!("in force since {}: {news}", outcome.round));
            }
            status.changed = outcome.changed.values;
            status.published = published;
            status.disagreement = disagreement.or(status.disagreement);
            if matches!(
                status.standing,
                MemberState::Bootstrapping | MemberState::Joining
            ) {
                status.standing = MemberState::Member;
            }
        });
    }

    /// Records the members' push-sum weight that is missing from an average; negative if some was
    /// in it twice.
    pub fn push_sum_weight(&self, missing: f64) {
        self.with(|status| {
            status.push_sum_weight_lost += missing.max(0.0);
            status.push_sum_weight_doubled += (-missing).max(0.0);
        });
    }

    /// Sets the node's member state.
    pub fn standing(&self, standing: MemberState) {
        self.with(|status| status.standing = standing);
    }

    /// Records that a node was declared dead, or is back.
    pub fn lives(&self, node: NodeId, lives: bool) {
        self.with(|status| {
            let changed = if lives {
                status.dead.remove(&node)
            } else {
                status.dead.insert(node)
            };
            if changed {
                status.deaths += u64::from(!lives);
                note(
                    status,
                    format!("{node} is {}", if lives { "back" } else { "dead" }),
                );
            }
        });
    }

    /// Sets the number of members that do not answer.
    pub fn suspects(&self, suspected: usize) {
        self.with(|status| status.suspected = suspected);
    }

    /// Sets the state of gossip.
    pub fn gossip(&self, gossip: Gossiping) {
        self.with(|status| status.gossip = Some(gossip));
    }

    /// Records a value that the training reports under a name. Returns false if it is refused: the
    /// name is empty, too long or used by the runtime, or there are too many names.
    pub fn measure(&self, name: &str, step: Step, value: f64) -> bool {
        let taken = self.with(|status| {
            if let Some(measure) = status.measures.get_mut(name) {
                *measure = (step, value);
                return true;
            }
            let fits = (1..=MEASURE_NAME_BYTES_MAX).contains(&name.len())
                && status.measures.len() < MEASURES_MAX;
            // The runtime's own curve has this name.
            let fits = fits && name != DISAGREEMENT;
            fits && status
                .measures
                .insert(name.to_owned(), (step, value))
                .is_none()
        });
        if taken {
            self.timeline(|timeline| timeline.measured(name, step, value));
        }
        taken
    }

    /// Accesses the node's timeline.
    pub fn timeline<T>(&self, act: impl FnOnce(&mut Timeline) -> T) -> T {
        act(&mut self.timeline.lock())
    }

    /// Sets the state of the node's parts of checkpoints. A write error that is worth a line becomes
    /// an event.
    pub fn checkpoints(&self, checkpoints: CheckpointStatus) {
        self.with(|status| {
            if let Some(error) = checkpoints.error_to_tell(status.checkpoints.as_ref()) {
                note(
                    status,
                    format!("a part of a checkpoint was not written: {error}"),
                );
            }
            status.checkpoints = Some(checkpoints);
        });
    }

    /// Sets what the node does before it looks for others; `None` once it does.
    pub fn starting(&self, what: Option<String>) {
        self.with(|status| status.starting = what);
    }

    /// Sets the reason why no round is decided; `None` if rounds are decided.
    pub fn waiting(&self, why: Option<String>) {
        self.with(|status| status.waiting_for = why);
    }

    /// Sets for whose contribution the round waits; `None` if for nobody's.
    pub fn awaits(&self, awaited: Option<Awaited>) {
        self.with(|status| status.awaited = awaited);
    }

    /// Records that the training thread of worker 0 begins a step.
    pub fn trains(&self, step: Step, now: Instant) {
        self.with(|status| status.training = Some((step, now)));
    }

    /// Sets the members that live and contributed nothing to the last round. An event tells when
    /// rounds stop to wait for one, and when it contributes again.
    pub fn stragglers(&self, stragglers: Vec<Straggler>) {
        self.with(|status| {
            let before = std::mem::take(&mut status.stragglers);
            let of = |list: &[Straggler], node| {
                let known = list.iter().find(|straggler| straggler.node == node);
                known.map(|straggler| straggler.missed).unwrap_or_default()
            };
            for straggler in &stragglers {
                let Straggler {
                    node, missed, step, ..
                } = *straggler;
                if of(&before, node) < MISSES_WAITED_FOR && missed >= MISSES_WAITED_FOR {
                    note(
                        status,
                        format!(
                            "{node} lives, missed {missed} rounds and has not finished {step}: \
                             rounds do not wait for it until its training goes on"
                        ),
                    );
                }
            }
            for straggler in &before {
                let node = straggler.node;
                let stays = status.members.iter().any(|member| member.id == node);
                if stays && straggler.missed >= MISSES_WAITED_FOR && of(&stragglers, node) == 0 {
                    note(
                        status,
                        format!(
                            "{node} contributes again after {} rounds without it",
                            straggler.missed
                        ),
                    );
                }
            }
            status.stragglers = stragglers;
        });
    }

    /// Sets the workers of this node for which its other workers wait.
    pub fn waiting_for_workers(&self, which: Option<String>) {
        self.with(|status| status.waiting_for_workers = which);
    }

    /// Records that all workers of this node have called `synchronize`.
    pub fn synchronizes(&self) {
        self.with(|status| status.synchronizes = true);
    }

    /// Sets the reason why this node is not a member yet.
    pub fn waiting_to_join(&self, why: Option<String>) {
        self.with(|status| status.waiting_to_join = why);
    }

    /// Adds an event.
    pub fn event(&self, what: impl Into<String>) {
        self.with(|status| note(status, what.into()));
    }

    /// Counts a message that no correct node sends, and names its sender in an event if the count
    /// is a power of two: a flood of such messages hides no other event. Returns whether it did.
    pub fn accuse(&self, node: NodeId, what: &Unsound) -> bool {
        let mut accused = self.accused.lock();
        if accused.len() >= MEMBERS_MAX && !accused.contains_key(&node) {
            return false;
        }
        let times = accused.entry(node).or_default();
        *times = times.saturating_add(1);
        let told = times.is_power_of_two();
        if told {
            self.event(format!(
                "{node} sent what no correct node sends ({what}): refused until it is restarted"
            ));
        }
        told
    }

    /// Counts a refusal of the node at an address, and names it in an event if the reason is new or
    /// the count is a power of two: a node that tries again every second hides no other event.
    /// Returns whether to log it.
    pub fn refused(&self, address: SocketAddr, why: &str) -> bool {
        let mut refused = self.refused.lock();
        let refusal = (address, why.to_owned());
        if refused.len() >= REFUSED_MAX && !refused.contains_key(&refusal) {
            return true;
        }
        let times = refused.entry(refusal).or_default();
        *times = times.saturating_add(1);
        let told = times.is_power_of_two();
        if told {
            self.event(format!("refused {address}: {why}"));
        }
        told
    }

    fn with<T>(&self, act: impl FnOnce(&mut NodeStatus) -> T) -> T {
        act(&mut self.status.lock())
    }
}

fn ids(members: &[Member]) -> BTreeSet<NodeId> {
    members.iter().map(|member| member.id).collect()
}

fn note(status: &mut NodeStatus, what: String) {
    if status.events.len() == EVENTS_MAX {
        status.events.pop_front();
    }
    // Event times strictly increase, even if the clock goes back: a reader that asks for events
    // after a time misses none.
    let after = status.events.back().map_or(0, |last| last.at_us + 1);
    status.events.push_back(Event {
        at_us: unix_us().max(after),
        what,
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use slowmo_protocol::coordinator::{RoundKind, RoundSpec};
    use slowmo_protocol::ident::{GroupId, Incarnation};
    use slowmo_protocol::published::PublicKey;
    use slowmo_protocol::view::View;

    fn decided(board: &StatusBoard, round: u64, members: &[(u64, u64)]) {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
        let member = |(id, start): &(u64, u64)| Member {
            id: NodeId(*id),
            incarnation: Incarnation(*start),
            address,
            devices: 1,
            group: GroupId::default(),
            key: PublicKey::default(),
        };
        let spec = RoundSpec {
            kind: RoundKind::Average,
            step: Step(round),
            gamma: 0.1,
            elements: 23,
        };
        let view = View::new(Epoch(round), members.iter().map(member).collect()).unwrap();
        let outcome = Outcome::of_all(Lineage(7), Round(round), spec, view);
        board.decided(&outcome, None, Span(0));
    }

    #[test]
    fn a_flood_of_refused_values_is_told_rarely() {
        let board = StatusBoard::new();
        for time in 1..=100u64 {
            let told = board.accuse(NodeId(5), &Unsound::Weight(1e39));
            assert_eq!(told, time.is_power_of_two());
        }
        let status = board.read();
        assert_eq!(status.events.len(), 7);
        assert!(
            status.events[0]
                .what
                .starts_with("node 5 sent what no correct node sends (a push-sum weight of 1e39)"),
            "{:?}",
            status.events
        );
    }

    #[test]
    fn who_is_refused_again_and_again_is_told_rarely() {
        let board = StatusBoard::new();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let told = (0..100).filter(|_| board.refused(address(1), "another key"));
        assert_eq!(told.count(), 7);
        assert!(board.refused(address(1), "another id"), "the reason is new");
        assert!(
            !board.refused(address(1), "another key"),
            "it was told before"
        );
        (2..1000).for_each(|port| _ = board.refused(address(port), "another key"));
        assert_eq!(board.refused.lock().len(), REFUSED_MAX);
        let last = board.read().events.pop_back().unwrap();
        assert_eq!(last.what, "refused 127.0.0.1:15: another key");
    }

    #[test]
    fn whoever_joins_again_counts_as_alive() {
        let board = StatusBoard::new();
        decided(&board, 1, &[(1, 1), (2, 1), (3, 1)]);
        board.lives(NodeId(2), false);
        board.lives(NodeId(3), false);
        decided(&board, 2, &[(1, 1), (2, 1), (3, 2)]);
        let status = board.read();
        assert_eq!(
            (status.members_then, status.alive_then, status.dead.len()),
            (3, 1, 1),
            "node 3 came back as a new start: {status:?}"
        );
        decided(&board, 3, &[(1, 1), (3, 2)]);
        decided(&board, 4, &[(1, 1), (2, 1), (3, 2)]);
        decided(&board, 5, &[(1, 1), (2, 1), (3, 2)]);
        let status = board.read();
        assert_eq!(
            (status.members_then, status.alive_then, status.dead.len()),
            (3, 3, 0),
            "{status:?}"
        );
    }
}
