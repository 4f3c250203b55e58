//! A rendezvous folder in which every node writes its own address. Touches only that folder.

use super::blocking;
use async_trait::async_trait;
use slowmo_actors::ports::discovery::{DISCOVERED_MAX, Discovery, DiscoveryError};
use slowmo_protocol::ident::NodeId;
use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Largest file in a rendezvous folder that is read, in bytes; an address is shorter.
const ADDRESS_BYTES_MAX: u64 = 64;

/// A rendezvous folder: each node writes a file named by its id that holds its address, so that
/// nodes on one machine, or with a common file system, can listen on free ports.
#[derive(Clone, Debug)]
pub struct Directory {
    folder: PathBuf,
}

impl Directory {
    /// Discovery in `folder`, which is created when this node announces itself.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    fn file_of(&self, node: NodeId) -> PathBuf {
        self.folder.join(node.0.to_string())
    }
}

#[async_trait]
impl Discovery for Directory {
    async fn announce(&self, node: NodeId, address: SocketAddr) -> Result<(), DiscoveryError> {
        let folder = self.folder.clone();
        let file = self.file_of(node);
        blocking(move || {
            std::fs::create_dir_all(&folder).map_err(|error| unwritable(&file, &error))?;
            // Written to a temporary file and renamed, so that a reader sees the whole address or
            // none. The temporary name is new and cannot be guessed: in a folder that everybody may
            // write to, a planted link is not followed and does not block the write.
            let aside = folder.join(format!(
                ".{}.{:016x}",
                node.0,
                RandomState::new().hash_one(std::process::id())
            ));
            let written = File::create_new(&aside)
                .and_then(|mut new| new.write_all(address.to_string().as_bytes()));
            written
                .and_then(|()| std::fs::rename(&aside, &file))
                .map_err(|error| {
                    // Best effort: the file is hidden and small.
                    let _ = std::fs::remove_file(&aside);
                    unwritable(&file, &error)
                })
        })
        .await
    }

    /// Keeps the file if it holds another address, as that of a later incarnation of the same node;
    /// no error if there is no file.
    async fn withdraw(&self, node: NodeId, address: SocketAddr) -> Result<(), DiscoveryError> {
        let file = self.file_of(node);
        blocking(move || {
            if read_address(&file) != Some(address) {
                return Ok(());
            }
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(unwritable(&file, &error))
                }
                _ => Ok(()),
            }
        })
        .await
    }

    /// Always true: a process that was killed leaves its file behind.
    fn may_be_stale(&self) -> bool {
        true
    }

    async fn peers(&self) -> Result<Vec<SocketAddr>, DiscoveryError> {
        let folder = self.folder.clone();
        blocking(move || match read_addresses(&folder) {
            Ok(addresses) if addresses.len() > DISCOVERED_MAX => Err(DiscoveryError::TooMany),
            Ok(addresses) => Ok(addresses.into_iter().collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(DiscoveryError::Unreadable {
                folder: folder.display().to_string(),
                reason: error.to_string(),
            }),
        })
        .await
    }
}

/// Reads every file that is named by a node id and holds an address; other files are ignored.
fn read_addresses(folder: &Path) -> io::Result<BTreeSet<SocketAddr>> {
    let mut addresses = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_announcement = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<u64>().is_ok());
        if is_announcement && let Some(address) = read_address(&entry.path()) {
            addresses.insert(address);
        }
        if addresses.len() > DISCOVERED_MAX {
            break;
        }
    }
    Ok(addresses)
}

/// The address in a regular file that holds nothing else; links are not followed.
fn read_address(file: &Path) -> Option<SocketAddr> {
    std::fs::symlink_metadata(file)
        .ok()
        .filter(|metadata| metadata.is_file() && metadata.len() <= ADDRESS_BYTES_MAX)?;
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn unwritable(file: &Path, error: &io::Error) -> DiscoveryError {
    DiscoveryError::Unwritable {
        file: file.display().to_string(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[tokio::test]
    async fn nodes_find_each_other_in_a_folder() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Directory::new(parent.path().join("rendezvous"));
        assert_eq!(folder.peers().await.unwrap(), []);
        folder.announce(NodeId(2), address(20)).await.unwrap();
        folder.announce(NodeId(1), address(10)).await.unwrap();
        folder.announce(NodeId(2), address(21)).await.unwrap();
        std::fs::write(parent.path().join("rendezvous/notes.txt"), "127.0.0.1:5").unwrap();
        std::fs::write(parent.path().join("rendezvous/3"), "127.0.0").unwrap();
        assert_eq!(folder.peers().await.unwrap(), [address(10), address(21)]);
        folder.withdraw(NodeId(1), address(10)).await.unwrap();
        folder.withdraw(NodeId(1), address(10)).await.unwrap();
        folder.withdraw(NodeId(2), address(20)).await.unwrap();
        assert_eq!(
            folder.peers().await.unwrap(),
            [address(21)],
            "the later start of node 2 stays known"
        );
    }

    #[tokio::test]
    async fn planted_links_are_neither_followed_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "127.0.0.1:9").unwrap();
        for name in [
            "1".to_owned(),
            "2".to_owned(),
            format!(".1.{}", std::process::id()),
        ] {
            std::os::unix::fs::symlink(&victim, folder.path().join(name)).unwrap();
        }
        let directory = Directory::new(folder.path());
        assert_eq!(directory.peers().await.unwrap(), []);
        directory.announce(NodeId(1), address(10)).await.unwrap();
        assert_eq!(directory.peers().await.unwrap(), [address(10)]);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "127.0.0.1:9");
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_made_is_named() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Directory::new(file.join("folder"))
            .announce(NodeId(1), address(1))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, DiscoveryError::Unwritable { file, .. } if file.ends_with("folder/1")),
            "{error}"
        );
    }
}
