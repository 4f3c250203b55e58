//! Links between node processes on this machine, without root: a relay of UDP datagrams that is
//! given the quality of each link.
//!
//! ```text
//!            node 1                        the relay                       node 2
//!  listens at L1, announces R1  ── to R2 ──►  R2 … R1  ── from R1 ──►  listens at L2, announces R2
//! ```
//!
//! Every node listens at one address and announces another, which is a socket of the relay (`R1`).
//! A datagram that arrives there can come from the listening address of a node only, and goes out
//! of *that* node's socket of the relay. So each node sees the others at the addresses that they
//! announce, whichever side dialed; one socket per node is enough; and each direction of each pair
//! is a lane of its own. Datagrams from any other source are dropped.
//!
//! Touches loopback sockets and one thread.

mod lane;
mod lanes;
mod ports;
mod waiting;

pub use lane::QUEUE_BYTES_MAX;
pub use lanes::Layer;
pub use ports::PortError;

use lanes::Lanes;
use parking_lot::Mutex;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::trace::Link;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use waiting::Waiting;

/// Maximum size of a datagram, which is the maximum of UDP.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Maximum number of datagrams taken from one socket before the next socket has its turn.
const BATCH: usize = 64;
/// Requested size of a socket's buffer, in bytes; the system may give less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// The reason why there is no relay.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// No port is free.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The system refused a socket or thread of the relay.
    #[error("cannot start the link emulator")]
    Refused(#[from] io::Error),
}

/// Traffic so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// Datagrams that were passed on.
    pub datagrams: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Datagrams that were lost on purpose: cut, loss, a full queue of a slow link.
    pub lost: u64,
    /// Datagrams that the relay itself had to drop: a full socket, too many waiting. Should be few.
    pub overrun: u64,
}

/// A running relay. Dropping it ends it.
pub struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The addresses of one node.
struct Place {
    node: NodeId,
    /// Address at which the node listens.
    listens: SocketAddr,
    /// Address that the node announces: the relay's own socket.
    announces: SocketAddr,
}

struct Shared {
    places: Vec<Place>,
    by_port: BTreeMap<u16, usize>,
    lanes: Mutex<Lanes>,
    /// Datagrams in flight.
    waiting: Mutex<Waiting>,
    /// Notified when a datagram is queued that is due earlier than all others.
    sooner: Notify,
    stop: Notify,
    begun: Instant,
    datagrams: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    overrun: AtomicU64,
}

impl Relay {
    /// Starts a relay for these nodes; `link` is the quality of all links; all randomness follows
    /// from `seed`.
    ///
    /// # Errors
    /// No port is free, or the system refuses a socket or a thread.
    pub fn start(nodes: &[NodeId], link: Link, seed: u64) -> Result<Self, RelayError> {
        let mut places = Vec::new();
        let mut sockets = Vec::new();
        let mut ports = ports::Ports::new();
        for node in nodes {
            let listens = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.free()?));
            let (socket, announces) = ports.bound()?;
            places.push(Place {
                node: *node,
                listens,
                announces,
            });
            sockets.push(socket);
        }
        let by_port = places
            .iter()
            .enumerate()
            .map(|(index, place)| (place.listens.port(), index))
            .collect();
        let shared = Arc::new(Shared {
            lanes: Mutex::new(Lanes::new(nodes, link, seed)),
            places,
            by_port,
            waiting: Mutex::new(Waiting::default()),
            sooner: Notify::new(),
            stop: Notify::new(),
            begun: Instant::now(),
            datagrams: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            overrun: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let run = shared.clone();
        let run = move || runtime.block_on(run.run(sockets));
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(run)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The address at which a node must listen, and the one that it must announce.
    #[must_use]
    pub fn addresses(&self, node: NodeId) -> Option<(SocketAddr, SocketAddr)> {
        self.shared
            .places
            .iter()
            .find(|place| place.node == node)
            .map(|place| (place.listens, place.announces))
    }

    /// Adds a layer to links.
    pub fn lay(&self, layer: Layer) {
        self.shared.lanes.lock().lay(layer);
    }

    /// Removes a layer.
    pub fn take_off(&self, number: usize) {
        self.shared.lanes.lock().take_off(number);
    }

    /// Removes all layers: links are as at the start.
    pub fn heal(&self) {
        self.shared.lanes.lock().heal();
    }

    /// Traffic so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let shared = &self.shared;
        Traffic {
            datagrams: read(&shared.datagrams),
            bytes: read(&shared.bytes),
            lost: read(&shared.lost),
            overrun: read(&shared.overrun),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Shared {
    async fn run(self: Arc<Self>, sockets: Vec<std::net::UdpSocket>) {
        let sockets: Result<Vec<UdpSocket>, io::Error> =
            sockets.into_iter().map(UdpSocket::from_std).collect();
        let Ok(sockets) = sockets.map(Arc::new) else {
            return;
        };
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..sockets.len() {
            tasks.spawn(self.clone().forward(at, sockets.clone()));
        }
        tasks.spawn(self.clone().deliver(sockets));
        // Dropping the tasks ends them.
        self.stop.notified().await;
    }

    /// Forwards datagrams that arrive at the socket of the node with this index.
    async fn forward(self: Arc<Self>, to: usize, sockets: Arc<Vec<UdpSocket>>) {
        let Some(socket) = sockets.get(to) else {
            return;
        };
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        while socket.readable().await.is_ok() {
            for _ in 0..BATCH {
                // An error belongs to an earlier datagram, or says that nothing is there.
                let Ok((length, source)) = socket.try_recv_from(&mut buffer) else {
                    break;
                };
                let from = self.by_port.get(&source.port());
                if source.ip().is_loopback()
                    && let (Some(from), Some(bytes)) = (from, buffer.get(..length))
                {
                    self.pass(*from, to, bytes, &sockets);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn pass(&self, from: usize, to: usize, bytes: &[u8], sockets: &[UdpSocket]) {
        let now = self.now_us();
        let arrivals = self.lanes.lock().pass((from, to), now, bytes.len());
        if arrivals == [None, None] {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        for at_us in arrivals.into_iter().flatten() {
            if at_us <= now {
                self.send(from, to, bytes, sockets);
            } else {
                match self.waiting.lock().push(at_us, (from, to), bytes) {
                    Ok(true) => self.sooner.notify_one(),
                    Ok(false) => {}
                    Err(waiting::Full) => _ = self.overrun.fetch_add(1, Ordering::Relaxed),
                }
            }
        }
    }

    /// Sends a datagram so that the receiver sees the sender at the address that the sender
    /// announces.
    fn send(&self, from: usize, to: usize, bytes: &[u8], sockets: &[UdpSocket]) {
        let (Some(socket), Some(place)) = (sockets.get(from), self.places.get(to)) else {
            return;
        };
        if socket.try_send_to(bytes, place.listens).is_ok() {
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.datagrams.fetch_add(1, Ordering::Release);
        } else {
            self.overrun.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends datagrams that had to wait.
    async fn deliver(self: Arc<Self>, sockets: Arc<Vec<UdpSocket>>) {
        loop {
            let now = self.now_us();
            loop {
                let due = self.waiting.lock().due(now);
                let Some(datagram) = due else { break };
                self.send(datagram.way.0, datagram.way.1, &datagram.bytes, &sockets);
            }
            let next = self.waiting.lock().next_us();
            match next {
                Some(at_us) => {
                    let until = self.begun + std::time::Duration::from_micros(at_us);
                    let wait = tokio::time::sleep_until(until.into());
                    tokio::select! { () = wait => {}, () = self.sooner.notified() => {} }
                }
                None => self.sooner.notified().await,
            }
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
