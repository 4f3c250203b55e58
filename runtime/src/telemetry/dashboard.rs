//! The page of the cluster, which any node serves, and the stream of server-sent events that fills
//! it.
//!
//! A node asks other nodes for their state only while a page is open, or when its admin socket is
//! asked for the cluster ([`crate::cluster`]). The page loads nothing from other sites: its files
//! are in the binary. The token for orders follows the `#` of the page's address, which browsers do
//! not send, and stays in the tab.

use super::connections::Slot;
use super::pages::Place;
use super::served::Served;
use crate::cluster::{NodeReport, nodes};
use crate::launcher;
use crate::status::{Event, Status, status};
use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event as Message, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use slowmo_actors::context::NodeContext;
use slowmo_actors::status_digests;
use slowmo_actors::timeline::RoundNote;
use slowmo_actors::unix_time::unix_us;
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::shards::{Layout, ShardMap};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two messages to a page.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of messages to a page before it must reconnect.
const TOLD_MAX: u32 = 900;
const SCRIPT: &str = "text/javascript; charset=utf-8";
/// The content security policy: the page loads nothing from elsewhere, and other sites cannot embed
/// it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(super) async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// The page's main script.
pub(super) async fn script() -> Response {
    file(SCRIPT, include_str!("page/dashboard.js"))
}

/// The script that holds the page's state.
pub(super) async fn state_script() -> Response {
    file(SCRIPT, include_str!("page/state.js"))
}

/// The script that draws the page.
pub(super) async fn draw_script() -> Response {
    file(SCRIPT, include_str!("page/draw.js"))
}

/// The page's style sheet.
pub(super) async fn style() -> Response {
    file(
        "text/css; charset=utf-8",
        include_str!("page/dashboard.css"),
    )
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

/// The event stream: first the past, then every second the current state.
pub(super) async fn stream(
    State(served): State<Arc<Served>>,
    Extension(slot): Extension<Arc<Slot>>,
) -> Response {
    match served.pages.open(slot.address()) {
        Ok(place) => Sse::new(telling(Teller::new(served, place))).into_response(),
        Err(full) => (StatusCode::SERVICE_UNAVAILABLE, format!("{full}\n")).into_response(),
    }
}

fn telling(teller: Teller) -> impl Stream<Item = Result<Message, Infallible>> {
    futures_util::stream::unfold(teller, |mut teller| async move {
        if teller.told > 0 {
            tokio::time::sleep(TELL_INTERVAL).await;
        }
        let launched = if launcher::socket().is_some() {
            launcher::count().await
        } else {
            None
        };
        let told = (teller.told < TOLD_MAX).then(|| teller.tell(launched))?;
        let event = Message::default()
            .json_data(told)
            .unwrap_or_else(|error| Message::default().comment(error.to_string()));
        Some((Ok(event), teller))
    })
}

/// The state of the stream to one page: its sources, and what was already sent.
struct Teller {
    served: Arc<Served>,
    _place: Place,
    told: u32,
    rounds_until_us: u64,
    shards: Option<(u64, usize)>,
    events: Vec<EventNote>,
}

/// One message to the page. Parts that have not changed since the last message are left out.
#[derive(Serialize)]
struct Told {
    at_us: u64,
    /// Sent only in the first message.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Before>,
    /// Number of nodes that this node's launcher runs, to which an order to scale applies.
    launched: Option<usize>,
    report: Status,
    nodes: Vec<NodeReport>,
    rounds: Vec<RoundNote>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<Shards>,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Vec<EventNote>>,
}

/// Information that a page needs only once.
#[derive(Serialize)]
struct Before {
    version: &'static str,
    /// Whether the node takes orders at all.
    orders: bool,
    replicas: usize,
    /// This node's measures by name: pairs of inner step and value.
    curves: BTreeMap<String, Vec<(u64, f64)>>,
}

/// The holders of each shard of the slow momentum: first its owner, then its replicas.
#[derive(Serialize)]
struct Shards {
    epoch: u64,
    elements: usize,
    holders: Vec<Vec<u64>>,
}

#[derive(Clone, PartialEq, Serialize)]
struct EventNote {
    node: u64,
    #[serde(flatten)]
    event: Event,
}

impl Teller {
    fn new(served: Arc<Served>, place: Place) -> Self {
        Self {
            served,
            _place: place,
            told: 0,
            rounds_until_us: 0,
            shards: None,
            events: Vec::new(),
        }
    }

    fn tell(&mut self, launched: Option<usize>) -> Told {
        let served = Arc::clone(&self.served);
        let context = &served.context;
        let report = status(context);
        let before = (self.told == 0).then(|| before(&served));
        self.told += 1;
        let nodes = nodes(context, &report);
        let rounds = self.rounds(context);
        let shards = self.shards(context);
        let events = self.events(context, &report);
        // The answers go into the next message. Whatever this one says was known before the page
        // asked.
        status_digests::ask(context);
        Told {
            at_us: unix_us(),
            before,
            launched,
            report,
            nodes,
            rounds,
            shards,
            events,
        }
    }

    fn rounds(&mut self, context: &NodeContext) -> Vec<RoundNote> {
        let rounds: Vec<RoundNote> = context.status.timeline(|timeline| {
            timeline
                .rounds_after(self.rounds_until_us)
                .cloned()
                .collect()
        });
        self.rounds_until_us = rounds
            .last()
            .map_or(self.rounds_until_us, |round| round.at_us);
        rounds
    }

    fn shards(&mut self, context: &NodeContext) -> Option<Shards> {
        let (view, elements) = context.status.read().view?;
        let now = (view.epoch().0, elements);
        if self.shards.replace(now) == Some(now) {
            return None;
        }
        let layout = Layout::new(elements);
        let map = ShardMap::new(&view, &layout, context.settings.replicas);
        let holders = |shard: ShardId| map.holders(shard).iter().map(|node| node.0).collect();
        Some(Shards {
            epoch: now.0,
            elements,
            holders: layout.shards().map(holders).collect(),
        })
    }

    fn events(&mut self, context: &NodeContext, report: &Status) -> Option<Vec<EventNote>> {
        let own = report.events.iter().map(|event| EventNote {
            node: report.node,
            event: event.clone(),
        });
        let others = context.peers.events();
        let others = others.into_iter().map(|(node, event)| EventNote {
            node: node.0,
            event: Event {
                at_us: event.at_us,
                what: event.what,
            },
        });
        let mut events: Vec<EventNote> = own.chain(others).collect();
        events.sort_by_key(|note| note.event.at_us);
        if events == self.events {
            return None;
        }
        self.events.clone_from(&events);
        Some(events)
    }
}

fn before(served: &Served) -> Before {
    let curves = served.context.status.timeline(|timeline| {
        timeline
            .curves()
            .map(|(name, curve)| (name.to_owned(), curve.points().to_vec()))
            .collect::<BTreeMap<_, _>>()
    });
    Before {
        version: env!("CARGO_PKG_VERSION"),
        orders: served.token.is_some(),
        replicas: served.context.settings.replicas,
        curves,
    }
}
