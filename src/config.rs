//! What can be configured, and where a value comes from: later layers win.
//!
//! ```text
//!  defaults  <  file                        <  environment                <  flags
//!  below        --config FILE, else the file   DUETIME_SECTION__KEY          --data, --listen
//!               DUETIME_CONFIG names, else
//!               config/duetime.toml, if it is there
//! ```
//!
//! A configuration is right or the process does not start. A key that nobody knows, or a value of the wrong
//! kind, is named with its file and line or with its variable, together with what would be right: a
//! mistyped key that is silently ignored is found on the day its setting was needed. A file that is named must
//! be there; only the usual one may be missing. Which file was read is for the process to log.
//!
//! Only variables with `__` behind the prefix are configuration. Orchestrators set `DUETIME_PORT` and the
//! like for a service of this name, and `DUETIME_URL` belongs to the client commands.
//!
//! All keys stand in one table, [`Config`]'s sections below. A value's type says how its text is read, so the
//! file and the environment cannot come to differ. Why no crate does this for us: decision 0002.
//!
//! Nothing here reads the process's environment except [`process_environment`].

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::clock::DurationMs;
use crate::engine::disk::RESERVE_BYTES;
use crate::ids::SLOTS;
use crate::shard::rescue::DwellAction;
use crate::task::duration;
use crate::watchdog::Bounds;

/// What all configuration variables begin with.
const PREFIX: &str = "DUETIME_";
/// The variable that names the file when no flag does.
const FILE_VARIABLE: &str = "DUETIME_CONFIG";

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const fn days(days: u64) -> DurationMs {
    DurationMs::secs(days * 24 * 3600)
}

/// Makes each section a struct with defaults, and the struct a [`Section`] that takes values by key.
/// `within RANGE, RULE` bounds a key; RULE completes "must be …".
macro_rules! sections {
    ($(
        $(#[$section_doc:meta])*
        $section:ident: $Section:ident {
            $(
                $(#[$key_doc:meta])*
                $key:ident: $Type:ty = $default:expr $(, within $range:expr, $rule:literal)?;
            )+
        }
    )+) => {
        /// The whole configuration, section by section.
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        pub struct Config {
            $( $(#[$section_doc])* pub $section: $Section, )+
        }

        impl Config {
            const SECTIONS: &[&str] = &[$(stringify!($section)),+];

            fn section(&mut self, name: &str) -> Option<&mut dyn Section> {
                match name {
                    $( stringify!($section) => Some(&mut self.$section), )+
                    _ => None,
                }
            }
        }

        $(
            $(#[$section_doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Section {
                $( $(#[$key_doc])* pub $key: $Type, )+
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $( $key: $default, )+ }
                }
            }

            impl Section for $Section {
                fn keys(&self) -> &'static [&'static str] {
                    &[$(stringify!($key)),+]
                }

                fn set(&mut self, key: &str, given: &Given<'_>) -> Option<Result<(), String>> {
                    match key {
                        $( stringify!($key) => Some(given.read::<$Type>().and_then(|value| {
                            $( if !$range.contains(&value) { return Err(concat!("must be ", $rule).to_owned()); } )?
                            self.$key = value;
                            Ok(())
                        })), )+
                        _ => None,
                    }
                }
            }
        )+
    };
}

sections! {
    /// `[http]`: the address and the patience of the HTTP surface.
    http: HttpConfig {
        /// Address and port to listen on.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 7420));
        /// Longest time a request's body may take to arrive.
        body_timeout: DurationMs = DurationMs::secs(30),
            within DurationMs(1)..=days(1), "longer than zero and at most P1D";
        /// A connection with nothing or half a request on it is closed after this time.
        idle_timeout: DurationMs = DurationMs::secs(30),
            within DurationMs(1)..=days(1), "longer than zero and at most P1D";
        /// HTTP threads; 0 = as many as cores.
        workers: usize = 0, within 0..=1024, "at most 1024";
        /// Most open connections, all threads together.
        connections_max: usize = 25_000, within 1..=1_000_000, "from 1 to 1000000";
    }

    /// `[store]`: where tasks are kept, and how much memory that may take.
    store: StoreConfig {
        /// The data directory.
        data: PathBuf = PathBuf::from("./data");
        /// Size of a shard's journal at which it is folded into chunks.
        checkpoint_bytes: ByteSize = ByteSize(12 * MIB),
            within ByteSize(MIB / 16)..=ByteSize(4 * GIB), "from 64KiB to 4GiB";
        /// sled's page cache.
        cache: ByteSize = ByteSize(64 * MIB), within ByteSize(MIB)..=ByteSize(1024 * GIB), "from 1MiB to 1024GiB";
        /// Free disk space that is kept for what is there to end: with less, creates are refused.
        reserve: ByteSize = ByteSize(RESERVE_BYTES),
            within ByteSize(MIB)..=ByteSize(1024 * GIB), "from 1MiB to 1024GiB";
    }

    /// `[wheel]`: how tasks come near as their time does.
    wheel: WheelConfig {
        /// How long before they are due tasks are read into memory.
        look_ahead: DurationMs = DurationMs::secs(10),
            within DurationMs(100)..=DurationMs::secs(600), "from PT0.1S to PT10M";
    }

    /// `[shards]`: how tasks are spread.
    shards: ShardsConfig {
        /// Shards of a new data directory; 0 = as many as cores, at least 2. An existing directory's count wins.
        count: u16 = 0, within 0..=SLOTS, "at most 4096, one per slot";
        /// Requests that may wait for one shard; further ones are answered 503.
        queue: usize = 20_000, within 1..=32_768, "from 1 to 32768";
    }

    /// `[rescue]`: the second net under what is on its way.
    rescue: RescueConfig {
        /// From one sweep to the next.
        every: DurationMs = DurationMs::secs(60), within DurationMs::secs(1)..=days(1), "from PT1S to P1D";
        /// How long a task may be handed out and not started, or due and not taken.
        dwell: DurationMs = DurationMs::secs(600), within DurationMs::secs(1)..=days(1), "from PT1S to P1D";
        /// What follows then for one that was handed out.
        on_dwell: DwellAction = DwellAction::Alert;
    }

    /// `[limits]`: what callers may ask for.
    limits: LimitsConfig {
        /// How far ahead of now a due time may lie.
        max_delay: DurationMs = days(3660), within DurationMs(1)..=days(3660), "longer than zero and at most P3660D";
    }

    /// `[push]`: HTTP calls to the outside.
    push: PushConfig {
        /// Whether targets in private networks may be called.
        allow_private: bool = false;
        /// Attempts that may run at a time, all shards together.
        running: usize = 512, within 1..=1_000_000, "from 1 to 1000000";
        /// Of them, those to one host and port; each shard may have its part, rounded up.
        per_host: usize = 128, within 1..=1_000_000, "from 1 to 1000000";
    }

    /// `[backup]`: copies of all there is, made by themselves.
    backup: BackupConfig {
        /// How long after the one before; zero = none are made.
        every: DurationMs = DurationMs(0), within DurationMs(0)..=days(366), "at most P366D";
        /// How many are kept; the oldest goes after a good new one.
        keep: usize = 7, within 1..=10_000, "from 1 to 10000";
        /// The directory under which they are made.
        dir: PathBuf = PathBuf::from("./backups");
        /// Where the journals are copied to as they grow; none = they are not.
        journal_dir: Option<PathBuf> = None;
    }

    /// `[supervision]`: what is done about parts that hang.
    supervision: SupervisionConfig {
        /// A part that was not heard of for so long is replaced.
        silence: DurationMs = Bounds::default().stuck,
            within DurationMs(500)..=DurationMs::secs(3600), "from PT0.5S to PT1H";
        /// A wait for the disk is no silence until it is longer than this.
        disk_wait: DurationMs = Bounds::default().wait_max,
            within DurationMs(500)..=DurationMs::secs(3600), "from PT0.5S to PT1H";
        /// Threads that hang and were replaced; with one more the process leaves.
        zombies: usize = 8, within 0..=1024, "at most 1024";
    }

    /// `[shutdown]`: how the process leaves.
    shutdown: ShutdownConfig {
        /// How long running attempts may still take before they are given back.
        grace: DurationMs = DurationMs::secs(10), within DurationMs(0)..=DurationMs::secs(3600), "at most PT1H";
    }

    /// `[log]`: what is written to standard error.
    log: LogConfig {
        /// As text, or as one JSON object per line.
        format: LogFormat = LogFormat::Text;
        /// What is logged.
        level: LogFilter = LogFilter("info".to_owned());
    }
}

/// What the command line decides; it wins over everything else.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--data`, for `[store] data`.
    pub data: Option<PathBuf>,
    /// `--listen`, for `[http] listen`.
    pub listen: Option<SocketAddr>,
}

/// Where values may come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file that `--config` names. Without it `DUETIME_CONFIG` may name one.
    pub file: Option<PathBuf>,
    /// The file that is read when nobody names one, if it is there.
    pub usual_file: Option<PathBuf>,
    /// The environment, as name and text.
    pub environment: Vec<(String, String)>,
    /// The command line.
    pub overrides: Overrides,
}

impl Sources {
    /// All three layers above the defaults.
    pub fn new(
        file: Option<PathBuf>,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: Overrides,
    ) -> Self {
        Self {
            file,
            usual_file: None,
            environment: environment.into_iter().collect(),
            overrides,
        }
    }

    /// With a file that is read when nobody names one, if it is there.
    #[must_use]
    pub fn usual_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.usual_file = Some(file.into());
        self
    }

    /// The file that is read.
    pub fn chosen_file(&self) -> Option<PathBuf> {
        let by_variable = || {
            let mut given = self.environment.iter();
            let (_, text) = given.find(|(name, text)| name == FILE_VARIABLE && !text.is_empty())?;
            Some(PathBuf::from(text))
        };
        let usual = || self.usual_file.clone().filter(|file| file.exists());
        self.file.clone().or_else(by_variable).or_else(usual)
    }

    /// Variables that are not read, and would be with one more underscore: what is given, and what may be meant.
    /// They stop no start, since an orchestrator may have set them for its own ends.
    pub fn mistaken_variables(&self) -> Vec<(String, String)> {
        let mut known = Config::default();
        let mut meant_by = |name: &str| {
            let rest = name
                .strip_prefix(PREFIX)
                .filter(|rest| !rest.contains("__"))?;
            let (section_name, key) = rest.split_once('_')?;
            let section = known.section(&swap_case(section_name))?;
            let is_key = section.keys().contains(&swap_case(key).as_str());
            is_key.then(|| format!("{PREFIX}{section_name}__{key}"))
        };
        let given = self.environment.iter();
        given
            .filter_map(|(name, _)| Some((name.clone(), meant_by(name)?)))
            .collect()
    }
}

/// This process's environment, as far as it can be meant for us. What is not UTF-8 arrives with replacement
/// characters, which no value may hold: unlike [`std::env::vars`] this never panics over a stranger's variable.
pub fn process_environment() -> impl Iterator<Item = (String, String)> {
    let ours =
        std::env::vars_os().filter_map(|(name, text)| Some((name.into_string().ok()?, text)));
    ours.filter(|(name, _)| name.starts_with(PREFIX))
        .map(|(name, text)| (name, text.to_string_lossy().into_owned()))
}

/// Why a configuration does not stand. Each names the place to mend.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The named file is missing, may not be read, or is not text.
    #[error("cannot read the configuration {}", .file.display())]
    Unreadable {
        /// The file as it was named.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: {problem}")]
    Malformed {
        /// Where reading stopped.
        place: Place,
        /// What was expected there.
        problem: String,
    },
    /// A key or section that nobody reads.
    #[error("{place}: unknown {name}; known here: {known}")]
    Unknown {
        /// Where it stands.
        place: Place,
        /// What was given.
        name: String,
        /// What could have been.
        known: String,
    },
    /// A known key with a value it cannot take.
    #[error("{place}: `{key}` {problem}")]
    Wrong {
        /// Where it stands.
        place: Place,
        /// The key with its section, as in `http.listen`.
        key: String,
        /// What would be right.
        problem: String,
    },
}

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file. Shown as `config/duetime.toml:3`.
    Line {
        /// The file as it was named.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// In an environment variable of this name.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(f, "{}:{line}", file.display()),
            Self::Variable(name) => f.write_str(name),
        }
    }
}

impl Config {
    /// Puts the layers on top of each other. The first thing wrong, in the order of the file, ends it.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        if let Some(file) = sources.chosen_file() {
            match fs::read_to_string(&file) {
                Ok(text) => config.apply_file(&file, &text)?,
                Err(source) => return Err(ConfigError::Unreadable { file, source }),
            }
        }
        for (name, text) in &sources.environment {
            config.apply_variable(name, text)?;
        }
        if let Some(data) = &sources.overrides.data {
            config.store.data.clone_from(data);
        }
        if let Some(listen) = sources.overrides.listen {
            config.http.listen = listen;
        }
        Ok(config)
    }

    fn apply_file(&mut self, file: &Path, text: &str) -> Result<(), ConfigError> {
        let place_of = |span: Range<usize>| Place::Line {
            file: file.to_owned(),
            line: 1 + text
                .bytes()
                .take(span.start)
                .filter(|byte| *byte == b'\n')
                .count(),
        };
        let document = DeTable::parse(text).map_err(|error| ConfigError::Malformed {
            place: place_of(error.span().unwrap_or_default()),
            problem: error.message().replace('\n', ", "),
        })?;
        for (section_name, content) in in_file_order(document.get_ref()) {
            let place = place_of(section_name.span());
            let name = section_name.get_ref();
            let Some(section) = self.section(name) else {
                let name = match content.get_ref() {
                    DeValue::Table(_) => format!("section [{name}]"),
                    _ => format!("key `{name}`"),
                };
                let known = listed(Self::SECTIONS, |section| format!("[{section}]"));
                return Err(ConfigError::Unknown { place, name, known });
            };
            let DeValue::Table(table) = content.get_ref() else {
                let problem =
                    format!("is a section, not a key: write [{name}] on a line of its own");
                return Err(ConfigError::Wrong {
                    place,
                    key: name.to_string(),
                    problem,
                });
            };
            for (key, value) in in_file_order(table) {
                let place = place_of(key.span());
                let known = listed(section.keys(), |key| format!("`{key}`"));
                apply(
                    section,
                    name,
                    key.get_ref(),
                    &Given::Toml(value.get_ref()),
                    place,
                    known,
                )?;
            }
        }
        Ok(())
    }

    fn apply_variable(&mut self, variable: &str, text: &str) -> Result<(), ConfigError> {
        let Some((section_name, key)) = variable
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once("__"))
        else {
            return Ok(());
        };
        let (section_name, key) = (swap_case(section_name), swap_case(key));
        let place = Place::Variable(variable.to_owned());
        let Some(section) = self.section(&section_name) else {
            return Err(ConfigError::Unknown {
                place,
                name: format!("section `{section_name}`"),
                known: listed(Self::SECTIONS, |section| {
                    format!("{PREFIX}{}__…", swap_case(section))
                }),
            });
        };
        let known = listed(section.keys(), |key| {
            format!("{PREFIX}{}__{}", swap_case(&section_name), swap_case(key))
        });
        apply(
            section,
            &section_name,
            &key,
            &Given::Text(text),
            place,
            known,
        )
    }
}

/// Gives one key of a section its value.
fn apply(
    section: &mut dyn Section,
    section_name: &str,
    key: &str,
    given: &Given<'_>,
    place: Place,
    known: String,
) -> Result<(), ConfigError> {
    match section.set(key, given) {
        Some(Ok(())) => Ok(()),
        Some(Err(problem)) => Err(ConfigError::Wrong {
            place,
            key: format!("{section_name}.{key}"),
            problem,
        }),
        None => Err(ConfigError::Unknown {
            place,
            name: format!("key `{key}`"),
            known,
        }),
    }
}

/// A table's entries as they stand in the file, so that the first thing wrong is the first thing told.
fn in_file_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<Cow<'i, str>>, &'t Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn listed(names: &[&str], shown: impl Fn(&str) -> String) -> String {
    let shown: Vec<String> = names.iter().map(|name| shown(name)).collect();
    shown.join(", ")
}

/// Between the names of variables and of keys. It swaps rather than lowers, so that `DUETIME_http__listen` is
/// unknown instead of a second name for the same key.
fn swap_case(name: &str) -> String {
    let swap = |letter: char| match letter {
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => letter.to_ascii_uppercase(),
    };
    name.chars().map(swap).collect()
}

/// A section, seen from a layer that has only names.
trait Section {
    fn keys(&self) -> &'static [&'static str];

    /// Sets a key, or says what a right value would be; `None` for a key that is not here.
    fn set(&mut self, key: &str, given: &Given<'_>) -> Option<Result<(), String>>;
}

/// A value as a layer holds it.
enum Given<'a> {
    Toml(&'a DeValue<'a>),
    Text(&'a str),
}

impl Given<'_> {
    fn read<T: Setting>(&self) -> Result<T, String> {
        match self {
            Self::Toml(value) => T::from_toml(value),
            Self::Text(text) if text.contains(char::REPLACEMENT_CHARACTER) => {
                Err("must be UTF-8".to_owned())
            }
            Self::Text(text) => T::from_text(text),
        }
    }
}

/// A type that a key can have. Errors complete "`key` …".
trait Setting: Sized {
    /// What a value looks like, for the sentence "must be …".
    const SHAPE: &'static str;

    /// Reads what an environment variable says.
    fn from_text(text: &str) -> Result<Self, String>;

    /// Reads what the file says: a string, unless the type says otherwise.
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        value
            .as_str()
            .map_or_else(|| Self::not(value.type_str()), Self::from_text)
    }

    fn not(given: impl fmt::Display) -> Result<Self, String> {
        Err(format!("must be {}, not {given}", Self::SHAPE))
    }
}

impl Setting for bool {
    const SHAPE: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse()
            .or_else(|_| Self::not(format_args!("`{text}`")))
    }

    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        value
            .as_bool()
            .map_or_else(|| Self::not(value.type_str()), Ok)
    }
}

macro_rules! whole_numbers {
    ($($Number:ty: $shape:literal),+) => {$(
        impl Setting for $Number {
            const SHAPE: &'static str = $shape;

            fn from_text(text: &str) -> Result<Self, String> {
                text.parse().or_else(|_| Self::not(format_args!("`{text}`")))
            }

            fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
                let Some(number) = value.as_integer() else {
                    return Self::not(value.type_str());
                };
                Self::from_str_radix(number.as_str(), number.radix()).or_else(|_| Self::not(format_args!("`{number}`")))
            }
        }
    )+};
}
whole_numbers! {
    u16: "a whole number from 0 to 65535",
    u64: "a whole number, 0 or more",
    usize: "a whole number, 0 or more"
}

impl Setting for SocketAddr {
    const SHAPE: &'static str = "an address and port such as 127.0.0.1:7420 or [::]:7420";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse()
            .or_else(|_| Self::not(format_args!("`{text}`")))
    }
}

impl Setting for PathBuf {
    const SHAPE: &'static str = "a path";

    fn from_text(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Self::not("empty")
        } else {
            Ok(Self::from(text))
        }
    }
}

/// An empty text is none.
impl Setting for Option<PathBuf> {
    const SHAPE: &'static str = "a path, or empty";

    fn from_text(text: &str) -> Result<Self, String> {
        Ok((!text.is_empty()).then(|| text.into()))
    }
}

impl Setting for DurationMs {
    const SHAPE: &'static str = "an ISO 8601 duration such as PT30S";

    fn from_text(text: &str) -> Result<Self, String> {
        duration::parse(text).map_err(|error| format!("is `{text}`: {error}"))
    }
}

/// Reads a list of texts as JSON or TOML writes it; the file can only hold TOML's.
impl Setting for Vec<String> {
    const SHAPE: &'static str = r#"a list such as ["a", "b"]"#;

    fn from_text(text: &str) -> Result<Self, String> {
        if let Ok(list) = serde_json::from_str(text) {
            return Ok(list);
        }
        match DeValue::parse(text) {
            Ok(value) => Self::from_toml(value.get_ref()),
            Err(_) => Self::not(format_args!("`{text}`")),
        }
    }

    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let Some(items) = value.as_array() else {
            return Self::not(value.type_str());
        };
        let texts = items.iter().map(|item| item.get_ref().as_str());
        let list: Option<Self> = texts.map(|text| text.map(str::to_owned)).collect();
        list.map_or_else(|| Self::not("a list of something else"), Ok)
    }
}

/// A number of bytes. Written `64MiB`, `512KiB`, `1GiB`, with a blank before the unit or none, or as plain bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub u64);

impl Setting for ByteSize {
    const SHAPE: &'static str = "a size such as 64MiB, 512KiB, 1GiB or a number of bytes";

    fn from_text(text: &str) -> Result<Self, String> {
        let units = [("KiB", 1 << 10), ("MiB", MIB), ("GiB", GIB)];
        let sized = units.into_iter().find_map(|(unit, bytes)| {
            let count = text.strip_suffix(unit)?;
            Some((count.strip_suffix(' ').unwrap_or(count), bytes))
        });
        let bytes = sized
            .or(Some((text, 1)))
            .and_then(|(count, bytes)| count.parse::<u64>().ok()?.checked_mul(bytes));
        bytes.map_or_else(
            || Self::not(format_args!("`{text}`")),
            |bytes| Ok(Self(bytes)),
        )
    }

    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::Integer(_) => u64::from_toml(value).map(Self),
            DeValue::String(text) => Self::from_text(text),
            _ => Self::not(value.type_str()),
        }
    }
}

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for machines.
    Json,
}

impl Setting for LogFormat {
    const SHAPE: &'static str = "`text` or `json`";

    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Self::not(format_args!("`{text}`")),
        }
    }
}

impl Setting for DwellAction {
    const SHAPE: &'static str = "`alert`, `retry` or `dead`";

    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "alert" => Ok(Self::Alert),
            "retry" => Ok(Self::Retry),
            "dead" => Ok(Self::Dead),
            _ => Self::not(format_args!("`{text}`")),
        }
    }
}

/// What is logged: a level, levels by module (`info,duetime::shard=debug`), and what else tracing's
/// `EnvFilter` takes. A bare word that is no level would silence everything but a module of that name; it is
/// taken for the mistyped level it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogFilter(String);

impl LogFilter {
    /// Takes a filter that logging will take.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::from_text(text)
    }

    /// The filter as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Setting for LogFilter {
    const SHAPE: &'static str = "a level (error, warn, info, debug, trace, off) or a list such as info,duetime::shard=debug";

    fn from_text(text: &str) -> Result<Self, String> {
        let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
        let says_a_level = |part: &str| is_level(part.rsplit('=').next().unwrap_or(part).trim());
        if text.split(',').all(says_a_level) && EnvFilter::try_new(text).is_ok() {
            Ok(Self(text.to_owned()))
        } else {
            Self::not(format_args!("`{text}`"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use super::*;

    /// Loads `file`, which stands in a directory of its own, under `environment`. Errors as their text, with
    /// the file's directory left out.
    fn load(
        file: &str,
        environment: &[(&str, &str)],
        overrides: Overrides,
    ) -> Result<Config, String> {
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
        let text = include_str!("../config/duetime.toml");
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
            error.starts_with(
                "duetime.toml:3: unknown key `no_such_key`; known here: [http], [store]"
            ),
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
        let error =
            Config::load(&Sources::new(None, by_variable, Overrides::default())).unwrap_err();
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
}
