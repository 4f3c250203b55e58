//! The credentials that a configuration names. Pure.

use super::{ClusterKey, ClusterName, Config, ConfigError, PeerName};
use std::path::Path;

/// Credentials with which this node proves that it belongs to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials<'a> {
    /// No credentials were given; sufficient for a single node only.
    None,
    /// A cluster key.
    ClusterKey(&'a ClusterKey),
    /// A file with a cluster key.
    ClusterKeyFile(&'a Path),
    /// The operator's own PEM files.
    Files {
        /// The CA's certificates.
        ca: &'a Path,
        /// This node's certificate chain.
        certificate: &'a Path,
        /// This node's private key.
        key: &'a Path,
        /// Lists of revoked certificates.
        crl: Option<&'a Path>,
        /// The cluster's name.
        cluster_name: Option<&'a ClusterName>,
        /// The name that each node's certificate must carry.
        peer_name: Option<&'a PeerName>,
    },
}

impl Config {
    /// Credentials with which this node proves that it belongs to the cluster.
    #[must_use]
    pub fn credentials(&self) -> Credentials<'_> {
        let files = (
            &self.tls_ca_file,
            &self.tls_certificate_file,
            &self.tls_key_file,
        );
        match (&self.cluster_key, &self.cluster_key_file, files) {
            (Some(key), ..) => Credentials::ClusterKey(key),
            (None, Some(path), _) => Credentials::ClusterKeyFile(path),
            (None, None, (Some(ca), Some(certificate), Some(key))) => Credentials::Files {
                ca,
                certificate,
                key,
                crl: self.tls_crl_file.as_deref(),
                cluster_name: self.cluster_name.as_ref(),
                peer_name: self.tls_peer_name.as_ref(),
            },
            _ => Credentials::None,
        }
    }

    pub(super) fn check_credentials(&self) -> Result<(), ConfigError> {
        let files = [
            ("tls_ca_file", self.tls_ca_file.is_some()),
            ("tls_certificate_file", self.tls_certificate_file.is_some()),
            ("tls_key_file", self.tls_key_file.is_some()),
        ];
        let keys = [
            ("cluster_key", self.cluster_key.is_some()),
            ("cluster_key_file", self.cluster_key_file.is_some()),
        ];
        let with_files = [
            ("tls_crl_file", self.tls_crl_file.is_some()),
            ("tls_peer_name", self.tls_peer_name.is_some()),
            ("cluster_name", self.cluster_name.is_some()),
        ];
        if let Some((key, _)) = with_files.iter().find(|(_, given)| *given)
            && !files.iter().any(|(_, given)| *given)
        {
            return Err(ConfigError::NeedsTlsFiles { key });
        }
        let given = |list: &[(&'static str, bool)]| {
            list.iter()
                .filter(|(_, given)| *given)
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
        };
        match (given(&keys).as_slice(), given(&files).as_slice()) {
            ([one, other], _) | ([one], [other, ..]) => {
                Err(ConfigError::TwoCredentials { one, other })
            }
            (_, [] | [_, _, _]) => Ok(()),
            (_, some) => {
                let missing = files
                    .iter()
                    .find(|(name, _)| !some.contains(name))
                    .map_or("", |(name, _)| *name);
                Err(ConfigError::TlsIncomplete { missing })
            }
        }
    }
}
