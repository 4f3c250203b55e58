//! The HTTP interface of a node (key `http`): a page of the whole cluster, metrics for Prometheus,
//! its status, liveness and readiness; and the orders that it takes.
//!
//! | file | holds |
//! |---|---|
//! | `metrics` | the metrics of a node in Prometheus' text format |
//! | `process` | memory and descriptors of this process |
//! | `http` | the endpoint: connections, bounds, who may do what |
//! | `served` | what all requests share |
//! | `dashboard` | the page (files: `page/`), and the server-sent events that fill it |
//! | `orders` | drain, scale, dump |
//! | `proofs` | proofs of orders that nodes pass on to each other |
//! | `access` | the token, which sites may ask, and how often an address may |
//! | `connections` | how many connections there are, and whose |
//! | `pages` | how many pages are open, and whose |

mod access;
mod connections;
mod dashboard;
mod http;
mod metrics;
mod orders;
mod pages;
mod process;
mod proofs;
mod served;

pub use access::AccessError;
pub(crate) use access::{Allowance, Token};
pub use connections::CONNECTIONS_MAX;
pub(crate) use http::Endpoint;
pub use http::{HttpError, STALL_MAX};
pub use pages::{PAGES_MAX, PAGES_PER_ADDRESS_MAX};
pub(crate) use proofs::Proofs;
