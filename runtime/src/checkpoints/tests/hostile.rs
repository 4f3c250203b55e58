//! Folders that others can write into, and values that are not finite.

use super::*;
use crate::checkpoints::folder::{TrustedFolder, Verified};
use crate::checkpoints::trust::Trust;
use std::os::unix::fs::symlink;

const KEY: [u8; 32] = [7; 32];
/// A user that is neither root nor runs tests.
const OTHER_USER: u32 = 12_345;

/// SHA-256, cut as digests of values are.
fn sha256(bytes: &[u8]) -> u128 {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    u128::from_be_bytes(digest.as_ref()[..16].try_into().unwrap())
}

/// Makes the digests of a part's values anew.
pub fn digest_again(folder: &Path, part: &mut Part, digest: fn(&[u8]) -> u128) {
    let bytes = fs::read(folder.join(&part.file)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let of = |name: &str| {
        tensors
            .tensor(name)
            .ok()
            .map(|tensor| digest(tensor.data()))
    };
    for kept in &mut part.shards {
        kept.values = of(&format!("values.{}", kept.shard)).unwrap();
        kept.momentum = of(&format!("momentum.{}", kept.shard));
    }
    if let Some(kept) = &mut part.optimizer {
        kept.digest = of("optimizer").unwrap();
    }
}

/// Puts a value at the end of node 1's file, and digests that fit: as a node would that checks
/// nothing.
fn plant(folder: &Path, value: f32) {
    let mut part = Part::read(&folder.join("node-1.json")).unwrap();
    let file = folder.join(&part.file);
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    digest_again(folder, &mut part, sha256);
    fs::write(folder.join("node-1.json"), part.text().unwrap()).unwrap();
}

fn steps(folder: &Path) -> Vec<u64> {
    list(folder)
        .unwrap()
        .iter()
        .map(|listed| listed.name.step)
        .collect()
}

fn history() -> History {
    History {
        run: 0,
        lineage: Lineage(0xabc),
        ancestors: vec![],
    }
}

#[test]
fn values_that_are_not_finite_are_not_written_over_a_whole_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut wrong = snapshot(1, 96);
        let range = Layout::new(ELEMENTS).range(wrong.shards[0]);
        wrong.values = assembled(0..ELEMENTS, |index| {
            if index == range.start + 5 {
                bad
            } else {
                value(index, 96)
            }
        });
        let error = part::write(&path, &header(96, 0), own(1), &wrong).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("[5] = ") && said.contains("values."),
            "{said}"
        );
        Checkpoint::open(&path).unwrap().verify().unwrap();
    }
    let mut wrong = snapshot(1, 144);
    let mut optimizer = Pool::new().take(11);
    optimizer.values_mut().fill(f32::NAN);
    wrong.optimizer = Some(optimizer.freeze());
    let next = folder.path().join(header(144, 0).name().to_string());
    part::write(&next, &header(144, 0), own(1), &wrong).unwrap_err();
    assert!(!next.exists(), "no part of it is left");
}

#[test]
fn a_checkpoint_that_is_not_finite_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let whole = write(folder.path(), 96, 0, &[1, 2]);
    let planted = write(folder.path(), 144, 0, &[1, 2]);
    plant(&planted, f32::NAN);
    let (found, refused) = newest_whole(folder.path()).unwrap();
    assert_eq!(found.unwrap().folder(), whole);
    assert!(
        matches!(&refused[0].error, CheckpointError::NotFinite { value, .. } if value.is_nan()),
        "{}",
        refused[0].error
    );
    plant(&planted, 1.0);
    assert_eq!(
        newest_whole(folder.path()).unwrap().0.unwrap().folder(),
        planted
    );
}

#[test]
fn the_last_good_checkpoint_is_never_removed() {
    let folder = tempfile::tempdir().unwrap();
    let keeps = Keeps {
        whole: 2,
        spacing: 48,
    };
    let good = write(folder.path(), 48, 0, &[1, 2]);
    for step in [96, 144, 192] {
        let planted = write(folder.path(), step, 0, &[1, 2]);
        plant(&planted, f32::INFINITY);
        let mut verified = Verified::default();
        assert_eq!(
            prune(folder.path(), keeps, &history(), &mut verified).unwrap(),
            0
        );
    }
    assert_eq!(
        newest_whole(folder.path()).unwrap().0.unwrap().folder(),
        good
    );
    // A good one came: all older than the newest two go.
    write(folder.path(), 240, 0, &[1, 2]);
    let mut verified = Verified::default();
    assert_eq!(
        prune(folder.path(), keeps, &history(), &mut verified).unwrap(),
        3
    );
    assert_eq!(steps(folder.path()), [192, 240]);
}

#[test]
fn links_are_not_followed_when_a_part_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let victim = elsewhere.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let path = folder.path().join(header(96, 0).name().to_string());
    fs::create_dir(&path).unwrap();
    let incarnation = own(1).start.incarnation.0;
    for name in [
        format!(".node-1.safetensors.{incarnation}.tmp"),
        format!(".node-1.json.{incarnation}.tmp"),
        "node-1.safetensors".to_owned(),
        "node-1.json".to_owned(),
    ] {
        symlink(&victim, path.join(name)).unwrap();
    }
    write(folder.path(), 96, 0, &[1, 2]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    Checkpoint::open(&path).unwrap().verify().unwrap();
    for name in ["node-1.safetensors", "node-1.json"] {
        let found = fs::symlink_metadata(path.join(name)).unwrap();
        assert!(found.is_file(), "{name} took the link's place");
    }

    // The checkpoint's folder itself is a link.
    let path = folder.path().join(header(144, 0).name().to_string());
    symlink(elsewhere.path(), &path).unwrap();
    part::write(&path, &header(144, 0), own(1), &snapshot(1, 144)).unwrap_err();
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

#[test]
fn links_are_not_followed_when_a_part_is_read_or_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    let elsewhere = folder.path().join("elsewhere.json");
    fs::rename(path.join("node-1.json"), &elsewhere).unwrap();
    symlink(&elsewhere, path.join("node-1.json")).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("it is no file"), "{error}");

    write(folder.path(), 144, 0, &[1, 2]);
    let keeps = Keeps {
        whole: 1,
        spacing: 48,
    };
    prune(folder.path(), keeps, &history(), &mut Verified::default()).unwrap();
    assert_eq!(steps(folder.path()), [144]);
    assert!(elsewhere.exists(), "the link went, not what it led to");
}

#[test]
fn a_sealed_manifest_is_believed_whoever_owns_it_and_another_users_only_with_a_seal() {
    let cluster = Trust::of(&[KEY]);
    let rotated = Trust::of(&[[8; 32], KEY]);
    let others = Trust::of(&[[9; 32]]);
    let keyless = Trust::of(&[]);
    let part = Part::read(&sealed(&cluster).1).unwrap();
    let behind = |text: &[u8]| text[br#"{"digest":""#.len() + 32 + 2..].to_vec();
    let with_seal = behind(&part.sealed_text(&cluster).unwrap());
    let without = behind(&part.sealed_text(&keyless).unwrap());
    let mut altered = with_seal.clone();
    let end = altered.len() - 3;
    altered[end] ^= 1;
    let me = rustix::process::geteuid().as_raw();
    for (trust, text, owner, believed) in [
        (&cluster, &with_seal, OTHER_USER, true),
        (&rotated, &with_seal, OTHER_USER, true),
        (&others, &with_seal, OTHER_USER, false),
        (&keyless, &with_seal, OTHER_USER, false),
        (&cluster, &without, OTHER_USER, false),
        (&cluster, &altered, OTHER_USER, false),
        (&keyless, &without, me, true),
        (&cluster, &without, me, true),
        (&keyless, &without, 0, true),
    ] {
        assert_eq!(trust.believes(text, owner), believed, "{owner}");
    }
}

/// A checkpoint whose manifests are sealed, and the file of one.
fn sealed(trust: &Trust) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(header(96, 0).name().to_string());
    for node in [1, 2] {
        let own = Own {
            trust: trust.clone(),
            ..own(node)
        };
        part::write(&path, &header(96, 0), own, &snapshot(node, 96)).unwrap();
    }
    (folder, path.join("node-1.json"))
}

/// Runs as root only, which can give files away.
#[test]
fn a_newest_run_that_another_user_planted_is_not_resumed() {
    let trust = Trust::of(&[KEY]);
    let (folder, of_cluster) = sealed(&trust);
    let planted = write(folder.path(), 960, 7, &[1, 2]);
    let give_away = |path: &Path| std::os::unix::fs::chown(path, Some(OTHER_USER), None).is_ok();
    let given = ["node-1.json", "node-2.json"]
        .iter()
        .all(|name| give_away(&planted.join(name)));
    if !given {
        return;
    }
    for name in ["node-1.json", "node-2.json"] {
        assert!(
            give_away(&of_cluster.with_file_name(name)),
            "sealed: any owner"
        );
    }
    // What others add to the cluster's own checkpoint is left out of it.
    let added = of_cluster.with_file_name("node-77.json");
    fs::write(&added, "junk").unwrap();
    assert!(give_away(&added));
    let trusted = TrustedFolder {
        folder: folder.path(),
        trust: &trust,
    };
    let (found, refused) = newest_whole(trusted).unwrap();
    assert_eq!(found.unwrap().header().step, 96);
    assert!(
        matches!(refused[0].error, CheckpointError::NotTrusted { .. }),
        "{}",
        refused[0].error
    );
    assert_eq!(next_run(trusted).unwrap(), 1, "run 7 is nobody's");
    // Without the cluster's key nothing of another user is believed.
    let trusted = TrustedFolder {
        folder: folder.path(),
        trust: &Trust::of(&[]),
    };
    assert!(newest_whole(trusted).unwrap().0.is_none());
    // Tools show everything.
    assert_eq!(
        newest_whole(folder.path()).unwrap().0.unwrap().header().run,
        7
    );
}

#[test]
fn what_is_no_file_makes_a_checkpoint_no_less_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    symlink(path.join("node-1.json"), path.join("node-0.json")).unwrap();
    symlink("/no/such", path.join("node-77.json")).unwrap();
    fs::create_dir(path.join("node-78.json")).unwrap();
    _ = std::os::unix::net::UnixListener::bind(path.join("node-79.json")).unwrap();
    let trust = Trust::of(&[KEY]);
    for trusted in [
        TrustedFolder::from(folder.path()),
        TrustedFolder {
            folder: folder.path(),
            trust: &trust,
        },
    ] {
        let (found, refused) = newest_whole(trusted).unwrap();
        assert_eq!(found.unwrap().parts().len(), 2, "{refused:?}");
    }
    // A shard is missing now, and the error names what has a manifest's place.
    fs::remove_file(path.join("node-2.json")).unwrap();
    let error = Checkpoint::open(&path).unwrap_err();
    assert!(matches!(error, CheckpointError::NoFile { .. }), "{error}");
}

/// Runs as root only, which can give files away.
#[test]
fn a_sealed_manifest_that_another_user_copied_makes_a_checkpoint_no_less_whole() {
    let trust = Trust::of(&[KEY]);
    let (folder, older) = sealed(&trust);
    let path = folder.path().join(header(144, 0).name().to_string());
    for node in [1, 2] {
        let own = Own {
            trust: trust.clone(),
            ..own(node)
        };
        part::write(&path, &header(144, 0), own, &snapshot(node, 144)).unwrap();
    }
    for (from, to) in [
        (older.clone(), "node-0.json"),
        (older, "node-1.json.copy"),
        (path.join("node-2.json"), "node-77.json"),
    ] {
        let to = path.join(to);
        fs::copy(from, &to).unwrap();
        if std::os::unix::fs::chown(&to, Some(OTHER_USER), None).is_err() {
            return;
        }
    }
    let trusted = TrustedFolder {
        folder: folder.path(),
        trust: &trust,
    };
    let (found, refused) = newest_whole(trusted).unwrap();
    assert_eq!(found.unwrap().folder(), path, "{refused:?}");
    // Nor does a copy make a run of a folder.
    let planted = folder.path().join(header(960, 7).name().to_string());
    fs::create_dir(&planted).unwrap();
    fs::rename(path.join("node-77.json"), planted.join("node-2.json")).unwrap();
    assert_eq!(next_run(trusted).unwrap(), 1);
}

/// Runs as root only, which can give files away.
#[test]
fn little_is_read_of_manifests_that_another_user_planted() {
    use super::super::manifest::MANIFEST_BYTES_MAX;
    use super::super::trust::REFUSED_BYTES_MAX;
    const PLANTED: u64 = 40;
    let trust = Trust::of(&[KEY]);
    let (folder, of_cluster) = sealed(&trust);
    let trusted = TrustedFolder {
        folder: folder.path(),
        trust: &trust,
    };
    let with_seal = [
        br#"{"digest":""#.as_slice(),
        &[b'0'; 32],
        br#"","seal":""#,
        &[b'0'; 64],
    ];
    let with_seal = [&with_seal.concat(), br#"","#.as_slice()].concat();
    for (begin, read_max) in [
        (&b"{"[..], PLANTED * 200),
        (&with_seal, REFUSED_BYTES_MAX + MANIFEST_BYTES_MAX),
    ] {
        for node in 100..100 + PLANTED {
            let planted = of_cluster.with_file_name(format!("node-{node}.json"));
            fs::write(&planted, begin).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&planted).unwrap();
            file.set_len(MANIFEST_BYTES_MAX).unwrap();
            if std::os::unix::fs::chown(&planted, Some(OTHER_USER), None).is_err() {
                return;
            }
        }
        let before = trust.refused_bytes();
        assert!(newest_whole(trusted).unwrap().0.is_some());
        let read = trust.refused_bytes() - before;
        assert!(read > 0 && read <= read_max, "{read}");
    }
    assert!(!trust.still_reads(OTHER_USER, &of_cluster));
    assert!(newest_whole(trusted).unwrap().0.is_some(), "its own user's");
}

#[test]
fn the_cluster_has_its_place_among_many_planted_manifests() {
    use super::super::checkpoint::manifests;
    use slowmo_protocol::view::MEMBERS_MAX;
    let folder = tempfile::tempdir().unwrap();
    for node in 0..MEMBERS_MAX + 10 {
        let planted = folder.path().join(format!("node-{node}.json"));
        fs::write(&planted, "").unwrap();
        // As root only; otherwise they are all this user's.
        _ = std::os::unix::fs::chown(&planted, Some(OTHER_USER), None);
    }
    let listed = manifests(folder.path()).unwrap().len();
    assert_eq!(listed, MEMBERS_MAX, "one user's are bounded");
    if rustix::process::geteuid().is_root() {
        fs::write(folder.path().join("node-9999.json"), "").unwrap();
        let listed = manifests(folder.path()).unwrap();
        assert!(listed.iter().any(|(node, _)| *node == 9999));
    }
}

#[test]
fn a_manifest_is_bounded_and_a_header_is_held_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 0, &[1, 2]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.header().tensors.len(), 2);
    let held = |part: &Part| part.checkpoint.tensors.len() + part.checkpoint.members.len();
    assert_eq!(checkpoint.parts().iter().map(held).sum::<usize>(), 0);
    let manifest = path.join("node-1.json");
    let mut text = fs::read(&manifest).unwrap();
    text.resize(
        usize::try_from(super::super::manifest::MANIFEST_BYTES_MAX).unwrap() + 1,
        b' ',
    );
    fs::write(&manifest, text).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("longer than any manifest"), "{error}");
}

#[test]
fn a_key_seals_what_a_node_writes() {
    let folder = tempfile::tempdir().unwrap();
    let board = StatusBoard::new();
    let settings = WriterSettings {
        start: start(1),
        folder: folder.path().to_owned(),
        keep_last: 3,
        points: Points::each(48),
        outer: Some("slowmo".to_owned()),
        trust: Trust::of(&[KEY]),
    };
    let checkpoints = Checkpoints::new(Some(settings), None, 0, board).unwrap();
    checkpoints.keep(snapshot(1, 96));
    checkpoints.end(false);
    let written = list(folder.path()).unwrap();
    let text = fs::read_to_string(written[0].path.join("node-1.json")).unwrap();
    assert!(text[..80].contains("\",\"seal\":\""), "{}", &text[..80]);
}
