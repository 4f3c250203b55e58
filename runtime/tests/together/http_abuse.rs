//! Attacks on a node's HTTP endpoint, from this machine only and bounded: requests without end,
//! half-sent requests, pages of other sites.
#![cfg(target_os = "linux")] // where every address 127.x.x.x is this machine

use crate::http::ask;
use slowmo::internal::telemetry::{CONNECTIONS_MAX, PAGES_MAX, PAGES_PER_ADDRESS_MAX};
use slowmo::{BaseName, Config, Runtime, Worker};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

fn node() -> (Runtime, Worker, SocketAddr) {
    let config = Config {
        base: BaseName::None,
        http: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::default()
    };
    let runtime = Runtime::builder().config(config).spawn().unwrap();
    let worker = runtime.worker(0).unwrap();
    let address = runtime.http_address().unwrap();
    (runtime, worker, address)
}

/// A connection from the address 127.0.0.`last`.
fn from(last: u8, to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let own = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0);
    socket.bind(&own.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket
}

/// The status of one request from the address 127.0.0.`last`.
fn status(last: u8, to: SocketAddr, path: &str) -> u16 {
    let mut socket = from(last, to);
    write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn requests_without_end_put_off_only_their_sender_and_no_probe() {
    let (_runtime, _worker, address) = node();
    let refused = (0..300)
        .filter(|_| status(2, address, "/status") == 429)
        .count();
    assert!(refused > 0, "nothing limits the sender");
    assert_eq!(status(2, address, "/live"), 200);
    assert_ne!(status(2, address, "/ready"), 429);
    assert_eq!(status(1, address, "/status"), 200);
    (0..300).for_each(|_| assert_eq!(status(2, address, "/live"), 200));
}

#[test]
fn open_pages_of_one_address_leave_room_for_others() {
    let (_runtime, _worker, address) = node();
    let page = |number: usize| {
        let mut socket = from(2 + (number / PAGES_PER_ADDRESS_MAX) as u8, address);
        write!(socket, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut head = [0; 12];
        socket.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200", "page {number}");
        socket
    };
    let open: Vec<Socket> = (0..PAGES_MAX).map(page).collect();
    assert_eq!(status(2, address, "/stream"), 503);
    assert_eq!(status(1, address, "/stream"), 503);
    assert_eq!(status(2, address, "/status"), 200);
    drop(open);
}

#[test]
fn half_sent_requests_keep_nobody_out() {
    let (_runtime, _worker, address) = node();
    let half_sent: Vec<Socket> = (0..3 * CONNECTIONS_MAX)
        .map(|number| {
            // From one address, and from many.
            let last = if number < CONNECTIONS_MAX {
                2
            } else {
                3 + number as u8 % 100
            };
            let mut socket = from(last, address);
            socket.write_all(b"GET /live HTT").unwrap();
            socket
        })
        .collect();
    for last in [1, 2, 3] {
        let begun = Instant::now();
        assert_eq!(status(last, address, "/live"), 200);
        // Half-sent requests once took all places for 10 s.
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(5), "{waited:?}");
    }
    drop(half_sent);
}

#[test]
fn a_request_that_does_not_arrive_is_given_up_soon() {
    let (_runtime, _worker, address) = node();
    let mut socket = from(1, address);
    socket.write_all(b"GET /live HTT").unwrap();
    let begun = Instant::now();
    let _ended = socket.read(&mut [0; 100]);
    let waited = begun.elapsed();
    // 2 s, and longer on a busy machine; it was 10 s.
    assert!((1..8).contains(&waited.as_secs()), "{waited:?}");
}

#[test]
fn a_page_of_another_site_asks_nothing() {
    let (_runtime, _worker, address) = node();
    for site in ["Sec-Fetch-Site: cross-site", "Origin: http://evil.example"] {
        for path in ["GET /status", "POST /drain", "GET /live"] {
            assert_eq!(ask(address, &format!("{path} HTTP/1.1\r\n{site}")).0, 403);
        }
    }
    let link = "GET / HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate";
    assert_eq!(ask(address, link).0, 200);
}
