//! The HTTP endpoint of a node. Anybody who reaches the address may read; requests that change
//! something need the token.

use super::access::{Allowance, Allowances, Token, is_cross_site, is_host_of_this_machine};
use super::connections::{Connections, Slot};
use super::pages::Pages;
use super::served::Served;
use super::{dashboard, metrics, orders};
use crate::status::status;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use slowmo_actors::context::NodeContext;
use slowmo_actors::status::MemberState;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_io_timeout::TimeoutStream;

/// Longest time for a request to arrive. Each connection carries one request.
pub const REQUEST_WAIT: Duration = Duration::from_secs(2);
/// Refused orders that are logged at once, and in each further second.
const REFUSALS_LOGGED: (u32, u32) = (5, 1);
/// Longest time for which an answer may stall because the client does not read it.
pub const STALL_MAX: Duration = Duration::from_secs(10);
/// Longest duration of a connection; a page reconnects.
pub const CONNECTION_MAX: Duration = Duration::from_secs(20 * 60);
/// More than the head of an answer has, in bytes.
#[cfg(feature = "testing")]
const HEAD_BYTES: usize = 1 << 13;
/// Pause of the listener after the system refused a connection: descriptors may have run out.
const REST: Duration = Duration::from_millis(100);

/// The reason why the endpoint does not listen.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Other machines reach the address, and no token restricts who may give orders.
    #[error(
        "http = {0} can be reached from other machines: set http_token_file, or listen on 127.0.0.1"
    )]
    NoToken(SocketAddr),
    /// The address is taken, or does not belong to this machine.
    #[error("cannot listen on http = {address} ({error}); choose a free port of this machine")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        error: std::io::Error,
    },
}

/// The open endpoint; closed when dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    serving: AbortHandle,
    #[cfg(feature = "testing")]
    router: Router,
}

impl Endpoint {
    /// Listens in the background. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`HttpError`]; nothing listens then.
    pub fn serve(
        address: SocketAddr,
        token: Option<Token>,
        context: Arc<NodeContext>,
    ) -> Result<Self, HttpError> {
        if !address.ip().is_loopback() && token.is_none() {
            return Err(HttpError::NoToken(address));
        }
        let failed = |error| HttpError::Bind { address, error };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let registry = metrics::registry(Arc::clone(&context));
        let is_local = address.ip().is_loopback();
        let router = router(Arc::new(Served {
            context,
            registry,
            token,
            is_local,
            pages: Arc::new(Pages::default()),
            allowances: Mutex::new(Allowances::default()),
            refusals: Mutex::new(Allowance::new(REFUSALS_LOGGED, Instant::now())),
        }));
        #[cfg(feature = "testing")]
        let kept = router.clone();
        let serving = tokio::spawn(accept(listener, router)).abort_handle();
        Ok(Self {
            address,
            serving,
            #[cfg(feature = "testing")]
            router: kept,
        })
    }

    /// Serves one connection from `from` on which these bytes arrive, and nothing more; returns the
    /// answer as far as its head, or none.
    #[cfg(feature = "testing")]
    pub async fn answer_to(&self, from: std::net::IpAddr, bytes: &[u8]) -> Vec<u8> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let Some((slot, _ended)) = Arc::new(Connections::default()).admit(from) else {
            return Vec::new();
        };
        let (mut client, server) = tokio::io::duplex(bytes.len().max(HEAD_BYTES));
        let conversation = converse(server, self.router.clone(), Arc::new(slot), true);
        let mut serving = tokio::spawn(conversation);
        let mut head = Vec::with_capacity(HEAD_BYTES);
        if client.write_all(bytes).await.is_ok() && client.shutdown().await.is_ok() {
            let is_whole = |head: &[u8]| head.windows(4).any(|end| end == b"\r\n\r\n");
            while head.len() < HEAD_BYTES && !is_whole(&head) {
                if !matches!(client.read_buf(&mut head).await, Ok(1..)) {
                    break;
                }
            }
        }
        drop(client);
        let head_text = String::from_utf8_lossy(&head);
        if head_text.contains("text/event-stream") {
            // It ends with its next event.
            serving.abort();
            return head;
        }
        // Whatever the bytes were, the connection ends with its client, and nothing has panicked.
        let ended = tokio::time::timeout(REQUEST_WAIT, &mut serving).await;
        assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
        head
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn accept(listener: TcpListener, router: Router) {
    let connections = Arc::new(Connections::default());
    loop {
        match listener.accept().await {
            Ok((connection, from)) => {
                let Some((slot, ended)) = connections.admit(from.ip()) else {
                    continue;
                };
                let conversation = converse(connection, router.clone(), Arc::new(slot), false);
                tokio::spawn(async move {
                    tokio::select! {
                        () = conversation => {}
                        _ = ended => {}
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection was not accepted");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

async fn converse(
    connection: impl AsyncRead + AsyncWrite + Send + 'static,
    router: Router,
    slot: Arc<Slot>,
    // Whether who will send nothing more is answered all the same.
    half_close: bool,
) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WAIT)
        .half_close(half_close)
        .keep_alive(false);
    let mut connection = TimeoutStream::new(connection);
    connection.set_write_timeout(Some(STALL_MAX));
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
        slot.has_asked();
        request.extensions_mut().insert(Arc::clone(&slot));
        router.call(request)
    });
    let served = http.serve_connection(TokioIo::new(Box::pin(connection)), answer);
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_MAX, served).await {
        tracing::debug!(%error, "an HTTP connection ended");
    }
}

fn router(served: Arc<Served>) -> Router {
    Router::new()
        .route("/", get(dashboard::page))
        .route("/dashboard.js", get(dashboard::script))
        .route("/state.js", get(dashboard::state_script))
        .route("/draw.js", get(dashboard::draw_script))
        .route("/dashboard.css", get(dashboard::style))
        .route("/stream", get(dashboard::stream))
        .route("/metrics", get(show_metrics))
        .route("/status", get(show_status))
        .route("/live", get(|| async { "alive\n" }))
        .route("/ready", get(show_ready))
        .route("/drain", post(orders::drain))
        .route("/scale", post(orders::scale))
        .route("/set", post(orders::set))
        .route("/dump", post(orders::dump))
        .layer(from_fn_with_state(Arc::clone(&served), admit))
        .with_state(served)
}

/// Refuses what pages of other sites send, and applies the rate limits. On a loopback address it
/// answers only requests that name this machine: a page from elsewhere whose host name was made to
/// resolve to this machine (DNS rebinding) must not read this node's data.
async fn admit(
    State(served): State<Arc<Served>>,
    Extension(slot): Extension<Arc<Slot>>,
    request: Request,
    next: Next,
) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .map(|host| host.to_str().unwrap_or("no text"));
    if served.is_local && !is_host_of_this_machine(host) {
        let why = "this address is served to this machine only: ask localhost or 127.0.0.1, and \
            let a proxy send such a Host\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    if is_cross_site(request.method(), request.uri().path(), request.headers()) {
        let why = "a page of another site may not ask this node\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    // Probes are small and always answered: an orchestrator ends a node that does not answer.
    if ["/live", "/ready"].contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let authorization = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let is_authorised = authorization.is_some()
        && served
            .token
            .as_ref()
            .is_some_and(|token| token.is_given_by(authorization));
    let now = Instant::now();
    if is_authorised || served.allowances.lock().take(slot.address(), now) {
        next.run(request).await
    } else {
        (
            StatusCode::TOO_MANY_REQUESTS,
            "asked too often: wait a second\n",
        )
            .into_response()
    }
}

async fn show_metrics(State(served): State<Arc<Served>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &served.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn show_status(State(served): State<Arc<Served>>) -> Response {
    Json(status(&served.context)).into_response()
}

async fn show_ready(State(served): State<Arc<Served>>) -> Response {
    let standing = served.context.status.read().standing;
    let status = if standing == MemberState::Member {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, format!("{}\n", standing.name())).into_response()
}
