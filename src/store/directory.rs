//! The tables `tenants` and `channels`: what the directory holds, for people and reports.
//! Promises that a late writer does not undo a newer revision.
//! Does not serve requests; they read the directory in memory.

use sqlx::PgConnection;

use super::{Error, while_doing};
use crate::event::{ChannelId, Json, TenantId};

/// A tenant as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRow {
    /// Its id.
    pub id: TenantId,
    /// Its name.
    pub name: String,
    /// Its tier, in the word that clients see.
    pub tier: String,
    /// Its status, in the word that clients see.
    pub status: String,
    /// Everything else, without secrets.
    pub config: Json,
    /// The directory's revision of it.
    pub revision: u64,
}

/// A channel as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelRow {
    /// Its id.
    pub id: ChannelId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name.
    pub name: String,
    /// Its status, in the word that clients see, or `deleted`.
    pub status: String,
    /// Everything else, without secrets.
    pub config: Json,
    /// The directory's revision of it.
    pub revision: u64,
}

/// Writes a tenant. Idempotent by id and revision; an older revision changes nothing.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn upsert_tenant(conn: &mut PgConnection, row: &TenantRow) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO tenants (id, name, tier, status, config, revision)
         VALUES ($1, $2, $3, $4, $5::text::jsonb, $6)
         ON CONFLICT (id) DO UPDATE SET
             name = EXCLUDED.name, tier = EXCLUDED.tier, status = EXCLUDED.status,
             config = EXCLUDED.config, revision = EXCLUDED.revision
         WHERE tenants.revision < EXCLUDED.revision",
        row.id.uuid(),
        row.name,
        row.tier,
        row.status,
        row.config.as_str(),
        write_revision(row.revision)?
    )
    .execute(conn)
    .await
    .map_err(while_doing("write a tenant"))?;
    Ok(())
}

/// Writes a channel. Idempotent by id and revision; an older revision changes nothing.
///
/// # Errors
/// [`Error::Statement`] or [`Error::Unstorable`].
pub async fn upsert_channel(conn: &mut PgConnection, row: &ChannelRow) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO channels (id, tenant_id, name, status, config, revision)
         VALUES ($1, $2, $3, $4, $5::text::jsonb, $6)
         ON CONFLICT (id) DO UPDATE SET
             name = EXCLUDED.name, status = EXCLUDED.status,
             config = EXCLUDED.config, revision = EXCLUDED.revision
         WHERE channels.revision < EXCLUDED.revision",
        row.id.uuid(),
        row.tenant.uuid(),
        row.name,
        row.status,
        row.config.as_str(),
        write_revision(row.revision)?
    )
    .execute(conn)
    .await
    .map_err(while_doing("write a channel"))?;
    Ok(())
}

fn write_revision(revision: u64) -> Result<i64, Error> {
    i64::try_from(revision).map_err(|_beyond| Error::Unstorable { column: "revision" })
}
