use proptest::prelude::*;

use super::*;
use crate::clock::Timestamp;
use crate::directory::key::ApiKey;
use crate::directory::tenant::{NewTenant, TenantPatch};

fn tenant_id(n: u128) -> TenantId {
    TenantId::from_uuid(Uuid::from_u128(n))
}

fn tenant(n: u128, status: TenantStatus) -> Tenant {
    let new = NewTenant { name: "acme".to_owned(), ..NewTenant::default() };
    let patch = TenantPatch { status: Some(status), ..TenantPatch::default() };
    let tenant = Tenant::new(tenant_id(n), new, Timestamp::default()).unwrap();
    tenant.patched(patch).unwrap()
}

fn put_tenant(memory: &mut Memory, n: u128, status: TenantStatus) -> Effect {
    let tenant = tenant(n, status);
    let subject = Subject::Tenant(tenant.id).to_string();
    memory.apply(&subject, Some(&tenant.encode())).unwrap()
}

fn hash(n: u8) -> KeyHash {
    ApiKey::from_random([n; 32]).hash()
}

fn put_key(memory: &mut Memory, n: u8, tenant: u128) -> Effect {
    let id = KeyId::from_uuid(Uuid::from_u128(u128::from(n)));
    let key = Key::new(tenant_id(tenant), id, Timestamp::default());
    let subject = Subject::Key(hash(n)).to_string();
    memory.apply(&subject, Some(&key.encode())).unwrap()
}

fn delete(memory: &mut Memory, subject: Subject) -> Effect {
    memory.apply(&subject.to_string(), None).unwrap()
}

#[test]
fn a_key_gives_access_once_its_tenant_is_known_and_active() {
    let mut memory = Memory::default();
    assert_eq!(put_key(&mut memory, 1, 7), Effect::Changed);
    assert!(memory.access(&hash(1)).is_none());
    assert_eq!(put_tenant(&mut memory, 7, TenantStatus::Active), Effect::Changed);
    let access = memory.access(&hash(1)).unwrap();
    assert_eq!((access.tenant.id, access.key.uuid()), (tenant_id(7), Uuid::from_u128(1)));
    assert!(memory.access(&hash(2)).is_none());
}

#[test]
fn suspending_takes_access_away_and_activating_gives_it_back() {
    let mut memory = Memory::default();
    put_tenant(&mut memory, 7, TenantStatus::Active);
    put_key(&mut memory, 1, 7);
    assert_eq!(put_tenant(&mut memory, 7, TenantStatus::Suspended), Effect::Revoked);
    assert!(memory.access(&hash(1)).is_none());
    assert_eq!(memory.keys(tenant_id(7)).len(), 1);
    assert_eq!(put_tenant(&mut memory, 7, TenantStatus::Suspended), Effect::Changed);
    assert_eq!(put_tenant(&mut memory, 7, TenantStatus::Active), Effect::Changed);
    assert!(memory.access(&hash(1)).is_some());
    assert_eq!(delete(&mut memory, Subject::Tenant(tenant_id(7))), Effect::Revoked);
    assert!(memory.access(&hash(1)).is_none());
}

#[test]
fn a_deleted_key_gives_no_access() {
    let mut memory = Memory::default();
    put_tenant(&mut memory, 7, TenantStatus::Active);
    put_key(&mut memory, 1, 7);
    let id = KeyId::from_uuid(Uuid::from_u128(1));
    assert_eq!(memory.key_hash(tenant_id(7), id), Some(hash(1)));
    assert_eq!(delete(&mut memory, Subject::Key(hash(1))), Effect::Revoked);
    assert!(memory.access(&hash(1)).is_none());
    assert_eq!(memory.key_hash(tenant_id(7), id), None);
    assert_eq!(delete(&mut memory, Subject::Key(hash(1))), Effect::Changed);
}

#[test]
fn what_cannot_be_read_counts_as_absent_until_it_can() {
    let mut memory = Memory::default();
    put_tenant(&mut memory, 7, TenantStatus::Active);
    put_key(&mut memory, 1, 7);
    let subject = Subject::Tenant(tenant_id(7)).to_string();
    let later = br#"{"v":2,"names":["acme"]}"#;
    assert_eq!(memory.apply(&subject, Some(later)), Err(Unreadable::Version(2)));
    assert!(memory.access(&hash(1)).is_none() && memory.tenant(tenant_id(7)).is_none());
    assert_eq!(memory.counts().unreadable, 1);
    put_tenant(&mut memory, 7, TenantStatus::Active);
    assert_eq!(memory.counts().unreadable, 0);
    assert!(memory.access(&hash(1)).is_some());
}

#[test]
fn kinds_of_a_later_version_are_ignored() {
    let mut memory = Memory::default();
    assert_eq!(memory.apply("lease.1", Some(b"?")), Ok(Effect::Ignored));
    assert_eq!(memory.counts(), Counts::default());
}

#[derive(Clone, Debug)]
enum Step {
    Tenant(u128, bool),
    DropTenant(u128),
    Key(u8, u128),
    DropKey(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3_u128, any::<bool>()).prop_map(|(tenant, active)| Step::Tenant(tenant, active)),
        (0..3_u128).prop_map(Step::DropTenant),
        (0..4_u8, 0..3_u128).prop_map(|(key, tenant)| Step::Key(key, tenant)),
        (0..4_u8).prop_map(Step::DropKey),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    /// Whatever the order of entries, access follows from the last one of each key and tenant alone.
    #[test]
    fn access_follows_from_the_last_entries(steps in steps()) {
        let mut memory = Memory::default();
        let mut tenants = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for step in steps {
            match step {
                Step::Tenant(n, active) => {
                    let status = if active { TenantStatus::Active } else { TenantStatus::Suspended };
                    put_tenant(&mut memory, n, status);
                    tenants.insert(n, active);
                }
                Step::DropTenant(n) => {
                    delete(&mut memory, Subject::Tenant(tenant_id(n)));
                    tenants.remove(&n);
                }
                Step::Key(n, tenant) => {
                    put_key(&mut memory, n, tenant);
                    keys.insert(n, tenant);
                }
                Step::DropKey(n) => {
                    delete(&mut memory, Subject::Key(hash(n)));
                    keys.remove(&n);
                }
            }
        }
        for n in 0..4 {
            let tenant = keys.get(&n);
            let valid = tenant.is_some_and(|tenant| tenants.get(tenant) == Some(&true));
            let access = memory.access(&hash(n));
            prop_assert_eq!(access.is_some(), valid);
            let found = access.map(|access| access.tenant.id);
            prop_assert!(found.is_none() || found == tenant.map(|n| tenant_id(*n)));
        }
        prop_assert_eq!(memory.counts().keys, keys.len());
        prop_assert_eq!(memory.keys_of.len(), keys.len());
    }
}
