//! The page that a node serves: its files, what its stream tells of the whole cluster, and orders
//! that reach any member.

use crate::http::{ask, messages, write_secret};
use serde_json::Value;
use slowmo::BaseName;
use slowmo::internal::telemetry::PAGES_PER_ADDRESS_MAX;
use slowmo::{Config, Runtime};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than a node with an open page waits before it asks the others again.
const UNWATCHED: Duration = Duration::from_millis(1500);
const TOKEN: &str = "a token of more than sixteen bytes";

/// A node that trains in a thread until it is drained.
fn trains(
    id: u64,
    folder: &Path,
    min_nodes: usize,
    secret: &str,
) -> (SocketAddr, JoinHandle<bool>) {
    let token = folder.join(format!("token-{id}"));
    write_secret(&token, secret);
    let config = Config {
        node_id: Some(id),
        base: BaseName::None,
        tau: 4,
        min_nodes,
        rendezvous: Some(folder.join("rendezvous")),
        cluster_key: Some("0f".repeat(32).parse().unwrap()),
        http: Some("127.0.0.1:0".parse().unwrap()),
        http_token_file: Some(token),
        ..Config::default()
    };
    let (found, address) = channel();
    let training = std::thread::spawn(move || {
        let runtime = Runtime::builder().config(config).spawn().unwrap();
        found.send(runtime.http_address().unwrap()).unwrap();
        let mut worker = runtime.worker(0).unwrap();
        let mut parameters = vec![id as f32; 1000];
        worker.synchronize(&mut parameters).unwrap();
        for step in 0..20_000 {
            worker.report_loss(1.0 / f64::from(step + 1));
            worker.report("accuracy", 0.5).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            if worker.step(&mut parameters, 0.1).unwrap().drained {
                worker.leave().unwrap();
                return true;
            }
        }
        false
    });
    (address.recv().unwrap(), training)
}

fn order(address: SocketAddr, path: &str) -> (u16, String) {
    order_with(TOKEN, address, path)
}

fn order_with(token: &str, address: SocketAddr, path: &str) -> (u16, String) {
    ask(
        address,
        &format!("POST {path} HTTP/1.1\r\nAuthorization: Bearer {token}"),
    )
}

#[test]
fn a_member_without_the_operators_token_drains_nobody() {
    const OTHER: &str = "a token that the member made up";
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("rendezvous")).unwrap();
    let (one, training) = trains(1, folder.path(), 2, TOKEN);
    let (liar, other) = trains(2, folder.path(), 2, OTHER);
    let status = || -> Value { serde_json::from_str(&ask(one, "GET /status HTTP/1.1").1).unwrap() };
    let soon = |is: &dyn Fn(&Value) -> bool| {
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            is(&status())
        })
    };
    assert!(soon(&|status| status["round"].as_u64() > Some(0)));
    assert_eq!(order_with(OTHER, liar, "/drain?node=1").0, 202);
    let refused = |status: &Value| {
        status["events"]
            .to_string()
            .contains("refused an unproved order of node 2")
    };
    assert!(soon(&refused), "{}", status());
    let round = status()["round"].as_u64();
    assert!(
        soon(&|status| status["round"].as_u64() > round),
        "it trains on"
    );
    assert_eq!(status()["standing"], "member");
    assert_eq!(order(one, "/drain").0, 202);
    assert_eq!(order_with(OTHER, liar, "/drain").0, 202);
    assert!(training.join().unwrap() && other.join().unwrap());
}

#[test]
fn one_node_tells_of_all_and_passes_orders_on() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("rendezvous")).unwrap();
    let nodes: Vec<_> = (1..=3)
        .map(|id| trains(id, folder.path(), 3, TOKEN))
        .collect();
    let address = nodes[0].0;
    let ids = |value: &Value| {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let bootstrapped = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        let (_, status) = ask(address, "GET /status HTTP/1.1");
        let status: Value = serde_json::from_str(&status).unwrap();
        status["round"].as_u64() > Some(0)
    });
    assert!(bootstrapped, "no run was bootstrapped");
    // Time in which a node that asks without an open page would have asked.
    std::thread::sleep(UNWATCHED);
    let mut told = messages(address);
    let first = told.next().unwrap();
    let is_told = |node: &Value| !node["digest"].is_null();
    let told_of = first["nodes"].as_array().unwrap();
    assert_eq!(
        told_of.iter().map(is_told).collect::<Vec<_>>(),
        [true, false, false],
        "others were asked while no page was open"
    );
    let complete = |told: &Value| {
        told["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["digest"]["links"].as_array().is_some())
    };
    let whole = if complete(&first) {
        first.clone()
    } else {
        told.find(complete).unwrap()
    };
    for (node, id) in whole["nodes"].as_array().unwrap().iter().zip(1..) {
        let digest = &node["digest"];
        assert_eq!(
            (node["node"].as_u64(), node["alive"].as_bool()),
            (Some(id), Some(true))
        );
        assert!(
            digest["measures"]["loss"][1].as_f64().is_some()
                && digest["measures"]["accuracy"][1] == 0.5,
            "{digest}"
        );
        assert_eq!(digest["links"].as_array().unwrap().len(), 2);
        assert!(
            digest["links"][0]["sent_bytes"].as_u64() > Some(0)
                && digest["http"].as_str().is_some(),
            "{digest}"
        );
    }
    let again = told.next().unwrap();
    assert!(
        again.get("before").is_none() && again.get("shards").is_none(),
        "what did not change is told once"
    );
    let rounds = again["rounds"].as_array().unwrap();
    assert!(
        rounds
            .iter()
            .all(|round| ids(&round["contributors"]) == [1, 2, 3]
                && ids(&round["members"]) == [1, 2, 3]),
        "{rounds:?}"
    );

    let other = nodes[1].0;
    let mut page = messages(other);
    assert!(page.any(|told| complete(&told)));
    drop(page);
    // The node notices at its second message that the page is closed.
    std::thread::sleep(UNWATCHED + Duration::from_secs(2));
    let reopened = messages(other).next().unwrap();
    let ages = [0, 2].map(|node| {
        reopened["nodes"][node]["digest"]["age_ms"]
            .as_u64()
            .unwrap()
    });
    assert!(
        ages.iter()
            .all(|age| u128::from(*age) > UNWATCHED.as_millis()),
        "others were asked after the page was closed: {ages:?}"
    );

    let status = ask(address, "POST /drain?node=3 HTTP/1.1").0;
    let before = order(address, "/drain?node=9");
    assert_eq!((status, before.0), (401, 404));
    assert_eq!(
        order(address, "/scale?nodes=4").0,
        409,
        "no launcher started it"
    );
    assert_eq!(order(address, "/drain?nodes=3").0, 400);
    assert_eq!(ask(address, "POST /set?key=tau&value=6 HTTP/1.1").0, 401);
    let refused = order(address, "/set?key=tau&value=0");
    assert_eq!(refused.0, 409, "{refused:?}");
    assert!(
        refused.1.contains("tau must be a whole number"),
        "{refused:?}"
    );
    assert_eq!(order(address, "/set?key=tau&value=6").0, 202);
    told.find(|told| {
        let settings = told["report"]["settings"].as_array().unwrap();
        settings
            .iter()
            .any(|one| one["key"] == "tau" && one["value"] == "6")
    })
    .unwrap();
    assert_eq!(order(address, "/drain?node=3").0, 202);
    let left = told
        .find(|told| told["nodes"].as_array().unwrap().len() == 2)
        .unwrap();
    assert_eq!(left["nodes"][1]["node"], 2);
    for drained in ["/drain?node=2", "/drain?node=1"] {
        assert_eq!(order(address, drained).0, 202);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(
        nodes
            .into_iter()
            .all(|(_, training)| training.join().unwrap())
    );
}

#[test]
fn the_page_needs_nothing_from_elsewhere_and_is_for_this_machine() {
    let config = Config {
        base: BaseName::None,
        http: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::default()
    };
    let runtime = Runtime::builder().config(config).spawn().unwrap();
    let address = runtime.http_address().unwrap();
    let (status, page) = ask(address, "GET / HTTP/1.1");
    assert_eq!(status, 200);
    for file in ["dashboard.js", "state.js", "draw.js", "dashboard.css"] {
        let (status, text) = ask(address, &format!("GET /{file} HTTP/1.1"));
        assert_eq!(status, 200, "{file}");
        if file == "dashboard.js" {
            continue;
        }
        for elsewhere in ["http://", "https://", "//cdn"] {
            assert!(
                !text.contains(elsewhere) && !page.contains(elsewhere),
                "{file} names {elsewhere}"
            );
        }
    }
    assert_eq!(
        ask(address, "GET / HTTP/1.1\r\nHost: pages.example").0,
        421,
        "another host"
    );
    let first = messages(address).next().unwrap();
    assert_eq!(
        (
            &first["before"]["orders"],
            first["nodes"].as_array().map(Vec::len)
        ),
        (&Value::Bool(false), Some(0))
    );
    let open: Vec<_> = (0..PAGES_PER_ADDRESS_MAX)
        .map(|_| messages(address))
        .map(|mut page| (page.next().is_some(), page))
        .collect();
    assert!(open.iter().all(|(told, _)| *told));
    let (status, why) = ask(address, "GET /stream HTTP/1.1");
    assert!(status == 503 && why.contains("from this address"), "{why}");
    assert_eq!(ask(address, "GET /live HTTP/1.1").0, 200);
}
