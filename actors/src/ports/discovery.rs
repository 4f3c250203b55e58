//! How nodes find each other's addresses before they are connected.

use async_trait::async_trait;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::printable::printable;
use std::net::SocketAddr;

/// Most addresses that one discovery may name.
pub const DISCOVERED_MAX: usize = 4096;

/// Names addresses worth dialing. Addresses may come and go; the transport, not discovery,
/// authenticates the node that answers.
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// Publishes this node's address, if the implementation can. Called once, when the transport
    /// listens.
    ///
    /// # Errors
    /// The address could not be published; nothing was changed.
    async fn announce(&self, node: NodeId, address: SocketAddr) -> Result<(), DiscoveryError>;

    /// Addresses known now, possibly including this node's own, in ascending order, each once.
    /// Called repeatedly.
    ///
    /// # Errors
    /// No addresses are known now; the caller asks again later.
    async fn peers(&self) -> Result<Vec<SocketAddr>, DiscoveryError>;

    /// Withdraws a published address, if the implementation can. Called when the node stops.
    ///
    /// # Errors
    /// The address stays published.
    async fn withdraw(&self, _node: NodeId, _address: SocketAddr) -> Result<(), DiscoveryError> {
        Ok(())
    }

    /// Whether addresses may belong to nodes that are gone, so that an unreachable address is no
    /// reason to give up.
    fn may_be_stale(&self) -> bool {
        false
    }
}

/// Error of a discovery. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// A rendezvous folder cannot be read.
    #[error(
        "cannot read the rendezvous folder {folder} ({reason}); check that it exists and that this \
         user may read it"
    )]
    Unreadable {
        /// The folder.
        folder: String,
        /// The operating system's error.
        reason: String,
    },
    /// A rendezvous folder cannot be written to.
    #[error(
        "cannot write {file} ({reason}); check that its folder exists and that this user may write \
         to it"
    )]
    Unwritable {
        /// The file.
        file: String,
        /// The operating system's error.
        reason: String,
    },
    /// A name currently has no address.
    #[error(
        "cannot resolve {} ({reason}); check the name and this machine's resolver; the node asks \
         again",
        printable(name)
    )]
    Unresolved {
        /// The name and port.
        name: String,
        /// The resolver's error.
        reason: String,
    },
    /// A file of addresses cannot be read.
    #[error(
        "cannot read the addresses in {file} ({reason}); check that it exists and that this user \
         may read it; the node reads it again"
    )]
    NoList {
        /// The file.
        file: String,
        /// The operating system's error.
        reason: String,
    },
    /// A line of a file of addresses is not a `host:port`.
    #[error(
        "{file} line {line}: {} is not a host:port; the node ignores the file until it is \
         corrected, and reads it again",
        printable(found)
    )]
    BadLine {
        /// The file.
        file: String,
        /// The line number, from 1.
        line: usize,
        /// The text found there.
        found: String,
    },
    /// A resolver or a file system does not answer.
    #[error(
        "the lookup of {what} has not finished after {seconds} s; check the resolver, or the disk \
         of the file; the node keeps waiting"
    )]
    Slow {
        /// The name or file that was looked up.
        what: String,
        /// Time since the look-up began, in seconds.
        seconds: u64,
    },
    /// Discovery found more addresses than [`DISCOVERED_MAX`].
    #[error("more than {DISCOVERED_MAX} addresses; remove those of earlier runs")]
    TooMany,
}
