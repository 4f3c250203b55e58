//! Addresses that are looked up repeatedly, because names appear and disappear. Touches the
//! system's resolver and one file.

use super::{blocking, list_file};
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream;
use slowmo_actors::ports::discovery::{DISCOVERED_MAX, Discovery, DiscoveryError};
use slowmo_protocol::ident::NodeId;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Time from the end of one lookup to the next; callers ask far more often.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Like [`LOOK_INTERVAL`], once every name of a fixed list has been resolved.
pub const SETTLED_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time that a call waits for a lookup; the lookup continues, and the next call waits for
/// the same one.
pub const LOOK_MAX: Duration = Duration::from_secs(5);
/// Largest number of names that are resolved concurrently.
pub const RESOLVING_MAX: usize = 16;

/// The source in which addresses are looked up.
#[derive(Clone, Debug)]
pub enum Source {
    /// A `host:port` whose name resolves to the nodes' addresses: a headless service, round-robin
    /// DNS.
    Name(String),
    /// A file of `host:port` lines.
    File(PathBuf),
    /// A fixed list of `host:port`.
    Listed(Arc<[String]>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Listed(names) => write!(f, "the {} names of the job's nodes", names.len()),
        }
    }
}

/// Result of one lookup.
#[derive(Debug, Default)]
struct Found {
    addresses: BTreeSet<SocketAddr>,
    /// Names without an address, each with the reason; at most as many as there were names to
    /// resolve.
    missing: Vec<(String, String)>,
}

impl Source {
    async fn look(self, ipv4: bool) -> Result<Found, DiscoveryError> {
        let names = match self {
            Self::Name(name) => vec![name],
            Self::Listed(names) => names.to_vec(),
            Self::File(path) => blocking(move || list_file::read(&path)).await?,
        };
        let found = resolve(names, ipv4).await;
        match found.missing.first() {
            _ if found.addresses.len() > DISCOVERED_MAX => Err(DiscoveryError::TooMany),
            Some((name, reason)) if found.addresses.is_empty() => Err(DiscoveryError::Unresolved {
                name: name.clone(),
                reason: reason.clone(),
            }),
            _ => Ok(found),
        }
    }

    fn interval(&self, outcome: &Result<Found, DiscoveryError>) -> Duration {
        let settled =
            matches!((self, outcome), (Self::Listed(_), Ok(found)) if found.missing.is_empty());
        if settled {
            SETTLED_INTERVAL
        } else {
            LOOK_INTERVAL
        }
    }
}

/// Resolves all names to addresses of one family.
async fn resolve(names: Vec<String>, ipv4: bool) -> Found {
    let look = |name: String| async move {
        let addresses = lookup_host(&name).await.map(|addresses| {
            addresses
                .filter(|one| one.is_ipv4() == ipv4)
                .collect::<Vec<_>>()
        });
        (name, addresses)
    };
    let mut looks = stream::iter(names)
        .map(look)
        .buffer_unordered(RESOLVING_MAX);
    let mut found = Found::default();
    while let Some((name, addresses)) = looks.next().await {
        match addresses {
            Ok(addresses) if addresses.is_empty() => {
                found.missing.push((
                    name,
                    format!(
                        "it has no address of {}, the family of listen",
                        if ipv4 { "IPv4" } else { "IPv6" }
                    ),
                ));
            }
            Ok(addresses) => found.addresses.extend(addresses),
            Err(error) => found.missing.push((name, error.to_string())),
        }
    }
    found.missing.sort();
    found
}

/// Discovery by a [`Source`], in addition to given addresses. Found addresses stay known until
/// another lookup succeeds.
#[derive(Debug)]
pub struct LookedUp {
    source: Source,
    ipv4: bool,
    given: BTreeSet<SocketAddr>,
    look_max: Duration,
    looks: Mutex<Looks>,
}

/// State of the lookups: the one in progress, the time of the next, and the last results.
#[derive(Debug, Default)]
struct Looks {
    under_way: Option<JoinHandle<Result<Found, DiscoveryError>>>,
    next: Option<Instant>,
    known: BTreeSet<SocketAddr>,
    failed: Option<DiscoveryError>,
    missing: Vec<(String, String)>,
}

impl LookedUp {
    /// Discovery that looks up addresses of one family in `source`, in addition to `given`.
    #[must_use]
    pub fn new(source: Source, ipv4: bool, given: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            source,
            ipv4,
            given: given.into_iter().collect(),
            look_max: LOOK_MAX,
            looks: Mutex::default(),
        }
    }

    /// Starts a lookup, or waits for the one still in progress, so that at most one lookup at a
    /// time hangs in a resolver or a file system.
    async fn look(&self, looks: &mut Looks) {
        let under_way = looks
            .under_way
            .get_or_insert_with(|| tokio::spawn(self.source.clone().look(self.ipv4)));
        let done = timeout(self.look_max, under_way).await;
        let outcome = match done {
            Err(_) => Err(DiscoveryError::Slow {
                what: self.source.to_string(),
                seconds: self.look_max.as_secs(),
            }),
            Ok(ended) => {
                looks.under_way = None;
                ended.unwrap_or_else(|error| {
                    Err(DiscoveryError::Unresolved {
                        name: self.source.to_string(),
                        reason: error.to_string(),
                    })
                })
            }
        };
        looks.next = Some(Instant::now() + self.source.interval(&outcome));
        match outcome {
            Ok(found) => looks.found(found),
            Err(error) => self.failed(looks, error),
        }
    }

    fn failed(&self, looks: &mut Looks, error: DiscoveryError) {
        let known = self.given.len() + looks.known.len();
        // While no address is known, the error is returned to the caller instead of logged.
        if known > 0 && looks.failed.as_ref() != Some(&error) {
            tracing::warn!(
                %error,
                known,
                "discovery failed; the addresses known before are dialed"
            );
        }
        looks.failed = Some(error);
    }

    fn answer(&self, looks: &Looks) -> Result<Vec<SocketAddr>, DiscoveryError> {
        let known: Vec<SocketAddr> = self.given.union(&looks.known).copied().collect();
        match &looks.failed {
            Some(error) if known.is_empty() => Err(error.clone()),
            _ if known.len() > DISCOVERED_MAX => Err(DiscoveryError::TooMany),
            _ => Ok(known),
        }
    }
}

impl Looks {
    fn found(&mut self, Found { addresses, missing }: Found) {
        for (name, reason) in missing
            .iter()
            .filter(|missing| !self.missing.contains(missing))
        {
            tracing::warn!(
                name,
                reason,
                "a name cannot be resolved; the others are dialed"
            );
        }
        self.known = addresses;
        self.missing = missing;
        self.failed = None;
    }
}

#[async_trait]
impl Discovery for LookedUp {
    async fn announce(&self, _node: NodeId, _address: SocketAddr) -> Result<(), DiscoveryError> {
        Ok(())
    }

    /// Always true: a name, or a line in a file, may outlive the node it refers to.
    fn may_be_stale(&self) -> bool {
        true
    }

    async fn peers(&self) -> Result<Vec<SocketAddr>, DiscoveryError> {
        let mut looks = self.looks.lock().await;
        if looks.next.is_none_or(|next| next <= Instant::now()) {
            self.look(&mut looks).await;
        }
        self.answer(&looks)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Acts as if [`LOOK_INTERVAL`] had passed.
    async fn later(discovery: &LookedUp) {
        discovery.looks.lock().await.next = None;
    }

    #[tokio::test]
    async fn a_name_has_the_addresses_of_one_family() {
        let name = || Source::Name("localhost:7000".to_owned());
        let found = LookedUp::new(name(), true, [address(9)])
            .peers()
            .await
            .unwrap();
        assert_eq!(found, [address(9), address(7000)]);
        assert!(LookedUp::new(name(), true, []).may_be_stale());
        let other = LookedUp::new(Source::Name("127.0.0.1:7000".to_owned()), false, [])
            .peers()
            .await
            .unwrap_err();
        assert!(other.to_string().contains("no address of IPv6"), "{other}");
    }

    #[tokio::test]
    async fn a_file_is_read_again_and_what_was_known_stays_while_it_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes");
        let discovery = LookedUp::new(Source::File(path.clone()), true, []);
        assert!(matches!(
            discovery.peers().await,
            Err(DiscoveryError::NoList { .. })
        ));
        std::fs::write(&path, "127.0.0.1:2\n127.0.0.1:1\n").unwrap();
        assert!(
            discovery.peers().await.is_err(),
            "it is not looked at all the time"
        );
        later(&discovery).await;
        assert_eq!(discovery.peers().await.unwrap(), [address(1), address(2)]);
        std::fs::write(&path, "127.0.0.1:3\nno such line\n").unwrap();
        later(&discovery).await;
        assert_eq!(discovery.peers().await.unwrap(), [address(1), address(2)]);
        std::fs::write(&path, "127.0.0.1:3\n").unwrap();
        later(&discovery).await;
        assert_eq!(discovery.peers().await.unwrap(), [address(3)]);
    }

    #[tokio::test]
    async fn names_that_cannot_be_resolved_keep_nobody_from_the_others() {
        let names: [String; 3] = ["127.0.0.1:1".into(), "[::1]:2".into(), "127.0.0.1:3".into()];
        let discovery = LookedUp::new(Source::Listed(names.into()), true, []);
        assert_eq!(discovery.peers().await.unwrap(), [address(1), address(3)]);
        let looks = discovery.looks.lock().await;
        assert_eq!(looks.missing[0].0, "[::1]:2");
        assert!(
            looks.next.unwrap() <= Instant::now() + LOOK_INTERVAL,
            "it is asked for again soon"
        );
        let none: [String; 1] = ["[::1]:2".into()];
        let refused = LookedUp::new(Source::Listed(none.into()), true, [])
            .peers()
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("[::1]:2"), "{refused}");
    }

    #[tokio::test]
    async fn a_job_s_names_are_left_alone_once_all_are_found() {
        let names: [String; 1] = ["127.0.0.1:1".into()];
        let discovery = LookedUp::new(Source::Listed(names.into()), true, []);
        discovery.peers().await.unwrap();
        assert!(discovery.looks.lock().await.next.unwrap() > Instant::now() + LOOK_INTERVAL);
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_waited_for_by_the_next_call() {
        let patience = Duration::from_millis(5);
        let discovery = LookedUp {
            look_max: patience,
            ..LookedUp::new(Source::Name("localhost:7000".to_owned()), true, [])
        };
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let hangs = tokio::spawn(async move {
            let _gone = gone.await;
            Ok(Found {
                addresses: [address(5)].into(),
                missing: Vec::new(),
            })
        });
        discovery.looks.lock().await.under_way = Some(hangs);
        assert!(matches!(
            discovery.peers().await,
            Err(DiscoveryError::Slow { .. })
        ));
        go.send(()).unwrap();
        later(&discovery).await;
        assert_eq!(discovery.peers().await.unwrap(), [address(5)]);
    }
}
