//! Topics and the audit: what the registry keeps, and what follows from it for the shards.
//!
//! A topic's change is durable first, then told to all shards. Both happen apart from who asked, so that a caller
//! who hangs up leaves nothing half done. A shard that can't be told now is told later, and takes the newest when it
//! starts anew ([`super::boot`]); the caller learns of it all the same, because until then the shard works by the old
//! settings.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::registry::{
    AuditLine, DeleteTopic, EndThaw, Note, PauseTopic, PutTopic, RegistryActor, RegistryError,
    ResumeTopic,
};
use crate::shard::messages::{SetBook, ThawTopic, TopicCounts};
use crate::shard::query::TaskView;
use crate::task::callback;
use crate::task::late::LatePolicy;
use crate::task::model::PauseClock;
use crate::task::spec::{TaskKey, TopicName};
use crate::task::topic::{Topic, TopicBook, TopicSettings};

/// Most questions to the registry at a time.
pub(super) const REGISTRY_ROOM: usize = 256;
/// Longest wait for the registry. What it has begun by then it still does.
const REGISTRY_TIME: Duration = Duration::from_secs(10);
/// When nothing is expected any more of what the registry was asked, though nobody waits by then.
const REGISTRY_GIVEN_UP: Duration = Duration::from_secs(60);
/// Shards that could not be told are told again after these pauses, and then always after the last.
const SETTLE_PAUSES_MS: [u64; 5] = [0, 100, 500, 2_000, 5_000];

impl Duetime {
    /// Asks the registry something, and does not wait for ever. What it has begun by then it still does.
    pub(super) async fn ask_registry<M, T>(&self, message: M) -> Result<T, EngineError>
    where
        M: actix::Message<Result = Result<T, RegistryError>> + Send + 'static,
        T: Send + 'static,
        RegistryActor: actix::Handler<M>,
    {
        let engine = self.clone();
        let work = self.apart(async move { engine.registry(message).await });
        tokio::time::timeout(REGISTRY_TIME, work)
            .await
            .unwrap_or_else(|_| Err(RegistryError::Down.into()))
    }

    /// Asks the registry something.
    async fn registry<M, T>(&self, message: M) -> Result<T, EngineError>
    where
        M: actix::Message<Result = Result<T, RegistryError>> + Send + 'static,
        T: Send + 'static,
        RegistryActor: actix::Handler<M>,
    {
        let room = Arc::clone(&self.parts.registry_room)
            .try_acquire_owned()
            .map_err(|_| RegistryError::Overloaded)?;
        let actor = self.parts.registry.who().ok_or(RegistryError::Down)?;
        // One that hangs takes what waits for it along.
        let answer = tokio::time::timeout(REGISTRY_GIVEN_UP, actor.send(message)).await;
        let answer = answer.map_err(|_| RegistryError::Down)?;
        let answer = answer.map_err(|_| RegistryError::Down)?;
        drop(room);
        Ok(answer?)
    }

    /// Changes a topic, and tells all shards: apart from the caller, who does not wait for ever. Gives the topic.
    async fn change_topic<M>(&self, name: TopicName, change: M) -> Result<Arc<Topic>, EngineError>
    where
        M: actix::Message<Result = Result<Arc<TopicBook>, RegistryError>> + Send + 'static,
        RegistryActor: actix::Handler<M>,
    {
        let engine = self.clone();
        let (tell, changed) = tokio::sync::oneshot::channel();
        let work = self.apart(async move {
            let book = engine.registry(change).await?;
            // Nobody need hear it.
            let _ = tell.send(());
            if let Err(error) = engine.settle(&name).await {
                engine.settle_in_background(&name);
                return Err(error);
            }
            let now = engine.book();
            let book = if now.is_known(&name) { now } else { book };
            Ok(Arc::clone(book.get(&name)))
        });
        tokio::time::timeout(REGISTRY_TIME, changed)
            .await
            .map_err(|_| RegistryError::Down)?
            // Dropped unsaid when the registry refused, which the work says.
            .ok();
        // The shards have limits of their own.
        work.await
    }

    /// Tells all shards the topics as they are now, and waits until they work by them. All are told, even if one
    /// does not answer.
    async fn tell_shards(&self, book: &Arc<TopicBook>) -> Result<(), EngineError> {
        self.parts
            .router
            .tell_all(|_| SetBook(Arc::clone(book)))
            .await?;
        Ok(())
    }

    /// A declared topic counts as one in use.
    async fn admit_topic(&self, name: &TopicName) -> Result<(), EngineError> {
        self.make_room_for_topics().await;
        self.parts.known_topics.admit(name, &self.book())
    }

    /// Declares a topic or replaces its settings; in force for the next create when it returns.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn put_topic(
        &self,
        name: TopicName,
        body: String,
        settings: TopicSettings,
        by: &str,
    ) -> Result<Arc<Topic>, EngineError> {
        if let Some(action) = &settings.action {
            self.may_do(action, format_args!("/action"))?;
        }
        for (clock, action) in settings.timeouts.then.escalations() {
            let clock = clock.name();
            self.may_do(action, format_args!("/timeouts/{clock}/then/escalate"))?;
        }
        if let LatePolicy::Compensate(compensation) = &settings.late_answers
            && let Some(action) = &compensation.action
        {
            self.may_do(action, format_args!("/late_answers/compensate/action"))?;
        }
        self.admit_topic(&name).await?;
        // Those that its tasks are followed by are in use with it.
        if let LatePolicy::Compensate(compensation) = &settings.late_answers {
            self.admit_topic(&compensation.topic).await?;
        }
        if settings.on_end.is_some() {
            self.admit_topic(&callback::topic_of(&name)).await?;
        }
        let put = PutTopic {
            name: name.clone(),
            body,
            settings,
            by: by.to_owned(),
        };
        self.change_topic(name, put).await
    }

    /// Forgets a topic's settings.
    ///
    /// # Errors
    /// When it was never declared, when it is paused or thawing, or when it has live tasks; see [`EngineError`].
    pub async fn delete_topic(&self, name: TopicName, by: &str) -> Result<(), EngineError> {
        if self.book().is_known(&name) {
            let (topics, _) = self.topic_counts().await?;
            let live = topics.get(&name).map_or(0, TopicCounts::live);
            if live > 0 {
                let by = format!("{live} live task(s), which have to end first");
                return Err(RegistryError::InUse { name, by }.into());
            }
        }
        let delete = DeleteTopic {
            name: name.clone(),
            by: by.to_owned(),
        };
        self.change_topic(name, delete).await.map(drop)
    }

    /// Holds all tasks of a topic: nothing of it starts after this has returned.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn pause_topic(
        &self,
        name: TopicName,
        clock: PauseClock,
        by: &str,
    ) -> Result<Arc<Topic>, EngineError> {
        self.admit_topic(&name).await?;
        let pause = PauseTopic {
            name: name.clone(),
            clock,
            by: by.to_owned(),
        };
        self.change_topic(name, pause).await
    }

    /// Lets a topic go on; after a frozen pause its tasks have the time left that they had.
    ///
    /// # Errors
    /// See [`EngineError`]. A thaw that is not finished then goes on in the background.
    pub async fn resume_topic(&self, name: TopicName, by: &str) -> Result<Arc<Topic>, EngineError> {
        let resume = ResumeTopic {
            name: name.clone(),
            by: by.to_owned(),
        };
        self.change_topic(name, resume).await
    }

    // ---------------------------------------------------------------- what follows for the shards

    /// Tells all shards the topics; has them move the tasks of this one if it is thawing, and then lets it go on.
    /// May be done again.
    async fn settle(&self, name: &TopicName) -> Result<(), EngineError> {
        let book = self.book();
        self.tell_shards(&book).await?;
        let Some(thaw) = book.get(name).thawing else {
            return Ok(());
        };
        let question = |_| ThawTopic::new(name.clone(), thaw);
        self.parts.router.tell_all(question).await?;
        let end = EndThaw {
            name: name.clone(),
            number: thaw.number,
        };
        let book = self.registry(end).await?;
        self.tell_shards(&book).await
    }

    /// Goes on with that in the background: until it is done, or the engine stops. At most once for each topic.
    pub(super) fn settle_in_background(&self, name: &TopicName) {
        if !self.parts.settling.lock().insert(name.clone()) {
            return;
        }
        // Held weakly between the tries: an engine that nobody holds any more ends.
        let (parts, name) = (Arc::downgrade(&self.parts), name.clone());
        let stopping = self.parts.stopping.clone();
        let [.., last] = SETTLE_PAUSES_MS;
        let pauses = SETTLE_PAUSES_MS.into_iter().chain(std::iter::repeat(last));
        self.parts.on_io.spawn(async move {
            for pause in pauses {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(pause)) => {}
                    () = stopping.cancelled() => return,
                }
                let Some(parts) = parts.upgrade() else {
                    return;
                };
                let engine = Self { parts };
                let edition = engine.book().edition();
                if let Err(error) = engine.settle(&name).await {
                    tracing::warn!(topic = %name, %error, "not all shards work by the topic's settings; they are told again");
                    continue;
                }
                // What changed meanwhile may not have been told; what changes from here on finds the place free.
                let mut settling = engine.parts.settling.lock();
                if engine.book().edition() == edition {
                    settling.remove(&name);
                    return;
                }
            }
        });
    }

    // ---------------------------------------------------------------- audit

    /// Writes a line of the audit.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn audit(
        &self,
        by: &str,
        action: &str,
        target: &str,
        detail: &str,
    ) -> Result<(), EngineError> {
        let line = AuditLine {
            at_ms: self.now().wall.0,
            by: by.to_owned(),
            action: action.to_owned(),
            target: target.to_owned(),
            detail: detail.to_owned(),
        };
        self.note(vec![line]).await
    }

    /// Writes a line for each of these verbs. They are done already: that it can't be written is logged, and no
    /// answer becomes an error by it.
    pub(super) async fn audit_verbs(&self, by: &str, done: &[(&str, &TaskView)]) {
        if done.is_empty() {
            return;
        }
        let at_ms = self.now().wall.0;
        let line = |(verb, view): &(&str, &TaskView)| {
            let key = view.task.key.as_ref().map_or("", TaskKey::as_str);
            AuditLine {
                at_ms,
                by: by.to_owned(),
                action: format!("task.{verb}"),
                target: view.task.id.to_string(),
                detail: format!("{} {key}", view.task.topic),
            }
        };
        if let Err(error) = self.note(done.iter().map(line).collect()).await {
            for (verb, view) in done {
                tracing::error!(%error, verb, task = %view.task.id, "audit line not written");
            }
        }
    }

    async fn note(&self, lines: Vec<AuditLine>) -> Result<(), EngineError> {
        tokio::time::timeout(REGISTRY_TIME, self.registry(Note { lines }))
            .await
            .unwrap_or_else(|_| Err(RegistryError::Down.into()))
    }
}
