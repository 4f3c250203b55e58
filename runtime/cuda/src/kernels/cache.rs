//! Compiled kernels in the user's cache folder. The cache only saves time: a file that cannot be
//! read or written, or whose content is not what was written, is compiled again.

use super::compile::OPTIONS;
use super::{SOURCE, Target};
use slowmo_actors::unix_time::unix_us;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Size limit of a cached file; no larger file was ever written here.
const BYTES_MAX: u64 = 16 << 20;
/// The digest in front of a file's content.
const DIGEST_BYTES: usize = 8;

/// The name of a file: it contains everything that determines the content.
pub fn name(target: Target, (major, minor): (i32, i32)) -> String {
    let from = format!("{}\n{SOURCE}", OPTIONS.join(" "));
    format!(
        "kernels-{:032x}-{}-nvrtc{major}.{minor}",
        xxh3_128(from.as_bytes()),
        target.architecture()
    )
}

fn folder() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("slowmo"))
}

/// The cached content of this name, if it is complete.
pub fn read(name: &str) -> Option<Vec<u8>> {
    let path = folder()?.join(name);
    fs::metadata(&path)
        .ok()
        .filter(|file| file.len() <= BYTES_MAX)?;
    let bytes = fs::read(path).ok()?;
    let (digest, content) = bytes.split_first_chunk::<DIGEST_BYTES>()?;
    (u64::from_le_bytes(*digest) == xxh3_64(content)).then(|| content.to_vec())
}

/// Stores compiled content, readable for this user only; the file is complete or absent.
pub fn write(name: &str, content: &[u8]) {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let kept = || -> std::io::Result<()> {
        let folder = folder().ok_or(std::io::ErrorKind::NotFound)?;
        fs::create_dir_all(&folder)?;
        // Other containers may write here under the same process id.
        let unique = format!(
            "{}-{}-{}",
            std::process::id(),
            WRITES.fetch_add(1, Ordering::Relaxed),
            unix_us()
        );
        let temporary = folder.join(format!("{name}.{unique}"));
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&temporary)?;
        file.write_all(&xxh3_64(content).to_le_bytes())?;
        file.write_all(content)?;
        fs::rename(&temporary, folder.join(name))
    };
    if let Err(error) = kept() {
        tracing::debug!(%error, "compiled kernels are not kept");
    }
}
