//! The events of a simulated world, in the order of time.

use super::mail::{Mail, Part};
use super::network::{Packet, Process};
use std::net::SocketAddr;

/// One event.
#[derive(Debug)]
pub enum Event {
    /// A part of a process gets a message.
    Mail(Process, Mail),
    /// A part of a process may be due for a tick.
    Tick(Process, Part),
    /// A packet arrives on a connection.
    Packet {
        /// The sender.
        from: Process,
        /// The receiver.
        to: Process,
        /// Number of the connection.
        connection: u64,
        /// The packet.
        packet: Packet,
    },
    /// A datagram arrives.
    Datagram {
        /// The sender.
        from: Process,
        /// The receiver.
        to: Process,
        /// Bytes of the datagram.
        bytes: Vec<u8>,
    },
    /// A process dials an address once more, until it gives up at the given time.
    Dial(Process, SocketAddr, u64),
    /// A process looks for peers.
    Search(Process),
    /// A process checks whether its connections are alive.
    Look(Process),
    /// The other end has closed its connections.
    Closed {
        /// The process that hears of it.
        at: Process,
        /// The process that closed them.
        peer: Process,
        /// Whether the peer left on purpose.
        departed: bool,
        /// The closed connections: others may have replaced them.
        connections: [Option<u64>; 2],
    },
    /// A fault, by its index in the schedule.
    Fault(usize),
    /// The faults are over, but dead nodes stay dead.
    Still,
    /// The faults are over, in a run that ends with its training.
    Mended,
    /// Checks whether the live nodes continue without the dead.
    GoesOn,
    /// The faults are over.
    Quiet,
}
