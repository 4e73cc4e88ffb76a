/** Deliveries and inbound webhooks beside the published library for Node. `webhooks_test.py` does the same with that for Python. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { Webhook, WebhookVerificationError } from "standardwebhooks";

const { FOREBAY_URL, FOREBAY_TOKEN } = process.env;

/** How long a delivery may take. */
const PATIENCE_MS = 20_000;

/** Every text is followed by these: what a library or a server might write differently than it was read. */
const ODD = " \u2028 \u00fc \u{1f980} \\ \" < 1.0";

const OTHER_SECRET = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;

const received = [];
let answers = [];
let come = () => {};

const receiver = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  received.push({ headers: request.headers, body: Buffer.concat(parts).toString("utf8") });
  come();
  response.writeHead(answers.shift() ?? 200).end();
});

before(() => new Promise(done => receiver.listen(0, "127.0.0.1", done)));
after(() => { receiver.closeAllConnections(); receiver.close(); });

async function call(path, body, headers = { authorization: `Bearer ${FOREBAY_TOKEN}` }) {
  const options = { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body), headers: { "content-type": "application/json", ...headers } };
  const answer = await fetch(FOREBAY_URL + path, options);
  return { status: answer.status, body: await answer.json() };
}

/** The requests whose body has this text, when there are so many of them. */
async function deliveries(text, count = 1) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = received.filter(({ body }) => body.includes(text));
    if (found.length >= count) return found;
    const left = deadline - Date.now();
    assert(left > 0, `${found.length} deliveries of ${text}, ${count} awaited`);
    await new Promise(done => { come = done; setTimeout(done, left).unref(); });
  }
}

async function channel() {
  const url = `http://127.0.0.1:${receiver.address().port}/node`;
  const made = await call("/v1/channels", { name: "node", url, retry: { baseSeconds: 1, capSeconds: 1 } });
  assert.equal(made.status, 201, JSON.stringify(made));
  return made.body;
}

const open = async () => (await call("/v1/conversations", {})).body.id;

async function send(conversation, text) {
  const sent = await call(`/v1/conversations/${conversation}/messages`, { text: text + ODD });
  assert.equal(sent.status, 201, JSON.stringify(sent));
}

const refused = (secret, body, headers) => assert.throws(() => new Webhook(secret).verify(body, headers), WebhookVerificationError);

/** The library takes a delivery, and nothing that differs from it. */
function verify({ headers, body }, secret) {
  const webhook = new Webhook(secret);
  const read = webhook.verify(body, headers);
  assert.equal(read.type, "message");
  assert(read.data.text.endsWith(ODD), body);
  refused(secret, body.replace("message", "massage"), headers);
  refused(secret, `${body} `, headers);
  refused(secret, body, { ...headers, "webhook-timestamp": String(Number(headers["webhook-timestamp"]) + 1) });
  refused(secret, body, { ...headers, "webhook-id": `${headers["webhook-id"]}0` });
  refused(OTHER_SECRET, body, headers);
}

test("the library verifies deliveries, repeats of them, and both signatures of a rotation", async () => {
  const { id, secret } = await channel();
  const conversation = await open();
  await send(conversation, "node one");
  const [first] = await deliveries("node one");
  assert.equal(first.headers["webhook-signature"].split(" ").length, 1);
  verify(first, secret);

  answers = [500];
  await send(conversation, "node two");
  const [failed, again] = await deliveries("node two", 2);
  assert.equal(again.headers["webhook-id"], failed.headers["webhook-id"]);
  assert.equal(again.body, failed.body);
  for (const one of [failed, again]) verify(one, secret);

  const rotated = await call(`/v1/channels/${id}/rotate-secret`, {});
  assert.equal(rotated.status, 200, JSON.stringify(rotated));
  assert.notEqual(rotated.body.secret, secret);
  await send(conversation, "node three");
  const [third] = await deliveries("node three");
  assert.equal(third.headers["webhook-signature"].split(" ").length, 2);
  verify(third, rotated.body.secret);
  verify(third, secret);
  refused(rotated.body.secret, first.body, first.headers);
});

test("what the library signs comes in, and nothing that differs from it", async () => {
  const { id, secret } = await channel();
  const conversationId = await open();
  const body = JSON.stringify({ conversationId, text: `node in${ODD}` });
  const come = async (key, { signer = secret, at = new Date(), sent = body, before = "" } = {}) => {
    const signature = before + new Webhook(signer).sign(key, at, body);
    const headers = { "webhook-id": key, "webhook-timestamp": String(Math.floor(at / 1_000)), "webhook-signature": signature };
    return (await call(`/v1/channels/${id}/inbound`, sent, headers)).status;
  };
  const minutes = count => new Date(Date.now() + count * 60_000);
  assert.equal(await come("evt-1"), 202);
  assert.equal(await come("evt-2", { at: minutes(-4) }), 202);
  const stranger = new Webhook(OTHER_SECRET).sign("evt-3", new Date(), body);
  assert.equal(await come("evt-3", { before: `v1a,AAAA ${stranger} ` }), 202);
  assert.equal(await come("evt-4", { signer: OTHER_SECRET }), 401);
  assert.equal(await come("evt-4", { sent: `${body} ` }), 401);
  assert.equal(await come("evt-4", { at: minutes(-6) }), 401);
  assert.equal(await come("evt-4", { at: minutes(6) }), 401);

  const rotated = await call(`/v1/channels/${id}/rotate-secret`, {});
  assert.equal(await come("evt-5", { signer: rotated.body.secret }), 202);
  assert.equal(await come("evt-6"), 202);
});
