//! Compiled kernels in the user's cache folder. Only a saving of time: what cannot be read or written is compiled again.

use super::SOURCE;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_128;

/// Nothing larger was ever written here.
const BYTES_MAX: u64 = 16 << 20;

/// A file's name: everything that its content follows from.
pub fn name(architecture: &str, (major, minor): (i32, i32)) -> String {
    format!("kernels-{:032x}-{architecture}-nvrtc{major}.{minor}.ptx", xxh3_128(SOURCE.as_bytes()))
}

fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("slowmo"))
}

/// What was compiled before. The last line of PTX closes a function: a file that was cut short does not count.
pub fn read(name: &str) -> Option<String> {
    let path = folder()?.join(name);
    let short = fs::metadata(&path).ok()?.len() <= BYTES_MAX;
    fs::read_to_string(path).ok().filter(|text| short && text.trim_end_matches(['\0', '\n', ' ']).ends_with('}'))
}

/// Keeps what was compiled, for this user only; whole or not at all.
pub fn write(name: &str, text: &str) {
    let kept = || -> std::io::Result<()> {
        let folder = folder().ok_or(std::io::ErrorKind::NotFound)?;
        fs::create_dir_all(&folder)?;
        let temporary = folder.join(format!("{name}.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&temporary)?.write_all(text.as_bytes())?;
        fs::rename(&temporary, folder.join(name))
    };
    if let Err(error) = kept() {
        tracing::debug!(%error, "compiled kernels are not kept");
    }
}
