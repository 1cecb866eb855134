//! The lock recipe of `zookeeper-client`. What is dropped is deleted in the background, so that a
//! release is not waited for.

use crate::{Failure, Library, host};
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

pub(crate) struct Recipe(Client);

impl Recipe {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        Ok(Recipe(Client::connect(host(url)).await?))
    }
}

impl Library for Recipe {
    type Lock = String;
    type Held = OwnedLockClient;

    async fn lock(&self, name: &str) -> Result<String, Failure> {
        Ok(format!("/{name}"))
    }

    async fn acquire(&self, folder: &mut String) -> Result<OwnedLockClient, Failure> {
        let prefix = LockPrefix::new_curator(folder, "lock-")?;
        let parents = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
        Ok(self.0.lock(prefix, b"", options).await?.into_owned())
    }

    async fn release(&self, _: &mut String, held: OwnedLockClient) -> Result<(), Failure> {
        drop(held);
        Ok(())
    }
}
