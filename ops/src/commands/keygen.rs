//! `slowmo keygen`: makes a cluster key.

use crate::console::Console;
use anyhow::Context;
use clap::Args;
use slowmo_ops::keys;
use std::path::PathBuf;

/// Make a cluster key.
#[derive(Debug, Args)]
pub struct Keygen {
    /// Write the key into this new file, readable by its owner only; without it the key goes to
    /// standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Keygen {
    /// Makes the key and writes or prints it.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let key = keys::generate()?;
        let Some(file) = self.out else {
            // With --json the object carries the key: the lines for people must not show it too.
            let text = if console.is_json() {
                "a new cluster key; keep it secret"
            } else {
                &key
            };
            return console.result(text, &serde_json::json!({ "cluster_key": key }));
        };
        keys::write_new(&file, &key)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    anyhow::anyhow!(
                        "{} exists and was left as it is; choose another name or remove it",
                        file.display()
                    )
                }
                _ => error.into(),
            })
            .with_context(|| format!("cannot write a cluster key to {}", file.display()))?;
        let text = format!(
            "wrote a new cluster key to {}; give the same file to every node of the cluster",
            file.display()
        );
        console.result(text, &serde_json::json!({ "file": file }))
    }
}
