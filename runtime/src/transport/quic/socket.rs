//! The UDP socket and the QUIC endpoint on it.

use super::credential::Credential;
use super::gate::{Gate, GatedSocket, QUIC_VERSION};
use super::identity_error::IdentityError;
use super::ids::OwnIds;
use super::settings::{QuicSettings, Tuning};
use quinn::{Endpoint, EndpointConfig, Runtime, TokioRuntime};
use slowmo_protocol::ident::NodeId;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

/// Reason why a node cannot listen. Nothing was opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process already listens at the address.
    #[error(
        "{address} is taken by another process; stop it, or set another listen address (port 0 \
         takes a free one)"
    )]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address is not one of this machine.
    #[error(
        "{address} is not an address of this machine; set listen to one that is, or to 0.0.0.0 or \
         [::]"
    )]
    AddressNotHere {
        /// The address.
        address: SocketAddr,
    },
    /// The operating system refused for another reason.
    #[error("cannot listen on {address}: {error}")]
    Socket {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The certificate, its key or the CA cannot be used together.
    #[error("node {node} has no usable identity: {error}")]
    Identity {
        /// The id of this node.
        node: NodeId,
        /// The reason.
        error: IdentityError,
    },
}

/// An open endpoint.
pub(super) struct Opened {
    pub endpoint: Endpoint,
    pub credential: Credential,
    pub gate: Arc<Gate>,
    /// The address where it listens.
    pub address: SocketAddr,
}

/// Opens the endpoint behind its gate.
pub(super) fn open(settings: &QuicSettings) -> Result<Opened, BindError> {
    let (credential, server) = Credential::of(
        &settings.identity,
        settings.protocol_version,
        &settings.tuning,
    )
    .map_err(|error| BindError::Identity {
        node: settings.node,
        error,
    })?;
    let failed = |error: io::Error| bind_error(settings.listen, error);
    let socket = udp_socket(settings.listen, &settings.tuning).map_err(failed)?;
    let address = socket.local_addr().map_err(failed)?;
    let own = OwnIds::new();
    let gate = Gate::new(settings.identity.marks.clone(), own.clone());
    let runtime = Arc::new(TokioRuntime);
    let socket = runtime.wrap_udp_socket(socket).map_err(failed)?;
    let endpoint = Endpoint::new_with_abstract_socket(
        endpoint_config(&settings.tuning, own),
        Some(server),
        GatedSocket::new(socket, gate.clone()),
        runtime,
    )
    .map_err(failed)?;
    Ok(Opened {
        endpoint,
        credential,
        gate,
        address,
    })
}

fn endpoint_config(tuning: &Tuning, own: OwnIds) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config
        .cid_generator(move || Box::new(own.clone()))
        .supported_versions(vec![QUIC_VERSION]);
    // Only values below 1200 are refused, and `mtu_bytes` is never below 1200.
    let _ = config.max_udp_payload_size(tuning.mtu_bytes());
    config
}

fn udp_socket(address: SocketAddr, tuning: &Tuning) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    // The kernel grants at most net.core.rmem_max and wmem_max; smaller buffers only cost speed.
    let _ = socket.set_recv_buffer_size(tuning.socket_buffer_bytes);
    let _ = socket.set_send_buffer_size(tuning.socket_buffer_bytes);
    // Nobody waits for a link on loopback.
    if !address.ip().is_loopback() {
        warn_if_small(&socket, tuning.socket_buffer_bytes);
    }
    if address.is_ipv6() {
        // One socket serves both families where the system allows it; IPv6 alone works as well.
        let _ = socket.set_only_v6(false);
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Packets that come while the runtime is busy wait in the receive buffer, those of all peers
/// together. Beyond it they are lost, which on a fast link costs more than anything else.
fn warn_if_small(socket: &Socket, wanted: usize) {
    // Linux reports twice what it grants, for its own bookkeeping.
    let doubles = if cfg!(target_os = "linux") { 2 } else { 1 };
    let Ok(reported) = socket.recv_buffer_size() else {
        return;
    };
    let granted = reported / doubles;
    if granted < wanted {
        tracing::warn!(
            granted_kib = granted >> 10,
            wanted_kib = wanted >> 10,
            "the system grants a small receive buffer: packets are lost on links of about 1 Gbit/s \
             and more; on Linux set net.core.rmem_max (sysctl) to {wanted}"
        );
    }
}

fn bind_error(address: SocketAddr, error: io::Error) -> BindError {
    match error.kind() {
        io::ErrorKind::AddrInUse => BindError::AddressInUse { address },
        io::ErrorKind::AddrNotAvailable => BindError::AddressNotHere { address },
        _ => BindError::Socket { address, error },
    }
}
