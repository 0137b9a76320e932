//! A disk that can be filled.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A file system of its own, of two mebibytes; unmounted when dropped.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// None where this user may not mount one: then a test of it can only say so.
    ///
    /// # Panics
    ///
    /// Where there is no room for a folder.
    #[must_use]
    pub fn mount() -> Option<Self> {
        let folder = TempDir::new().expect("a folder");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(folder.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self { folder });
        }
        eprintln!("SKIPPED: a full disk can't be tried, since this user may not mount a file system: run it as root");
        None
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves not a byte free.
    ///
    /// # Panics
    ///
    /// Where it does not get full.
    pub fn fill(&self) {
        let mut file = File::create(self.path().join("ballast")).expect("a file");
        let error = std::iter::repeat_n((), 10_000).find_map(|()| file.write_all(&[1; 1024]).err());
        assert_eq!(error.map(|error| error.kind()), Some(std::io::ErrorKind::StorageFull));
    }

    /// Frees what [`fill`](Self::fill) took.
    ///
    /// # Panics
    ///
    /// Where it was not filled.
    pub fn free(&self) {
        fs::remove_file(self.path().join("ballast")).expect("the ballast");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is being killed may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}
