//! Free loopback ports below those that the system assigns by itself, so that no other process
//! takes a node's port while the node is dead.

use super::SOCKET_BUFFER_BYTES;
use socket2::{Domain, Protocol, Socket, Type};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

/// First of the ports that are tried; systems assign those from 32,768 or higher.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// No port is free.
#[derive(Debug, thiserror::Error)]
#[error("no free loopback UDP port from {FIRST} to {}", FIRST + COUNT - 1)]
pub struct PortError;

/// Tries each port once, beginning at one that differs from run to run.
pub(super) struct Ports {
    next: u16,
    tried: u16,
}

impl Ports {
    pub(super) fn new() -> Self {
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(COUNT);
        Self {
            next: start as u16,
            tried: 0,
        }
    }

    /// A port at which nobody listened a moment ago.
    pub(super) fn free(&mut self) -> Result<u16, PortError> {
        self.find(|address| UdpSocket::bind(address).ok())
            .map(|(_, address)| address.port())
    }

    /// A socket with room for bursts.
    pub(super) fn bound(&mut self) -> Result<(UdpSocket, SocketAddr), PortError> {
        self.find(|address| bind(address).ok())
    }

    fn find(
        &mut self,
        bind: impl Fn(SocketAddr) -> Option<UdpSocket>,
    ) -> Result<(UdpSocket, SocketAddr), PortError> {
        while self.tried < COUNT {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + self.next));
            self.next = (self.next + 1) % COUNT;
            self.tried += 1;
            if let Some(socket) = bind(address) {
                return Ok((socket, address));
            }
        }
        Err(PortError)
    }
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // The system may give less.
    let _less = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _less = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}
