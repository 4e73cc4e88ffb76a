//! Writes tenants and channels to Postgres, for those who ask it about them with SQL.
//! Promises that a row never goes back to an older revision of the directory, whichever node writes it.
//! Does not serve anybody in this program: the directory in memory does. Secrets are not written.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::{Error, LIVE};
use crate::clock::Clock;
use crate::directory::{Channel, Directory, Tenant};
use crate::event::{ChannelId, Json, TenantId};
use crate::lifecycle::Stop;
use crate::store::directory::{ChannelRow, TenantRow, upsert_channel, upsert_tenant};
use crate::store::{self, Background};

/// Rows that are written in one transaction.
const BATCH_ROWS: usize = 200;

/// Deadline of one batch.
const BATCH_MAX: Duration = Duration::from_secs(30);

/// The status of a channel that is gone.
const DELETED: &str = "deleted";

/// Keeps the tables of tenants and channels level with the directory.
#[derive(Debug)]
pub struct DirectoryProjector {
    directory: Directory,
    database: Background,
    clock: Clock,
    tenants: BTreeMap<TenantId, TenantRow>,
    channels: BTreeMap<ChannelId, ChannelRow>,
}

impl DirectoryProjector {
    /// A projector that has written nothing yet.
    pub fn new(directory: Directory, database: Background, clock: Clock) -> Self {
        let (tenants, channels) = (BTreeMap::new(), BTreeMap::new());
        Self { directory, database, clock, tenants, channels }
    }

    /// Writes what has changed, at every change, until it is stopped.
    ///
    /// # Errors
    /// [`Error::Directory`] when Postgres fails; the next run writes everything again.
    pub async fn run(mut self, stop: Stop) -> Result<(), Error> {
        let mut changes = self.directory.changes();
        loop {
            self.step().await?;
            tokio::select! {
                () = stop.requested() => return Ok(()),
                changed = changes.changed() => if changed.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// Writes what has changed since the last step, and says how many rows that were.
    ///
    /// Idempotency key: id and revision.
    ///
    /// # Errors
    /// [`Error::Directory`]; rows up to there are written.
    pub async fn step(&mut self) -> Result<usize, Error> {
        // The revision is read first: what is read after it is at least as new.
        let revision = self.directory.status().revision;
        let (mut tenants, mut channels) = (BTreeMap::new(), BTreeMap::new());
        for tenant in self.directory.tenants() {
            for channel in self.directory.channels(tenant.id) {
                channels.insert(channel.id, channel_row(&channel, revision));
            }
            tenants.insert(tenant.id, tenant_row(&tenant, revision));
        }
        for (id, gone) in &self.channels {
            let deleted = || ChannelRow { status: DELETED.to_owned(), revision, ..gone.clone() };
            channels.entry(*id).or_insert_with(deleted);
        }
        let is_new = |row: &&TenantRow| !self.tenants.get(&row.id).is_some_and(|k| same(k, row));
        let new_tenants: Vec<_> = tenants.values().filter(is_new).cloned().collect();
        let is_new = |row: &&ChannelRow| {
            let kept = self.channels.get(&row.id);
            !kept.is_some_and(|kept| ChannelRow { revision, ..kept.clone() } == **row)
        };
        let new_channels: Vec<_> = channels.values().filter(is_new).cloned().collect();
        for batch in new_tenants.chunks(BATCH_ROWS) {
            self.write(batch, &[]).await?;
        }
        for batch in new_channels.chunks(BATCH_ROWS) {
            self.write(&[], batch).await?;
        }
        channels.retain(|_, row| row.status != DELETED);
        (self.tenants, self.channels) = (tenants, channels);
        Ok(new_tenants.len() + new_channels.len())
    }

    async fn write(&self, tenants: &[TenantRow], channels: &[ChannelRow]) -> Result<(), Error> {
        let deadline = self.clock.now() + BATCH_MAX;
        let writing = async {
            let mut lease = self.database.acquire(LIVE, deadline).await?;
            lease
                .transaction(deadline, async |conn| {
                    for row in tenants {
                        upsert_tenant(conn, row).await?;
                    }
                    for row in channels {
                        upsert_channel(conn, row).await?;
                    }
                    Ok(())
                })
                .await
        };
        writing.await.map_err(|source: store::Error| Error::Directory(source))
    }
}

/// Whether two rows of a tenant differ in nothing but the revision at which they were read.
fn same(kept: &TenantRow, row: &TenantRow) -> bool {
    TenantRow { revision: row.revision, ..kept.clone() } == *row
}

fn tenant_row(tenant: &Tenant, revision: u64) -> TenantRow {
    let config =
        json!({ "createdAt": tenant.created_at.to_string(), "sendQuota": tenant.send_quota });
    TenantRow {
        id: tenant.id,
        name: tenant.name.clone(),
        tier: tenant.tier.as_str().to_owned(),
        status: tenant.status.as_str().to_owned(),
        config: Json::from_checked(config.to_string()),
        revision,
    }
}

fn channel_row(channel: &Channel, revision: u64) -> ChannelRow {
    let config = json!({
        "settings": channel.settings,
        "createdAt": channel.created_at.to_string(),
        "updatedAt": channel.updated_at.to_string(),
    });
    ChannelRow {
        id: channel.id,
        tenant: channel.tenant,
        name: channel.settings.name.clone(),
        status: channel.status.as_str().to_owned(),
        config: Json::from_checked(config.to_string()),
        revision,
    }
}
