//! Which tasks: the flags that lists and bulk jobs have in common.

use clap::Args as ClapArgs;
use serde_json::{Map, Value};

pub(super) const STATES: [&str; 8] = [
    "pending",
    "dispatched",
    "running",
    "retrying",
    "paused",
    "succeeded",
    "dead",
    "cancelled",
];

pub(super) fn parse_tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("a tag is written name=value".into()),
    }
}

#[derive(ClapArgs, Debug)]
pub(super) struct Filter {
    /// Of this topic
    #[arg(long)]
    topic: Option<String>,
    /// With this key
    #[arg(long)]
    key: Option<String>,
    /// With a key that starts like this
    #[arg(long, value_name = "PREFIX")]
    key_prefix: Option<String>,
    /// With this tag; may be given several times
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = parse_tag)]
    tags: Vec<(String, String)>,
    /// Due after this time
    #[arg(long, value_name = "TIME")]
    due_after: Option<String>,
    /// Due before this time
    #[arg(long, value_name = "TIME")]
    due_before: Option<String>,
    /// Created after this time
    #[arg(long, value_name = "TIME")]
    created_after: Option<String>,
    /// Created before this time
    #[arg(long, value_name = "TIME")]
    created_before: Option<String>,
    /// Ended after this time
    #[arg(long, value_name = "TIME")]
    ended_after: Option<String>,
    /// Ended before this time
    #[arg(long, value_name = "TIME")]
    ended_before: Option<String>,
    /// Dead for this reason
    #[arg(long, value_name = "REASON")]
    dead_reason: Option<String>,
    /// Timed by this rule
    #[arg(long)]
    rule: Option<String>,
    /// Of this class of service
    #[arg(long)]
    class: Option<String>,
    /// In this bucket of the wheel, such as 202612011030
    #[arg(long)]
    bucket: Option<String>,
    /// With this text in it
    #[arg(long)]
    text: Option<String>,
}

impl Filter {
    /// The words of a list's query.
    pub(super) fn words(&self) -> Vec<(String, String)> {
        let given = [
            ("topic", &self.topic),
            ("key", &self.key),
            ("key_prefix", &self.key_prefix),
            ("due_after", &self.due_after),
            ("due_before", &self.due_before),
            ("created_after", &self.created_after),
            ("created_before", &self.created_before),
            ("ended_after", &self.ended_after),
            ("ended_before", &self.ended_before),
            ("dead_reason", &self.dead_reason),
            ("rule", &self.rule),
            ("class", &self.class),
            ("bucket", &self.bucket),
            ("text", &self.text),
        ];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
        let tags = self
            .tags
            .iter()
            .map(|(name, value)| (format!("tag.{name}"), value.clone()));
        given.chain(tags).collect()
    }

    /// The same as an object in a body.
    pub(super) fn object(&self) -> Map<String, Value> {
        let words = self.words().into_iter();
        words.map(|(name, value)| (name, value.into())).collect()
    }
}
