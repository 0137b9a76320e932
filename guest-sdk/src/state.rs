//! The role's state: keys and values that outlive the leader, and that only the present leader can change. Needs
//! `grants = { keyvalue = true }` in the role.

use std::fmt;

use crate::bindings::wasi::keyvalue::{atomics, batch, store as wit};

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The term is over: another host may lead already. Nothing was changed, and nothing will be.
    Fenced,
    /// A limit, or a value of another kind. Nothing was changed; trying again does not change that.
    Refused(String),
    /// The store did not answer, or can't. A change may or may not have been made.
    Unavailable(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced => f.write_str("fenced: the term is over"),
            Self::Refused(words) => write!(f, "the state refused it: {words}"),
            Self::Unavailable(words) => write!(f, "the state is unavailable: {words}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<wit::Error> for Error {
    fn from(error: wit::Error) -> Self {
        match error {
            wit::Error::AccessDenied => Self::Fenced,
            wit::Error::NoSuchStore => Self::Refused("there is no such bucket".to_owned()),
            wit::Error::Other(words) => match words.strip_prefix("refused: ") {
                Some(words) => Self::Refused(words.to_owned()),
                None => Self::Unavailable(words.strip_prefix("unavailable: ").unwrap_or(&words).to_owned()),
            },
        }
    }
}

/// The outcome of each of these functions.
pub type Result<T> = std::result::Result<T, Error>;

fn with_bucket<T>(work: impl FnOnce(&wit::Bucket) -> std::result::Result<T, wit::Error>) -> Result<T> {
    Ok(work(&wit::open("default")?)?)
}

/// The value of `key`, where it has one.
///
/// # Errors
///
/// See [`Error`].
pub fn get(key: &str) -> Result<Option<Vec<u8>>> {
    with_bucket(|bucket| bucket.get(key))
}

/// Gives `key` a value.
///
/// # Errors
///
/// See [`Error`].
pub fn set(key: &str, value: impl AsRef<[u8]>) -> Result<()> {
    with_bucket(|bucket| bucket.set(key, value.as_ref()))
}

/// Removes `key`, if it is there.
///
/// # Errors
///
/// See [`Error`].
pub fn delete(key: &str) -> Result<()> {
    with_bucket(|bucket| bucket.delete(key))
}

/// Whether there is a `key`.
///
/// # Errors
///
/// See [`Error`].
pub fn exists(key: &str) -> Result<bool> {
    with_bucket(|bucket| bucket.exists(key))
}

/// All keys, in no order.
///
/// # Errors
///
/// See [`Error`].
pub fn keys() -> Result<Vec<String>> {
    with_bucket(|bucket| {
        let (mut keys, mut cursor) = (Vec::new(), None);
        loop {
            let page = bucket.list_keys(cursor)?;
            keys.extend(page.keys);
            cursor = page.cursor;
            if cursor.is_none() {
                // A key may come twice where the store grows meanwhile.
                keys.sort_unstable();
                keys.dedup();
                return Ok(keys);
            }
        }
    })
}

/// Adds `delta` to the decimal number at `key`, which counts as 0 where it is missing, and returns the sum.
///
/// # Errors
///
/// See [`Error`]; [`Error::Refused`] where the value is no number.
pub fn increment(key: &str, delta: u64) -> Result<u64> {
    with_bucket(|bucket| atomics::increment(bucket, key, delta))
}

/// The values of several keys, in their order.
///
/// # Errors
///
/// See [`Error`].
pub fn get_many<K: AsRef<str>>(keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
    let keys: Vec<String> = keys.iter().map(|key| key.as_ref().to_owned()).collect();
    let found = with_bucket(|bucket| batch::get_many(bucket, &keys))?;
    Ok(found.into_iter().map(|entry| entry.map(|(_, value)| value)).collect())
}

/// Gives each key its value: all of them, or none.
///
/// # Errors
///
/// See [`Error`].
pub fn set_many(entries: &[(String, Vec<u8>)]) -> Result<()> {
    with_bucket(|bucket| batch::set_many(bucket, entries))
}

/// Removes the keys that are there: all of them, or none.
///
/// # Errors
///
/// See [`Error`].
pub fn delete_many<K: AsRef<str>>(keys: &[K]) -> Result<()> {
    let keys: Vec<String> = keys.iter().map(|key| key.as_ref().to_owned()).collect();
    with_bucket(|bucket| batch::delete_many(bucket, &keys))
}
