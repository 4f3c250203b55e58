//! Parts of a made-up model, written by several nodes, read back, torn and altered.
#![allow(clippy::unwrap_used)]

mod hostile;
mod keeping;
mod large;

use super::folder::{Keeps, UNTOUCHED, Verified, prune};
use super::history::History;
use super::part::{self, Own};
use super::writer::ROOM_TRIED_AFTER;
use super::*;
use proptest::prelude::*;
use slowmo_actors::buffers::{ChunkedBuffer, Pool};
use slowmo_actors::ports::store::{Snapshot, Store};
use slowmo_actors::status::StatusBoard;
use slowmo_protocol::checkpoint::Points;
use slowmo_protocol::coordinator::{Origin, Outcome, RoundKind, RoundSpec};
use slowmo_protocol::ident::{Epoch, GroupId, Incarnation, Lineage, NodeId, Round, ShardId, Step};
use slowmo_protocol::published::PublicKey;
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

fn assembled(range: std::ops::Range<usize>, value: impl Fn(usize) -> f32) -> ChunkedBuffer {
    let pool = Pool::new();
    let mut assembled = ChunkedBuffer::default();
    // Pieces that fit no shard.
    for start in range.clone().step_by(77) {
        let mut buffer = pool.take(77.min(range.end - start));
        buffer
            .values_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(index, slot)| *slot = value(start + index));
        assembled.insert(start, buffer.freeze());
    }
    assembled
}

fn header(step: u64, run: u32) -> Header {
    let tensors = [
        ("layer.weight", vec![40, 75], Kind::Parameter),
        ("mean", vec![100], Kind::Buffer),
    ];
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
        tensors: tensors
            .map(|(name, shape, kind)| Tensor {
                name: name.to_owned(),
                shape,
                kind,
            })
            .into(),
    }
}

fn start(node: u64) -> Start {
    Start {
        node: NodeId(node),
        incarnation: Incarnation(5),
    }
}

fn own(node: u64) -> Own {
    Own {
        start: start(node),
        cursor: Some(format!("word {node}")),
        ancestors: vec![],
        trust: Trust::default(),
    }
}

/// Returns the snapshot of node 1 or 2 of two: every other shard.
fn snapshot(node: u64, step: u64) -> Snapshot {
    let shards: Vec<ShardId> = Layout::new(ELEMENTS)
        .shards()
        .filter(|shard| u64::from(shard.0) % 2 == node - 1)
        .collect();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
    let member = |id| Member {
        id: NodeId(id),
        incarnation: Incarnation(5),
        address,
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    let spec = RoundSpec {
        kind: RoundKind::Slow,
        step: Step(step - 1),
        gamma: 0.1,
        elements: ELEMENTS as u64,
    };
    let view = View::new(Epoch(1), vec![member(1), member(2)]).unwrap();
    let outcome = Outcome::of_all(Lineage(0xabc), Round(7), spec, view);
    let momentum = |shard: &ShardId| {
        let range = Layout::new(ELEMENTS).range(*shard);
        // Node 2's is zero, without pieces.
        if node == 2 {
            ChunkedBuffer::default()
        } else {
            assembled(range.start..range.end.min(PARAMETERS), |index| {
                -value(index, step)
            })
        }
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
    let path = folder.join(header.name().to_string());
    for node in nodes {
        part::write(&path, &header, own(*node), &snapshot(*node, step)).unwrap();
    }
    path
}

fn flat(checkpoint: &Checkpoint) -> Vec<f32> {
    let mut all = Vec::new();
    checkpoint
        .values(|values| all.extend_from_slice(values))
        .unwrap();
    all
}

#[test]
fn what_was_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 1, &[2, 1]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(
        flat(&checkpoint),
        (0..ELEMENTS)
            .map(|index| value(index, 96))
            .collect::<Vec<_>>()
    );
    let layout = Layout::new(ELEMENTS);
    let momentum = |index: usize| {
        let shard = layout
            .shards()
            .find(|shard| layout.range(*shard).contains(&index))
            .unwrap();
        if shard.0 % 2 == 0 {
            -value(index, 96)
        } else {
            0.0
        }
    };
    for range in [0..PARAMETERS, 17..1500, 2999..3000, 40..40] {
        let mut read = vec![9.0; range.len()];
        checkpoint.momentum(range.clone(), &mut read).unwrap();
        assert_eq!(read, range.map(momentum).collect::<Vec<_>>());
    }
    assert_eq!(checkpoint.optimizer(0).unwrap().unwrap(), [1.0; 11]);
    assert_eq!(
        checkpoint.optimizer(3).unwrap().unwrap(),
        [2.0; 11],
        "ranks are counted around"
    );
    assert_eq!(
        checkpoint
            .parts()
            .iter()
            .map(|part| part.cursor.clone().unwrap())
            .collect::<Vec<_>>(),
        ["word 1", "word 2"]
    );
    let leftovers = fs::read_dir(&path).unwrap().filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.')
    });
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
    let values = |bytes: &[u8]| {
        bytes
            .chunks(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    let weight = tensors.tensor("layer.weight").unwrap();
    let mean = tensors.tensor("mean").unwrap();
    assert_eq!((weight.shape(), mean.shape()), (&[40, 75][..], &[100][..]));
    assert_eq!(values(weight.data())[74], value(74, 96));
    assert_eq!(values(mean.data())[0], value(PARAMETERS, 96));
    assert!(matches!(
        export(&checkpoint, &file),
        Err(CheckpointError::Exists(_))
    ));
}

#[test]
fn names_that_are_there_twice_are_told_apart() {
    let tensor = |(name, kind): (&str, Kind)| Tensor {
        name: name.to_owned(),
        shape: vec![1],
        kind,
    };
    use Kind::{Buffer, Parameter};
    let tensors = [
        ("a", Parameter),
        ("a", Parameter),
        ("a", Buffer),
        ("a", Buffer),
        ("buffer.a", Buffer),
        ("__metadata__", Parameter),
    ];
    let names = unique_names(&tensors.map(tensor));
    assert_eq!(
        names,
        [
            "a",
            "a.2",
            "buffer.a.2",
            "buffer.a.3",
            "buffer.a",
            "__metadata__.2"
        ]
    );
    // An older version wrote them as they came.
    let folder = tempfile::tempdir().unwrap();
    let mut header = header(96, 0);
    header
        .tensors
        .iter_mut()
        .for_each(|tensor| tensor.name = "tensor 0".to_owned());
    let path = folder.path().join(header.name().to_string());
    for node in [1, 2] {
        part::write(&path, &header, own(node), &snapshot(node, 96)).unwrap();
    }
    let file = folder.path().join("model.safetensors");
    assert_eq!(export(&Checkpoint::open(&path).unwrap(), &file).unwrap(), 2);
    let bytes = fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("tensor 0").unwrap().shape(), [40, 75]);
    assert_eq!(tensors.tensor("buffer.tensor 0").unwrap().shape(), [100]);
    let twice = || super::tensor_file::Planned {
        name: "one".to_owned(),
        shape: vec![1],
    };
    let twice_named = folder.path().join("twice");
    let refused = super::tensor_file::TensorWriter::create(
        fs::File::create(&twice_named).unwrap(),
        &twice_named,
        vec![twice(), twice()],
        Default::default(),
    );
    assert!(
        refused
            .err()
            .unwrap()
            .to_string()
            .contains("two tensors would be named one")
    );
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
    assert_eq!(
        refused
            .iter()
            .map(|refused| refused.path.clone())
            .collect::<Vec<_>>(),
        [half, altered]
    );
    assert!(matches!(
        refused[0].error,
        CheckpointError::Incomplete { .. }
    ));
    assert!(
        refused[1]
            .error
            .to_string()
            .contains("node-2.safetensors was altered: the digest of optimizer"),
        "{}",
        refused[1].error
    );
}

#[test]
fn what_a_resumed_training_wrote_is_newer() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 960, 0, &[1, 2]);
    let resumed = write(folder.path(), 96, 1, &[1, 2]);
    assert_eq!(
        newest_whole(folder.path()).unwrap().0.unwrap().folder(),
        resumed
    );
    assert_eq!(list(folder.path()).unwrap().last().unwrap().path, resumed);
    let found = Resumed::newest(folder.path(), Some("slowmo"))
        .unwrap()
        .unwrap();
    assert_eq!(
        found.origin(next_run(folder.path()).unwrap()),
        Origin {
            run: 2,
            rounds: 37,
            momentum_lost: 0
        }
    );
    assert!(list(&folder.path().join("none")).unwrap().is_empty());
}

#[test]
fn another_outer_optimizer_begins_without_momentum() {
    use slowmo_actors::ports::store::Restored;
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    let name = Name::parse(path.file_name().unwrap().to_str().unwrap()).unwrap();
    let mut momentum = [1.0; 5];
    Resumed::named(folder.path(), name, Some("nesterov"))
        .unwrap()
        .momentum(0..5, &mut momentum)
        .unwrap();
    assert_eq!(momentum, [0.0; 5]);
    let other = Name { step: 97, ..name };
    assert!(matches!(
        Resumed::named(folder.path(), other, None),
        Err(CheckpointError::NoSuch { .. })
    ));
}

#[test]
fn whatever_is_altered_in_a_manifest_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 120, 0, &[1, 2]);
    let whole = ["node-1.json", "node-2.json"].map(|name| {
        (
            path.join(name),
            fs::read_to_string(path.join(name)).unwrap(),
        )
    });
    let momentum = whole[0].1.find(",\"momentum\":\"").unwrap();
    let momentum = &whole[0].1[momentum..momentum + 46];
    for (from, to) in [
        ("\"step\":120", "\"step\":920"),
        ("word", "Word"),
        (momentum, ""),
        ("{\"digest\"", "{\"Digest\""),
    ] {
        for (file, text) in &whole {
            // In both alike, so that they agree.
            fs::write(file, text.replacen(from, to, 1)).unwrap();
        }
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(".json was altered: the digest of the manifest does not match"),
            "{from}: {error}"
        );
        whole
            .iter()
            .for_each(|(file, text)| fs::write(file, text).unwrap());
    }
    Checkpoint::open(&path).unwrap().verify().unwrap();
}

#[test]
fn a_copy_under_another_name_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let older = write(folder.path(), 72, 0, &[1, 2]);
    let name = Name {
        run: 0,
        step: 120,
        lineage: Lineage(0xabc),
    };
    let copy = folder.path().join(name.to_string());
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&older).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    let error = Resumed::named(folder.path(), name, None).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Misnamed { holds, .. } if holds.step == 72),
        "{error}"
    );
    assert_eq!(
        newest_whole(folder.path()).unwrap().0.unwrap().folder(),
        older
    );
}

#[test]
fn manifests_of_the_form_before_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    let rewrite = |change: &dyn Fn(&mut Part)| {
        for name in ["node-1.json", "node-2.json"] {
            let mut part = Part::read(&path.join(name)).unwrap();
            part.format = 1;
            hostile::digest_again(&path, &mut part, xxhash_rust::xxh3::xxh3_128);
            change(&mut part);
            fs::write(path.join(name), serde_json::to_vec(&part).unwrap()).unwrap();
        }
    };
    rewrite(&|_| ());
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(
        export(&checkpoint, &folder.path().join("model.safetensors")).unwrap(),
        2
    );
    rewrite(&|part| part.shards.iter_mut().for_each(|kept| kept.momentum = None));
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("the slow momentum of a shard is missing"),
        "{error}"
    );
}

#[test]
fn parts_of_two_checkpoints_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let one = write(folder.path(), 96, 0, &[1]);
    let other = write(folder.path(), 144, 0, &[2]);
    for name in ["node-2.safetensors", "node-2.json"] {
        fs::copy(other.join(name), one.join(name)).unwrap();
    }
    assert!(matches!(
        Checkpoint::open(&one),
        Err(CheckpointError::Foreign { .. })
    ));
}

#[test]
fn names_are_read_as_they_are_written() {
    let name = Name {
        run: 3,
        step: 960,
        lineage: Lineage(0x1f),
    };
    let text = "run-0003-step-000000000960-0000000000000000000000000000001f";
    assert_eq!(
        (name.to_string().as_str(), Name::parse(text)),
        (text, Some(name))
    );
    for wrong in [
        "",
        "run-3-step-960-1f",
        "run-0003-step-000000000960-",
        &text[1..],
        &format!("{text}0"),
    ] {
        assert_eq!(Name::parse(wrong), None, "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever a file is cut off, and whichever byte is another: the older checkpoint is used,
    /// nothing panics.
    #[test]
    fn a_torn_or_altered_file_is_never_used(
        at in any::<prop::sample::Index>(),
        file in 0..4usize,
        cut in any::<bool>(),
        flip in 1..=255u8
    ) {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 48, 0, &[1, 2]);
        let newer = write(folder.path(), 96, 0, &[1, 2]);
        let path = newer.join(
            ["node-1.safetensors", "node-1.json", "node-2.safetensors", "node-2.json"][file]
        );
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
