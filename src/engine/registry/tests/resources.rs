//! Resources of all kinds, by the example of calendars.

use std::marker::PhantomData;

use super::*;
use crate::engine::registry::kind::{Kind, Resource};
use crate::engine::registry::resources::{DeleteResource, PutResource};
use crate::rule::Calendar;
use crate::rule::book::Kept;

impl Registry {
    fn put_calendar(&self, name: &str, body: &str) -> Result<bool, RegistryError> {
        let limits = kind::NO_LIMITS;
        let put = PutResource {
            name: resource(name),
            body: body.to_owned(),
            meaning: Calendar::read(body.as_bytes(), &limits).unwrap(),
            by: "test".to_owned(),
        };
        self.desk.put_resource(put).map(|put| put.is_new)
    }

    fn delete_calendar(&self, name: &str) -> Result<(), RegistryError> {
        self.desk.delete_resource(DeleteResource {
            name: resource(name),
            by: "test".to_owned(),
            kind: PhantomData::<Calendar>,
        })
    }

    fn calendar(&self, name: &str) -> Option<Arc<Kept<Calendar>>> {
        self.desk
            .rules
            .read()
            .calendars
            .get(&resource(name))
            .cloned()
    }

    fn versions(&self, name: &str) -> Vec<u64> {
        let versions = self.desk.files.versions(Kind::Calendar, &resource(name));
        versions.unwrap().iter().map(|it| it.version).collect()
    }
}

fn resource(name: &str) -> ResourceName {
    ResourceName::parse(name).unwrap()
}

/// Open on that day of the week.
fn on(day: &str) -> String {
    format!(r#"{{"tz": "UTC", "weekly": {{"{day}": [["09:00", "17:00"]]}}}}"#)
}

#[test]
fn a_resource_is_put_and_replaced_under_growing_versions_that_are_kept() {
    let registry = Registry::new();
    assert!(registry.put_calendar("cn", &on("mon")).unwrap());
    assert!(!registry.put_calendar("cn", &on("tue")).unwrap());
    registry.put_calendar("c", &on("wed")).unwrap();
    let kept = registry.calendar("cn").unwrap();
    assert_eq!((kept.version, kept.body.as_str()), (2, on("tue").as_str()));
    assert!(kept.meaning.weekly[0].is_empty() && !kept.meaning.weekly[1].is_empty());
    assert_eq!(kept.changed_at, AT);
    // A name that begins with another's has nothing to do with it.
    assert_eq!(registry.versions("c"), [1]);
    assert_eq!(registry.versions("cn"), [2, 1]);
    let audit = registry.audit();
    assert_eq!(audit[0], ("calendar.put".to_owned(), "cn".to_owned()));
}

#[test]
fn a_reopened_registry_reads_resources_back() {
    let registry = Registry::new();
    registry.put_calendar("cn", &on("mon")).unwrap();
    let kept = registry.calendar("cn");
    let registry = registry.reopened();
    assert_eq!(registry.calendar("cn"), kept);
    // And so does a new owner in the same process.
    let Desk {
        files, book, rules, ..
    } = &registry.desk;
    *rules.write() = Arc::default();
    files.recover(ShardEpoch(2), book, rules).unwrap();
    assert_eq!(registry.calendar("cn"), kept);
    let stale = registry.put_calendar("de", &on("mon"));
    assert!(matches!(
        stale,
        Err(RegistryError::Storage(StoreError::StaleEpoch { .. }))
    ));
}

#[test]
fn only_the_latest_versions_are_kept() {
    let registry = Registry::new();
    let most = limits::RESOURCE_VERSIONS_KEPT;
    for _ in 0..most + 3 {
        registry.put_calendar("cn", &on("mon")).unwrap();
    }
    let versions = registry.versions("cn");
    assert_eq!(versions.len() as u64, most);
    assert_eq!(versions.first(), Some(&(most + 3)));
}

#[test]
fn a_deleted_resource_is_gone_and_its_numbers_are_not_given_again() {
    let registry = Registry::new();
    registry.put_calendar("cn", &on("mon")).unwrap();
    registry.put_calendar("cn", &on("tue")).unwrap();
    registry.delete_calendar("cn").unwrap();
    assert!(registry.calendar("cn").is_none());
    let refused = registry.delete_calendar("cn").unwrap_err().to_string();
    assert_eq!(refused, "there is no calendar cn");
    let registry = registry.reopened();
    assert!(registry.calendar("cn").is_none());
    assert!(registry.put_calendar("cn", &on("mon")).unwrap());
    assert_eq!(registry.calendar("cn").unwrap().version, 3);
}

#[test]
fn a_body_that_is_too_long_is_refused() {
    let registry = Registry::new();
    let body = on("mon") + &" ".repeat(limits::RESOURCE_BODY_BYTES_MAX);
    let refused = registry.put_calendar("cn", &body).unwrap_err();
    assert!(
        matches!(refused, RegistryError::BodyTooLarge { .. }),
        "{refused}"
    );
}

#[test]
fn a_resource_that_was_lost_behind_our_back_is_noticed() {
    let registry = Registry::new();
    registry.put_calendar("cn", &on("mon")).unwrap();
    registry.desk.files.lose(Kind::Calendar, "cn");
    let Registry { desk, directory } = registry;
    drop(desk);
    let refused = RegistryFiles::open(directory.path())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("1 other resources"), "{refused}");
}
