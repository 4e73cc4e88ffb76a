//! One endpoint of the receiver: its mode, its secret, its ledger, and how many requests it has open.
//! Promises that a request is in the ledger before it is answered.
//! Does not read requests and does not write answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::ledger::{Ledger, Receipt, Room};
use super::mode::Mode;
use crate::clock::Timestamp;
use crate::delivery::signature::{self, Signed};

/// What a request without a valid signature is answered.
pub(super) const UNVERIFIED: u16 = 401;

/// An endpoint.
pub(super) struct Hook {
    state: Mutex<State>,
    open: AtomicUsize,
    open_max: AtomicUsize,
    /// Told of every receipt.
    pub(super) arrived: Notify,
}

struct State {
    mode: Arc<Mode>,
    /// How many requests were answered in this mode.
    number: u64,
    secret: Option<Arc<[u8]>>,
    ledger: Ledger,
}

/// How a request is to be answered.
#[derive(Debug)]
pub(super) enum Decision {
    /// As the mode says, with this status if it answers.
    Act(Arc<Mode>, Option<u16>),
    /// With [`UNVERIFIED`].
    Refuse,
}

impl Hook {
    pub(super) fn new(mode: Arc<Mode>, secret: Option<Arc<[u8]>>) -> Self {
        Self {
            state: Mutex::new(State { mode, number: 0, secret, ledger: Ledger::default() }),
            open: AtomicUsize::new(0),
            open_max: AtomicUsize::new(0),
            arrived: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a request is open until the guard is dropped.
    pub(super) fn enter(self: &Arc<Self>) -> Open {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.open_max.fetch_max(open, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// Checks the signature of a receipt that has its body, if there is a secret.
    pub(super) fn verify(&self, receipt: &mut Receipt, now: Timestamp) {
        let secret = self.state().secret.clone();
        let Some(secret) = secret else {
            return;
        };
        let Receipt { id, timestamp, signature, .. } = &*receipt;
        let signed = Signed { id, timestamp, signature };
        let body = receipt.body.as_deref().unwrap_or_default();
        receipt.verified = Some(signature::verify(&[&secret], signed, body, now).is_ok());
    }

    /// Puts a request into the ledger, with the status that it is to be answered, and says how.
    /// `tell` sees the receipt with its body, whether it is kept or not.
    pub(super) fn receive(
        &self,
        mut receipt: Receipt,
        room: &Room,
        tell: impl FnOnce(&Receipt),
    ) -> Decision {
        let mut state = self.state();
        let decision = if receipt.verified == Some(false) {
            receipt.status = Some(UNVERIFIED);
            Decision::Refuse
        } else {
            receipt.status = state.mode.status(state.number);
            state.number += 1;
            Decision::Act(Arc::clone(&state.mode), receipt.status)
        };
        tell(&receipt);
        state.ledger.put(receipt, room);
        drop(state);
        self.arrived.notify_waiters();
        decision
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        let mut state = self.state();
        state.mode = Arc::new(mode);
        state.number = 0;
    }

    pub(super) fn mode(&self) -> Arc<Mode> {
        Arc::clone(&self.state().mode)
    }

    pub(super) fn set_secret(&self, secret: Arc<[u8]>) {
        self.state().secret = Some(secret);
    }

    /// Lets the caller read the ledger, under the lock.
    pub(super) fn read<T>(&self, reading: impl FnOnce(&Ledger) -> T) -> T {
        reading(&self.state().ledger)
    }

    /// Forgets what was received, not the mode and its place, and not what is open.
    pub(super) fn clear(&self, room: &Room) {
        self.state().ledger.clear(room);
        self.open_max.store(self.open.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn open_max(&self) -> usize {
        self.open_max.load(Ordering::Relaxed)
    }
}

/// An open request of an endpoint.
pub(super) struct Open(Arc<Hook>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
