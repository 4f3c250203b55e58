//! Orders over HTTP. Each wants the token; without one given to the node, nobody gives any.

use super::http::Served;
use crate::{admin, launcher};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use slowmo_actors::watching::Watching;
use slowmo_protocol::ident::NodeId;
use std::sync::Arc;

/// Whom to drain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    /// A member of the view; this node unless given.
    node: Option<u64>,
}

/// How many nodes to run.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scale {
    nodes: usize,
}

/// Lets this node, or another member, hand over and leave.
pub(super) async fn drain(
    State(served): State<Arc<Served>>,
    Query(whom): Query<Drain>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refusal(&served, &headers) {
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
    tracing::info!(%node, is_known, "told over HTTP to drain a node");
    // Whoever counts the nodes must know who leaves; nodes of other launchers are told by the
    // cluster.
    let told = is_known && launcher::socket().is_some() && launcher::drain(node.0).await.is_ok();
    if !is_known {
        return (
            StatusCode::NOT_FOUND,
            format!("{node} is no member of the view: nothing was done\n"),
        )
            .into_response();
    }
    if !told && node == own {
        context.actors.tell(slowmo_protocol::membership::In::Drain);
    } else if !told {
        Watching::order_drain(context, node);
    }
    (
        StatusCode::ACCEPTED,
        format!("{node} is told to hand over and leave\n"),
    )
        .into_response()
}

/// Lets the launcher run so many nodes.
pub(super) async fn scale(
    State(served): State<Arc<Served>>,
    Query(scale): Query<Scale>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = refusal(&served, &headers) {
        return refused;
    }
    tracing::info!(nodes = scale.nodes, "told over HTTP to scale");
    match launcher::scale(scale.nodes).await {
        Ok(done) => (StatusCode::ACCEPTED, done + "\n").into_response(),
        Err(error @ launcher::ScaleError::Silent(_)) => {
            (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response()
        }
        Err(error) => (StatusCode::CONFLICT, format!("{error}\n")).into_response(),
    }
}

/// Writes the last events down.
pub(super) async fn dump(State(served): State<Arc<Served>>, headers: HeaderMap) -> Response {
    if let Some(refused) = refusal(&served, &headers) {
        return refused;
    }
    match admin::dump(&served.context, "asked for over HTTP").await {
        Ok(file) => (
            StatusCode::OK,
            format!("the last events are in {}\n", file.display()),
        )
            .into_response(),
        Err(error) => (StatusCode::CONFLICT, error + "\n").into_response(),
    }
}

/// What a request that does not bring the token is answered with.
fn refusal(served: &Served, headers: &HeaderMap) -> Option<Response> {
    let authorization = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    match &served.token {
        Some(token) if token.is_given_by(authorization) => None,
        Some(_) => Some(
            (
                StatusCode::UNAUTHORIZED,
                "orders want the token: Authorization: Bearer TOKEN\n",
            )
                .into_response(),
        ),
        None => Some(
            (
                StatusCode::FORBIDDEN,
                "this node takes no orders over HTTP: give http_token_file\n",
            )
                .into_response(),
        ),
    }
}
