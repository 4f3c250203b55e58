//! How nodes find each other's addresses before they are connected.

use async_trait::async_trait;
use slowmo_protocol::ident::NodeId;
use std::net::SocketAddr;

/// Addresses that one discovery may name.
pub const DISCOVERED_MAX: usize = 4096;

/// Names addresses worth dialing. Names may come and go; whoever answers is authenticated by the
/// transport, not here.
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// Makes this node's address known to others, where the implementation can. Called once the
    /// transport listens.
    ///
    /// # Errors
    /// The address could not be made known; nothing was changed.
    async fn announce(&self, node: NodeId, address: SocketAddr) -> Result<(), DiscoveryError>;

    /// Addresses known now, this node's own perhaps among them, ascending, each once. Called again
    /// and again.
    ///
    /// # Errors
    /// Nothing is known now; asking again later is right.
    async fn peers(&self) -> Result<Vec<SocketAddr>, DiscoveryError>;

    /// Makes an announced address unknown again, where the implementation can. Called when the node
    /// stops.
    ///
    /// # Errors
    /// The address stays known.
    async fn withdraw(&self, _node: NodeId, _address: SocketAddr) -> Result<(), DiscoveryError> {
        Ok(())
    }

    /// Whether addresses may be those of nodes that are gone, so that one that cannot be reached is
    /// no reason to give up.
    fn may_be_stale(&self) -> bool {
        false
    }
}

/// Why discovery failed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// A rendezvous folder cannot be read.
    #[error(
        "cannot read the rendezvous folder {folder} ({reason}); check that it exists and that this user may read it"
    )]
    Unreadable {
        /// The folder.
        folder: String,
        /// What the operating system said.
        reason: String,
    },
    /// A rendezvous folder cannot be written to.
    #[error(
        "cannot write {file} ({reason}); check that its folder exists and that this user may write to it"
    )]
    Unwritable {
        /// The file.
        file: String,
        /// What the operating system said.
        reason: String,
    },
    /// A name has no address now.
    #[error(
        "cannot resolve {name} ({reason}); check the name, and that this machine's resolver knows it; it is asked for again"
    )]
    Unresolved {
        /// The name and port.
        name: String,
        /// What the resolver said.
        reason: String,
    },
    /// A file of addresses cannot be read.
    #[error(
        "cannot read the addresses in {file} ({reason}); check that it exists and that this user may read it; it is read again"
    )]
    NoList {
        /// The file.
        file: String,
        /// What the operating system said.
        reason: String,
    },
    /// A line of a file of addresses.
    #[error(
        "{file} line {line}: {found} is no host:port; nothing of the file is used until it is mended, and it is read again"
    )]
    BadLine {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What stands there.
        found: String,
    },
    /// A resolver or a file system that hangs.
    #[error(
        "{what} was looked up for {seconds} s without an answer; check the resolver, or the disk of the file; it is waited for"
    )]
    Slow {
        /// What was looked up.
        what: String,
        /// For how long, in seconds.
        seconds: u64,
    },
    /// More addresses than are looked at.
    #[error("more than {DISCOVERED_MAX} addresses; remove those of earlier runs")]
    TooMany,
}
