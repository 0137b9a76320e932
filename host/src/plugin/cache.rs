//! Compiled plugins, kept in files: compiling one that carries an interpreter takes seconds, loading it milliseconds.
//!
//! A compiled plugin is machine code, so an entry is trusted only where nobody else could have written it: the folder and
//! the file belong to this user and nobody else may write them, and the entry's digest covers all of it. Any doubt is a
//! miss, and the plugin is compiled anew.

use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use tracing::{debug, warn};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::clock;

/// What an entry begins with; the last byte is the version of its layout.
const MAGIC: &[u8] = b"tenure-compiled\x01";
/// How many entries are kept, the ones used last.
const MAX_ENTRIES: usize = 256;
/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// A folder of compiled plugins.
pub(super) struct Cache {
    folder: PathBuf,
    /// What the compiled code depends on besides the plugin: wasmtime's version, its settings and this processor.
    engine: u64,
}

impl Cache {
    /// The cache in `folder`, which is made where it is missing. None where it can't be had or is open to others.
    pub(super) fn open(folder: &Path, engine: &Engine) -> Option<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        match made.and_then(|()| private(&fs::metadata(folder)?)) {
            Ok(()) => {
                let mut hasher = DefaultHasher::new();
                engine.precompile_compatibility_hash().hash(&mut hasher);
                Some(Self { folder: folder.to_owned(), engine: hasher.finish() })
            }
            Err(problem) => {
                warn!(folder = %folder.display(), %problem, "compiled plugins are not kept: each start compiles them anew");
                None
            }
        }
    }

    /// The component that was compiled from the bytes with this digest.
    pub(super) fn load(&self, engine: &Engine, digest: &str) -> Option<Component> {
        let path = self.path(digest);
        match self.read(&path, digest) {
            Ok(code) => {
                // SAFETY: the code was written by this program, as this user, and has not changed since: `read` has
                // checked who may write it, and its digest. wasmtime checks version and settings itself.
                #[allow(unsafe_code, reason = "the only way to use compiled code again")]
                let loaded = unsafe { Component::deserialize(engine, code) };
                match loaded {
                    Ok(component) => Some(component),
                    Err(problem) => self.doubt(&path, &problem),
                }
            }
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => None,
            Err(problem) => self.doubt(&path, &problem),
        }
    }

    /// Keeps a compiled component. Nothing depends on it: a failure is logged, and costs time at the next start.
    pub(super) fn keep(&self, digest: &str, component: &Component) {
        let kept = component.serialize().map_err(io::Error::other).and_then(|code| self.write(digest, &code));
        if let Err(problem) = kept.and_then(|()| self.prune()) {
            warn!(folder = %self.folder.display(), %problem, "a compiled plugin could not be kept");
        }
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{digest}-{:016x}", self.engine))
    }

    /// Covers what the code was made of and for as well as the code.
    fn seal(&self, digest: &str, code: &[u8]) -> [u8; 32] {
        let mut seal = Sha256::new();
        seal.update(digest);
        seal.update(self.engine.to_le_bytes());
        seal.update(code);
        seal.finalize().into()
    }

    fn read(&self, path: &Path, digest: &str) -> io::Result<Vec<u8>> {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        private(&metadata)?;
        let mut head = [0; MAGIC.len() + 32];
        file.read_exact(&mut head)?;
        let mut code = Vec::new();
        file.read_to_end(&mut code)?;
        let (magic, seal) = head.split_at(MAGIC.len());
        if magic != MAGIC || seal != self.seal(digest, &code) {
            return Err(io::Error::other("its digest does not fit"));
        }
        // So that what is used is kept. Where it fails, it is only thrown away earlier.
        let _ = file.set_modified(clock::wall().into());
        Ok(code)
    }

    /// All of it under another name first: nobody ever sees a part of an entry.
    fn write(&self, digest: &str, code: &[u8]) -> io::Result<()> {
        let path = self.path(digest);
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
            file.write_all(MAGIC)?;
            file.write_all(&self.seal(digest, code))?;
            file.write_all(code)?;
            file.sync_data()?;
            fs::rename(&part, &path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&part)))
    }

    fn prune(&self) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            entries.push((entry.metadata()?.modified()?, entry.path()));
        }
        entries.sort();
        let surplus = entries.len().saturating_sub(MAX_ENTRIES);
        entries[..surplus].iter().try_for_each(|(_, path)| fs::remove_file(path))
    }

    fn doubt<T>(&self, path: &Path, problem: &dyn std::fmt::Display) -> Option<T> {
        debug!(entry = %path.display(), %problem, "an entry of the compiled plugins is not used");
        None
    }
}

/// Nobody else can have written it.
fn private(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::other("others may write it: chmod go-w"));
    }
    Ok(())
}
