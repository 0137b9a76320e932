//! What only SQLite can be asked.

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use system_tests::disk::SmallDisk;
use tempfile::TempDir;
use tenure::store::sqlite::SqliteStore;

use super::*;

/// A store, and its file, which the test writes to as another process would.
struct Scene {
    folder: TempDir,
    store: SqliteStore,
}

impl Scene {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let store = SqliteStore::open(&folder.path().join("leases.sqlite")).unwrap();
        Self { folder, store }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("leases.sqlite")
    }

    fn write(&self, sql: &str) {
        let changed = Connection::open(self.file()).unwrap().execute(sql, []).unwrap();
        assert_eq!(changed, 1, "{sql}");
    }
}

#[tokio::test]
async fn a_lease_of_another_boot_is_over() {
    let scene = Scene::new();
    let holder = fresh();
    claim(&scene.store, holder, LONG).await;
    scene.write("UPDATE lease SET boot = 'another'");
    assert_eq!(renew(&scene.store, holder, LONG).await, RenewReply::NotYours);
    assert_eq!(release(&scene.store, holder, HandoffChange::Clear).await, ReleaseReply::NotYours);
    assert_eq!(term(&claim(&scene.store, fresh(), LONG).await), 2);
}

#[tokio::test]
async fn a_deleted_row_is_lost_data() {
    let scene = Scene::new();
    claim(&scene.store, fresh(), LONG).await;
    scene.write("DELETE FROM lease");
    let reply = try_claim(&scene.store, fresh(), LONG, 1).await.unwrap();
    assert_eq!(refusal(&reply), (RefusalReason::Behind, 0, LONG));
}

#[tokio::test]
async fn a_row_of_a_newer_tenure_is_left_alone() {
    let scene = Scene::new();
    let holder = fresh();
    claim(&scene.store, holder, LONG).await;
    release(&scene.store, holder, HandoffChange::Keep).await;
    scene.write("UPDATE lease SET protocol = 2");
    let (condition, words) = condition(try_claim(&scene.store, fresh(), LONG, 0).await);
    assert_eq!(condition, Condition::NewerProtocol);
    assert!(words.contains("sweeper") && words.contains("update this host"), "{words}");
}

#[tokio::test]
async fn another_process_that_holds_the_lock_delays_nobody_past_the_time_out() {
    let scene = Scene::new();
    let holder = fresh();
    claim(&scene.store, holder, LONG).await;
    let other = Connection::open(scene.file()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (began, within) = (Instant::now(), Duration::from_millis(400));
    let ask = RenewAsk { role: role(), claim: holder, ttl: LONG };
    let (condition, words) = condition(only(scene.store.renew(&[ask], within).await));
    assert!(began.elapsed() < within * 2, "answered after {:?}", began.elapsed());
    assert_eq!(condition, Condition::Busy);
    assert!(words.contains("write lock"), "{words}");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(renew(&scene.store, holder, LONG).await, RenewReply::Renewed);
}

#[tokio::test]
async fn a_full_disk_is_said_to_be_one_and_passes() {
    let Some(disk) = SmallDisk::mount() else { return };
    let store = SqliteStore::open(&disk.path().join("leases.sqlite")).unwrap();
    let holder = fresh();
    claim(&store, holder, LONG).await;
    disk.fill();
    let renewal = || [RenewAsk { role: role(), claim: holder, ttl: LONG }];
    // There may be some room left in the pages that SQLite has already.
    let mut refused = None;
    for _ in 0..2_000 {
        refused = only(store.renew(&renewal(), LONG).await).err();
        if refused.is_some() {
            break;
        }
    }
    let (condition, words) = condition::<()>(Err(refused.expect("the disk is full")));
    assert_eq!(condition, Condition::OutOfMemory);
    assert!(words.contains("the disk is full: free some of it"), "{words}");
    disk.free();
    assert_eq!(renew(&store, holder, LONG).await, RenewReply::Renewed);
}

#[test]
fn what_cannot_be_opened_is_named() {
    let folder = TempDir::new().unwrap();
    let garbage = folder.path().join("garbage");
    fs::write(&garbage, "this is no database, whatever its name may promise. ".repeat(100)).unwrap();
    for path in [garbage.clone(), folder.path().to_owned(), garbage.join("below/a/file.sqlite")] {
        let Err(error) = SqliteStore::open(&path) else { panic!("{} was opened", path.display()) };
        let words = format!("{error:#}");
        assert!(words.contains(path.to_str().unwrap()) && words.contains(": "), "{words}");
    }
}
