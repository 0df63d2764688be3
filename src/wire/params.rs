//! Parameters of a query, read one by one: each of the wrong ones is noted as `/name`, and reading goes on.

use crate::clock::WallMs;
use crate::limits;
use crate::task::spec::NameError;
use crate::wire::decode::{Errors, Path};
use crate::wire::problem::Problem;
use crate::wire::time;

/// Items of a page that names no number.
pub(super) const LIMIT_DEFAULT: usize = 100;

/// What is wrong with the parameters of one query.
#[derive(Default)]
pub(super) struct Params {
    errors: Errors,
    seen: Vec<String>,
}

impl Params {
    /// Hands each parameter to `take`. Where one of this name came before, and it is not one of `repeated`, that is
    /// an error.
    pub fn each(
        &mut self,
        query: &str,
        repeated: &[&str],
        mut take: impl FnMut(&Self, &str, &str),
    ) {
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if !repeated.contains(&&*name) {
                if self.seen.iter().any(|seen| *seen == name) {
                    self.refuse::<()>(&name, "duplicate_field", "stands there twice");
                    continue;
                }
                self.seen.push(name.to_string());
            }
            take(self, &name, &value);
        }
    }

    /// All is read.
    ///
    /// # Errors
    /// 422 with all parameters that are not valid.
    pub fn close(self) -> Result<(), Problem> {
        self.errors.close()
    }

    pub fn refuse<T>(
        &self,
        name: &str,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Option<T> {
        self.errors.note(&Path::default().field(name), code, detail);
        None
    }

    /// A topic's name, or a key.
    pub fn name<T>(
        &self,
        name: &str,
        value: &str,
        parse: impl FnOnce(&str) -> Result<T, NameError>,
    ) -> Option<T> {
        parse(value).map_or_else(
            |error| self.refuse(name, "invalid_name", error.to_string()),
            Some,
        )
    }

    /// One of a few words, as what it means.
    pub fn word<T: Copy>(&self, name: &str, value: &str, words: &[(&str, T)]) -> Option<T> {
        let found = words.iter().find(|(word, _)| *word == value);
        found.map(|(_, meaning)| *meaning).or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let detail = format!("must be one of {}", known.join(", "));
            self.refuse(name, "unknown_value", detail)
        })
    }

    /// An instant.
    pub fn time(&self, name: &str, value: &str) -> Option<WallMs> {
        // A plus sign in a query is a space, unless it is written %2B; few clients know.
        let plus = value
            .len()
            .checked_sub(6)
            .filter(|at| value.contains('T') && value.as_bytes()[*at] == b' ');
        let restored = plus.map(|at| format!("{}+{}", &value[..at], &value[at + 1..]));
        let time = time::parse(restored.as_deref().unwrap_or(value), None);
        time.map_or_else(
            |error| self.refuse(name, error.code(), error.to_string()),
            Some,
        )
    }

    /// How many items a page may have.
    pub fn limit(&self, name: &str, value: &str) -> Option<usize> {
        let most = limits::PAGE_ITEMS_MAX;
        let limit = value
            .parse()
            .ok()
            .filter(|limit| (1..=most).contains(limit));
        limit.or_else(|| {
            let detail = format!("must be a whole number from 1 to {most}");
            self.refuse(name, "out_of_range", detail)
        })
    }
}
