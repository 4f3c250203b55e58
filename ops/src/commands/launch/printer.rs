//! Prints the output of a launch on a thread of its own. If nobody reads it for a while (`slowmo
//! launch … | less`), the nodes wait. The launcher still carries out the requests of other commands,
//! and ends on a signal.

use crate::console::Console;
use slowmo_ops::processes::signals::caught;
use slowmo_ops::processes::{Line, Unprinted};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Polling period for the end of the printing and for caught signals.
const POLL: Duration = Duration::from_millis(5);
/// Longest wait for the output's reader once a signal has ended the launch.
const WAIT_AFTER_SIGNAL: Duration = Duration::from_secs(1);

/// Something to print.
enum Text {
    /// A node's line.
    Line(Line),
    /// What is under way.
    Progress(String),
    /// An event.
    Note(String),
}

/// The printing thread. Its queue holds at most the lines that [`Unprinted`] lets the launch read,
/// and a few lines per start or end of a node.
pub struct Printer {
    texts: Sender<Text>,
    thread: JoinHandle<()>,
    unprinted: Arc<Unprinted>,
}

impl Printer {
    /// # Errors
    /// The system starts no more threads.
    pub fn start(console: Console) -> std::io::Result<Self> {
        let (texts, received) = channel();
        let unprinted = Arc::new(Unprinted::default());
        let counter = unprinted.clone();
        let thread = std::thread::Builder::new()
            .name("printer".into())
            .spawn(move || print(console, &received, &counter))?;
        Ok(Self {
            texts,
            thread,
            unprinted,
        })
    }

    /// The count of lines that wait to be printed, for the group that reads them.
    pub fn unprinted(&self) -> Arc<Unprinted> {
        self.unprinted.clone()
    }

    /// Prints a node's line.
    pub fn line(&self, line: Line) {
        self.unprinted.add();
        self.send(Text::Line(line));
    }

    /// Prints a line about work in progress.
    pub fn progress(&self, text: impl Into<String>) {
        self.send(Text::Progress(text.into()));
    }

    /// Prints a line about an event.
    pub fn note(&self, text: impl Into<String>) {
        self.send(Text::Note(text.into()));
    }

    /// Waits until everything is printed. After a signal it waits no longer than
    /// [`WAIT_AFTER_SIGNAL`]; the rest is lost then.
    pub fn finish(self) {
        drop(self.texts);
        let mut signalled = None;
        while !self.thread.is_finished() {
            if caught().is_some() {
                let since = *signalled.get_or_insert_with(Instant::now);
                if since.elapsed() >= WAIT_AFTER_SIGNAL {
                    return;
                }
            }
            std::thread::sleep(POLL);
        }
    }

    fn send(&self, text: Text) {
        // The thread ends only after the sender is gone.
        let _taken = self.texts.send(text);
    }
}

fn print(console: Console, texts: &Receiver<Text>, unprinted: &Unprinted) {
    for text in texts {
        match text {
            Text::Line(line) => {
                console.node_line(&line);
                unprinted.remove();
            }
            Text::Progress(text) => console.progress(text),
            Text::Note(text) => console.note(text),
        }
    }
}
