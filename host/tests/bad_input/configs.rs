//! What people write by mistake, and what they are told: `LINE:COLUMN: words`.

/// Whole files.
const FILES: &[(&str, &[&str])] = &[
    ("", &["1:1: no role: name at least one, as [role.NAME] with a `plugin`"]),
    ("[role]", &["1:1: no role: name at least one, as [role.NAME] with a `plugin`"]),
    ("role = 3", &["1:8: role: the number 3 where a table such as [role] is expected"]),
    ("role.a = 3", &["1:10: role.a: the number 3 where a table such as [role.a] is expected"]),
    ("[[role]]\nplugin = 'p.wasm'", &["1:1: role: an array where a table such as [role] is expected"]),
    ("[role.a\nplugin = 'p.wasm'", &["1:8: not TOML: unclosed table, expected `]`"]),
    ("[role.a]\nplugin = 'p.wasm", &["2:17: not TOML: invalid literal string, expected `'`"]),
    ("[role.a]\nplugin = p.wasm", &["2:10: not TOML: string values must be quoted, expected literal string"]),
    ("[role.a]\nplugin = 'p.wasm'\nplugin = 'q.wasm'", &["3:1: not TOML: duplicate key"]),
    (
        "[role.a]\nplugin = 'p.wasm'\n[role.a]\nplugin = 'q.wasm'",
        &["3:7: not TOML: duplicate key", "4:1: not TOML: duplicate key"],
    ),
    (
        "\0",
        &[
            "1:1: not TOML: invalid unquoted key, expected letters, numbers, `-`, `_`",
            "1:2: not TOML: key with no value, expected `=`",
        ],
    ),
    (
        "[roles.a]\nplugin = 'p.wasm'",
        &[
            "1:1: no role: name at least one, as [role.NAME] with a `plugin`",
            "1:2: roles: unknown key; did you mean `role`?",
        ],
    ),
    (
        "colour = 'red'\n[role.a]\nplugin = 'p.wasm'",
        &["1:1: colour: unknown key; known here are instance, store, lease, stop, role"],
    ),
    (
        "store = 'redis://:hunter2@db'\n[role.a]\nplugin = 'p.wasm'",
        &["1:9: store: a string where a table such as [store] is expected"],
    ),
    (
        "[lease]\nrenew_every = '20s'\n[role.a]\nplugin = 'p.wasm'\n[role.b]\nplugin = 'p.wasm'",
        &[
            "1:1: lease.renew_every = 20s and twice lease.request_timeout = 5s add up to 30s, but only 26.572s of lease.ttl = 30s are left before the instance must step down (skew 300ms, drain 3.128s); lower lease.renew_every or lease.request_timeout, or raise lease.ttl",
        ],
    ),
    ("[role.a]", &["1:7: role.a.plugin: is missing; name a .wasm file"]),
    ("[role.a]\nplugin = ''", &["2:10: role.a.plugin: is empty; name a .wasm file"]),
    (
        "[role.a]\nplugin = ['p.wasm']",
        &[r#"2:10: role.a.plugin: an array where a file such as "plugins/sweeper.wasm" is expected"#],
    ),
    (
        "[role.A]\nplugin = 'p.wasm'",
        &[
            "1:7: role.A: a role's name has 1 to 64 of the characters a-z, 0-9, `.`, `_`, `-` and starts with a letter or digit",
        ],
    ),
    (
        "[role.'a b']\nplugin = 'p.wasm'",
        &[
            r#"1:7: role."a b": a role's name has 1 to 64 of the characters a-z, 0-9, `.`, `_`, `-` and starts with a letter or digit"#,
        ],
    ),
    (
        "[role.'']\nplugin = 'p.wasm'",
        &[
            r#"1:7: role."": a role's name has 1 to 64 of the characters a-z, 0-9, `.`, `_`, `-` and starts with a letter or digit"#,
        ],
    ),
    (
        "[store]\nurl = 7\n[lease]\nttl = 'soon'\n[role.a]\nevery = 5\nsetings = {}",
        &[
            "2:7: store.url: the number 7 where redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE is expected",
            r#"4:7: lease.ttl: "soon" is no length of time; write one in h, m, s or ms, such as "1m 30s""#,
            "5:7: role.a.plugin: is missing; name a .wasm file",
            r#"6:9: role.a.every: the number 5 where a length of time such as "1m 30s" or "500ms" is expected"#,
            "7:1: role.a.setings: unknown key; did you mean `settings`?",
        ],
    ),
];

/// Tables other than a role's. A valid role follows.
const SECTIONS: &[(&str, &[&str])] = &[
    ("[instance]\nname = ''", &["2:8: instance.name: write 1 to 255 characters without control characters"]),
    ("[instance]\nname = \"a\\nb\"", &["2:8: instance.name: write 1 to 255 characters without control characters"]),
    (
        "[instance]\nname = 7",
        &[r#"2:8: instance.name: the number 7 where a name for people such as "web-1" is expected"#],
    ),
    ("[instance]\nhostname = 'web-1'", &["2:1: instance.hostname: unknown key; known here are name, data_dir"]),
    ("[instance]\nadmin = '127.0.0.1:7400'", &["2:1: instance.admin: unknown key; this version does not have it yet"]),
    ("[instance]\ndata_dir = ''", &["2:12: instance.data_dir: is empty; name a folder"]),
    (
        "[store]",
        &[
            "1:1: store.url: is missing; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE, or leave [store] out",
        ],
    ),
    (
        "[store]\nurl = ['redis://:hunter2@db']",
        &[
            "2:7: store.url: an array where redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE is expected",
        ],
    ),
    (
        "[store]\nurl = ''",
        &["2:7: store.url: has no scheme; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE"],
    ),
    (
        "[store]\nurl = 'localhost'",
        &["2:7: store.url: has no scheme; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE"],
    ),
    (
        "[store]\nurl = ':hunter2@db:6379'",
        &["2:7: store.url: has no scheme; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE"],
    ),
    (
        "[store]\nurl = 'etcd://:hunter2@db'",
        &[
            "2:7: store.url: has a scheme that is not known, `etcd`; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE",
        ],
    ),
    (
        "[store]\nurl = 'redis://:hunter2@db:port'",
        &[
            "2:7: store.url: can't be read (not a Redis URL: Redis URL did not parse - InvalidClientConfig); write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE",
        ],
    ),
    (
        "[store]\nurl = 'redis://:hunter2@db/first'",
        &[
            "2:7: store.url: can't be read (not a Redis URL: Invalid database number - InvalidClientConfig); write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE",
        ],
    ),
    (
        "[store]\nurl = 'redis://'",
        &[
            "2:7: store.url: can't be read (not a Redis URL: Missing hostname - InvalidClientConfig); write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE",
        ],
    ),
    (
        "[store]\nurl = 'sqlite:'",
        &["2:7: store.url: names no file; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE"],
    ),
    (
        "[store]\nurl = 'sqlite::memory:'",
        &[
            "2:7: store.url: names a database in memory, which no other host could share; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE",
        ],
    ),
    (
        "[store]\nurl = 'sqlite://leases.db'",
        &[
            "2:7: store.url: has the `//` of a host, where only a file is named; write redis://HOST:PORT, rediss://HOST:PORT, unix:///SOCKET or sqlite:FILE",
        ],
    ),
    (
        "[store]\nurl = 'redis://db'\nprefix = 'my app'",
        &["3:10: store.prefix: write 1 to 255 characters without spaces and braces"],
    ),
    (
        "[store]\nurl = 'redis://db'\nprefix = '{x}'",
        &["3:10: store.prefix: write 1 to 255 characters without spaces and braces"],
    ),
    ("[store]\nurl = 'redis://db'\nprefx = 'x'", &["3:1: store.prefx: unknown key; did you mean `prefix`?"]),
    (
        "[lease]\nttl = 30",
        &[r#"2:7: lease.ttl: the number 30 where a length of time such as "1m 30s" or "500ms" is expected"#],
    ),
    (
        "[lease]\nttl = '30'",
        &[r#"2:7: lease.ttl: "30" is no length of time; write one in h, m, s or ms, such as "1m 30s""#],
    ),
    (
        "[lease]\nttl = '-30s'",
        &[r#"2:7: lease.ttl: "-30s" is negative; write a length of time such as "1m 30s" or "500ms""#],
    ),
    (
        "[lease]\nttl = '1 month'",
        &[r#"2:7: lease.ttl: "1 month" is no length of time; write one in h, m, s or ms, such as "1m 30s""#],
    ),
    ("[lease]\nttl = '999ms'", &["1:1: lease.ttl = 999ms is too short: at least 1s"]),
    (
        "[lease]\nttl = '1000h'",
        &["1:1: lease.ttl = 3600000s is too long: at most 2592000s, since a crashed holder's role idles for as long"],
    ),
    ("[lease]\nrenew_evry = '3s'", &["2:1: lease.renew_evry: unknown key; did you mean `renew_every`?"]),
    (
        "[lease]\ntimeout = '3s'",
        &["2:1: lease.timeout: unknown key; known here are ttl, renew_every, request_timeout, skew"],
    ),
    ("[lease]\nrequest_timeout = '0s'", &["1:1: lease.request_timeout must be longer than zero"]),
    (
        "[stop]\nwithin = '40s'",
        &[
            "1:1: lease.ttl = 30s leaves no time to lead: lease.skew = 300ms, stop.grace = 1s, stop.within = 40s and the kill margin of 128ms add up to 41.428s; raise lease.ttl, or lower stop.within or memory",
        ],
    ),
    (
        "[stop]\nfuel = 0",
        &["2:8: stop.fuel: the number 0 where a whole number from 1 up, such as 100_000_000, is expected"],
    ),
    (
        "[stop]\nfuel = -1",
        &["2:8: stop.fuel: the number -1 where a whole number from 1 up, such as 100_000_000, is expected"],
    ),
    (
        "[stop]\nfuel = 1e8",
        &["2:8: stop.fuel: the number 1e8 where a whole number from 1 up, such as 100_000_000, is expected"],
    ),
    (
        "[stop]\nfuel = 99999999999999999999",
        &[
            "2:8: stop.fuel: the number 99999999999999999999 where a whole number from 1 up, such as 100_000_000, is expected",
        ],
    ),
];

/// Keys of a role that has a plugin: they begin in line 3.
const ROLE_KEYS: &[(&str, &[&str])] = &[
    ("every = '0s'", &["3:9: role.a.every: must be longer than zero"]),
    (
        "every = '1/2 h'",
        &[r#"3:9: role.a.every: "1/2 h" is no length of time; write one in h, m, s or ms, such as "1m 30s""#],
    ),
    (
        "tick_timeout = false",
        &[r#"3:16: role.a.tick_timeout: `false` where a length of time such as "1m 30s" or "500ms" is expected"#],
    ),
    ("memory = 64", &[r#"3:10: role.a.memory: the number 64 where a size such as "64MiB" is expected"#]),
    (
        "memory = '64MB'",
        &[r#"3:10: role.a.memory: "64MB" is no size; write a size such as "64MiB", with KiB, MiB or GiB"#],
    ),
    ("memory = '64KiB'", &[r#"3:10: role.a.memory: "64KiB" is out of bounds; write a size from 1 MiB to 4 GiB"#]),
    (
        "memory = '99999999999GiB'",
        &[r#"3:10: role.a.memory: "99999999999GiB" is no size; write a size such as "64MiB", with KiB, MiB or GiB"#],
    ),
    ("settings = 'x'", &["3:12: role.a.settings: a string where a table such as [role.a.settings] is expected"]),
    (
        "settings = { hosts = ['x', 'y'] }",
        &["3:22: role.a.settings.hosts: an array where a string, a number or a boolean is expected"],
    ),
    ("lease = '10s'", &["3:9: role.a.lease: a string where a table such as [role.a.lease] is expected"]),
    (
        "lease = { ttl = '2s', renew_every = '1500ms' }",
        &[
            "1:7: role.a: lease.renew_every = 1.5s and twice lease.request_timeout = 333ms add up to 2.166s, but only 1.653s of lease.ttl = 2s are left before the instance must step down (skew 20ms, drain 327ms); lower lease.renew_every or lease.request_timeout, or raise lease.ttl",
        ],
    ),
    ("stop = { fule = 1 }", &["3:10: role.a.stop.fule: unknown key; did you mean `fuel`?"]),
    ("grants = true", &["3:10: role.a.grants: `true` where a table such as [role.a.grants] is expected"]),
    (
        "grants = { keyvalue = 1, filesystem = true }",
        &[
            "3:23: role.a.grants.keyvalue: the number 1 where `true` or `false` is expected",
            "3:26: role.a.grants.filesystem: unknown key; known here are keyvalue, http, env, secrets, dirs",
        ],
    ),
    (
        "grants = { http = 'https://a.org' }",
        &[
            r#"3:19: role.a.grants.http: a string where an array of origins such as ["https://api.example.com"] is expected"#,
        ],
    ),
    (
        "grants = { http = ['a.org', 'ftp://a.org', 7, 'https://u:hunter2@a.org'] }",
        &[
            r#"3:20: role.a.grants.http: "a.org" has no scheme; write one such as https://api.example.com, https://*.example.com:8443 or https://example.com/v1"#,
            r#"3:29: role.a.grants.http: "ftp://a.org" has a scheme other than http and https; write one such as https://api.example.com, https://*.example.com:8443 or https://example.com/v1"#,
            "3:44: role.a.grants.http: the number 7 where a string is expected",
            r#"3:47: role.a.grants.http: "…" has more than a scheme, a host, a port and a path; write one such as https://api.example.com, https://*.example.com:8443 or https://example.com/v1"#,
        ],
    ),
    (
        "grants = { env = ['', 'A B=1', 'TENURE_TERM=9'] }",
        &[
            r#"3:19: role.a.grants.env: "" has no name of a variable; write "NAME" for the host's value, or "NAME=value""#,
            r#"3:23: role.a.grants.env: "A B=1" has no name of a variable; write "NAME" for the host's value, or "NAME=value""#,
            r#"3:32: role.a.grants.env: "TENURE_TERM=9" names one of the host's own variables; names that begin with TENURE_ are taken"#,
        ],
    ),
    (
        "grants = { secrets = { key = 'hunter2' } }",
        &[r#"3:30: role.a.grants.secrets.key: is not where a secret comes from; write "env:NAME" or "file:PATH""#],
    ),
    (
        "grants = { secrets = { key = 'env:' } }",
        &[r#"3:30: role.a.grants.secrets.key: is not where a secret comes from; write "env:NAME" or "file:PATH""#],
    ),
    (
        "grants = { secrets = { key = 5 } }",
        &[r#"3:30: role.a.grants.secrets.key: the number 5 where "env:NAME" or "file:PATH" is expected"#],
    ),
    (
        "settings = { key = 'a' }\ngrants = { secrets = { key = 'env:KEY' } }",
        &["1:7: role.a: `key` is a setting and a secret; the plugin reads both by the key: rename one"],
    ),
    (
        "grants = { dirs = [{ host = './data' }] }",
        &[r#"3:20: role.a.grants.dirs.guest: is missing; write { host = "./data", guest = "/data" }"#],
    ),
    ("grants = { dirs = ['./data'] }", &["3:20: role.a.grants.dirs: a string where a table is expected"]),
    (
        "grants = { dirs = [{ host = 'a', guest = '/a' }, { host = 'b', guest = '/a', read = true }] }",
        &[
            "3:50: role.a.grants.dirs: two folders are /a for the plugin; name another `guest`",
            "3:78: role.a.grants.dirs.read: unknown key; known here are host, guest, write",
        ],
    ),
    ("sha256 = 'abc'", &["3:10: role.a.sha256: is no digest; write the 64 hexadecimal digits that `sha256sum` prints"]),
    (
        "cron = 'every day'",
        &[
            r#"3:8: role.a.cron: "every day" is no pattern (Invalid pattern: Pattern must have between 5 and 7 fields.); write five fields, or six with seconds, such as "*/5 * * * *""#,
        ],
    ),
    ("cron = '* * * * *'\nevery = '5s'", &["3:8: role.a.cron: stands beside `every`; write one of them"]),
    (
        "cron = '* * * * *'\ntimezone = 'Berlin'",
        &[
            r#"4:12: role.a.timezone: "Berlin" is not known; write a name such as "Europe/Berlin", or leave it out for UTC"#,
        ],
    ),
    (
        "timezone = 'Europe/Berlin'",
        &["3:12: role.a.timezone: is for `cron`, which is missing; write it, or remove this"],
    ),
    ("jitter = '5s'", &["3:10: role.a.jitter: is for a schedule; write `every` or `cron`, or remove this"]),
    ("every = '5s'\njitter = '2h'", &["4:10: role.a.jitter: 7200s is too long; write at most 1 h"]),
    (
        "every = '1500us'\ndelivery = 'at-most-once'",
        &[r#"3:9: role.a.every: has slots in whole milliseconds; write at least "1ms""#],
    ),
    (
        "every = '5s'\ndelivery = 'exactly-once'",
        &[r#"4:12: role.a.delivery: "exactly-once" is no choice; write "at-most-once" or "at-least-once""#],
    ),
    (
        "every = '5s'\ncatch_up = 'some'",
        &[r#"4:12: role.a.catch_up: "some" is no choice; write "none" or "last" or "all""#],
    ),
    (
        "every = '5s'\ncatch_up = 'last'\ncatch_up_max = 5",
        &[r#"5:16: role.a.catch_up_max: is for catch_up = "all"; write that, or remove this"#],
    ),
    (
        "every = '5s'\ncatch_up = 'all'\ncatch_up_max = 5_000",
        &["5:16: role.a.catch_up_max: 5000 is too much; write at most 1000"],
    ),
    (
        "on_failure = { give_up_after = 0 }",
        &[
            "3:32: role.a.on_failure.give_up_after: the number 0 where a whole number from 1 up, such as 100_000_000, is expected",
        ],
    ),
    (
        "on_failure = { back_off = '20s', max_back_off = '10s' }",
        &["3:49: role.a.on_failure.max_back_off: is below back_off; raise it"],
    ),
    (
        "on_failure = { cooldown = '10s' }",
        &["3:16: role.a.on_failure.cooldown: unknown key; did you mean `cool_down`?"],
    ),
];

/// A broken file, and all that is said of it.
pub(super) struct Broken {
    pub(super) toml: String,
    pub(super) says: &'static [&'static str],
}

pub(super) fn all() -> Vec<Broken> {
    let role = "[role.a]\nplugin = 'p.wasm'\n";
    let files = FILES.iter().map(|(toml, says)| Broken { toml: (*toml).to_owned(), says });
    let sections = SECTIONS.iter().map(|(toml, says)| Broken { toml: format!("{toml}\n{role}"), says });
    let keys = ROLE_KEYS.iter().map(|(toml, says)| Broken { toml: format!("{role}{toml}\n"), says });
    files.chain(sections).chain(keys).collect()
}
