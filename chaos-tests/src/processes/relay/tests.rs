//! Packets between sockets on loopback are delayed, lost and doubled as their link says.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::processes::schedule::Way;
use std::time::Duration;

/// Every packet that should come comes well before this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two sockets in the places of nodes 1 and 2.
struct Pair {
    relay: Relay,
    one: std::net::UdpSocket,
    two: std::net::UdpSocket,
}

impl Pair {
    fn new(link: Link) -> Self {
        let relay = Relay::start(&[NodeId(1), NodeId(2)], link, 1).unwrap();
        let bind = |node| {
            let socket =
                std::net::UdpSocket::bind(relay.addresses(NodeId(node)).unwrap().0).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let one = bind(1);
        let two = bind(2);
        Self { relay, one, two }
    }

    fn announced(&self, node: u64) -> SocketAddr {
        self.relay.addresses(NodeId(node)).unwrap().1
    }
}

fn received(socket: &std::net::UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2000];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (buffer[..length].to_vec(), from)
}

fn way(from: u64, to: u64) -> Way {
    Way {
        from: vec![NodeId(from)],
        to: vec![NodeId(to)],
    }
}

#[test]
fn each_node_sees_the_other_at_its_announced_address_and_strangers_are_not_heard() {
    let pair = Pair::new(Link::default());
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"psst", pair.announced(2)).unwrap();
    pair.one.send_to(b"hello", pair.announced(2)).unwrap();
    assert_eq!(received(&pair.two), (b"hello".to_vec(), pair.announced(1)));
    pair.two.send_to(b"and back", pair.announced(1)).unwrap();
    assert_eq!(
        received(&pair.one),
        (b"and back".to_vec(), pair.announced(2))
    );
    // A datagram is counted when it has been sent, so perhaps after it was received.
    while pair.relay.traffic().datagrams < 2 {
        std::thread::yield_now();
    }
    assert_eq!(
        pair.relay.traffic(),
        Traffic {
            datagrams: 2,
            bytes: 13,
            lost: 0,
            overrun: 0
        }
    );
}

#[test]
fn a_way_can_be_cut_while_the_other_is_not_and_layers_come_off_one_by_one() {
    let pair = Pair::new(Link::default());
    let cut = Link {
        cut: true,
        ..Link::default()
    };
    for number in [0, 1] {
        pair.relay.lay(Layer {
            number,
            ways: vec![way(1, 2)],
            link: cut,
        });
    }
    pair.relay.take_off(0);
    pair.one.send_to(b"lost", pair.announced(2)).unwrap();
    pair.two.send_to(b"heard", pair.announced(1)).unwrap();
    assert_eq!(received(&pair.one).0, b"heard");
    // Lost before the way is well again.
    while pair.relay.traffic().lost == 0 {
        std::thread::yield_now();
    }
    pair.relay.take_off(1);
    pair.one.send_to(b"again", pair.announced(2)).unwrap();
    assert_eq!(received(&pair.two).0, b"again");
}

#[test]
fn a_delayed_datagram_arrives_not_before_its_time() {
    let pair = Pair::new(Link {
        delay_us: 50_000,
        ..Link::default()
    });
    let begun = Instant::now();
    pair.one.send_to(b"late", pair.announced(2)).unwrap();
    assert_eq!(received(&pair.two).0, b"late");
    assert!(
        begun.elapsed() >= Duration::from_millis(50),
        "{:?}",
        begun.elapsed()
    );
}

/// `cargo test --release -p slowmo-chaos --lib relay -- --ignored --nocapture`
#[test]
#[ignore = "a measurement of six seconds, for a quiet machine: it judges nothing"]
fn how_much_passes() {
    for (bytes, link) in [
        (1200, Link::default()),
        (6400, Link::default()),
        (
            6400,
            Link {
                delay_us: 1_000,
                ..Link::default()
            },
        ),
    ] {
        let pair = Pair::new(link);
        let to = pair.announced(2);
        let one = pair.one.try_clone().unwrap();
        let two = pair.two.try_clone().unwrap();
        two.set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 65_535];
            let mut got = 0;
            while let Ok(length) = two.recv(&mut buffer) {
                got += length;
            }
            got
        });
        let begun = Instant::now();
        let payload = vec![0; bytes];
        while begun.elapsed() < Duration::from_secs(2) {
            one.send_to(&payload, to).unwrap();
        }
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{bytes} bytes, {} us: {:.0} MB/s arrive",
            link.delay_us,
            reader.join().unwrap() as f64 / seconds / 1e6
        );
    }
}
