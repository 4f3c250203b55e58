//! Orders over HTTP. Each needs the token; a node without a token takes no orders.

use super::connections::Slot;
use super::served::Served;
use crate::{admin, launcher, orders};
use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use slowmo_actors::status_digests;
use slowmo_protocol::ident::NodeId;
use std::sync::Arc;
use std::time::Instant;

/// The parameters of an order to drain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    /// The member of the view to drain; this node by default.
    node: Option<u64>,
}

/// The parameters of an order to scale: the number of nodes to run.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scale {
    nodes: usize,
}

/// The parameters of an order to change a setting.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    /// The configuration's key.
    key: String,
    /// The value, as the configuration writes it.
    value: String,
}

/// Orders this node, or another member, to hand over and leave.
pub(super) async fn drain(
    State(served): State<Arc<Served>>,
    Query(whom): Query<Drain>,
    Extension(slot): Extension<Arc<Slot>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refusal(&served, &slot, &headers) {
        return refused;
    }
    let context = &served.context;
    let own = context.settings.identity.node;
    let node = whom.node.map_or(own, NodeId);
    let is_known = node == own
        || context
            .status
            .read()
            .members
            .iter()
            .any(|member| member.id == node);
    tracing::warn!(%node, is_known, from = %slot.address(), "an order over HTTP: drain");
    // The launcher that counts the nodes must know which one leaves; the cluster tells the nodes of
    // other launchers.
    let told = is_known && launcher::socket().is_some() && launcher::drain(node.0).await.is_ok();
    if !is_known {
        return (
            StatusCode::NOT_FOUND,
            format!("{node} is not a member of the view: nothing was done\n"),
        )
            .into_response();
    }
    if !told && node == own {
        context.actors.tell(slowmo_protocol::membership::In::Drain);
    } else if !told && !status_digests::order_drain(context, node) {
        return (
            StatusCode::CONFLICT,
            format!("{node} is no member any more: nothing was done\n"),
        )
            .into_response();
    }
    (
        StatusCode::ACCEPTED,
        format!("{node} is told to hand over and leave\n"),
    )
        .into_response()
}

/// Asks the launcher to run this many nodes.
pub(super) async fn scale(
    State(served): State<Arc<Served>>,
    Query(scale): Query<Scale>,
    Extension(slot): Extension<Arc<Slot>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refusal(&served, &slot, &headers) {
        return refused;
    }
    tracing::warn!(nodes = scale.nodes, from = %slot.address(), "an order over HTTP: scale");
    match launcher::scale(scale.nodes).await {
        Ok(done) => (StatusCode::ACCEPTED, done + "\n").into_response(),
        Err(error @ launcher::ScaleError::Silent(_)) => {
            (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response()
        }
        Err(error) => (StatusCode::CONFLICT, format!("{error}\n")).into_response(),
    }
}

/// Orders another value of a setting for the whole cluster, from the next round on.
pub(super) async fn set(
    State(served): State<Arc<Served>>,
    Query(set): Query<Set>,
    Extension(slot): Extension<Arc<Slot>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refusal(&served, &slot, &headers) {
        return refused;
    }
    let Set { key, value } = set;
    tracing::warn!(key, value, from = %slot.address(), "an order over HTTP: set");
    match orders::set(&served.context, &key, &value) {
        Ok(()) => (
            StatusCode::ACCEPTED,
            format!("{key} = {value} from the next round on\n"),
        )
            .into_response(),
        Err(error) => (StatusCode::CONFLICT, format!("{error}\n")).into_response(),
    }
}

/// Writes the last events to disk.
pub(super) async fn dump(
    State(served): State<Arc<Served>>,
    Extension(slot): Extension<Arc<Slot>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refusal(&served, &slot, &headers) {
        return refused;
    }
    tracing::warn!(from = %slot.address(), "an order over HTTP: write the last events to disk");
    match admin::dump(&served.context, "asked for over HTTP").await {
        Ok(file) => (
            StatusCode::OK,
            format!("the last events are in {}\n", file.display()),
        )
            .into_response(),
        Err(error) => (StatusCode::CONFLICT, error + "\n").into_response(),
    }
}

/// The refusal of a request without the right token; `None` if the request is authorized.
fn refusal(served: &Served, slot: &Slot, headers: &HeaderMap) -> Option<Response> {
    let authorization = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    match &served.token {
        Some(token) if token.is_given_by(authorization) => None,
        Some(_) => {
            if served.refusals.lock().take(Instant::now()) {
                tracing::warn!(
                    from = %slot.address(),
                    "an order over HTTP without the right token was refused"
                );
            }
            Some(
                (
                    StatusCode::UNAUTHORIZED,
                    "orders want the token: Authorization: Bearer TOKEN\n",
                )
                    .into_response(),
            )
        }
        None => Some(
            (
                StatusCode::FORBIDDEN,
                "this node takes no orders over HTTP: give http_token_file\n",
            )
                .into_response(),
        ),
    }
}
