/**
 * Forebay in a browser: conversations over one WebSocket (`forebay.v1+json`, docs/PROTOCOL.md), without dependencies.
 * Promises that every event is handed over once, that a watermark never passes a hole, and that a send is repeated under
 * the same client id until it has a receipt or a final error. Does not draw, and does not keep unsent messages over a reload.
 *
 *     const live = new Forebay({ getToken, conversationId: "cnv_…", onEvent: event => draw(event) });
 *     await live.connect();
 *     const { seq } = await live.send({ text: "hello" });
 *
 * @typedef {{from: number, to: number, cause: string, announced: boolean}} Gap   missing seqs, both ends included
 * @typedef {{conversationId: string, seq: number, id?: string, type: string, sender?: {id: string, role?: string, name?: string},
 *   text?: string, data?: any, metadata?: object, at?: string, clientId?: string, own: boolean, beyondGap: boolean}} Event
 *   `own`: sent from here, `sender` may be missing; `beyondGap`: above the watermark, something before it is missing
 * @typedef {{conversationId: string, clientId: string, id: string, seq: number, at: string, duplicate?: boolean}} Ack
 * @typedef {{conversationId: string, phase: "joining"|"catchingUp"|"live"|"gap"|"refused", watermark: number, headSeq: number,
 *   epoch: ?string, gaps: Gap[]}} Place
 * @typedef {{state: "idle"|"connecting"|"catchingUp"|"live"|"gap"|"reconnecting"|"stopped", reason: ?string, retryAt: ?number,
 *   unsent: number, conversations: Place[]}} Status   `retryAt`: as Date.now()
 * @typedef {{get(key: string): any, set(key: string, value: {epoch: ?string, watermark: number}): any}} WatermarkStore
 */
const PROTOCOL = "forebay.v1+json";
const OUTBOX_MAX = 1000; // sends without a receipt; one more is refused at once
const IDS_MAX = 10_000; // message ids that a reader remembers
const BACKOFF_FIRST_MS = 500;
const BACKOFF_MAX_MS = 30_000;
const RETRY_AFTER_MAX_MS = 60_000; // no server asks for more
const WELCOME_MS = 15_000; // until the first frame of the server
const STEADY_MS = 10_000; // a connection that lived this long ends the backoff; one that only began shortens it:
const BEGUN_ATTEMPT = 3;
const AHEAD_MAX = 2; // refusals of a watermark in a row at which reading goes on at the head
const GRACE_MS = 1000; // how long an unannounced hole may be events on their way
const SAVE_MS = 200; // watermarks are stored at most this late
/** Until `welcome` names the server's own. */
const LIMITS = { frameBytes: 131_072, framesPerSecond: 20, frameBurst: 40, unackedSends: 32, heartbeatMs: 30_000, idleMs: 60_000 };

/** What the server refused, or this module; `code` and `number` as in docs/PROTOCOL.md. */
export class ForebayError extends Error {
  constructor({ code, number = 0, message = code, retryable = false, retryAfterMs = 0, details = {}, conversationId }) {
    super(message);
    Object.assign(this, { name: "ForebayError", code, number, retryable, retryAfterMs, details, conversationId });
  }
}

/** Pure: what a reader of one conversation has. */
export class Reader {
  #beyond = []; // disjoint ascending [from, to], none of them touching the watermark
  #announced = []; // gaps as the server named them
  #ids = new Set(); // in the order of arrival

  /** Invariant: every seq up to `watermark` was taken, or lies before the place where reading began. */
  constructor({ watermark = 0, epoch = null } = {}) { Object.assign(this, { watermark, epoch, head: watermark }); }

  /** Takes a seq. `repeat`: counts, but its message came before under another seq. @returns {"next"|"beyond"|"repeat"|"duplicate"} */
  take(seq, id) {
    if (seq <= this.watermark || this.#beyond.some(([from, to]) => from <= seq && seq <= to)) return "duplicate";
    this.#add(seq, seq);
    if (this.#ids.has(id)) return "repeat";
    if (id) this.#ids.add(id);
    if (this.#ids.size > IDS_MAX) this.#ids.delete(this.#ids.values().next().value);
    return seq <= this.watermark ? "next" : "beyond";
  }

  /** These cannot be sent for now, says the server. */
  announce(from, to, cause) {
    this.head = Math.max(this.head, to);
    this.#announced = [...this.#announced.filter(gap => gap.from < from || gap.to > to), { from, to, cause }];
  }

  /** What is missing between the watermark and the highest seq that came or was announced. @returns {Gap[]} */
  gaps() {
    this.#announced = this.#announced.filter(gap => gap.to > this.watermark);
    const gaps = [];
    let next = this.watermark + 1;
    const note = to => {
      const said = this.#announced.find(gap => gap.from <= to && gap.to >= next);
      if (next <= to) gaps.push({ from: next, to, cause: said ? said.cause : "unknown", announced: Boolean(said) });
    };
    for (const [from, to] of this.#beyond) { note(from - 1); next = to + 1; }
    note(Math.max(0, ...this.#announced.map(gap => gap.to)));
    return gaps;
  }

  /** What was before `oldestSeq` will never come; another epoch is another log, of which nothing is had. */
  restart(oldestSeq, epoch = this.epoch) {
    if (epoch !== this.epoch) {
      Object.assign(this, { epoch, watermark: 0, head: 0 });
      this.#beyond = [];
      this.#ids.clear();
    }
    this.#announced = [];
    if (oldestSeq - 1 > this.watermark) this.#add(this.watermark + 1, oldestSeq - 1);
  }

  #add(first, last) {
    this.head = Math.max(this.head, last);
    const ranges = [...this.#beyond, [first, last]].sort((a, b) => a[0] - b[0]);
    this.#beyond = [];
    for (const [from, to] of ranges) {
      const top = this.#beyond.at(-1);
      if (from <= this.watermark + 1) this.watermark = Math.max(this.watermark, to);
      else if (top && from <= top[1] + 1) top[1] = Math.max(top[1], to);
      else this.#beyond.push([from, to]);
    }
  }
}

/** Pure: holds back what a server in trouble would refuse, with probability (tried - ratio · accepted) / (tried + floor) over a window. */
export class Throttle {
  #slices = [];
  constructor({ ratio = 2, windowMs = 60_000, slices = 10, floor = 60 } = {}) { Object.assign(this, { ratio, windowMs, slices, floor }); }

  /** Counts an attempt; false: do not make it. `draw` is uniform in [0, 1). */
  admit(now, draw) {
    const slice = this.#slice(now);
    const [tried, accepted] = ["tried", "accepted"].map(key => this.#slices.reduce((sum, each) => sum + each[key], 0));
    slice.tried += 1;
    return draw >= (tried - this.ratio * accepted) / (tried + this.floor);
  }

  /** An attempt was answered by anything but overload. */
  accepted(now) { this.#slice(now).accepted += 1; }

  #slice(now) {
    this.#slices = this.#slices.filter(slice => now - slice.at < this.windowMs);
    const last = this.#slices.at(-1);
    if (last && now - last.at < this.windowMs / this.slices) return last;
    return this.#slices[this.#slices.push({ at: now, tried: 0, accepted: 0 }) - 1];
  }
}

/** Watermarks in localStorage; where that is refused, in memory. Pages of one origin share them. @returns {WatermarkStore} */
export function localWatermarks() {
  const memory = new Map();
  const quietly = act => { try { return act(); } catch { return null; } };
  return {
    get: key => quietly(() => JSON.parse(localStorage.getItem(key))) ?? memory.get(key),
    set: (key, value) => { memory.set(key, value); quietly(() => localStorage.setItem(key, JSON.stringify(value))); },
  };
}

/** As a client id it tells the server the age of a send. */
export function uuidv7(now = Date.now()) {
  const chance = Array.from(crypto.getRandomValues(new Uint8Array(10)), byte => byte.toString(16).padStart(2, "0")).join("");
  const hex = now.toString(16).padStart(12, "0") + "7" + chance.slice(0, 3) + "89ab"[parseInt(chance[3], 16) % 4] + chance.slice(4, 19);
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** One connection that is always on its way back. */
export class Forebay {
  #options; #token; #stale = false; #running = false; #opening = null; #socket = null; #welcomed = false; #limits = LIMITS;
  #state = "idle"; #reason = null; #retryAt = null; #attempt = 0; #floorMs = 0; #heldUntil = 0; #written = []; #told = false;
  #timers = {}; #conversations = new Map(); #outbox = new Map(); #throttles = { connect: new Throttle(), send: new Throttle() };

  /**
   * `start`: the watermark of a conversation of which nothing is stored (0: all of it). `getToken` is called when there is no token,
   * before it expires, and when it was refused. `onGap` tells every change, with an empty list when all is filled.
   * @param {{url?: string, token?: string, getToken?: () => Promise<string>|string, conversationId?: string, conversationIds?: string[],
   *   start?: number|"live", watermarkStore?: WatermarkStore, WebSocket?: any, onEvent?: (event: Event) => void, onAck?: (ack: Ack) => void,
   *   onState?: (status: Status) => void, onError?: (error: Error) => void, onGap?: (place: Place) => void,
   *   onRestart?: (gone: {conversationId: string, oldestSeq: number, watermark: number, epoch: string, newLog: boolean}) => void,
   *   onTyping?: Function, onPresence?: Function, onRead?: Function, onDeliveryStatus?: Function}} options
   */
  constructor(options) {
    this.#options = { url: globalThis.location?.origin, start: 0, watermarkStore: localWatermarks(), WebSocket: globalThis.WebSocket, ...options };
    this.#token = options.token;
    for (const id of [options.conversationId, ...(options.conversationIds || [])]) if (id) this.#add(id);
    globalThis.addEventListener?.("pagehide", () => this.#save());
    globalThis.addEventListener?.("online", () => { if (this.#retryAt && !this.#floorMs) this.#open(); });
  }

  /** Connects and stays connected, until `close` or a refusal that is final. */
  async connect() {
    if (this.#running) return;
    if (!URL.canParse(this.#options.url)) throw new Error("Forebay needs the option url, such as http://127.0.0.1:8080: outside of a page there is no other.");
    this.#running = true;
    for (const one of this.#conversations.values()) await this.#recall(one);
    if (this.#running) this.#open();
  }

  /** Sends without a receipt are rejected with `closed`; they may have been stored. */
  close() { this.#stop("idle", { code: "closed" }); }

  async join(conversationId, start) {
    const one = this.#conversations.get(conversationId) ?? this.#add(conversationId, start);
    await this.#recall(one);
    if (one.phase === "refused") one.phase = "joining";
    if (this.#welcomed && !one.joined) this.#write("join", this.#place(one));
  }

  leave(conversationId) {
    this.#save();
    this.#write("leave", { conversationId });
    this.#reject({ code: "left" }, entry => entry.body.conversationId === conversationId);
    this.#conversations.delete(conversationId);
    this.#changed();
  }

  /**
   * Resolves with the receipt, over any number of reconnects; rejects with a `ForebayError` that is final.
   * @param {{text?: string, data?: any, metadata?: object, clientId?: string, conversationId?: string}} draft @returns {Promise<Ack>}
   */
  send({ text, data, metadata, clientId = uuidv7(), conversationId = this.#first() }) {
    const body = { conversationId, clientId, text, data, metadata };
    const key = `${conversationId} ${clientId}`;
    if (this.#outbox.has(key)) return this.#outbox.get(key).promise;
    const refuse = (code, number) => Promise.reject(new ForebayError({ code, number, conversationId }));
    if ((this.#conversations.get(conversationId)?.phase ?? "refused") === "refused") return refuse("no_session", 1001);
    if (new TextEncoder().encode(JSON.stringify(body)).length + 32 > this.#limits.frameBytes) return refuse("payload_too_large", 3001);
    if (this.#outbox.size >= OUTBOX_MAX) return refuse("outbox_full");
    const entry = { body, inFlight: false, tries: 0 };
    this.#outbox.set(key, entry);
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    this.#flush();
    this.#changed();
    return entry.promise;
  }

  /** Asks for what is missing now, without waiting for the server to refill it. */
  sync(conversationId = this.#first()) {
    const one = this.#conversations.get(conversationId);
    if (!one?.joined || one.syncing) return;
    Object.assign(one, { syncing: true, syncedFrom: one.reader.watermark, phase: one.phase === "live" ? "catchingUp" : one.phase });
    this.#write("sync", { conversationId, watermark: one.reader.watermark });
    this.#changed();
  }

  typing(isTyping, conversationId = this.#first()) { this.#write("typing", { conversationId, isTyping }); }
  read(watermark, conversationId = this.#first()) { this.#write("read", { conversationId, watermark }); }
  ping(nonce) { this.#write("ping", { nonce }); }

  /** @returns {Status} */
  get status() {
    const conversations = [...this.#conversations.values()].map(one => this.#describe(one));
    const worst = ["gap", "joining", "catchingUp"].find(phase => conversations.some(place => place.phase === phase)) ?? "live";
    const state = this.#welcomed ? worst.replace("joining", "catchingUp") : this.#state;
    return { state, reason: this.#reason, retryAt: this.#retryAt, unsent: this.#outbox.size, conversations };
  }

  #describe({ id: conversationId, phase, reader: { watermark, head: headSeq, epoch }, gaps }) { return { conversationId, phase, watermark, headSeq, epoch, gaps }; }

  #add(id, start = this.#options.start) {
    const reader = new Reader({ watermark: start === "live" ? 0 : start });
    const one = { id, reader, fromLive: start === "live", phase: "joining", joined: false, syncing: false, syncedFrom: -1, misses: 0, gaps: [] };
    this.#conversations.set(id, one);
    return one;
  }

  #first() { return this.#conversations.keys().next().value; }
  #key(one) { return `forebay/${new URL(this.#options.url).host}/${one.id}`; }

  async #recall(one) {
    const stored = one.reader.epoch === null && await this.#options.watermarkStore.get(this.#key(one));
    if (stored) Object.assign(one, { reader: new Reader(stored), fromLive: false });
  }

  #place({ id, fromLive, reader }) {
    return { conversationId: id, capabilities: ["gaps"], ...(fromLive ? {} : { watermark: reader.watermark, epoch: reader.epoch ?? undefined }) };
  }

  async #open() {
    clearTimeout(this.#timers.retry);
    this.#retryAt = null;
    if (!this.#throttles.connect.admit(Date.now(), Math.random())) return this.#retry("throttled");
    this.#set("connecting");
    const opening = (this.#opening = {});
    const token = this.#token && !this.#stale ? this.#token : await this.#fetchToken();
    if (opening !== this.#opening) return;
    if (!token && this.#options.getToken) return this.#retry("no_token");
    const url = new URL("/v1/socket", this.#options.url);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = (this.#socket = new this.#options.WebSocket(url.href, PROTOCOL));
    const mine = act => event => { if (socket === this.#socket) act(event); };
    socket.onopen = mine(() => {
      const [first, ...more] = [...this.#conversations.values()].filter(one => one.phase !== "refused");
      this.#write("hello", { token, capabilities: ["gaps"], ...(first && this.#place(first)) });
      for (const one of more) this.#write("join", this.#place(one));
    });
    socket.onmessage = mine(({ data }) => this.#receive(data));
    socket.onclose = mine(({ code, reason }) => this.#closed(code, reason));
    socket.onerror = () => {}; // the close that follows says it
    this.#after("watch", WELCOME_MS, () => this.#closed(1006));
  }

  #write(frame, fields) {
    if (this.#socket?.readyState !== 1) return;
    this.#written.push(Date.now());
    this.#socket.send(JSON.stringify({ frame, ...fields }));
    this.#after("ping", this.#limits.idleMs * 0.4, () => this.ping());
  }

  #receive(text) {
    // A socket from which nothing comes is given up without waiting for its close.
    this.#after("watch", this.#limits.heartbeatMs * 2.5, () => this.#closed(1006));
    const { frame, conversationId = this.#conversations.size === 1 ? this.#first() : undefined, ...rest } = JSON.parse(text);
    const one = this.#conversations.get(conversationId);
    if (frame !== "error") this.#floorMs = 0;
    if (frame === "welcome") this.#arrived(one, rest);
    else if (frame === "tokenRefreshed") this.#expires(rest.expiresAt);
    else if (frame === "error") this.#refused(one, new ForebayError({ conversationId, ...rest }), rest.clientId);
    else if (!one) return; // left meanwhile
    else if (frame === "event") this.#show(one, rest);
    else if (frame === "tombstone") one.reader.take(rest.seq);
    else if (frame === "ack") this.#acknowledged(one, rest);
    else if (frame === "replayComplete") this.#completed(one, rest.watermark);
    else if (frame === "replayTruncated") this.#again(one);
    else if (frame === "replayGone") this.#gone(one, rest);
    else if (frame === "heartbeat") one.reader.head = Math.max(one.reader.head, rest.headSeq ?? 0);
    else if (["typing", "presence", "read", "deliveryStatus"].includes(frame)) {
      this.#emit("on" + frame[0].toUpperCase() + frame.slice(1), { conversationId, ...rest });
    } // frames with other names are of a later version
    if (one) this.#settle(one);
    this.#changed();
  }

  #arrived(one, { epoch, watermark, liveFrom, limits, expiresAt }) {
    if (!this.#welcomed) {
      [this.#welcomed, this.#reason, this.#limits] = [true, null, { ...LIMITS, ...limits }];
      this.#throttles.connect.accepted(Date.now());
      this.#attempt = Math.min(this.#attempt, BEGUN_ATTEMPT);
      this.#after("steady", STEADY_MS, () => { this.#attempt = 0; });
      this.#expires(expiresAt);
    }
    if (!one) return;
    one.reader.epoch ??= epoch;
    if (one.fromLive) one.reader.restart(liveFrom);
    if (one.reader.epoch === epoch) one.reader.head = Math.max(one.reader.head, watermark);
    Object.assign(one, { fromLive: false, joined: true, phase: "catchingUp" });
    this.#flush();
  }

  #show(one, event) {
    const place = one.reader.take(event.seq, event.id);
    const own = this.#outbox.has(`${one.id} ${event.clientId}`);
    if (place === "next" || place === "beyond") this.#emit("onEvent", { ...event, conversationId: one.id, own, beyondGap: place === "beyond" });
  }

  /** A receipt comes in place of the event; one of which the content is not known leaves a hole, which a replay fills. */
  #acknowledged(one, receipt) {
    const key = `${one.id} ${receipt.clientId}`;
    const entry = this.#outbox.get(key);
    if (!entry) return;
    this.#throttles.send.accepted(Date.now());
    const { id, seq, at } = receipt;
    this.#show(one, { type: "message", ...entry.body, id, seq, at });
    this.#outbox.delete(key);
    entry.resolve({ conversationId: one.id, ...receipt });
    this.#emit("onAck", { conversationId: one.id, ...receipt });
    this.#flush();
  }

  #completed(one, watermark) {
    one.reader.head = Math.max(one.reader.head, watermark);
    if (one.reader.watermark < watermark) return this.#again(one);
    Object.assign(one, { phase: "live", syncing: false, syncedFrom: -1, misses: 0 });
  }

  /** Syncs on from where a replay ended: at once if it brought something. */
  #again(one) {
    one.misses = one.reader.watermark > one.syncedFrom ? 0 : one.misses + 1;
    Object.assign(one, { syncing: false, syncedFrom: one.reader.watermark });
    this.#after("again " + one.id, one.misses && this.#backoff(one.misses), () => this.sync(one.id));
  }

  #gone(one, { oldestSeq, epoch }) {
    const { watermark, epoch: before } = one.reader;
    one.reader.restart(oldestSeq, epoch);
    one.syncing = false;
    this.#emit("onRestart", { conversationId: one.id, oldestSeq, watermark, epoch, newLog: before !== epoch });
    this.sync(one.id);
  }

  #refused(one, error, clientId) {
    const { number, details, retryAfterMs, conversationId } = error;
    if (clientId) return this.#unsent(`${conversationId} ${clientId}`, error);
    if (number === 9002 && one && details.to) { // without a range it is the reason of a close
      one.reader.announce(details.from, details.to, details.cause);
      return Object.assign(one, { phase: "gap", syncing: false });
    }
    this.#floorMs = retryAfterMs;
    if (number === 2000 || number === 2001) this.#stale = true;
    if (number === 3000) { // a frame was not read, and which is not known: all sends without a receipt go out again
      for (const entry of this.#outbox.values()) entry.inFlight = false;
      this.#hold(retryAfterMs);
    }
    if (one && (number === 4001 || ([1000, 2002].includes(number) && !one.joined))) { // 1000: the id is none
      Object.assign(one, { phase: "refused", joined: false });
      this.#reject(error, entry => entry.body.conversationId === one.id);
    }
    if (number === 1003 && one) { // a node may be a moment behind another; what stays above the head was of something else
      if (++one.misses >= AHEAD_MAX) one.reader = new Reader({ watermark: details.headSeq, epoch: one.reader.epoch });
      one.syncing = false;
      this.#after("again " + one.id, this.#backoff(one.misses), () => one.joined ? this.sync(one.id) : this.#write("join", this.#place(one)));
    }
    this.#emit("onError", error);
  }

  #unsent(key, error) {
    if (![3000, 9001].includes(error.number)) this.#throttles.send.accepted(Date.now());
    const entry = this.#outbox.get(key);
    if (!entry) return;
    entry.inFlight = false;
    if (error.retryable) return this.#hold(error.retryAfterMs + this.#backoff(entry.tries++)); // all wait, so that the order stays
    this.#reject(error, each => each === entry);
    this.#flush();
  }

  /** After every frame: the gaps that are to be told, and the watermark that is to be kept. */
  #settle(one) {
    const gaps = one.reader.gaps();
    if (one.phase === "live" && gaps.some(gap => !gap.announced)) this.#timers["hole " + one.id] ??= setTimeout(() => {
      delete this.#timers["hole " + one.id];
      const holes = one.reader.gaps().filter(gap => !gap.announced);
      for (const { from, to, cause } of holes) one.reader.announce(from, to, cause);
      if (holes.length) this.sync(one.id);
      this.#settle(one);
    }, GRACE_MS);
    if (one.phase === "gap" && !gaps.length) one.phase = "live";
    const [before, shown] = [one.gaps, gaps.filter(gap => gap.announced)];
    one.gaps = shown;
    if (JSON.stringify(shown) !== JSON.stringify(before)) this.#emit("onGap", this.#describe(one));
    this.#timers.save ??= setTimeout(() => this.#save(), SAVE_MS);
  }

  #save() {
    clearTimeout(this.#timers.save);
    delete this.#timers.save;
    for (const one of [...this.#conversations.values()].filter(one => one.reader.epoch !== null)) {
      this.#options.watermarkStore.set(this.#key(one), { epoch: one.reader.epoch, watermark: one.reader.watermark });
    }
  }

  #flush() {
    const now = Date.now();
    if (!this.#welcomed || now < this.#heldUntil) return;
    const { unackedSends, framesPerSecond, frameBurst } = this.#limits;
    this.#written = this.#written.filter(at => now - at < (frameBurst / framesPerSecond) * 1000);
    let room = unackedSends - [...this.#outbox.values()].filter(entry => entry.inFlight).length;
    for (const entry of this.#outbox.values()) {
      if (entry.inFlight || !this.#conversations.get(entry.body.conversationId)?.joined) continue;
      if (room-- <= 0) return;
      if (this.#written.length > frameBurst - 4) return this.#hold(1000 / framesPerSecond); // some are left for other frames
      if (!this.#throttles.send.admit(now, Math.random())) return this.#hold(this.#backoff(1));
      entry.inFlight = true;
      this.#write("message", entry.body);
    }
  }

  #hold(ms) {
    this.#heldUntil = Math.max(this.#heldUntil, Date.now() + ms);
    this.#after("flush", this.#heldUntil - Date.now(), () => { this.#heldUntil = 0; this.#flush(); });
  }

  #reject(error, which = () => true) {
    for (const [key, entry] of this.#outbox) if (which(entry) && this.#outbox.delete(key)) entry.reject(error instanceof Error ? error : new ForebayError(error));
  }

  #expires(expiresAt) {
    if (!expiresAt || !this.#options.getToken) return;
    const left = Date.parse(expiresAt) - Date.now();
    this.#after("renew", Math.min(Math.max(left - Math.min(60_000, left / 5), 0), 2 ** 31 - 1), () => this.#renew());
  }

  async #renew() {
    const opening = this.#opening;
    const token = await this.#fetchToken();
    if (opening !== this.#opening) return;
    if (token) this.#write("auth", { token });
    else this.#after("renew", this.#backoff(3), () => this.#renew()); // until the server ends it with 4401
  }

  async #fetchToken() {
    if (!this.#options.getToken) return this.#token;
    try { this.#token = await this.#options.getToken(); } catch (error) { return this.#emit("onError", error); }
    this.#stale = false;
    return this.#token;
  }

  #closed(code, text = "{}") {
    let said = {};
    try { said = JSON.parse(text); } catch { /* not of the server */ }
    const { reason = `closed_${code}`, retryAfterMs = this.#floorMs } = said;
    this.#detach();
    if (code === 4403) return this.#stop("stopped", { code: "forbidden", number: 2002, message: reason });
    if (code === 4401 && !this.#options.getToken) return this.#stop("stopped", { code: "unauthorized", number: 2000, message: reason });
    if (code === 4401) this.#stale = true;
    this.#retry(reason, retryAfterMs);
  }

  #detach() {
    this.#save();
    const socket = this.#socket;
    [this.#socket, this.#opening, this.#welcomed, this.#retryAt, this.#heldUntil, this.#written] = [null, null, false, null, 0, []];
    socket?.close();
    for (const timer of Object.values(this.#timers)) clearTimeout(timer);
    this.#timers = {};
    for (const entry of this.#outbox.values()) entry.inFlight = false;
    for (const one of this.#conversations.values()) {
      Object.assign(one, { joined: false, syncing: false, syncedFrom: -1, phase: one.phase === "refused" ? "refused" : "joining" });
    }
  }

  /** The server's wish is a floor with jitter on top: a floor alone would bring everybody back at the same moment. */
  #retry(reason, floorMs = 0) {
    this.#floorMs = Math.min(floorMs, RETRY_AFTER_MAX_MS);
    const wait = this.#floorMs + this.#backoff(this.#attempt++);
    this.#retryAt = Date.now() + wait;
    this.#set("reconnecting", reason);
    this.#after("retry", wait, () => this.#open());
  }

  #backoff(attempt) { return Math.random() * Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** attempt); }

  #stop(state, why) {
    const error = new ForebayError(why);
    this.#running = false;
    this.#detach();
    this.#reject(error);
    if (state === "stopped") this.#emit("onError", error);
    this.#set(state, error.code);
  }

  #after(name, ms, act) { clearTimeout(this.#timers[name]); this.#timers[name] = setTimeout(act, ms); }
  #set(state, reason = this.#reason) { [this.#state, this.#reason] = [state, reason]; this.#changed(); }

  /** Tells the status once for all that changed together. */
  #changed() {
    if (this.#told) return;
    this.#told = true;
    queueMicrotask(() => { this.#told = false; this.#emit("onState", this.status); });
  }

  #emit(name, value) { try { this.#options[name]?.(value); } catch (error) { console.error(error); } }
}
