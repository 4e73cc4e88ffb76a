//! The rounds of `bench send`: which variant is measured when, and what is noted around it.
//! Promises that references are emptied before a round, and that nothing is projected any more when the next one begins.
//! Does not prepare; it is given servers and conversations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::Connection as _;
use sqlx::postgres::PgConnection;

use super::order::{forgotten, order};
use super::{Hooks, Measured, Projector, Report, Taken, Target, asked};
use crate::bench::Error;
use crate::bench::lineup::{References, Variant};
use crate::bench::machine::{Cost, Meter, Pids};
use crate::bench::report::{line_of_round, most_frequent};
use crate::bench::rows::statement;
use crate::clock::Clock;
use crate::event::{ConversationId, Partitions};
use crate::load::callers::{self, Called};
use crate::load::tally::rate;
use crate::load::{
    self, Amount, Keys, Ledger, Narrator, OnOverload, OnRefusal, Pace, Round, Watch,
};

/// One load on one server.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    pub(super) url: String,
    pub(super) connections: u16,
    pub(super) pace: Pace,
    pub(super) onto: Onto,
}

/// Where sends go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onto {
    /// To all conversations.
    AllPartitions,
    /// To the conversations of one partition, with bodies of so many bytes, so that all of them wait in one queue.
    OnePartition { body_bytes: usize },
}

impl Drive {
    /// A closed loop over so many connections.
    fn closed(url: String, connections: u16) -> Self {
        Self { url, connections, pace: Pace::AnswerByAnswer, onto: Onto::AllPartitions }
    }
}

/// What the projector does while a variant is measured; `None` where there is none.
const fn projector_of(variant: Variant) -> Option<Projector> {
    match variant {
        Variant::Forebay => Some(Projector::Run),
        Variant::ForebayHeld => Some(Projector::Hold),
        Variant::Gathered
        | Variant::Direct
        | Variant::Nothing
        | Variant::RecordsHttp
        | Variant::Records => None,
    }
}

/// The conversations of the partition that the first of them is in.
fn of_one_partition(all: &[ConversationId], partitions: Partitions) -> Vec<ConversationId> {
    let partition = all.first().map(|first| partitions.of(*first));
    let is_there = |id: &&ConversationId| Some(partitions.of(**id)) == partition;
    all.iter().filter(is_there).copied().collect()
}

/// A benchmark under way.
pub(super) struct Bench<'a> {
    pub(super) target: &'a Target,
    pub(super) hooks: &'a Hooks,
    pub(super) narrator: &'a Narrator,
    pub(super) clock: &'a Clock,
    pub(super) references: Option<References>,
    pub(super) conversations: Vec<ConversationId>,
    pub(super) ledger: Ledger,
    pub(super) run: u32,
    pub(super) report: Report,
}

impl Bench<'_> {
    /// Every round has an order of its own, so that a drift of the machine meets all alike, and no variant always comes
    /// after the same other one.
    pub(super) async fn all_rounds(&mut self) -> Result<(), Error> {
        let (variants, rounds) = (self.report.options.variants.len(), self.report.options.rounds);
        let (forgotten, seed) = (forgotten(rounds), self.report.options.seed);
        for block in 0..self.report.options.connections.len() {
            let places = block * variants..(block + 1) * variants;
            for round in 0..forgotten + rounds {
                for turn in order(variants, block * (forgotten + rounds) + round, seed) {
                    self.one_round(places.start + turn, round).await?;
                }
                if round < forgotten {
                    for measured in &mut self.report.measured[places.clone()] {
                        measured.rounds.clear();
                        measured.taken.clear();
                    }
                }
            }
        }
        Ok(())
    }

    async fn one_round(&mut self, place: usize, nth: usize) -> Result<(), Error> {
        let Measured { variant, connections, .. } = self.report.measured[place];
        let label = variant.label();
        let rounds = self.report.options.rounds;
        let rounds = rounds + forgotten(rounds);
        self.narrator
            .moment(&format!("round {} of {rounds}: {label}, {connections} connections", nth + 1));
        self.checkpoint().await?;
        let (round, taken) = match projector_of(variant) {
            Some(projector) => {
                let drive = Drive::closed(self.target.url.clone(), connections);
                self.forebay_round(projector, drive).await?
            }
            None => match self.emptied(variant).await? {
                Some(url) => self.reference_round(Drive::closed(url, connections)).await?,
                None => self.raw_round(connections).await?,
            },
        };
        self.narrator.line(&line_of_round(label, connections, nth + 1, &round));
        if round.acknowledged == 0 {
            return Err(Error::NothingAcknowledged {
                what: label,
                reasons: most_frequent(&round.refused),
            });
        }
        self.report.measured[place].taken.push(taken);
        self.report.measured[place].rounds.push(round);
        Ok(())
    }

    /// Lets Postgres write what earlier rounds left in its memory, so that no later one pays for it.
    pub(super) async fn checkpoint(&self) -> Result<(), Error> {
        let database = |source| Error::Database { doing: "making a checkpoint", source };
        let connecting = PgConnection::connect(&self.target.places.database_url);
        let mut conn = connecting.await.map_err(database)?;
        statement("CHECKPOINT").execute(&mut conn).await.map_err(database)?;
        conn.close().await.map_err(database)
    }

    /// A load on a reference that listens there.
    pub(super) async fn reference_round(&mut self, drive: Drive) -> Result<(Round, Taken), Error> {
        let meter = Meter::start(self.services());
        let (round, ledger) = self.load(drive).await?;
        let cost = meter.cost(ledger.len() as u64);
        Ok((round, Taken { cost, ..Taken::default() }))
    }

    /// What is watched of a reference, whose own process is that of the load.
    fn services(&self) -> Pids {
        Pids { server: None, ..self.target.pids }
    }

    /// Takes away what an earlier round left, and says where a reference listens.
    pub(super) async fn emptied(&self, variant: Variant) -> Result<Option<String>, Error> {
        let Some(references) = &self.references else { return Ok(None) };
        references.empty().await?;
        Ok(references.url(variant).map(str::to_owned))
    }

    pub(super) async fn forebay_round(
        &mut self,
        projector: Projector,
        drive: Drive,
    ) -> Result<(Round, Taken), Error> {
        if projector == Projector::Hold {
            self.hold(Projector::Hold).await?;
        }
        let meter = Meter::start(self.target.pids);
        let loaded = self.load(drive).await;
        let cost = meter.cost(0);
        let lag = self.lag().await;
        if projector == Projector::Hold {
            self.hold(Projector::Run).await?;
        }
        let (round, ledger) = loaded?;
        let lag = lag?;
        let span = self.report.options.warmup + self.report.options.round;
        let projected = lag.map(|lag| (ledger.len() as u64).saturating_sub(lag));
        let projected = projected.filter(|_| projector == Projector::Run);
        let taken = Taken {
            cost: Cost { operations: ledger.len() as u64, ..cost },
            lag_at_end: lag,
            projected_per_second: projected.map(|rows| rate(rows, span)),
            caught_up_per_second: self.catch_up(lag).await?,
        };
        self.ledger.absorb(ledger);
        Ok((round, taken))
    }

    pub(super) async fn load(&mut self, drive: Drive) -> Result<(Round, Ledger), Error> {
        self.run = self.run.wrapping_add(1);
        let options = &self.report.options;
        let (conversations, body_bytes) = match drive.onto {
            Onto::AllPartitions => (self.conversations.clone(), options.body_bytes),
            Onto::OnePartition { body_bytes } => {
                (of_one_partition(&self.conversations, self.target.places.partitions), body_bytes)
            }
        };
        let plan = load::Plan {
            url: drive.url,
            api_key: self.target.api_key.clone(),
            conversations,
            connections: drive.connections,
            amount: Amount::For(options.round),
            warmup: options.warmup,
            body_bytes,
            keys: Keys::Given,
            pace: drive.pace,
            on_refusal: OnRefusal::GoOn,
            on_overload: OnOverload::PressOn,
            run: self.run,
        };
        let outcome = self.watched(plan).await?;
        let round = Round::of(&outcome.phases[0], outcome.span, outcome.unfinished);
        Ok((round, outcome.ledger))
    }

    /// Runs a load and tells on a terminal how it goes.
    async fn watched(&self, plan: load::Plan) -> Result<load::Outcome, Error> {
        let watch = Arc::new(Watch::default());
        let connections = plan.connections;
        let running = load::run(plan, Arc::clone(&watch), self.clock.clone());
        tokio::pin!(running);
        loop {
            tokio::select! {
                outcome = &mut running => return Ok(outcome?),
                () = tokio::time::sleep(TELL_EVERY) => {
                    let (acknowledged, failed) = (watch.acknowledged(), watch.failed());
                    self.narrator.moment(&format!(
                        "{connections} connections: {acknowledged} acknowledged, {failed} not"
                    ));
                }
            }
        }
    }

    /// Raw records from as many callers as there would be connections.
    async fn raw_round(&self, callers: u16) -> Result<(Round, Taken), Error> {
        let Some(references) = &self.references else {
            return Ok(Default::default());
        };
        let options = &self.report.options;
        let plan = callers::Plan {
            callers: usize::from(callers),
            groups: 1,
            warmup: options.warmup,
            length: options.round,
        };
        let (log, clock) = (references.log(), self.clock.clone());
        let body = Bytes::from(vec![b'x'; options.body_bytes]);
        let conversations: Arc<[ConversationId]> = self.conversations.as_slice().into();
        let step = usize::from(callers);
        let call = move |caller: usize, number: u64| {
            let nth = usize::try_from(number).unwrap_or(0).wrapping_mul(step).wrapping_add(caller);
            let conversation = conversations[nth % conversations.len()];
            let (log, body) = (Arc::clone(&log), body.clone());
            async move {
                if log.append(conversation, body).await {
                    Called::Stored(None)
                } else {
                    Called::Refused("refused")
                }
            }
        };
        let driven = async move { Ok(callers::drive(plan, &clock, call).await) };
        let meter = Meter::start(self.services());
        let outcome = references.run(driven).await?;
        let round = Round::of(&outcome.total(), plan.length, outcome.unfinished);
        // The ledger has none of these; the warm-up costs as well, by the length of both.
        let span = (plan.warmup + plan.length).as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let cost = meter.cost((round.per_second * span) as u64);
        Ok((round, Taken { cost, ..Taken::default() }))
    }

    async fn hold(&self, projector: Projector) -> Result<(), Error> {
        match &self.hooks.hold {
            Some(hold) => asked("asking the projector to wait or go on", hold(projector)).await,
            None => Ok(()),
        }
    }

    async fn lag(&self) -> Result<Option<u64>, Error> {
        match &self.hooks.lag {
            Some(lag) => asked("asking for the projector's lag", lag(())).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits until everything is projected; rows a second, if there was enough to project.
    async fn catch_up(&self, lag: Option<u64>) -> Result<Option<f64>, Error> {
        let Some(lag) = lag else { return Ok(None) };
        self.narrator.moment(&format!("the projector catches up {lag} events"));
        let began = self.clock.now();
        while self.lag().await?.is_some_and(|lag| lag > 0) {
            if self.clock.now().saturating_duration_since(began) > CATCH_UP_MAX {
                return Err(Error::ProjectorBehind);
            }
            tokio::time::sleep(LAG_LOOK).await;
        }
        let took = self.clock.now().saturating_duration_since(began);
        Ok((lag >= LAG_WORTH_MEASURING).then(|| rate(lag, took)))
    }

    /// Ends the references and takes away what they made.
    pub(super) async fn remove_references(&mut self) -> Result<(), Error> {
        match self.references.take() {
            Some(references) => references.remove().await,
            None => Ok(()),
        }
    }

    /// Audits the receipts and gives the report.
    pub(super) async fn finish(mut self) -> Result<Report, Error> {
        self.report.acknowledged = self.ledger.len() as u64;
        self.report.server_rss_bytes = self.target.pids.server_rss_bytes();
        if let Some(stored) = &self.hooks.stored {
            self.narrator.moment("reading the log back for the audit");
            let stored = asked("reading the log back", stored(self.conversations)).await?;
            self.report.audit = Some(self.ledger.audit(stored));
        }
        self.narrator.finish();
        Ok(self.report)
    }
}

/// A lag below this is caught up too soon to tell a rate from.
const LAG_WORTH_MEASURING: u64 = 10_000;

/// How often the lag is looked at while the projector catches up.
const LAG_LOOK: Duration = Duration::from_millis(25);

/// How long the projector may take to catch up; after that the next round would be unfair, and the run ends.
const CATCH_UP_MAX: Duration = Duration::from_mins(5);

/// How often the moving line is renewed; rare, because the line costs what is measured.
const TELL_EVERY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_onto_one_partition_go_to_its_conversations_only() {
        let partitions = Partitions::new(4).unwrap();
        let all: Vec<_> = (0..100).map(|n| ConversationId::derive([n; 16])).collect();
        let some = of_one_partition(&all, partitions);
        assert!(some.len() > 5 && some.len() < 60, "{}", some.len());
        assert!(some.iter().all(|id| partitions.of(*id) == partitions.of(all[0])));
        assert_eq!(of_one_partition(&[], partitions), []);
    }
}
