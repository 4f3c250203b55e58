//! One TCP stream between two processes: process 1 sends, process 2 answers with one byte when it
//! has received everything.

use super::rendezvous::{Place, publish, wait_for};
use super::{CHUNK_BYTES, Me, REPETITIONS, Transfer};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Returns one process's times, in seconds, without the warm-up.
pub(super) fn run(transfer: &Transfer, me: &Me) -> anyhow::Result<Vec<f64>> {
    if me.node == 1 {
        let stream = TcpStream::connect(wait_for(&me.folder, 2)?.address)?;
        return repeat(|| send(&stream, transfer.bytes_per_peer));
    }
    let listener = TcpListener::bind(me.listen)?;
    let place = Place {
        address: listener.local_addr()?,
        certificate: Vec::new(),
    };
    publish(&me.folder, me.node, &place)?;
    let (stream, _) = listener.accept()?;
    repeat(|| receive(&stream, transfer.bytes_per_peer))
}

fn repeat(mut once: impl FnMut() -> std::io::Result<()>) -> anyhow::Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for _ in 0..=REPETITIONS {
        let start = Instant::now();
        once()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.remove(0);
    Ok(seconds)
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
