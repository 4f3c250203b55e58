//! Why a credential cannot be used. Plain data.

use slowmo_protocol::ident::ClusterId;

/// Length of a cluster key, in bytes.
pub const CLUSTER_KEY_BYTES: usize = 32;

/// Reason why an identity could not be created. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The text does not have the form that `slowmo keygen` writes.
    #[error(
        "a cluster key is {} hexadecimal digits; make one with `slowmo keygen`",
        CLUSTER_KEY_BYTES * 2
    )]
    NotAClusterKey,
    /// A key file has other lines than keys and a cluster's id.
    #[error(
        "a key file holds one cluster key, or two while they rotate, each on a line, and after \
         them a line `cluster ID` if slowmo keygen wrote one; take the file that slowmo keygen \
         wrote"
    )]
    NotAKeyFile,
    /// A third key would be added.
    #[error(
        "the file holds two keys already: end that rotation first (slowmo keygen --retire FILE)"
    )]
    RotationUnderWay,
    /// There is no older key.
    #[error("the file holds one key only: begin with slowmo keygen --rotate FILE")]
    NoRotation,
    /// The credential is of another cluster than the one that this process belongs to.
    #[error(
        "it is of {theirs}, this process belongs to {ours}; take the key file that slowmo keygen \
         --rotate wrote; give cluster_name on all nodes, which needs a restart, before a CA is \
         exchanged"
    )]
    AnotherCluster {
        /// The cluster of the new credential.
        theirs: ClusterId,
        /// The cluster of this process.
        ours: ClusterId,
    },
    /// This node's certificate does not carry the name that its peers require.
    #[error(
        "this node's certificate must carry the name {expected} (tls_peer_name), and it carries: \
         {carried}; issue one with that name, or change node_id"
    )]
    WrongName {
        /// The name, or its pattern.
        expected: String,
        /// The names that it carries.
        carried: String,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes")]
    NoRandomBytes,
    /// A certificate could not be created or read.
    #[error(
        "the {what} is not usable ({reason}); give PEM files of one CA, of a certificate chain for \
         both client and server use, and of its key"
    )]
    Certificate {
        /// The certificate or file concerned.
        what: &'static str,
        /// The reason why it cannot be used.
        reason: String,
    },
}
