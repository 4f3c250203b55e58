//! The launcher's side: a thread reads requests from the socket, and the launcher's loop carries
//! them out.

use super::{Answer, MESSAGE_BYTES_MAX, Request};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Most requests queued for the launcher's loop.
const REQUESTS_WAITING_MAX: usize = 16;
/// Longest time that a connection may be silent before the next one is served.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A request with the channel for its answer.
pub struct Asked {
    /// The request.
    pub request: Request,
    answer: SyncSender<Answer>,
}

impl Asked {
    /// Sends the answer; the requester may have gone.
    pub fn answer(self, answer: Answer) {
        let _gone = self.answer.send(answer);
    }
}

/// The open socket; its file is removed on drop.
pub struct Server {
    path: PathBuf,
    asked: Receiver<Asked>,
}

impl Server {
    /// Listens at `path`, in a folder that only this user can enter.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let listener = slowmo::internal::admin::bind(path)?;
        let (sender, asked) = sync_channel(REQUESTS_WAITING_MAX);
        let serve = move || {
            for connection in listener.incoming().flatten() {
                // Connections are served one at a time: a person types these commands.
                if converse(&connection, &sender).is_none() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("control".into())
            .spawn(serve)?;
        Ok(Self {
            path: path.to_owned(),
            asked,
        })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next queued request, if any.
    pub fn next(&self) -> Option<Asked> {
        self.asked.try_recv().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A socket file that is already gone is fine.
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// Serves one connection; `None` when the launcher no longer listens.
fn converse(connection: &UnixStream, to: &SyncSender<Asked>) -> Option<()> {
    let _best_effort = (
        connection.set_read_timeout(Some(SILENCE_MAX)),
        connection.set_write_timeout(Some(SILENCE_MAX)),
    );
    let mut lines = BufReader::new(connection.take(MESSAGE_BYTES_MAX));
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
        let answer = match serde_json::from_str(&line) {
            Ok(request) => {
                let (answer, answered) = sync_channel(1);
                to.send(Asked { request, answer }).ok()?;
                answered.recv().ok()?
            }
            Err(error) => Answer::Refused {
                error: format!("not a request: {error}"),
            },
        };
        let text = serde_json::to_string(&answer).unwrap_or_default();
        let mut writing = connection;
        if writeln!(writing, "{text}").is_err() {
            break;
        }
        line.clear();
    }
    Some(())
}
