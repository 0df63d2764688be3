//! Resources of all kinds: put, delete, older versions. What the desk decides, and the messages for it.

use std::marker::PhantomData;
use std::sync::Arc;

use actix::{Context, Handler, Message};

use crate::engine::registry::desk::{Desk, line};
use crate::engine::registry::kind::{Kind, Resource, is_there, users};
use crate::engine::registry::{RegistryActor, RegistryError, Version};
use crate::limits;
use crate::rule::book::{Kept, RuleBook};
use crate::task::spec::ResourceName;

/// Puts a resource in the place of what has its name.
#[derive(Clone, Debug)]
pub struct PutResource<R> {
    /// Its name.
    pub name: ResourceName,
    /// The body as it came, at most [`limits::RESOURCE_BODY_BYTES_MAX`].
    pub body: String,
    /// What the body says.
    pub meaning: R,
    /// Who asks.
    pub by: String,
}

/// What was put.
#[derive(Clone, Debug)]
pub struct Put<R> {
    /// As it stands now.
    pub kept: Arc<Kept<R>>,
    /// There was none of that name.
    pub is_new: bool,
}

/// Takes a resource away. Refused while another one needs it.
#[derive(Clone, Debug)]
pub struct DeleteResource<R> {
    /// Its name.
    pub name: ResourceName,
    /// Who asks.
    pub by: String,
    /// Its kind.
    pub kind: PhantomData<R>,
}

/// The versions that are kept of a resource, the latest first; of a deleted one its last.
#[derive(Clone, Debug)]
pub struct ListVersions {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: ResourceName,
}

/// Stores positions: what is remembered of resources beside what was said of them. `None` forgets one.
#[derive(Clone, Debug)]
pub struct StorePositions {
    /// Which, and what.
    pub positions: Vec<(ResourceName, Option<String>)>,
}

impl<R: Resource> Message for PutResource<R> {
    type Result = Result<Put<R>, RegistryError>;
}

impl<R: Resource> Message for DeleteResource<R> {
    type Result = Result<(), RegistryError>;
}

impl Message for ListVersions {
    type Result = Result<Vec<Version>, RegistryError>;
}

impl Message for StorePositions {
    type Result = Result<(), RegistryError>;
}

impl<R: Resource> Handler<PutResource<R>> for RegistryActor {
    type Result = Result<Put<R>, RegistryError>;

    fn handle(&mut self, put: PutResource<R>, ctx: &mut Context<Self>) -> Self::Result {
        self.work(ctx, |desk| desk.put_resource(put))
    }
}

impl<R: Resource> Handler<DeleteResource<R>> for RegistryActor {
    type Result = Result<(), RegistryError>;

    fn handle(&mut self, delete: DeleteResource<R>, ctx: &mut Context<Self>) -> Self::Result {
        self.work(ctx, |desk| desk.delete_resource(delete))
    }
}

impl Handler<ListVersions> for RegistryActor {
    type Result = Result<Vec<Version>, RegistryError>;

    fn handle(&mut self, list: ListVersions, ctx: &mut Context<Self>) -> Self::Result {
        self.work(ctx, |desk| {
            Ok(desk.files.versions(list.kind, &list.name)?)
        })
    }
}

impl Handler<StorePositions> for RegistryActor {
    type Result = Result<(), RegistryError>;

    fn handle(&mut self, store: StorePositions, ctx: &mut Context<Self>) -> Self::Result {
        self.work(ctx, |desk| {
            Ok(desk.files.store_positions(desk.owner, &store.positions)?)
        })
    }
}

impl Desk {
    pub(super) fn put_resource<R: Resource>(
        &self,
        put: PutResource<R>,
    ) -> Result<Put<R>, RegistryError> {
        let bytes = put.body.len();
        if bytes > limits::RESOURCE_BODY_BYTES_MAX {
            return Err(RegistryError::BodyTooLarge { bytes });
        }
        let book = self.rules.read().clone();
        let (kind, name) = (R::KIND, put.name);
        let is_new = !R::all(&book).contains_key(&name);
        if is_new && R::all(&book).len() >= limits::RESOURCES_MAX {
            return Err(RegistryError::TooMany(kind));
        }
        if let Some((kind, name)) = put
            .meaning
            .needs()
            .into_iter()
            .find(|need| !is_there(&book, need))
        {
            return Err(RegistryError::NeedsUnknown { kind, name });
        }
        let now = self.clock.now();
        let kept = Arc::new(Kept {
            version: self.files.last_version(kind, &name)? + 1,
            meaning: put.meaning,
            body: put.body,
            changed_at: now.wall,
        });
        let action = format!("{kind}.put");
        let line = line(now, put.by, &action, name.as_str(), &kept.body);
        self.files.put_kept(self.owner, kind, &name, &kept, &line)?;
        let mut next = RuleBook::clone(&book);
        R::all_mut(&mut next).insert(name, Arc::clone(&kept));
        self.turn_rules_to(next)?;
        Ok(Put { kept, is_new })
    }

    pub(super) fn delete_resource<R: Resource>(
        &self,
        delete: DeleteResource<R>,
    ) -> Result<(), RegistryError> {
        let book = self.rules.read().clone();
        let (kind, name) = (R::KIND, delete.name);
        if !R::all(&book).contains_key(&name) {
            return Err(RegistryError::Unknown { kind, name });
        }
        let need = (kind, name);
        let mut users = users(&book, &need);
        let (kind, name) = need;
        if kind == Kind::Rule {
            let topics = self.present();
            let by = topics
                .iter()
                .filter(|(_, topic)| topic.settings.rule.as_ref() == Some(&name));
            users.extend(by.map(|(topic, _)| format!("topic {topic}")));
        }
        if !users.is_empty() {
            let by = users.join(", ");
            return Err(RegistryError::ResourceInUse { kind, name, by });
        }
        let action = format!("{kind}.delete");
        let line = line(self.clock.now(), delete.by, &action, name.as_str(), "");
        self.files.remove_kept(self.owner, kind, &name, &line)?;
        let mut next = RuleBook::clone(&book);
        R::all_mut(&mut next).remove(&name);
        self.turn_rules_to(next)
    }

    fn turn_rules_to(&self, next: RuleBook) -> Result<(), RegistryError> {
        let mut rules = self.rules.write();
        // What a later owner has read must not be put back.
        self.files.check(self.owner)?;
        *rules = Arc::new(next);
        Ok(())
    }
}
