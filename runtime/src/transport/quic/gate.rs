//! The gate before QUIC: which datagrams a node looks at while strangers flood it.
//!
//! The first packet of a connection costs a server the derivation of keys and, if it answers, a
//! packet; everybody who knows its address can send as many as the network carries. The gate stands
//! between the socket and quinn, and sorts first packets by what their destination id proves, at
//! the cost of one hash:
//!
//! | packet | passes |
//! |---|---|
//! | of a connection that exists, or an answer to this node | always; Initials up to [`ANSWERS`] |
//! | first one, with a mark of the cluster | up to [`MARKED`] |
//! | first one, from an address where a peer was authenticated lately | up to [`KNOWN_ADDRESS`] |
//! | any other first one | up to [`STRANGERS`], and [`STRANGERS_OF_ONE_PREFIX`] |
//!
//! A packet that does not pass is dropped without an answer; QUIC sends it again.

use super::ids::{MarkKey, OwnIds};
use super::rate::{Bucket, ByPrefix, Prefix, Rate};
use parking_lot::{Mutex, RwLock};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use slowmo_protocol::view::MEMBERS_MAX;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

/// Initials of strangers that reach quinn: each costs it about 20 µs.
const STRANGERS: Rate = Rate {
    per_second: 1000,
    burst: 512,
};
/// Initials of the strangers of one prefix: two nodes for each core of a large machine, at once.
const STRANGERS_OF_ONE_PREFIX: Rate = Rate {
    per_second: 250,
    burst: 256,
};
/// First packets with a mark: the nodes of a large cluster dial a node within seconds. Bounded,
/// because whoever watches the network can repeat them.
const MARKED: Rate = Rate {
    per_second: 2000,
    burst: 1024,
};
/// First packets from one address of a known peer: two connections, each tried some times.
const KNOWN_ADDRESS: Rate = Rate {
    per_second: 20,
    burst: 20,
};
/// Initials to an id of this endpoint. Bounded, because an id is readable on the network.
const ANSWERS: Rate = Rate {
    per_second: 8000,
    burst: 4096,
};
/// Most addresses of known peers that are kept: each member's, and that of its predecessor.
const KNOWN_MAX: usize = 2 * MEMBERS_MAX;
/// Least length of a datagram that begins a connection, in bytes (RFC 9000, section 14.1).
const FIRST_DATAGRAM_BYTES_MIN: usize = 1200;
/// The only version of QUIC that nodes speak.
pub(super) const QUIC_VERSION: u32 = 1;

/// Sorts datagrams; shared by the socket and those who accept connections.
#[derive(Debug)]
pub(super) struct Gate {
    /// Secrets of the cluster, replaced when its credential changes.
    marks: RwLock<Vec<MarkKey>>,
    own: OwnIds,
    state: Mutex<State>,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct State {
    strangers: Bucket,
    prefixes: ByPrefix,
    marked: Bucket,
    answers: Bucket,
    known: Known,
}

/// Addresses from which peers were authenticated, the oldest first.
#[derive(Debug, Default)]
struct Known {
    buckets: HashMap<SocketAddr, Bucket>,
    order: VecDeque<SocketAddr>,
}

/// The part of a datagram that the gate reads.
#[derive(Debug, PartialEq, Eq)]
enum Packet<'a> {
    /// Of a connection whose handshake is over.
    Short,
    /// An Initial of the version that is spoken, to this id.
    Initial(&'a [u8]),
    /// Any other packet with a long header, to this id.
    Long(&'a [u8]),
    /// No packet of QUIC.
    Garbage,
}

impl Gate {
    /// A gate for an endpoint that makes its ids with `own`. Marks with any of the keys count.
    pub(super) fn new(marks: Vec<MarkKey>, own: OwnIds) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            marks: RwLock::new(marks),
            own,
            state: Mutex::new(State {
                strangers: Bucket::full(STRANGERS, now),
                prefixes: ByPrefix::new(STRANGERS_OF_ONE_PREFIX, now),
                marked: Bucket::full(MARKED, now),
                answers: Bucket::full(ANSWERS, now),
                known: Known::default(),
            }),
            dropped: AtomicU64::new(0),
        })
    }

    /// Marks with any of these keys count from now on.
    pub(super) fn accept_marks(&self, marks: Vec<MarkKey>) {
        *self.marks.write() = marks;
    }

    /// Whether a connection's first destination id was made with a key of the cluster.
    pub(super) fn is_marked(&self, id: &[u8]) -> bool {
        self.marks.read().iter().any(|key| key.made(id))
    }

    /// Whether a peer was authenticated at this address lately.
    pub(super) fn is_known(&self, address: SocketAddr) -> bool {
        self.state.lock().known.buckets.contains_key(&address)
    }

    /// Records that a peer at this address was authenticated.
    pub(super) fn authenticated(&self, address: SocketAddr) {
        self.state.lock().known.add(address, Instant::now());
    }

    /// Datagrams that were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn passes(&self, now: Instant, remote: SocketAddr, datagram: &[u8]) -> bool {
        match Packet::read(datagram) {
            Packet::Short => true,
            Packet::Garbage => false,
            // Nothing but an Initial begins a connection.
            Packet::Long(id) => self.own.made(id),
            Packet::Initial(id) if self.own.made(id) => {
                self.state.lock().answers.take(ANSWERS, now)
            }
            Packet::Initial(_) if datagram.len() < FIRST_DATAGRAM_BYTES_MIN => false,
            Packet::Initial(id) => {
                let is_marked = self.is_marked(id);
                let mut state = self.state.lock();
                (is_marked && state.marked.take(MARKED, now))
                    || state.known.take(remote, now)
                    || state.take_as_stranger(remote, now)
            }
        }
    }

    /// Removes the datagrams that do not pass from a buffer of datagrams of `stride` bytes each
    /// (the last may be shorter). Returns how many bytes are left.
    fn filter(&self, now: Instant, remote: SocketAddr, stride: usize, buffer: &mut [u8]) -> usize {
        let mut kept = 0;
        let mut at = 0;
        let mut dropped = 0;
        while at < buffer.len() {
            let end = buffer.len().min(at.saturating_add(stride.max(1)));
            if self.passes(now, remote, &buffer[at..end]) {
                if kept != at {
                    buffer.copy_within(at..end, kept);
                }
                kept += end - at;
            } else {
                dropped += 1;
            }
            at = end;
        }
        if dropped > 0 {
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        kept
    }
}

impl State {
    fn take_as_stranger(&mut self, remote: SocketAddr, now: Instant) -> bool {
        // The prefix is asked first, so that what it is refused takes nothing from the others.
        self.prefixes.take(Prefix::of(remote), now) && self.strangers.take(STRANGERS, now)
    }
}

impl Known {
    fn add(&mut self, address: SocketAddr, now: Instant) {
        if self.buckets.contains_key(&address) {
            return;
        }
        if self.order.len() >= KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.buckets.remove(&oldest);
        }
        self.order.push_back(address);
        self.buckets
            .insert(address, Bucket::full(KNOWN_ADDRESS, now));
    }

    fn take(&mut self, address: SocketAddr, now: Instant) -> bool {
        self.buckets
            .get_mut(&address)
            .is_some_and(|bucket| bucket.take(KNOWN_ADDRESS, now))
    }
}

impl<'a> Packet<'a> {
    /// Reads the part of a header that no version of QUIC changes (RFC 8999), and the type of a
    /// packet of version 1.
    fn read(datagram: &'a [u8]) -> Self {
        let Some(first) = datagram.first() else {
            return Self::Garbage;
        };
        if first & 0x80 == 0 {
            // A port probe is one byte.
            return if datagram.len() > 1 {
                Self::Short
            } else {
                Self::Garbage
            };
        }
        let Some((version, rest)) = datagram[1..].split_first_chunk::<4>() else {
            return Self::Garbage;
        };
        let Some(id) = rest
            .split_first()
            .and_then(|(length, rest)| rest.get(..usize::from(*length)))
        else {
            return Self::Garbage;
        };
        if u32::from_be_bytes(*version) == QUIC_VERSION && first & 0x30 == 0 {
            Self::Initial(id)
        } else {
            Self::Long(id)
        }
    }
}

/// A UDP socket behind the gate.
#[derive(Debug)]
pub(super) struct GatedSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    gate: Arc<Gate>,
}

impl GatedSocket {
    pub(super) fn new(socket: Arc<dyn AsyncUdpSocket>, gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self { socket, gate })
    }
}

impl AsyncUdpSocket for GatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = std::task::ready!(self.socket.poll_recv(cx, buffers, metas))?;
        let now = Instant::now();
        for (buffer, meta) in buffers.iter_mut().zip(metas).take(received) {
            // A message that lost all its datagrams stays as an empty one, which quinn skips.
            let length = meta.len.min(buffer.len());
            meta.len = self
                .gate
                .filter(now, meta.addr, meta.stride, &mut buffer[..length]);
        }
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use quinn::ConnectionIdGenerator;
    use std::time::Duration;

    fn long(first: u8, version: u32, id: &[u8], length: usize) -> Vec<u8> {
        let mut datagram = vec![first];
        datagram.extend_from_slice(&version.to_be_bytes());
        datagram.push(id.len() as u8);
        datagram.extend_from_slice(id);
        datagram.resize(length.max(datagram.len()), 0);
        datagram
    }

    fn first_packet(id: &[u8]) -> Vec<u8> {
        long(0xc3, QUIC_VERSION, id, FIRST_DATAGRAM_BYTES_MIN)
    }

    fn gate() -> (Arc<Gate>, MarkKey, OwnIds) {
        let key = MarkKey::new(&[1; 32]);
        let own = OwnIds::new();
        (Gate::new(vec![key.clone()], own.clone()), key, own)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn headers_are_read_and_garbage_is_not() {
        assert_eq!(
            Packet::read(&first_packet(b"12345678")),
            Packet::Initial(b"12345678")
        );
        assert_eq!(
            Packet::read(&long(0xe3, 1, b"1234", 20)),
            Packet::Long(b"1234")
        );
        assert_eq!(
            Packet::read(&long(0xc3, 2, b"1234", 1200)),
            Packet::Long(b"1234")
        );
        assert_eq!(Packet::read(&[0x40, 1, 2]), Packet::Short);
        for length in 0..6 {
            let cut = &first_packet(b"12345678")[..length];
            assert_eq!(Packet::read(cut), Packet::Garbage);
        }
        assert_eq!(Packet::read(&[0]), Packet::Garbage);
        assert_eq!(
            Packet::read(&[0xc3, 0, 0, 0, 1, 200, 1, 2]),
            Packet::Garbage
        );
    }

    #[test]
    fn a_flood_of_strangers_leaves_room_for_members() {
        let (gate, key, mut own) = gate();
        let now = Instant::now();
        let flood = address("127.0.0.1:9");
        let passed = (0..20_000u32)
            .filter(|number| {
                let mut id = [0; 8];
                id[..4].copy_from_slice(&number.to_le_bytes());
                gate.passes(now, flood, &first_packet(&id))
            })
            .count();
        assert!(
            passed <= STRANGERS_OF_ONE_PREFIX.burst as usize + 1,
            "{passed}"
        );
        assert!(gate.passes(now, flood, &first_packet(&key.marked_id())));
        assert!(gate.passes(now, flood, &first_packet(&own.generate_cid())));
        assert!(gate.passes(now, flood, &[0x40; 40]));
        assert!(gate.passes(now, address("10.0.0.1:9"), &first_packet(b"12345678")));
        assert!(!gate.passes(now, flood, &first_packet(b"12345678")));
        gate.authenticated(flood);
        assert!(gate.passes(now, flood, &first_packet(b"12345678")));
        assert!(gate.is_known(flood) && !gate.is_known(address("127.0.0.1:10")));
    }

    #[test]
    fn marks_count_with_each_key_that_is_accepted_now() {
        let (gate, older, _) = gate();
        let newer = MarkKey::new(&[2; 32]);
        let marks = |key: &MarkKey| gate.is_marked(&key.marked_id());
        assert!(marks(&older) && !marks(&newer));
        gate.accept_marks(vec![newer.clone(), older.clone()]);
        assert!(marks(&older) && marks(&newer));
        gate.accept_marks(vec![newer.clone()]);
        assert!(!marks(&older) && marks(&newer));
    }

    #[test]
    fn repeated_marks_and_spoofed_members_are_bounded_too() {
        let (gate, key, _) = gate();
        let now = Instant::now();
        let marked = first_packet(&key.marked_id());
        let member = address("10.0.0.1:9");
        gate.authenticated(member);
        let passed = (0..20_000)
            .filter(|_| gate.passes(now, member, &marked))
            .count();
        let allowed = MARKED.burst + KNOWN_ADDRESS.burst + STRANGERS_OF_ONE_PREFIX.burst;
        assert_eq!(passed, allowed as usize);
        assert!(gate.passes(now + Duration::from_secs(1), member, &marked));
    }

    #[test]
    fn what_begins_no_connection_does_not_pass() {
        let (gate, key, mut own) = gate();
        let now = Instant::now();
        let remote = address("127.0.0.1:9");
        let short_first = long(0xc3, QUIC_VERSION, &key.marked_id(), 1199);
        assert!(!gate.passes(now, remote, &short_first));
        assert!(!gate.passes(now, remote, &long(0xe3, QUIC_VERSION, b"12345678", 1200)));
        assert!(gate.passes(
            now,
            remote,
            &long(0xe3, QUIC_VERSION, &own.generate_cid(), 50)
        ));
        assert!(!gate.passes(now, remote, &long(0xc3, 0x0a0a_0a0a, b"12345678", 1200)));
    }

    #[test]
    fn datagrams_of_one_message_are_sorted_one_by_one() {
        let (gate, _, _) = gate();
        let mut buffer = [[0x40, 1, 2], [0xc3, 1, 2], [0x41, 3, 4]].concat();
        buffer.extend_from_slice(&[0x42, 5]);
        let left = gate.filter(Instant::now(), address("127.0.0.1:9"), 3, &mut buffer);
        assert_eq!(buffer[..left], [0x40, 1, 2, 0x41, 3, 4, 0x42, 5]);
        assert_eq!(gate.dropped(), 1);
    }

    #[test]
    fn addresses_of_former_peers_are_forgotten_in_their_order() {
        let now = Instant::now();
        let mut known = Known::default();
        for port in 0..=KNOWN_MAX as u16 {
            known.add(SocketAddr::from(([10, 0, 0, 1], port)), now);
        }
        assert_eq!(known.buckets.len(), KNOWN_MAX);
        assert!(!known.take(address("10.0.0.1:0"), now));
        assert!(known.take(address("10.0.0.1:1"), now));
    }
}
