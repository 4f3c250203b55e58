//! Records this node's events as JSON, one event a line, in one file for each start of the node:
//! the key `trace`. Or keeps the last events in memory, and writes them when something goes wrong
//! or on request: the key `flight`.
//!
//! Touches those files only, from a thread of its own. Training never waits for it: events that do
//! not fit into the queue, or onto the disk, are counted, and the count is written as soon as
//! writing succeeds again.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use slowmo_actors::ports::recorder::{Dumped, Later, QueueUse, Recorder};
use slowmo_actors::unix_time::unix_us;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line, Start};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

mod flight;

use flight::Flight;

/// Maximum number of events that wait to be written.
pub const QUEUE_EVENTS_MAX: usize = 4096;
/// Maximum bytes of models that events keep alive until their lines are made. One event may always
/// wait, however large its model.
pub const QUEUE_BYTES_MAX: usize = 256 << 20;
/// Longest time for which a stopping node waits until its last events are written.
pub const FLUSH_WAIT_MAX: Duration = Duration::from_secs(2);
/// Permissions of a new trace: the user's group may read it. The process's mask takes away more.
const TRACE_MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP);
/// The name of the count of events that were not written. Its bound is 0.
pub const LOST_EVENTS: &str = "events not recorded";

/// Appends events to a file.
pub struct FileRecorder {
    start: Start,
    /// The queue, and the time of the last event: lines are in the order of their times.
    queue: Mutex<(SyncSender<Entry>, Instant)>,
    /// Whether only the last events are kept, without a trace.
    brief: bool,
    /// Whether the last events are kept at all.
    keeps_the_last: bool,
    usage: Arc<Usage>,
}

/// The fill level of the queue, and the number of events that did not fit.
#[derive(Default)]
struct Usage {
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    lost: AtomicU64,
}

enum Entry {
    Made(Instant, Event),
    Later(Instant, Later),
    /// Requests that the last events are written to a file; the file's path is the answer.
    Dump(String, SyncSender<Result<PathBuf, String>>),
    /// A flush: answered when everything before is written.
    Flush(SyncSender<()>),
}

/// The trace file of one start of a node in a folder.
#[must_use]
pub fn file_in(folder: &Path, start: Start) -> PathBuf {
    folder.join(format!("{}-{}.jsonl", start.node.0, start.incarnation.0))
}

/// Opens a trace file to write behind what it holds; creates it if it is missing. A link is not
/// followed, and nothing but a file is opened: others may be able to write into the folder.
fn append_to(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, TRACE_MODE)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is no file", path.display())));
    }
    Ok(file)
}

impl FileRecorder {
    /// Opens the file of `start` in the folder `trace`, which is made if it is not there, and keeps
    /// the last events in memory for `flight`, a folder that is created with its first dump.
    ///
    /// # Errors
    /// The folder or the file cannot be written to. Nothing was changed, except that the folder may
    /// have been created.
    pub fn of(trace: Option<&Path>, flight: Option<&Path>, start: Start) -> io::Result<Self> {
        let open = |folder: &Path| {
            std::fs::create_dir_all(folder)?;
            append_to(&file_in(folder, start))
        };
        let file = trace.map(open).transpose()?;
        let (sender, receiver) = sync_channel(QUEUE_EVENTS_MAX);
        let usage = Arc::<Usage>::default();
        let flight = flight.map(|folder| Flight::new(folder, start));
        let brief = trace.is_none();
        let keeps_the_last = flight.is_some();
        let writer = Writer {
            start,
            file,
            flight,
            usage: Arc::clone(&usage),
            told: 0,
            torn: false,
        };
        std::thread::Builder::new()
            .name("slowmo-recorder".to_owned())
            .spawn(move || writer.run(&receiver))?;
        Ok(Self {
            start,
            queue: Mutex::new((sender, Instant(0))),
            brief,
            keeps_the_last,
            usage,
        })
    }

    fn put(&self, entry: impl FnOnce(Instant) -> Entry) {
        let mut queue = self.queue.lock();
        // The wall clock, which all nodes of a machine share.
        queue.1 = queue.1.max(Instant(unix_us()));
        self.usage.waiting.fetch_add(1, Ordering::Relaxed);
        if queue.0.try_send(entry(queue.1)).is_err() {
            self.usage.waiting.fetch_sub(1, Ordering::Relaxed);
            self.usage.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for FileRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileRecorder")
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}

impl Recorder for FileRecorder {
    fn is_on(&self) -> bool {
        true
    }

    fn is_brief(&self) -> bool {
        self.brief
    }

    fn record(&self, event: Event) {
        self.put(|at| Entry::Made(at, event));
    }

    fn record_later(&self, event: Later) {
        let before = self.usage.bytes.fetch_add(event.bytes, Ordering::Relaxed);
        if before > 0 && before.saturating_add(event.bytes) > QUEUE_BYTES_MAX {
            self.usage.bytes.fetch_sub(event.bytes, Ordering::Relaxed);
            self.usage.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.put(|at| Entry::Later(at, event));
    }

    fn queue(&self) -> Option<QueueUse> {
        Some(QueueUse {
            waiting: self.usage.waiting.load(Ordering::Relaxed),
            bound: QUEUE_EVENTS_MAX,
        })
    }

    fn dump(&self, why: &str) -> Option<Dumped> {
        let (done, dumped) = sync_channel(1);
        self.keeps_the_last
            .then(|| self.put(|_| Entry::Dump(why.to_owned(), done)))
            .map(|()| dumped)
    }

    fn flush(&self) {
        let queue = self.queue.lock().0.clone();
        let (done, written) = sync_channel(1);
        let mut entry = Entry::Flush(done);
        let give_up = std::time::Instant::now() + FLUSH_WAIT_MAX;
        // A full queue drains as fast as the disk writes.
        while let Err(TrySendError::Full(again)) = queue.try_send(entry) {
            if std::time::Instant::now() >= give_up {
                return tracing::warn!("the trace's last events were not written in time");
            }
            std::thread::sleep(Duration::from_millis(1));
            entry = again;
        }
        if written
            .recv_timeout(give_up.saturating_duration_since(std::time::Instant::now()))
            .is_err()
        {
            tracing::warn!("the trace's last events were not written in time");
        }
    }
}

/// The state of the writing thread.
struct Writer {
    start: Start,
    file: Option<File>,
    flight: Option<Flight>,
    usage: Arc<Usage>,
    /// Number of lost events that was last written.
    told: u64,
    /// Whether the last write failed, perhaps in the middle of a line.
    torn: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Entry>) {
        while let Ok(entry) = queue.recv() {
            let (at, event) = match entry {
                Entry::Made(at, event) => (at, event),
                Entry::Later(at, later) => {
                    let event = (later.make)();
                    self.usage.bytes.fetch_sub(later.bytes, Ordering::Relaxed);
                    (at, event)
                }
                Entry::Dump(why, done) => {
                    self.usage.waiting.fetch_sub(1, Ordering::Relaxed);
                    let dumped = self.flight.as_ref().map(|flight| flight.dump(&why));
                    // Most callers do not wait for the answer.
                    dumped.into_iter().for_each(|dumped| _ = done.send(dumped));
                    continue;
                }
                Entry::Flush(done) => {
                    // After the bound nobody waits any more.
                    _ = done.send(());
                    continue;
                }
            };
            self.usage.waiting.fetch_sub(1, Ordering::Relaxed);
            self.write(&Line { at, event });
            self.tell_what_was_lost(at);
        }
    }

    fn tell_what_was_lost(&mut self, at: Instant) {
        let lost = self.usage.lost.load(Ordering::Relaxed);
        if lost > self.told && !self.torn {
            self.told = lost;
            let event = Event::Gauge {
                start: self.start,
                name: LOST_EVENTS.to_owned(),
                value: lost,
                bound: 0,
            };
            self.write(&Line { at, event });
        }
    }

    /// Writes a line with one call, so that a killed process loses at most the end of its last
    /// line.
    fn write(&mut self, line: &Line) {
        let mut bytes = if self.torn { vec![b'\n'] } else { Vec::new() };
        let written = serde_json::to_writer(&mut bytes, line).map_err(io::Error::from);
        let written = written.and_then(|()| {
            bytes.push(b'\n');
            if let Some(flight) = &mut self.flight {
                flight.keep(bytes.trim_ascii_start());
            }
            self.file
                .as_mut()
                .map_or(Ok(()), |file| file.write_all(&bytes))
        });
        if let Err(error) = &written
            && self.usage.lost.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::error!(
                %error,
                "the trace cannot be written: training continues, and lost events are counted"
            );
        }
        self.torn = written.is_err();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use slowmo_protocol::ident::{Incarnation, NodeId, Step};
    use std::os::unix::fs::PermissionsExt;

    const START: Start = Start {
        node: NodeId(7),
        incarnation: Incarnation(11),
    };

    fn lines(folder: &Path) -> Vec<Line> {
        let text = std::fs::read_to_string(file_in(folder, START)).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn events_are_lines_in_order_also_those_that_are_made_later() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("traces");
        let recorder = FileRecorder::of(Some(&folder), None, START).unwrap();
        recorder.record(Event::Started(START));
        recorder.record_later(Later {
            bytes: 5,
            make: Box::new(|| Event::Resigned(START)),
        });
        recorder.record(Event::Quiet);
        recorder.flush();
        let lines = lines(&folder);
        let events: Vec<Event> = lines.iter().map(|line| line.event.clone()).collect();
        assert_eq!(
            events,
            [Event::Started(START), Event::Resigned(START), Event::Quiet]
        );
        assert!(
            lines.windows(2).all(|pair| pair[0].at <= pair[1].at)
                && lines[0].at > Instant(1_700_000_000_000_000)
        );
        assert_eq!(
            recorder.queue(),
            Some(QueueUse {
                waiting: 0,
                bound: QUEUE_EVENTS_MAX
            })
        );
        assert!(folder.join("7-11.jsonl").exists());
    }

    #[test]
    fn a_trace_is_not_written_through_a_link_and_not_shown_to_everybody() {
        let parent = tempfile::tempdir().unwrap();
        let victim = parent.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, file_in(parent.path(), START)).unwrap();
        assert!(FileRecorder::of(Some(parent.path()), None, START).is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");

        let folder = parent.path().join("traces");
        let recorder = FileRecorder::of(Some(&folder), None, START).unwrap();
        recorder.flush();
        let found = std::fs::metadata(file_in(&folder, START)).unwrap();
        assert_eq!(found.permissions().mode() & 0o137, 0);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = FileRecorder::of(Some(folder.path()), None, START).unwrap();
        let (go, wait) = sync_channel::<()>(0);
        let slow = Later {
            bytes: 1,
            make: Box::new(move || {
                _ = wait.recv();
                Event::Quiet
            }),
        };
        recorder.record_later(slow);
        let too_large = Later {
            bytes: QUEUE_BYTES_MAX,
            make: Box::new(|| Event::Over),
        };
        recorder.record_later(too_large);
        // The writer may have taken one already.
        (0..QUEUE_EVENTS_MAX + 10).for_each(|_| recorder.record(Event::Resigned(START)));
        go.send(()).unwrap();
        recorder.flush();
        let lines = lines(folder.path());
        let last = lines.iter().rev().find_map(|line| match &line.event {
            Event::Gauge {
                name,
                value,
                bound: 0,
                ..
            } if name == LOST_EVENTS => Some(*value),
            _ => None,
        });
        let written = lines
            .iter()
            .filter(|line| matches!(line.event, Event::Resigned(_)))
            .count();
        assert_eq!(last, Some(1 + (QUEUE_EVENTS_MAX + 10 - written) as u64));
        assert!(
            written < QUEUE_EVENTS_MAX + 10 && lines.iter().all(|line| line.event != Event::Over)
        );
    }

    #[test]
    fn a_disk_that_fails_is_counted_and_then_written_to_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, "").unwrap();
        let usage = Arc::<Usage>::default();
        // The file is opened for reading, so every write fails, as on a full disk.
        let mut writer = Writer {
            start: START,
            file: Some(File::open(&path).unwrap()),
            flight: None,
            usage: Arc::clone(&usage),
            told: 0,
            torn: false,
        };
        writer.write(&Line {
            at: Instant(1),
            event: Event::Quiet,
        });
        writer.write(&Line {
            at: Instant(2),
            event: Event::Quiet,
        });
        writer.tell_what_was_lost(Instant(2));
        assert_eq!((usage.lost.load(Ordering::Relaxed), writer.torn), (2, true));
        writer.file = Some(append_to(&path).unwrap());
        writer.write(&Line {
            at: Instant(3),
            event: Event::Over,
        });
        writer.tell_what_was_lost(Instant(3));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Line> = text
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0].event, Event::Over);
        assert!(
            matches!(
                &lines[1].event,
                Event::Gauge {
                    value: 2,
                    bound: 0,
                    ..
                }
            ),
            "{lines:?}"
        );
    }

    #[test]
    fn a_loss_that_is_no_number_is_told_and_read() {
        for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.25, -3.0] {
            let line = Line {
                at: Instant(3),
                event: Event::Loss {
                    start: START,
                    step: Step(4),
                    loss,
                },
            };
            let text = serde_json::to_string(&line).unwrap();
            let Ok(Line {
                event: Event::Loss { loss: read, .. },
                ..
            }) = serde_json::from_str(&text)
            else {
                panic!("{text}")
            };
            assert!(
                read.to_bits() == loss.to_bits() || read.is_nan() && loss.is_nan(),
                "{text}"
            );
            let wrong = text.replace("\"loss\":", "\"loss\":\"much\",\"was\":");
            assert!(
                serde_json::from_str::<Line>(&wrong).is_err() || wrong == text,
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(FileRecorder::of(Some(&file.join("traces")), None, START).is_err());
    }
}
