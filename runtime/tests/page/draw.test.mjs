// What is drawn, on a canvas that only counts: no curve may keep the page busy, and no number of nodes break it.

import assert from 'node:assert/strict';
import test from 'node:test';

let drawn = 0;
const context = new Proxy({}, { get: () => () => { drawn += 1; }, set: () => true });
const canvas = () => ({ clientWidth: 600, style: {}, getContext: () => context });
globalThis.window = { devicePixelRatio: 1 };
globalThis.document = { documentElement: null };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => '#000' });
const draw = await import('../../src/telemetry/page/draw.js');

test('curves of any size and flatness are drawn with few lines', () => {
  const flat = [[16384.5, 16384.500000000004], [1e-14, 1.0000001e-14], [1e-20, 1.5e-20], [1e16, 1e16 + 2], [0, 0], [-5, -5], [1e300, -1e300], [3, 3]];
  for (const [low, high] of flat) {
    drawn = 0;
    const under = draw.curves(canvas(), { 1: [[0, low], [1, high]] });
    assert(drawn < 100, `${low} to ${high}: ${drawn}`);
    assert.match(under(300), /node 1 at/);
  }
  assert.equal(draw.curves(canvas(), {})(300), null);
  assert.equal(draw.curves(canvas(), { 1: [] })(300), null);
});

test('a thousand nodes are drawn', () => {
  const ids = Array.from({ length: 1000 }, (_, id) => id + 1);
  assert.match(draw.matrix(canvas(), ids, () => 1, (from, to) => `${from} to ${to}`)(60, 20), /to/);
  const round = { round: 1, kind: 'slow', step: 4, members: ids, contributors: ids, published_us: 5 };
  assert.match(draw.timeline(canvas(), [round], ids, 60)(599, 1), /round 1/);
  assert.match(draw.shards(canvas(), ids, Array.from({ length: 512 }, () => [1, 2]))(60), /owns it/);
});
