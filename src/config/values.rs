//! The types that keys of the configuration have: how each is written in a file and in a variable.

use super::*;

/// A type that a key can have. Errors complete "`key` …".
pub(super) trait Setting: Sized {
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

/// The beginning of a URL, without a slash at its end; empty when none is given.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PublicUrl(String);

impl PublicUrl {
    /// The URL, if one is given.
    pub fn get(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(&self.0)
    }
}

impl Setting for PublicUrl {
    const SHAPE: &'static str = "a URL such as https://tasks.example, or empty";

    fn from_text(text: &str) -> Result<Self, String> {
        let is_plain = url::Url::parse(text).is_ok_and(|url| {
            ["http", "https"].contains(&url.scheme())
                && url.has_host()
                && url.query().is_none()
                && url.fragment().is_none()
        });
        match text.is_empty() || is_plain {
            true => Ok(Self(text.trim_end_matches('/').to_owned())),
            false => Self::not(format_args!("`{text}`")),
        }
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

impl Setting for Allow {
    const SHAPE: &'static str =
        r#"a list such as ["/opt/shop/bin/*", "env:REGION", "cwd:/srv/shop"]"#;

    fn from_text(text: &str) -> Result<Self, String> {
        Vec::<String>::from_text(text).and_then(|entries| Self::parse(&entries))
    }

    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        Vec::<String>::from_toml(value).and_then(|entries| Self::parse(&entries))
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

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

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
