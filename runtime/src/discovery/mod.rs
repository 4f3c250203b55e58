//! Discovery: how a node finds the addresses of the other nodes.
//!
//! | file | source of the addresses | touches |
//! |---|---|---|
//! | `mod` | a fixed list | nothing |
//! | [`folder`] | a folder in which every node writes its own address | that folder |
//! | [`looked_up`] | a name, a file or many names, looked up repeatedly | the resolver, that file |
//! | [`list_file`] | the parser of such a file | that file |
//! | [`slurm`] | Slurm's variables, passed by the caller | nothing: pure |

pub mod folder;
pub mod list_file;
pub mod looked_up;
pub mod slurm;

pub use folder::Directory;
pub use looked_up::{LookedUp, Source};

use async_trait::async_trait;
use slowmo_actors::ports::discovery::{DISCOVERED_MAX, Discovery, DiscoveryError};
use slowmo_protocol::ident::NodeId;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Discovery from a fixed list of addresses.
#[derive(Clone, Debug, Default)]
pub struct StaticList {
    addresses: Vec<SocketAddr>,
}

impl StaticList {
    /// A list of these addresses, without duplicates.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let addresses: BTreeSet<SocketAddr> = addresses.into_iter().collect();
        Self {
            addresses: addresses.into_iter().collect(),
        }
    }
}

#[async_trait]
impl Discovery for StaticList {
    async fn announce(&self, _node: NodeId, _address: SocketAddr) -> Result<(), DiscoveryError> {
        Ok(())
    }

    async fn peers(&self) -> Result<Vec<SocketAddr>, DiscoveryError> {
        if self.addresses.len() > DISCOVERED_MAX {
            Err(DiscoveryError::TooMany)
        } else {
            Ok(self.addresses.clone())
        }
    }
}

/// Runs file access, which may hang on a network file system, outside the executor's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DiscoveryError> + Send + 'static,
) -> Result<T, DiscoveryError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(DiscoveryError::Unreadable {
            folder: "given".into(),
            reason: error.to_string(),
        })
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[tokio::test]
    async fn a_list_is_sorted_and_without_repeats() {
        let list = StaticList::new([address(2), address(1), address(2)]);
        list.announce(NodeId(1), address(9)).await.unwrap();
        assert_eq!(list.peers().await.unwrap(), [address(1), address(2)]);
    }
}
