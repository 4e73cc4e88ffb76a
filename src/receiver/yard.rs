//! All endpoints of a receiver by their names, with what they share.
//! Promises that requests cannot make more of them than a bound.
//! Does not do anything with a request.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::mpsc;

use super::hook::Hook;
use super::ledger::Room;
use super::mode::Mode;
use super::{Options, Told};
use crate::clock::Clock;

/// Most endpoints that requests can bring into being; the handle can make more.
pub(super) const HOOKS_MAX: usize = 10_000;

/// What connections and the handle share.
pub(super) struct Yard {
    hooks: RwLock<HashMap<Box<str>, Arc<Hook>>>,
    pub(super) mode: Arc<Mode>,
    secret: Option<Arc<[u8]>>,
    pub(super) room: Room,
    pub(super) tell: Option<mpsc::Sender<Told>>,
    pub(super) untold: AtomicUsize,
    pub(super) clock: Clock,
}

impl Yard {
    pub(super) fn new(options: Options, clock: Clock) -> Self {
        Self {
            hooks: RwLock::default(),
            mode: Arc::new(options.mode),
            secret: options.secret.map(Arc::from),
            room: Room::new(options.entries_max),
            tell: options.tell,
            untold: AtomicUsize::new(0),
            clock,
        }
    }

    pub(super) fn known(&self, name: &str) -> Option<Arc<Hook>> {
        self.hooks.read().unwrap_or_else(PoisonError::into_inner).get(name).map(Arc::clone)
    }

    pub(super) fn hook_if_room(&self, name: &str) -> Option<Arc<Hook>> {
        self.known(name).or_else(|| self.make(name, HOOKS_MAX))
    }

    pub(super) fn hook(&self, name: &str) -> Arc<Hook> {
        let made = self.known(name).or_else(|| self.make(name, usize::MAX));
        made.expect("a map never has usize::MAX entries")
    }

    /// The endpoint of that name, made unless there are so many.
    fn make(&self, name: &str, max: usize) -> Option<Arc<Hook>> {
        let mut hooks = self.hooks.write().unwrap_or_else(PoisonError::into_inner);
        if hooks.len() >= max && !hooks.contains_key(name) {
            return None;
        }
        let fresh = || Arc::new(Hook::new(Arc::clone(&self.mode), self.secret.clone()));
        Some(Arc::clone(hooks.entry(name.into()).or_insert_with(fresh)))
    }

    pub(super) fn clear(&self) {
        for hook in self.hooks.read().unwrap_or_else(PoisonError::into_inner).values() {
            hook.clear(&self.room);
        }
    }
}
