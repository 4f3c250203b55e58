//! Port probe: tests whether a process listens at a peer's address. The host of a process that is
//! gone refuses datagrams immediately.
//!
//! One byte, which is not a valid QUIC packet, is sent from a separate socket that is connected to
//! the address, so that the kernel reports the refusal on that socket. A node that listens ignores
//! the byte.

use super::Node;
use parking_lot::Mutex;
use slowmo_actors::ports::transport::TransportEvent;
use slowmo_protocol::ident::NodeId;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Largest number of probe sockets at once; a probe that would need another one is skipped.
const DOORS_MAX: usize = 64;
/// Time for which a socket is kept after its last probe.
const DOOR_KEPT: Duration = Duration::from_secs(2);

/// The probe sockets of one transport, one per recently probed peer.
#[derive(Default)]
pub(super) struct Doors {
    open: Mutex<BTreeMap<NodeId, Door>>,
}

struct Door {
    address: SocketAddr,
    port_probe: Arc<Notify>,
}

/// Sends one port probe; a refusal is reported as [`TransportEvent::PortRefused`].
pub(super) fn port_probe(node: &Arc<Node>, peer: NodeId, address: SocketAddr) {
    let mut open = node.doors.open.lock();
    if let Some(door) = open.get(&peer).filter(|door| door.address == address) {
        return door.port_probe.notify_one();
    }
    if open.len() >= DOORS_MAX && !open.contains_key(&peer) {
        return;
    }
    let port_probe = Arc::new(Notify::new());
    port_probe.notify_one();
    open.insert(
        peer,
        Door {
            address,
            port_probe: port_probe.clone(),
        },
    );
    let node = node.clone();
    node.runtime.clone().spawn(async move {
        // An error to connect, or a node that stops, ends probing and is not reported: it says
        // nothing about the peer.
        let _ = node
            .until_stopped(stand(&node, peer, address, &port_probe))
            .await;
        let mut open = node.doors.open.lock();
        if open
            .get(&peer)
            .is_some_and(|door| Arc::ptr_eq(&door.port_probe, &port_probe))
        {
            open.remove(&peer);
        }
    });
}

async fn stand(
    node: &Arc<Node>,
    peer: NodeId,
    address: SocketAddr,
    port_probe: &Notify,
) -> io::Result<()> {
    let any = if address.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(address).await?;
    let mut ignored = [0; 1];
    loop {
        let outcome = tokio::select! {
            biased;
            received = socket.recv(&mut ignored) => received,
            () = port_probe.notified() => socket.send(&[0]).await,
            () = sleep(DOOR_KEPT) => return Ok(()),
        };
        if outcome.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            refused(node, peer, address);
        }
    }
}

fn refused(node: &Arc<Node>, peer: NodeId, address: SocketAddr) {
    node.sessions.refused_at(peer, address);
    // If the event queue is full, the event is lost; the next port probe reports it again.
    let _ = node
        .events
        .try_send(TransportEvent::PortRefused { node: peer });
}
