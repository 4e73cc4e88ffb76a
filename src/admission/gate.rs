//! The gate as tasks see it: a lock around the scheduler, and a wait for its answer.
//! Promises that a permit comes back however its task ends, and that nobody is woken under the lock.
//! Does not decide anything; the scheduler does.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};
use tokio::task;
use tokio::time::{sleep_until, timeout_at};

use super::scheduler::{Arrival, Caps, Grant, Scheduler, Wake};
use super::{Overload, Settings, Status, Tag, WaiterId};
use crate::clock::Clock;

/// Gives out permits by priority, share and age. Cheap to clone; all clones are one gate.
///
/// The rule for its users: a task holds at most one permit of a gate. Two tasks that each hold one and wait for a
/// second would wait for each other, so the second is refused ([`Overload::Nested`]). A permit counts for the task that
/// acquired it until it comes back or is handed over ([`Permit::hand_over`]). Outside of tasks nothing is checked.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    state: Mutex<State>,
    /// Tells the timer that there is an earlier time to wake up at.
    earlier: Notify,
    /// Tells that no permit is out.
    idle: Notify,
}

#[derive(Debug)]
struct State {
    scheduler: Scheduler<Waiting>,
    /// The tasks that hold a permit. As many as permits, so looking through them costs less than hashing.
    holders: Vec<task::Id>,
    /// What the timer is set to, or will be when somebody runs it.
    armed: Option<Instant>,
    /// How many wait for the last permit to come back.
    idlers: usize,
}

/// Somebody who waits.
#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<Permit, Overload>>,
    task: Option<task::Id>,
}

/// The right to use one of the things behind the gate; it goes back when this is dropped.
#[must_use = "dropping a permit gives it back"]
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Inner>,
    /// Invariant: there until the drop.
    grant: Option<Grant>,
    task: Option<task::Id>,
}

impl Gate {
    /// A gate that nobody has come to.
    pub fn new(settings: Settings, clock: Clock) -> Self {
        let caps = Caps { tenant: settings.tenant_max, ..Caps::NONE };
        let scheduler = Scheduler::new(&settings, caps, clock.now());
        let holders = Vec::with_capacity(settings.capacity.min(1024));
        let state = Mutex::new(State { scheduler, holders, armed: None, idlers: 0 });
        Self(Arc::new(Inner { clock, state, earlier: Notify::new(), idle: Notify::new() }))
    }

    /// A permit, at once or when it is this wish's turn.
    ///
    /// Cancel safe: a waiter that is dropped leaves the queue, and a permit that was on its way to it goes on.
    ///
    /// # Errors
    /// [`Overload`] when there is no permit to be had in time; at once when none can be expected.
    pub async fn acquire(&self, tag: Tag, deadline: Instant) -> Result<Permit, Overload> {
        let (id, answer) = match self.0.arrive(tag, deadline) {
            Ok(Arrived::Granted(permit)) => return Ok(permit),
            Ok(Arrived::Waits(id, answer)) => (id, answer),
            Err(overload) => return Err(overload),
        };
        let mut place = Place { gate: &self.0, id: Some(id) };
        let answer = answer.await;
        place.id = None;
        // The sender is dropped unused only together with the gate.
        answer.unwrap_or(Err(Overload::Closed))
    }

    /// There are so many permits from here on. Those that are out stay valid.
    pub fn resize(&self, capacity: usize) {
        self.0.change(|scheduler, now, wakes| scheduler.resize(capacity, now, wakes));
    }

    /// How many permits there are.
    pub fn capacity(&self) -> usize {
        self.0.state().scheduler.capacity()
    }

    /// Refuses everybody who waits or comes; permits that are out stay valid.
    pub fn close(&self) {
        self.0.change(Scheduler::close);
        self.0.earlier.notify_one();
    }

    /// Whether [`Gate::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.state().scheduler.is_closed()
    }

    /// The gate's one timer: refuses whose time is up, and gives what fading debt sets free. Whoever makes a gate runs
    /// this for as long as it is used. Ends when the gate is closed, because then everybody is answered.
    ///
    /// Cancel safe: it holds nothing.
    pub async fn keep(&self) {
        loop {
            // Whoever sets an earlier time after this look leaves a notice, which ends the sleep.
            let ControlFlow::Continue(armed) = self.0.arm() else {
                return;
            };
            let sleep = async {
                match armed {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.earlier.notified() => {}
                () = sleep => self.0.change(Scheduler::tick),
            }
        }
    }

    /// Waits until no permit is out, at most until `deadline`; says whether it came to that.
    ///
    /// Cancel safe: it holds nothing.
    pub async fn wait_idle(&self, deadline: Instant) -> bool {
        let _idler = Idler::new(&self.0);
        loop {
            let mut idle = std::pin::pin!(self.0.idle.notified());
            // Interest is registered before the look, or the last permit could come back in between.
            idle.as_mut().enable();
            if self.0.state().scheduler.in_use() == 0 {
                return true;
            }
            if timeout_at(deadline.into(), idle).await.is_err() {
                return self.0.state().scheduler.in_use() == 0;
            }
        }
    }

    /// What is going on.
    pub fn status(&self) -> Status {
        let now = self.0.clock.now();
        self.0.state().scheduler.status(now)
    }
}

/// What became of an arrival that was not refused.
enum Arrived {
    Granted(Permit),
    Waits(WaiterId, oneshot::Receiver<Result<Permit, Overload>>),
}

impl Inner {
    fn arrive(self: &Arc<Self>, tag: Tag, deadline: Instant) -> Result<Arrived, Overload> {
        let task = task::try_id();
        let mut receiver = None;
        let arrival = self.with(|state, now, wakes| {
            if task.is_some_and(|task| state.holders.contains(&task)) {
                state.scheduler.refuse(Overload::Nested, tag);
                return Arrival::Refused(Overload::Nested);
            }
            let waiting = || {
                let (answer, later) = oneshot::channel();
                receiver = Some(later);
                Waiting { answer, task }
            };
            let arrival = state.scheduler.arrive((tag, deadline), now, waiting, wakes);
            if let Arrival::Granted(_) = arrival {
                state.holders.extend(task);
            }
            arrival
        });
        match (arrival, receiver) {
            (Arrival::Granted(grant), _) => Ok(Arrived::Granted(self.permit(grant, task))),
            (Arrival::Waits(id), Some(receiver)) => Ok(Arrived::Waits(id, receiver)),
            (Arrival::Waits(_), None) => Err(Overload::Closed),
            (Arrival::Refused(overload), _) => Err(overload),
        }
    }

    fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Scheduler<Waiting>, Instant, &mut Vec<Wake<Waiting>>),
    ) {
        self.with(|state, now, wakes| change(&mut state.scheduler, now, wakes));
    }

    /// Does something under the lock, and after it what follows for others.
    fn with<T>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut State, Instant, &mut Vec<Wake<Waiting>>) -> T,
    ) -> T {
        let now = self.clock.now();
        let mut wakes = Vec::new();
        let (result, earlier, idle) = {
            let mut state = self.state();
            let result = act(&mut state, now, &mut wakes);
            let granted = wakes.iter().filter(|wake| wake.outcome.is_ok());
            state.holders.extend(granted.filter_map(|wake| wake.waiter.task));
            let idle = state.idlers > 0 && state.scheduler.in_use() == 0;
            (result, state.is_earlier(), idle)
        };
        if earlier {
            self.earlier.notify_one();
        }
        if idle {
            self.idle.notify_waiters();
        }
        for Wake { waiter: Waiting { answer, task }, outcome } in wakes {
            let answered = answer.send(outcome.map(|grant| self.permit(grant, task)));
            // Whoever went away meanwhile leaves his permit here, and dropping it gives it to the next.
            drop(answered);
        }
        result
    }

    /// What the timer is to be set to, if anything; a break when it is not needed any more.
    fn arm(&self) -> ControlFlow<(), Option<Instant>> {
        let mut state = self.state();
        state.armed = state.scheduler.next_wake();
        if state.scheduler.is_closed() && state.scheduler.waiting() == 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(state.armed)
    }

    fn permit(self: &Arc<Self>, grant: Grant, task: Option<task::Id>) -> Permit {
        Permit { gate: Arc::clone(self), grant: Some(grant), task }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The task holds one permit less.
    fn forget(&mut self, task: Option<task::Id>) {
        if let Some(at) = self.holders.iter().position(|held| Some(*held) == task) {
            self.holders.swap_remove(at);
        }
    }

    /// Whether the timer must be set to an earlier time; notes it if so.
    fn is_earlier(&mut self) -> bool {
        let next = self.scheduler.next_wake();
        let earlier = next.is_some_and(|next| self.armed.is_none_or(|armed| next < armed));
        if earlier {
            self.armed = next;
        }
        earlier
    }
}

impl Permit {
    /// The permit belongs to no task any more: its task is done with it and may acquire another one.
    pub fn hand_over(&mut self) {
        let task = self.task.take();
        self.gate.state().forget(task);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(grant) = self.grant.take() else {
            return;
        };
        let task = self.task;
        self.gate.with(|state, now, wakes| {
            state.forget(task);
            state.scheduler.release(grant, now, wakes);
        });
    }
}

/// A place in a queue, given up on drop.
struct Place<'g> {
    gate: &'g Arc<Inner>,
    /// `None` once there is an answer.
    id: Option<WaiterId>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.gate.with(|state, now, wakes| state.scheduler.cancel(id, now, wakes));
        }
    }
}

/// Somebody who waits for the last permit to come back.
struct Idler<'g>(&'g Inner);

impl<'g> Idler<'g> {
    fn new(gate: &'g Inner) -> Self {
        gate.state().idlers += 1;
        Self(gate)
    }
}

impl Drop for Idler<'_> {
    fn drop(&mut self) {
        self.0.state().idlers -= 1;
    }
}

#[cfg(test)]
mod tests;
