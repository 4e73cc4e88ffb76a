//! Which channels a conversation names, remembered beside the log: its opening may be long gone from memory.
//! Promises that what an opening names is stored before the opening counts as routed.
//! Does not ask Postgres.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Error;
use crate::event::{Body, ChannelId, ConversationId, Event};
use crate::log::bucket::Bucket;

/// Most conversations whose channels are in memory; about 100 bytes each.
const MEMORY_MAX: usize = 20_000;

/// Deadline of one look at the bucket.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Channels of conversations.
#[derive(Debug)]
pub(super) struct Links {
    bucket: Bucket,
    known: HashMap<ConversationId, Arc<[ChannelId]>>,
    /// In the order in which they were learnt; the oldest is forgotten first.
    order: VecDeque<ConversationId>,
}

impl Links {
    pub(super) fn new(bucket: Bucket) -> Self {
        Self { bucket, known: HashMap::new(), order: VecDeque::new() }
    }

    /// Stores what an opening names. Repeating it changes nothing.
    ///
    /// # Errors
    /// When the bucket cannot store it now.
    pub(super) async fn learn(&mut self, event: &Event, now: Instant) -> Result<(), Error> {
        let Body::Opened(opening) = &event.body else {
            return Ok(());
        };
        let channels: Arc<[ChannelId]> = opening.channels.as_slice().into();
        if !channels.is_empty() {
            let value = serde_json::to_vec(&opening.channels).expect("ids can be encoded");
            let key = event.conversation.to_string();
            self.bucket.put(&key, value.into(), now + LOOK_MAX).await?;
        }
        self.remember(event.conversation, channels);
        Ok(())
    }

    /// What is known of a conversation without a look.
    pub(super) fn known(&self, conversation: ConversationId) -> Option<Arc<[ChannelId]>> {
        self.known.get(&conversation).map(Arc::clone)
    }

    /// Looks a conversation up.
    ///
    /// # Errors
    /// When the bucket does not answer now, or has what cannot be read.
    pub(super) async fn look(
        &mut self,
        conversation: ConversationId,
        now: Instant,
    ) -> Result<(), Error> {
        if self.known.contains_key(&conversation) {
            return Ok(());
        }
        let found = self.bucket.get(&conversation.to_string(), now + LOOK_MAX).await?;
        let channels =
            found.map_or_else(|| Ok(Vec::new()), |found| read(conversation, &found.value))?;
        self.remember(conversation, channels.into());
        Ok(())
    }

    fn remember(&mut self, conversation: ConversationId, channels: Arc<[ChannelId]>) {
        if self.known.insert(conversation, channels).is_none() {
            self.order.push_back(conversation);
        }
        while self.order.len() > MEMORY_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

fn read(conversation: ConversationId, value: &[u8]) -> Result<Vec<ChannelId>, Error> {
    serde_json::from_slice(value).map_err(|source| Error::Unreadable {
        what: format!("what {conversation} names"),
        source: source.into(),
    })
}
