//! The credential that a node uses now. A newer one may take its place while the node runs: new
//! connections use it at once, and existing ones are renewed (see `renewal`).

use super::Node;
use super::admissions::HANDSHAKES_MAX;
use super::identity::Identity;
use super::identity_error::IdentityError;
use super::ids::MarkKey;
use super::settings::Tuning;
use super::tls::{Judge, Standing, Tls};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ConnectionId, ServerConfig};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Bytes that may arrive for one connection before it is accepted: a first flight in some packets.
const EARLY_BYTES_MAX: u64 = 16 << 10;
/// The same for all connections that are not accepted yet.
const EARLY_BYTES_ALL_MAX: u64 = 1 << 20;

/// How long a connection stays whose peer's certificate is no longer accepted. The peer may learn
/// of its new credential later than this node, and then renews the connection.
pub(super) const REFUSAL_GRACE: Duration = Duration::from_secs(5);

/// Client configuration for each kind of connection.
pub(super) struct Clients {
    pub control: ClientConfig,
    pub bulk: ClientConfig,
}

/// The settings of connections under one credential.
pub(super) struct Credential {
    /// Counts the certificates that this node preferred.
    pub number: u64,
    pub clients: Clients,
    pub judge: Judge,
    /// The preferred certificate.
    certificate: Vec<u8>,
}

impl Credential {
    /// The settings of an identity, for connections that are dialed and for those that are
    /// accepted.
    pub(super) fn of(
        identity: &Identity,
        version: u32,
        tuning: &Tuning,
    ) -> Result<(Self, ServerConfig), IdentityError> {
        let Tls {
            server,
            client,
            judge,
        } = Tls::of(identity, version)?;
        let (server, clients) = configs(server, client, identity.marks.first(), tuning);
        let certificate = identity.own_certificate().unwrap_or_default().to_vec();
        let credential = Self {
            number: 0,
            clients,
            judge,
            certificate,
        };
        Ok((credential, server))
    }
}

/// The settings of connections; `mark` marks the first packets of those that are dialed.
fn configs(
    server: QuicServerConfig,
    client: QuicClientConfig,
    mark: Option<&MarkKey>,
    tuning: &Tuning,
) -> (ServerConfig, Clients) {
    let mut server = ServerConfig::with_crypto(Arc::new(server));
    server
        .transport_config(Arc::new(tuning.accepted_config()))
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(EARLY_BYTES_MAX)
        .incoming_buffer_size_total(EARLY_BYTES_ALL_MAX)
        .migration(false);
    let mut bulk = ClientConfig::new(Arc::new(client));
    let mut control = bulk.clone();
    control.transport_config(Arc::new(tuning.control_config()));
    bulk.transport_config(Arc::new(tuning.dialed_config()));
    if let Some(key) = mark.cloned() {
        let marked_id: Arc<dyn Fn() -> ConnectionId + Send + Sync> =
            Arc::new(move || key.marked_id());
        control.initial_dst_cid_provider(marked_id.clone());
        bulk.initial_dst_cid_provider(marked_id);
    }
    (server, Clients { control, bulk })
}

/// Gives a running transport another credential.
#[derive(Clone)]
pub struct Renewer {
    node: Weak<Node>,
    version: u32,
    tuning: Tuning,
}

impl std::fmt::Debug for Renewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewer").finish_non_exhaustive()
    }
}

impl Renewer {
    pub(super) fn new(node: &Arc<Node>, version: u32, tuning: Tuning) -> Self {
        Self {
            node: Arc::downgrade(node),
            version,
            tuning,
        }
    }

    /// Uses this identity from now on. New connections are made under it at once. Those that exist
    /// stay up, and are renewed under it; one whose peer is no longer accepted is closed if its
    /// peer has not renewed it within five seconds.
    ///
    /// # Errors
    /// The identity is unusable or of another cluster: the transport keeps the one that it has.
    pub fn renew(&self, identity: &Identity) -> Result<(), IdentityError> {
        let Some(node) = self.node.upgrade() else {
            return Ok(());
        };
        let ours = node.introduction.cluster;
        if identity.cluster != ours {
            return Err(IdentityError::AnotherCluster {
                theirs: identity.cluster,
                ours,
            });
        }
        let (mut credential, server) = Credential::of(identity, self.version, &self.tuning)?;
        node.gate.accept_marks(identity.marks.clone());
        node.endpoint.set_server_config(Some(server));
        node.credential.send_modify(|current| {
            let is_same = current.certificate == credential.certificate;
            credential.number = current.number + u64::from(!is_same);
            *current = Arc::new(credential);
        });
        Ok(())
    }
}

/// Which end of a connection this node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Dialer,
    Acceptor,
}

impl Node {
    /// Judges the peer of a connection by this node's credential of now.
    pub(super) fn standing(&self, connection: &Connection, end: End) -> Standing {
        standing(&self.credential.borrow(), connection, end)
    }

    /// Waits until the certificate of a connection's peer was refused for [`REFUSAL_GRACE`];
    /// returns the reason.
    pub(super) async fn refused(&self, connection: &Connection, end: End) -> String {
        let mut changes = self.credential.subscribe();
        let mut deadline = None;
        loop {
            let credential = changes.borrow_and_update().clone();
            match standing(&credential, connection, end) {
                Standing::Refused(reason) => {
                    let until = *deadline.get_or_insert_with(|| Instant::now() + REFUSAL_GRACE);
                    if timeout_at(until, changes.changed()).await.is_err() {
                        return reason;
                    }
                }
                Standing::Older | Standing::Current => {
                    deadline = None;
                    // The sender is part of this node.
                    let _ = changes.changed().await;
                }
            }
        }
    }
}

fn standing(credential: &Credential, connection: &Connection, end: End) -> Standing {
    match end {
        End::Dialer => credential.judge.of_dialed(connection),
        End::Acceptor => credential.judge.of_dialer(connection),
    }
}
