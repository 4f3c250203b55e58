//! Ways to look for other nodes (key `discover`), from text and back. Pure.

use super::values::{Value, is_host_and_port};
use std::path::PathBuf;

/// Where other nodes are looked for (key `discover`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discover {
    /// At every address of a name, and this port: `host:port`.
    Dns(String),
    /// At the nodes of this process's Slurm step, each task at this port and its `SLURM_LOCALID`.
    Slurm(u16),
    /// Where a file says, one `host:port` a line.
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
