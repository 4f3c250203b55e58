//! The recorded trajectories as a test: over QUIC, over memory with another order of arrival, and
//! what the tool refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use slowmo_chaos::cluster::Link;
use slowmo_chaos::conformance::{ERROR_MAX, check, files};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Recorded files that ship with the package.
const FILES: usize = 16;

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

fn assert_every_file_passes(link: Link) {
    let files = files(&vectors()).unwrap();
    assert_eq!(files.len(), FILES);
    for file in files {
        let verdict = check(&file, link);
        assert!(
            verdict.passes(),
            "{} over {link:?}: {:?}, at most {ERROR_MAX:e} passes",
            verdict.name,
            verdict.result
        );
    }
}

#[test]
fn every_trajectory_over_quic() {
    assert_every_file_passes(Link::Quic);
}

#[test]
fn every_trajectory_in_memory_in_order() {
    assert_every_file_passes(Link::Memory(None));
}

#[test]
fn every_trajectory_in_memory_in_seeded_order() {
    assert_every_file_passes(Link::Memory(Some(1)));
}

fn tool(folder: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance"))
        .arg(folder)
        .args(more)
        .env_remove("SLOWMO_LOG")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder with one recorded file, changed as text.
fn folder_with(change: impl Fn(String) -> String) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let recorded = std::fs::read_to_string(vectors().join("localsgd_only.json")).unwrap();
    std::fs::write(folder.path().join("case.json"), change(recorded)).unwrap();
    folder
}

fn refusal(folder: &Path) -> String {
    let output = tool(folder, &["--transport", "memory"]);
    assert_eq!(output.status.code(), Some(1));
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn the_tool_prints_a_line_a_file_and_exits_0() {
    let folder = folder_with(|recorded| recorded);
    for more in [
        &["--transport", "quic"][..],
        &["--transport", "memory"],
        &["--transport", "memory", "--seed", "5"],
        &[],
    ] {
        let output = tool(folder.path(), more);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let printed = text(&output.stdout);
        let [line] = printed.lines().collect::<Vec<_>>()[..] else {
            panic!("one line, not {printed}")
        };
        let (name, error) = line.split_once(' ').unwrap();
        assert_eq!(name, "localsgd_only");
        assert!(error.parse::<f32>().unwrap() <= ERROR_MAX);
    }
}

#[test]
fn the_tool_refuses_a_wrong_trajectory() {
    let folder = folder_with(|recorded| recorded.replacen("\"lr\":0.1", "\"lr\":0.2", 1));
    let printed = refusal(folder.path());
    let error: f32 = printed
        .trim()
        .strip_prefix("localsgd_only ")
        .unwrap()
        .parse()
        .unwrap();
    assert!(error > ERROR_MAX, "{error}");
}

#[test]
fn the_tool_refuses_a_broken_file_and_goes_on() {
    let folder = folder_with(|recorded| recorded);
    std::fs::write(folder.path().join("broken.json"), "{\"name\": \"broken\"").unwrap();
    let printed = refusal(folder.path());
    assert!(
        printed.contains("broken.json failed: is not a trajectory: "),
        "{printed}"
    );
    assert!(printed.contains("\nlocalsgd_only "), "{printed}");
}

#[test]
fn the_tool_refuses_a_file_that_contradicts_itself() {
    let printed = refusal(
        folder_with(|text| text.replacen("\"gpus_per_node\":1", "\"gpus_per_node\":3", 1)).path(),
    );
    assert!(
        printed.contains("contradicts itself: workers do not divide into nodes"),
        "{printed}"
    );
}

#[test]
fn the_tool_refuses_an_empty_folder_and_one_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let printed = refusal(folder.path());
    assert!(
        printed.contains("holds no .json file: name a folder with trajectory files"),
        "{printed}"
    );
    let printed = refusal(&folder.path().join("missing"));
    assert!(
        printed.contains("missing") && printed.contains("name a folder"),
        "{printed}"
    );
}
