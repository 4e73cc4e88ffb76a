//! Pure: the fold of the directory's bucket, in the shape in which it is asked.
//! Promises that entries may come in any order of kinds, and that what cannot be read counts as absent.
//! Does not know revisions; whoever applies entries does so in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use super::channel::Channel;
use super::entry::{Subject, Unreadable};
use super::key::{Key, KeyHash};
use super::secret::TokenSecret;
use super::tenant::{Tenant, TenantStatus};
use crate::event::{ChannelId, KeyId, TenantId};

/// What a valid API key gives access to.
#[derive(Debug, PartialEq, Eq)]
pub struct Access {
    /// The tenant, which is active.
    pub tenant: Arc<Tenant>,
    /// Which of its keys it was.
    pub key: KeyId,
}

/// What an entry did to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It is of a kind that this version does not know.
    Ignored,
    /// It changed something.
    Changed,
    /// It took access away: a key was deleted, or a tenant suspended.
    Revoked,
}

#[derive(Debug)]
struct HeldKey {
    key: Key,
    /// Ready to be handed out; `None` while the tenant is unknown or suspended.
    access: Option<Arc<Access>>,
}

/// How many of what are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tenants, suspended ones included.
    pub tenants: usize,
    /// API keys.
    pub keys: usize,
    /// Channels.
    pub channels: usize,
    /// Entries that this version cannot read.
    pub unreadable: usize,
}

/// Everything that the bucket says.
#[derive(Debug, Default)]
pub(super) struct Memory {
    tenants: BTreeMap<TenantId, Arc<Tenant>>,
    keys: HashMap<KeyHash, HeldKey>,
    keys_of: BTreeMap<(TenantId, KeyId), KeyHash>,
    channels: BTreeMap<(TenantId, ChannelId), Arc<Channel>>,
    /// Whose each channel is.
    owners: HashMap<ChannelId, TenantId>,
    token_secret: Option<Arc<TokenSecret>>,
    unreadable: BTreeSet<String>,
}

impl Memory {
    pub(super) fn access(&self, hash: &KeyHash) -> Option<&Arc<Access>> {
        self.keys.get(hash)?.access.as_ref()
    }

    pub(super) fn tenant(&self, tenant: TenantId) -> Option<&Arc<Tenant>> {
        self.tenants.get(&tenant)
    }

    pub(super) fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.values().map(Arc::clone).collect()
    }

    pub(super) fn key_hash(&self, tenant: TenantId, key: KeyId) -> Option<KeyHash> {
        self.keys_of.get(&(tenant, key)).copied()
    }

    pub(super) fn keys(&self, tenant: TenantId) -> Vec<Key> {
        let hashes = self.hashes(tenant).into_iter();
        let held = hashes.filter_map(|hash| self.keys.get(&hash));
        held.map(|held| held.key.clone()).collect()
    }

    pub(super) fn channel(&self, tenant: TenantId, channel: ChannelId) -> Option<&Arc<Channel>> {
        self.channels.get(&(tenant, channel))
    }

    pub(super) fn channel_of_anybody(&self, channel: ChannelId) -> Option<&Arc<Channel>> {
        self.channel(*self.owners.get(&channel)?, channel)
    }

    pub(super) fn channels(&self, tenant: TenantId) -> Vec<Arc<Channel>> {
        let first = (tenant, ChannelId::from_uuid(Uuid::nil()));
        let last = (tenant, ChannelId::from_uuid(Uuid::max()));
        let own = self.channels.range(first..=last);
        own.map(|(_id, channel)| Arc::clone(channel)).collect()
    }

    pub(super) fn pinned_channels(&self) -> Vec<Arc<Channel>> {
        let pinned = self.channels.values().filter(|channel| channel.is_pinned());
        pinned.map(Arc::clone).collect()
    }

    pub(super) fn token_secret(&self) -> Option<&Arc<TokenSecret>> {
        self.token_secret.as_ref()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            tenants: self.tenants.len(),
            keys: self.keys.len(),
            channels: self.channels.len(),
            unreadable: self.unreadable.len(),
        }
    }

    /// Takes one entry in; `None` is a deletion.
    ///
    /// # Errors
    /// Why the value cannot be read. Its subject is absent since: nothing is answered from what was there before.
    pub(super) fn apply(&mut self, key: &str, value: Option<&[u8]>) -> Result<Effect, Unreadable> {
        let Some(subject) = Subject::parse(key) else {
            return Ok(Effect::Ignored);
        };
        let outcome = match subject {
            Subject::Tenant(id) => self.apply_tenant(id, value),
            Subject::Key(hash) => self.apply_key(hash, value),
            Subject::Channel(tenant, id) => self.apply_channel(tenant, id, value),
            Subject::TokenSecret => self.apply_token_secret(value),
        };
        if outcome.is_err() {
            self.unreadable.insert(key.to_owned());
        } else {
            self.unreadable.remove(key);
        }
        outcome
    }

    fn apply_tenant(&mut self, id: TenantId, value: Option<&[u8]>) -> Result<Effect, Unreadable> {
        let read = value.map(|bytes| Tenant::decode(id, bytes)).transpose();
        let tenant = read.as_ref().ok().and_then(Option::as_ref);
        let tenant = tenant.map(|tenant| Arc::new(tenant.clone()));
        let before = match &tenant {
            Some(tenant) => self.tenants.insert(id, Arc::clone(tenant)),
            None => self.tenants.remove(&id),
        };
        for hash in self.hashes(id) {
            if let Some(held) = self.keys.get_mut(&hash) {
                held.access = grant(tenant.as_ref(), held.key.id);
            }
        }
        let is_open = |tenant: &Arc<Tenant>| tenant.status == TenantStatus::Active;
        let closed = before.as_ref().is_some_and(is_open) && !tenant.as_ref().is_some_and(is_open);
        read.map(|_tenant| revoked_if(closed))
    }

    fn apply_key(&mut self, hash: KeyHash, value: Option<&[u8]>) -> Result<Effect, Unreadable> {
        let before = self.keys.remove(&hash);
        if let Some(held) = &before {
            self.keys_of.remove(&(held.key.tenant, held.key.id));
        }
        let Some(bytes) = value else {
            return Ok(revoked_if(before.is_some()));
        };
        let key = Key::decode(bytes)?;
        self.keys_of.insert((key.tenant, key.id), hash);
        let access = grant(self.tenants.get(&key.tenant), key.id);
        self.keys.insert(hash, HeldKey { key, access });
        Ok(Effect::Changed)
    }

    fn apply_channel(
        &mut self,
        tenant: TenantId,
        id: ChannelId,
        value: Option<&[u8]>,
    ) -> Result<Effect, Unreadable> {
        self.channels.remove(&(tenant, id));
        self.owners.remove(&id);
        if let Some(bytes) = value {
            let channel = Channel::decode(tenant, id, bytes)?;
            self.channels.insert((tenant, id), Arc::new(channel));
            self.owners.insert(id, tenant);
        }
        Ok(Effect::Changed)
    }

    fn apply_token_secret(&mut self, value: Option<&[u8]>) -> Result<Effect, Unreadable> {
        self.token_secret = None;
        if let Some(bytes) = value {
            self.token_secret = Some(Arc::new(TokenSecret::decode(bytes)?));
        }
        Ok(Effect::Changed)
    }

    fn hashes(&self, tenant: TenantId) -> Vec<KeyHash> {
        let first = (tenant, KeyId::from_uuid(Uuid::nil()));
        let last = (tenant, KeyId::from_uuid(Uuid::max()));
        let own = self.keys_of.range(first..=last);
        own.map(|(_id, hash)| *hash).collect()
    }
}

/// What a key of this tenant gives access to.
fn grant(tenant: Option<&Arc<Tenant>>, key: KeyId) -> Option<Arc<Access>> {
    let tenant = tenant.filter(|tenant| tenant.status == TenantStatus::Active)?;
    Some(Arc::new(Access { tenant: Arc::clone(tenant), key }))
}

fn revoked_if(taken: bool) -> Effect {
    if taken { Effect::Revoked } else { Effect::Changed }
}

#[cfg(test)]
mod tests;
