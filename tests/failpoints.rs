//! Failpoints do what they are told. In a process of its own: others would run into what is set here.

#![cfg(feature = "failpoints")]

use std::io;

use duetime::failpoints::{reach, set};

#[test]
fn a_point_fails_as_often_as_it_is_told_and_a_misspelt_one_is_refused() {
    let point = "journal::write";
    set(point, "1*off->1*return(error)->1*return(full)").expect("it is in the list");
    assert!(reach(point).is_ok());
    let injected = reach(point).expect_err("the second time it fails");
    assert_eq!(injected.to_string(), "injected at journal::write");
    let full = reach(point).expect_err("so does the third");
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert!(reach(point).is_ok());
    assert!(set("journal::wrote", "off").is_err_and(|why| why.contains("journal::wrote")));
    assert!(set(point, "explode").is_err());
}
