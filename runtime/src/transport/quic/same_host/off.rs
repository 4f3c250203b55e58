//! Traffic between nodes of one machine goes over QUIC on systems without abstract sockets.

use super::bulk::Delivering;
use super::framing::BlockError;
use super::traffic::SameHostBytes;
use crate::transport::accepted::Accepted;
use crate::transport::sessions::Session;
use bytes::{Bytes, BytesMut};
use quinn::Connection;
use slowmo_actors::ports::transport::BulkSender;
use std::convert::Infallible;
use std::io;
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

    pub(super) async fn all_received(&self) {
        match self.0 {}
    }

    pub(super) async fn open(
        &self,
        _delivering: &Delivering,
        _header: &[u8],
    ) -> io::Result<Box<dyn BulkSender>> {
        match self.0 {}
    }
}

/// The accepting end of a control connection's frames; there is none.
pub(super) struct ControlListener(Infallible);

impl ControlListener {
    pub(super) fn bind(_connection: &Connection, _bytes: Arc<SameHostBytes>) -> Option<Self> {
        None
    }

    pub(super) async fn accept(&self) -> ControlReader {
        match self.0 {}
    }
}

/// Reads frames; there is none.
pub(super) struct ControlReader(Infallible);

impl ControlReader {
    pub(super) async fn next(
        &mut self,
        _connection: &Connection,
    ) -> Result<Option<BytesMut>, BlockError> {
        match self.0 {}
    }
}

/// Writes frames; there is none.
pub(super) struct ControlWriter(Infallible);

impl ControlWriter {
    pub(super) async fn open(_connection: &Connection, path: &Path) -> Option<Self> {
        match path.0 {}
    }

    pub(super) async fn write(&mut self, _frames: &[Bytes]) -> io::Result<()> {
        match self.0 {}
    }

    pub(super) async fn finish(self) -> io::Result<()> {
        match self.0 {}
    }
}
