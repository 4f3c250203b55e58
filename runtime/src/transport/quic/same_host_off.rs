//! Bulk streams between nodes of one machine go over QUIC on systems without abstract sockets.

use super::bulk::Delivering;
use super::traffic::SameHostBytes;
use crate::transport::accepted::Accepted;
use crate::transport::sessions::Session;
use quinn::Connection;
use slowmo_actors::ports::transport::{BulkError, BulkSender};
use std::convert::Infallible;
use std::sync::Arc;

/// The accepting end of a connection's streams; there is none.
pub(super) struct Listener(Infallible);

impl Listener {
    pub(super) fn bind(_connection: &Connection) -> Option<Self> {
        None
    }

    pub(super) async fn receive(
        self,
        _connection: Connection,
        _session: Arc<Session>,
        _accepted: Arc<Accepted>,
        _bytes: Arc<SameHostBytes>,
    ) {
        match self.0 {}
    }
}

/// The way to a peer on this machine; there is none.
#[derive(Clone)]
pub(super) struct Path(Infallible);

impl Path {
    pub(super) async fn find(
        _connection: &Connection,
        _bytes: &Arc<SameHostBytes>,
    ) -> Option<Self> {
        None
    }

    pub(super) fn sent(&self) -> u64 {
        match self.0 {}
    }

    pub(super) async fn open(
        &self,
        _delivering: &Delivering,
        _header: &[u8],
    ) -> Result<Box<dyn BulkSender>, BulkError> {
        match self.0 {}
    }
}
