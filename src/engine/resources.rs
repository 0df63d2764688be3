//! Resources that are kept by name under growing versions: calendars, schedules. Read from the book in force, changed
//! through the registry; a change is on the disk, and in force for whatever reads the book next, when it is answered.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::engine::registry::kind::Resource;
use crate::engine::registry::resources::{DeleteResource, ListVersions, Put, PutResource};
use crate::engine::registry::{RegistryError, Version};
use crate::rule::book::{Kept, RuleBook};
use crate::task::spec::ResourceName;

impl Duetime {
    /// Calendars, schedules and the like as they are now.
    pub fn rules(&self) -> Arc<RuleBook> {
        self.parts.rules.read().clone()
    }

    /// A resource as it is now.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn resource<R: Resource>(&self, name: &ResourceName) -> Result<Arc<Kept<R>>, EngineError> {
        let found = R::all(&self.rules()).get(name).cloned();
        found.ok_or_else(|| {
            let (kind, name) = (R::KIND, name.clone());
            RegistryError::Unknown { kind, name }.into()
        })
    }

    /// Puts a resource in the place of what has its name. `body` is what is kept and shown of it.
    ///
    /// # Errors
    /// When it needs another that is not there, when there are too many, and see [`EngineError`].
    pub async fn put_resource<R: Resource>(
        &self,
        name: ResourceName,
        body: String,
        meaning: R,
        by: &str,
    ) -> Result<Put<R>, EngineError> {
        let by = by.to_owned();
        let put = PutResource {
            name,
            body,
            meaning,
            by,
        };
        let put = self.ask_registry(put).await;
        // A schedule begins at once.
        self.parts.schedules.ring();
        put
    }

    /// Takes a resource away.
    ///
    /// # Errors
    /// When there is none of that name, or another needs it; see [`EngineError`].
    pub async fn delete_resource<R: Resource>(
        &self,
        name: ResourceName,
        by: &str,
    ) -> Result<(), EngineError> {
        let (by, kind) = (by.to_owned(), PhantomData::<R>);
        self.ask_registry(DeleteResource { name, by, kind }).await
    }

    /// The versions that are kept of a resource, the latest first; of a deleted one its last.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn versions<R: Resource>(
        &self,
        name: ResourceName,
    ) -> Result<Vec<Version>, EngineError> {
        let kind = R::KIND;
        self.ask_registry(ListVersions { kind, name }).await
    }
}
