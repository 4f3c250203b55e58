//! Data that reaches a node's endpoints: what browsers, scrapers and probes send over HTTP.

use crate::cluster::in_memory;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// No input of a corpus has it, so no order is authorised.
const TOKEN: &[u8] = b"a-token-that-nobody-was-told";
/// Addresses that requests come from: more requests than one address may make at once.
const ADDRESSES: u32 = 1 << 16;

/// A node whose endpoint answers. It trains nothing.
static NODE: OnceLock<Option<Runtime>> = OnceLock::new();

/// Handles data on a connection to a node's HTTP endpoint: the page, metrics, status, probes and
/// orders. Any data is answered as HTTP or not at all, no order is carried out without the token,
/// and the connection ends. Returns whether the answer is a success.
pub fn http(data: &[u8]) -> bool {
    static FROM: AtomicU32 = AtomicU32::new(0);
    let Some(node) = NODE.get_or_init(start) else {
        return false;
    };
    let from = FROM.fetch_add(1, Ordering::Relaxed) % ADDRESSES;
    let from = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 | from));
    let Some(answer) = node.answer_http(from, data) else {
        return false;
    };
    if answer.is_empty() {
        return false;
    }
    let status = answer.get(9..12).and_then(|digits| {
        let text = std::str::from_utf8(digits).ok()?;
        text.parse::<u16>().ok()
    });
    let told = String::from_utf8_lossy(answer.get(..64).unwrap_or(&answer));
    assert!(answer.starts_with(b"HTTP/1."), "not HTTP: {told}");
    assert!(status.is_some(), "no status: {told}");
    let status = status.unwrap_or_default();
    // Whoever is not ready says so with 503; nothing else fails here.
    assert!(status < 500 || status == 503, "failed: {told}");
    let is_order = data.starts_with(b"POST");
    let is_done = (200..300).contains(&status);
    assert!(!(is_order && is_done), "an order without a token: {told}");
    is_done
}

fn start() -> Option<Runtime> {
    let folder = tempfile::tempdir().ok()?;
    let token = folder.path().join("token");
    write_secret(&token).ok()?;
    let config = Config {
        node_id: Some(0),
        min_nodes: 1,
        runtime_threads: Some(1),
        http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        http_token_file: Some(token),
        ..Config::default()
    };
    let hub = MemoryHub::new(None);
    let network = in_memory(&hub, 0, &[0]);
    let node = Runtime::builder().network(network).config(config).spawn();
    node.ok()
}

fn write_secret(file: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    file.write_all(TOKEN)
}
