//! Network namespaces of this machine, as the hosts of a launch: nodes in them talk over their
//! links, which may be shaped, instead of loopback.

use serde::Serialize;
use std::net::{AddrParseError, IpAddr};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

/// A network namespace in which a node runs, and its address there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Name of the namespace, as `ip netns list` shows it.
    pub namespace: String,
    /// An address of an interface in the namespace.
    pub address: IpAddr,
}

/// Reasons why a text does not name a host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The text has no `=`, or the name is empty.
    #[error("{0:?} is not NAMESPACE=ADDRESS, for example bl0=10.210.0.1")]
    Form(String),
    /// The address cannot be read.
    #[error("{text:?} is not an IP address without a port")]
    Address {
        /// The text.
        text: String,
        /// Why it is not one.
        source: AddrParseError,
    },
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let parts = text.split_once('=');
        let Some((namespace, address)) = parts.filter(|(namespace, _)| !namespace.is_empty())
        else {
            return Err(HostError::Form(text.to_owned()));
        };
        let address = address.parse().map_err(|source| HostError::Address {
            text: address.to_owned(),
            source,
        })?;
        Ok(Self {
            namespace: namespace.to_owned(),
            address,
        })
    }
}

impl Host {
    /// A command that runs `program` in the namespace; needs root. The process keeps its id, so
    /// that its parent is the launcher.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace])
            .arg(program);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_namespace_and_an_address() {
        let host: Host = "bl0=10.210.0.1".parse().unwrap();
        assert_eq!(host.namespace, "bl0");
        assert_eq!(host.address, IpAddr::from([10, 210, 0, 1]));
        for wrong in ["", "bl0", "=10.0.0.1"] {
            assert!(
                matches!(wrong.parse::<Host>(), Err(HostError::Form(_))),
                "{wrong:?}"
            );
        }
        for wrong in ["bl0=", "bl0=10.0.0.1:7000", "bl0=here"] {
            assert!(
                matches!(wrong.parse::<Host>(), Err(HostError::Address { .. })),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_program_runs_inside_its_namespace() {
        let host: Host = "bl3=10.210.0.4".parse().unwrap();
        let command = host.command(Path::new("/bin/slowmo"));
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "ip");
        assert_eq!(words, ["netns", "exec", "bl3", "/bin/slowmo"]);
    }
}
