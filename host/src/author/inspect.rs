//! `tenure plugin inspect`: what a file is, wants and gives, and the role that it needs.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::clock;
use crate::images;
use crate::plugin::engine::{Engine, Inspection};
use crate::plugin::{Kind, LoadError};
use crate::words;

/// A report on a plugin file, as a table.
///
/// # Errors
///
/// Where the file can't be read, or is no component and can't be made one.
pub fn report(file: &Path) -> anyhow::Result<String> {
    let bytes = images::read(file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    let engine = Engine::new()?;
    let began = clock::now();
    let found = engine.inspect(&bytes).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    let took = clock::now().since(began);
    Ok(describe(file, bytes.len() as u64, took, &found))
}

fn describe(file: &Path, size: u64, took: Duration, found: &Inspection) -> String {
    let mut text = String::new();
    let kind = match &found.kind {
        Ok(Kind::Job) => "a job".to_owned(),
        Ok(Kind::Command) => "a command".to_owned(),
        Err(LoadError(words)) => format!("no plugin: {words}"),
    };
    let size = words::bytes(size);
    let _ = writeln!(text, "file      {}", file.display());
    let _ = writeln!(text, "kind      {kind}");
    let _ = writeln!(text, "form      {}, {size}, compiled here in {}", found.form, words::duration(took));
    let _ = writeln!(text, "sha256    {}", found.digest);
    let width = found.imports.iter().map(String::len).max().unwrap_or(0);
    for (at, import) in found.imports.iter().enumerate() {
        let head = if at == 0 { "imports" } else { "" };
        let _ = writeln!(text, "{head:<9} {import:<width$}  {}", Inspection::given_by(import));
    }
    for (at, export) in found.exports.iter().enumerate() {
        let head = if at == 0 { "exports" } else { "" };
        let _ = writeln!(text, "{head:<9} {export}");
    }
    if found.kind.is_ok() {
        let _ = writeln!(text, "\n[role.{}]\nplugin = \"{}\"", role_name(file), file.display());
        let grants = found.grants();
        if !grants.is_empty() {
            let _ = writeln!(text, "grants = {{ {} }}", grants.join(", "));
        }
    }
    text
}

/// A role's name that a file suggests.
pub(super) fn role_name(file: &Path) -> String {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = stem.chars().map(fit).skip_while(|c| !c.is_ascii_alphanumeric()).take(64).collect();
    if name.is_empty() { "plugin".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_name_suggests_a_roles() {
        for (file, name) in
            [("a/My Job.wasm", "my-job"), ("_x.wasm", "x"), ("é.wasm", "plugin"), ("sweeper.wasm", "sweeper")]
        {
            assert_eq!(role_name(Path::new(file)), name);
            assert!(crate::config::RoleName::new(name).is_ok());
        }
    }
}
