//! Runs of whole nodes that are kept as files: each one that failed once.
//!
//! `cargo run --release -p slowmo-chaos -- sim --schedule FILE` runs one and shows what it breaks.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_chaos::sim::file::ScheduleError;
use slowmo_chaos::sim::generator::{self, Kinds};
use slowmo_chaos::sim::schedule::{Act, Schedule, Settings};
use slowmo_chaos::sim::{Look, run};
use slowmo_protocol::ident::NodeId;
use std::path::{Path, PathBuf};

/// Seeds whose schedules are written and read.
const SEEDS: u64 = 200;
/// Those of them that are run twice.
const RUNS: u64 = 40;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schedules")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    files
}

/// Every file says what it is for, breaks nothing, and does all that it says unless it was drawn.
#[test]
fn schedules_that_failed_once_hold() {
    let files = files(&folder());
    assert!(!files.is_empty());
    for path in files {
        let name = path.display();
        let schedule = Schedule::read(&path).unwrap();
        assert!(
            schedule.what.len() > 20,
            "{name} does not say what it is for"
        );
        let report = run(&schedule, Look::default());
        assert!(report.violation.is_none(), "{name}: {:?}", report.violation);
        let is_drawn = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .is_some_and(|stem| stem.ends_with(char::is_numeric));
        assert!(
            is_drawn || report.not_done.is_empty(),
            "{name}: {:?} was not done",
            report.not_done
        );
    }
}

#[test]
fn a_seed_and_its_schedule_are_the_same_run() {
    for seed in 0..SEEDS {
        let drawn = Schedule::from_seed(seed, &(1..=8));
        let text = drawn.text().unwrap();
        let read = Schedule::parse(&text, "a schedule").unwrap();
        assert_eq!(read, drawn, "seed {seed}: {text}");
        if seed >= RUNS {
            continue;
        }
        let look = Look {
            keeps_trace: true,
            verbose: false,
        };
        let one = run(&drawn, look);
        let other = run(&read, look);
        assert_eq!(
            (one.rounds, one.events),
            (other.rounds, other.events),
            "seed {seed}"
        );
        assert_eq!(one.verdicts, other.verdicts, "seed {seed}");
        assert!(one.trace == other.trace, "seed {seed}");
    }
}

#[test]
fn what_a_swarm_draws_is_written_and_read() {
    for seed in 0..SEEDS {
        let drawn = generator::draw(seed, &(1..=8), Kinds::Swarm);
        assert_eq!(
            Schedule::parse(&drawn.text().unwrap(), "a schedule").unwrap(),
            drawn,
            "seed {seed}"
        );
    }
}

#[test]
fn a_short_file_is_enough() {
    let text = "founders = [1, 2]\nfaults = \
        [{ at_ms = 0.5, do = \"start\", node = 3, settings = \"founds\" }]";
    let schedule = Schedule::parse(text, "short").unwrap();
    assert_eq!(schedule.config.min_nodes, 2);
    assert_eq!(schedule.faults[0].at.0, 500);
    assert_eq!(
        schedule.faults[0].act,
        Act::Start {
            node: NodeId(3),
            settings: Settings::Founds,
            clock_back: 0
        }
    );
}

#[test]
fn bad_files_are_refused_by_name() {
    let error = |text: &str| Schedule::parse(text, "bad").unwrap_err();
    for (text, line) in [
        ("founders = [1, 2\n", 1),
        ("founders = [1]\nfunders = [1]\n", 2),
        (
            "founders = [1]\nfaults = [\n{ at_ms = 1, do = \"explode\", node = 1 }]\n",
            2,
        ),
        (
            "founders = [1]\nfaults = [\n{ at_ms = 1, do = \"kill\", node = 1, twice = true }]\n",
            2,
        ),
        (
            "founders = [1]\nfaults = [\n{ at_ms = -1, do = \"kill\", node = 1 }]\n",
            2,
        ),
        ("founders = [1]\nhorizon_ms = -2\n", 2),
    ] {
        let error = error(text);
        assert!(
            matches!(&error, ScheduleError::Syntax { line: at, .. } if *at >= line),
            "{text}: {error}"
        );
        assert!(error.to_string().starts_with("bad, line "), "{error}");
    }
    for (text, word) in [
        ("founders = []\n", "founders"),
        ("founders = [1, 1]\n", "founders"),
        ("founders = [1]\nmin_nodes = 2\n", "min_nodes"),
        ("founders = [1]\nparameters = 0\n", "parameters"),
        (
            "founders = [1, 2]\nfaults = \
             [{ at_ms = 9, do = \"cut\", from = [1], to = [2], until_ms = 8 }]\n",
            "over before it begins",
        ),
        (
            "founders = [1]\nfaults = [{ at_ms = 9, do = \"start\", node = 1, clock_back = 1 }]\n",
            "first_incarnation",
        ),
        (
            "founders = [1]\nfaults = [{ at_ms = 9, do = \"slow\", node = 1, hundredths = 0 }]\n",
            "hundredths",
        ),
    ] {
        let error = error(text);
        assert!(
            matches!(&error, ScheduleError::Value { what, .. } if what.contains(word)),
            "{text}: {error}"
        );
    }
    let missing = Schedule::read(Path::new("no such file.toml")).unwrap_err();
    assert!(
        matches!(missing, ScheduleError::Unreadable { .. }),
        "{missing}"
    );
}
