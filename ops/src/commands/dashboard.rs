//! `slowmo dashboard`: finds the page of a running job and opens it in a browser.

use crate::console::Console;
use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use slowmo::internal::admin;
use slowmo_ops::jobs::{self, Answer, JobError, Request};
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a node that has just started may take to serve its page.
const SERVED_WITHIN: Duration = Duration::from_secs(20);
/// Longest wait for a job to appear: the launch may have been typed a moment ago.
const LAUNCHED_WITHIN: Duration = Duration::from_secs(5);
/// Longest time that the browser may take to read the file with the page's address.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Polling period of these waits.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Programs that open a page, tried in this order.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// Open the page of the running job: nodes and rounds over time, loss, links, shards, events; drain
/// and scale.
///
/// The job must have been launched with --dashboard; a node that no launcher started serves its
/// page at the key `http`. At a terminal a browser is opened; otherwise the address is printed. It
/// ends with the token of this job: anyone who has it may drain and scale.
#[derive(Debug, Args)]
pub struct Dashboard {
    /// The job's name; needed where several run.
    #[arg(long, value_name = "NAME", conflicts_with = "admin")]
    job: Option<String>,
    /// A node's own admin socket (key `admin`), for a node that no launcher started. Its page asks
    /// for its token.
    #[arg(long, value_name = "SOCKET")]
    admin: Option<PathBuf>,
    /// Only print the address.
    #[arg(long)]
    no_open: bool,
}

#[derive(Debug, Serialize)]
struct Found {
    page: String,
    opened: bool,
}

impl Dashboard {
    /// Finds the page and opens it.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let page = match &self.admin {
            Some(socket) => page_of_node(socket)?,
            None => page_of(&job_of(self.job.as_deref())?)?,
        };
        let opened =
            !self.no_open && !console.is_json() && std::io::stdout().is_terminal() && open(&page);
        let told = if opened {
            format!("opened {page}")
        } else {
            page.clone()
        };
        console.done("dashboard", told, &Found { page, opened })
    }
}

/// The job of this name, or the only one. Waits for a job that is being launched at the same time.
fn job_of(name: Option<&str>) -> anyhow::Result<String> {
    let start = Instant::now();
    loop {
        match jobs::find(name) {
            Ok((job, _)) => return Ok(job),
            Err(JobError::None | JobError::Unknown { .. }) if start.elapsed() < LAUNCHED_WITHIN => {
                std::thread::sleep(LOOK_EVERY)
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The page of the member with the lowest id of a job, with the job's token.
///
/// # Errors
/// The job's nodes serve no page, or not within [`SERVED_WITHIN`].
pub fn page_of(job: &str) -> anyhow::Result<String> {
    let (_, socket) = jobs::find(Some(job))?;
    let Answer::Token { token } = jobs::request(&socket, Request::Token)? else {
        bail!("job {job} is of another version")
    };
    let Some(token) = token else {
        bail!("the nodes of job {job} serve no page: launch it with --dashboard")
    };
    let start = Instant::now();
    loop {
        let Answer::Status { nodes, .. } = jobs::request(&socket, Request::Status)? else {
            bail!("job {job} is of another version")
        };
        if let Some(address) = nodes.into_iter().find_map(|(_, report)| report?.http) {
            return Ok(url(address, Some(&token)));
        }
        if start.elapsed() > SERVED_WITHIN {
            bail!(
                "no node of job {job} serves a page after {} s; does its program use the runtime?",
                SERVED_WITHIN.as_secs()
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn page_of_node(socket: &Path) -> anyhow::Result<String> {
    let admin::Answer::Status(report) = jobs::ask_at(socket, admin::Request::Status)? else {
        bail!("the node answered something else")
    };
    let address = report.http.context(
        "this node serves no page: give it the key http, for example http = 127.0.0.1:7070",
    )?;
    Ok(url(address, None))
}

/// URL of a page. Browsers do not send the part after the #, so the token stays in the browser.
fn url(address: SocketAddr, token: Option<&str>) -> String {
    let token = token
        .map(|token| format!("#token={token}"))
        .unwrap_or_default();
    format!("http://{address}/{token}")
}

/// Shows the page in a browser; returns whether one was found. Other users can see the arguments of
/// a process, so the browser gets a file that only this user may read and that redirects to the
/// page.
fn open(page: &str) -> bool {
    let has_screen = cfg!(target_os = "macos")
        || ["DISPLAY", "WAYLAND_DISPLAY"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
    let Ok(mut leads) = tempfile::Builder::new()
        .prefix("slowmo-")
        .suffix(".html")
        .tempfile()
    else {
        return false;
    };
    if !has_screen
        || write!(
            leads,
            "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={page}\">"
        )
        .is_err()
    {
        return false;
    }
    let start = |opener: &str| {
        let mut command = Command::new(opener);
        command
            .arg(leads.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let opened = OPENERS.iter().any(|opener| start(opener));
    if opened {
        // The file is removed when this process ends.
        std::thread::sleep(READ_WITHIN);
    }
    opened
}
