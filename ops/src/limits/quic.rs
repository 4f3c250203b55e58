//! Plain quinn between processes: one connection per pair, one stream per direction, the
//! transport's tuning, nothing else.

use super::{CHUNK_BYTES, REPETITIONS, RawNodeError, Transfer, certificate, meeting};
use bytes::Bytes;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, MtuDiscoveryConfig,
    RecvStream, SendStream, ServerConfig, TransportConfig, VarInt,
};
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest UDP payload tried. Ten packets of this size must fit one segmented datagram, or quinn
/// stalls.
const MTU_BYTES_MAX: u16 = 6400;
/// Flow-control window of one connection: bytes in flight.
const WINDOW_BYTES: u32 = 64 << 20;
/// Bytes in flight allowed before the first measurement of the path.
const INITIAL_WINDOW_BYTES: u64 = 256 << 10;
/// Round-trip time assumed before the first measurement of the path.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(20);
/// Socket buffer size in each direction.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Idle timeout of a connection.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Returns one process's times, in seconds, without the warm-up.
pub(super) fn run(
    transfer: &Transfer,
    node: usize,
    folder: &Path,
) -> Result<Vec<f64>, RawNodeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|source| RawNodeError::Io {
            doing: "starting threads",
            source,
        })?
        .block_on(run_async(transfer, node, folder))
}

async fn run_async(
    transfer: &Transfer,
    node: usize,
    folder: &Path,
) -> Result<Vec<f64>, RawNodeError> {
    let endpoint = bind(folder, node)?;
    let address = endpoint.local_addr().map_err(|source| RawNodeError::Io {
        doing: "binding",
        source,
    })?;
    meeting::publish(folder, node, address)?;
    let connections = connect_all(&endpoint, transfer.nodes, node, folder).await?;
    let mut seconds = Vec::with_capacity(REPETITIONS + 1);
    for _ in 0..=REPETITIONS {
        exchange(&connections, 1, true, true).await?; // all are ready
        let start = Instant::now();
        let sends = transfer.all_to_all || node == 1;
        let receives = transfer.all_to_all || node != 1;
        exchange(&connections, transfer.bytes_per_peer, sends, receives).await?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    exchange(&connections, 1, true, true).await?; // nobody leaves before all are done
    endpoint.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    seconds.remove(0);
    Ok(seconds)
}

/// Dials the peers with lower ids and accepts those with higher ids.
async fn connect_all(
    endpoint: &Endpoint,
    nodes: usize,
    node: usize,
    folder: &Path,
) -> Result<Vec<Connection>, RawNodeError> {
    let mut connections = Vec::with_capacity(nodes - 1);
    for lower in 1..node {
        let connecting = endpoint
            .connect(meeting::wait_for(folder, lower)?, certificate::NAME)
            .map_err(quic)?;
        connections.push(connecting.await.map_err(quic)?);
    }
    for _ in node..nodes {
        let missing = RawNodeError::Missing {
            found: connections.len(),
            expected: nodes - 1,
        };
        let Ok(Some(incoming)) = tokio::time::timeout(IDLE_MAX, endpoint.accept()).await else {
            return Err(missing);
        };
        connections.push(incoming.await.map_err(quic)?);
    }
    Ok(connections)
}

/// Sends `bytes` to every peer if `sends`, and receives as many from each if `receives`; ends when
/// all has arrived on both sides.
async fn exchange(
    connections: &[Connection],
    bytes: u64,
    sends: bool,
    receives: bool,
) -> Result<(), RawNodeError> {
    let mut tasks = tokio::task::JoinSet::new();
    for connection in connections {
        if sends {
            let connection = connection.clone();
            tasks.spawn(
                async move { send(connection.open_uni().await.map_err(quic)?, bytes).await },
            );
        }
        if receives {
            let connection = connection.clone();
            tasks.spawn(async move {
                receive(connection.accept_uni().await.map_err(quic)?, bytes).await
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(quic)??;
    }
    Ok(())
}

async fn send(mut stream: SendStream, bytes: u64) -> Result<(), RawNodeError> {
    let chunk = Bytes::from(vec![7u8; CHUNK_BYTES]);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK_BYTES as u64);
        stream
            .write_chunk(chunk.slice(..now as usize))
            .await
            .map_err(quic)?;
        left -= now;
    }
    stream.finish().map_err(quic)?;
    stream.stopped().await.map(drop).map_err(quic)
}

async fn receive(mut stream: RecvStream, bytes: u64) -> Result<(), RawNodeError> {
    let mut found = 0u64;
    while let Some(chunk) = stream.read_chunk(CHUNK_BYTES, true).await.map_err(quic)? {
        found += chunk.bytes.len() as u64;
    }
    if found == bytes {
        Ok(())
    } else {
        Err(RawNodeError::Length {
            found,
            expected: bytes,
        })
    }
}

fn bind(folder: &Path, node: usize) -> Result<Endpoint, RawNodeError> {
    let io = |source| RawNodeError::Io {
        doing: "binding a UDP socket",
        source,
    };
    let (certificate, key) = certificate::shared(folder, node)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls13 = &[&rustls::version::TLS13];
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(tls13)
        .map_err(quic)?;
    let server = server
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .map_err(quic)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).map_err(quic)?;
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(tls13)
        .map_err(quic)?;
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let tuning = Arc::new(tuning()?);
    let mut server =
        ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server).map_err(quic)?));
    server.transport_config(tuning.clone());
    let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).map_err(quic)?));
    client.transport_config(tuning);
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(MTU_BYTES_MAX).map_err(quic)?;
    let mut endpoint = Endpoint::new(
        config,
        Some(server),
        socket().map_err(io)?,
        Arc::new(quinn::TokioRuntime),
    )
    .map_err(io)?;
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}

/// The runtime's own tuning, except that the windows never fill.
fn tuning() -> Result<TransportConfig, RawNodeError> {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(MTU_BYTES_MAX);
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements
        .ack_eliciting_threshold(VarInt::from_u32(10))
        .max_ack_delay(Some(Duration::from_millis(5)));
    let mut cubic = CubicConfig::default();
    cubic.initial_window(INITIAL_WINDOW_BYTES);
    let mut tuning = TransportConfig::default();
    tuning
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acknowledgements));
    tuning
        .congestion_controller_factory(Arc::new(cubic))
        .initial_rtt(INITIAL_ROUND_TRIP);
    tuning
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES));
    tuning
        .send_window(u64::from(WINDOW_BYTES))
        .max_idle_timeout(Some(IDLE_MAX.try_into().map_err(quic)?));
    Ok(tuning)
}

fn socket() -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    Ok(socket.into())
}

fn quic(error: impl std::fmt::Display) -> RawNodeError {
    RawNodeError::Quic(error.to_string())
}
