//! The open pages of a node: how many there are, and whose. An open page holds its place for
//! minutes, so one address has only some of them.

use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum number of open pages; the other connections stay free for readers of metrics.
pub const PAGES_MAX: usize = 16;
/// How many of them one address may have, so that the others find room.
pub const PAGES_PER_ADDRESS_MAX: usize = 4;

/// The places of open pages.
#[derive(Debug, Default)]
pub(super) struct Pages(Mutex<Vec<IpAddr>>);

/// The place of one open page; free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    address: IpAddr,
    pages: Arc<Pages>,
}

/// The reason why no page was opened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// This address has its share.
    #[error(
        "{PAGES_PER_ADDRESS_MAX} pages are open from this address already: close one, or open \
         another node's"
    )]
    Address,
    /// All places are taken.
    #[error("{PAGES_MAX} pages are open already: close one, or open another node's")]
    Node,
}

impl Pages {
    /// Takes a place for a page that is read from `address` (of an IPv6 client: its network).
    pub fn open(self: &Arc<Self>, address: IpAddr) -> Result<Place, Full> {
        let mut open = self.0.lock();
        if open.iter().filter(|other| **other == address).count() >= PAGES_PER_ADDRESS_MAX {
            return Err(Full::Address);
        }
        if open.len() >= PAGES_MAX {
            return Err(Full::Node);
        }
        open.push(address);
        Ok(Place {
            address,
            pages: Arc::clone(self),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.pages.0.lock();
        if let Some(at) = open.iter().position(|address| *address == self.address) {
            open.swap_remove(at);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: usize) -> IpAddr {
        IpAddr::from([10, 0, 0, last as u8])
    }

    #[test]
    fn one_address_has_its_share_of_the_pages_and_no_more() {
        let pages = Arc::new(Pages::default());
        let mut own: Vec<Place> = (0..PAGES_PER_ADDRESS_MAX)
            .map(|_| pages.open(address(1)).unwrap())
            .collect();
        assert_eq!(pages.open(address(1)).unwrap_err(), Full::Address);
        let others: Vec<Place> = (PAGES_PER_ADDRESS_MAX..PAGES_MAX)
            .map(|number| pages.open(address(2 + number)).unwrap())
            .collect();
        assert_eq!(pages.open(address(200)).unwrap_err(), Full::Node);
        own.pop();
        assert!(pages.open(address(200)).is_ok(), "a closed page makes room");
        assert!(pages.open(address(1)).is_ok(), "and for its own address");
        drop(others);
    }
}
