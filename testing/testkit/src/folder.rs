//! Folders for the data of servers.

use crate::{Outcome, cannot, reaper};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// etcd reserves 64 MB for its log, three times, and more.
const ROOM: u64 = 1 << 30;

/// A new folder, removed when this is dropped, or at the end of the process; but kept for
/// inspection if the test fails.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates a folder in memory if there is room, unless `TMPDIR` is set. Servers then need not
    /// wait for a disk, which is not under test, and etcd 3.4 has no option against it.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn new(name: &str) -> Outcome<Self> {
        let memory =
            if std::env::var_os("TMPDIR").is_none() { Self::in_memory(name)? } else { None };
        memory.map_or_else(|| Self::on_disk(name), Ok)
    }

    /// Creates a folder in memory (`/dev/shm`), if there is enough.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn in_memory(name: &str) -> Outcome<Option<Self>> {
        let memory = Path::new("/dev/shm");
        has_room(memory).then(|| Self::below(memory, name)).transpose()
    }

    /// Creates a folder in the usual place for temporary files.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn on_disk(name: &str) -> Outcome<Self> {
        Self::below(&std::env::temp_dir(), name)
    }

    fn below(parent: &Path, name: &str) -> Outcome<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let unique = now.unwrap_or_default().as_micros() & 0xFFFF_FFFF;
        let (id, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(format!("holdline-{name}-{id}-{unique}-{count}"));
        // Others cannot list it, but a server that runs as another user reaches its own part.
        fs::DirBuilder::new().mode(0o711).create(&path).map_err(|e| cannot("create", &path, &e))?;
        reaper::remove(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the folder for ever.
    pub fn keep(self) -> PathBuf {
        let path = self.path.clone();
        let _ = reaper::keep(&path);
        std::mem::forget(self);
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = reaper::keep(&self.path);
            eprintln!("what the servers wrote is kept in {}", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn has_room(dir: &Path) -> bool {
    let writable = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
    writable && rustix::fs::statvfs(dir).is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_ends_with_its_owner_unless_it_is_kept() {
        let (one, two) = (Folder::new("one").unwrap(), Folder::new("one").unwrap());
        assert_ne!(one.path(), two.path());
        let path = one.path().to_owned();
        fs::write(path.join("file"), "text").unwrap();
        drop(one);
        assert!(!path.exists());
        let path = two.keep();
        assert!(path.is_dir());
        fs::remove_dir(path).unwrap();
    }
}
