//! The memory that nodes take, against what the log says at their start (`docs/memory.md`).
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo::{Buffers, Config, Half, NamedTensors, Runtime};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;

/// Size of the model, in MiB and in values.
const MIB: usize = 32;
const VALUES: usize = MIB << 18;
/// An Adam has two moments for each parameter.
const OPTIMIZER: usize = 2;
const STEPS: u64 = 6;
/// Says to a process of this test that it is a node: the number of values.
const NODE: &str = "MEMORY_TEST_NODE";
/// Says to such a process that its parameters are bfloat16.
const HALF: &str = "MEMORY_TEST_HALF";
/// Begins the line of a node's report.
const REPORT: &str = "peak MiB: ";
/// Precedes the number of MiB in the line of the log.
const LOGGED: &str = "this node takes at most about ";

/// The peak of this process's memory, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let line = line.unwrap().trim().trim_end_matches("kB").trim();
    line.parse().unwrap()
}

/// The configuration of a process of this test.
fn config() -> Config {
    let variables = std::env::vars().filter(|(name, _)| name.starts_with("SLOWMO_"));
    Config::from_sources(None, variables, std::iter::empty()).unwrap()
}

/// Runs as a process of this test; does nothing in the test itself.
#[test]
fn a_node() {
    let Ok(values) = std::env::var(NODE) else {
        return;
    };
    let values: usize = values.parse().unwrap();
    let halves = if std::env::var_os(HALF).is_some() {
        values
    } else {
        0
    };
    tracing_subscriber::fmt().with_ansi(false).init();
    let config = config();
    let workers = usize::from(config.devices);
    // Touched here, so that they count as the program's own.
    let mut own: Vec<_> = (0..workers)
        .map(|_| {
            (
                (vec![1.0f32; values - halves], vec![0x3f80u16; halves]),
                vec![1.0f32; values],
                vec![1.0f32; OPTIMIZER * values],
            )
        })
        .collect();
    let before = peak_kib();
    let runtime = Runtime::builder().config(config).spawn().unwrap();
    let all = Barrier::new(workers);
    thread::scope(|scope| {
        for (index, ((singles, halves), gradients, optimizer)) in own.iter_mut().enumerate() {
            let mut worker = runtime.worker(index).unwrap();
            let all = &all;
            scope.spawn(move || {
                let model = &mut ();
                let parameters = &mut NamedTensors::new().with("singles", singles).with_half(
                    "halves",
                    Half::BFloat16,
                    halves,
                );
                let lent = Buffers { optimizer, model };
                worker.synchronize_with(parameters, lent).unwrap();
                for _ in 0..STEPS {
                    worker.average_gradients(gradients).unwrap();
                    let lent = Buffers { optimizer, model };
                    worker.step_with(parameters, lent, 0.1).unwrap();
                }
                all.wait();
                worker.leave().unwrap();
            });
        }
    });
    println!("{REPORT}{}", (peak_kib() - before) / 1024);
}

/// One configuration of a number of nodes.
struct Case<'a> {
    what: &'a str,
    nodes: usize,
    /// Whether its parameters are bfloat16.
    half: bool,
    keys: &'a [(&'a str, &'a str)],
}

/// The memory that a node takes beside its own tensors, in MiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    logged: u64,
    peak: u64,
}

/// Runs the nodes of a case, each as a process.
fn run(case: &Case<'_>) -> Vec<Memory> {
    let folder = tempfile::tempdir().unwrap();
    // An outer round at every step, unless the case says otherwise.
    let common = [("base", "none"), ("tau", "1"), ("joiner_buffers", "reset")];
    let start = |_| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "a_node", "--nocapture"])
            .env(NODE, VALUES.to_string())
            .env("SLOWMO_CLUSTER_KEY", "7".repeat(64))
            .env("SLOWMO_RENDEZVOUS", folder.path().join("nodes"))
            .env("SLOWMO_MIN_NODES", case.nodes.to_string())
            .stdout(Stdio::piped());
        if case.half {
            command.env(HALF, "");
        }
        for (key, value) in common.iter().chain(case.keys) {
            let value = value.replace("FOLDER", &folder.path().display().to_string());
            command.env(format!("SLOWMO_{}", key.to_uppercase()), value);
        }
        command.spawn().unwrap()
    };
    let nodes: Vec<Child> = (0..case.nodes).map(start).collect();
    let outputs = nodes.into_iter().map(|node| {
        let output = node.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}: {text}", case.what);
        Memory {
            logged: number_after(LOGGED, &text),
            peak: number_after(REPORT, &text),
        }
    });
    outputs.collect()
}

/// The number that follows these words.
fn number_after(words: &str, text: &str) -> u64 {
    let Some((_, rest)) = text.split_once(words) else {
        panic!("{words} is missing in {text}");
    };
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

const CASES: [Case<'static>; 8] = [
    Case {
        what: "outer rounds",
        nodes: 2,
        half: false,
        keys: &[],
    },
    Case {
        what: "without replicas",
        nodes: 3,
        half: false,
        keys: &[("replicas", "0")],
    },
    Case {
        what: "not sharded, rounds as int8",
        nodes: 2,
        half: false,
        keys: &[("sharded", "false"), ("round_wire", "int8")],
    },
    Case {
        what: "gossip",
        nodes: 2,
        half: false,
        keys: &[("base", "sgp"), ("tau", "3")],
    },
    Case {
        what: "checkpoints with the optimizer's state",
        nodes: 2,
        half: false,
        keys: &[
            ("joiner_buffers", "copy"),
            ("checkpoints", "FOLDER/checkpoints"),
            ("checkpoint_every", "1"),
        ],
    },
    Case {
        what: "two workers",
        nodes: 2,
        half: false,
        keys: &[("devices", "2")],
    },
    Case {
        what: "bfloat16",
        nodes: 2,
        half: true,
        keys: &[],
    },
    Case {
        what: "bfloat16 without replicas",
        nodes: 3,
        half: true,
        keys: &[("replicas", "0")],
    },
];

#[test]
fn nodes_take_what_their_log_says() {
    for case in &CASES {
        let what = case.what;
        for node in run(case) {
            eprintln!("{what}: {node:?}");
            // Not everything is there at once on every node, and allocators differ.
            let most = node.logged + node.logged / 8;
            assert!(
                (node.logged / 2..=most).contains(&node.peak),
                "{what}: {node:?}"
            );
        }
    }
}
