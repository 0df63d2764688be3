//! What commands may be: nothing, unless somebody who runs the service says so.
//!
//! | entry                  | allows                                                           |
//! |------------------------|------------------------------------------------------------------|
//! | `/opt/shop/bin/close`  | this program                                                     |
//! | `/opt/shop/bin/*`      | the programs in this directory, not those further down           |
//! | `rsync`                | the program of this name, wherever `PATH` finds it               |
//! | `env:REGION`           | that a task sets this variable; `env:SHOP_*` those that begin so |
//! | `cwd:/srv/shop`        | that a task runs in this directory, or further down              |
//! | `*`                    | all of it                                                        |
//!
//! Names are compared as they are written: a link in an allowed directory leads where it leads. Whoever may write
//! there may run anything, and so may whoever chooses the arguments of a shell.

use std::path::{Component, Path, PathBuf};

use crate::task::spec::CommandAction;

/// What may be run, with which variables, where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Everything,
    Program(String),
    /// What stands right in this directory.
    ProgramsIn(PathBuf),
    Variable(String),
    VariablesFrom(String),
    DirectoriesFrom(PathBuf),
}

/// Why a command is not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefused {
    /// No command is.
    #[error(
        "is not run here: commands are off; [commands] enabled = true turns them on (Builder::commands, if the engine is embedded), and allow lists what may run"
    )]
    Off,
    /// Not this program.
    #[error("`{0}` may not be run: [commands] allow does not list it")]
    Program(String),
    /// Not with this variable.
    #[error("`{0}` may not be set: [commands] allow lists no `env:{0}`")]
    Variable(String),
    /// Not in this directory.
    #[error(
        "`{0}` is no place to run in: [commands] allow lists no `cwd:{0}`, nor a directory above it"
    )]
    Directory(String),
}

impl CommandRefused {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Off => "commands_off",
            _ => "command_not_allowed",
        }
    }

    /// Which part of the action is meant: a JSON pointer below it.
    pub fn pointer(&self) -> String {
        match self {
            Self::Off => "/command".to_owned(),
            Self::Program(_) => "/command/program".to_owned(),
            Self::Variable(name) => format!("/command/env/{name}"),
            Self::Directory(_) => "/command/cwd".to_owned(),
        }
    }
}

impl Allow {
    /// Everything.
    pub fn everything() -> Self {
        Self(vec![Entry::Everything])
    }

    /// Reads a list of entries.
    ///
    /// # Errors
    /// What is wrong with the first that is none; completes "`allow` …".
    pub fn parse<T: AsRef<str>>(entries: &[T]) -> Result<Self, String> {
        let entries = entries.iter().map(|entry| {
            let entry = entry.as_ref();
            Entry::parse(entry).ok_or_else(|| {
                format!("has `{entry}`, and takes absolute paths, DIR/*, bare names, env:NAME, env:BEGIN*, cwd:DIR, and *")
            })
        });
        entries.collect::<Result<_, _>>().map(Self)
    }

    /// Whether this may be run.
    ///
    /// # Errors
    /// The first part of it that is not allowed.
    pub fn check(&self, command: &CommandAction) -> Result<(), CommandRefused> {
        let any = |may: &dyn Fn(&Entry) -> bool| {
            let mut entries = self.0.iter();
            entries.any(|entry| *entry == Entry::Everything || may(entry))
        };
        let program = &command.program;
        let is_program = |entry: &Entry| match entry {
            Entry::Program(known) => known == program,
            Entry::ProgramsIn(dir) => Path::new(program).parent() == Some(dir),
            _ => false,
        };
        if !any(&is_program) {
            return Err(CommandRefused::Program(program.clone()));
        }
        for (name, _) in &command.env {
            let is_variable = |entry: &Entry| match entry {
                Entry::Variable(known) => known == name,
                Entry::VariablesFrom(begin) => name.starts_with(begin),
                _ => false,
            };
            if !any(&is_variable) {
                return Err(CommandRefused::Variable(name.clone()));
            }
        }
        let Some(cwd) = &command.cwd else {
            return Ok(());
        };
        let is_directory = |entry: &Entry| match entry {
            Entry::DirectoriesFrom(dir) => Path::new(cwd).starts_with(dir),
            _ => false,
        };
        if !any(&is_directory) {
            return Err(CommandRefused::Directory(cwd.clone()));
        }
        Ok(())
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Everything);
        }
        if let Some(name) = text.strip_prefix("env:") {
            let begin = name.strip_suffix('*');
            let is_name = |name: &str| !name.contains(['*', '=', '\0']);
            return match begin {
                Some(begin) => is_name(begin).then(|| Self::VariablesFrom(begin.to_owned())),
                None => {
                    (is_name(name) && !name.is_empty()).then(|| Self::Variable(name.to_owned()))
                }
            };
        }
        if let Some(dir) = text.strip_prefix("cwd:") {
            return absolute(dir).map(Self::DirectoriesFrom);
        }
        if let Some(dir) = text.strip_suffix("/*") {
            // `/*` is what stands in the root.
            return absolute(if dir.is_empty() { "/" } else { dir }).map(Self::ProgramsIn);
        }
        let is_bare = !text.is_empty() && !text.contains('/');
        let is_program = !text.contains('*') && (is_bare || absolute(text).is_some());
        is_program.then(|| Self::Program(text.to_owned()))
    }
}

/// An absolute path that does not lead up again.
fn absolute(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let leads_up = path.components().any(|step| step == Component::ParentDir);
    (path.is_absolute() && !leads_up && !text.contains('*')).then(|| path.to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests {
    use super::*;

    fn command(program: &str, env: &[&str], cwd: Option<&str>) -> CommandAction {
        CommandAction {
            program: program.to_owned(),
            args: Vec::new(),
            env: env
                .iter()
                .map(|name| ((*name).to_owned(), String::new()))
                .collect(),
            cwd: cwd.map(str::to_owned),
        }
    }

    #[test]
    fn nothing_is_allowed_that_no_entry_names() {
        let allow = Allow::parse(&[
            "/opt/shop/bin/close",
            "/opt/jobs/*",
            "rsync",
            "env:REGION",
            "env:SHOP_*",
            "cwd:/srv/shop",
        ])
        .unwrap();
        for program in ["/opt/shop/bin/close", "/opt/jobs/a", "rsync"] {
            assert_eq!(allow.check(&command(program, &[], None)), Ok(()));
        }
        for program in [
            "/opt/shop/bin/open",
            "/opt/shop/bin",
            "/opt/jobs/deep/a",
            "/opt/jobs",
            "/bin/rsync",
            "close",
            "/opt/shop/bin/close ",
        ] {
            let refused = CommandRefused::Program(program.to_owned());
            assert_eq!(allow.check(&command(program, &[], None)), Err(refused));
        }
        let with = |env: &[&str]| allow.check(&command("rsync", env, None));
        assert_eq!(with(&["REGION", "SHOP_ID"]), Ok(()));
        let refused = |name: &str| Err(CommandRefused::Variable(name.to_owned()));
        assert_eq!(with(&["REGION", "LD_PRELOAD"]), refused("LD_PRELOAD"));
        assert_eq!(with(&["REGION_2"]), refused("REGION_2"));
        let within = |dir: &str| allow.check(&command("rsync", &[], Some(dir)));
        assert_eq!(within("/srv/shop").and(within("/srv/shop/a")), Ok(()));
        for dir in ["/srv", "/srv/shopping", "/"] {
            assert_eq!(within(dir), Err(CommandRefused::Directory(dir.to_owned())));
        }
    }

    #[test]
    fn a_star_allows_everything_and_no_entries_nothing() {
        let all = command("sh", &["A"], Some("/"));
        assert_eq!(Allow::parse(&["*"]).unwrap().check(&all), Ok(()));
        assert!(Allow::default().check(&all).is_err());
        let in_root = Allow::parse(&["/*", "env:*", "cwd:/"]).unwrap();
        assert_eq!(in_root.check(&command("/init", &["A"], Some("/a"))), Ok(()));
        assert!(in_root.check(&command("/bin/sh", &[], None)).is_err());
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        for entry in [
            "",
            "bin/sh",
            "./sh",
            "/opt/*/x",
            "/opt/../bin/sh",
            "a*",
            "env:",
            "env:A=B",
            "env:*A",
            "cwd:srv",
            "cwd:",
            "cwd:/srv/*",
            "../*",
        ] {
            assert!(Allow::parse(&[entry]).is_err(), "{entry:?}");
        }
    }
}
