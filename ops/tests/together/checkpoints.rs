//! Checkpoints of real processes: all killed at once, at any moment of writing, and going on with
//! another number of nodes.

use crate::common::until_some;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde_json::Value;
use slowmo::CheckpointError;
use slowmo::internal::checkpoints::{list, newest_whole};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Moments at which a run is killed.
const KILLS: u64 = 20;

fn slowmo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slowmo"));
    command
        .env("SLOWMO_LOG", "error")
        .env_remove("SLOWMO_CLUSTER_KEY");
    command
}

/// Nodes that train with a checkpoint after every outer round, in a process group with their
/// launcher.
fn launch(nodes: usize, folder: &Path, training: &[&str]) -> Child {
    launch_command(nodes, folder, training).spawn().unwrap()
}

fn launch_command(nodes: usize, folder: &Path, training: &[&str]) -> Command {
    let mut command = slowmo();
    command
        .args([
            "launch",
            "--nodes",
            &nodes.to_string(),
            "--",
            env!("CARGO_BIN_EXE_slowmo"),
        ])
        .args(training);
    command
        .env("SLOWMO_CHECKPOINTS", folder)
        .env("SLOWMO_CHECKPOINT_EVERY", "1")
        .env("XDG_RUNTIME_DIR", folder.parent().unwrap());
    command.env("SLOWMO_BASE", "none").env("SLOWMO_TAU", "6");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A demo node of a run without end.
const DIGITS: [&str; 3] = ["demo-node", "--steps", "1000000"];

/// Kills a launcher without warning. Its nodes end with it.
fn kill(mut launcher: Child) {
    launcher.kill().unwrap();
    launcher.wait().unwrap();
}

/// The nodes' events until the job ends, or is dropped.
fn events(launcher: &mut Child) -> impl Iterator<Item = Value> + use<> {
    let lines = BufReader::new(launcher.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_str(line.split_once("] ")?.1).ok())
}

#[test]
fn killed_at_any_moment_of_writing_a_run_goes_on() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let mut reached = (0, 0);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for kill_number in 0..KILLS {
        // Any number of nodes goes on from any other.
        let nodes = 1 + (kill_number as usize) % 3;
        let before = list(&folder).unwrap();
        let launcher = launch(nodes, &folder, &DIGITS);
        // Every start is a history of its own.
        until_some("a part is being written", || {
            list(&folder)
                .unwrap()
                .into_iter()
                .find(|listed| !before.contains(listed))
        });
        std::thread::sleep(Duration::from_micros(random.next_u64() % 60_000));
        kill(launcher);
        // Another process may be writing still, for as long as it takes to hear that its launcher
        // is gone.
        std::thread::sleep(Duration::from_millis(300));
        let (found, refused) = newest_whole(&folder).unwrap();
        let torn = refused
            .iter()
            .find(|refused| !matches!(refused.error, CheckpointError::Incomplete { .. }));
        assert!(torn.is_none(), "a part was there but not whole: {torn:?}");
        // The very first may not have become whole.
        let now = found.map_or((0, 0), |checkpoint| {
            (checkpoint.header().run, checkpoint.header().step)
        });
        assert!(now >= reached, "{now:?} after {reached:?}");
        reached = now;
    }
    assert!(reached.0 > 3 && reached.1 > 6, "{reached:?}");
}

#[test]
fn another_number_of_nodes_holds_what_was_kept() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let first = launch(3, &folder, &DIGITS);
    until_some("the third checkpoint", || {
        list(&folder)
            .ok()?
            .into_iter()
            .find(|listed| listed.name.step >= 18)
    });
    kill(first);
    std::thread::sleep(Duration::from_millis(500));
    let kept = newest_whole(&folder).unwrap().0.unwrap();
    let mut values = Vec::new();
    kept.values(|piece| values.extend_from_slice(piece))
        .unwrap();
    let kept_digest = slowmo::digest(&values).unwrap();
    let mut momentum = vec![0.0; values.len()];
    kept.momentum(0..values.len(), &mut momentum).unwrap();
    assert!(momentum.iter().any(|value| *value != 0.0));
    // As many steps as were made: what the two nodes hold at their start is what they end with.
    let steps = kept.header().step;
    let mut second = launch(2, &folder, &["demo-node", "--steps", &steps.to_string()]);
    let events: Vec<Value> = events(&mut second).collect();
    assert!(second.wait().unwrap().success());
    let of = |kind: &'static str| events.iter().filter(move |event| event["event"] == kind);
    assert_eq!(of("start").count(), 2);
    for started in of("start") {
        assert_eq!(
            (started["step"].as_u64(), started["nodes"].as_u64()),
            (Some(steps), Some(2))
        );
    }
    assert_eq!(of("done").count(), 2);
    for done in of("done") {
        assert_eq!(done["digest"], kept_digest.as_str());
    }
}

#[test]
fn one_node_goes_on_bit_for_bit() {
    let parent = tempfile::tempdir().unwrap();
    let train = |folder: &str, steps: &str| {
        let folder = parent.path().join(folder);
        let mut job = launch(1, &folder, &["demo-node", "--steps", steps]);
        let finished = events(&mut job)
            .find(|event| event["event"] == "done")
            .unwrap();
        assert!(job.wait().unwrap().success());
        (
            finished["digest"].clone(),
            newest_whole(&folder).unwrap().0.unwrap(),
        )
    };
    let (straight, _) = train("straight", "60");
    let (half, kept) = train("halves", "30");
    // The optimizer's own momentum is kept with the rest.
    assert_eq!(
        kept.optimizer(0).unwrap().map(|values| values.len() as u64),
        Some(kept.header().parameters)
    );
    let (whole, _) = train("halves", "60");
    assert!(
        straight.is_string() && straight == whole && straight != half,
        "{straight} {half} {whole}"
    );
}

#[test]
fn the_command_line_shows_checks_and_exports() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let path = folder.to_str().unwrap();
    let missing = slowmo()
        .args(["checkpoint", "inspect", path])
        .output()
        .unwrap();
    assert!(
        !missing.status.success()
            && String::from_utf8_lossy(&missing.stderr).contains("there is no folder")
    );
    let mut job = launch(2, &folder, &["demo-node", "--steps", "12"]);
    assert!(job.wait().unwrap().success());
    let inspected = slowmo()
        .args(["checkpoint", "inspect", path, "--json"])
        .output()
        .unwrap();
    let inspected: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    let steps: Vec<u64> = inspected["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["step"].as_u64())
        .collect();
    assert_eq!(steps, [6, 12]);
    let model = parent.path().join("model.safetensors");
    let exported = slowmo()
        .args([
            "checkpoint",
            "export",
            path,
            "--out",
            model.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert!(
        exported.status.success(),
        "{}",
        String::from_utf8_lossy(&exported.stderr)
    );
    let exported = std::fs::read(&model).unwrap();
    let length = u64::from_le_bytes(exported[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&exported[8..8 + length]).unwrap();
    let shapes: Vec<_> = header
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .collect();
    assert!(
        shapes
            .iter()
            .any(|(_, tensor)| tensor["shape"] == serde_json::json!([128, 64])),
        "{header}"
    );
    // The newest one loses its tail.
    let newest = list(&folder).unwrap().pop().unwrap();
    let part = newest.path.join("node-1.safetensors");
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[..bytes.len() - 1]).unwrap();
    let verified = slowmo()
        .args(["checkpoint", "verify", path])
        .output()
        .unwrap();
    assert_eq!(verified.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&verified.stdout).contains("node-1.safetensors is torn"));
}

/// Nodes that train without end, with a checkpoint due so rarely that none is: an average after
/// each second step, an outer round after each sixth.
fn launch_without_schedule(nodes: usize, folder: &Path, steps: &str) -> Child {
    let training = ["demo-node", "--steps", steps];
    let mut command = launch_command(nodes, folder, &training);
    command
        .env("SLOWMO_CHECKPOINT_EVERY", "1000000")
        .env("SLOWMO_BASE", "local_sgd")
        .env("SLOWMO_FREQUENCY", "2");
    command.spawn().unwrap()
}

/// The step that follows the newest whole checkpoint, whose values are right, and its parts.
fn whole(folder: &Path) -> Option<(u64, usize)> {
    let kept = newest_whole(folder).ok()?.0?;
    kept.verify().unwrap();
    Some((kept.header().step, kept.parts().len()))
}

/// `slowmo checkpoint now` of the only job of a folder.
fn checkpoint_now(folder: &Path) -> (bool, String) {
    let output = slowmo()
        .args(["checkpoint", "now", "--wait", "60"])
        .env("XDG_RUNTIME_DIR", folder.parent().unwrap())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    (output.status.success(), said)
}

#[test]
fn a_checkpoint_is_made_on_demand_and_another_one_at_a_planned_stop_of_all() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let mut launcher = launch_without_schedule(3, &folder, "1000000");
    let mut events = events(&mut launcher);
    events.find(|event| event["event"] == "round").unwrap();
    let drains = std::thread::spawn(move || events.count());
    let (made, said) = until_some("a node is a member", || {
        let (made, said) = checkpoint_now(&folder);
        (made || !said.contains("not a member")).then_some((made, said))
    });
    assert!(made && said.contains("is whole"), "{said}");
    let (asked, parts) = whole(&folder).unwrap();
    assert!(said.contains(&format!("step {asked}")), "{said}");
    assert_eq!((asked % 6, parts), (0, 3));

    // As an operator stops a job.
    let launcher_id = launcher.id().to_string();
    assert!(
        Command::new("kill")
            .arg(&launcher_id)
            .status()
            .unwrap()
            .success()
    );
    let begun = Instant::now();
    let ended = launcher.wait().unwrap();
    drains.join().unwrap();
    let took = begun.elapsed();
    let (last, _) = whole(&folder).unwrap();
    assert!(
        last > asked && last % 6 == 0,
        "{last} after {asked}; {ended} after {took:?}"
    );
}

#[test]
fn at_the_end_of_training_the_last_outer_round_is_kept() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let launcher = launch_without_schedule(3, &folder, "45");
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(whole(&folder), Some((42, 3)));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.ends_with(" s; the last complete checkpoint is of step 42\n"),
        "{said}"
    );
}

#[test]
fn a_job_whose_nodes_have_different_folders_says_at_its_end_that_nothing_is_complete() {
    let parent = tempfile::tempdir().unwrap();
    let script = format!(
        "SLOWMO_CHECKPOINTS=\"$SLOWMO_CHECKPOINTS/$SLOWMO_NODE_ID\" exec {} demo-node --steps 12",
        env!("CARGO_BIN_EXE_slowmo")
    );
    let output = slowmo()
        .args(["launch", "--nodes", "2", "--", "sh", "-c", &script])
        .env("SLOWMO_CHECKPOINTS", parent.path())
        .env("SLOWMO_CHECKPOINT_EVERY", "1")
        .env("SLOWMO_BASE", "none")
        .env("SLOWMO_TAU", "6")
        .output()
        .unwrap();
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(" s; no checkpoint is complete"), "{said}");
}
