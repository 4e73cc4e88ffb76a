/** The protocol's documents: their examples fit the schemas, every frame has one, and what client and fake server say fits too. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import Ajv from "ajv/dist/2020.js";
import WebSocket from "ws";
import { parse } from "yaml";
import { Forebay } from "../../src/api/forebay.js";
import { Fake, KEY } from "./fake.mjs";
import { eventually } from "./support.mjs";

const read = name => readFileSync(new URL(`../../docs/${name}`, import.meta.url), "utf8");
const api = parse(read("asyncapi.yaml"));
const page = read("PROTOCOL.md");
const ajv = new Ajv({ strict: false, allErrors: true });
ajv.addSchema({ $id: "asyncapi", components: api.components });

const FROM = { "client->server": "fromClient", "server->client": "toClient" };
const messages = way => api.operations[FROM[way]].messages.map(({ $ref }) => $ref.split("/").at(-1));
/** The frame's name on the wire is the message's, unless both sides have one of that name. */
const nameOf = key => api.components.messages[key].name ?? key;
const keyOf = (way, frame) => messages(way).find(key => nameOf(key) === frame);

/** What is wrong with a frame, or null; an unknown field is wrong in an example. */
function faults(way, value) {
  const key = keyOf(way, value.frame);
  if (!key) return `no frame ${value.frame} ${way}`;
  const check = ajv.getSchema(`asyncapi#/components/schemas/${key}`);
  if (!check(value)) return ajv.errorsText(check.errors);
  const unknown = Object.keys(value).filter(field => !(field in api.components.schemas[key].properties));
  return unknown.length ? `unknown fields: ${unknown}` : null;
}

/** Clients whose server's frames are kept. */
function listening(said) {
  return class extends WebSocket {
    constructor(...all) { super(...all); this.addEventListener("message", ({ data }) => said.push(JSON.parse(data))); }
  };
}

function assertFit(said, ...names) {
  for (const frame of said) assert.equal(faults("server->client", frame), null, JSON.stringify(frame));
  const there = new Set(said.map(frame => frame.frame));
  for (const name of names) assert.ok(there.has(name), `no ${name} came`);
}

const examples = [...page.matchAll(/^```json (client->server|server->client) (\w+)\n([\s\S]*?)^```$/gm)].map(([, way, name, text]) => ({ way, name, text }));

for (const { way, name, text } of examples) {
  test(`PROTOCOL.md: ${way} ${name} ${text.match(/"number": (\d+)/)?.[1] ?? ""}`.trim(), () => {
    const value = JSON.parse(text);
    assert.equal(value.frame, name);
    assert.equal(faults(way, value), null);
  });
}

test("PROTOCOL.md has an example of every frame, and no JSON that is not tested", () => {
  for (const way of Object.keys(FROM)) {
    const shown = new Set(examples.filter(example => example.way === way).map(example => example.name));
    assert.deepEqual(messages(way).map(nameOf).filter(name => !shown.has(name)), []);
  }
  assert.equal(page.match(/^```json/gm).length, examples.length);
});

test("asyncapi.yaml: every message is used in one direction and its examples fit", () => {
  const used = Object.keys(FROM).flatMap(messages);
  assert.deepEqual(used.toSorted(), Object.keys(api.components.messages).toSorted());
  assert.deepEqual(Object.keys(api.channels.socket.messages).toSorted(), used.toSorted());
  for (const way of Object.keys(FROM)) for (const key of messages(way)) {
    const { payload, examples } = api.components.messages[key];
    assert.equal(payload.$ref, `#/components/schemas/${key}`);
    assert.ok(examples.length);
    for (const example of examples) assert.equal(faults(way, example.payload), null, key);
  }
});

test("the tables of PROTOCOL.md have the numbers of the schema", () => {
  const rows = [...page.matchAll(/^\| (\d{4}) \| `(\w+)` \|/gm)].map(([, number, code]) => [Number(number), code]);
  const schema = api.components.schemas.error.oneOf.map(({ properties }) => [properties.number.const, properties.code.const]);
  assert.deepEqual(rows, schema);
});

test("what is wrong is found", () => {
  const ping = { frame: "ping" };
  assert.equal(faults("client->server", ping), null);
  assert.match(faults("server->client", ping), /no frame/);
  assert.match(faults("client->server", { frame: "sync", watermark: -1 }), /watermark/);
  assert.match(faults("client->server", { frame: "message", clientId: "a" }), /text/);
  assert.match(faults("client->server", { ...ping, nonse: 1 }), /nonse/);
  assert.match(faults("server->client", { frame: "error", code: "unavailable", number: 9002, message: "", retryable: true }), /oneOf|one schema/);
});

test("what forebay.js and the fake server say to each other fits the schemas", async () => {
  const fake = await new Fake().start();
  const said = [];
  const conversation = fake.open();
  for (let at = 0; at < 5; at += 1) fake.append(conversation, { text: `${at}` });
  conversation.remembered = 100;
  fake.setPressure(true);
  const Listening = listening(said);
  const live = new Forebay({ url: fake.url, getToken: () => fake.token({ userId: "ann", ttlSeconds: 3 }).token, conversationId: conversation.id, WebSocket: Listening });
  const other = new Forebay({ url: fake.url, token: KEY, conversationId: conversation.id, WebSocket: Listening, start: "live" });
  live.connect();
  other.connect();
  await eventually(() => live.status.state === "gap" && other.status.state === "live", "a gap");
  await Promise.all([live.send({ text: "hello" }), other.send({ data: [1] })]);
  for (const client of [live, other]) { client.typing(true); client.read(3); client.ping(1); client.sync(); }
  await live.join(fake.open().id, 0);
  await eventually(() => said.some(frame => frame.frame === "tokenRefreshed"), "a fresh token");
  live.leave(conversation.id);
  fake.setPressure(false);
  await eventually(() => fake.received.some(frame => frame.frame === "leave"), "leaving");
  live.close();
  other.close();
  fake.stop();
  for (const frame of fake.received) assert.equal(faults("client->server", frame), null, JSON.stringify(frame));
  assertFit(said, "welcome", "event", "ack", "error", "replayComplete", "typing", "read", "heartbeat", "tokenRefreshed");
});

const { FOREBAY_URL: url, FOREBAY_TOKEN: token } = process.env;

test("what a real server says fits the schemas", { skip: !(url && token?.startsWith("fbk_")) && "needs FOREBAY_URL and an API key" }, async () => {
  const call = async (path, body) => (await fetch(url + path, { method: "POST", body: JSON.stringify(body), headers: { authorization: `Bearer ${token}`, "content-type": "application/json" } })).json();
  const { id: conversationId } = await call("/v1/conversations", {});
  const said = [];
  const client = userId => new Forebay({
    url, conversationId, WebSocket: listening(said),
    getToken: async () => (await call("/v1/tokens", { conversationId, userId, ttlSeconds: 5 })).token,
  });
  const [ann, bo] = [client("ann"), client("bo")];
  ann.connect();
  await eventually(() => ann.status.state === "live", "ann");
  bo.connect();
  await eventually(() => bo.status.state === "live", "bo");
  await Promise.all([ann.send({ text: "hello", data: [1], metadata: { a: 1 } }), bo.send({ data: { b: null } })]);
  for (const each of [ann, bo]) { each.typing(true); each.read(2); each.ping({ n: 1 }); }
  await assert.rejects(ann.send({ text: "not \u0000 that" }), { number: 1004 });
  await ann.join("cnv_00000000000000000000000000000000");
  const wanted = ["welcome", "event", "ack", "replayComplete", "typing", "read", "presence", "heartbeat", "error", "tokenRefreshed"];
  await eventually(() => wanted.every(name => said.some(frame => frame.frame === name)), "all frames").catch(() => {});
  ann.close();
  bo.close();
  assertFit(said, ...wanted);
});
