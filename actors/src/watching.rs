//! Status of the other nodes, collected while somebody watches this node's page: the node asks the
//! others about every second, and each answers with one datagram about itself. If nobody watches,
//! nothing is sent. No decision depends on this.

use crate::context::NodeContext;
use crate::status::{MemberState, NodeStatus};
use crate::unix_time::unix_us;
use bytes::Bytes;
use parking_lot::Mutex;
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::wire::{Brief, Content, Datagram, HAPPENED_MAX, Happened, Link, Measure};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Shortest interval between two requests to the other nodes.
pub const ASK_INTERVAL: Span = Span::from_millis(900);
/// Most briefs that this node sends per second, to all nodes together.
pub const BRIEFS_PER_SECOND_MAX: u32 = 64;
/// Most events of other nodes that are kept.
pub const EVENTS_KEPT_MAX: usize = 256;
/// Number of times that an order to another node is sent, because datagrams may be lost.
pub const ORDERS_SENT: u32 = 5;
/// Interval between these repetitions.
pub const ORDER_INTERVAL: Duration = Duration::from_millis(300);

/// Status that another node reported.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The node's last brief.
    pub brief: Brief,
    /// Time at which that brief arrived.
    pub at: Instant,
}

/// Status of the other nodes.
#[derive(Debug, Default)]
pub struct Watching {
    state: Mutex<State>,
    http: OnceLock<SocketAddr>,
}

#[derive(Debug, Default)]
struct State {
    /// Briefs by node; only of members of the view.
    seen: BTreeMap<NodeId, Seen>,
    events: VecDeque<(NodeId, Happened)>,
    /// Per node: its incarnation, and the time of the last event that it reported, by its own
    /// clock.
    heard: BTreeMap<NodeId, (Incarnation, u64)>,
    asked: Option<Instant>,
    /// The current second, and the number of briefs sent in it.
    told: (u64, u32),
}

impl Watching {
    /// Sets the address at which this node's page is served.
    pub fn is_served_at(&self, address: SocketAddr) {
        // Set once: a node has one endpoint.
        let _ = self.http.set(address);
    }

    /// The address at which this node's page is served, if it is.
    #[must_use]
    pub fn served_at(&self) -> Option<SocketAddr> {
        self.http.get().copied()
    }

    /// Asks the members for briefs, unless it did so less than [`ASK_INTERVAL`] ago. Called for as
    /// long as somebody watches.
    pub fn ask(&self, context: &NodeContext) {
        let now = context.clock.now();
        let mut state = self.lock();
        if state
            .asked
            .is_some_and(|asked| now.since(asked) < ASK_INTERVAL)
        {
            return;
        }
        state.asked = Some(now);
        let members: Vec<NodeId> = context
            .status
            .read()
            .members
            .iter()
            .map(|member| member.id)
            .collect();
        state.seen.retain(|node, _| members.contains(node));
        state.heard.retain(|node, _| members.contains(node));
        for node in members
            .into_iter()
            .filter(|node| *node != context.settings.identity.node)
        {
            let since_us = state.heard.get(&node).map_or(0, |(_, until_us)| *until_us);
            send(context, node, &Datagram::V1(Content::AskBrief { since_us }));
        }
    }

    /// Answers a node that asks for a brief.
    pub fn tell(&self, context: &NodeContext, to: NodeId, since_us: u64) {
        let second = context.clock.now().0 / 1_000_000;
        let told = {
            let mut state = self.lock();
            let told = if state.told.0 == second {
                state.told.1
            } else {
                0
            };
            state.told = (second, told.saturating_add(1));
            told
        };
        if told < BRIEFS_PER_SECOND_MAX {
            send(context, to, &self.brief(context, since_us).fitted());
        }
    }

    /// Stores a member's brief. Each event in it is stored once, however often it is reported.
    pub fn take(&self, context: &NodeContext, from: NodeId, brief: Brief) {
        if member(context, from).is_none() {
            return;
        }
        let mut state = self.lock();
        // A new incarnation counts its time from the start again.
        let heard = state
            .heard
            .get(&from)
            .filter(|(incarnation, _)| *incarnation == brief.incarnation)
            .map_or(0, |(_, until_us)| *until_us);
        let news: Vec<_> = brief
            .happened
            .iter()
            .filter(|happened| happened.at_us > heard)
            .map(|happened| (from, happened.clone()))
            .collect();
        let until_us = news
            .iter()
            .map(|(_, happened)| happened.at_us)
            .fold(heard, u64::max);
        state.heard.insert(from, (brief.incarnation, until_us));
        state.events.extend(news);
        let over = state.events.len().saturating_sub(EVENTS_KEPT_MAX);
        state.events.drain(..over);
        state.seen.insert(
            from,
            Seen {
                brief,
                at: context.clock.now(),
            },
        );
    }

    /// The members that have reported, with their briefs.
    #[must_use]
    pub fn seen(&self) -> BTreeMap<NodeId, Seen> {
        self.lock().seen.clone()
    }

    /// Events at other nodes, in the order in which they were reported.
    #[must_use]
    pub fn events(&self) -> Vec<(NodeId, Happened)> {
        self.lock().events.iter().cloned().collect()
    }

    /// This node's brief, with all events since `since_us`.
    #[must_use]
    pub fn brief(&self, context: &NodeContext, since_us: u64) -> Brief {
        let status = context.status.read();
        let traffic = context.transport.traffic();
        let measures = status.measures.iter().map(|(name, (step, value))| Measure {
            name: name.clone(),
            step: *step,
            value: *value,
        });
        // A node that asks for the first time gets the newest events.
        let oldest = if since_us == 0 {
            status.events.len().saturating_sub(HAPPENED_MAX)
        } else {
            0
        };
        let happened = status
            .events
            .iter()
            .skip(oldest)
            .filter(|event| event.at_us > since_us);
        Brief {
            incarnation: context.settings.identity.incarnation,
            at_us: unix_us(),
            stands: status.standing,
            lineage: status.lineage,
            epoch: status.epoch,
            round: status.round,
            step: status
                .measures
                .values()
                .map(|(step, _)| *step)
                .fold(status.step, Ord::max),
            measures: measures.collect(),
            disagreement: status.disagreement,
            weight: status.gossip.as_ref().map(|gossip| gossip.weight),
            waits: status.waiting().is_some(),
            http: self.served_at(),
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
            happened: happened
                .map(|event| Happened {
                    at_us: event.at_us,
                    what: event.what.clone(),
                })
                .collect(),
            links: links(context, &status),
        }
    }

    /// Orders the current incarnation of another member to hand over its state and leave; the order
    /// is sent up to [`ORDERS_SENT`] times. Returns whether there is such a member. Must be called
    /// inside a tokio runtime.
    pub fn order_drain(context: &Arc<NodeContext>, node: NodeId) -> bool {
        let Some(incarnation) = member(context, node) else {
            return false;
        };
        let context = Arc::clone(context);
        tokio::spawn(async move {
            for _ in 0..ORDERS_SENT {
                if member(&context, node) != Some(incarnation) {
                    return;
                }
                send(
                    &context,
                    node,
                    &Datagram::V1(Content::Drain { incarnation }),
                );
                tokio::time::sleep(ORDER_INTERVAL).await;
            }
        });
        true
    }

    /// Handles an operator's order to drain that another node forwarded.
    pub fn ordered_to_drain(context: &NodeContext, from: NodeId, incarnation: Incarnation) {
        let leaves = matches!(
            context.status.read().standing,
            MemberState::Leaving | MemberState::Left
        );
        if leaves
            || incarnation != context.settings.identity.incarnation
            || member(context, from).is_none()
        {
            return;
        }
        context.status.event(format!("told by {from} to drain"));
        context.actors.tell(slowmo_protocol::membership::In::Drain);
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The incarnation of a node that is a member, if one is.
fn member(context: &NodeContext, node: NodeId) -> Option<Incarnation> {
    context
        .status
        .read()
        .members
        .iter()
        .find(|member| member.id == node)
        .map(|member| member.incarnation)
}

fn send(context: &NodeContext, to: NodeId, datagram: &Datagram) {
    let sent = datagram.encode().map_err(|error| error.to_string());
    let sent = sent.and_then(|bytes| {
        context
            .transport
            .send_datagram(to, Bytes::from(bytes))
            .map_err(|error| error.to_string())
    });
    if let Err(error) = sent {
        tracing::trace!(%to, error, "datagram not sent");
    }
}

/// This node's links to the members, the ones with the most sent bytes first.
fn links(context: &NodeContext, status: &NodeStatus) -> Vec<Link> {
    let own = context.settings.identity.node;
    let others = status
        .members
        .iter()
        .map(|member| member.id)
        .filter(|node| *node != own);
    let link = |to| {
        let round_trip = context.transport.round_trip(to).unwrap_or_default();
        let round_trip_us = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
        Link {
            to,
            sent_bytes: context.transport.sent_to(to),
            round_trip_us,
        }
    };
    let mut links: Vec<Link> = others.map(link).collect();
    links.sort_by_key(|link| std::cmp::Reverse(link.sent_bytes));
    links
}
