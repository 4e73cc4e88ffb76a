/** The pure parts of forebay.js, in Node: what a reader has, and what a throttle holds back. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Reader, Throttle, uuidv7 } from "../../src/api/forebay.js";

const gap = (from, to, cause = "unknown") => ({ from, to, cause, announced: cause !== "unknown" });

/** Random numbers that a seed repeats (mulberry32). */
function chance(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

test("events in order move the watermark, and a seq is taken once", () => {
  const reader = new Reader({ watermark: 40, epoch: "e1" });
  assert.deepEqual([41, 42, 42, 40, 43].map(seq => reader.take(seq, `msg_${seq}`)), ["next", "next", "duplicate", "duplicate", "next"]);
  assert.deepEqual([reader.watermark, reader.head, reader.gaps()], [43, 43, []]);
});

test("the watermark waits before a hole until it is filled", () => {
  const reader = new Reader({ watermark: 40 });
  reader.announce(41, 57, "pressure");
  assert.deepEqual([reader.take(58), reader.take(59)], ["beyond", "beyond"]);
  assert.deepEqual(reader.gaps(), [gap(41, 57, "pressure")]);
  for (let seq = 41; seq < 57; seq += 1) assert.equal(reader.take(seq), "next");
  assert.deepEqual([reader.watermark, reader.gaps()], [56, [gap(57, 57, "pressure")]]);
  assert.equal(reader.take(57), "next");
  assert.deepEqual([reader.watermark, reader.gaps()], [59, []]);
});

test("a gap is named before anything beyond it has come, and a receipt within it splits it", () => {
  const reader = new Reader({ watermark: 2 });
  reader.announce(3, 9, "timeout");
  assert.deepEqual(reader.gaps(), [gap(3, 9, "timeout")]);
  assert.equal(reader.take(5, "msg_own"), "beyond");
  assert.deepEqual(reader.gaps(), [gap(3, 4, "timeout"), gap(6, 9, "timeout")]);
  reader.announce(3, 9, "projection_lag");
  assert.deepEqual(reader.gaps(), [gap(3, 4, "projection_lag"), gap(6, 9, "projection_lag")]);
});

test("a hole that nobody announced is told apart", () => {
  const reader = new Reader();
  reader.take(1);
  reader.take(4);
  assert.deepEqual(reader.gaps(), [gap(2, 3)]);
});

test("a message that comes again under another seq counts and is not shown", () => {
  const reader = new Reader();
  assert.deepEqual([reader.take(1, "msg_a"), reader.take(2, "msg_b"), reader.take(3, "msg_a"), reader.take(4)], ["next", "next", "repeat", "next"]);
  assert.equal(reader.watermark, 4);
});

test("a restart keeps what was had of the same log, and nothing of another", () => {
  const reader = new Reader({ watermark: 10, epoch: "e1" });
  reader.take(60);
  reader.restart(50);
  assert.deepEqual([reader.watermark, reader.take(60), reader.gaps()], [49, "duplicate", [gap(50, 59)]]);
  reader.restart(1, "e2");
  assert.deepEqual([reader.watermark, reader.epoch, reader.take(1), reader.take(60)], [0, "e2", "next", "beyond"]);
  const ahead = new Reader({ watermark: 70, epoch: "e1" });
  ahead.restart(50);
  assert.equal(ahead.watermark, 70);
});

test("in any order: each seq once, never past a hole, complete in the end", () => {
  for (let seed = 1; seed <= 300; seed += 1) {
    const random = chance(seed);
    const count = 1 + Math.floor(random() * 40);
    const arrivals = Array.from({ length: count * 3 }, () => 1 + Math.floor(random() * count));
    arrivals.push(...Array.from({ length: count }, (_, index) => index + 1));
    const [reader, shown] = [new Reader(), new Set()];
    for (const seq of arrivals) {
      const place = reader.take(seq, `msg_${seq}`);
      assert.equal(place === "duplicate", shown.has(seq), `seed ${seed}`);
      shown.add(seq);
      for (let below = 1; below <= reader.watermark; below += 1) assert.ok(shown.has(below), `seed ${seed}: the watermark passed ${below}`);
      assert.ok(!shown.has(reader.watermark + 1), `seed ${seed}: the watermark lags`);
      const missing = reader.gaps().reduce((sum, each) => sum + each.to - each.from + 1, 0);
      assert.equal(missing, reader.head - shown.size, `seed ${seed}`);
    }
    assert.deepEqual([reader.watermark, reader.gaps()], [count, []], `seed ${seed}`);
  }
});

test("a throttle lets everything pass while it is accepted, and one a second when nothing is", () => {
  const healthy = new Throttle();
  for (let at = 0; at < 60_000; at += 100) {
    assert.ok(healthy.admit(at, 0));
    healthy.accepted(at);
  }
  const [ill, random] = [new Throttle(), chance(7)];
  let passed = 0;
  for (let at = 0; at < 240_000; at += 10) if (ill.admit(at, random()) && at >= 180_000) passed += 1;
  assert.ok(passed > 30 && passed < 90, `${passed} in the last minute`);
});

test("a throttle forgets within a minute", () => {
  const throttle = new Throttle();
  for (let tried = 0; tried < 1000; tried += 1) throttle.admit(0, 0.99);
  assert.ok(!throttle.admit(59_000, 0.5));
  assert.ok(throttle.admit(60_000, 0.5));
});

test("a client id is a UUIDv7 of its time", () => {
  const id = uuidv7(Date.UTC(2026, 10, 30));
  assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.equal(parseInt(id.replace("-", "").slice(0, 12), 16), Date.UTC(2026, 10, 30));
});
