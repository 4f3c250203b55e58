//! What a node shows of itself over HTTP (key `http`): metrics for Prometheus, its status, whether it lives and is ready, orders.
//!
//! | file | holds |
//! |---|---|
//! | `metrics` | the metrics of a node in Prometheus' text format |
//! | `process` | memory and descriptors of this process |
//! | `http` | the endpoint: connections, bounds, who may do what |
//! | `access` | the token, and how often anything may be asked |

mod access;
mod http;
mod metrics;
mod process;

pub use access::AccessError;
pub(crate) use access::Token;
pub use access::{REQUESTS_BURST_MAX, REQUESTS_PER_SECOND_MAX, TOKEN_BYTES_MIN};
pub(crate) use http::Endpoint;
pub use http::{CONNECTIONS_MAX, HttpError, SILENCE_MAX};
