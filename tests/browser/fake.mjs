/**
 * A small stand-in for the server: the socket of docs/PROTOCOL.md, the calls that the demo page makes, and handles for tests.
 * Promises what a browser sees of one node with one conversation's worth of memory. Does not check limits, rates or rights.
 */
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { randomBytes } from "node:crypto";
import { WebSocketServer } from "ws";

export const KEY = "fbk_0000000000000000000000000000000000000000000";
const PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self' 'unsafe-inline'; connect-src 'self'; "
  + "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const file = name => readFileSync(new URL(`../../src/api/${name}`, import.meta.url), "utf8");
const id = prefix => prefix + randomBytes(16).toString("hex");
const base64 = value => Buffer.from(JSON.stringify(value)).toString("base64url");

export class Fake {
  epoch = "e1";
  pressure = false; // history below the memory cannot be read
  replayMax = 1000; // events of one replay
  conversations = new Map(); // id -> { events, remembered: lowest seq in memory, keys }
  sessions = new Set();
  received = []; // every frame of a client
  limits = { frameBytes: 131_072, framesPerSecond: 20, frameBurst: 40, unackedSends: 32, outboundFrames: 1000, outboundBytes: 1_048_576, heartbeatMs: 30_000, idleMs: 60_000 };

  async start() {
    this.http = createServer((request, response) => this.#answer(request, response));
    const sockets = new WebSocketServer({ server: this.http, path: "/v1/socket", handleProtocols: offered => (offered.has("forebay.v1+json") ? "forebay.v1+json" : false) });
    sockets.on("connection", socket => this.sessions.add(new Session(this, socket)));
    await new Promise(done => this.http.listen(0, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${this.http.address().port}`;
    return this;
  }

  stop() {
    for (const session of this.sessions) session.socket.terminate();
    this.http.closeAllConnections();
    this.http.close();
  }

  open(name = id("cnv_")) {
    const conversation = { id: name, events: [], remembered: 1, keys: new Map() };
    this.conversations.set(name, conversation);
    this.append(conversation, { type: "conversation.opened" });
    return conversation;
  }

  append(conversation, event, except) {
    const stored = { seq: conversation.events.length + 1, id: id("msg_"), type: "message", at: new Date().toISOString().replace("Z", "000Z"), ...event };
    conversation.events.push(stored);
    for (const session of this.sessions) if (session !== except) session.live(conversation, stored);
    return stored;
  }

  /** A send: the receipt, the first one for a repeat. */
  store(conversation, { clientId, text, data, metadata }, sender, except) {
    const key = `${sender?.id ?? ""} ${clientId}`;
    const known = clientId && conversation.keys.get(key);
    if (known) return { ...known, duplicate: true };
    const { id, seq, at } = this.append(conversation, { text, data, metadata, clientId, sender }, except);
    conversation.keys.set(key, { id, seq, at });
    return { id, seq, at };
  }

  setPressure(on) {
    this.pressure = on;
    if (!on) for (const session of this.sessions) session.refill();
  }

  token({ conversationId, userId, ttlSeconds = 3600 }) {
    const exp = Math.floor(Date.now() / 1000) + ttlSeconds;
    return { token: `${base64({ alg: "HS256" })}.${base64({ cnv: conversationId, sub: userId, exp, jti: id("") })}.c2ln`, expiresAt: new Date(exp * 1000).toISOString() };
  }

  who(credential) {
    if (credential === KEY) return {};
    try {
      const claims = JSON.parse(Buffer.from(credential.split(".")[1], "base64url"));
      return claims.exp * 1000 > Date.now() ? { sender: claims.sub && { id: claims.sub }, expiresAt: new Date(claims.exp * 1000).toISOString(), claims } : null;
    } catch { return null; }
  }

  async #answer(request, response) {
    const url = new URL(request.url, this.url);
    const say = (status, body, type = "application/json", headers = {}) => response.writeHead(status, { "content-type": type, ...headers }).end(typeof body === "string" ? body : JSON.stringify(body));
    const problem = (status, code, more = {}) => say(status, { type: `/problems/${code}`, title: code, status, code, retryable: status === 503, ...more }, "application/problem+json");
    if (url.pathname === "/forebay.js") return say(200, file("forebay.js"), "text/javascript; charset=utf-8");
    if (url.pathname === "/demo") return say(200, file("demo.html"), "text/html; charset=utf-8", { "content-security-policy": PAGE_POLICY });
    if (url.pathname === "/blank") return say(200, "<!doctype html><title>blank</title>", "text/html");
    const who = this.who((request.headers.authorization ?? "").replace("Bearer ", ""));
    if (!who) return problem(401, "unauthorized");
    let body = "";
    for await (const chunk of request) body += chunk;
    body = body ? JSON.parse(body) : {};
    if (url.pathname === "/v1/tokens") return say(201, this.token(body));
    if (url.pathname === "/v1/tokens/refresh") return say(201, this.token({ conversationId: who.claims.cnv, userId: who.claims.sub, ttlSeconds: 3600 }));
    if (url.pathname === "/v1/conversations" && request.method === "POST") {
      const known = this.conversations.get(body.id) ?? this.open(body.id);
      return say(201, { id: known.id, status: "open", headSeq: known.events.length, createdAt: known.events[0].at });
    }
    const conversation = this.conversations.get(url.pathname.split("/")[3]);
    if (!conversation || !url.pathname.endsWith("/messages")) return problem(404, "not_found");
    const headSeq = conversation.events.length;
    if (request.method === "POST") {
      const receipt = this.store(conversation, body, who.sender ?? body.sender);
      return say(receipt.duplicate ? 200 : 201, { duplicate: false, watermark: headSeq, ...receipt });
    }
    const limit = Number(url.searchParams.get("limit") ?? 50);
    const after = url.searchParams.has("after") ? Number(url.searchParams.get("after")) : null;
    const isDown = url.searchParams.get("order") === "desc";
    const all = conversation.events.filter(({ seq }) => after === null || (isDown ? seq < after : seq > after));
    const messages = (isDown ? all.toReversed() : all).slice(0, limit);
    if (this.pressure && messages.some(({ seq }) => seq < conversation.remembered)) return problem(503, "replay_unavailable", { watermark: after ?? 0, headSeq });
    say(200, { messages, watermark: messages.at(-1)?.seq ?? after ?? 0, headSeq, hasMore: all.length > messages.length, complete: true });
  }
}

/** One connection. */
class Session {
  constructor(fake, socket) {
    Object.assign(this, { fake, socket, joined: new Map(), gaps: new Map(), who: null, greeted: false });
    socket.on("message", text => this.#take(JSON.parse(text)));
    socket.on("close", () => { fake.sessions.delete(this); clearInterval(this.heart); clearTimeout(this.expiry); });
    this.heart = setInterval(() => { for (const one of this.joined.keys()) this.say("heartbeat", { conversationId: one.id, headSeq: one.events.length }); }, fake.limits.heartbeatMs);
  }

  say(frame, fields) { this.socket.send(JSON.stringify({ frame, ...fields })); }
  error(code, number, more = {}) { this.say("error", { code, number, message: code, retryable: number >= 9000 || number === 3000, ...more }); }

  /** Closes as the protocol says: the error first, then the close with the same reason. */
  close(code, reason, number, retryAfterMs) {
    this.error(reason, number, { retryAfterMs });
    this.socket.close(code, JSON.stringify({ reason, retryAfterMs }));
  }

  live(conversation, event) {
    if (!this.joined.has(conversation) || this.waiting) return;
    this.say("event", { conversationId: conversation.id, ...event });
  }

  refill() {
    for (const [conversation, { from, to }] of this.gaps) {
      for (const event of conversation.events.slice(from - 1, to)) this.say("event", { conversationId: conversation.id, ...event });
      this.say("replayComplete", { conversationId: conversation.id, watermark: conversation.events.length });
    }
    this.gaps.clear();
  }

  #take(frame) {
    this.fake.received.push(frame);
    const conversation = this.fake.conversations.get(frame.conversationId);
    if (frame.frame === "hello") {
      if (this.greeted) return;
      this.greeted = true;
      this.#admit(frame.token);
      if (this.who) this.#join(conversation, frame);
    } else if (!this.who) this.error("no_session", 1001);
    else if (frame.frame === "join" && !conversation) this.error("conversation_not_found", 4001, { conversationId: frame.conversationId });
    else if (frame.frame === "join") this.#join(conversation, frame);
    else if (frame.frame === "leave") this.joined.delete(conversation);
    else if (frame.frame === "message") {
      if (this.fake.refuse) return this.error(this.fake.refuse.code, this.fake.refuse.number, { ...this.fake.refuse, clientId: frame.clientId, conversationId: frame.conversationId });
      const receipt = this.fake.store(conversation, frame, this.who.sender, this);
      this.say("ack", { conversationId: conversation.id, clientId: frame.clientId, ...receipt });
    } else if (frame.frame === "sync") this.#replay(conversation, frame.watermark);
    else if (frame.frame === "ping") this.say("heartbeat", { nonce: frame.nonce, headSeq: [...this.joined.keys()][0]?.events.length });
    else if (frame.frame === "auth") {
      if (this.#admit(frame.token)) this.say("tokenRefreshed", { expiresAt: this.who.expiresAt });
    } else if (frame.frame === "typing" || frame.frame === "read") {
      const { frame: name, ...fields } = frame;
      for (const other of this.fake.sessions) if (other !== this && other.joined.has(conversation)) other.say(name, { ...fields, sender: this.who.sender });
    }
  }

  #admit(token) {
    this.who = this.fake.who(token ?? "");
    clearTimeout(this.expiry);
    if (!this.who) return void this.close(4401, "unauthorized", 2000);
    if (this.who.expiresAt) this.expiry = setTimeout(() => this.close(4401, "token_expired", 2001), Date.parse(this.who.expiresAt) - Date.now());
    return true;
  }

  #join(conversation, { watermark, epoch }) {
    if (!conversation) return this.error("conversation_not_found", 4001);
    const head = conversation.events.length;
    this.joined.set(conversation, true);
    const { fake } = this;
    this.say("welcome", { connectionId: "con_1", conversationId: conversation.id, epoch: fake.epoch, watermark: head, liveFrom: head + 1, oldestSeq: conversation.oldest ?? 1, limits: fake.limits, expiresAt: this.who.expiresAt });
    if (epoch !== undefined && epoch !== fake.epoch) {
      this.waiting = true;
      return this.say("replayGone", { conversationId: conversation.id, watermark, oldestSeq: conversation.oldest ?? 1, epoch: fake.epoch });
    }
    this.#replay(conversation, watermark ?? head);
  }

  #replay(conversation, watermark) {
    const { events, remembered, id: conversationId } = conversation;
    const [head, oldest] = [events.length, conversation.oldest ?? 1];
    this.waiting = false;
    if (watermark > head) return this.error("invalid_watermark", 1003, { conversationId, details: { headSeq: head } });
    if (watermark < oldest - 1) {
      this.waiting = true;
      return this.say("replayGone", { conversationId, watermark, oldestSeq: oldest, epoch: this.fake.epoch });
    }
    if (this.fake.pressure && watermark + 1 < remembered) {
      this.gaps.set(conversation, { from: watermark + 1, to: head });
      return this.error("replay_unavailable", 9002, { conversationId, details: { watermark, from: watermark + 1, to: head, headSeq: head, cause: "pressure" } });
    }
    const last = Math.min(head, watermark + this.fake.replayMax);
    for (const event of events.slice(watermark, last)) {
      if (event.type === "tombstone") this.say("tombstone", { conversationId, seq: event.seq, reason: "duplicate" });
      else this.say("event", { conversationId, ...event });
    }
    this.waiting = last < head;
    if (this.waiting) this.say("replayTruncated", { conversationId, watermark: last, headSeq: head });
    else this.say("replayComplete", { conversationId, watermark: head });
  }
}
