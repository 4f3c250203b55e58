//! The runtime's log on its way to Python's `logging`. The runtime's threads put lines into a
//! bounded queue; a thread of Python takes them out. So no thread of the runtime ever waits for the
//! interpreter, and none calls into one that ends.

use parking_lot::Mutex;
use pyo3::prelude::*;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Lines that wait for Python; further ones are counted and dropped.
const LINES_MAX: usize = 4096;

/// The end of the queue that Python reads, once the log was started.
static LINES: Mutex<Option<Receiver<Line>>> = Mutex::new(None);
/// Lines that were dropped since the last one that was read.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// One line: the level of `logging`, the module, the text.
type Line = (u8, &'static str, String);

/// Puts events into the queue.
struct ToPython(SyncSender<Line>);

impl<S: Subscriber> Layer<S> for ToPython {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let line = (level(metadata.level()), metadata.target(), text.whole());
        if self.0.try_send(line).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The levels of Python's `logging`; a trace is below its lowest.
fn level(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// An event's message, and its fields as `name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn whole(self) -> String {
        self.message + &self.fields
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a text does not fail.
        _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

/// Sends what `selection` selects into the queue: a level, or levels of modules
/// (`warn,slowmo=debug`). Returns whether this call started it: a process has one log.
#[pyfunction]
pub fn start_log(selection: &str) -> PyResult<bool> {
    let unreadable = |error: &dyn std::fmt::Display| {
        pyo3::exceptions::PyValueError::new_err(format!(
            "SLOWMO_LOG={selection:?} selects nothing ({error}): write a level (info), or levels \
             of modules (warn,slowmo=debug)"
        ))
    };
    let selected: Targets = selection.parse().map_err(|error| unreadable(&error))?;
    let mut lines = LINES.lock();
    if lines.is_some() || selected.default_level() == Some(LevelFilter::OFF) {
        return Ok(false);
    }
    let (sender, receiver) = sync_channel(LINES_MAX);
    let subscriber = tracing_subscriber::registry().with(ToPython(sender).with_filter(selected));
    if tracing::subscriber::set_global_default(subscriber).is_err() {
        return Ok(false);
    }
    *lines = Some(receiver);
    Ok(true)
}

/// Waits for lines, at most `seconds`, and takes all that are there; with them the number of those
/// that were dropped before.
#[pyfunction]
pub fn logged(py: Python<'_>, seconds: f64) -> (Vec<Line>, u64) {
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    py.detach(|| {
        let lines = LINES.lock();
        let Some(receiver) = &*lines else {
            return (Vec::new(), 0);
        };
        let mut taken = match receiver.recv_timeout(limit) {
            Ok(line) => vec![line],
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
        };
        taken.extend(receiver.try_iter().take(LINES_MAX));
        (taken, DROPPED.swap(0, Ordering::Relaxed))
    })
}
