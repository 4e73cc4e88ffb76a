//! What operators and tenants change in the directory.
//! Promises that a secret is answered once, by the call that made it, and that what was answered is in memory.
//! Does not check who asks; doors do.

use std::sync::Arc;
use std::time::Instant;

use rand::CryptoRng;

use super::channel::{Channel, ChannelPatch, NewChannel};
use super::check::Invalid;
use super::entry::{Subject, Unreadable};
use super::key::{ApiKey, Key};
use super::secret::{ChannelSecret, TokenSecret};
use super::tenant::{NewTenant, Tenant, TenantPatch};
use super::{CHANNELS_MAX, Directory, Error, KEYS_MAX, Noun, TENANTS_MAX, When};
use crate::event::{ChannelId, KeyId, TenantId};

impl Directory {
    /// Makes a tenant and its first key, which is shown only here.
    ///
    /// Not idempotent: a call whose outcome is unknown may have made a tenant, whose key nobody knows.
    ///
    /// # Errors
    /// [`Error`]; the first key's entry is written before the tenant's, so that no tenant is ever without one.
    pub async fn create_tenant(
        &self,
        new: NewTenant,
        when: When,
        rng: &mut (impl CryptoRng + Send),
    ) -> Result<(Arc<Tenant>, ApiKey), Error> {
        let tenant = Tenant::new(TenantId::generate(when.now, rng), new, when.now)?;
        check_limit(Noun::Tenant, self.status().counts.tenants, TENANTS_MAX)?;
        let (_key, api_key) = self.write_key(tenant.id, when, rng).await?;
        let subject = Subject::Tenant(tenant.id);
        self.create_entry(subject, tenant.encode(), when.deadline).await?;
        Ok((Arc::new(tenant), api_key))
    }

    /// Changes a tenant. Suspending it takes access away from all of its keys.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn update_tenant(
        &self,
        tenant: TenantId,
        patch: TenantPatch,
        deadline: Instant,
    ) -> Result<Arc<Tenant>, Error> {
        let place = (Noun::Tenant, Subject::Tenant(tenant));
        self.revise(place, deadline, |bytes| {
            let present = Tenant::decode(tenant, bytes).map_err(unreadable(Noun::Tenant))?;
            let patched = present.patched(patch.clone())?;
            let bytes = patched.encode();
            Ok((Arc::new(patched), bytes))
        })
        .await
    }

    /// Makes another key of a tenant, which is shown only here.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn create_key(
        &self,
        tenant: TenantId,
        when: When,
        rng: &mut (impl CryptoRng + Send),
    ) -> Result<(Key, ApiKey), Error> {
        self.check_tenant(tenant)?;
        check_limit(Noun::Key, self.keys(tenant).len(), KEYS_MAX)?;
        self.write_key(tenant, when, rng).await
    }

    /// Takes a key's access away, on every node within a second.
    ///
    /// # Errors
    /// [`Error::NotFound`] when this node knows no such key of this tenant.
    pub async fn revoke_key(
        &self,
        tenant: TenantId,
        key: KeyId,
        deadline: Instant,
    ) -> Result<(), Error> {
        let hash = self.shared.memory().key_hash(tenant, key);
        let hash = hash.ok_or(Error::NotFound(Noun::Key))?;
        self.delete_entry(Subject::Key(hash), deadline).await
    }

    /// Makes a channel of a tenant, and its secret, which is shown only here. It hears of what comes after `heard_from`, the
    /// ends of the log's partitions.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn create_channel(
        &self,
        tenant: TenantId,
        (new, heard_from): (NewChannel, Vec<u64>),
        when: When,
        rng: &mut (impl CryptoRng + Send),
    ) -> Result<(Arc<Channel>, ChannelSecret), Error> {
        let settings = new.checked()?;
        self.check_tenant(tenant)?;
        check_limit(Noun::Channel, self.channels(tenant).len(), CHANNELS_MAX)?;
        let id = ChannelId::generate(when.now, rng);
        let secret = ChannelSecret::from_random(draw(rng));
        let mut channel = Channel::new(tenant, id, settings, secret.clone(), when.now);
        channel.heard_from = heard_from;
        let subject = Subject::Channel(tenant, id);
        self.create_entry(subject, channel.encode(), when.deadline).await?;
        Ok((Arc::new(channel), secret))
    }

    /// Changes a channel; pauses and resumes it too.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn update_channel(
        &self,
        tenant: TenantId,
        channel: ChannelId,
        patch: ChannelPatch,
        when: When,
    ) -> Result<Arc<Channel>, Error> {
        self.revise_channel((tenant, channel), when, |present| {
            present.patched(patch.clone(), when.now)
        })
        .await
    }

    /// Gives a channel another secret, which is shown only here; the present one stays known as the previous one.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn rotate_secret(
        &self,
        tenant: TenantId,
        channel: ChannelId,
        when: When,
        rng: &mut (impl CryptoRng + Send),
    ) -> Result<(Arc<Channel>, ChannelSecret), Error> {
        let secret = ChannelSecret::from_random(draw(rng));
        let rotated = self.revise_channel((tenant, channel), when, |present| {
            Ok(present.rotated(secret.clone(), when.now))
        });
        Ok((rotated.await?, secret))
    }

    /// Deletes a channel.
    ///
    /// # Errors
    /// [`Error::NotFound`] when this node knows no such channel of this tenant.
    pub async fn delete_channel(
        &self,
        tenant: TenantId,
        channel: ChannelId,
        deadline: Instant,
    ) -> Result<(), Error> {
        if self.channel(tenant, channel).is_none() {
            return Err(Error::NotFound(Noun::Channel));
        }
        let subject = Subject::Channel(tenant, channel);
        self.delete_entry(subject, deadline).await
    }

    /// The secret on which all nodes agree to sign end users' tokens: the first one that was ever written.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn agree_token_secret(
        &self,
        when: When,
        rng: &mut (impl CryptoRng + Send),
    ) -> Result<Arc<TokenSecret>, Error> {
        if let Some(agreed) = self.token_secret() {
            return Ok(agreed);
        }
        let own = TokenSecret::from_random(draw(rng));
        let subject = Subject::TokenSecret;
        let created = self.create_entry(subject, own.encode(when.now), when.deadline);
        match created.await {
            Ok(()) => Ok(Arc::new(own)),
            Err(Error::Conflict) => {
                let found = self.read_entry(subject, when.deadline).await?;
                let found = found.ok_or(Error::Conflict)?;
                let agreed = TokenSecret::decode(&found.value);
                Ok(Arc::new(agreed.map_err(unreadable(Noun::TokenSecret))?))
            }
            Err(failure) => Err(failure),
        }
    }

    async fn write_key(
        &self,
        tenant: TenantId,
        when: When,
        rng: &mut (impl CryptoRng + Send),
    ) -> Result<(Key, ApiKey), Error> {
        let api_key = ApiKey::from_random(draw(rng));
        let key = Key::new(tenant, KeyId::generate(when.now, rng), when.now);
        let subject = Subject::Key(api_key.hash());
        self.create_entry(subject, key.encode(), when.deadline).await?;
        Ok((key, api_key))
    }

    async fn revise_channel(
        &self,
        (tenant, channel): (TenantId, ChannelId),
        when: When,
        change: impl Fn(Channel) -> Result<Channel, Invalid> + Send,
    ) -> Result<Arc<Channel>, Error> {
        let place = (Noun::Channel, Subject::Channel(tenant, channel));
        self.revise(place, when.deadline, |bytes| {
            let present = Channel::decode(tenant, channel, bytes);
            let changed = change(present.map_err(unreadable(Noun::Channel))?)?;
            let bytes = changed.encode();
            Ok((Arc::new(changed), bytes))
        })
        .await
    }

    fn check_tenant(&self, tenant: TenantId) -> Result<(), Error> {
        let known = self.shared.memory().tenant(tenant).is_some();
        known.then_some(()).ok_or(Error::NotFound(Noun::Tenant))
    }
}

fn draw(rng: &mut impl CryptoRng) -> [u8; 32] {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn check_limit(noun: Noun, present: usize, max: usize) -> Result<(), Error> {
    if present < max { Ok(()) } else { Err(Error::Limit { noun, max }) }
}

fn unreadable(noun: Noun) -> impl Fn(Unreadable) -> Error {
    move |cause| Error::Unreadable(noun, cause)
}
