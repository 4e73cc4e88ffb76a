//! The directory, against a real nats-server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::clock::Clock;
use forebay::directory::{
    ApiKey, ChannelPatch, ChannelStatus, Directory, Error, NewChannel, NewTenant, Tenant,
    TenantPatch, TenantStatus, When,
};
use forebay::lifecycle::{Kind, Supervisor};
use forebay::log::bucket;
use futures_util::TryStreamExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::timeout;

use crate::world::World;

/// What the directory promises for a change to reach every node.
const SECOND: Duration = Duration::from_secs(1);

/// Longer than anything here may take, and shorter than the client library's own patience.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_change_on_one_node_reaches_the_others_within_a_second() {
    let world = World::new().await;
    let (a, b) = (node(&world).await, node(&world).await);
    let (tenant, key) = a.tenant("acme").await;

    b.sees(SECOND, |b| b.authenticate(key.expose()).is_some()).await;
    let access = b.directory.authenticate(key.expose()).unwrap();
    assert_eq!(access.tenant, tenant);

    let (channel, secret) = a.channel(&tenant, "https://example.com/a").await.unwrap();
    let known = |b: &Directory| b.channel(tenant.id, channel.id);
    b.sees(SECOND, |b| known(b).is_some()).await;
    assert_eq!(known(&b.directory).unwrap().secret, secret);

    let paused = ChannelPatch { status: Some(ChannelStatus::Paused), ..ChannelPatch::default() };
    let update = b.directory.update_channel(tenant.id, channel.id, paused, when());
    update.await.unwrap();
    let is_paused = |a: &Directory| known(a).unwrap().status == ChannelStatus::Paused;
    a.sees(SECOND, is_paused).await;

    let delete = a.directory.delete_channel(tenant.id, channel.id, deadline());
    delete.await.unwrap();
    b.sees(SECOND, |b| b.channels(tenant.id).is_empty()).await;
}

#[tokio::test]
async fn a_revoked_key_and_a_suspended_tenant_let_nobody_in() {
    let world = World::new().await;
    let (a, b) = (node(&world).await, node(&world).await);
    let (tenant, first) = a.tenant("acme").await;
    let (key, second) = a.directory.create_key(tenant.id, when(), &mut rng()).await.unwrap();
    b.sees(SECOND, |b| b.authenticate(second.expose()).is_some()).await;
    assert_eq!(b.directory.keys(tenant.id).len(), 2);

    let mut revoked = b.directory.revoked();
    revoked.mark_unchanged();
    a.directory.revoke_key(tenant.id, key.id, deadline()).await.unwrap();
    assert!(a.directory.authenticate(second.expose()).is_none());
    timeout(SECOND, revoked.changed()).await.unwrap().unwrap();
    assert!(b.directory.authenticate(second.expose()).is_none());
    assert!(b.directory.authenticate(first.expose()).is_some());

    for (status, valid) in [(TenantStatus::Suspended, false), (TenantStatus::Active, true)] {
        let patch = TenantPatch { status: Some(status), ..TenantPatch::default() };
        let update = a.directory.update_tenant(tenant.id, patch, deadline());
        assert_eq!(update.await.unwrap().status, status);
        b.sees(SECOND, |b| b.authenticate(first.expose()).is_some() == valid).await;
    }
    let again = a.directory.revoke_key(tenant.id, key.id, deadline()).await;
    assert!(matches!(again, Err(Error::NotFound(_))));
}

#[tokio::test]
async fn a_write_is_read_by_its_writer_at_once() {
    let world = World::new().await;
    let node = node(&world).await;
    for round in 0..50 {
        let (tenant, key) = node.tenant(&format!("tenant {round}")).await;
        let access = node.directory.authenticate(key.expose()).unwrap();
        assert_eq!(access.tenant.id, tenant.id);
        let (channel, _secret) = node.channel(&tenant, "https://example.com").await.unwrap();
        let known = node.directory.channel(tenant.id, channel.id).unwrap();
        assert_eq!(known, channel);
        node.directory.delete_channel(tenant.id, channel.id, deadline()).await.unwrap();
        assert!(node.directory.channel(tenant.id, channel.id).is_none());
    }
    assert_eq!(node.directory.tenants().len(), 50);
}

#[tokio::test]
async fn everything_is_there_after_a_restart_of_nodes_and_server() {
    let world = World::with_own_nats().await;
    let (tenant, key, channel, token) = {
        let node = node(&world).await;
        let (tenant, key) = node.tenant("acme").await;
        let (channel, _secret) = node.channel(&tenant, "https://example.com").await.unwrap();
        let mut rng = rng();
        let token = node.directory.agree_token_secret(when(), &mut rng).await;
        (tenant, key, channel, token.unwrap())
    };
    world.kill_nats().await;
    world.restart_nats().await;
    let node = node(&world).await;
    assert_eq!(node.directory.tenant(tenant.id), Some(Arc::clone(&tenant)));
    assert_eq!(node.directory.channels(tenant.id), [channel]);
    assert!(node.directory.authenticate(key.expose()).is_some());
    assert_eq!(node.directory.token_secret(), Some(token));
    let status = node.directory.status();
    assert!(status.ready && status.level && status.counts.unreadable == 0);
}

/// Ten kills. A writer goes on as soon as it can; the reader, whose own watch died with the server, hears of every
/// tenant, every suspension and every deletion, each within a second of its acknowledgement.
#[tokio::test]
async fn a_killed_server_costs_a_reader_no_change() {
    let world = World::with_own_nats().await;
    let (writer, reader) = (node(&world).await, node(&world).await);
    let (owner, _key) = writer.tenant("owner").await;
    for round in 0..10 {
        let (channel, _secret) = writer.channel(&owner, "https://example.com").await.unwrap();
        reader.sees(SECOND, |r| r.channel(owner.id, channel.id).is_some()).await;
        world.kill_nats().await;
        let known = reader.directory.channel(owner.id, channel.id);
        assert!(known.is_some(), "memory answers while the server is away");
        world.restart_nats().await;
        let began = Instant::now();
        writer.retry(async |d| d.delete_channel(owner.id, channel.id, deadline()).await).await;
        let (tenant, key) = writer.tenant(&format!("tenant {round}")).await;
        reader.sees(SECOND, |r| r.authenticate(key.expose()).is_some()).await;
        assert!(reader.directory.channel(owner.id, channel.id).is_none());
        assert!(reader.directory.tenant(tenant.id).is_some());
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    }
    assert_eq!(reader.directory.tenants(), writer.directory.tenants());
}

/// The answer to a write that is under way when the server dies never comes; the write is made again as soon as the
/// server is back, and made once.
#[tokio::test]
async fn a_write_under_way_when_the_server_dies_is_made_once() {
    let world = World::with_own_nats().await;
    let node = node(&world).await;
    let (tenant, _key) = node.tenant("acme").await;
    for round in 1..=5 {
        world.pause_nats().await;
        let channels = node.channel(&tenant, "https://example.com");
        let faults = async {
            node.sees_status(|status| status.level).await;
            world.kill_nats().await;
            world.restart_nats().await;
        };
        let began = Instant::now();
        let (made, ()) = tokio::join!(channels, faults);
        made.unwrap();
        assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
        assert_eq!(node.directory.channels(tenant.id).len(), round);
    }
}

#[tokio::test]
async fn without_a_server_writes_fail_soon_and_reads_go_on() {
    let world = World::with_own_nats().await;
    let node = node(&world).await;
    let (tenant, key) = node.tenant("acme").await;
    world.kill_nats().await;
    let began = Instant::now();
    let two_seconds = When { deadline: began + 2 * SECOND, ..when() };
    let refused = node.directory.create_key(tenant.id, two_seconds, &mut rng()).await;
    assert!(refused.unwrap_err().is_retryable());
    assert!(began.elapsed() < 2 * SECOND + SECOND / 2);
    assert!(node.directory.authenticate(key.expose()).is_some());
    node.sees_status(|status| !status.level).await;
    world.restart_nats().await;
    node.sees_status(|status| status.level).await;
}

/// Three fields of one channel are changed on two nodes at the same time, again and again: no change is lost.
#[tokio::test]
async fn changes_of_one_thing_at_the_same_time_are_all_made() {
    let world = World::new().await;
    let (left, right) = (node(&world).await, node(&world).await);
    let (tenant, _key) = left.tenant("acme").await;
    let made = left.channel(&tenant, "https://example.com").await;
    let (channel, _secret) = made.unwrap();
    let patch = |json: String| serde_json::from_str::<ChannelPatch>(&json).unwrap();
    for round in 1..=20 {
        let name = patch(format!(r#"{{"name":"name {round}"}}"#));
        let cap = patch(format!(r#"{{"maxInFlight":{round}}}"#));
        let rate = patch(format!(r#"{{"rateLimit":"{round}/s"}}"#));
        let change = |node: &Node, patch| {
            let directory = node.directory.clone();
            let (tenant, channel) = (tenant.id, channel.id);
            async move { directory.update_channel(tenant, channel, patch, when()).await }
        };
        let (x, y, z) =
            tokio::join!(change(&left, name), change(&right, cap), change(&right, rate));
        for outcome in [x, y, z] {
            outcome.unwrap();
        }
        for node in [&left, &right] {
            node.sees(SECOND, |directory| {
                let channel = directory.channel(tenant.id, channel.id).unwrap();
                let settings = &channel.settings;
                let rate = settings.rate_limit.map(|rate| rate.to_string());
                settings.name == format!("name {round}")
                    && settings.max_in_flight == Some(round)
                    && rate == Some(format!("{round}/s"))
            })
            .await;
        }
    }
}

#[tokio::test]
async fn nodes_that_start_together_agree_on_one_token_secret() {
    let world = World::new().await;
    let nodes = [node(&world).await, node(&world).await, node(&world).await];
    let draw = |index: usize, seed| {
        let directory = nodes[index].directory.clone();
        async move {
            let mut rng = StdRng::seed_from_u64(seed);
            directory.agree_token_secret(when(), &mut rng).await.unwrap()
        }
    };
    let (first, second, third) = tokio::join!(draw(0, 1), draw(1, 2), draw(2, 3));
    assert!(first == second && second == third);
    for node in nodes {
        node.sees(SECOND, |d| d.token_secret() == Some(Arc::clone(&first))).await;
    }
}

#[tokio::test]
async fn what_is_wrong_too_many_or_unknown_is_refused_and_not_stored() {
    let world = World::new().await;
    let node = node(&world).await;
    let (tenant, _key) = node.tenant("acme").await;
    let before = node.directory.status().revision;

    let mut rng = rng();
    let nameless = node.directory.create_tenant(NewTenant::default(), when(), &mut rng);
    let Err(Error::Invalid(invalid)) = nameless.await else { panic!("a tenant without a name") };
    assert_eq!(invalid.faults[0].pointer, "/name");
    let Err(Error::Invalid(invalid)) = node.channel(&tenant, "ftp://example.com").await else {
        panic!("a channel over FTP")
    };
    assert_eq!(invalid.faults[0].pointer, "/url");
    let stranger = forebay::event::TenantId::generate(when().now, &mut rng);
    let patch = TenantPatch::default();
    let unknown = node.directory.update_tenant(stranger, patch, deadline()).await;
    assert!(matches!(unknown, Err(Error::NotFound(_))));
    assert_eq!(node.directory.status().revision, before);

    for _ in 0..forebay::directory::CHANNELS_MAX {
        node.channel(&tenant, "https://example.com").await.unwrap();
    }
    let one_more = node.channel(&tenant, "https://example.com").await;
    assert!(matches!(one_more, Err(Error::Limit { max: 1_000, .. })));
}

/// A server that hangs keeps its connections. A request is given up at its deadline and the memory goes on answering.
#[tokio::test]
async fn a_server_that_hangs_is_given_up_at_the_deadline() {
    let world = World::with_own_nats().await;
    let (a, b) = (node(&world).await, node(&world).await);
    let (tenant, key) = a.tenant("acme").await;
    b.sees(SECOND, |b| b.tenants().len() == 1).await;
    world.pause_nats().await;
    let began = Instant::now();
    let patch = TenantPatch { name: Some("renamed".to_owned()), ..TenantPatch::default() };
    let update = a.directory.update_tenant(tenant.id, patch.clone(), began + SECOND);
    let hung = update.await.unwrap_err();
    assert!(matches!(hung, Error::Unavailable(bucket::Error::Deadline)), "{hung:?}");
    assert!((SECOND..2 * SECOND).contains(&began.elapsed()));
    assert!(b.directory.authenticate(key.expose()).is_some());
    world.resume_nats().await;
    let update = a.directory.update_tenant(tenant.id, patch, deadline());
    update.await.unwrap();
    b.sees(SECOND, |b| b.tenant(tenant.id).unwrap().name == "renamed").await;
}

/// The server's side of a watch goes silent while its heartbeats and the connection live: nothing tells the client.
/// Pausing the consumer does that. The watch notices by itself that revisions were given out which it did not get.
#[tokio::test]
async fn a_watch_that_is_silently_dead_is_replaced() {
    let world = World::with_own_nats().await;
    let (a, b) = (node(&world).await, node(&world).await);
    for round in 0..3 {
        pause_consumers(&world).await;
        let writer = a.directory.clone();
        let new = NewTenant { name: format!("tenant {round}"), ..NewTenant::default() };
        let made = writer.create_tenant(new, when(), &mut rng()).await;
        let (tenant, _key) = made.unwrap();
        let limit = 3 * SECOND;
        b.sees(limit, |b| b.tenant(tenant.id).is_some()).await;
    }
}

/// A node of the test: a directory of its own, on a connection of its own, followed by a task of its own.
struct Node {
    directory: Directory,
    supervisor: Supervisor,
}

impl Drop for Node {
    fn drop(&mut self) {
        let supervisor = self.supervisor.clone();
        drop(tokio::spawn(async move { supervisor.force().await }));
    }
}

async fn node(world: &World) -> Node {
    let (directory, follower) = Directory::open(world.log().await.directory());
    let supervisor = Supervisor::new();
    supervisor.supervise(Kind::Directory, "directory", move |stop| follower.clone().run(stop));
    timeout(PATIENCE, directory.ready()).await.unwrap();
    Node { directory, supervisor }
}

impl Node {
    async fn tenant(&self, name: &str) -> (Arc<Tenant>, ApiKey) {
        let new = NewTenant { name: name.to_owned(), ..NewTenant::default() };
        let mut rng = rng();
        let made = self.directory.create_tenant(new, when(), &mut rng);
        made.await.unwrap()
    }

    async fn channel(
        &self,
        tenant: &Tenant,
        url: &str,
    ) -> Result<(Arc<forebay::directory::Channel>, forebay::directory::ChannelSecret), Error> {
        let new =
            NewChannel { name: "orders".to_owned(), url: url.to_owned(), ..NewChannel::default() };
        let mut rng = rng();
        let made = self.directory.create_channel(tenant.id, (new, Vec::new()), when(), &mut rng);
        made.await
    }

    async fn sees(&self, within: Duration, condition: impl Fn(&Directory) -> bool) {
        let mut changes = self.directory.changes();
        let seen = async {
            while !condition(&self.directory) {
                changes.changed().await.unwrap();
            }
        };
        timeout(within, seen).await.expect("the node does not see it in time");
    }

    async fn sees_status(&self, condition: impl Fn(forebay::directory::Status) -> bool) {
        let seen = async {
            let mut every = tokio::time::interval(Duration::from_millis(10));
            while !condition(self.directory.status()) {
                every.tick().await;
            }
        };
        timeout(PATIENCE, seen).await.expect("the status does not come in time");
    }

    /// Does something until the server is there to do it.
    async fn retry(&self, act: impl AsyncFn(&Directory) -> Result<(), Error>) {
        let done = async {
            let mut every = tokio::time::interval(Duration::from_millis(10));
            while let Err(failure) = act(&self.directory).await {
                assert!(failure.is_retryable(), "{failure}");
                every.tick().await;
            }
        };
        timeout(PATIENCE, done).await.expect("the server does not come back");
    }
}

/// Lets the server's side of every watch of the directory stop delivering.
async fn pause_consumers(world: &World) {
    let client = async_nats::connect(world.nats_url()).await.unwrap();
    let stream = format!("KV_{}_DIRECTORY", world.namespace().as_str());
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream(stream).await.unwrap();
    let names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
    assert!(!names.is_empty());
    let until = time::OffsetDateTime::now_utc() + Duration::from_mins(1);
    for name in names {
        stream.pause_consumer(&name, until).await.unwrap();
    }
}

fn when() -> When {
    When { now: Clock::system().timestamp(), deadline: deadline() }
}

fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Another one at every call: two tenants of one test must not share their keys.
fn rng() -> StdRng {
    StdRng::from_rng(&mut rand::rng())
}
