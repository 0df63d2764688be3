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
use crate::executor::command::Allow;
use crate::ids::SLOTS;
use crate::shard::rescue::DwellAction;
use crate::task::duration;
use crate::watchdog::Bounds;

mod values;

use values::Setting;
pub use values::{ByteSize, LogFilter, LogFormat, PublicUrl};

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
        /// Under which name receivers find this service, for the URLs by which they complete later; empty = the address
        /// that is listened on, if it is a single one.
        public_url: PublicUrl = PublicUrl::default();
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
        /// A PEM file with root certificates that are trusted beside the machine's; none = those alone.
        root_certificates: Option<PathBuf> = None;
        /// Attempts that may run at a time, all shards together; fewer if there are not enough descriptors.
        running: usize = 10_000, within 1..=1_000_000, "from 1 to 1000000";
        /// Questions of polls that may be out at a time, beside them; and as many last ones.
        questions: usize = 256, within 1..=1_000_000, "from 1 to 1000000";
        /// Of either, those to one host and port; each shard may have its part, rounded up.
        per_host: usize = 256, within 1..=1_000_000, "from 1 to 1000000";
    }

    /// `[commands]`: programs that tasks have run on this machine.
    commands: CommandsConfig {
        /// Whether any are.
        enabled: bool = false;
        /// What may be run, with which variables, where.
        allow: Allow = Allow::default();
        /// Those that may run at a time, all shards together; each may have its part, rounded up.
        running: usize = 16, within 1..=1024, "from 1 to 1024";
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
        level: LogFilter = LogFilter::default();
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

#[cfg(test)]
mod tests;
