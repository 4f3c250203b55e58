//! Plain quinn between processes: one connection per pair, [`STREAMS`] streams per direction, the
//! transport's tuning, nothing else.

use super::rendezvous::{Place, publish, wait_for};
use super::work::{Buffers, Shared, VALUE_BYTES};
use super::{CHUNK_BYTES, Me, REPETITIONS, Transfer};
use anyhow::{Context, ensure};
use bytes::Bytes;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    AckFrequencyConfig, ClientConfig, Connection, Endpoint, EndpointConfig, MtuDiscoveryConfig,
    RecvStream, SendStream, ServerConfig, TransportConfig, VarInt,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivatePkcs8KeyDer;
use socket2::{Domain, Socket, Type};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest UDP payload tried. Ten packets of this size must fit one segmented datagram, or quinn
/// stalls.
const MTU_BYTES_MAX: u16 = 6400;
/// Flow-control window of one connection: bytes in flight.
const WINDOW_BYTES: u32 = 64 << 20;
/// Streams over which the bytes to a peer are spread: so many that none has more gaps than quinn
/// allows when a queue on the path overflows.
const STREAMS: usize = 32;
/// Bytes in flight allowed before the first measurement of the path.
const INITIAL_WINDOW_BYTES: u64 = 256 << 10;
/// Round-trip time assumed before the first measurement of the path.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(20);
/// Socket buffer size in each direction.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// The name in each certificate.
const NAME: &str = "raw";
/// Idle timeout of a connection.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Returns one process's times, in seconds, without the warm-up.
pub(super) fn run(transfer: &Transfer, me: &Me) -> anyhow::Result<Vec<f64>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime
        .context("starting threads")?
        .block_on(run_async(transfer, me))
}

async fn run_async(transfer: &Transfer, me: &Me) -> anyhow::Result<Vec<f64>> {
    let (endpoint, certificate) = bind(me.listen)?;
    let place = Place {
        address: endpoint.local_addr()?,
        certificate,
    };
    publish(&me.folder, me.node, &place)?;
    let connections = connect_all(&endpoint, transfer.nodes, me).await?;
    let peers = connections.len();
    let bytes = whole_values(transfer.bytes_per_peer / STREAMS as u64);
    let mut buffers = transfer.work.map(|work| {
        let added = whole_values(work.added_bytes_per_peer / STREAMS as u64);
        Buffers::new(work.model_bytes, added, bytes, peers, STREAMS)
    });
    let mut seconds = Vec::with_capacity(REPETITIONS + 1);
    for _ in 0..=REPETITIONS {
        exchange(&connections, Amount::SIGNAL, None).await?; // all are ready
        let start = Instant::now();
        let amount = Amount {
            streams: STREAMS,
            bytes,
            sends: transfer.all_to_all || me.node == 1,
            receives: transfer.all_to_all || me.node != 1,
        };
        let shared = buffers.as_mut().map(Buffers::copy_out).transpose()?;
        exchange(&connections, amount, shared).await?;
        if let Some(buffers) = &mut buffers {
            buffers.copy_in();
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    exchange(&connections, Amount::SIGNAL, None).await?; // nobody leaves before all are done
    endpoint.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    seconds.remove(0);
    Ok(seconds)
}

/// Dials the peers with lower ids and accepts those with higher ids.
async fn connect_all(
    endpoint: &Endpoint,
    nodes: usize,
    me: &Me,
) -> anyhow::Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(nodes - 1);
    for lower in 1..me.node {
        let place = wait_for(&me.folder, lower)?;
        let config = client(place.certificate)?;
        let connecting = endpoint.connect_with(config, place.address, NAME)?;
        connections.push(connecting.await?);
    }
    for _ in me.node..nodes {
        let incoming = tokio::time::timeout(IDLE_MAX, endpoint.accept()).await;
        let incoming = incoming.ok().flatten();
        let found = connections.len();
        let incoming = incoming
            .with_context(|| format!("only {found} of {} processes appeared", nodes - 1))?;
        connections.push(incoming.await?);
    }
    Ok(connections)
}

/// The streams of each connection in one repetition.
#[derive(Clone, Copy)]
struct Amount {
    streams: usize,
    /// Bytes of each stream, in each direction.
    bytes: u64,
    sends: bool,
    receives: bool,
}

impl Amount {
    /// A byte to and from everybody, for which all wait.
    const SIGNAL: Self = Self {
        streams: 1,
        bytes: 1,
        sends: true,
        receives: true,
    };
}

/// Sends to every peer and receives from each; ends when all has arrived on both sides.
async fn exchange(
    connections: &[Connection],
    amount: Amount,
    shared: Option<Arc<Shared>>,
) -> anyhow::Result<()> {
    let bytes = amount.bytes;
    let mut tasks = tokio::task::JoinSet::new();
    let each = connections
        .iter()
        .flat_map(|connection| std::iter::repeat_n(connection, amount.streams));
    for (index, connection) in each.enumerate() {
        if amount.sends {
            let connection = connection.clone();
            let shared = shared.clone();
            tasks.spawn(async move {
                let stream = connection.open_uni().await?;
                send(stream, bytes, index, shared).await
            });
        }
        if amount.receives {
            let connection = connection.clone();
            let shared = shared.clone();
            tasks.spawn(async move {
                let stream = connection.accept_uni().await?;
                match shared {
                    Some(shared) => shared.receive(stream, index).await,
                    None => receive(stream, bytes).await,
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn send(
    mut stream: SendStream,
    bytes: u64,
    index: usize,
    shared: Option<Arc<Shared>>,
) -> anyhow::Result<()> {
    let same = Bytes::from(vec![7u8; CHUNK_BYTES]);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK_BYTES as u64) as usize;
        let position = index as u64 * bytes + (bytes - left);
        let chunk = match &shared {
            Some(shared) => shared.chunk(position, now),
            None => same.slice(..now),
        };
        stream.write_chunk(chunk).await?;
        left -= now as u64;
    }
    stream.finish()?;
    stream.stopped().await?;
    Ok(())
}

fn whole_values(bytes: u64) -> u64 {
    bytes / VALUE_BYTES * VALUE_BYTES
}

async fn receive(mut stream: RecvStream, bytes: u64) -> anyhow::Result<()> {
    let mut found = 0u64;
    while let Some(chunk) = stream.read_chunk(CHUNK_BYTES, true).await? {
        found += chunk.bytes.len() as u64;
    }
    ensure!(found == bytes, "received {found} of {bytes} bytes");
    Ok(())
}

/// An endpoint with a certificate of its own, and that certificate.
fn bind(listen: SocketAddr) -> anyhow::Result<(Endpoint, Vec<u8>)> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())?;
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?));
    server.transport_config(Arc::new(tuning()?));
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(MTU_BYTES_MAX)?;
    let socket = socket(listen).context("binding a UDP socket")?;
    let endpoint = Endpoint::new(config, Some(server), socket, Arc::new(quinn::TokioRuntime))?;
    Ok((endpoint, cert.der().to_vec()))
}

/// Trusts the process with this certificate.
fn client(certificate: Vec<u8>) -> anyhow::Result<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.into())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?));
    client.transport_config(Arc::new(tuning()?));
    Ok(client)
}

/// The runtime's own tuning, except that the windows never fill and that quinn's CUBIC controls
/// congestion.
fn tuning() -> anyhow::Result<TransportConfig> {
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
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES / STREAMS as u32));
    tuning
        .send_window(u64::from(WINDOW_BYTES))
        .max_idle_timeout(Some(IDLE_MAX.try_into()?));
    Ok(tuning)
}

fn socket(listen: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, None)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.bind(&listen.into())?;
    Ok(socket.into())
}
