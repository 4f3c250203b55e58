//! Ways to look for other nodes (key `discover`): parsing and formatting. Pure.

use super::values::{Value, is_host_and_port};
use std::path::PathBuf;

/// Source in which other nodes are looked up (key `discover`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discover {
    /// Every address of a name, at one port: `host:port`.
    Dns(String),
    /// The nodes of this process's Slurm step; each task listens at this port plus its
    /// `SLURM_LOCALID`.
    Slurm(u16),
    /// A file with one `host:port` per line.
    File(PathBuf),
}

impl Value for Discover {
    fn parse(text: &str) -> Option<Self> {
        let (kind, value) = text.split_once(':')?;
        match kind {
            "dns" => is_host_and_port(value).then(|| Self::Dns(value.to_owned())),
            "slurm" => value.parse().ok().filter(|port| *port > 0).map(Self::Slurm),
            "file" => Value::parse(value).map(Self::File),
            _ => None,
        }
    }
    fn show(&self) -> String {
        match self {
            Self::Dns(name) => format!("dns:{name}"),
            Self::Slurm(port) => format!("slurm:{port}"),
            Self::File(path) => format!("file:{}", path.display()),
        }
    }
}
