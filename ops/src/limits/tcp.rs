//! One TCP stream between two processes: process 1 sends, process 2 answers with one byte when it
//! has received everything.

use super::{CHUNK_BYTES, REPETITIONS, RawNodeError, Transfer, meeting};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

/// Returns one process's times, in seconds, without the warm-up.
pub(super) fn run(
    transfer: &Transfer,
    node: usize,
    folder: &Path,
) -> Result<Vec<f64>, RawNodeError> {
    let io = |source| RawNodeError::Io {
        doing: "tcp",
        source,
    };
    if node == 1 {
        let stream = TcpStream::connect(meeting::wait_for(folder, 2)?).map_err(io)?;
        return repeat(|| send(&stream, transfer.bytes_per_peer).map_err(io));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
    meeting::publish(folder, node, listener.local_addr().map_err(io)?)?;
    let (stream, _) = listener.accept().map_err(io)?;
    repeat(|| receive(&stream, transfer.bytes_per_peer).map_err(io))
}

fn repeat(mut once: impl FnMut() -> Result<(), RawNodeError>) -> Result<Vec<f64>, RawNodeError> {
    once()?;
    let mut timed = || {
        let start = Instant::now();
        once().map(|()| start.elapsed().as_secs_f64())
    };
    (0..REPETITIONS).map(|_| timed()).collect()
}

fn send(mut stream: &TcpStream, bytes: u64) -> std::io::Result<()> {
    let chunk = vec![7u8; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK_BYTES as u64);
        stream.write_all(&chunk[..now as usize])?;
        left -= now;
    }
    stream.read_exact(&mut [0])
}

fn receive(mut stream: &TcpStream, bytes: u64) -> std::io::Result<()> {
    let mut chunk = vec![0u8; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK_BYTES as u64);
        stream.read_exact(&mut chunk[..now as usize])?;
        left -= now;
    }
    stream.write_all(&[1])
}
