//! A thread that is frozen in the middle of one shard's fold keeps no other shard from taking creates. In a process of
//! its own: others would be frozen, too.

#![cfg(feature = "failpoints")]

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::time::Duration;

use duetime::failpoints::set;
use duetime::shard::shelf::ShelfOptions;
use duetime::shard::table::TableOptions;
use duetime::{Created, Duetime, EngineError, NewTask, TopicName};
use serde_json::json;
use tokio::task::JoinHandle;

use support::SOON;

/// Creates that are handed in at once; about a third of them for each shard.
const CREATES: u64 = 60;
const POINT: &str = "fold::chunk";

fn handed_in(engine: &Duetime) -> Vec<JoinHandle<Result<Created, EngineError>>> {
    let creates = (0..CREATES).map(|n| {
        let engine = engine.clone();
        let new = NewTask::new(TopicName::parse("cold").expect("a name"))
            .after(Duration::from_secs(86_400))
            .payload(&json!({"n": n, "pad": "x".repeat(2_000)}));
        tokio::spawn(async move { engine.create(new, "test").await })
    });
    creates.collect()
}

/// Waits until so many are done, and gives those that are not.
async fn all_but<T>(mut left: Vec<JoinHandle<T>>, done_min: usize) -> Vec<JoinHandle<T>> {
    let all = left.len();
    let enough = async {
        while all - left.len() < done_min {
            left.retain(|create| !create.is_finished());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let enough = tokio::time::timeout(SOON, enough).await;
    enough.expect("the other shards go on");
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_thread_frozen_in_one_shards_fold_the_others_take_creates() {
    let data = tempfile::tempdir().expect("a directory");
    set(POINT, "1*pause").expect("it is in the list");
    let engine = Duetime::builder()
        .data_dir(data.path())
        .shards(3)
        .table(TableOptions {
            shelf: ShelfOptions {
                fold_bytes: 8 * 1024,
            },
            ..TableOptions::default()
        })
        .start()
        .await
        .expect("it starts");
    // Each shard folds by now, and the first to do so is frozen.
    let mut waiting = all_but(handed_in(&engine), 20).await;
    for _ in 0..5 {
        let left = all_but(handed_in(&engine), 25).await;
        waiting.extend(left);
    }
    let frozen = |waiting: &[JoinHandle<_>]| {
        let left = waiting.iter().filter(|create| !create.is_finished());
        left.count()
    };
    assert!(frozen(&waiting) > 20, "one shard is frozen");
    set(POINT, "off").expect("it is in the list");
    for create in waiting {
        let made = tokio::time::timeout(SOON, create).await;
        let made = made.expect("it goes on").expect("it does not panic");
        assert!(matches!(made, Ok(Created::New(_))), "{made:?}");
    }
    engine.shutdown().await;
    support::assert_no_blobs(data.path());
}
