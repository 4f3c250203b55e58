//! What happens in a simulated world, in the order of time.

use super::mail::{Mail, Part};
use super::network::{Packet, Process};
use std::net::SocketAddr;

/// One thing that happens.
#[derive(Debug)]
pub enum Event {
    /// A part of a process gets a message.
    Mail(Process, Mail),
    /// A part of a process may be due for a tick.
    Tick(Process, Part),
    /// Something arrives on a connection.
    Packet {
        /// From whom.
        from: Process,
        /// To whom.
        to: Process,
        /// On which connection.
        connection: u64,
        /// What.
        packet: Packet,
    },
    /// A datagram arrives.
    Datagram {
        /// From whom.
        from: Process,
        /// To whom.
        to: Process,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A process dials an address once more, until it gives up.
    Dial(Process, SocketAddr, u64),
    /// A process looks for peers.
    Search(Process),
    /// A process looks whether its connections live.
    Look(Process),
    /// The other end has closed its connections.
    Closed {
        /// Who hears of it.
        at: Process,
        /// Who closed them.
        peer: Process,
        /// It left on purpose.
        departed: bool,
        /// Which connections: others may have taken their place.
        connections: [Option<u64>; 2],
    },
    /// A fault, by its place in the schedule.
    Fault(usize),
    /// From now on nothing goes wrong, but who died stays dead.
    Still,
    /// By now those who live must have gone on without the dead.
    GoesOn,
    /// From now on nothing goes wrong.
    Quiet,
}
