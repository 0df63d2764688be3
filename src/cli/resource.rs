//! What the commands for resources of all kinds have in common: put, get, list, delete, versions.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use clap::builder::NonEmptyStringValueParser;
use serde_json::value::RawValue;

use super::client::{Body, Client, Request, parse_json};
use super::task::{Column, Pages, list, segments};
use super::{Failure, Out, render};
use crate::limits::BODY_BYTES_MAX;

/// A kind of resource, as its commands show it.
pub(super) struct Kind {
    /// `calendar`.
    pub(super) word: &'static str,
    /// `calendars`, in paths.
    pub(super) words: &'static str,
    /// Of its list.
    pub(super) columns: &'static [Column],
}

/// What every kind can be told.
#[derive(Debug)]
pub(super) enum Common {
    Put(Put),
    Get(Name),
    List(Pages),
    Delete(Name),
    Versions(Name),
}

/// The common commands of a kind, with examples of its own.
macro_rules! commands {
    ($word:literal, $name:literal, $definition:literal) => {
        #[derive(clap::Subcommand, Debug)]
        enum Shared {
            /// Create one or replace its definition
            #[command(after_help = concat!("Example:\n  duetime ", $word, " put ", $name, " '", $definition, "'"))]
            Put($crate::cli::resource::Put),
            /// Show one
            #[command(after_help = concat!("Example:\n  duetime ", $word, " get ", $name))]
            Get($crate::cli::resource::Name),
            /// List all
            #[command(after_help = concat!("Example:\n  duetime ", $word, " list --all"))]
            List($crate::cli::task::Pages),
            /// Take one away
            #[command(after_help = concat!("Example:\n  duetime ", $word, " delete ", $name))]
            Delete($crate::cli::resource::Name),
            /// Show the versions that are kept of one
            #[command(after_help = concat!("Example:\n  duetime ", $word, " versions ", $name))]
            Versions($crate::cli::resource::Name),
        }

        impl From<Shared> for $crate::cli::resource::Common {
            fn from(shared: Shared) -> Self {
                match shared {
                    Shared::Put(put) => Self::Put(put),
                    Shared::Get(name) => Self::Get(name),
                    Shared::List(pages) => Self::List(pages),
                    Shared::Delete(name) => Self::Delete(name),
                    Shared::Versions(name) => Self::Versions(name),
                }
            }
        }
    };
}
pub(super) use commands;

#[derive(ClapArgs, Debug)]
pub(super) struct Name {
    /// Its name
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(super) name: String,
}

impl Name {
    /// The path of it, or of something below it.
    pub(super) fn path(&self, kind: &Kind, below: &[&str]) -> Vec<String> {
        segments(&[&[kind.words, &self.name], below].concat())
    }

    /// A verb of it, without a body.
    pub(super) fn verb(&self, kind: &Kind, verb: &str) -> Request {
        let what = format!("{verb} {} {}", kind.word, self.name);
        Request::post(what, self.path(kind, &[verb]), &Body::default())
    }
}

#[derive(ClapArgs, Debug)]
pub(super) struct Put {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    definition: Definition,
}

/// A definition, as an argument or in a file.
#[derive(ClapArgs, Debug)]
pub(super) struct Definition {
    /// The definition
    #[arg(value_name = "JSON", value_parser = parse_json, required_unless_present = "file")]
    definition: Option<Box<RawValue>>,
    /// Read the definition from this file; - is standard input
    #[arg(long, conflicts_with = "definition")]
    file: Option<PathBuf>,
}

impl Definition {
    /// What was given.
    pub(super) fn read(&self) -> Result<Box<RawValue>, Failure> {
        match (&self.definition, &self.file) {
            (Some(given), _) => Ok(given.clone()),
            (None, Some(file)) => {
                let text = read_text(file)?;
                parse_json(&text).map_err(|why| cannot_read(file, &why))
            }
            (None, None) => Err(Failure::new("no definition given")),
        }
    }
}

fn cannot_read(file: &Path, why: &str) -> Failure {
    Failure::new(format!("cannot read --file {}: {why}", file.display()))
}

/// A file of text that fits into a request; - is standard input.
pub(super) fn read_text(file: &Path) -> Result<String, Failure> {
    let cannot = |why: &str| cannot_read(file, why);
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(file).map_err(|error| cannot(&error.to_string()))?)
    };
    let mut text = String::new();
    // One byte more than fits tells a file that is too large from one that just fits.
    let size = source
        .take(BODY_BYTES_MAX as u64 + 1)
        .read_to_string(&mut text);
    match size.map_err(|error| cannot(&error.to_string()))? {
        size if size > BODY_BYTES_MAX => {
            Err(cannot(&format!("it is over {} KiB", BODY_BYTES_MAX / 1024)))
        }
        _ => Ok(text),
    }
}

const VERSIONS: &[Column] = &[
    ("VERSION", |it, _| render::shown(&it["version"])),
    ("CHANGED", |it, _| render::shown(&it["changed_at"])),
    ("BY", |it, _| render::shown(&it["by"])),
    ("BODY", |it, _| render::shown(&it["body"])),
];

/// Runs one of the common commands.
pub(super) fn run(
    kind: &Kind,
    command: impl Into<Common>,
    client: &Client,
    out: &mut Out<'_>,
) -> Result<(), Failure> {
    let what = |verb: &str, name: &Name| format!("{verb} {} {}", kind.word, name.name);
    let request = match command.into() {
        Common::Put(put) => Request::put(
            what("put", &put.name),
            put.name.path(kind, &[]),
            &put.definition.read()?,
        ),
        Common::Get(name) => Request::get(what("get", &name), name.path(kind, &[])),
        Common::Delete(name) => Request::delete(what("delete", &name), name.path(kind, &[])),
        Common::List(pages) => {
            let what = format!("list {}", kind.words);
            let list_of = (what.as_str(), segments(&[kind.words]));
            return list(client, list_of, Vec::new(), pages, kind.columns, out);
        }
        Common::Versions(name) => {
            let what = what("list versions of", &name);
            let list_of = (what.as_str(), name.path(kind, &["versions"]));
            return list(client, list_of, Vec::new(), Pages::default(), VERSIONS, out);
        }
    };
    show(client, request, out)
}

/// Sends a request and shows its answer as a sheet.
pub(super) fn show(client: &Client, request: Request, out: &mut Out<'_>) -> Result<(), Failure> {
    let answer = client.send(request)?;
    out.answer(&answer, |thing, now| match render::sheet(thing, now) {
        empty if empty.is_empty() => String::from("done"),
        sheet => sheet,
    })
}
