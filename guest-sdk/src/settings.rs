//! The `settings` of the role, as the host's configuration gives them.

use std::error::Error as StdError;
use std::str::FromStr;

use crate::Error;
use crate::bindings::wasi::config::store as wit;

/// The setting `key`, where it is set.
#[must_use]
pub fn get(key: &str) -> Option<String> {
    // This host has its settings in memory: reading one can't fail.
    wit::get(key).ok().flatten()
}

/// All settings.
#[must_use]
pub fn all() -> Vec<(String, String)> {
    wit::get_all().unwrap_or_default()
}

/// The setting `key` as a `T`, where it is set.
///
/// # Errors
///
/// Where its text is not a `T`; the words name the key.
pub fn parse<T: FromStr<Err: StdError>>(key: &str) -> Result<Option<T>, Error> {
    let Some(text) = get(key) else { return Ok(None) };
    match text.parse() {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(format!("the setting `{key}` is `{text}`: {error}").into()),
    }
}
