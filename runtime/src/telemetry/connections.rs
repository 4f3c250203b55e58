//! The connections of a node's HTTP endpoint: how many there are, and whose. A full table makes
//! room for a new connection by ending the oldest one whose request has not arrived, so that
//! half-sent requests keep nobody out.

use super::access::prefix;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Maximum number of connections.
pub const CONNECTIONS_MAX: usize = 64;
/// How many of them one address may have, so that the others find room. Pages take a few each.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 32;

/// The table of open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Oldest first.
    open: Vec<Open>,
    admitted: u64,
}

#[derive(Debug)]
struct Open {
    id: u64,
    address: IpAddr,
    /// Whether its request has arrived.
    asked: bool,
    /// Dropped with the entry, which ends the connection.
    _end: oneshot::Sender<()>,
}

/// One connection's slot in the table; free again when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    id: u64,
    address: IpAddr,
    connections: Arc<Connections>,
}

impl Connections {
    /// Takes a slot for a connection from `address`. The receiver is notified when the connection
    /// has to end. `None` if no slot is free and all requests of the others have arrived.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Option<(Slot, oneshot::Receiver<()>)> {
        let address = prefix(address);
        let mut table = self.table.lock();
        let own = |open: &Open| open.address == address;
        if table.open.iter().filter(|open| own(open)).count() >= CONNECTIONS_PER_ADDRESS_MAX {
            table.end_oldest_that_has_not_asked(own)?;
        } else if table.open.len() >= CONNECTIONS_MAX {
            table.end_oldest_that_has_not_asked(|_| true)?;
        }
        let (end, ended) = oneshot::channel();
        let id = table.admitted;
        table.admitted += 1;
        table.open.push(Open {
            id,
            address,
            asked: false,
            _end: end,
        });
        let slot = Slot {
            id,
            address,
            connections: Arc::clone(self),
        };
        Some((slot, ended))
    }
}

impl Table {
    fn end_oldest_that_has_not_asked(&mut self, may_end: impl Fn(&Open) -> bool) -> Option<()> {
        let oldest = self
            .open
            .iter()
            .position(|open| !open.asked && may_end(open))?;
        self.open.remove(oldest);
        Some(())
    }
}

impl Slot {
    /// Notes that the request has arrived: the connection is not ended to make room.
    pub fn has_asked(&self) {
        let mut table = self.connections.table.lock();
        if let Some(open) = table.open.iter_mut().find(|open| open.id == self.id) {
            open.asked = true;
        }
    }

    /// The address (of an IPv6 client: its network) that the connection comes from.
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        table.open.retain(|open| open.id != self.id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn one_address_takes_its_share_and_no_more() {
        let connections = Arc::new(Connections::default());
        let asked: Vec<_> = (0..CONNECTIONS_PER_ADDRESS_MAX)
            .map(|_| connections.admit(address(1)).unwrap())
            .collect();
        asked.iter().for_each(|(slot, _)| slot.has_asked());
        assert!(connections.admit(address(1)).is_none());
        assert!(connections.admit(address(2)).is_some());
        drop(asked);
        assert!(connections.admit(address(1)).is_some());
    }

    #[test]
    fn the_oldest_half_sent_request_makes_room() {
        let connections = Arc::new(Connections::default());
        let mut open: Vec<_> = (0..CONNECTIONS_MAX as u8)
            .map(|last| connections.admit(address(last)).unwrap())
            .collect();
        open[0].0.has_asked();
        let new = connections.admit(address(200)).unwrap();
        assert!(open[0].1.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        assert!(open[1].1.try_recv() == Err(oneshot::error::TryRecvError::Closed));
        assert!(open[2].1.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        drop(new);
    }
}
