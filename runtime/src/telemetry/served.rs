//! State that the requests to a node's HTTP endpoint share.

use super::access::{Allowance, Allowances, Token};
use super::pages::Pages;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use slowmo_actors::context::NodeContext;
use std::sync::Arc;

/// State shared by all requests.
pub(super) struct Served {
    pub(super) context: Arc<NodeContext>,
    pub(super) registry: Registry,
    pub(super) token: Option<Token>,
    /// Whether only this machine reaches the address.
    pub(super) is_local: bool,
    pub(super) pages: Arc<Pages>,
    /// The rate limits of all requests except probes.
    pub(super) allowances: Mutex<Allowances>,
    /// How often a refused order is logged.
    pub(super) refusals: Mutex<Allowance>,
}
