//! A node serves HTTP: metrics in a form that Prometheus reads, status, orders only with the token.

use crate::http::{self, ask, write_secret};
use slowmo::internal::telemetry::{PAGES_MAX, PAGES_PER_ADDRESS_MAX, STALL_MAX};
use slowmo::{BaseName, Config, Runtime, Worker};
use slowmo_actors::timeline::CURVE_POINTS_MAX;
use socket2::{Domain, Socket, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const TOKEN: &str = "a token of more than sixteen bytes";

fn node(change: impl FnOnce(Config) -> Config) -> (Runtime, Worker, SocketAddr) {
    let config = Config {
        base: BaseName::None,
        tau: 2,
        http: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::default()
    };
    let runtime = Runtime::builder().config(change(config)).spawn().unwrap();
    let worker = runtime.worker(0).unwrap();
    let address = runtime.http_address().unwrap();
    (runtime, worker, address)
}

/// Checks what `promtool check metrics` checks of the text, and more of the format; every sample by
/// its name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut types = BTreeMap::new();
    let mut samples = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            assert!(lines.peek().is_none(), "something follows the end");
            return samples;
        }
        if let Some(comment) = line.strip_prefix("# ") {
            let (kind, rest) = comment.split_once(' ').unwrap();
            let (name, rest) = rest.split_once(' ').unwrap();
            assert!(
                name.starts_with("slowmo_")
                    && name.bytes().all(|byte| byte.is_ascii_lowercase()
                        || byte.is_ascii_digit()
                        || byte == b'_'),
                "{name}"
            );
            match kind {
                "HELP" => assert!(
                    families.insert(name.to_owned()) && !rest.is_empty(),
                    "{name} has two helps or none"
                ),
                "TYPE" => assert!(
                    types.insert(name.to_owned(), rest.to_owned()).is_none(),
                    "{name} has two types"
                ),
                "UNIT" => assert!(
                    name.ends_with(rest),
                    "{name} does not end with its unit {rest}"
                ),
                other => panic!("{other}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let family = types
            .keys()
            .filter(|family| name.starts_with(family.as_str()))
            .max_by_key(|family| family.len());
        let family = family.unwrap_or_else(|| panic!("{name} has no type"));
        let suffix = &name[family.len()..];
        let allowed: &[&str] = match types[family].as_str() {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "gauge" => &[""],
            other => panic!("{other}"),
        };
        assert!(allowed.contains(&suffix), "{name} as a {}", types[family]);
        let value: f64 = value.parse().unwrap();
        assert!(types[family] == "gauge" || value >= 0.0);
        assert!(
            samples.insert(series.to_owned(), value).is_none(),
            "{series} comes twice"
        );
    }
    panic!("the text does not end");
}

#[test]
fn metrics_are_well_formed_and_follow_the_training() {
    let (_runtime, mut worker, address) = node(|config| config);
    assert_eq!(
        ask(address, "GET /ready HTTP/1.1"),
        (503, "bootstrapping\n".to_owned())
    );
    let mut parameters = vec![0.5f32; 100];
    worker.synchronize(&mut parameters).unwrap();
    for _ in 0..6 {
        worker.report_loss(0.25);
        worker.step(&mut parameters, 0.1).unwrap();
    }
    let (status, text) = ask(address, "GET /metrics HTTP/1.1");
    assert_eq!(status, 200);
    let samples = samples(&text);
    for (series, expected) in [
        ("slowmo_rounds_total{kind=\"slow\"}", 3.0),
        ("slowmo_rounds_total{kind=\"bootstrap\"}", 1.0),
        ("slowmo_round_phase_seconds_count{phase=\"publish\"}", 4.0),
        (
            "slowmo_exchange_wait_seconds_count{exchange=\"slow_round\"}",
            3.0,
        ),
        ("slowmo_members", 1.0),
        ("slowmo_contributors", 1.0),
        ("slowmo_inner_step", 6.0),
        ("slowmo_loss", 0.25),
        ("slowmo_standing{standing=\"member\"}", 1.0),
        ("slowmo_momentum_lost_shards_total", 0.0),
        ("slowmo_queue_bound{queue=\"network_events\"}", 1024.0),
    ] {
        assert_eq!(samples.get(series), Some(&expected), "{series} in\n{text}");
    }
    assert!(samples["slowmo_resident_memory_bytes"] > 1e6);
    assert_eq!(ask(address, "GET /ready HTTP/1.1").0, 200);
    assert_eq!(ask(address, "GET /live HTTP/1.1").0, 200);
    let (status, report) = ask(address, "GET /status HTTP/1.1");
    let report: slowmo::status::Status = serde_json::from_str(&report).unwrap();
    assert_eq!((status, report.step), (200, 6));
    assert_eq!(ask(address, "GET /nothing HTTP/1.1").0, 404);
}

/// A panel that asks for a metric which no node has shows nothing, and nobody knows why.
#[test]
fn the_grafana_dashboard_asks_for_metrics_that_there_are() {
    let board: serde_json::Value =
        serde_json::from_str(include_str!("../../../ops/grafana/slowmo.json")).unwrap();
    let source = include_str!("../../src/telemetry/metrics.rs");
    let mut asked = BTreeSet::new();
    for target in board["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
    {
        let expression = target["expr"].as_str().unwrap();
        let names =
            expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        asked.extend(
            names
                .filter(|name| name.starts_with("slowmo_"))
                .map(str::to_owned),
        );
    }
    assert!(asked.len() > 25, "{asked:?}");
    let suffixes = ["_total", "_bucket", "_sum", "_bytes", "_seconds", "_ratio"];
    for name in asked {
        let mut plain = name.trim_start_matches("slowmo_");
        while let Some(shorter) = suffixes
            .iter()
            .find_map(|suffix| plain.strip_suffix(suffix))
        {
            plain = shorter;
        }
        assert!(
            source.contains(&format!("\"{plain}\"")),
            "{name} is no metric"
        );
    }
}

#[test]
fn orders_want_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    write_secret(&file, &format!(" {TOKEN}\n"));
    let (_open, _worker, address) = node(|config| config);
    assert_eq!(
        ask(address, "POST /drain HTTP/1.1\r\nAuthorization: Bearer ").0,
        403
    );
    let (_node, mut worker, address) = node(|config| Config {
        http_token_file: Some(file.clone()),
        ..config
    });
    let mut parameters = vec![0.5f32; 10];
    worker.synchronize(&mut parameters).unwrap();
    assert_eq!(ask(address, "POST /drain HTTP/1.1").0, 401);
    assert_eq!(
        ask(
            address,
            "POST /drain HTTP/1.1\r\nAuthorization: Bearer wrong"
        )
        .0,
        401
    );
    assert_eq!(ask(address, "GET /drain HTTP/1.1").0, 405);
    assert_eq!(
        ask(
            address,
            &format!("POST /drain HTTP/1.1\r\nAuthorization: Bearer {TOKEN}")
        )
        .0,
        202
    );
    assert!((0..50).any(|_| worker.step(&mut parameters, 0.1).unwrap().drained));
}

#[test]
fn an_address_that_others_reach_wants_a_token() {
    let config = Config {
        http: Some("0.0.0.0:0".parse().unwrap()),
        ..Config::default()
    };
    let error = Runtime::builder()
        .config(config)
        .spawn()
        .unwrap_err()
        .to_string();
    assert!(error.contains("http_token_file"), "{error}");
}

#[test]
fn who_asks_too_often_is_put_off() {
    let (_runtime, _worker, address) = node(|config| config);
    let answers: Vec<u16> = (0..400)
        .map(|_| ask(address, "GET /status HTTP/1.1").0)
        .collect();
    assert!(answers[0] == 200 && answers.contains(&429), "{answers:?}");
    assert_eq!(
        ask(address, "GET /live HTTP/1.1").0,
        200,
        "probes are answered whatever else is asked"
    );
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(ask(address, "GET /status HTTP/1.1").0, 200);
}

#[test]
fn a_loss_that_is_no_number_leaves_the_status_readable() {
    let (_runtime, mut worker, address) = node(|config| config);
    worker.synchronize(&mut vec![0.5f32; 10]).unwrap();
    worker.report_loss(f64::NAN);
    worker.report("rate", f64::INFINITY).unwrap();
    let (status, report) = ask(address, "GET /status HTTP/1.1");
    let report: slowmo::status::Status = serde_json::from_str(&report).unwrap();
    assert!(
        status == 200
            && report.loss.unwrap().loss.is_nan()
            && report.measures["rate"].value.is_infinite()
    );
    samples(&ask(address, "GET /metrics HTTP/1.1").1);
}

/// A program that asks without end must not keep the node from its work.
#[test]
fn the_admin_socket_too_answers_only_so_often() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let (_runtime, _worker, _) = node(|config| Config {
        admin: Some(socket.clone()),
        ..config
    });
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let mut answers = std::io::BufRead::lines(std::io::BufReader::new(stream.try_clone().unwrap()));
    let mut ask = || {
        writeln!(stream, "{{\"request\":\"status\"}}").unwrap();
        answers.next().unwrap().unwrap()
    };
    let refused = (0..2000)
        .filter(|_| ask().contains("asked too often"))
        .count();
    assert!(refused > 0, "every one was answered");
    std::thread::sleep(Duration::from_millis(100));
    assert!(ask().contains("\"answer\":\"status\""));
}

#[test]
fn measures_are_shown_and_too_many_are_refused() {
    let (_runtime, mut worker, address) = node(|config| config);
    worker.synchronize(&mut vec![0.5f32; 10]).unwrap();
    worker.report("accuracy", 0.75).unwrap();
    assert_eq!(
        samples(&ask(address, "GET /metrics HTTP/1.1").1)["slowmo_measure{name=\"accuracy\"}"],
        0.75
    );
    for wrong in [
        "",
        "a name that is longer than a name may be",
        "disagreement",
    ] {
        assert!(worker.report(wrong, 1.0).is_err(), "{wrong:?}");
    }
    let refused = (0..10)
        .filter(|number| worker.report(&format!("m{number}"), 1.0).is_err())
        .count();
    assert_eq!(refused, 7, "three more beside the accuracy");
}

#[test]
fn a_node_that_fails_leaves_its_last_events() {
    let folder = tempfile::tempdir().unwrap();
    let flight = folder.path().join("flight");
    let (runtime, mut worker, _) = node(|config| Config {
        flight: Some(flight.clone()),
        ..config
    });
    let mut parameters = vec![0.5f32; 10];
    worker.synchronize(&mut parameters).unwrap();
    (0..4).for_each(|_| _ = worker.step(&mut parameters, 0.1).unwrap());
    parameters[3] = f32::NAN;
    let failed = (0..4).any(|_| worker.step(&mut parameters, 0.1).is_err());
    assert!(failed, "a value that is no number was averaged");
    assert!(
        std::fs::read_dir(&flight).is_err(),
        "nothing is written before it fails"
    );
    drop((worker, runtime));
    let file = std::fs::read_dir(&flight)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.contains("\"contributed\"")
            && text.contains("\"applied\"")
            && text.contains("\"failed\""),
        "{text}"
    );
}

/// A page whose connection holds little and that is never read: a second's message does not fit.
/// One address has few of them, so it comes from another one than the pages that are read.
fn stalled_page(number: usize, address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let last = 2 + (number / PAGES_PER_ADDRESS_MAX) as u8;
    let own = SocketAddr::from(([127, 0, 0, last], 0));
    socket.bind(&own.into()).unwrap();
    // Small segments keep the node's own buffer small too.
    socket.set_tcp_mss(536).unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(&address.into()).unwrap();
    (&socket)
        .write_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    socket
}

/// Answers that nobody reads must not keep the others waiting.
#[test]
fn who_does_not_read_is_left_and_the_others_are_served() {
    let (_runtime, mut worker, address) = node(|config| config);
    let mut parameters = vec![0.5f32; 10];
    worker.synchronize(&mut parameters).unwrap();
    // Curves make the first message to a page larger than what its connection holds.
    for step in 0..CURVE_POINTS_MAX {
        let value = 1.0 / (step as f64 + 3.0);
        worker.report_loss(value);
        for name in ["one", "two", "three"] {
            worker.report(name, value).unwrap();
        }
        worker.step(&mut parameters, 0.1).unwrap();
    }
    let mut read = http::messages(address);
    assert!(read.next().is_some());
    let stalled: Vec<Socket> = (1..PAGES_MAX)
        .map(|number| stalled_page(number, address))
        .collect();
    let is_full = || ask(address, "HEAD /stream HTTP/1.1").0 == 503;
    assert!(
        (0..50).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            is_full()
        }),
        "the stalled pages hold no places"
    );
    assert_eq!(ask(address, "GET /live HTTP/1.1").0, 200);
    let begun = Instant::now();
    while is_full() {
        assert!(
            begun.elapsed() < 4 * STALL_MAX,
            "pages that nobody reads were not left"
        );
        assert!(read.next().is_some(), "a page that is read was left");
    }
    assert!(
        begun.elapsed() > STALL_MAX / 2,
        "they were left before their time"
    );
    assert!(read.next().is_some(), "a page that is read was left");
    drop(stalled);
}

#[test]
fn a_dump_says_where_it_is_or_why_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    let flight = folder.path().join("flight");
    write_secret(&token, TOKEN);
    let order = format!("POST /dump HTTP/1.1\r\nAuthorization: bearer {TOKEN}");
    let with = |flight: Option<std::path::PathBuf>| {
        node(|config| Config {
            http_token_file: Some(token.clone()),
            flight,
            ..config
        })
    };
    let (_plain, _worker, address) = with(None);
    assert_eq!(ask(address, &order).0, 409);
    let (_node, _worker, address) = with(Some(flight.clone()));
    let (status, told) = ask(address, &order);
    assert_eq!(status, 200, "{told}");
    assert_eq!(std::fs::read_dir(&flight).unwrap().count(), 1);
    assert!(told.contains(&flight.display().to_string()), "{told}");
    let (_node, _worker, address) = with(Some("/proc/none".into()));
    let (status, told) = ask(address, &order);
    assert!(
        status == 409 && told.contains("could not be written"),
        "{told}"
    );
    let both = Config {
        trace: Some(flight.clone()),
        flight: Some(flight),
        ..Config::default()
    };
    assert!(
        both.check()
            .unwrap_err()
            .to_string()
            .contains("same folder")
    );
}
