//! A node answers on its admin socket while it starts, which may take minutes: it verifies the
//! checkpoint that it would resume from.

use serde_json::Value;
use slowmo::{Config, Runtime};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The answer to a request, once the socket is there.
fn ask(socket: &Path, request: &str) -> Value {
    let begun = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    writeln!(stream, "{{\"request\":\"{request}\"}}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn a_node_that_is_still_starting_says_what_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let admin = folder.path().join("admin");
    // A key file that nobody has written to yet keeps the node where it is.
    let key = folder.path().join("key");
    let made = Command::new("mkfifo")
        .args(["-m", "600"])
        .arg(&key)
        .status();
    assert!(made.unwrap().success());
    let config = Config {
        node_id: Some(7),
        admin: Some(admin.clone()),
        cluster_key_file: Some(key.clone()),
        checkpoints: Some(folder.path().join("checkpoints")),
        ..Config::default()
    };
    let starting = std::thread::spawn(move || Runtime::builder().config(config).spawn());
    let begun = Instant::now();
    let answer = loop {
        let answer = ask(&admin, "status");
        // Before that it opens its devices.
        let waits = answer["waiting_for"].as_str().unwrap_or_default();
        if waits == "it reads its credentials and opens its port" {
            break answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{answer}");
    };
    assert_eq!(
        (&answer["node"], &answer["standing"]),
        (&7.into(), &"bootstrapping".into())
    );
    let refused = ask(&admin, "drain");
    let told = refused["error"].as_str().unwrap();
    assert!(
        told.starts_with("this node is starting (it reads its credentials"),
        "{told}"
    );

    std::fs::write(&key, "0f".repeat(32)).unwrap();
    let node = starting.join().unwrap().unwrap();
    // The node reads its key file again from time to time.
    std::fs::remove_file(&key).unwrap();
    let status = ask(&admin, "status");
    assert_eq!(status["waiting_for"], Value::Null);
    let events = status["events"].to_string();
    assert!(
        events.contains("reads and verifies the checkpoint to resume from in"),
        "{events}"
    );
    assert_eq!(ask(&admin, "cluster")["report"]["node"], node.node_id());
}
