//! One-time URLs by which a receiver completes an attempt that it took on.
//!
//! ```text
//!  push ─▶ {…, "complete_url": "<base>/v1/complete/<secret>"}      202: "I'll tell you later"
//!             secret = task │ token │ HMAC-SHA256(key, task │ token)       in hexadecimal
//! ```
//!
//! The secret is derived, so nothing is kept per attempt, and it is good for what it names: that attempt of that task.
//! Once the attempt is over, by this answer or another, its token is stale, and so is the URL: it works once. Nobody
//! without the key can make one up; the key is drawn at the first start and kept in the registry, so that URLs outlive
//! the process, and a backup.

use parking_lot::RwLock;
use ring::hmac;

use crate::ids::{AttemptToken, TaskId};

/// Bytes that are signed: a task's id and a token.
const NAMED_BYTES: usize = 16 + 8;
/// Bytes of a signature.
const TAG_BYTES: usize = 32;

/// Makes and reads the URLs.
#[derive(Debug)]
pub struct Completions {
    key: hmac::Key,
    base: RwLock<Option<String>>,
}

impl Completions {
    /// URLs that are good as long as this key is kept, under no base yet.
    pub fn new(key: &[u8; 32]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
            base: RwLock::default(),
        }
    }

    /// Where receivers find this service: `https://tasks.example`.
    pub fn set_base(&self, base: &str) {
        *self.base.write() = Some(base.trim_end_matches('/').to_owned());
    }

    /// The URL for an attempt; `None` while nobody knows under which name the service is reached.
    pub fn url_of(&self, task: TaskId, token: AttemptToken) -> Option<String> {
        let base = self.base.read().clone()?;
        Some(format!(
            "{base}/v1/complete/{}",
            self.secret_of(task, token)
        ))
    }

    /// What the URL of an attempt ends with.
    pub fn secret_of(&self, task: TaskId, token: AttemptToken) -> String {
        let named = named(task, token);
        let tag = hmac::sign(&self.key, &named);
        let bytes = named.iter().chain(tag.as_ref());
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    /// The attempt that a secret is for; `None` if it was not made here. Takes as long for every wrong one.
    pub fn attempt_of(&self, secret: &str) -> Option<(TaskId, AttemptToken)> {
        let bytes = bytes_of(secret)?;
        let (named, tag) = bytes.split_first_chunk::<NAMED_BYTES>()?;
        hmac::verify(&self.key, named, tag).ok()?;
        let (task, token) = named.split_first_chunk::<16>()?;
        let token = u64::from_be_bytes(token.try_into().ok()?);
        Some((TaskId::from_bytes(*task), AttemptToken(token)))
    }
}

fn named(task: TaskId, token: AttemptToken) -> [u8; NAMED_BYTES] {
    let mut named = [0; NAMED_BYTES];
    let (of_task, of_token) = named.split_at_mut(16);
    of_task.copy_from_slice(&task.to_bytes());
    of_token.copy_from_slice(&token.0.to_be_bytes());
    named
}

/// Lower-case hexadecimal of the right length, as bytes: each secret is written in one way.
fn bytes_of(secret: &str) -> Option<[u8; NAMED_BYTES + TAG_BYTES]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; NAMED_BYTES + TAG_BYTES];
    if secret.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(secret.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::clock::WallMs;
    use crate::ids::Slot;

    fn id(n: u64) -> TaskId {
        TaskId::with_tail(Slot::of_hash(n), WallMs(1_000), n)
    }

    #[test]
    fn a_secret_leads_to_its_attempt_and_no_other_text_leads_anywhere() {
        let urls = Completions::new(&[7; 32]);
        assert_eq!(
            urls.url_of(id(1), AttemptToken(3)),
            None,
            "nobody knows where"
        );
        urls.set_base("https://tasks.example/");
        let url = urls.url_of(id(1), AttemptToken(3)).unwrap();
        let secret = url
            .strip_prefix("https://tasks.example/v1/complete/")
            .unwrap();
        assert_eq!(urls.attempt_of(secret), Some((id(1), AttemptToken(3))));
        for at in 0..secret.len() {
            let mut forged = secret.as_bytes().to_vec();
            forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(urls.attempt_of(&forged), None, "changed at {at}");
        }
        for other in [
            "",
            "00",
            &secret[2..],
            &secret.to_uppercase(),
            &"é".repeat(56),
        ] {
            assert_eq!(urls.attempt_of(other), None, "{other:?}");
        }
        let theirs = Completions::new(&[8; 32]);
        assert_eq!(theirs.attempt_of(secret), None, "of another service");
    }
}
