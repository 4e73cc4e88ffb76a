/**
 * The demo page in Chromium, against the server of FOREBAY_URL (with FOREBAY_TOKEN, and FOREBAY_CONVERSATION unless the token is
 * an API key) or against the fake one. What only the fake one can be made to do is skipped with a real server.
 */
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { begin, demo, eventually, has, say, shown, state } from "./support.mjs";

const real = process.env.FOREBAY_URL ? "only with the fake server" : false;
const anApiKey = process.env.FOREBAY_TOKEN && !process.env.FOREBAY_TOKEN.startsWith("fbk_") ? "needs an API key" : false;
let world;

before(async () => { world = await begin(); });
after(() => world?.end());
afterEach(async () => {
  world.proxy.closed = world.proxy.muted = false;
  for (const page of world.browser.pages()) await page.close();
});

/** Nothing lost, nothing twice, in order. */
async function assertWhole(page, texts) {
  await has(page, ...texts);
  const rows = await shown(page);
  const seqs = rows.map(row => row.seq);
  assert.deepEqual(seqs, [...new Set(seqs)].sort((a, b) => a - b), "the seqs are in order and each is there once");
  for (const text of texts) assert.equal(rows.filter(row => row.text === text).length, 1, text);
}

const stamp = text => `${text} ${Date.now()}`;
const watermark = page => page.$eval("#watermark", element => Number(element.textContent));

test("what one page sends, the other shows", async () => {
  const conversation = await world.conversation();
  const [ann, bo] = [await demo(world, conversation), await demo(world, conversation)];
  await state(ann, "live");
  await state(bo, "live");
  const texts = ["hello from ann", "hello from bo", "and again from ann"].map(stamp);
  await say(ann, texts[0]);
  await has(bo, texts[0]);
  await say(bo, texts[1]);
  await has(ann, texts[1]);
  await say(ann, texts[2]);
  for (const page of [ann, bo]) await assertWhole(page, texts);
  assert.equal(await ann.$$eval("#log .own .about", rows => rows.filter(row => row.textContent.includes("stored")).length), 2);
  assert.equal(await ann.$$eval("#unsent li", rows => rows.length), 0);
});

test("a cut connection comes back without loss or repeat", async () => {
  const conversation = await world.conversation();
  const [ann, bo] = [await demo(world, conversation), await demo(world, conversation)];
  await state(ann, "live");
  await state(bo, "live");
  const texts = [];
  for (let round = 0; round < 3; round += 1) {
    texts.push(stamp(`${round} before`), stamp(`${round} meanwhile`), stamp(`${round} elsewhere`));
    const [before, meanwhile, elsewhere] = texts.slice(-3);
    await say(ann, before);
    await has(bo, before);
    world.proxy.closed = true;
    world.proxy.cut();
    await state(bo, "reconnecting");
    await say(bo, meanwhile);
    await world.call(`/v1/conversations/${conversation}/messages`, { text: elsewhere });
    assert.equal(await bo.$$eval("#unsent .waiting", rows => rows.length), 1);
    world.proxy.closed = false;
    await state(ann, "live");
    await state(bo, "live");
    for (const page of [ann, bo]) await has(page, meanwhile, elsewhere);
  }
  for (const page of [ann, bo]) await assertWhole(page, texts);
});

test("a send whose receipt was lost is sent again under its client id and stored once", async () => {
  const conversation = await world.conversation();
  const page = await demo(world, conversation);
  await state(page, "live");
  const text = stamp("sent twice, stored once");
  world.proxy.muted = true;
  await say(page, text);
  const clientId = await page.$eval("#unsent .waiting", row => row.dataset.clientId);
  const stored = async () => (await world.call(`/v1/conversations/${conversation}/messages?order=desc&limit=50`)).messages.filter(message => message.clientId === clientId);
  await eventually(async () => (await stored()).length === 1, "the message to be stored");
  world.proxy.muted = false;
  world.proxy.cut();
  await assertWhole(page, [text]);
  await eventually(() => page.$$eval("#unsent li", rows => rows.length === 0), "the receipt");
  assert.equal((await stored()).length, 1);
  if (world.fake) assert.equal(world.fake.received.filter(frame => frame.clientId === clientId).length, 2);
});

test("the watermark survives a reload", async () => {
  const conversation = await world.conversation();
  const page = await demo(world, conversation);
  await state(page, "live");
  const [first, second] = ["before the reload", "while it was away"].map(stamp);
  await say(page, first);
  await has(page, first);
  const kept = await watermark(page);
  const wanted = { url: "forebay/", watermark: kept };
  await page.waitForFunction(wanted => Object.entries(localStorage).some(([key, value]) => key.startsWith(wanted.url) && JSON.parse(value).watermark === wanted.watermark), wanted);
  await page.goto(`${world.proxy.url}/openapi.json`);
  await world.call(`/v1/conversations/${conversation}/messages`, { text: second });
  const hellos = [];
  page.on("websocket", socket => socket.on("framesent", ({ payload }) => { if (`${payload}`.includes("hello")) hellos.push(JSON.parse(payload)); }));
  await page.goto(`${world.proxy.url}/demo#conversation=${conversation}`);
  await state(page, "live");
  assert.equal(hellos[0].watermark, kept);
  await assertWhole(page, [first, second]);
  assert.ok(!page.url().includes("token="), "the credential does not stay in the address");
});

test("a token that expires is replaced on the open socket", { skip: anApiKey }, async () => {
  const conversation = await world.conversation();
  const { token, expiresAt } = await world.call("/v1/tokens", { conversationId: conversation, userId: "ann", ttlSeconds: 5 });
  const frames = [];
  const page = await demo(world, conversation, token, page => page.on("websocket", socket => socket.on("framesent", ({ payload }) => frames.push(JSON.parse(payload).frame))));
  await state(page, "live");
  await eventually(() => frames.includes("auth"), "a renewal");
  await eventually(() => Date.now() > Date.parse(expiresAt) + 500, "the first token's end");
  const text = stamp("with the second token");
  await say(page, text);
  await assertWhole(page, [text]);
  assert.equal(frames.filter(frame => frame === "hello").length, 1);
});

test("a refused credential leads back to the door", async () => {
  const page = await demo(world, await world.conversation(), "fbk_wrong");
  await page.waitForSelector("#wrong:not([hidden])");
  assert.match(await page.textContent("#wrong"), /refused/);
});

test("the door opens a new conversation with an API key", { skip: anApiKey }, async () => {
  const page = await world.browser.newPage();
  await page.goto(`${world.proxy.url}/demo`);
  await page.evaluate(() => sessionStorage.clear());
  await page.reload();
  await page.fill("#credential", world.token);
  await page.press("#credential", "Enter");
  await state(page, "live");
  const text = stamp("the first one");
  await say(page, text);
  await assertWhole(page, [text]);
  assert.match(page.url(), /#conversation=cnv_/);
});

test("a gap is announced, shown, written beyond, and filled without anybody's doing", { skip: real }, async () => {
  const { fake } = world;
  const conversation = fake.open();
  const fill = (from, to) => { for (let at = from; at <= to; at += 1) fake.append(conversation, { text: `message ${at}`, sender: { id: "bo" } }); };
  fill(2, 40);
  const page = await demo(world, conversation.id);
  await state(page, "live");
  await page.waitForFunction(() => Object.keys(localStorage).some(key => localStorage.getItem(key).includes("40")));
  await page.evaluate(() => window.forebay.close());
  fill(41, 57);
  conversation.remembered = 1000;
  fake.setPressure(true);
  await page.reload();
  await state(page, "gap");
  assert.match(await page.textContent(".gap"), /^Messages 41–57 are missing; they come when the database is back\./);
  fill(58, 60);
  await say(page, "I go on");
  await has(page, "message 60", "I go on");
  assert.deepEqual([await watermark(page), await page.textContent("#head"), await page.textContent("#missing")], [40, "61", "17"]);
  const order = await page.$$eval("#log > li:not([hidden])", rows => rows.map(row => row.dataset.seq ?? row.dataset.from));
  assert.deepEqual(order.filter(Boolean), ["41", "58", "59", "60", "61"]);
  await page.click(".gap button");
  await eventually(() => fake.received.some(frame => frame.frame === "sync" && frame.watermark === 40), "a sync");
  fake.setPressure(false);
  await state(page, "live");
  await assertWhole(page, ["message 41", "message 57", "message 58", "I go on"]);
  assert.equal(await page.$$eval(".gap", rows => rows.length), 0);
  assert.equal(await watermark(page), 61);
  await page.click("#earlier");
  await has(page, "message 2");
});

test("the page is narrow without scrolling sideways, and every control has a name", async () => {
  const page = await demo(world, await world.conversation());
  await page.setViewportSize({ width: 320, height: 560 });
  await state(page, "live");
  await say(page, stamp("averylongwordthatdoesnotbreakanywhere".repeat(6)));
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 320 && document.getElementById("scroll").scrollWidth <= 320));
  const nameless = await page.$$eval("button, textarea, input", all => all.filter(each => !(each.textContent.trim() || each.ariaLabel || each.labels?.length)).map(each => each.id));
  assert.deepEqual(nameless, []);
});
