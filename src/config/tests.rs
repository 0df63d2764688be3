#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::*;

/// Loads `file`, which stands in a directory of its own, under `environment`. Errors as their text, with
/// the file's directory left out.
fn load(file: &str, environment: &[(&str, &str)], overrides: Overrides) -> Result<Config, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("duetime.toml");
    fs::write(&path, file).unwrap();
    let environment = environment
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let shown = format!("{}/", directory.path().display());
    Config::load(&Sources::new(Some(path), environment, overrides))
        .map_err(|error| error.to_string().replace(&shown, ""))
}

fn file_error(file: &str) -> String {
    load(file, &[], Overrides::default()).unwrap_err()
}

fn variable_error(name: &str, text: &str) -> String {
    load("", &[(name, text)], Overrides::default()).unwrap_err()
}

#[test]
fn the_shipped_file_says_exactly_what_the_defaults_are() {
    let text = include_str!("../../config/duetime.toml");
    assert_eq!(
        load(text, &[], Overrides::default()).unwrap(),
        Config::default()
    );
    let shipped = DeTable::parse(text).unwrap();
    let mut config = Config::default();
    for name in Config::SECTIONS {
        let table = shipped
            .get_ref()
            .get(*name)
            .and_then(|section| section.get_ref().as_table());
        let mut keys: Vec<&str> = table
            .unwrap()
            .keys()
            .map(|key| key.get_ref().as_ref())
            .collect();
        let mut known = config.section(name).unwrap().keys().to_vec();
        keys.sort_unstable();
        known.sort_unstable();
        assert_eq!(keys, known, "[{name}]");
    }
}

#[test]
fn flags_win_over_the_environment_which_wins_over_the_file() {
    let file = "[http]\nlisten = '127.0.0.1:1'\nworkers = 1\nconnections_max = 1\n[store]\ndata = 'from-file'";
    let environment = [
        ("DUETIME_HTTP__LISTEN", "127.0.0.1:2"),
        ("DUETIME_HTTP__WORKERS", "2"),
        ("DUETIME_STORE__DATA", "from-environment"),
    ];
    let overrides = Overrides {
        data: Some("from-flag".into()),
        listen: Some("127.0.0.1:3".parse().unwrap()),
    };
    let config = load(file, &environment, overrides).unwrap();
    assert_eq!(config.http.listen.port(), 3);
    assert_eq!(config.http.workers, 2);
    assert_eq!(config.http.connections_max, 1);
    assert_eq!(config.http.idle_timeout, HttpConfig::default().idle_timeout);
    assert_eq!(config.store.data, Path::new("from-flag"));
    let config = load(file, &environment, Overrides::default()).unwrap();
    assert_eq!(config.http.listen.port(), 2);
    assert_eq!(config.store.data, Path::new("from-environment"));
}

#[test]
fn every_kind_of_value_is_read_from_both_layers() {
    let file = "[http]\nbody_timeout = 'PT1M'\nworkers = 0x10\n[store]\ncheckpoint_bytes = 1_048_576\ncache = '1GiB'
        [push]\nallow_private = true\n[log]\nformat = 'json'\nlevel = 'warn,duetime::shard=trace'";
    let environment = [
        ("DUETIME_HTTP__BODY_TIMEOUT", "PT1M"),
        ("DUETIME_HTTP__WORKERS", "16"),
        ("DUETIME_STORE__CHECKPOINT_BYTES", "1048576"),
        ("DUETIME_STORE__CACHE", "1GiB"),
        ("DUETIME_PUSH__ALLOW_PRIVATE", "true"),
        ("DUETIME_LOG__FORMAT", "json"),
        ("DUETIME_LOG__LEVEL", "warn,duetime::shard=trace"),
    ];
    let from_file = load(file, &[], Overrides::default()).unwrap();
    assert_eq!(from_file.store.checkpoint_bytes, ByteSize(MIB));
    assert_eq!(from_file.store.cache, ByteSize(GIB));
    assert_eq!(from_file.http.workers, 16);
    assert_eq!(from_file.log.format, LogFormat::Json);
    assert!(from_file.push.allow_private);
    assert_eq!(
        load("", &environment, Overrides::default()).unwrap(),
        from_file
    );
}

#[test]
fn an_unknown_key_in_the_file_is_named_with_its_line() {
    let error = file_error("\n\nno_such_key = 1\n");
    assert!(
        error.starts_with("duetime.toml:3: unknown key `no_such_key`; known here: [http], [store]"),
        "{error}"
    );
    let error = file_error("[http]\n# ä comment\nport = 80\n");
    assert!(
        error.starts_with(
            "duetime.toml:3: unknown key `port`; known here: `listen`, `body_timeout`"
        ),
        "{error}"
    );
    let error = file_error("http.port = 80");
    assert!(
        error.starts_with("duetime.toml:1: unknown key `port`"),
        "{error}"
    );
}

#[test]
fn an_unknown_section_is_named_with_its_line() {
    let error = file_error("[http]\n\n[htpp]\nlisten = 'x'\n");
    assert!(
        error.starts_with("duetime.toml:3: unknown section [htpp]; known here: [http]"),
        "{error}"
    );
    for not_a_section in ["\nhttp = 1", "\n[[http]]\nworkers = 1"] {
        let error = file_error(not_a_section);
        assert!(
            error.starts_with("duetime.toml:2: `http` is a section"),
            "{error}"
        );
    }
}

#[test]
fn the_first_of_several_wrong_things_is_told() {
    for (file, first) in [
        ("[store]\nzzz = 1\naaa = 1\n[http]\nbbb = 1", "zzz"),
        ("[http]\naaa = 1\nzzz = 1\n[store]\nbbb = 1", "aaa"),
    ] {
        let error = file_error(file);
        assert!(
            error.starts_with(&format!("duetime.toml:2: unknown key `{first}`")),
            "{error}"
        );
    }
}

#[test]
fn a_value_of_the_wrong_kind_is_told_with_its_line_and_what_is_right() {
    for (section, line, told) in [
        (
            "http",
            "workers = '4'",
            "`http.workers` must be a whole number, 0 or more, not string",
        ),
        (
            "http",
            "workers = -1",
            "`http.workers` must be a whole number, 0 or more, not `-1`",
        ),
        (
            "http",
            "listen = 7420",
            "`http.listen` must be an address and port such as",
        ),
        (
            "http",
            "body_timeout = 30",
            "`http.body_timeout` must be an ISO 8601 duration such as PT30S, not integer",
        ),
        (
            "http",
            "body_timeout = 'P1M'",
            "`http.body_timeout` is `P1M`: years and months have no fixed length",
        ),
        (
            "shards",
            "count = 70000",
            "`shards.count` must be a whole number from 0 to 65535, not `70000`",
        ),
        (
            "push",
            "allow_private = 'yes'",
            "`push.allow_private` must be true or false, not string",
        ),
        (
            "store",
            "cache = '64MB'",
            "`store.cache` must be a size such as 64MiB",
        ),
        (
            "store",
            "cache = 1.5",
            "`store.cache` must be a size such as 64MiB",
        ),
        (
            "store",
            "data = ''",
            "`store.data` must be a path, not empty",
        ),
        (
            "log",
            "format = 'xml'",
            "`log.format` must be `text` or `json`, not `xml`",
        ),
        (
            "log",
            "level = 'loud'",
            "`log.level` must be a level (error, warn",
        ),
    ] {
        let error = file_error(&format!("[{section}]\n{line}"));
        assert!(
            error.starts_with(&format!("duetime.toml:2: {told}")),
            "{error}"
        );
    }
}

#[test]
fn a_value_out_of_bounds_is_told_with_the_bounds() {
    for (section, line, told) in [
        (
            "limits",
            "max_delay = 'PT0S'",
            "`limits.max_delay` must be longer than zero and at most P3660D",
        ),
        (
            "limits",
            "max_delay = 'P3660DT0.001S'",
            "`limits.max_delay` must be longer than zero and at most P3660D",
        ),
        (
            "shards",
            "count = 4097",
            "`shards.count` must be at most 4096, one per slot",
        ),
        (
            "shards",
            "queue = 32769",
            "`shards.queue` must be from 1 to 32768",
        ),
        (
            "push",
            "running = 0",
            "`push.running` must be from 1 to 1000000",
        ),
        (
            "store",
            "cache = 0",
            "`store.cache` must be from 1MiB to 1024GiB",
        ),
    ] {
        let error = file_error(&format!("[{section}]\n{line}"));
        assert_eq!(error, format!("duetime.toml:2: {told}"));
    }
    let error = variable_error("DUETIME_PUSH__RUNNING", "0");
    assert_eq!(
        error,
        "DUETIME_PUSH__RUNNING: `push.running` must be from 1 to 1000000"
    );
}

#[test]
fn broken_toml_is_told_with_its_line() {
    for (file, line) in [
        ("[store\nx=", 1),
        ("[http]\nworkers = 1\nworkers = 2", 3),
        ("\n\n= 1", 3),
    ] {
        let error = file_error(file);
        assert!(
            error.starts_with(&format!("duetime.toml:{line}: ")) && !error.contains('\n'),
            "{error}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let named = Sources::new(Some("no/such/file.toml".into()), [], Overrides::default());
    let error = Config::load(&named).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the configuration no/such/file.toml"
    );
    let by_variable = [("DUETIME_CONFIG".to_owned(), "no/such/other.toml".to_owned())];
    let error = Config::load(&Sources::new(None, by_variable, Overrides::default())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the configuration no/such/other.toml"
    );
    assert_eq!(
        Config::load(&Sources::default()).unwrap(),
        Config::default()
    );
}

#[test]
fn the_usual_file_is_read_only_if_it_is_there_and_nobody_names_another() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, workers: u8| {
        let path = directory.path().join(name);
        fs::write(&path, format!("[http]\nworkers = {workers}")).unwrap();
        path
    };
    let (usual, by_variable, by_flag) = (write("u", 1), write("v", 2), write("f", 3));
    let variable = [(
        "DUETIME_CONFIG".to_owned(),
        by_variable.display().to_string(),
    )];
    let workers = |file: Option<&Path>, environment: &[(String, String)], usual: &Path| {
        let sources = Sources::new(
            file.map(Path::to_owned),
            environment.to_vec(),
            Overrides::default(),
        )
        .usual_file(usual);
        Config::load(&sources).unwrap().http.workers
    };
    assert_eq!(workers(None, &[], &usual), 1);
    assert_eq!(workers(None, &variable, &usual), 2);
    assert_eq!(workers(Some(&by_flag), &variable, &usual), 3);
    assert_eq!(workers(None, &[], Path::new("no/such/file.toml")), 0);
}

#[test]
fn an_unknown_variable_is_named_with_what_would_be_right() {
    let error = variable_error("DUETIME_NO_SUCH__KEY", "1");
    assert!(
        error.starts_with(
            "DUETIME_NO_SUCH__KEY: unknown section `no_such`; known here: DUETIME_HTTP__…, "
        ),
        "{error}"
    );
    let error = variable_error("DUETIME_SHARDS__NUMBER", "1");
    assert_eq!(
        error,
        "DUETIME_SHARDS__NUMBER: unknown key `number`; known here: DUETIME_SHARDS__COUNT, DUETIME_SHARDS__QUEUE"
    );
    for name in [
        "DUETIME_http__listen",
        "DUETIME_HTTP__LISTEN__PORT",
        "DUETIME___LISTEN",
        "DUETIME_HTTP__",
    ] {
        assert!(
            variable_error(name, "1").starts_with(&format!("{name}: unknown ")),
            "{name}"
        );
    }
}

#[test]
fn a_wrong_value_in_a_variable_is_told_with_its_name() {
    let error = variable_error("DUETIME_SHARDS__COUNT", "many");
    assert_eq!(
        error,
        "DUETIME_SHARDS__COUNT: `shards.count` must be a whole number from 0 to 65535, not `many`"
    );
    let error = variable_error("DUETIME_STORE__DATA", "d\u{FFFD}ta");
    assert_eq!(error, "DUETIME_STORE__DATA: `store.data` must be UTF-8");
}

#[test]
fn variables_without_two_underscores_are_not_configuration() {
    let strangers = [
        ("DUETIME_URL", "http://127.0.0.1:7420"),
        ("DUETIME_PORT", "tcp://10.0.0.1:7420"),
        ("DUETIME_CONFIG", ""),
        ("OTHER__KEY", "1"),
    ];
    assert_eq!(
        load("", &strangers, Overrides::default()).unwrap(),
        Config::default()
    );
}

#[test]
fn a_list_in_a_variable_may_be_json_or_toml() {
    for (text, list) in [
        (r#"["*"]"#, vec!["*"]),
        ("[]", vec![]),
        (r#"["a\/b", "\ud83d\ude00"]"#, vec!["a/b", "😀"]),
        ("['a', \"b\",]", vec!["a", "b"]),
    ] {
        assert_eq!(Vec::<String>::from_text(text).unwrap(), list, "{text}");
    }
    for text in ["", "a,b", "[1]", "['a'", "{}", "'a'"] {
        assert!(
            Vec::<String>::from_text(text)
                .unwrap_err()
                .starts_with("must be a list"),
            "{text}"
        );
    }
}

#[test]
fn sizes_are_read_in_binary_units_and_never_wrap() {
    for (text, bytes) in [
        ("512KiB", 512 << 10),
        ("64MiB", 64 * MIB),
        ("1GiB", GIB),
        ("64 MiB", 64 * MIB),
        ("4096", 4096),
    ] {
        assert_eq!(ByteSize::from_text(text), Ok(ByteSize(bytes)));
    }
    for text in [
        "",
        "MiB",
        "1.5MiB",
        "-1",
        "64  MiB",
        "64 ",
        "64mib",
        "99999999999GiB",
        "99999999999999999999",
    ] {
        assert!(ByteSize::from_text(text).is_err(), "{text}");
    }
}

#[test]
fn a_variable_with_one_underscore_too_few_is_noticed() {
    let given = [
        "DUETIME_HTTP_LISTEN",
        "DUETIME_HTTP_PORT",
        "DUETIME_URL",
        "DUETIME_HTTP__LISTEN",
    ];
    let given = given.map(|name| (name.to_owned(), "127.0.0.1:1".to_owned()));
    let sources = Sources::new(None, given, Overrides::default());
    let meant = (
        "DUETIME_HTTP_LISTEN".to_owned(),
        "DUETIME_HTTP__LISTEN".to_owned(),
    );
    assert_eq!(sources.mistaken_variables(), [meant]);
}

#[test]
fn a_mistyped_level_is_refused_instead_of_silencing_the_log() {
    for text in [
        "info",
        "WARN",
        "off",
        "info,duetime::shard=debug",
        "warn,[attempt{topic=a}]=trace",
    ] {
        assert!(LogFilter::parse(text).is_ok(), "{text}");
    }
    for text in [
        "",
        "inof",
        "info,",
        "duetime",
        "duetime=loud",
        "info;debug",
        "[=info",
    ] {
        assert!(LogFilter::parse(text).is_err(), "{text}");
    }
}
