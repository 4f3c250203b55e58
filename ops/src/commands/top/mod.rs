//! `slowmo top`: shows the running job live in the terminal.
//!
//! | file | holds |
//! |---|---|
//! | `state` | the picture's content: polls turned into rates and events, keys turned into orders;
//! no terminal, no clock |
//! | `view` | draws the state |

mod state;
mod view;

use crate::console::Console;
use anyhow::{Context, bail, ensure};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use slowmo::internal::admin;
use slowmo_ops::jobs::{self, Answer, Request};
use state::{Order, Polled, Top};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Polling period of the job.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// Longest wait for a key before the picture is redrawn.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Watch the running job: nodes, rounds, loss, rates, events. Keys drain or kill the chosen node.
#[derive(Debug, Args)]
pub struct TopCommand {
    /// The job's name; needed where several run.
    #[arg(long, value_name = "NAME", conflicts_with = "admin")]
    job: Option<String>,
    /// A node's own admin socket (key `admin`), for a node that no launcher started.
    #[arg(long, value_name = "SOCKET")]
    admin: Option<PathBuf>,
}

/// The target of the polls and orders.
#[derive(Clone, Debug)]
enum Asked {
    Job { name: String, socket: PathBuf },
    Node(PathBuf),
}

impl TopCommand {
    /// Watches until q, or the end of the job.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        if console.is_json() {
            bail!("top is for people at a terminal; slowmo status --json tells the same once");
        }
        ensure!(
            std::io::stdout().is_terminal(),
            "top wants a terminal; slowmo status tells the same once"
        );
        let asked = match self.admin {
            Some(socket) => Asked::Node(socket),
            None => {
                let (name, socket) = jobs::find(self.job.as_deref())?;
                Asked::Job { name, socket }
            }
        };
        // Polls before drawing, so that a missing job is reported as an error and not as a picture.
        let first = asked.poll()?;
        let (polls, orders) = start(asked.clone());
        let mut terminal = ratatui::try_init().context("the terminal cannot be drawn on")?;
        let watched = watch(
            &mut terminal,
            Top::new(asked.name(), first),
            &polls,
            &orders,
        );
        ratatui::restore();
        if let Some(why) = watched? {
            console.say(why);
        }
        Ok(())
    }
}

/// Draws the polls and carries out keys until the end; returns the reason unless a key ended it.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    mut top: Top,
    polls: &Receiver<anyhow::Result<Polled>>,
    orders: &Sender<Order>,
) -> anyhow::Result<Option<String>> {
    loop {
        terminal.draw(|frame| view::draw(frame, &top))?;
        if event::poll(LOOK_EVERY)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match top.press(key.code) {
                Some(Order::Quit) => return Ok(None),
                // The receiver of orders goes away only after the last poll, so a failed send needs
                // no handling.
                Some(order) => _ = orders.send(order),
                None => {}
            }
        }
        while let Ok(polled) = polls.try_recv() {
            match polled {
                Ok(polled) => top.take(polled),
                Err(error) => {
                    return Ok(Some(format!(
                        "the job has ended, or does not answer: {error:#}"
                    )));
                }
            }
        }
    }
}

/// Starts a thread that polls and gives orders, so that a job that is slow to answer does not block
/// the keys.
fn start(asked: Asked) -> (Receiver<anyhow::Result<Polled>>, Sender<Order>) {
    let (tell, told) = channel();
    let (order, orders) = channel::<Order>();
    std::thread::spawn(move || {
        loop {
            if let Ok(order) = orders.recv_timeout(POLL_EVERY) {
                let answer = asked.carry_out(order);
                if tell
                    .send(Ok(Polled {
                        said: Some(answer),
                        ..Polled::default()
                    }))
                    .is_err()
                {
                    return;
                }
            }
            let polled = asked.poll();
            let ended = polled.is_err();
            if tell.send(polled).is_err() || ended {
                return;
            }
        }
    });
    (told, order)
}

impl Asked {
    fn name(&self) -> String {
        match self {
            Self::Job { name, .. } => format!("job {name}"),
            Self::Node(socket) => socket.display().to_string(),
        }
    }

    fn poll(&self) -> anyhow::Result<Polled> {
        let nodes = match self {
            Self::Job { name, socket } => {
                match jobs::request(socket, Request::Status)
                    .with_context(|| format!("job {name} does not answer"))?
                {
                    Answer::Status { nodes, .. } => nodes,
                    _ => bail!("job {name} answered something else"),
                }
            }
            Self::Node(socket) => match jobs::ask_at(socket, admin::Request::Status)? {
                admin::Answer::Status(report) => vec![(
                    usize::try_from(report.node).unwrap_or(usize::MAX),
                    Some(*report),
                )],
                _ => bail!("{} answered something else", socket.display()),
            },
        };
        Ok(Polled {
            at: Some(Instant::now()),
            nodes,
            said: None,
        })
    }

    /// Carries out an order and returns its result as text for people.
    fn carry_out(&self, order: Order) -> String {
        let done = match (self, order) {
            (_, Order::Quit) => return String::new(),
            (Self::Job { socket, .. }, Order::Drain(node)) => {
                jobs::request(socket, Request::Drain { node }).map_err(anyhow::Error::from)
            }
            (Self::Job { socket, .. }, Order::Kill(node)) => {
                jobs::request(socket, Request::Kill { node }).map_err(anyhow::Error::from)
            }
            (Self::Job { socket, .. }, Order::Scale(nodes)) => {
                jobs::request(socket, Request::Scale { nodes }).map_err(anyhow::Error::from)
            }
            (Self::Node(socket), Order::Drain(_)) => {
                return jobs::ask_at(socket, admin::Request::Drain)
                    .map_or_else(|error| format!("{error:#}"), |_| "it drains".to_owned());
            }
            (Self::Node(_), _) => return "only a launched job can do that".to_owned(),
        };
        match done {
            Ok(Answer::Changed {
                joined,
                drained,
                killed,
            }) => format!("started {joined:?}, draining {drained:?}, killed {killed:?}"),
            Ok(Answer::Refused { error }) => error,
            Ok(_) => "it answered something else".to_owned(),
            Err(error) => format!("{error:#}"),
        }
    }
}
