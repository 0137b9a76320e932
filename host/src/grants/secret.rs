//! A secret: read when a plugin starts, given to the plugin, and written nowhere.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// The most bytes of one secret: keys and certificates have a few thousand.
const MAX_SECRET: u64 = 64 << 10;
/// A shorter text is no secret worth hiding, and would hide half of every line.
const MIN_HIDDEN: usize = 4;
/// What stands in place of a secret.
const HIDDEN: &str = "[secret]";

/// Where a secret comes from: `"env:NAME"` or `"file:PATH"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// A variable of the host's environment.
    Env(String),
    /// A file; a line break at its end does not count.
    File(PathBuf),
}

/// The text of a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself: for the plugin, and for nothing else.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl SecretSource {
    /// Reads the secret as it is now.
    ///
    /// # Errors
    ///
    /// Why it can't be had, in words that follow the key's name.
    pub fn read(&self) -> Result<Secret, String> {
        match self {
            Self::Env(name) => match std::env::var(name) {
                Ok(value) => Ok(Secret(value)),
                Err(_) => {
                    Err(format!("the environment has no variable {name}, or it is not UTF-8; set it before the start"))
                }
            },
            Self::File(path) => {
                let at = |error: &dyn fmt::Display| format!("cannot read the file {}: {error}", path.display());
                let mut bytes = Vec::new();
                let file = File::open(path).map_err(|error| at(&error))?;
                file.take(MAX_SECRET + 1).read_to_end(&mut bytes).map_err(|error| at(&error))?;
                if bytes.len() as u64 > MAX_SECRET {
                    return Err(at(&format_args!("it is larger than {}", crate::words::bytes(MAX_SECRET))));
                }
                let text = String::from_utf8(bytes).map_err(|_| at(&"it is not UTF-8 text"))?;
                let text =
                    text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
                Ok(Secret(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Takes secrets out of what a plugin says before anybody writes it down.
#[derive(Clone, Default)]
pub struct Redactor {
    /// The longest first, so that a part of a secret never hides in the rest of it.
    hidden: Vec<String>,
}

impl Redactor {
    /// A redactor of these secrets, each line of them by itself, since output is written by lines.
    #[must_use]
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s Secret>) -> Self {
        let lines = secrets.into_iter().flat_map(|secret| secret.0.lines());
        let mut hidden: Vec<String> = lines.filter(|line| line.len() >= MIN_HIDDEN).map(str::to_owned).collect();
        hidden.sort_by_key(|line| std::cmp::Reverse(line.len()));
        Self { hidden }
    }

    /// `text` without the secrets.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        for hidden in &self.hidden {
            if text.contains(hidden.as_str()) {
                text = Cow::Owned(text.replace(hidden.as_str(), HIDDEN));
            }
        }
        text
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor of {} lines", self.hidden.len())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_its_last_line_break() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("token");
        for (bytes, secret) in [("abc\n", "abc"), ("abc\r\n", "abc"), ("abc", "abc"), ("a\nb\n\n", "a\nb\n")] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(SecretSource::File(path.clone()).read().unwrap().reveal(), secret);
        }
        std::fs::write(&path, vec![b'a'; 70_000]).unwrap();
        assert!(SecretSource::File(path.clone()).read().unwrap_err().contains("larger than 64 KiB"));
        std::fs::remove_file(&path).unwrap();
        assert!(SecretSource::File(path).read().unwrap_err().contains("cannot read the file"));
        assert!(
            SecretSource::Env("TENURE_NO_SUCH".to_owned()).read().unwrap_err().contains("no variable TENURE_NO_SUCH")
        );
    }

    #[test]
    fn no_secret_is_written() {
        let secrets =
            [Secret("hunter22".to_owned()), Secret("line one\nline two".to_owned()), Secret("hunter2".to_owned())];
        let redactor = Redactor::new(&secrets);
        assert_eq!(redactor.redact("pw=hunter22, line two!"), "pw=[secret], [secret]!");
        assert_eq!(redactor.redact("nothing"), "nothing");
        assert_eq!(format!("{:?} {redactor:?}", secrets[0]), "[secret] Redactor of 4 lines");
    }

    #[test]
    fn a_short_text_hides_nothing() {
        let redactor = Redactor::new(&[Secret("a".to_owned())]);
        assert_eq!(redactor.redact("a cat"), "a cat");
    }
}
