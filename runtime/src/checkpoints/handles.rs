//! Folders and files through handles, without following links in them: in a folder that others can
//! write into, a name may become a link between two calls.

use super::error::CheckpointError;
use ring::rand::SecureRandom;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Permissions of new files: others may read them. The process's mask takes away more.
const FILE_MODE: Mode = Mode::RUSR
    .union(Mode::WUSR)
    .union(Mode::RGRP)
    .union(Mode::ROTH);
/// Permissions of new files that are for their owner only.
const PRIVATE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Permissions of new folders, likewise.
const FOLDER_MODE: Mode = FILE_MODE
    .union(Mode::XUSR)
    .union(Mode::XGRP)
    .union(Mode::XOTH);
/// Random bytes in a temporary name: nobody can guess it and put a link there.
const RANDOM_BYTES: usize = 8;

/// The users that may read a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// All users, as far as the process's mask lets them.
    All,
    /// Its owner.
    Owner,
}

/// An open folder.
#[derive(Debug)]
pub struct Folder {
    handle: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens a folder that the user named, to which links may lead; creates it if it is missing.
    pub fn create(path: &Path) -> Result<Self, CheckpointError> {
        std::fs::create_dir_all(path).map_err(CheckpointError::io(path))?;
        Self::open(path)
    }

    /// Opens a folder that the user named, to which links may lead.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty());
        Ok(Self {
            handle: handle.map_err(failed(path))?,
            path: path.to_owned(),
        })
    }

    /// Opens a folder in this one; a link is refused.
    pub fn within(&self, name: &str) -> Result<Self, CheckpointError> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&self.handle, name, flags, Mode::empty());
        Ok(Self {
            handle: handle.map_err(failed(&path))?,
            path,
        })
    }

    /// Opens a folder in this one, which is created if it is missing.
    pub fn make(&self, name: &str) -> Result<Self, CheckpointError> {
        match rustix::fs::mkdirat(&self.handle, name, FOLDER_MODE) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.within(name),
            Err(error) => Err(failed(&self.path.join(name))(error)),
        }
    }

    /// Creates a file that did not exist.
    pub fn create_file(&self, name: &str, readers: Readers) -> Result<File, CheckpointError> {
        #[cfg(test)]
        if full::is_full(&self.path, name) {
            return full::file().map_err(CheckpointError::io(&self.path));
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = match readers {
            Readers::All => FILE_MODE,
            Readers::Owner => PRIVATE_MODE,
        };
        let handle = rustix::fs::openat(&self.handle, name, flags, mode);
        handle
            .map(File::from)
            .map_err(failed(&self.path.join(name)))
    }

    /// Renames a file in this folder. What had the new name is replaced; a link itself, not what it
    /// leads to.
    pub fn rename(&self, from: &str, to: impl AsRef<OsStr>) -> Result<(), CheckpointError> {
        let to = to.as_ref();
        let renamed = rustix::fs::renameat(&self.handle, from, &self.handle, to);
        renamed.map_err(failed(&self.path.join(to)))
    }

    /// Removes a file or a link.
    pub fn remove_file(&self, name: &str) -> Result<(), CheckpointError> {
        let removed = rustix::fs::unlinkat(&self.handle, name, AtFlags::empty());
        removed.map_err(failed(&self.path.join(name)))
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, name: &str) -> Result<(), CheckpointError> {
        let removed = rustix::fs::unlinkat(&self.handle, name, AtFlags::REMOVEDIR);
        removed.map_err(failed(&self.path.join(name)))
    }

    /// Whether there is anything of this name.
    pub fn has(&self, name: &str) -> bool {
        rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The names in the folder, in any order; those that are no text are left out.
    pub fn names(
        &self,
    ) -> Result<impl Iterator<Item = Result<String, CheckpointError>>, CheckpointError> {
        let entries = Dir::read_from(&self.handle).map_err(failed(&self.path))?;
        let path = self.path.clone();
        Ok(entries.filter_map(move |entry| match entry {
            Ok(entry) => Some(Ok(entry.file_name().to_str().ok()?.to_owned())),
            Err(error) => Some(Err(failed(&path)(error))),
        }))
    }

    /// Makes sure that the names in the folder are on the disk.
    pub fn sync(&self) -> Result<(), CheckpointError> {
        rustix::fs::fsync(&self.handle).map_err(failed(&self.path))
    }

    /// The folder's path, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Creates a folder that the user named if it is missing, and makes sure that files can be created
/// in it. A full disk passes: its checkpoints are skipped until there is room.
///
/// # Errors
/// [`CheckpointError::NotWritable`]: nothing was left behind.
pub fn check_writable(path: &Path) -> Result<(), CheckpointError> {
    let try_out = || {
        let folder = Folder::create(path)?;
        let name = temporary_name("try")?;
        folder.create_file(&name, Readers::Owner)?;
        folder.remove_file(&name)
    };
    match try_out() {
        Err(error) if !error.is_full() => Err(CheckpointError::NotWritable {
            folder: path.to_owned(),
            why: Box::new(error),
        }),
        _ => Ok(()),
    }
}

/// Opens a regular file for reading, and returns its length and the id of its owner. Anything else
/// of that name is refused: a link may lead to another user's secrets, and opening a pipe would
/// wait for its writer.
///
/// # Errors
/// [`CheckpointError::NoFile`], or the file cannot be opened.
pub fn open(path: &Path) -> Result<(File, u64, u32), CheckpointError> {
    let no_file = || CheckpointError::NoFile {
        file: path.to_owned(),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(handle) => handle.into(),
        // A link, or a socket.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => return Err(no_file()),
        Err(error) => return Err(failed(path)(error)),
    };
    let found = file.metadata().map_err(CheckpointError::io(path))?;
    if !found.is_file() {
        return Err(no_file());
    }
    Ok((file, found.len(), found.uid()))
}

/// A temporary name for a file, which nobody can guess.
pub fn temporary_name(name: &str) -> Result<String, CheckpointError> {
    let mut bytes = [0; RANDOM_BYTES];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| CheckpointError::Io {
        path: name.into(),
        error: io::Error::other("the operating system gave no random bytes"),
    })?;
    Ok(format!(".{name}.{:016x}.tmp", u64::from_le_bytes(bytes)))
}

/// Lets `write` fill a new file of another name, which then replaces `name`: readers see all of it
/// or nothing, and what lies in the folder already is not written to.
pub fn atomically<T>(
    folder: &Folder,
    name: &str,
    readers: Readers,
    write: impl FnOnce(File, &Path) -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let temporary = temporary_name(name)?;
    let file = folder.create_file(&temporary, readers)?;
    let written = write(file, &folder.path().join(&temporary)).and_then(|written| {
        folder.rename(&temporary, name)?;
        folder.sync().map(|()| written)
    });
    if written.is_err() {
        // The remains do no harm, but take room on a disk that may be full.
        _ = folder.remove_file(&temporary);
    }
    written
}

fn failed(path: &Path) -> impl FnOnce(rustix::io::Errno) -> CheckpointError + '_ {
    move |error| CheckpointError::io(path)(error.into())
}

/// Files for which tests let the disk have no room.
#[cfg(test)]
pub mod full {
    use parking_lot::Mutex;
    use std::fs::{File, OpenOptions};
    use std::path::{Path, PathBuf};

    static FULL: Mutex<Vec<(PathBuf, String)>> = Mutex::new(Vec::new());

    /// Fills the disk for this file: all later writes to it find no room.
    pub fn make(folder: &Path, file: &str) {
        FULL.lock().push((folder.to_owned(), format!(".{file}.")));
    }

    pub(super) fn is_full(folder: &Path, temporary: &str) -> bool {
        let known = FULL.lock();
        let is = |(of, name): &(PathBuf, String)| of == folder && temporary.starts_with(name);
        known.iter().any(is)
    }

    pub(super) fn file() -> std::io::Result<File> {
        OpenOptions::new().write(true).open("/dev/full")
    }
}
