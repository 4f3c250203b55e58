//! `slowmo keygen`: makes a cluster key, and rotates one.

use crate::console::Console;
use anyhow::Context;
use clap::Args;
use slowmo_ops::keys;
use std::path::PathBuf;

/// Make a cluster key, or rotate the one in a file.
#[derive(Debug, Args)]
pub struct Keygen {
    /// Write the key into this new file, readable by its owner only; without it the key goes to
    /// standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Add a new key to this key file. Nodes with the file accept both keys, and use the new one
    /// once their peers have it too. Give all nodes the file; they need no restart.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    rotate: Option<PathBuf>,
    /// Remove the older key from this key file, when all nodes have both. Give all nodes the file:
    /// they then refuse the older key.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "rotate"])]
    retire: Option<PathBuf>,
}

impl Keygen {
    /// Makes the key and writes or prints it.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        if let Some(file) = self.rotate {
            keys::rotate(&file)
                .with_context(|| format!("cannot add a key to {}", file.display()))?;
            let text = format!(
                "{} holds a new key and the one before: give it to every node of the cluster, in \
                 place of its file; when all have it, end with slowmo keygen --retire",
                file.display()
            );
            return console.result(text, &serde_json::json!({ "file": file, "keys": 2 }));
        }
        if let Some(file) = self.retire {
            keys::retire(&file)
                .with_context(|| format!("cannot remove the older key of {}", file.display()))?;
            let text = format!(
                "{} holds the new key only: give it to every node of the cluster, in place of its \
                 file",
                file.display()
            );
            return console.result(text, &serde_json::json!({ "file": file, "keys": 1 }));
        }
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
                        "{} exists and was left as it is; choose another name, remove it, or \
                         rotate its key (--rotate)",
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
