//! Parts of a made-up model, written by several nodes, read back, torn and altered.
#![allow(clippy::unwrap_used)]

use super::part::{self, Own};
use super::*;
use proptest::prelude::*;
use slowmo_actors::buffers::{Assembled, Pool};
use slowmo_actors::ports::store::{Snapshot, Store};
use slowmo_actors::status::StatusBoard;
use slowmo_protocol::coordinator::{Origin, Outcome, RoundKind, Terms};
use slowmo_protocol::ident::{Epoch, Incarnation, Lineage, NodeId, Round, ShardId, Step};
use slowmo_protocol::shards::Layout;
use slowmo_protocol::trace::Start;
use slowmo_protocol::view::{Member, View};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PARAMETERS: usize = 3000;
const ELEMENTS: usize = 3100;

fn value(index: usize, step: u64) -> f32 {
    index as f32 * 0.25 - step as f32
}

fn assembled(range: std::ops::Range<usize>, value: impl Fn(usize) -> f32) -> Assembled {
    let (pool, mut assembled) = (Pool::new(), Assembled::default());
    // Pieces that fit no shard.
    for start in range.clone().step_by(77) {
        let mut buffer = pool.take(77.min(range.end - start));
        buffer.values_mut().iter_mut().enumerate().for_each(|(index, slot)| *slot = value(start + index));
        assembled.insert(start, buffer.freeze());
    }
    assembled
}

fn header(step: u64, run: u32) -> Header {
    let tensors = [("layer.weight", vec![40, 75], Kind::Parameter), ("mean", vec![100], Kind::Buffer)];
    Header {
        run,
        lineage: 0xabc,
        step,
        round: 7,
        rounds_before: 30,
        elements: ELEMENTS as u64,
        parameters: PARAMETERS as u64,
        outer: Some("slowmo".to_owned()),
        momentum_lost: 0,
        members: vec![1, 2],
        samples: None,
        tensors: tensors.map(|(name, shape, kind)| Tensor { name: name.to_owned(), shape, kind }).into(),
    }
}

fn start(node: u64) -> Start {
    Start { node: NodeId(node), incarnation: Incarnation(5) }
}

fn own(node: u64) -> Own {
    Own { start: start(node), cursor: Some(format!("word {node}")), ancestors: vec![] }
}

/// What node 1 or 2 of two writes: every other shard.
fn snapshot(node: u64, step: u64) -> Snapshot {
    let shards: Vec<ShardId> = Layout::new(ELEMENTS).shards().filter(|shard| u64::from(shard.0) % 2 == node - 1).collect();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
    let member = |id| Member { id: NodeId(id), incarnation: Incarnation(5), address, devices: 1 };
    let outcome = Outcome {
        lineage: Lineage(0xabc),
        round: Round(7),
        terms: Terms { kind: RoundKind::Slow, step: Step(step - 1), gamma: 0.1, elements: ELEMENTS as u64 },
        contributors: vec![NodeId(1), NodeId(2)],
        view: View::new(Epoch(1), vec![member(1), member(2)]).unwrap(),
        absent: vec![],
        momentum_lost: 0,
        samples: None,
        order: vec![],
        origin: Origin::default(),
    };
    let momentum = |shard: &ShardId| {
        let range = Layout::new(ELEMENTS).range(*shard);
        // Node 2's is zero, without pieces.
        if node == 2 { Assembled::default() } else { assembled(range.start..range.end.min(PARAMETERS), |index| -value(index, step)) }
    };
    let mut optimizer = Pool::new().take(11);
    optimizer.values_mut().fill(node as f32);
    Snapshot {
        members_before: outcome.view.members().into(),
        outcome,
        values: assembled(0..ELEMENTS, |index| value(index, step)),
        parameters: PARAMETERS,
        momentum: Some(shards.iter().map(momentum).collect()),
        shards,
        optimizer: Some(optimizer.freeze()),
    }
}

fn write(folder: &Path, step: u64, run: u32, nodes: &[u64]) -> PathBuf {
    let header = header(step, run);
    let path = folder.join(Name::of(&header).to_string());
    for node in nodes {
        part::write(&path, &header, own(*node), &snapshot(*node, step)).unwrap();
    }
    path
}

fn flat(checkpoint: &Checkpoint) -> Vec<f32> {
    let mut all = Vec::new();
    checkpoint.values(|values| all.extend_from_slice(values)).unwrap();
    all
}

#[test]
fn what_was_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 1, &[2, 1]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(flat(&checkpoint), (0..ELEMENTS).map(|index| value(index, 96)).collect::<Vec<_>>());
    let layout = Layout::new(ELEMENTS);
    let momentum = |index: usize| {
        let shard = layout.shards().find(|shard| layout.range(*shard).contains(&index)).unwrap();
        if shard.0 % 2 == 0 { -value(index, 96) } else { 0.0 }
    };
    for range in [0..PARAMETERS, 17..1500, 2999..3000, 40..40] {
        let mut read = vec![9.0; range.len()];
        checkpoint.momentum(range.clone(), &mut read).unwrap();
        assert_eq!(read, range.map(momentum).collect::<Vec<_>>());
    }
    assert_eq!(checkpoint.optimizer(0).unwrap().unwrap(), [1.0; 11]);
    assert_eq!(checkpoint.optimizer(3).unwrap().unwrap(), [2.0; 11], "ranks are counted around");
    assert_eq!(checkpoint.parts().iter().map(|part| part.cursor.clone().unwrap()).collect::<Vec<_>>(), ["word 1", "word 2"]);
    let leftovers = fs::read_dir(&path).unwrap().filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(leftovers.count(), 0);
}

#[test]
fn an_exported_file_has_the_models_own_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(&write(folder.path(), 96, 0, &[1, 2])).unwrap();
    let file = folder.path().join("model.safetensors");
    assert_eq!(export(&checkpoint, &file).unwrap(), 2);
    let bytes = fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |bytes: &[u8]| bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect::<Vec<_>>();
    let (weight, mean) = (tensors.tensor("layer.weight").unwrap(), tensors.tensor("mean").unwrap());
    assert_eq!((weight.shape(), mean.shape()), (&[40, 75][..], &[100][..]));
    assert_eq!(values(weight.data())[74], value(74, 96));
    assert_eq!(values(mean.data())[0], value(PARAMETERS, 96));
    assert!(matches!(export(&checkpoint, &file), Err(CheckpointError::Exists(_))));
}

#[test]
fn names_that_are_there_twice_are_told_apart() {
    let tensor = |(name, kind): (&str, Kind)| Tensor { name: name.to_owned(), shape: vec![1], kind };
    use Kind::{Buffer, Parameter};
    let tensors = [("a", Parameter), ("a", Parameter), ("a", Buffer), ("a", Buffer), ("buffer.a", Buffer), ("__metadata__", Parameter)];
    let names = unique_names(&tensors.map(tensor));
    assert_eq!(names, ["a", "a.2", "buffer.a.2", "buffer.a.3", "buffer.a", "__metadata__.2"]);
    // An older version wrote them as they came.
    let folder = tempfile::tempdir().unwrap();
    let mut header = header(96, 0);
    header.tensors.iter_mut().for_each(|tensor| tensor.name = "tensor 0".to_owned());
    let path = folder.path().join(Name::of(&header).to_string());
    for node in [1, 2] {
        part::write(&path, &header, own(node), &snapshot(node, 96)).unwrap();
    }
    let file = folder.path().join("model.safetensors");
    assert_eq!(export(&Checkpoint::open(&path).unwrap(), &file).unwrap(), 2);
    let bytes = fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("tensor 0").unwrap().shape(), [40, 75]);
    assert_eq!(tensors.tensor("buffer.tensor 0").unwrap().shape(), [100]);
    let twice = || super::tensor_file::Planned { name: "one".to_owned(), shape: vec![1] };
    let refused = super::tensor_file::TensorWriter::create(&folder.path().join("twice"), vec![twice(), twice()], Default::default());
    assert!(refused.err().unwrap().to_string().contains("two tensors would be named one"));
}

#[test]
fn the_newest_whole_one_is_used_and_what_is_wrong_is_named() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    let whole = write(folder.path(), 96, 0, &[1, 2]);
    let altered = write(folder.path(), 144, 0, &[1, 2]);
    let half = write(folder.path(), 192, 0, &[1]);
    // A bit of the last value of one file.
    let file = altered.join("node-2.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    fs::create_dir(folder.path().join("something else")).unwrap();
    let (found, refused) = newest_whole(folder.path()).unwrap();
    assert_eq!(found.unwrap().folder(), whole);
    assert_eq!(refused.iter().map(|refused| refused.path.clone()).collect::<Vec<_>>(), [half, altered]);
    assert!(matches!(refused[0].error, CheckpointError::Incomplete { .. }));
    assert!(refused[1].error.to_string().contains("node-2.safetensors was altered: optimizer"), "{}", refused[1].error);
}

#[test]
fn what_a_resumed_training_wrote_is_newer() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 960, 0, &[1, 2]);
    let resumed = write(folder.path(), 96, 1, &[1, 2]);
    assert_eq!(newest_whole(folder.path()).unwrap().0.unwrap().folder(), resumed);
    assert_eq!(list(folder.path()).unwrap().last().unwrap().path, resumed);
    let found = Resumed::newest(folder.path(), Some("slowmo")).unwrap().unwrap();
    assert_eq!(found.origin(next_run(folder.path()).unwrap()), Origin { run: 2, rounds: 37, momentum_lost: 0 });
    assert!(list(&folder.path().join("none")).unwrap().is_empty());
}

#[test]
fn another_outer_optimizer_begins_without_momentum() {
    use slowmo_actors::ports::store::Restored;
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    let name = Name::parse(path.file_name().unwrap().to_str().unwrap()).unwrap();
    let mut momentum = [1.0; 5];
    Resumed::named(folder.path(), name, Some("nesterov")).unwrap().momentum(0..5, &mut momentum).unwrap();
    assert_eq!(momentum, [0.0; 5]);
    let other = Name { step: 97, ..name };
    assert!(matches!(Resumed::named(folder.path(), other, None), Err(CheckpointError::NoSuch { .. })));
}

#[test]
fn old_ones_go_but_never_the_last_whole_ones() {
    let folder = tempfile::tempdir().unwrap();
    for step in [48, 96, 144, 192] {
        write(folder.path(), step, 0, if step == 96 { &[1] } else { &[1, 2] });
    }
    write(folder.path(), 240, 0, &[2]);
    assert_eq!(prune(folder.path(), keeps(2), &history(0, &[])).unwrap(), 2, "48, and 96 which never became whole");
    let left: Vec<u64> = list(folder.path()).unwrap().iter().map(|listed| listed.name.step).collect();
    assert_eq!(left, [144, 192, 240]);
    assert_eq!(prune(folder.path(), keeps(2), &history(0, &[])).unwrap(), 0);
}

fn keeps(whole: usize) -> Keeps {
    Keeps { whole, spacing: 48 }
}

/// The history of run `run` that goes on from these runs and steps.
fn history(run: u32, from: &[(u32, u64)]) -> History {
    let ancestors = from.iter().map(|(run, step)| Ancestor { run: *run, lineage: 0xabc, step: *step }).collect();
    History { run, lineage: Lineage(0xabc), ancestors }
}

#[test]
fn what_others_wrote_into_the_folder_is_never_removed() {
    let folder = tempfile::tempdir().unwrap();
    for (run, steps) in [(0, &[48, 96, 144][..]), (1, &[96, 144]), (2, &[144, 192, 240])] {
        steps.iter().for_each(|step| _ = write(folder.path(), *step, run, &[1, 2]));
    }
    // Another job's, or that of survivors: the same run, another lineage.
    let other = Name { run: 2, step: 192, lineage: Lineage(0xdef) };
    fs::create_dir(folder.path().join(other.to_string())).unwrap();
    // Run 2 was founded on step 96 of run 0: the rest of run 0, and run 1, are others'.
    assert_eq!(prune(folder.path(), keeps(2), &history(2, &[(0, 96)])).unwrap(), 3, "48 and 96 of run 0, 144 of its own");
    let left: Vec<_> = list(folder.path()).unwrap().iter().map(|listed| (listed.name.run, listed.name.step)).collect();
    assert_eq!(left, [(0, 144), (1, 96), (1, 144), (2, 192), (2, 192), (2, 240)]);
    // One that was founded anew has no past, and removes nothing that it did not write.
    assert_eq!(next_run(folder.path()).unwrap(), 3);
    write(folder.path(), 48, 3, &[1, 2]);
    assert_eq!(prune(folder.path(), keeps(1), &history(3, &[])).unwrap(), 0);
    assert_eq!(newest_whole(folder.path()).unwrap().0.unwrap().header().run, 3);
}

#[test]
#[cfg(unix)]
fn only_parts_are_removed_and_nothing_behind_a_link() {
    use std::os::unix::fs::symlink;
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stray = write(folder.path(), 48, 0, &[1, 2]);
    fs::write(stray.join("notes.json"), "{}").unwrap();
    let linked = write(elsewhere.path(), 72, 0, &[1, 2]);
    symlink(&linked, folder.path().join(linked.file_name().unwrap())).unwrap();
    fs::write(folder.path().join(Name { run: 0, step: 80, lineage: Lineage(0xabc) }.to_string()), "").unwrap();
    let last = write(folder.path(), 96, 0, &[1, 2]);
    fs::write(last.join("notes.json"), "{}").unwrap();
    fs::write(last.join(".node-2.json.5.tmp"), "half").unwrap();
    Checkpoint::open(&last).unwrap().verify().unwrap();
    write(folder.path(), 144, 0, &[1, 2]);
    assert_eq!(prune(folder.path(), keeps(2), &history(0, &[])).unwrap(), 0, "what a person put there keeps the folder");
    assert_eq!(fs::read_dir(&stray).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(), ["notes.json"]);
    Checkpoint::open(&linked).unwrap().verify().unwrap();
    fs::remove_file(last.join("notes.json")).unwrap();
    assert_eq!(prune(folder.path(), keeps(1), &history(0, &[])).unwrap(), 1);
    assert_eq!(list(folder.path()).unwrap().iter().map(|listed| listed.name.step).collect::<Vec<_>>(), [48, 72, 80, 144]);
}

#[test]
#[cfg(unix)]
fn what_is_no_file_is_not_waited_for() {
    for name in ["node-1.json", "node-2.safetensors"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 48, 0, &[1, 2]);
        let path = write(folder.path(), 96, 0, &[1, 2]).join(name);
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (found, refused) = newest_whole(folder.path()).unwrap();
        assert_eq!(found.unwrap().header().step, 48);
        assert!(refused[0].error.to_string().contains("it is no file"), "{}", refused[0].error);
    }
}

#[test]
fn what_does_not_become_whole_goes() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    // Nobody hears of node 2 any more.
    for number in 2..=40 {
        write(folder.path(), number * 48, 0, &[1]);
        prune(folder.path(), keeps(2), &history(0, &[])).unwrap();
    }
    let left: Vec<u64> = steps(folder.path()).iter().map(|step| step / 48).collect();
    assert_eq!(left, [1, 16, 24, 32, 36, 38, 39, 40]);
    // One becomes whole late, and what is older is of no use.
    write(folder.path(), 36 * 48, 0, &[2]);
    prune(folder.path(), keeps(2), &history(0, &[])).unwrap();
    assert_eq!(steps(folder.path()).iter().map(|step| step / 48).collect::<Vec<_>>(), [1, 36, 38, 39, 40]);
    // A whole one that lost its values is none that others could go for.
    fs::write(write(folder.path(), 41 * 48, 0, &[1, 2]).join("node-2.safetensors"), "").unwrap();
    prune(folder.path(), keeps(1), &history(0, &[])).unwrap();
    assert_eq!(steps(folder.path()).iter().map(|step| step / 48).collect::<Vec<_>>(), [36, 38, 39, 40, 41]);
}

#[test]
#[cfg(unix)]
fn what_is_left_behind_goes_when_nobody_touches_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    let (torn, other) = (write(folder.path(), 96, 0, &[1]), write(folder.path(), 96, 1, &[1]));
    write(folder.path(), 144, 0, &[1, 2]);
    write(folder.path(), 96, 2, &[1, 2]);
    let own = history(2, &[(0, 48)]);
    let age = |path: &Path, since| {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        for path in entries.chain([path.to_owned()]) {
            fs::File::open(path).unwrap().set_modified(std::time::SystemTime::now() - since).unwrap();
        }
    };
    age(&torn, UNTOUCHED / 2);
    age(&other, UNTOUCHED * 2);
    assert_eq!(prune(folder.path(), keeps(3), &own).unwrap(), 0, "others may be writing it still");
    age(&torn, UNTOUCHED * 2);
    assert_eq!(prune(folder.path(), keeps(3), &own).unwrap(), 1);
    let left: Vec<_> = list(folder.path()).unwrap().iter().map(|listed| (listed.name.run, listed.name.step)).collect();
    assert_eq!(left, [(0, 48), (0, 144), (1, 96), (2, 96)], "whole ones stay, and what is of no ancestor");
}

#[test]
fn a_node_knows_which_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, board) = writer(folder.path(), 3);
    let mut told = Vec::new();
    for number in 1..=6 {
        if number == 3 {
            // Node 2 writes one part, before this node its own.
            let like = Part::read(&folder.path().join(Name { run: 0, step: 96, lineage: Lineage(0xabc) }.to_string()).join("node-1.json"))
                .unwrap();
            let header = Header { step: 144, ..like.checkpoint };
            let path = folder.path().join(Name::of(&header).to_string());
            part::write(&path, &header, own(2), &snapshot(2, 144)).unwrap();
        }
        checkpoints.keep(snapshot(1, number * 48));
        checkpoints.flush();
        let now = board.read().checkpoints.unwrap();
        told.push((now.whole_step, now.not_whole));
    }
    assert_eq!(told, [(None, 0), (None, 1), (Some(144), 0), (Some(144), 0), (Some(144), 1), (Some(144), 2)]);
}

#[test]
#[cfg(target_os = "linux")]
fn what_could_not_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let header = header(96, 0);
    let path = folder.path().join(Name::of(&header).to_string());
    // Of values and manifest, the latter finds no room.
    fs::create_dir(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", path.join(".node-1.json.5.tmp")).unwrap();
    let error = part::write(&path, &header, own(1), &snapshot(1, 96)).unwrap_err();
    assert!(error.is_full() && !path.exists(), "{error}");
    // What others wrote is theirs.
    write(folder.path(), 96, 0, &[2]);
    std::os::unix::fs::symlink("/dev/full", path.join(".node-1.safetensors.5.tmp")).unwrap();
    part::write(&path, &header, own(1), &snapshot(1, 96)).unwrap_err();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
}

#[test]
fn what_goes_on_descends_from_all_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, header) = (write(folder.path(), 96, 4, &[1]), header(96, 4));
    // Node 1 joined, and did not know; node 2 did.
    let ancestors = vec![Ancestor { run: 2, lineage: 7, step: 48 }];
    part::write(&path, &header, Own { ancestors: ancestors.clone(), ..own(2) }, &snapshot(2, 96)).unwrap();
    let resumed = Resumed::newest(folder.path(), Some("slowmo")).unwrap().unwrap();
    assert_eq!(resumed.ancestors(), [&[Ancestor { run: 4, lineage: 0xabc, step: 96 }][..], &ancestors[..]].concat());
    assert_eq!(super::folder::ancestors_of(folder.path(), 4, Lineage(0xabc)).unwrap(), ancestors);
    assert_eq!(super::folder::ancestors_of(folder.path(), 3, Lineage(0xabc)).unwrap(), []);
}

#[test]
fn who_joins_learns_what_the_history_goes_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, _) = writer(folder.path(), 1);
    let ancestors = vec![Ancestor { run: 0, lineage: 0xabc, step: 48 }];
    write(folder.path(), 48, 0, &[1, 2]);
    let known = |step| {
        let mut snapshot = snapshot(1, step);
        snapshot.outcome.origin.run = 2;
        checkpoints.keep(snapshot);
        checkpoints.flush();
        let path = folder.path().join(Name { run: 2, step, lineage: Lineage(0xabc) }.to_string());
        Part::read(&path.join("node-1.json")).unwrap().ancestors
    };
    assert_eq!(known(96), []);
    // Another node knows, and what both wrote is whole: the past may go.
    let path = folder.path().join(Name { run: 2, step: 144, lineage: Lineage(0xabc) }.to_string());
    let mut header = Part::read(&path.with_file_name(Name { run: 2, step: 96, lineage: Lineage(0xabc) }.to_string()).join("node-1.json"))
        .unwrap()
        .checkpoint;
    header.step = 144;
    part::write(&path, &header, Own { ancestors: ancestors.clone(), ..own(2) }, &snapshot(2, 144)).unwrap();
    assert_eq!(known(144), ancestors);
    assert_eq!(steps(folder.path()), [144]);
}

#[test]
fn whole_ones_that_are_left_behind_are_known() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    let chosen = Name { run: 0, step: 48, lineage: Lineage(0xabc) };
    let others = |chosen| super::folder::others(folder.path(), chosen, 2).unwrap().iter().map(|name| name.step).collect::<Vec<_>>();
    assert_eq!((others(Some(chosen)), others(None)), (vec![], vec![48]));
    for (step, run, nodes) in [(96, 0, &[1, 2][..]), (24, 1, &[1, 2]), (48, 1, &[1])] {
        write(folder.path(), step, run, nodes);
    }
    assert_eq!(others(Some(chosen)), [24, 96], "newest first, whole ones only");
    assert_eq!(others(Some(Name { lineage: Lineage(1), run: 1, step: 99 })), [24], "of the same run, in another history");
}

/// Node 1's writer of a folder, its status, and what is written there.
fn writer(folder: &Path, keep_last: usize) -> (Checkpoints, Arc<StatusBoard>) {
    let board = StatusBoard::new();
    let settings = WriterSettings { start: start(1), folder: folder.to_owned(), keep_last, spacing: 48, outer: Some("slowmo".to_owned()) };
    (Checkpoints::new(Some(settings), None, 0, Arc::clone(&board)).unwrap(), board)
}

fn steps(folder: &Path) -> Vec<u64> {
    list(folder).unwrap().iter().map(|listed| listed.name.step).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_lets_go_of_old_ones_but_not_of_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, board) = writer(folder.path(), 3);
    let keep = |step: u64, full: bool| {
        let path = folder.path().join(Name { run: 0, step, lineage: Lineage(0xabc) }.to_string());
        fs::create_dir_all(&path).unwrap();
        if full {
            // What is written there finds no room.
            std::os::unix::fs::symlink("/dev/full", path.join(".node-1.safetensors.5.tmp")).unwrap();
        }
        checkpoints.keep(snapshot(1, step));
        checkpoints.flush();
        let told = board.read().checkpoints.unwrap();
        assert_eq!(told.error.is_some(), full, "{told:?}");
    };
    for step in [48, 96, 144] {
        write(folder.path(), step, 0, &[1, 2]);
    }
    keep(192, true);
    let whole = || list(folder.path()).unwrap().iter().filter(|listed| Checkpoint::open(&listed.path).is_ok()).count();
    assert_eq!((steps(folder.path())[0], whole()), (96, 2));
    for step in [240, 288, 336] {
        keep(step, true);
    }
    assert_eq!((steps(folder.path())[0], whole()), (144, 1), "the last whole one stays");
    // Whoever found no room keeps fewer until it has written some.
    let mut step = 480;
    for written in 0..2 * ROOM_TRIED_AFTER {
        step += 48;
        write(folder.path(), step, 0, &[1, 2]);
        step += 48;
        keep(step, false);
        assert_eq!(whole(), 1 + (written as usize + 1) / ROOM_TRIED_AFTER as usize, "{written}");
    }
}

#[test]
fn a_disk_that_takes_nothing_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    let header = header(96, 0);
    // A file stands where the folder should be.
    let path = folder.path().join(Name::of(&header).to_string());
    fs::write(&path, "").unwrap();
    let error = part::write(&path, &header, own(1), &snapshot(1, 96)).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
    // Whoever shows an error with its sources shows each once.
    assert!(std::error::Error::source(&error).is_none());
    assert!(std::error::Error::source(&crate::error::SpawnError::from(error)).is_none());
    assert_eq!(newest_whole(folder.path()).unwrap().0.unwrap().header().step, 48);
}

#[test]
fn whatever_is_altered_in_a_manifest_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 120, 0, &[1, 2]);
    let whole = ["node-1.json", "node-2.json"].map(|name| (path.join(name), fs::read_to_string(path.join(name)).unwrap()));
    let momentum = whole[0].1.find(",\"momentum\":\"").unwrap();
    let momentum = &whole[0].1[momentum..momentum + 46];
    for (from, to) in [("\"step\":120", "\"step\":920"), ("word", "Word"), (momentum, ""), ("{\"digest\"", "{\"Digest\"")] {
        for (file, text) in &whole {
            // In both alike, so that they agree.
            fs::write(file, text.replacen(from, to, 1)).unwrap();
        }
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(error.to_string().contains(".json was altered: the manifest is not what was written"), "{from}: {error}");
        whole.iter().for_each(|(file, text)| fs::write(file, text).unwrap());
    }
    Checkpoint::open(&path).unwrap().verify().unwrap();
}

#[test]
fn a_copy_under_another_name_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (older, name) = (write(folder.path(), 72, 0, &[1, 2]), Name { run: 0, step: 120, lineage: Lineage(0xabc) });
    let copy = folder.path().join(name.to_string());
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&older).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    let error = Resumed::named(folder.path(), name, None).unwrap_err();
    assert!(matches!(error, CheckpointError::Misnamed { holds, .. } if holds.step == 72), "{error}");
    assert_eq!(newest_whole(folder.path()).unwrap().0.unwrap().folder(), older);
}

#[test]
fn manifests_of_the_form_before_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    let rewrite = |change: &dyn Fn(&mut Part)| {
        for name in ["node-1.json", "node-2.json"] {
            let mut part = Part::read(&path.join(name)).unwrap();
            part.format = 1;
            change(&mut part);
            fs::write(path.join(name), serde_json::to_vec(&part).unwrap()).unwrap();
        }
    };
    rewrite(&|_| ());
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(export(&checkpoint, &folder.path().join("model.safetensors")).unwrap(), 2);
    rewrite(&|part| part.shards.iter_mut().for_each(|kept| kept.momentum = None));
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("the slow momentum of a shard is missing"), "{error}");
}

#[test]
fn parts_of_two_checkpoints_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (write(folder.path(), 96, 0, &[1]), write(folder.path(), 144, 0, &[2]));
    for name in ["node-2.safetensors", "node-2.json"] {
        fs::copy(other.join(name), one.join(name)).unwrap();
    }
    assert!(matches!(Checkpoint::open(&one), Err(CheckpointError::Foreign { .. })));
}

#[test]
fn names_are_read_as_they_are_written() {
    let name = Name { run: 3, step: 960, lineage: Lineage(0x1f) };
    let text = "run-0003-step-000000000960-0000000000000000000000000000001f";
    assert_eq!((name.to_string().as_str(), Name::parse(text)), (text, Some(name)));
    for wrong in ["", "run-3-step-960-1f", "run-0003-step-000000000960-", &text[1..], &format!("{text}0")] {
        assert_eq!(Name::parse(wrong), None, "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever a file is cut off, and whichever byte is another: the older checkpoint is used, nothing panics.
    #[test]
    fn a_torn_or_altered_file_is_never_used(at in any::<prop::sample::Index>(), file in 0..4usize, cut in any::<bool>(), flip in 1..=255u8) {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 48, 0, &[1, 2]);
        let newer = write(folder.path(), 96, 0, &[1, 2]);
        let path = newer.join(["node-1.safetensors", "node-1.json", "node-2.safetensors", "node-2.json"][file]);
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        fs::write(&path, &bytes).unwrap();
        let (found, refused) = newest_whole(folder.path()).unwrap();
        let found = found.unwrap();
        prop_assert_eq!(found.header().step, 48);
        prop_assert!(refused[0].error.to_string().contains("run-0000-step-000000000096"));
    }

    /// Manifests are read from a disk that others write to.
    #[test]
    fn any_text_is_a_manifest_or_an_error(text in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Part::parse(&text).is_err());
    }
}
