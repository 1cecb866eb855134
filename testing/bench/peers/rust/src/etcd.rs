//! The lock that etcd's server has, by `etcd-client`: the server waits for its caller.

use crate::{Failure, LEASE, Library, host};
use etcd_client::{Client, LockOptions};

/// One lease for the process, kept alive.
pub(crate) struct Rpc {
    client: Client,
    lease: i64,
}

impl Rpc {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let mut client = Client::connect([host(url)], None).await?;
        let lease = lease(&mut client).await?;
        Ok(Rpc { client, lease })
    }
}

/// A lease that is kept alive as long as the process lives.
async fn lease(client: &mut Client) -> Result<i64, Failure> {
    let lease = client.lease_grant(LEASE.as_secs() as i64, None).await?.id();
    let (mut heartbeat, mut answers) = client.lease_keep_alive(lease).await?;
    tokio::spawn(async move {
        loop {
            heartbeat.keep_alive().await?;
            answers.message().await?;
            tokio::time::sleep(LEASE / 3).await;
        }
        #[expect(unreachable_code, reason = "it says what the errors are")]
        Ok::<(), etcd_client::Error>(())
    });
    Ok(lease)
}

impl Library for Rpc {
    /// The name, and a lease of its own: a lease is one holder.
    type Lock = (String, Client, i64);
    type Held = Vec<u8>;

    async fn lock(&self, name: &str) -> Result<Self::Lock, Failure> {
        let mut client = self.client.clone();
        // Names of one holder share the lease; several tasks that want one name may not.
        let shared = name.starts_with("hold") || name.starts_with("names");
        let lease = if shared { self.lease } else { lease(&mut client).await? };
        Ok((name.to_owned(), client, lease))
    }

    async fn acquire(&self, (name, client, lease): &mut Self::Lock) -> Result<Vec<u8>, Failure> {
        let options = LockOptions::new().with_lease(*lease);
        Ok(client.lock(name.as_str(), Some(options)).await?.key().to_vec())
    }

    async fn release(&self, lock: &mut Self::Lock, key: Vec<u8>) -> Result<(), Failure> {
        lock.1.unlock(key).await?;
        Ok(())
    }
}
