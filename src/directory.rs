//! What a node knows of tenants, their keys and channels: all of it in memory, kept level with a bucket of the log.
//! Promises answers without waiting, changes of other nodes within a second, and to a writer that it reads its write.
//! Does not decide what a tenant may do beyond being let in, and needs no Postgres.

mod channel;
mod check;
mod commit;
mod entry;
mod follower;
mod key;
mod memory;
mod secret;
mod tenant;
mod writes;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

use tokio::sync::watch;

use memory::{Effect, Memory};

use crate::clock::Timestamp;
use crate::event::{ChannelId, TenantId};
use crate::log::bucket::{self, Bucket};

pub use channel::{
    Channel, ChannelPatch, ChannelStatus, NewChannel, Per, RateLimit, Retry, Scope, Settings,
};
pub use check::{Edit, Fault, Invalid};
pub use entry::Unreadable;
pub use follower::{Follower, Session};
pub use key::{ApiKey, Key, KeyHash};
pub use memory::{Access, Counts};
pub use secret::{ChannelSecret, TokenSecret};
pub use tenant::lane::Lane;
pub use tenant::{NewTenant, SendQuota, Tenant, TenantPatch, TenantStatus, Tier};

/// Most channels of one tenant. Checked against what this node knows, so nodes that create at the same moment can
/// exceed it by as many as they are.
pub const CHANNELS_MAX: usize = 1_000;

/// Most API keys of one tenant; checked like [`CHANNELS_MAX`].
pub const KEYS_MAX: usize = 100;

/// Most tenants, so that the directory fits in memory; checked like [`CHANNELS_MAX`].
pub const TENANTS_MAX: usize = 100_000;

/// What the directory did not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was sent is not acceptable; nothing was stored.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such tenant, key or channel.
    #[error("there is no such {0}")]
    NotFound(Noun),
    /// Others changed the same thing again and again while it was to be changed; nothing was stored.
    #[error("it was changed by others at the same time")]
    Conflict,
    /// There are as many as there may be; nothing was stored.
    #[error("there are {max} {noun}s already, the most that there may be")]
    Limit {
        /// Of what.
        noun: Noun,
        /// How many there may be.
        max: usize,
    },
    /// The entry that was to be changed was written by a later version or is damaged; nothing was stored.
    #[error("the {0}'s entry cannot be read")]
    Unreadable(Noun, #[source] Unreadable),
    /// The bucket did not do it in time. A write may have been stored.
    #[error("the directory's bucket is not available")]
    Unavailable(#[source] bucket::Error),
    /// The write was stored, but did not come back to this node before the deadline.
    #[error("the write was stored, but this node has not heard of it in time")]
    Unseen,
}

impl Error {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(cause) => cause.is_retryable(),
            Self::Conflict | Self::Unseen => true,
            Self::Invalid(_) | Self::NotFound(_) | Self::Limit { .. } | Self::Unreadable(..) => {
                false
            }
        }
    }
}

/// What an [`Error`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the thing that it names")]
pub enum Noun {
    Tenant,
    Key,
    Channel,
    TokenSecret,
}

impl std::fmt::Display for Noun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tenant => "tenant",
            Self::Key => "key",
            Self::Channel => "channel",
            Self::TokenSecret => "token secret",
        })
    }
}

/// When a write happens and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// What is stored as the time of the write.
    pub now: Timestamp,
    /// When the caller stops waiting.
    pub deadline: Instant,
}

/// How the directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether the bucket was read once; before that nothing can be answered.
    pub ready: bool,
    /// Whether changes are heard of as they happen.
    pub level: bool,
    /// The last revision of the bucket that is in memory.
    pub revision: u64,
    /// How much is in memory.
    pub counts: Counts,
}

/// What a node knows of tenants, keys and channels. Cheap to clone; all clones know the same.
#[derive(Clone, Debug)]
pub struct Directory {
    shared: Arc<Shared>,
    bucket: Bucket,
}

/// What the directory and its follower share.
#[derive(Debug)]
struct Shared {
    /// Held for one look-up or one entry at a time, never across an await.
    memory: RwLock<Memory>,
    sight: watch::Sender<Sight>,
    changes: watch::Sender<u64>,
    revoked: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    ready: bool,
    level: bool,
    revision: u64,
}

impl Directory {
    /// A directory that knows nothing until its follower runs.
    pub fn open(bucket: Bucket) -> (Self, Follower) {
        let shared = Arc::new(Shared {
            memory: RwLock::new(Memory::default()),
            sight: watch::Sender::new(Sight::default()),
            changes: watch::Sender::new(0),
            revoked: watch::Sender::new(0),
        });
        let follower = Follower::new(bucket.clone(), Arc::clone(&shared));
        (Self { shared, bucket }, follower)
    }

    /// What an API key gives access to: `None` when it is unknown, revoked or its tenant suspended.
    pub fn authenticate(&self, api_key: &str) -> Option<Arc<Access>> {
        let hash = KeyHash::of_presented(api_key)?;
        self.shared.memory().access(&hash).map(Arc::clone)
    }

    /// A tenant, also when it is suspended.
    pub fn tenant(&self, tenant: TenantId) -> Option<Arc<Tenant>> {
        self.shared.memory().tenant(tenant).map(Arc::clone)
    }

    /// All tenants, the oldest first.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.shared.memory().tenants()
    }

    /// The keys of a tenant, the oldest first.
    pub fn keys(&self, tenant: TenantId) -> Vec<Key> {
        self.shared.memory().keys(tenant)
    }

    /// A channel of a tenant.
    pub fn channel(&self, tenant: TenantId, channel: ChannelId) -> Option<Arc<Channel>> {
        let memory = self.shared.memory();
        memory.channel(tenant, channel).map(Arc::clone)
    }

    /// The channels of a tenant, the oldest first.
    pub fn channels(&self, tenant: TenantId) -> Vec<Arc<Channel>> {
        self.shared.memory().channels(tenant)
    }

    /// A channel of whichever tenant.
    pub fn channel_of_anybody(&self, channel: ChannelId) -> Option<Arc<Channel>> {
        self.shared.memory().channel_of_anybody(channel).map(Arc::clone)
    }

    /// The channels that one node alone delivers to, of all tenants.
    pub fn pinned_channels(&self) -> Vec<Arc<Channel>> {
        self.shared.memory().pinned_channels()
    }

    /// The secret that signs end users' tokens, once the nodes have agreed on one.
    pub fn token_secret(&self) -> Option<Arc<TokenSecret>> {
        self.shared.memory().token_secret().map(Arc::clone)
    }

    /// Rises whenever something in memory changed. What changed is to be read again.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Rises whenever access was taken away. Who was let in before is to be looked up again.
    pub fn revoked(&self) -> watch::Receiver<u64> {
        self.shared.revoked.subscribe()
    }

    /// Waits until the bucket was read once.
    ///
    /// Cancel safe: it holds no state of its own.
    pub async fn ready(&self) {
        let mut sight = self.shared.sight.subscribe();
        // The sender lives as long as this directory does.
        drop(sight.wait_for(|sight| sight.ready).await);
    }

    /// How the directory is.
    pub fn status(&self) -> Status {
        let Sight { ready, level, revision } = *self.shared.sight.borrow();
        Status { ready, level, revision, counts: self.shared.memory().counts() }
    }
}

impl Shared {
    fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the memory by one entry and lets everybody know.
    fn change<T>(&self, revision: u64, change: impl FnOnce(&mut Memory) -> (Effect, T)) -> T {
        let (effect, value) = {
            let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
            change(&mut memory)
        };
        self.sight.send_modify(|sight| sight.revision = revision);
        match effect {
            Effect::Ignored => {}
            Effect::Changed => self.changes.send_modify(|count| *count += 1),
            Effect::Revoked => {
                self.changes.send_modify(|count| *count += 1);
                self.revoked.send_modify(|count| *count += 1);
            }
        }
        value
    }

    /// Puts a memory that was read from the beginning in the place of the present one.
    fn replace(&self, memory: Memory, revision: u64) {
        let before = {
            let mut present = self.memory.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *present, memory)
        };
        // Freed outside of the lock: it may be large.
        drop(before);
        self.sight.send_modify(|sight| {
            sight.ready = true;
            sight.revision = revision;
        });
        self.changes.send_modify(|count| *count += 1);
        self.revoked.send_modify(|count| *count += 1);
    }

    fn set_level(&self, level: bool) {
        self.sight.send_modify(|sight| sight.level = level);
    }
}
