//! An entry of the list of URLs that a plugin may call.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Scheme, host, port and path prefix that requests may go to.
///
/// `https://api.example.com` allows that host on port 443. `https://*.example.com` allows every name below it, and not
/// `example.com` itself; `https://*` allows every host, `:*` every port. A path allows what is below it: `/v1` allows
/// `/v1` and `/v1/x`, and not `/v10`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    https: bool,
    host: Host,
    /// None: every port.
    port: Option<u16>,
    /// Without a slash at its end; empty where every path is allowed.
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Any,
    /// Every name that ends so, with the dot.
    Below(String),
    Exactly(String),
}

/// Where a request wants to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// Whether it is `https`, and not `http`.
    pub https: bool,
    /// A name or an address; an IPv6 address has its brackets.
    pub host: &'a str,
    /// The port, which may be the scheme's own.
    pub port: u16,
    /// The path, without the query.
    pub path: &'a str,
}

impl Origin {
    /// Reads an entry such as `https://*.example.com:8443/v1`.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words that follow its text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let example = "write one such as https://api.example.com, https://*.example.com:8443 or https://example.com/v1";
        let wrong = |words: &str| Err(format!("{words}; {example}"));
        let (https, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return wrong("has a scheme other than http and https"),
            None => return wrong("has no scheme"),
        };
        if rest.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '@' | '\\' | '%')) {
            return wrong("has more than a scheme, a host, a port and a path");
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if path.split('/').any(|part| matches!(part, "." | "..")) {
            return wrong("has `.` or `..` in its path");
        }
        let (host, port) = match authority.rfind(':') {
            Some(at) if !authority[at..].contains(']') => (&authority[..at], Some(&authority[at + 1..])),
            _ => (authority, None),
        };
        let port = match port {
            None => Some(if https { 443 } else { 80 }),
            Some("*") => None,
            Some(port) => match port.parse() {
                Ok(port) if port > 0 => Some(port),
                _ => return wrong("has a port that is none"),
            },
        };
        let host = host.to_ascii_lowercase();
        let host = match host.strip_prefix('*') {
            Some("") => Host::Any,
            Some(below) if below.starts_with('.') && is_name(&below[1..]) => Host::Below(below.to_owned()),
            Some(_) => return wrong("has a wildcard that does not stand for whole names"),
            None if is_name(&host) || address(&host).is_some() => Host::Exactly(host),
            None => return wrong("has no host, or one that is no name and no address"),
        };
        Ok(Self { https, host, port, path: path.trim_end_matches('/').to_owned() })
    }

    /// Whether a request may go to `target`, by its name. Where the name leads to is another question.
    #[must_use]
    pub fn allows(&self, target: Target<'_>) -> bool {
        self.allows_host(target) && self.covers(target.path)
    }

    /// The same, for any path.
    #[must_use]
    pub fn allows_host(&self, target: Target<'_>) -> bool {
        let host = target.host.to_ascii_lowercase();
        let host_fits = match &self.host {
            Host::Any => true,
            Host::Below(end) => host.len() > end.len() && host.ends_with(end.as_str()) && address(&host).is_none(),
            Host::Exactly(name) => host == *name,
        };
        self.https == target.https && self.port.is_none_or(|port| port == target.port) && host_fits
    }

    /// Whether it names an address of this machine or its link itself, so that requests may go there.
    #[must_use]
    pub fn names_local(&self) -> bool {
        let Host::Exactly(name) = &self.host else { return false };
        name == "localhost" || name.ends_with(".localhost") || address(name).is_some_and(is_local)
    }

    /// A path that a server might read as another one is covered by nothing but the whole origin.
    fn covers(&self, path: &str) -> bool {
        if self.path.is_empty() {
            return true;
        }
        let lower = path.to_ascii_lowercase();
        let tricky = lower.contains("%2e") || lower.contains("%2f") || lower.contains("%5c") || lower.contains('\\');
        if tricky || path.split('/').any(|part| matches!(part, "." | "..")) {
            return false;
        }
        path.strip_prefix(self.path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        match &self.host {
            Host::Any => write!(f, "{scheme}://*")?,
            Host::Below(end) => write!(f, "{scheme}://*{end}")?,
            Host::Exactly(name) => write!(f, "{scheme}://{name}")?,
        }
        match self.port {
            None => write!(f, ":*")?,
            Some(port) if port == if self.https { 443 } else { 80 } => {}
            Some(port) => write!(f, ":{port}")?,
        }
        f.write_str(&self.path)
    }
}

/// Whether an address belongs to this machine, its link, or nobody: what no grant of a name or a wildcard covers. Among
/// them is where clouds tell a machine its own credentials.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_local_v4(v4),
        IpAddr::V6(v6) => {
            let link_local = v6.segments()[0] & 0xffc0 == 0xfe80;
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || link_local
                || inner(v6).is_some_and(is_local_v4)
        }
    }
}

fn is_local_v4(v4: Ipv4Addr) -> bool {
    v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_broadcast() || v4.octets()[0] == 0
}

/// The IPv4 address that an IPv6 address stands for: mapped, compatible, or behind the well-known translation prefix.
fn inner(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = v6.segments();
    let [.., a, b] = segments;
    let [a0, a1] = a.to_be_bytes();
    let [b0, b1] = b.to_be_bytes();
    let embeds = matches!(segments[..6], [0, 0, 0, 0, 0, 0 | 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0]);
    embeds.then(|| Ipv4Addr::new(a0, a1, b0, b1))
}

/// An address as it stands in a URL.
fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

fn is_name(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    host.len() <= 253 && host.split('.').all(label)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A URL in its parts, as the HTTP library gives them.
    fn target(url: &str) -> Target<'_> {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let https = scheme == "https";
        let (host, port) = match authority.rfind(':') {
            Some(at) if !authority[at..].contains(']') => (&authority[..at], authority[at + 1..].parse().unwrap()),
            _ => (authority, if https { 443 } else { 80 }),
        };
        Target { https, host, port, path }
    }

    fn allows(origin: &str, url: &str) -> bool {
        Origin::parse(origin).unwrap().allows(target(url))
    }

    #[test]
    fn scheme_host_and_port_must_fit() {
        assert!(allows("https://api.example.com", "https://API.example.com/x"));
        assert!(allows("https://api.example.com", "https://api.example.com:443/"));
        assert!(!allows("https://api.example.com", "http://api.example.com/"));
        assert!(!allows("https://api.example.com", "https://api.example.com:8443/"));
        assert!(!allows("https://api.example.com", "https://api.example.com.evil.org/"));
        assert!(!allows("https://api.example.com", "https://evil-api.example.com/"));
        assert!(allows("http://localhost:*", "http://localhost:1234/"));
        assert!(allows("http://[::1]:8080", "http://[::1]:8080/"));
    }

    #[test]
    fn a_wildcard_stands_for_the_names_below() {
        assert!(allows("https://*.example.com", "https://a.example.com/"));
        assert!(allows("https://*.example.com", "https://a.b.example.com/"));
        assert!(!allows("https://*.example.com", "https://example.com/"));
        assert!(!allows("https://*.example.com", "https://evilexample.com/"));
        assert!(!allows("https://*.0.0.1", "https://127.0.0.1/"));
        assert!(allows("https://*", "https://anything.org/"));
    }

    #[test]
    fn a_path_covers_what_is_below_it() {
        for good in ["https://a.org/v1", "https://a.org/v1/", "https://a.org/v1/x/y"] {
            assert!(allows("https://a.org/v1", good), "{good}");
        }
        for bad in [
            "https://a.org/",
            "https://a.org/v10",
            "https://a.org/v1/../admin",
            "https://a.org/v1/%2e%2e/admin",
            "https://a.org/v1/%2E./admin",
            "https://a.org/v1%2fadmin",
            "https://a.org/v1/..\\admin",
            "https://a.org//v1",
        ] {
            assert!(!allows("https://a.org/v1/", bad), "{bad}");
        }
    }

    #[test]
    fn what_is_no_origin_says_why() {
        for (text, words) in [
            ("api.example.com", "has no scheme"),
            ("ftp://a.org", "a scheme other than http and https"),
            ("https://", "has no host"),
            ("https://a b.org", "has more than"),
            ("https://user@a.org", "has more than"),
            ("https://a.org/?q", "has more than"),
            ("https://a.org:0", "a port that is none"),
            ("https://a.org:http", "a port that is none"),
            ("https://a*.org", "has no host"),
            ("https://*a.org", "a wildcard that does not stand for whole names"),
            ("https://a..org", "has no host"),
            ("https://a.org/../x", "has `.` or `..`"),
        ] {
            let error = Origin::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn an_origin_is_written_as_it_is_read() {
        for text in ["https://a.org", "http://*.a.org:8080/v1", "https://*:*", "http://[::1]:81"] {
            assert_eq!(Origin::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn local_addresses_in_every_dress() {
        for local in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "::ffff:169.254.169.254",
        ] {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
        for other in ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1", "::ffff:8.8.8.8", "fd00::1"] {
            assert!(!is_local(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn only_an_address_or_localhost_itself_names_this_machine() {
        for (text, local) in [
            ("http://localhost:8080", true),
            ("http://api.localhost", true),
            ("http://127.0.0.1", true),
            ("http://[::1]:80", true),
            ("http://169.254.169.254", true),
            ("http://*", false),
            ("http://10.0.0.1", false),
            ("http://*.localhost", false),
            ("http://example.com", false),
        ] {
            assert_eq!(Origin::parse(text).unwrap().names_local(), local, "{text}");
        }
    }
}
