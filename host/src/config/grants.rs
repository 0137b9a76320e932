//! A role's `grants`.

use std::path::Path;

use super::section::Section;
use crate::grants::{Dir, Grants, Origin, SecretSource, Variable};

/// Variables that the host sets itself begin so.
const OWN_VARIABLES: &str = "TENURE_";

pub(super) fn read_grants(section: Section<'_>, folder: &Path) -> Grants {
    let keyvalue = section.boolean("keyvalue").unwrap_or(false);
    let http = section.strings("http", "an array of origins such as [\"https://api.example.com\"]");
    let http = http.into_iter().filter_map(|(text, at)| {
        // What stands before an `@` may be a password.
        let shown = if text.contains('@') { "…" } else { text };
        Origin::parse(text).map_err(|words| section.problem(at, "http", format_args!("{shown:?} {words}"))).ok()
    });
    let http = http.collect();
    let env = section.strings("env", "an array of variables such as [\"TZ\", \"MODE=fast\"]");
    let env = env.into_iter().filter_map(|(text, at)| {
        read_variable(text).map_err(|words| section.problem(at, "env", format_args!("{text:?} {words}"))).ok()
    });
    let env = env.collect();
    let mut secrets = Vec::new();
    if let Some(table) = section.table("secrets") {
        for (key, text, at) in table.each_string("\"env:NAME\" or \"file:PATH\"") {
            match read_secret(text, folder) {
                Some(source) => secrets.push((key.to_owned(), source)),
                // It may be the secret itself: the words never repeat it.
                None => table.problem(at, key, "is not where a secret comes from; write \"env:NAME\" or \"file:PATH\""),
            }
        }
    }
    let mut dirs: Vec<Dir> = Vec::new();
    for table in section.array_of_tables("dirs", "an array such as [{ host = \"./data\", guest = \"/data\" }]") {
        if let Some(dir) = read_dir(&table, folder) {
            if dirs.iter().any(|other| other.guest == dir.guest) {
                table.problem_here(format_args!("two folders are {} for the plugin; name another `guest`", dir.guest));
            }
            dirs.push(dir);
        }
        table.finish();
    }
    section.finish();
    Grants { keyvalue, http, env, secrets: secrets.into_iter().collect(), dirs }
}

fn read_variable(text: &str) -> Result<Variable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) || text.contains('\0') {
        return Err("has no name of a variable; write \"NAME\" for the host's value, or \"NAME=value\"".to_owned());
    }
    if name.starts_with(OWN_VARIABLES) {
        return Err(format!("names one of the host's own variables; names that begin with {OWN_VARIABLES} are taken"));
    }
    Ok(match value {
        Some(value) => Variable::Set(name.to_owned(), value.to_owned()),
        None => Variable::OfHost(name.to_owned()),
    })
}

fn read_secret(text: &str, folder: &Path) -> Option<SecretSource> {
    match text.split_once(':') {
        Some(("env", name)) if !name.is_empty() && !name.contains(['=', '\0']) => {
            Some(SecretSource::Env(name.to_owned()))
        }
        Some(("file", path)) if !path.is_empty() => Some(SecretSource::File(folder.join(path))),
        _ => None,
    }
}

fn read_dir(table: &Section<'_>, folder: &Path) -> Option<Dir> {
    let host = table.string("host", "a folder of this machine such as \"./data\"");
    let guest = table.string("guest", "the path that the plugin sees, such as \"/data\"");
    let write = table.boolean("write").unwrap_or(false);
    for key in ["host", "guest"] {
        if !table.has(key) {
            table.problem(table.at, key, "is missing; write { host = \"./data\", guest = \"/data\" }");
        }
    }
    let ((host, host_at), (guest, guest_at)) = (host?, guest?);
    if host.is_empty() || host.contains('\0') {
        table.problem(host_at, "host", "names no folder");
    }
    if guest.is_empty() || guest.contains('\0') {
        table.problem(guest_at, "guest", "names no path; write one such as \"/data\"");
    }
    Some(Dir { host: folder.join(host), guest: guest.to_owned(), write })
}
