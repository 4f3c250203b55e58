//! The credentials that the configuration names: read at the start, and again when their files
//! change, while the node trains.

use crate::checkpoints::Trust;
use crate::config::{Config, Credentials};
use crate::error::SpawnError;
use crate::executor::beside;
use crate::secret_file;
use crate::transport::quic::{
    ClusterKey, ClusterKeys, ClusterName, Identity, OperatorFiles, PeerName, Renewer,
};
use slowmo_actors::status::StatusBoard;
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Largest key or certificate file, in bytes.
const CREDENTIAL_BYTES_MAX: u64 = 1 << 20;
/// How often the files are looked at. A change is used after two looks that found the same, so that
/// a file which is written in place is not taken in halves: within three of these intervals.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Where the credentials are.
#[derive(Clone)]
enum Source {
    /// In the configuration: they do not change.
    Key(ClusterKey),
    /// In a key file.
    KeyFile(PathBuf),
    /// In the operator's own PEM files.
    Files {
        ca: PathBuf,
        certificate: PathBuf,
        key: PathBuf,
        crl: Option<PathBuf>,
        cluster_name: Option<ClusterName>,
        peer_name: Option<PeerName>,
    },
}

/// The contents of the files.
struct Contents {
    files: Vec<Vec<u8>>,
}

/// A SHA-256 digest of what the files hold.
type Digest = [u8; 32];

/// The credentials of a node, and those that its checkpoints are sealed with.
pub(crate) struct Held {
    source: Source,
    me: (NodeId, Incarnation),
    digest: Digest,
    /// The identity that the transport authenticates with.
    pub identity: Identity,
    /// The trust in checkpoints.
    pub trust: Trust,
}

impl Held {
    /// Reads the credentials that the configuration names, if it names any.
    pub(crate) fn open(
        config: &Config,
        me: (NodeId, Incarnation),
    ) -> Result<Option<Self>, SpawnError> {
        let source = match config.credentials() {
            Credentials::None => return Ok(None),
            Credentials::ClusterKey(key) => Source::Key(key.clone()),
            Credentials::ClusterKeyFile(path) => Source::KeyFile(path.to_owned()),
            Credentials::Files {
                ca,
                certificate,
                key,
                crl,
                cluster_name,
                peer_name,
            } => Source::Files {
                ca: ca.to_owned(),
                certificate: certificate.to_owned(),
                key: key.to_owned(),
                crl: crl.map(Path::to_owned),
                cluster_name: cluster_name.cloned(),
                peer_name: peer_name.cloned(),
            },
        };
        let contents = source.read()?;
        let (identity, seals) = source.identity(&contents, me, None)?;
        Ok(Some(Self {
            source,
            me,
            digest: contents.digest(),
            identity,
            trust: Trust::of(&seals),
        }))
    }

    /// Uses what the files hold now. If it is unusable, nothing is changed.
    fn take(&mut self, contents: &Contents, renewer: &Renewer) -> Result<(), SpawnError> {
        let (identity, seals) = self
            .source
            .identity(contents, self.me, Some(&self.identity))?;
        renewer.renew(&identity)?;
        self.trust.renew(&seals);
        self.identity = identity;
        self.digest = contents.digest();
        Ok(())
    }
}

impl Source {
    fn read(&self) -> Result<Contents, SpawnError> {
        let files = match self {
            Self::Key(_) => Vec::new(),
            Self::KeyFile(path) => vec![read_secret("cluster_key_file", path)?],
            Self::Files {
                ca,
                certificate,
                key,
                crl,
                ..
            } => {
                let mut files = vec![
                    read("tls_ca_file", ca)?,
                    read("tls_certificate_file", certificate)?,
                    read_secret("tls_key_file", key)?,
                ];
                if let Some(crl) = crl {
                    files.push(read("tls_crl_file", crl)?);
                }
                files
            }
        };
        Ok(Contents { files })
    }

    /// The identity that the files make, and the keys that seal checkpoints.
    fn identity(
        &self,
        contents: &Contents,
        (node, incarnation): (NodeId, Incarnation),
        earlier: Option<&Identity>,
    ) -> Result<(Identity, Vec<[u8; 32]>), SpawnError> {
        let of_keys = |keys: &ClusterKeys| {
            let identity = Identity::issue_all(keys, node, incarnation, earlier)?;
            Ok((identity, keys.checkpoint_keys()))
        };
        match (self, contents.files.as_slice()) {
            (Self::Key(key), _) => of_keys(&ClusterKeys::of(key.clone())),
            (
                Self::Files {
                    cluster_name,
                    peer_name,
                    ..
                },
                [ca, certificate, key, crl @ ..],
            ) => {
                let files = OperatorFiles {
                    ca,
                    certificate,
                    key,
                    revoked: crl.first().map(Vec::as_slice),
                };
                let cluster = cluster_name.as_ref();
                let peer = peer_name.as_ref();
                let identity = Identity::of_operator(files, cluster, peer, node)?;
                Ok((identity, Vec::new()))
            }
            (_, files) => {
                let text = String::from_utf8_lossy(files.first().map_or(&[], Vec::as_slice));
                of_keys(&text.parse()?)
            }
        }
    }
}

impl Contents {
    fn digest(&self) -> Digest {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        for file in &self.files {
            context.update(&(file.len() as u64).to_le_bytes());
            context.update(file);
        }
        let mut digest = Digest::default();
        digest.copy_from_slice(context.finish().as_ref());
        digest
    }
}

/// The result of one look at the files: their digest, or why they cannot be read.
type Look = Result<Digest, String>;

/// Looks at the files until the node ends, and uses what they hold when it changed. What is broken
/// is told once, and what was used before stays in use.
pub(crate) async fn follow(mut held: Held, renewer: Renewer, status: Arc<StatusBoard>) {
    if matches!(held.source, Source::Key(_)) {
        return;
    }
    status.certificate_expires_at(held.identity.expires_at());
    let mut last: Look = Ok(held.digest);
    let mut told: Option<Look> = None;
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let source = held.source.clone();
        let Ok(read) = beside(move || source.read()).await else {
            return;
        };
        let look = match &read {
            Ok(contents) => Ok(contents.digest()),
            Err(error) => Err(error.to_string()),
        };
        let is_settled = look == last;
        last = look.clone();
        if look == Ok(held.digest) {
            told = None;
            continue;
        }
        if !is_settled || told.as_ref() == Some(&look) {
            continue;
        }
        let taken = read.and_then(|contents| held.take(&contents, &renewer));
        match taken {
            Ok(()) => {
                told = None;
                status.certificate_expires_at(held.identity.expires_at());
                let what = "new credentials are in use: connections are renewed";
                tracing::info!("{what}");
                status.event(what);
            }
            Err(error) => {
                told = Some(look);
                let what = format!(
                    "the credentials changed and cannot be used, those before stay in use: {error}"
                );
                tracing::error!("{what}");
                status.event(what);
            }
        }
    }
}

/// Reads a file that holds a secret, at most [`CREDENTIAL_BYTES_MAX`].
fn read_secret(key: &'static str, path: &Path) -> Result<Vec<u8>, SpawnError> {
    secret_file::read(path, CREDENTIAL_BYTES_MAX).map_err(unread(key, path))
}

/// Reads a file of certificates or revocation lists, at most [`CREDENTIAL_BYTES_MAX`].
fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, SpawnError> {
    secret_file::read_public(path, CREDENTIAL_BYTES_MAX).map_err(unread(key, path))
}

fn unread(key: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SpawnError {
    let path = path.to_owned();
    move |error| SpawnError::File { key, path, error }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn certificates_that_others_may_change_are_refused_by_the_name_of_their_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = folder.path().join(name);
            write(&path, name).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let source = Source::Files {
            ca: file("ca", 0o644),
            certificate: file("certificate", 0o644),
            key: file("key", 0o600),
            crl: Some(file("crl", 0o644)),
            cluster_name: None,
            peer_name: None,
        };
        assert_eq!(source.read().unwrap().files.len(), 4);
        for (name, key) in [
            ("ca", "tls_ca_file"),
            ("certificate", "tls_certificate_file"),
            ("crl", "tls_crl_file"),
        ] {
            for mode in [0o664, 0o646] {
                file(name, mode);
                let error = source.read().err().unwrap().to_string();
                assert!(
                    error.contains(key) && error.contains("other users may change it"),
                    "{error}"
                );
            }
            file(name, 0o644);
        }
    }
}
