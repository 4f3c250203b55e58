//! Floods a node on loopback with packets of strangers, bounded in number and time, and measures
//! what that does to four nodes that train.

mod siege;

pub use siege::{Siege, SiegeNode};

use crate::random::Random;
use slowmo::internal::transport::quic::initials::{Says, initial};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Most packets per second.
pub const PER_SECOND_MAX: u32 = 100_000;
/// Longest flood, in seconds.
pub const SECONDS_MAX: u64 = 300;
/// Most addresses from which a flood comes.
pub const SOURCES_MAX: u8 = 64;
/// Packets that are made before the flood begins, so that making them costs it nothing: 20 MB.
const PACKETS: u64 = 16_384;
/// Longest datagram of garbage, in bytes.
const GARBAGE_BYTES_MAX: u64 = 1400;
/// Time between two bursts.
const BURST_INTERVAL: Duration = Duration::from_millis(1);
/// A text that a stranger would like to have in a log.
const REASON: &[u8] = b"\x1b[2J\nERROR slowmo: the disk is full\r\n";
/// The TLS alert `unknown_ca` as a code of QUIC.
const UNKNOWN_CA: u16 = 0x130;

/// A flood.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// The node; on loopback.
    pub target: SocketAddr,
    /// Packets per second; at most [`PER_SECOND_MAX`].
    pub per_second: u32,
    /// How long; at most [`SECONDS_MAX`].
    pub seconds: u64,
    /// From how many addresses of loopback; one over IPv6.
    pub sources: u8,
}

/// Reason why there is no flood. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum FloodError {
    /// The address is another machine's.
    #[error("{0} is no address of loopback: a flood goes to nodes of this machine only")]
    NotLoopback(SocketAddr),
    /// A number is out of its bounds.
    #[error(
        "a flood has 1 to {PER_SECOND_MAX} packets per second, 1 to {SECONDS_MAX} seconds and 1 to \
         {SOURCES_MAX} sources"
    )]
    OutOfBounds,
    /// The system gave no socket.
    #[error("no socket for the flood")]
    Socket(#[from] std::io::Error),
}

/// The packets of a flood.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Packets that the system took.
    pub packets: u64,
    /// Packets that it did not take.
    pub refused: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Flood {
    /// Sends the flood, and returns when it is over or `ends` says so.
    ///
    /// # Errors
    /// The target is not on loopback, a number is out of its bounds, or there is no socket.
    pub fn run(&self, ends: impl Fn() -> bool) -> Result<Sent, FloodError> {
        if !self.target.ip().to_canonical().is_loopback() {
            return Err(FloodError::NotLoopback(self.target));
        }
        if !(1..=PER_SECOND_MAX).contains(&self.per_second)
            || !(1..=SECONDS_MAX).contains(&self.seconds)
            || !(1..=SOURCES_MAX).contains(&self.sources)
        {
            return Err(FloodError::OutOfBounds);
        }
        let sockets = self.sockets()?;
        let packets = packets();
        let mut sent = Sent::default();
        let begun = Instant::now();
        let all = u64::from(self.per_second) * self.seconds;
        let mut next = 0;
        while next < all && !ends() {
            let due = begun.elapsed().as_secs_f64() * f64::from(self.per_second);
            let due = (due as u64).min(all);
            for number in next..due {
                let packet = &packets[(number % PACKETS) as usize];
                let socket = &sockets[(number % sockets.len() as u64) as usize];
                match socket.send_to(packet, self.target) {
                    Ok(_) => sent.packets += 1,
                    Err(_) => sent.refused += 1,
                }
            }
            next = due;
            std::thread::sleep(BURST_INTERVAL);
        }
        sent.seconds = begun.elapsed().as_secs_f64();
        Ok(sent)
    }

    fn sockets(&self) -> Result<Vec<UdpSocket>, FloodError> {
        if self.target.is_ipv6() {
            return Ok(vec![UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?]);
        }
        let bind = |host| UdpSocket::bind((Ipv4Addr::new(127, 0, 0, host), 0));
        let sockets: Result<_, _> = (1..=self.sources).map(bind).collect();
        Ok(sockets?)
    }
}

/// Initials with a PING, mostly; some that close with a text; some random bytes.
fn packets() -> Vec<Vec<u8>> {
    let mut random = Random::new(1, 0xF100D);
    let mut bytes =
        |length: u64| -> Vec<u8> { (0..length).map(|_| random.below(256) as u8).collect() };
    (0..PACKETS)
        .map(|number| {
            let id = bytes(8 + number % 13);
            let says = match number % 8 {
                0 => Says::Close(UNKNOWN_CA, REASON),
                _ => Says::Ping,
            };
            match number % 10 {
                0 => bytes(1 + number % GARBAGE_BYTES_MAX),
                _ => initial(&id, &id[..8], says).unwrap_or_default(),
            }
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn flood(target: &str) -> Flood {
        Flood {
            target: target.parse().unwrap(),
            per_second: 1000,
            seconds: 1,
            sources: 3,
        }
    }

    #[test]
    fn other_machines_are_never_flooded() {
        for target in [
            "10.0.0.1:7000",
            "0.0.0.0:7000",
            "[2001:db8::1]:7000",
            "[::ffff:10.0.0.1]:1",
        ] {
            let refused = flood(target).run(|| false);
            assert!(
                matches!(refused, Err(FloodError::NotLoopback(_))),
                "{target}"
            );
        }
        let mut endless = flood("127.0.0.1:9");
        endless.seconds = SECONDS_MAX + 1;
        assert!(matches!(
            endless.run(|| false),
            Err(FloodError::OutOfBounds)
        ));
    }

    #[test]
    fn a_flood_arrives_from_its_sources_at_its_rate() {
        let target = UdpSocket::bind("127.0.0.1:0").unwrap();
        target
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut flood = flood("127.0.0.1:9");
        flood.target = target.local_addr().unwrap();
        flood.per_second = 200;
        let sending = std::thread::spawn(move || flood.run(|| false).unwrap());
        let mut sources = std::collections::BTreeSet::new();
        let mut buffer = [0; 2048];
        for _ in 0..50 {
            let (_, source) = target.recv_from(&mut buffer).unwrap();
            sources.insert(source.ip());
        }
        let sent = sending.join().unwrap();
        assert_eq!((sources.len(), sent.packets, sent.refused), (3, 200, 0));
    }
}
