//! Pure: a tenant, what may be said of it and how it is kept.
//! Promises that a tenant that was checked can be stored and shown anywhere.
//! Does not count what tenants do; a quota is only stated here.

pub(super) mod lane;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::check::{Edit, Faults, Invalid, check_name, check_range};
use super::entry::{self, Unreadable};
use crate::admission::{Class, Origin, Source};
use crate::clock::Timestamp;
use crate::event::TenantId;

/// The highest send rate that can be set, in sends a second: beyond what one node can take.
const SENDS_PER_SECOND_MAX: u64 = 1_000_000;

/// How a tenant ranks where tenants compete.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Before the others.
    High,
    /// The usual one.
    #[default]
    Standard,
    /// What the others leave.
    Bulk,
}

impl Tier {
    /// The word in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Standard => "standard",
            Self::Bulk => "bulk",
        }
    }

    /// The branch of the tree of shares on which its tenants compete for the database.
    const fn class(self) -> Class {
        match self {
            Self::High => Class::High,
            Self::Standard => Class::Standard,
            Self::Bulk => Class::Bulk,
        }
    }
}

/// Whether a tenant may do anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TenantStatus {
    /// Its keys are valid.
    #[default]
    Active,
    /// Its keys are not valid until it is active again.
    Suspended,
}

impl TenantStatus {
    /// The word in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
        }
    }
}

/// How fast a tenant may send, on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SendQuota {
    /// Sustained sends a second.
    pub per_second: u64,
    /// Sends that may come at once after a rest.
    pub burst: u64,
}

/// A tenant as the directory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// The name that the operator gave it.
    pub name: String,
    /// How it ranks.
    pub tier: Tier,
    /// Whether its keys are valid.
    pub status: TenantStatus,
    /// Its own send quota; `None` for the configured one.
    pub send_quota: Option<SendQuota>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Fields that a later version wrote.
    rest: Map<String, Value>,
}

/// What an operator says of a new tenant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTenant {
    /// 1 to 256 bytes without control characters.
    pub name: String,
    /// How it ranks.
    #[serde(default)]
    pub tier: Tier,
    /// Its own send quota.
    #[serde(default)]
    pub send_quota: Option<SendQuota>,
}

/// What an operator changes of a tenant; fields that are left out stay.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantPatch {
    /// Another name.
    #[serde(default)]
    pub name: Option<String>,
    /// Another rank.
    #[serde(default)]
    pub tier: Option<Tier>,
    /// Suspends or activates it.
    #[serde(default)]
    pub status: Option<TenantStatus>,
    /// Another send quota; `null` for the configured one.
    #[serde(default)]
    pub send_quota: Edit<SendQuota>,
}

/// How it is kept.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    name: String,
    tier: Tier,
    status: TenantStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    send_quota: Option<SendQuota>,
    created_at: Timestamp,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Tenant {
    /// A new tenant.
    ///
    /// # Errors
    /// What is wrong with `new`.
    pub fn new(id: TenantId, new: NewTenant, now: Timestamp) -> Result<Self, Invalid> {
        Self {
            id,
            name: new.name,
            tier: new.tier,
            status: TenantStatus::Active,
            send_quota: new.send_quota,
            created_at: now,
            rest: Map::new(),
        }
        .checked()
    }

    /// This tenant after a change.
    ///
    /// # Errors
    /// What is wrong with it then.
    pub fn patched(self, patch: TenantPatch) -> Result<Self, Invalid> {
        Self {
            name: patch.name.unwrap_or(self.name),
            tier: patch.tier.unwrap_or(self.tier),
            status: patch.status.unwrap_or(self.status),
            send_quota: patch.send_quota.onto(self.send_quota),
            ..self
        }
        .checked()
    }

    fn checked(self) -> Result<Self, Invalid> {
        let mut faults = Faults::default();
        faults.note_if("/name", check_name(&self.name));
        if let Some(quota) = self.send_quota {
            let rate = check_range(quota.per_second, 1, SENDS_PER_SECOND_MAX);
            faults.note_if("/sendQuota/perSecond", rate);
            let burst = check_range(quota.burst, 1, SENDS_PER_SECOND_MAX);
            faults.note_if("/sendQuota/burst", burst);
        }
        faults.or(self)
    }

    /// For whom a permit is that is wanted on its behalf.
    pub const fn origin(&self, source: Source) -> Origin {
        Origin { class: self.tier.class(), tenant: Some(self.id), source }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        entry::encode(&Stored {
            name: self.name.clone(),
            tier: self.tier,
            status: self.status,
            send_quota: self.send_quota,
            created_at: self.created_at,
            rest: self.rest.clone(),
        })
    }

    pub(super) fn decode(id: TenantId, bytes: &[u8]) -> Result<Self, Unreadable> {
        let stored: Stored = entry::decode(bytes)?;
        Ok(Self {
            id,
            name: stored.name,
            tier: stored.tier,
            status: stored.status,
            send_quota: stored.send_quota,
            created_at: stored.created_at,
            rest: stored.rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn tenant(name: &str) -> Result<Tenant, Invalid> {
        let new = NewTenant { name: name.to_owned(), ..NewTenant::default() };
        Tenant::new(TenantId::from_uuid(Uuid::nil()), new, Timestamp::default())
    }

    #[test]
    fn a_tenant_survives_its_entry_with_fields_of_a_later_version() {
        let written = concat!(
            r#"{"v":1,"name":"acme","tier":"bulk","status":"suspended","createdAt":5,"#,
            r#""sendQuota":{"perSecond":10,"burst":20},"region":"north"}"#
        );
        let id = TenantId::from_uuid(Uuid::nil());
        let tenant = Tenant::decode(id, written.as_bytes()).unwrap();
        assert_eq!(tenant.tier, Tier::Bulk);
        let patch: TenantPatch =
            serde_json::from_str(r#"{"status":"active","sendQuota":null}"#).unwrap();
        let patched = tenant.patched(patch).unwrap();
        let again: Value = serde_json::from_slice(&patched.encode()).unwrap();
        assert_eq!(again["region"], "north");
        assert_eq!(again["status"], "active");
        assert_eq!(again.get("sendQuota"), None);
        assert_eq!(Tenant::decode(id, &patched.encode()).unwrap(), patched);
    }

    #[test]
    fn what_a_tenant_asks_for_is_of_its_tiers_class() {
        let tiers = [
            (Tier::High, Class::High),
            (Tier::Standard, Class::Standard),
            (Tier::Bulk, Class::Bulk),
        ];
        for (tier, class) in tiers {
            let tenant = Tenant { tier, ..tenant("acme").unwrap() };
            let origin = Origin { class, tenant: Some(tenant.id), source: Source::Rest };
            assert_eq!(tenant.origin(Source::Rest), origin);
        }
    }

    #[test]
    fn every_fault_is_named_by_its_field() {
        assert!(tenant("acme").is_ok());
        let patch: TenantPatch = serde_json::from_str(
            r#"{"name":"a\u0000","sendQuota":{"perSecond":0,"burst":1000001}}"#,
        )
        .unwrap();
        let invalid = tenant("acme").unwrap().patched(patch).unwrap_err();
        let pointers: Vec<_> = invalid.faults.iter().map(|fault| &*fault.pointer).collect();
        assert_eq!(pointers, ["/name", "/sendQuota/perSecond", "/sendQuota/burst"]);
    }

    #[test]
    fn unknown_tiers_and_statuses_are_refused() {
        assert!(serde_json::from_str::<NewTenant>(r#"{"name":"a","tier":"gold"}"#).is_err());
        assert!(serde_json::from_str::<TenantPatch>(r#"{"status":"deleted"}"#).is_err());
        let new: NewTenant = serde_json::from_str(r#"{"name":"a"}"#).unwrap();
        assert_eq!(new.tier, Tier::Standard);
    }
}
