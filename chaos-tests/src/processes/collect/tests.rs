//! Traces that are merged: files that are torn, that end twice, that are none. Writes temporary
//! folders.
#![allow(clippy::unwrap_used)]

use super::*;
use std::fmt::Write;

fn start(node: u64, incarnation: u64) -> Start {
    Start {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
    }
}

fn text(lines: &[(u64, Event)]) -> String {
    let mut text = String::new();
    for (at, event) in lines {
        writeln!(
            text,
            "{}",
            serde_json::to_string(&Line {
                at: Instant(*at),
                event: event.clone()
            })
            .unwrap()
        )
        .unwrap();
    }
    text
}

fn merged(folder: &Path) -> Result<Vec<(u64, Event)>, CollectError> {
    let mut lines = Vec::new();
    merge(folder, &mut |line| lines.push((line.at.0, line.event)))?;
    Ok(lines)
}

#[test]
fn files_are_merged_by_time_ends_are_told_once_and_what_follows_the_end_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let one = start(1, 50);
    let two = start(2, 60);
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let ended = |start, end| Event::Ended { start, end };
    write(
        "runner.jsonl",
        text(&[
            (1000, Event::Quiet),
            (1040, ended(one, End::Killed)),
            (1050, ended(two, End::Left)),
            (1100, Event::Over),
        ]),
    );
    // Killed in the middle of a line.
    write(
        "1-50.jsonl",
        text(&[(1010, Event::Started(one)), (1030, Event::Resigned(one))]) + "{\"at\":1031,\"ev",
    );
    write(
        "2-60.jsonl",
        text(&[
            (1020, Event::Started(two)),
            (1045, ended(two, End::Left)),
            (1200, Event::Resigned(two)),
        ]),
    );
    write("notes.txt", "nothing".into());
    let expected = [
        (0, Event::Quiet),
        (10, Event::Started(one)),
        (20, Event::Started(two)),
        (30, Event::Resigned(one)),
        (40, ended(one, End::Killed)),
        (45, ended(two, End::Left)),
        (100, Event::Over),
    ];
    assert_eq!(merged(folder.path()).unwrap(), expected);
    assert_eq!(newest_start(folder.path(), NodeId(1)), Some(one));
    assert_eq!(newest_start(folder.path(), NodeId(3)), None);
}

#[test]
fn a_line_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("1-5.jsonl"),
        text(&[(1, Event::Quiet)]) + "{}\n",
    )
    .unwrap();
    let error = merged(folder.path()).unwrap_err().to_string();
    assert!(error.contains("1-5.jsonl: line 2"), "{error}");
}

#[test]
fn lines_of_one_file_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("1-5.jsonl"),
        text(&[
            (10, Event::Started(start(1, 5))),
            (30, Event::Quiet),
            (29, Event::Resigned(start(1, 5))),
        ]),
    )
    .unwrap();
    let times: Vec<u64> = merged(folder.path())
        .unwrap()
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    assert_eq!(times, [0, 20, 20]);
}

#[test]
fn a_journal_is_read_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::create(folder.path()).unwrap();
    journal.write(Event::Quiet).unwrap();
    journal.write(Event::Over).unwrap();
    let events: Vec<Event> = merged(folder.path())
        .unwrap()
        .into_iter()
        .map(|(_, event)| event)
        .collect();
    assert_eq!(events, [Event::Quiet, Event::Over]);
}

#[test]
fn a_torn_line_is_left_out_wherever_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let whole = text(&[(2, Event::Started(start(1, 5)))]);
    for length in 1..whole.len() - 1 {
        // The end of a file, as a killed process leaves it; a line of its own, as a disk does that
        // was full for a while.
        for (rest, expected) in [
            (String::new(), vec![0]),
            ("\n".to_owned() + &text(&[(3, Event::Over)]), vec![0, 2]),
        ] {
            let torn = text(&[(1, Event::Quiet)]) + &whole[..length] + &rest;
            std::fs::write(folder.path().join("1-5.jsonl"), torn).unwrap();
            let times: Vec<u64> = merged(folder.path())
                .unwrap()
                .into_iter()
                .map(|(at, _)| at)
                .collect();
            assert_eq!(times, expected, "{}", &whole[..length]);
        }
    }
}
