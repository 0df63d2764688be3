#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod resources;

use std::fs;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::RwLock;

use super::desk::Desk;
use super::*;
use crate::clock::{DurationMs, WallMs};
use crate::task::topic::Topic;
use crate::watchdog::{ChildId, Death, Generation, named_arbiter};
use crate::wire;

const SOON: Duration = Duration::from_secs(10);
const OWNER: ShardEpoch = ShardEpoch(1);
const AT: WallMs = WallMs(1_800_000_000_000);

/// A registry in a directory of its own, with a clock that is moved by hand.
struct Registry {
    desk: Desk,
    directory: tempfile::TempDir,
}

impl Registry {
    fn new() -> Self {
        Self::under(tempfile::tempdir().unwrap(), Clock::by_hand(AT))
    }

    fn under(directory: tempfile::TempDir, clock: Clock) -> Self {
        let files = RegistryFiles::open(directory.path()).unwrap();
        let book = Arc::new(RwLock::new(Arc::new(files.book().unwrap())));
        let rules = Arc::new(RwLock::new(Arc::new(files.rules().unwrap())));
        let desk = Desk {
            files,
            book,
            rules,
            clock,
            owner: OWNER,
        };
        Self { desk, directory }
    }

    /// As after a restart of the process.
    fn reopened(self) -> Self {
        let Self { desk, directory } = self;
        let clock = desk.clock.clone();
        drop(desk);
        Self::under(directory, clock)
    }

    fn topic(&self, name: &str) -> Arc<Topic> {
        Arc::clone(self.desk.book.read().get(&named(name)))
    }

    fn is_known(&self, name: &str) -> bool {
        self.desk.book.read().is_known(&named(name))
    }

    fn put(&self, name: &str, body: &str) -> Result<(), RegistryError> {
        self.desk.put(put(name, body)).map(drop)
    }

    fn pause(&self, name: &str, clock: PauseClock) {
        let (name, by) = (named(name), "test".to_owned());
        self.desk.pause(PauseTopic { name, clock, by }).unwrap();
    }

    fn resume(&self, name: &str) -> Result<(), RegistryError> {
        let (name, by) = (named(name), "test".to_owned());
        self.desk.resume(ResumeTopic { name, by }).map(drop)
    }

    fn end_thaw(&self, name: &str) {
        let number = self.topic(name).thaw;
        let name = named(name);
        self.desk.end_thaw(EndThaw { name, number }).unwrap();
    }

    fn delete(&self, name: &str) -> Result<(), RegistryError> {
        let (name, by) = (named(name), "test".to_owned());
        self.desk.delete(DeleteTopic { name, by }).map(drop)
    }

    /// What was done, to what, oldest first.
    fn audit(&self) -> Vec<(String, String)> {
        let mut lines = self.desk.files.audit(100).unwrap();
        lines.reverse();
        let lines = lines.into_iter();
        lines.map(|line| (line.action, line.target)).collect()
    }

    /// Makes every sync fail until [`Registry::mend`].
    fn break_disk(&self) {
        fs::write(self.blob(), "").unwrap();
    }

    fn mend(&self) {
        fs::remove_file(self.blob()).unwrap();
    }

    fn blob(&self) -> std::path::PathBuf {
        self.desk.files.path().join("blobs/1")
    }
}

fn named(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

fn put(name: &str, body: &str) -> PutTopic {
    let limits = wire::due::InLimits {
        max_delay: limits::MAX_DELAY,
        now: AT,
    };
    PutTopic {
        name: named(name),
        body: body.to_owned(),
        settings: wire::topic::settings(body.as_bytes(), &limits).unwrap(),
        by: "test".to_owned(),
    }
}

/// A body of exactly so many bytes.
fn body_of(bytes: usize) -> String {
    let empty = r#"{"action": {"http": {"url": "http://a/", "headers": {}}}}"#;
    let (head, tail) = empty.split_at(1);
    format!("{head}{}{tail}", " ".repeat(bytes - empty.len()))
}

#[test]
fn a_topic_is_declared_and_replaced_under_growing_versions() {
    let registry = Registry::new();
    registry.put("a", r#"{"class": "core"}"#).unwrap();
    registry.put("a", r#"{"class": "bulk"}"#).unwrap();
    let topic = registry.topic("a");
    assert_eq!(
        (topic.version, topic.body.as_str()),
        (2, r#"{"class": "bulk"}"#)
    );
    assert_eq!(topic.settings.class, Some(crate::task::spec::Class::Bulk));
    assert_eq!(registry.topic("b").version, 0);
}

#[test]
fn a_reopened_registry_reads_back_everything() {
    let registry = Registry::new();
    registry.put("declared", r#" {"class": "core"} "#).unwrap();
    registry.put("kept", "{}").unwrap();
    registry.pause("kept", PauseClock::Keep);
    registry.pause("frozen", PauseClock::Freeze);
    registry.pause("thawing", PauseClock::Freeze);
    registry.desk.clock.advance(DurationMs(7_000));
    registry.resume("thawing").unwrap();
    let names = ["declared", "kept", "frozen", "thawing"];
    let before = names.map(|name| registry.topic(name));
    let audit = registry.audit();
    let registry = registry.reopened();
    for (name, before) in names.into_iter().zip(before) {
        let body = before.body.trim().to_owned();
        let before = Topic {
            body,
            ..Topic::clone(&before)
        };
        assert_eq!(*registry.topic(name), before, "{name}");
    }
    assert_eq!(registry.desk.book.read().len(), names.len());
    assert_eq!(registry.audit(), audit);
}

#[test]
fn resuming_a_kept_topic_needs_no_thaw_and_a_frozen_one_thaws_by_the_time_it_was_held() {
    let registry = Registry::new();
    for (name, clock) in [("kept", PauseClock::Keep), ("frozen", PauseClock::Freeze)] {
        registry.pause(name, clock);
        assert_eq!(registry.topic(name).pause.unwrap().clock, clock);
        // A second pause changes nothing, not even the clock.
        registry.pause(name, PauseClock::Freeze);
        assert_eq!(registry.topic(name).pause.unwrap().clock, clock);
    }
    registry.desk.clock.advance(DurationMs(90_000));
    registry.resume("kept").unwrap();
    assert!(!registry.topic("kept").is_held());
    registry.resume("frozen").unwrap();
    let thaw = registry.topic("frozen").thawing.unwrap();
    assert_eq!((thaw.number, thaw.held), (1, DurationMs(90_000)));
    registry.resume("frozen").unwrap();
    assert_eq!(registry.topic("frozen").thawing, Some(thaw));
    registry.end_thaw("frozen");
    assert!(!registry.topic("frozen").is_held());
}

#[test]
fn a_pause_during_a_thaw_waits_for_its_end_and_loses_no_time() {
    let registry = Registry::new();
    registry.pause("a", PauseClock::Freeze);
    registry.desk.clock.advance(DurationMs(10_000));
    registry.resume("a").unwrap();
    let first = registry.topic("a").thawing;
    registry.pause("a", PauseClock::Freeze);
    registry.desk.clock.advance(DurationMs(5_000));
    let refused = registry.resume("a").unwrap_err();
    assert!(matches!(refused, RegistryError::Thawing(_)), "{refused}");
    let topic = registry.topic("a");
    assert!(topic.pause.is_some() && topic.thawing == first);
    registry.end_thaw("a");
    registry.resume("a").unwrap();
    let second = registry.topic("a").thawing.unwrap();
    assert_eq!((second.number, second.held), (2, DurationMs(5_000)));
}

#[test]
fn the_end_of_another_thaw_ends_nothing() {
    let registry = Registry::new();
    registry.pause("a", PauseClock::Freeze);
    registry.resume("a").unwrap();
    let name = named("a");
    registry.desk.end_thaw(EndThaw { name, number: 9 }).unwrap();
    assert!(registry.topic("a").thawing.is_some());
}

#[test]
fn a_topic_is_not_deleted_while_it_is_paused_or_thawing() {
    let registry = Registry::new();
    registry.put("a", "{}").unwrap();
    registry.pause("a", PauseClock::Freeze);
    let refused = registry.delete("a").unwrap_err().to_string();
    assert_eq!(refused, "the topic a is in use: its pause; resume it first");
    registry.resume("a").unwrap();
    let refused = registry.delete("a").unwrap_err();
    assert!(matches!(refused, RegistryError::InUse { .. }), "{refused}");
    registry.end_thaw("a");
    registry.delete("a").unwrap();
    assert!(!registry.is_known("a"));
    let refused = registry.delete("a").unwrap_err();
    assert!(
        matches!(refused, RegistryError::UnknownTopic(_)),
        "{refused}"
    );
    assert!(!registry.reopened().is_known("a"));
}

#[test]
fn the_number_of_a_thaw_never_falls_even_over_a_delete_and_a_restart() {
    let mut registry = Registry::new();
    for number in 1..=3 {
        registry.put("a", "{}").unwrap();
        registry.pause("a", PauseClock::Freeze);
        registry.resume("a").unwrap();
        assert_eq!(registry.topic("a").thawing.unwrap().number, number);
        registry.end_thaw("a");
        registry.delete("a").unwrap();
        registry = registry.reopened();
    }
}

#[test]
fn a_body_is_bounded_and_the_largest_ones_never_leave_the_log() {
    let registry = Registry::new();
    let most = limits::RESOURCE_BODY_BYTES_MAX;
    let refused = registry.put("a", &body_of(most + 1)).unwrap_err();
    assert!(
        matches!(refused, RegistryError::BodyTooLarge { bytes } if bytes == most + 1),
        "{refused}"
    );
    assert!(!registry.is_known("a"));
    // More than fill a leaf; a sync fails if one of them has gone to a file that sled does not sync.
    for number in 0..60 {
        registry
            .put(&format!("topic-{number:02}"), &body_of(most))
            .unwrap();
    }
    let registry = registry.reopened();
    assert_eq!(registry.topic("topic-59").body.len(), most);
}

#[test]
fn audit_lines_are_written_together_in_order_and_cut_to_their_length() {
    let registry = Registry::new();
    registry.put("a", &body_of(4_000)).unwrap();
    let line = |target: &str| AuditLine {
        at_ms: 1,
        by: "somebody".to_owned(),
        action: "task.discard".to_owned(),
        target: target.to_owned(),
        detail: "ü".repeat(3_000),
    };
    let lines = vec![line("one"), line("two")];
    registry.desk.note(Note { lines }).unwrap();
    registry.desk.note(Note { lines: Vec::new() }).unwrap();
    let audit = registry.audit();
    let targets: Vec<&str> = audit.iter().map(|(_, target)| target.as_str()).collect();
    assert_eq!(targets, ["a", "one", "two"]);
    for line in registry.desk.files.audit(3).unwrap() {
        assert_eq!(line.detail.len(), limits::NOTE_BYTES_MAX);
    }
}

#[test]
fn a_damaged_record_is_named() {
    let registry = Registry::new();
    registry.put("sound", "{}").unwrap();
    registry.put("broken", r#"{"class": "core"}"#).unwrap();
    registry.desk.files.damage("broken");
    let error = registry.desk.files.book().unwrap_err().to_string();
    assert!(error.contains("topic broken in "), "{error}");
}

#[test]
fn a_left_over_snapshot_does_not_stop_the_start() {
    let registry = Registry::new();
    registry.put("a", "{}").unwrap();
    fs::write(
        registry
            .desk
            .files
            .path()
            .join("snap.00000000000000FF.generating"),
        "torn",
    )
    .unwrap();
    assert!(registry.reopened().is_known("a"));
}

#[test]
fn after_an_error_nothing_is_done_until_the_files_are_opened_anew() {
    let registry = Registry::new();
    registry.put("a", "{}").unwrap();
    registry.break_disk();
    assert!(matches!(
        registry.put("b", "{}"),
        Err(RegistryError::Storage(StoreError::Corrupt { .. }))
    ));
    registry.mend();
    assert!(matches!(
        registry.put("c", "{}"),
        Err(RegistryError::Storage(StoreError::Poisoned))
    ));
    assert!(!registry.is_known("b"));
    let edition = registry.desk.book.read().edition();
    let book = &registry.desk.book;
    let rules = &registry.desk.rules;
    registry.desk.files.recover(OWNER, book, rules).unwrap();
    // What met the error was in doubt: the disk has decided.
    assert!(registry.is_known("a") && registry.is_known("b"));
    assert!(registry.desk.book.read().edition() > edition);
    registry.put("c", "{}").unwrap();
}

#[test]
fn an_owner_that_was_given_up_and_wakes_changes_nothing() {
    let registry = Registry::new();
    registry.put("a", "{}").unwrap();
    let (files, book) = (&registry.desk.files, &registry.desk.book);
    let rules = &registry.desk.rules;
    files.recover(ShardEpoch(2), book, rules).unwrap();
    let stale = |done: Result<(), RegistryError>| {
        matches!(
            done,
            Err(RegistryError::Storage(StoreError::StaleEpoch { .. }))
        )
    };
    assert!(stale(registry.put("b", "{}")));
    let lines = registry.desk.files.audit(9).unwrap().len();
    assert!(stale(registry.desk.note(Note { lines: Vec::new() })));
    assert!(registry.is_known("a") && !registry.is_known("b"));
    // It took nothing from its successor.
    let successor = Desk {
        files: files.clone(),
        book: book.clone(),
        rules: rules.clone(),
        clock: registry.desk.clock.clone(),
        owner: ShardEpoch(2),
    };
    successor.put(put("c", "{}")).unwrap();
    assert!(registry.is_known("c"));
    assert_eq!(files.audit(9).unwrap().len(), lines + 1);
}

#[test]
fn the_actor_leaves_after_an_error_and_says_why() {
    let registry = Registry::new();
    let (told, hear) = mpsc::channel::<Death>();
    let thread = named_arbiter("registry").unwrap();
    let on = thread.handle();
    let death = DeathNotice::new(ChildId(0), Generation(1), move |death| {
        let _ = told.send(death);
    });
    let pulse = Arc::new(Pulse::new(registry.desk.clock.now().mono));
    let child = ChildContext::unwatched(pulse, death);
    let (files, book, clock) = (
        registry.desk.files.clone(),
        registry.desk.book.clone(),
        registry.desk.clock.clone(),
    );
    let rules = registry.desk.rules.clone();
    let actor = RegistryActor::start_in_arbiter(&on, move |_| {
        RegistryActor::new(files, book, rules, clock, child, thread)
    });
    let ask = |message| {
        let asked = actor.send(message);
        actix::System::new().block_on(asked)
    };
    assert!(ask(put("a", "{}")).unwrap().unwrap().is_known(&named("a")));
    // A refusal is no reason to leave.
    assert!(ask(put("b", &body_of(20_000))).unwrap().is_err());
    registry.break_disk();
    assert!(matches!(
        ask(put("b", "{}")).unwrap(),
        Err(RegistryError::Storage(_))
    ));
    let death = hear.recv_timeout(SOON).unwrap();
    let words = death.last_words.unwrap();
    assert!(words.starts_with("the registry: blobs in "), "{words}");
}
