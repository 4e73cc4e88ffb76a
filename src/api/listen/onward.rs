//! What a connection goes on with when HTTP is over on it.
//! Promises that it stays in the connection's own task: under the same bound of connections, with the same end.
//! Does not know what that is.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;

use crate::lifecycle::Seat;

type Work = Box<dyn FnOnce(Seat) -> BoxFuture<'static, ()> + Send>;

/// Travels in the extensions of a response 101, which must be cloneable.
#[derive(Clone)]
pub(in crate::api) struct Onward(Arc<Mutex<Option<Work>>>);

impl Onward {
    /// Goes on with this. The seat tells when the door closes.
    pub(in crate::api) fn new(
        work: impl FnOnce(Seat) -> BoxFuture<'static, ()> + Send + 'static,
    ) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(work)))))
    }

    /// What to go on with; `None` the second time.
    pub(in crate::api) fn take(&self) -> Option<Work> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
