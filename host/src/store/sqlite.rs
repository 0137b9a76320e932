//! Leases in one SQLite file.
use std::path::Path;
/// x
pub struct SqliteStore;
impl SqliteStore {
    /// x
    pub fn open(_: &Path) -> anyhow::Result<super::standalone::StandaloneStore> {
        Ok(super::standalone::StandaloneStore::new())
    }
}
