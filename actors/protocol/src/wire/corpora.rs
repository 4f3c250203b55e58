//! The golden examples are the seeds for fuzzing: each is in the committed corpus of its decoder.
//! `SLOWMO_WRITE_CORPORA=1 cargo test -p slowmo-protocol corpora` writes those that are missing.
#![allow(clippy::unwrap_used)]

use super::examples::{contents, datagrams, frame, messages, preface, stream};
use std::net::SocketAddr;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const CORPORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../chaos-tests/fuzz/corpus");

/// Every example with the name of its decoder's corpus.
fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let prefaces = [
        SocketAddr::from(([10, 0, 0, 9], 7400)),
        SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401)),
    ];
    let mut all: Vec<(&str, Vec<u8>)> = Vec::new();
    all.extend(
        messages()
            .into_iter()
            .map(|(message, _)| ("control_frame", frame(message).encode().unwrap())),
    );
    all.extend(
        contents()
            .into_iter()
            .map(|(content, _)| ("bulk_header", stream(content).encode().unwrap())),
    );
    all.extend(prefaces.map(|listen| ("preface", preface(listen, true).encode().unwrap())));
    all.extend(
        datagrams()
            .iter()
            .map(|datagram| ("datagram", datagram.encode().unwrap())),
    );
    all
}

#[test]
fn every_example_is_in_the_corpora() {
    let write = std::env::var_os("SLOWMO_WRITE_CORPORA").is_some();
    for (name, bytes) in examples() {
        let folder = Path::new(CORPORA).join(name);
        let file = folder.join(format!("example-{:016x}", xxh3_64(&bytes)));
        if write {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &bytes).unwrap();
        }
        let found = std::fs::read(&file).unwrap_or_default();
        assert!(
            found == bytes,
            "{} is missing: SLOWMO_WRITE_CORPORA=1 writes it",
            file.display()
        );
    }
}
