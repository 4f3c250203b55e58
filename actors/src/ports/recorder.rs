//! Records what a node does, in the vocabulary of `slowmo_protocol::trace`, so that it can be
//! checked from outside the node.

use slowmo_protocol::trace::Event;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

/// An event that is expensive to make (digests of a model); it is made later, outside the actors.
pub struct Later {
    /// Bytes that the event keeps alive until it is made.
    pub bytes: usize,
    /// Makes the event.
    pub make: Box<dyn FnOnce() -> Event + Send>,
}

/// Fill level of a recorder's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueUse {
    /// Events that wait in the queue.
    pub waiting: usize,
    /// Most events that may wait.
    pub bound: usize,
}

/// Receives the result of a dump once it is written: the file's path, or the disk's error.
pub type Dumped = Receiver<Result<PathBuf, String>>;

/// Keeps events. No call may block, neither on a disk nor on another thread: training continues
/// even if recording fails.
pub trait Recorder: Send + Sync + 'static {
    /// Whether events are kept at all. If not, callers do not make them.
    fn is_on(&self) -> bool;

    /// Whether digests of models cover only a sample of the values: used when so many rounds are
    /// recorded that digests of whole models would cost too much.
    fn is_brief(&self) -> bool {
        false
    }

    /// Keeps an event that happens now.
    fn record(&self, event: Event);

    /// Keeps an event that happens now, in order with the others, and makes it later.
    fn record_later(&self, event: Later) {
        self.record((event.make)());
    }

    /// Waits, within a time bound, until the recorded events are stored durably. Called when a node
    /// ends.
    fn flush(&self) {}

    /// Writes the most recent events to a file, if the recorder keeps them for the case of a
    /// failure; otherwise does nothing and returns `None`. `why` is the reason, for a person to
    /// read. A caller that needs the result waits on the returned receiver.
    fn dump(&self, _why: &str) -> Option<Dumped> {
        None
    }

    /// Fill level of the recorder's queue, if it has one.
    fn queue(&self) -> Option<QueueUse> {
        None
    }
}

/// A recorder that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecorder;

impl Recorder for NoRecorder {
    fn is_on(&self) -> bool {
        false
    }

    fn record(&self, _: Event) {}
}
