//! Which checkpoints stay, which go, and what a disk that fails leaves.

use super::*;
use crate::checkpoints::handles::full;

#[test]
fn old_ones_go_but_never_the_last_whole_ones() {
    let folder = tempfile::tempdir().unwrap();
    for step in [48, 96, 144, 192] {
        write(
            folder.path(),
            step,
            0,
            if step == 96 { &[1] } else { &[1, 2] },
        );
    }
    write(folder.path(), 240, 0, &[2]);
    assert_eq!(
        prune(
            folder.path(),
            keeps(2),
            &history(0, &[]),
            &mut Verified::default()
        )
        .unwrap(),
        2,
        "48, and 96 which never became whole"
    );
    let left: Vec<u64> = list(folder.path())
        .unwrap()
        .iter()
        .map(|listed| listed.name.step)
        .collect();
    assert_eq!(left, [144, 192, 240]);
    assert_eq!(
        prune(
            folder.path(),
            keeps(2),
            &history(0, &[]),
            &mut Verified::default()
        )
        .unwrap(),
        0
    );
}

fn keeps(whole: usize) -> Keeps {
    Keeps { whole, spacing: 48 }
}

/// The history of run `run` that goes on from these runs and steps.
fn history(run: u32, from: &[(u32, u64)]) -> History {
    let ancestors = from
        .iter()
        .map(|(run, step)| Ancestor {
            run: *run,
            lineage: 0xabc,
            step: *step,
        })
        .collect();
    History {
        run,
        lineage: Lineage(0xabc),
        ancestors,
    }
}

#[test]
fn what_others_wrote_into_the_folder_is_never_removed() {
    let folder = tempfile::tempdir().unwrap();
    for (run, steps) in [
        (0, &[48, 96, 144][..]),
        (1, &[96, 144]),
        (2, &[144, 192, 240]),
    ] {
        steps
            .iter()
            .for_each(|step| _ = write(folder.path(), *step, run, &[1, 2]));
    }
    // Another job's, or that of survivors: the same run, another lineage.
    let other = Name {
        run: 2,
        step: 192,
        lineage: Lineage(0xdef),
    };
    fs::create_dir(folder.path().join(other.to_string())).unwrap();
    // Run 2 was bootstrapped on step 96 of run 0: the rest of run 0, and run 1, are others'.
    assert_eq!(
        prune(
            folder.path(),
            keeps(2),
            &history(2, &[(0, 96)]),
            &mut Verified::default()
        )
        .unwrap(),
        3,
        "48 and 96 of run 0, 144 of its own"
    );
    let left: Vec<_> = list(folder.path())
        .unwrap()
        .iter()
        .map(|listed| (listed.name.run, listed.name.step))
        .collect();
    assert_eq!(
        left,
        [(0, 144), (1, 96), (1, 144), (2, 192), (2, 192), (2, 240)]
    );
    // One that was bootstrapped anew has no past, and removes nothing that it did not write.
    assert_eq!(next_run(folder.path()).unwrap(), 3);
    write(folder.path(), 48, 3, &[1, 2]);
    assert_eq!(
        prune(
            folder.path(),
            keeps(1),
            &history(3, &[]),
            &mut Verified::default()
        )
        .unwrap(),
        0
    );
    assert_eq!(
        newest_whole(folder.path()).unwrap().0.unwrap().header().run,
        3
    );
}

#[test]
#[cfg(unix)]
fn only_parts_are_removed_and_nothing_behind_a_link() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let stray = write(folder.path(), 48, 0, &[1, 2]);
    fs::write(stray.join("notes.json"), "{}").unwrap();
    let linked = write(elsewhere.path(), 72, 0, &[1, 2]);
    symlink(&linked, folder.path().join(linked.file_name().unwrap())).unwrap();
    fs::write(
        folder.path().join(
            Name {
                run: 0,
                step: 80,
                lineage: Lineage(0xabc),
            }
            .to_string(),
        ),
        "",
    )
    .unwrap();
    let last = write(folder.path(), 96, 0, &[1, 2]);
    fs::write(last.join("notes.json"), "{}").unwrap();
    fs::write(last.join(".node-2.json.5.tmp"), "half").unwrap();
    Checkpoint::open(&last).unwrap().verify().unwrap();
    write(folder.path(), 144, 0, &[1, 2]);
    assert_eq!(
        prune(
            folder.path(),
            keeps(2),
            &history(0, &[]),
            &mut Verified::default()
        )
        .unwrap(),
        0,
        "what a person put there keeps the folder"
    );
    assert_eq!(
        fs::read_dir(&stray)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>(),
        ["notes.json"]
    );
    Checkpoint::open(&linked).unwrap().verify().unwrap();
    fs::remove_file(last.join("notes.json")).unwrap();
    assert_eq!(
        prune(
            folder.path(),
            keeps(1),
            &history(0, &[]),
            &mut Verified::default()
        )
        .unwrap(),
        1
    );
    assert_eq!(
        list(folder.path())
            .unwrap()
            .iter()
            .map(|listed| listed.name.step)
            .collect::<Vec<_>>(),
        [48, 72, 80, 144]
    );
}

#[test]
#[cfg(unix)]
fn what_is_no_file_is_not_waited_for() {
    for name in ["node-1.json", "node-2.safetensors"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 48, 0, &[1, 2]);
        let path = write(folder.path(), 96, 0, &[1, 2]).join(name);
        fs::remove_file(&path).unwrap();
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let (found, refused) = newest_whole(folder.path()).unwrap();
        assert_eq!(found.unwrap().header().step, 48);
        assert!(
            refused[0].error.to_string().contains("it is no file"),
            "{}",
            refused[0].error
        );
    }
}

#[test]
fn what_does_not_become_whole_goes() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    // Nobody hears of node 2 any more.
    for number in 2..=40 {
        write(folder.path(), number * 48, 0, &[1]);
        prune(
            folder.path(),
            keeps(2),
            &history(0, &[]),
            &mut Verified::default(),
        )
        .unwrap();
    }
    let left: Vec<u64> = steps(folder.path()).iter().map(|step| step / 48).collect();
    assert_eq!(left, [1, 16, 24, 32, 36, 38, 39, 40]);
    // One becomes whole late, and what is older is of no use.
    write(folder.path(), 36 * 48, 0, &[2]);
    prune(
        folder.path(),
        keeps(2),
        &history(0, &[]),
        &mut Verified::default(),
    )
    .unwrap();
    assert_eq!(
        steps(folder.path())
            .iter()
            .map(|step| step / 48)
            .collect::<Vec<_>>(),
        [1, 36, 38, 39, 40]
    );
    // A whole one that lost its values is none that others could go for.
    fs::write(
        write(folder.path(), 41 * 48, 0, &[1, 2]).join("node-2.safetensors"),
        "",
    )
    .unwrap();
    prune(
        folder.path(),
        keeps(1),
        &history(0, &[]),
        &mut Verified::default(),
    )
    .unwrap();
    assert_eq!(
        steps(folder.path())
            .iter()
            .map(|step| step / 48)
            .collect::<Vec<_>>(),
        [36, 38, 39, 40, 41]
    );
}

#[test]
#[cfg(unix)]
fn what_is_left_behind_goes_when_nobody_touches_it() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    let torn = write(folder.path(), 96, 0, &[1]);
    let other = write(folder.path(), 96, 1, &[1]);
    write(folder.path(), 144, 0, &[1, 2]);
    write(folder.path(), 96, 2, &[1, 2]);
    let own = history(2, &[(0, 48)]);
    age(&torn, UNTOUCHED / 2);
    age(&other, UNTOUCHED * 2);
    assert_eq!(
        prune(folder.path(), keeps(3), &own, &mut Verified::default()).unwrap(),
        0,
        "others may be writing it still"
    );
    age(&torn, UNTOUCHED * 2);
    assert_eq!(
        prune(folder.path(), keeps(3), &own, &mut Verified::default()).unwrap(),
        1
    );
    let left: Vec<_> = list(folder.path())
        .unwrap()
        .iter()
        .map(|listed| (listed.name.run, listed.name.step))
        .collect();
    assert_eq!(
        left,
        [(0, 48), (0, 144), (1, 96), (2, 96)],
        "the newest whole one stays, and what is of no ancestor"
    );
}

/// Makes a checkpoint look as if it was written so long ago.
#[cfg(unix)]
fn age(path: &Path, since: std::time::Duration) {
    let entries = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    for path in entries.chain([path.to_owned()]) {
        fs::File::open(path)
            .unwrap()
            .set_modified(std::time::SystemTime::now() - since)
            .unwrap();
    }
}

#[test]
#[cfg(unix)]
fn of_an_abandoned_branch_the_newest_whole_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let branch = [96, 144, 192, 240].map(|step| {
        let nodes: &[u64] = if step == 240 { &[1] } else { &[1, 2] };
        write(folder.path(), step, 0, nodes)
    });
    write(folder.path(), 96, 1, &[1, 2]);
    // Run 1 was bootstrapped on step 48 of run 0, which goes on writing.
    let own = history(1, &[(0, 48)]);
    let mut verified = Verified::default();
    let mut prune = || {
        prune(folder.path(), keeps(3), &own, &mut verified).unwrap();
        let left = list(folder.path()).unwrap();
        left.iter()
            .map(|listed| (listed.name.run, listed.name.step))
            .collect::<Vec<_>>()
    };
    for old in &branch[..3] {
        age(old, UNTOUCHED * 2);
    }
    assert_eq!(prune().len(), 5, "the branch is alive");
    age(&branch[3], UNTOUCHED * 2);
    assert_eq!(prune(), [(0, 192), (1, 96)]);
    // The one that stays is damaged: what came before it is needed.
    let values = branch[2].join("node-1.safetensors");
    let before = write(folder.path(), 144, 0, &[1, 2]);
    let mut bytes = fs::read(&values).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&values, bytes).unwrap();
    age(&branch[2], UNTOUCHED * 2);
    age(&before, UNTOUCHED * 2);
    let mut unread = Verified::default();
    super::prune(folder.path(), keeps(3), &own, &mut unread).unwrap();
    assert!(before.exists() && branch[2].exists());
}

#[test]
fn a_node_knows_which_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, board) = writer(folder.path(), 3);
    let mut told = Vec::new();
    for number in 1..=6 {
        if number == 3 {
            // Node 2 writes one part, before this node its own.
            let like = Part::read(
                &folder
                    .path()
                    .join(
                        Name {
                            run: 0,
                            step: 96,
                            lineage: Lineage(0xabc),
                        }
                        .to_string(),
                    )
                    .join("node-1.json"),
            )
            .unwrap();
            let header = Header {
                step: 144,
                ..like.checkpoint
            };
            let path = folder.path().join(header.name().to_string());
            part::write(&path, &header, own(2), &snapshot(2, 144)).unwrap();
        }
        checkpoints.keep(snapshot(1, number * 48));
        checkpoints.end(false);
        let now = board.read().checkpoints.unwrap();
        told.push((now.whole_step, now.not_whole));
    }
    assert_eq!(
        told,
        [
            (None, 0),
            (None, 1),
            (Some(144), 0),
            (Some(144), 0),
            (Some(144), 1),
            (Some(144), 2)
        ]
    );
}

#[test]
#[cfg(target_os = "linux")]
fn what_could_not_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let header = header(96, 0);
    let path = folder.path().join(header.name().to_string());
    // Of values and manifest, the latter finds no room.
    full::make(&path, "node-1.json");
    let error = part::write(&path, &header, own(1), &snapshot(1, 96)).unwrap_err();
    assert!(error.is_full() && !path.exists(), "{error}");
    // What others wrote is theirs.
    write(folder.path(), 96, 0, &[2]);
    full::make(&path, "node-1.safetensors");
    part::write(&path, &header, own(1), &snapshot(1, 96)).unwrap_err();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
}

#[test]
fn what_goes_on_descends_from_all_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), 96, 4, &[1]);
    let header = header(96, 4);
    // Node 1 joined, and did not know; node 2 did.
    let ancestors = vec![Ancestor {
        run: 2,
        lineage: 7,
        step: 48,
    }];
    part::write(
        &path,
        &header,
        Own {
            ancestors: ancestors.clone(),
            ..own(2)
        },
        &snapshot(2, 96),
    )
    .unwrap();
    let resumed = Resumed::newest(folder.path(), Some("slowmo"))
        .unwrap()
        .unwrap();
    assert_eq!(
        resumed.ancestors(),
        [
            &[Ancestor {
                run: 4,
                lineage: 0xabc,
                step: 96
            }][..],
            &ancestors[..]
        ]
        .concat()
    );
    assert_eq!(
        super::folder::ancestors_of(folder.path(), 4, Lineage(0xabc)).unwrap(),
        ancestors
    );
    assert_eq!(
        super::folder::ancestors_of(folder.path(), 3, Lineage(0xabc)).unwrap(),
        []
    );
}

#[test]
fn who_joins_learns_what_the_history_goes_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, _) = writer(folder.path(), 1);
    let ancestors = vec![Ancestor {
        run: 0,
        lineage: 0xabc,
        step: 48,
    }];
    write(folder.path(), 48, 0, &[1, 2]);
    let known = |step| {
        let mut snapshot = snapshot(1, step);
        snapshot.outcome.origin.run = 2;
        checkpoints.keep(snapshot);
        checkpoints.end(false);
        let path = folder.path().join(
            Name {
                run: 2,
                step,
                lineage: Lineage(0xabc),
            }
            .to_string(),
        );
        Part::read(&path.join("node-1.json")).unwrap().ancestors
    };
    assert_eq!(known(96), []);
    // Another node knows, and what both wrote is whole: the past may go.
    let path = folder.path().join(
        Name {
            run: 2,
            step: 144,
            lineage: Lineage(0xabc),
        }
        .to_string(),
    );
    let mut header = Part::read(
        &path
            .with_file_name(
                Name {
                    run: 2,
                    step: 96,
                    lineage: Lineage(0xabc),
                }
                .to_string(),
            )
            .join("node-1.json"),
    )
    .unwrap()
    .checkpoint;
    header.step = 144;
    part::write(
        &path,
        &header,
        Own {
            ancestors: ancestors.clone(),
            ..own(2)
        },
        &snapshot(2, 144),
    )
    .unwrap();
    assert_eq!(known(144), ancestors);
    assert_eq!(steps(folder.path()), [144]);
}

#[test]
fn whole_ones_that_are_left_behind_are_known() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    let chosen = Name {
        run: 0,
        step: 48,
        lineage: Lineage(0xabc),
    };
    let others = |chosen| {
        super::folder::others(folder.path(), chosen, 2)
            .unwrap()
            .iter()
            .map(|name| name.step)
            .collect::<Vec<_>>()
    };
    assert_eq!((others(Some(chosen)), others(None)), (vec![], vec![48]));
    for (step, run, nodes) in [(96, 0, &[1, 2][..]), (24, 1, &[1, 2]), (48, 1, &[1])] {
        write(folder.path(), step, run, nodes);
    }
    assert_eq!(
        others(Some(chosen)),
        [24, 96],
        "newest first, whole ones only"
    );
    assert_eq!(
        others(Some(Name {
            lineage: Lineage(1),
            run: 1,
            step: 99
        })),
        [24],
        "of the same run, in another history"
    );
}

/// Node 1's writer of a folder, its status, and what is written there.
fn writer(folder: &Path, keep_last: usize) -> (Checkpoints, Arc<StatusBoard>) {
    let board = StatusBoard::new();
    let settings = WriterSettings {
        start: start(1),
        folder: folder.to_owned(),
        keep_last,
        points: Points::each(48),
        outer: Some("slowmo".to_owned()),
        trust: Trust::of(&[[7; 32]]),
    };
    (
        Checkpoints::new(Some(settings), None, 0, Arc::clone(&board)).unwrap(),
        board,
    )
}

fn steps(folder: &Path) -> Vec<u64> {
    list(folder)
        .unwrap()
        .iter()
        .map(|listed| listed.name.step)
        .collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_lets_go_of_old_ones_but_not_of_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, board) = writer(folder.path(), 3);
    let keep = |step: u64, full: bool| {
        let path = folder.path().join(
            Name {
                run: 0,
                step,
                lineage: Lineage(0xabc),
            }
            .to_string(),
        );
        if full {
            // What is written there finds no room.
            full::make(&path, "node-1.safetensors");
        }
        checkpoints.keep(snapshot(1, step));
        checkpoints.end(false);
        let told = board.read().checkpoints.unwrap();
        assert_eq!(told.error.is_some(), full, "{told:?}");
    };
    for step in [48, 96, 144] {
        write(folder.path(), step, 0, &[1, 2]);
    }
    keep(192, true);
    let whole = || {
        list(folder.path())
            .unwrap()
            .iter()
            .filter(|listed| Checkpoint::open(&listed.path).is_ok())
            .count()
    };
    assert_eq!((steps(folder.path())[0], whole()), (96, 2));
    for step in [240, 288, 336] {
        keep(step, true);
    }
    assert_eq!(
        (steps(folder.path())[0], whole()),
        (144, 1),
        "the last whole one stays"
    );
    // Whoever found no room keeps fewer until it has written some.
    let mut step = 480;
    for written in 0..2 * ROOM_TRIED_AFTER {
        step += 48;
        write(folder.path(), step, 0, &[1, 2]);
        step += 48;
        keep(step, false);
        assert_eq!(
            whole(),
            1 + (written as usize + 1) / ROOM_TRIED_AFTER as usize,
            "{written}"
        );
    }
}

#[test]
fn a_disk_that_takes_nothing_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 48, 0, &[1, 2]);
    let header = header(96, 0);
    // A file stands where the folder should be.
    let path = folder.path().join(header.name().to_string());
    fs::write(&path, "").unwrap();
    let error = part::write(&path, &header, own(1), &snapshot(1, 96)).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
    // Whoever shows an error with its sources shows each once.
    assert!(std::error::Error::source(&error).is_none());
    assert!(std::error::Error::source(&crate::error::SpawnError::from(error)).is_none());
    assert_eq!(
        newest_whole(folder.path())
            .unwrap()
            .0
            .unwrap()
            .header()
            .step,
        48
    );
}

#[test]
fn a_folder_in_which_no_file_can_be_created_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("new/folder");
    check_writable(&folder).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let file = parent.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let error = check_writable(&file.join("folder")).unwrap_err();
    assert!(
        error.to_string().contains("cannot be written into"),
        "{error}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}
