/** forebay.js in Node, over real sockets to the fake server: what is hard to provoke from a page. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import WebSocket from "ws";
import { Forebay } from "../../src/api/forebay.js";
import { Fake, KEY } from "./fake.mjs";
import { eventually } from "./support.mjs";

let fake, conversation, clients;

beforeEach(async () => {
  fake = await new Fake().start();
  conversation = fake.open();
  clients = [];
});
afterEach(() => {
  for (const client of clients) client.close();
  fake.stop();
});

function client(options = {}) {
  const heard = { events: [], errors: [], gaps: [], restarts: [], states: [], acks: [], typing: [] };
  const kept = new Map();
  const live = new Forebay({
    url: fake.url, token: KEY, conversationId: conversation.id, WebSocket, watermarkStore: kept,
    onEvent: event => heard.events.push(event), onError: error => heard.errors.push(error), onGap: place => heard.gaps.push(place), onAck: ack => heard.acks.push(ack),
    onRestart: gone => heard.restarts.push(gone), onState: status => heard.states.push(`${status.state} ${status.reason ?? ""}`.trim()), onTyping: typing => heard.typing.push(typing), ...options,
  });
  clients.push(live);
  live.connect();
  return Object.assign(live, { heard, kept, seqs: () => heard.events.map(event => event.seq) });
}

const is = (live, state) => eventually(() => live.status.state === state, `${state}, it is ${live.status.state}`);
const fill = count => { for (let at = 0; at < count; at += 1) fake.append(conversation, { text: `${at}` }); };
const upTo = count => Array.from({ length: count }, (_, index) => index + 1);
const cut = () => { for (const session of fake.sessions) session.socket.terminate(); };

test("replays from the start, then is live; own sends come with their receipt", async () => {
  fill(3);
  const live = client();
  await is(live, "live");
  const ack = await live.send({ text: "hello" });
  fill(1);
  await eventually(() => live.seqs().length === 6, "six events");
  assert.deepEqual(live.seqs(), upTo(6));
  assert.equal(ack.seq, 5);
  assert.deepEqual(live.heard.events.map(event => event.own), [false, false, false, false, true, false]);
});

test("a conversation that begins live names no watermark and has everything from then on", async () => {
  fill(3);
  const live = client({ start: "live" });
  await is(live, "live");
  fill(1);
  await eventually(() => live.seqs().length, "an event");
  assert.deepEqual(live.seqs(), [5]);
  assert.ok(!("watermark" in fake.received[0]));
});

test("a replay that is too long is asked for again until it is complete", async () => {
  fake.replayMax = 10;
  fill(44);
  const live = client();
  await is(live, "live");
  assert.deepEqual(live.seqs(), upTo(45));
  assert.equal(fake.received.filter(frame => frame.frame === "sync").length, 4);
});

test("what is no longer kept is told, and reading restarts at the oldest", async () => {
  fill(19);
  conversation.oldest = 11;
  const live = client();
  await is(live, "live");
  assert.deepEqual(live.seqs(), upTo(20).slice(10));
  assert.deepEqual(live.heard.restarts, [{ conversationId: conversation.id, oldestSeq: 11, watermark: 0, epoch: "e1", newLog: false }]);
});

test("another epoch is another log", async () => {
  fill(4);
  const live = client();
  await is(live, "live");
  fake.epoch = "e2";
  cut();
  await eventually(() => live.heard.restarts.length, "a restart");
  await is(live, "live");
  assert.equal(live.heard.restarts[0].newLog, true);
  assert.deepEqual(live.seqs(), [...upTo(5), ...upTo(5)]);
  assert.equal(live.status.conversations[0].epoch, "e2");
});

test("a watermark above the head is asked for again, then given up for the head", async () => {
  fill(4);
  const kept = new Map([[`forebay/${new URL(fake.url).host}/${conversation.id}`, { epoch: "e1", watermark: 9 }]]);
  const live = client({ watermarkStore: kept });
  await eventually(() => live.heard.errors.some(error => error.number === 1003), "1003");
  await is(live, "live");
  assert.equal(live.status.conversations[0].watermark, 5);
});

test("without a page it must be told where the server is", async () => {
  for (const url of [undefined, "", "nowhere"]) {
    const lost = new Forebay({ url, token: KEY, conversationId: conversation.id, WebSocket, watermarkStore: new Map() });
    await assert.rejects(lost.connect(), error => error.constructor === Error && /option url/.test(error.message));
    assert.equal(lost.status.state, "idle");
  }
});

test("the kept watermark stays before a gap and passes it when it is filled", async () => {
  fill(9);
  conversation.remembered = 100;
  fake.setPressure(true);
  const live = client();
  await is(live, "gap");
  fill(2);
  await live.send({ text: "stored nevertheless" });
  await eventually(() => live.kept.size, "a kept watermark");
  assert.deepEqual([...live.kept.values()], [{ epoch: "e1", watermark: 0 }]);
  assert.deepEqual(live.status.conversations[0].gaps, [{ from: 1, to: 10, cause: "pressure", announced: true }]);
  assert.ok(live.heard.events.every(event => event.beyondGap));
  live.sync();
  await eventually(() => fake.received.some(frame => frame.frame === "sync"), "a sync");
  assert.equal(live.status.state, "gap");
  fake.setPressure(false);
  await is(live, "live");
  await eventually(() => [...live.kept.values()][0].watermark === 13, "the watermark to be kept");
  assert.deepEqual(live.seqs(), [11, 12, 13, ...upTo(10)]);
  assert.deepEqual(live.heard.gaps.at(-1).gaps, []);
});

test("a hole that nobody announced is asked for after a moment", async () => {
  const live = client();
  await is(live, "live");
  const [session] = fake.sessions;
  session.live = () => {};
  fill(2);
  delete session.live;
  fill(1);
  await eventually(() => live.seqs().length === 4, "what was missing");
  assert.deepEqual(live.seqs(), [1, 4, 2, 3]);
  await is(live, "live");
});

test("a send without a receipt is repeated under its client id, in order, and stored once", async () => {
  const live = client();
  await is(live, "live");
  const [session] = fake.sessions;
  const { say } = session;
  session.say = (frame, fields) => frame === "ack" ? null : say.call(session, frame, fields);
  const sends = ["a", "b", "c"].map(text => live.send({ text }));
  await eventually(() => conversation.events.length === 4, "three stored");
  cut();
  const acks = await Promise.all(sends);
  assert.deepEqual(acks.map(ack => [ack.seq, ack.duplicate]), [[2, true], [3, true], [4, true]]);
  assert.deepEqual(live.seqs(), upTo(4));
  assert.deepEqual(live.heard.events.slice(1).map(event => event.own), [true, true, true]);
  const ids = fake.received.filter(frame => frame.frame === "message").map(frame => frame.clientId);
  assert.deepEqual(ids.slice(0, 3), ids.slice(3));
});

test("no more than 32 sends are without a receipt, and no more than the rate go out", async () => {
  const live = client();
  await is(live, "live");
  let [unacked, most] = [0, 0];
  const [session] = fake.sessions;
  const { say } = session;
  const store = fake.store.bind(fake);
  fake.store = (...all) => { unacked += 1; most = Math.max(most, unacked); return store(...all); };
  session.say = (frame, fields) => setTimeout(() => { if (frame === "ack") unacked -= 1; say.call(session, frame, fields); }, 50);
  const began = Date.now();
  await Promise.all(upTo(60).map(at => live.send({ text: `${at}` })));
  assert.ok(most <= 32, `${most}`);
  assert.ok(Date.now() - began > 800, "60 frames are more than a burst of 40");
  assert.deepEqual(conversation.events.slice(1).map(event => event.text), upTo(60).map(String));
});

test("an overloaded server is asked again, a final refusal rejects", async () => {
  const live = client();
  await is(live, "live");
  fake.refuse = { code: "unavailable", number: 9001, retryAfterMs: 100 };
  const sent = live.send({ text: "later" });
  await eventually(() => fake.received.filter(frame => frame.frame === "message").length > 1, "a second try");
  fake.refuse = null;
  assert.equal((await sent).seq, 2);
  fake.refuse = { code: "conversation_closed", number: 4000 };
  await assert.rejects(live.send({ text: "too late" }), { code: "conversation_closed", number: 4000 });
  await assert.rejects(live.send({ text: "x".repeat(200_000) }), { number: 3001 });
  await assert.rejects(live.send({ text: "x", conversationId: "cnv_other" }), { number: 1001 });
  assert.equal(live.status.unsent, 0);
});

test("when a frame was not read, all sends without a receipt go out again", async () => {
  const live = client();
  await is(live, "live");
  const [session] = fake.sessions;
  const { store } = fake;
  fake.store = () => { fake.store = store; session.error("rate_limited", 3000, { retryAfterMs: 50 }); return { id: "msg_none", seq: 0, at: "" }; };
  const { say } = session;
  session.say = (frame, fields) => fields.seq === 0 ? null : say.call(session, frame, fields);
  assert.equal((await live.send({ text: "hello" })).seq, 2);
});

test("the outbox is bounded, and closing rejects what is in it", async () => {
  const live = client({ url: "http://127.0.0.1:1" });
  const sends = upTo(1000).map(() => live.send({ text: "x" }));
  await assert.rejects(live.send({ text: "one more" }), { code: "outbox_full" });
  live.close();
  for (const result of await Promise.allSettled(sends)) assert.equal(result.reason.code, "closed");
  assert.equal(live.status.state, "idle");
});

test("4403 ends it; 4401 asks for a token; the rest reconnects after what the server says", async () => {
  const revoked = client();
  await is(revoked, "live");
  for (const session of fake.sessions) session.close(4403, "forbidden", 2002);
  await is(revoked, "stopped");
  let asked = 0;
  const renewed = client({ token: "a.b.c", getToken: async () => { asked += 1; return KEY; } });
  await is(renewed, "live");
  assert.equal(asked, 1);
  for (const code of [1012, 1013, 4408, 4503, 1011]) {
    for (const session of fake.sessions) session.close(code, "unavailable", 9001, 300);
    await is(renewed, "reconnecting");
    const { retryAt, reason } = renewed.status;
    assert.equal(reason, "unavailable");
    assert.ok(retryAt - Date.now() > 250, `${code} came back before its time`);
    await is(renewed, "live");
  }
  assert.equal(asked, 1);
});

test("without a way to a new token, 4401 ends it", async () => {
  const live = client({ token: "a.b.c" });
  const sent = live.send({ text: "never" });
  await assert.rejects(sent, { code: "unauthorized", number: 2000 });
  assert.equal(live.status.state, "stopped");
});

test("a token is renewed on the open socket before it expires", async () => {
  let asked = 0;
  const live = client({ token: undefined, getToken: () => { asked += 1; return fake.token({ userId: "ann", ttlSeconds: 2 }).token; } });
  await eventually(() => fake.received.filter(frame => frame.frame === "auth").length > 1, "two renewals");
  assert.equal(fake.received.filter(frame => frame.frame === "hello").length, 1);
  assert.ok(asked >= 3);
  assert.equal(live.status.state, "live");
});

test("a socket from which nothing comes is given up", async () => {
  fake.limits = { ...fake.limits, heartbeatMs: 100 };
  const live = client();
  await is(live, "live");
  const [session] = fake.sessions;
  session.say = () => {};
  await eventually(() => live.heard.states.includes("reconnecting closed_1006"), "the end");
  await is(live, "live");
});

test("several conversations share a socket, and can be joined and left", async () => {
  const other = fake.open();
  const live = client({ conversationId: undefined, conversationIds: [conversation.id, other.id] });
  await is(live, "live");
  fake.append(other, { text: "there" });
  fill(1);
  await eventually(() => live.heard.events.length === 4, "four events");
  assert.deepEqual(live.heard.events.filter(event => event.conversationId === other.id).map(event => event.seq), [1, 2]);
  const third = fake.open();
  await live.join(third.id);
  await eventually(() => live.heard.events.some(event => event.conversationId === third.id), "the third");
  const ack = await live.send({ conversationId: third.id, text: "hello" });
  assert.equal(ack.conversationId, third.id);
  live.leave(third.id);
  await assert.rejects(live.send({ conversationId: third.id, text: "gone" }), { number: 1001 });
  await live.join("cnv_unknown");
  await eventually(() => live.heard.errors.some(error => error.number === 4001), "4001");
  assert.equal(live.status.conversations.find(place => place.conversationId === "cnv_unknown").phase, "refused");
  await assert.rejects(live.send({ conversationId: "cnv_unknown", text: "to nobody" }), { number: 1001 });
});

test("typing and reading reach the others", async () => {
  const [one, two] = [client(), client()];
  await is(one, "live");
  await is(two, "live");
  one.typing(true);
  await eventually(() => two.heard.typing.length, "typing");
  assert.equal(two.heard.typing[0].isTyping, true);
});
