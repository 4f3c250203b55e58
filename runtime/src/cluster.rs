//! The whole cluster as one node reports it: its own status, and what the other members answer when
//! they are asked ([`slowmo_actors::status_digests`]). The page and the admin socket use it.

use crate::status::{MemberState, MemberStatus, Status, status};
use serde::{Deserialize, Serialize};
use slowmo_actors::context::NodeContext;
use slowmo_actors::peer_status::{ASK_INTERVAL, Seen};
use slowmo_actors::status_digests;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::Instant;
use slowmo_protocol::wire::{Link, StatusDigest};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest wait for the other members' answers. They are asked twice in this time, because
/// datagrams may be lost.
pub const ANSWERS_WAIT_MAX: Duration = Duration::from_millis(1_500);
/// Interval at which the node looks whether all have answered.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The whole cluster as one node reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The status of the node that was asked.
    pub report: Status,
    /// The members of its view, itself among them. Empty before it is a member.
    pub nodes: Vec<NodeReport>,
}

/// A member of the view, and what it said of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The member, as the node that was asked knows it.
    #[serde(flatten)]
    pub member: MemberStatus,
    /// Its last digest; `None` if it has not answered.
    pub digest: Option<Digest>,
}

/// A member's report of itself, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// Time since it arrived, in milliseconds.
    pub age_ms: u64,
    /// The node's incarnation; as text, because it exceeds the integers that a page's numbers hold
    /// exactly.
    pub incarnation: String,
    /// The member state.
    pub standing: MemberState,
    /// The view's number.
    pub epoch: u64,
    /// The next round.
    pub round: u64,
    /// The inner step.
    pub step: u64,
    /// Measures that its training reported, by name: inner step and value; no value if it is not
    /// finite.
    pub measures: BTreeMap<String, (u64, Option<f64>)>,
    /// `‖x − x̄‖ / ‖x̄‖` when it last contributed.
    pub disagreement: Option<f32>,
    /// Push-sum weight, if it gossips.
    pub weight: Option<f64>,
    /// Whether it waits; its own status says for what.
    pub waits: bool,
    /// The address of its page, if it serves one.
    pub http: Option<String>,
    /// The clock of the node that sent the digest, in microseconds since 1970, so that rates do not
    /// depend on when it arrived.
    pub at_us: u64,
    /// Bytes that it has sent.
    pub sent_bytes: u64,
    /// Bytes that it has received.
    pub received_bytes: u64,
    /// Its links to other members.
    pub links: Vec<Link>,
}

/// Asks the other members and waits until the living ones have answered, at most
/// [`ANSWERS_WAIT_MAX`]. Answers that came shortly before count: an open page asks too.
pub(crate) async fn cluster(context: &NodeContext) -> ClusterStatus {
    let begun = context.clock.now();
    let is_fresh = |at: Instant| begun.since(at) <= ASK_INTERVAL;
    let asking = async {
        loop {
            status_digests::ask(context);
            if has_heard_all(context, is_fresh) {
                return;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    // Whoever does not answer in time is shown without an answer.
    let _ = tokio::time::timeout(ANSWERS_WAIT_MAX, asking).await;
    let report = status(context);
    let nodes = nodes_since(context, &report, is_fresh);
    ClusterStatus { report, nodes }
}

/// Every member of the view with its last digest, however old.
pub(crate) fn nodes(context: &NodeContext, report: &Status) -> Vec<NodeReport> {
    nodes_since(context, report, |_| true)
}

fn has_heard_all(context: &NodeContext, is_fresh: impl Fn(Instant) -> bool) -> bool {
    let own = context.settings.identity.node;
    let seen = context.peers.seen();
    let status = context.status.read();
    let mut others = status
        .members
        .iter()
        .filter(|member| member.id != own && !status.dead.contains(&member.id));
    others.all(|member| seen.get(&member.id).is_some_and(|seen| is_fresh(seen.at)))
}

fn nodes_since(
    context: &NodeContext,
    report: &Status,
    is_fresh: impl Fn(Instant) -> bool,
) -> Vec<NodeReport> {
    let seen = context.peers.seen();
    let now = context.clock.now();
    let of_another = |node: u64| {
        let Seen { digest, at } = seen.get(&NodeId(node)).filter(|seen| is_fresh(seen.at))?;
        Some(Digest::of(digest, now.since(*at).as_millis()))
    };
    let node = |member: &MemberStatus| NodeReport {
        member: member.clone(),
        digest: if member.node == report.node {
            Some(Digest::of(&status_digests::digest(context, u64::MAX), 0))
        } else {
            of_another(member.node)
        },
    };
    report.members.iter().map(node).collect()
}

impl Digest {
    fn of(digest: &StatusDigest, age_ms: u64) -> Self {
        let measures = digest.measures.iter().map(|measure| {
            let value = Some(measure.value).filter(|value| value.is_finite());
            (measure.name.clone(), (measure.step.0, value))
        });
        Self {
            age_ms,
            incarnation: digest.incarnation.0.to_string(),
            standing: digest.stands,
            epoch: digest.epoch.0,
            round: digest.round.0,
            step: digest.step.0,
            measures: measures.collect(),
            disagreement: digest.disagreement,
            weight: digest.weight,
            waits: digest.waits,
            http: digest.http.map(|address| address.to_string()),
            at_us: digest.at_us,
            sent_bytes: digest.sent_bytes,
            received_bytes: digest.received_bytes,
            links: digest.links.clone(),
        }
    }
}
