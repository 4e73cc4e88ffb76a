//! How connections end.
//! Promises that the gate counts a connection no more before it is closed, and that none is waited for without end.
//! Does not decide when one is too old; the slot does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::unmanaged::Object;
use sqlx::Connection as _;
use tokio::time::{timeout, timeout_at};

use super::Pool;
use super::slot::Slot;
use crate::admission::bucket::Decision;
use crate::lifecycle::Kind;

/// How long the server may take to be told that a session ends.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// How a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// The server is told.
    Close,
    /// The socket is dropped: it is broken, or what is on it is not known.
    Drop,
}

impl Pool {
    /// Takes a connection out of the pool. Its place at the server is free again once it is closed.
    pub(super) fn retire(self: &Arc<Self>, mut slot: Object<Slot>, farewell: Farewell) {
        let now = self.clock.now();
        self.recount(|census| {
            census.live = census.live.saturating_sub(1);
            census.retiring += 1;
            if farewell == Farewell::Drop {
                // A broken one is closed at once; those that are closed for their age wait longer for it.
                census.closings.charge(now);
            }
        });
        let conn = slot.conn.take();
        let place = Place { pool: Arc::clone(self), slot: Some(slot) };
        let in_runtime = tokio::runtime::Handle::try_current().is_ok();
        if let Some(conn) = conn.filter(|_| in_runtime && farewell == Farewell::Close) {
            self.supervisor.spawn(Kind::Pool, async move {
                drop(timeout(GOODBYE_MAX, conn.close()).await);
                drop(place);
            });
        }
    }

    /// Whether a connection is past its time and may be closed now. The last one stays until there is another.
    pub(super) fn may_renew(&self, slot: &Slot, now: Instant) -> bool {
        if now < slot.retire_at {
            return false;
        }
        let mut census = self.census();
        census.renews = census.live == 1;
        census.live > 1 && census.closings.try_take(now) == Decision::Taken
    }

    /// Closes idle connections that are past their time, as far as the bucket allows.
    pub(super) fn sweep(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut leaving = Vec::new();
        {
            let _looking = self.look();
            let mut idle = Vec::with_capacity(self.limits.connections);
            while let Ok(slot) = self.bag.try_get() {
                idle.push(slot);
            }
            let mut spare = self.census().live.saturating_sub(self.limits.least());
            // The one that was idle longest came out of the bag last, and is looked at and put back first.
            while let Some(slot) = idle.pop() {
                let is_former = slot.generation != self.endpoints.generation();
                let is_unused = spare > 0 && slot.is_unused(now) && self.may_close(now);
                if is_former || is_unused || self.may_renew(&slot, now) {
                    spare = spare.saturating_sub(1);
                    leaving.push(slot);
                }
            }
        }
        for slot in leaving {
            self.retire(slot, Farewell::Close);
        }
        if self.census().renews {
            self.demand.notify_one();
        }
    }

    fn may_close(&self, now: Instant) -> bool {
        self.census().closings.try_take(now) == Decision::Taken
    }

    /// See [`super::Interactive::close`].
    pub(super) async fn close(self: &Arc<Self>, deadline: Instant) {
        self.gate.close();
        let patience = deadline.checked_sub(GOODBYE_MAX).unwrap_or(deadline);
        let _all_back: bool = self.gate.wait_idle(patience).await;
        while let Ok(slot) = self.bag.try_get() {
            self.retire(slot, Farewell::Close);
        }
        let mut sizes = self.sizes.subscribe();
        drop(timeout_at(deadline.into(), sizes.wait_for(|sizes| sizes.retiring == 0)).await);
        self.bag.close();
    }
}

/// The place of a connection that is being closed.
struct Place {
    pool: Arc<Pool>,
    slot: Option<Object<Slot>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.slot.take().map(Object::take));
        self.pool.recount(|census| {
            census.retiring = census.retiring.saturating_sub(1);
            census.totals.destroyed += 1;
        });
    }
}
