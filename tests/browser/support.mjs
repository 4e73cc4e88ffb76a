/** What the tests in a browser share: the server under test, a proxy that can cut its connections, pages, and waiting. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { Fake, KEY } from "./fake.mjs";

const { FOREBAY_URL, FOREBAY_TOKEN, FOREBAY_CONVERSATION, CHROMIUM = "/usr/bin/chromium" } = process.env;

/** Passes bytes on to the server; can cut connections, refuse new ones and swallow what the server says. */
class Proxy {
  sockets = new Set();
  closed = false;
  muted = false;

  async start(target) {
    this.server = createServer(near => {
      if (this.closed) return near.destroy();
      const far = connect(Number(target.port || 80), target.hostname);
      near.pipe(far);
      far.on("data", bytes => { if (!this.muted) near.write(bytes); });
      for (const [one, other] of [[near, far], [far, near]]) {
        one.on("error", () => other.destroy());
        one.on("close", () => { this.sockets.delete(one); other.destroy(); });
        this.sockets.add(one);
      }
    });
    await new Promise(done => this.server.listen(0, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  cut() { for (const socket of this.sockets) socket.destroy(); }
  stop() { this.cut(); this.server.close(); }
}

/** The server of FOREBAY_URL, or a fake one; behind a proxy, with a browser. */
export async function begin() {
  const fake = FOREBAY_URL ? null : await new Fake().start();
  const base = FOREBAY_URL || fake.url;
  const token = FOREBAY_TOKEN || KEY;
  const proxy = await new Proxy().start(new URL(base));
  const profile = mkdtempSync(join(tmpdir(), "forebay-browser-"));
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath: CHROMIUM,
    headless: true,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  const call = async (path, body) => {
    const answer = await fetch(base + path, { method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers: { authorization: `Bearer ${token}`, "content-type": "application/json" } });
    return answer.json();
  };
  return {
    fake, base, token, proxy, browser, call,
    /** A conversation of its own where the credential may open one, else the given one. */
    conversation: async () => (token.startsWith("fbk_") ? (await call("/v1/conversations", {})).id : FOREBAY_CONVERSATION),
    end: async () => {
      await browser.close();
      proxy.stop();
      fake?.stop();
      rmSync(profile, { recursive: true, force: true });
    },
  };
}

/** Opens the demo page in a tab with storage of the common profile. */
export async function demo(world, conversation, token = world.token, watch = () => {}) {
  const page = await world.browser.newPage();
  watch(page);
  page.on("pageerror", error => { throw error; });
  await page.goto(`${world.proxy.url}/demo#token=${token}&conversation=${conversation}`);
  return page;
}

export const state = (page, wanted, within = 20_000) => page.waitForFunction(state => document.body.dataset.state === state, wanted, { timeout: within });

export async function say(page, text) {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
}

/** The messages that a page shows, in its order. */
export const shown = page => page.$$eval("#log .message", rows => rows.map(row => ({ seq: Number(row.dataset.seq), text: row.querySelector(".text").textContent })));

/** Waits until `look` gives something true, and returns it. */
export async function eventually(look, what, within = 20_000) {
  const end = Date.now() + within;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within ${within} ms: ${what}`);
    await new Promise(done => setTimeout(done, 25));
  }
}

export const has = (page, ...texts) => eventually(async () => {
  const there = (await shown(page)).map(row => row.text);
  return texts.every(text => there.includes(text));
}, `messages ${texts.join(", ")}`);

export const isInstalled = () => spawnSync(CHROMIUM, ["--version"]).status === 0;
