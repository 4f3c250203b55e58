// What the page makes of the stream's messages: `node --test runtime/tests/page/`.

import assert from 'node:assert/strict';
import test from 'node:test';
import { everybody, fresh, happened, inForce, mean, part, POINTS_MAX, roundRate, ROUNDS_MAX, standing, take } from '../../src/telemetry/page/state.js';

const round = (number, members, contributors, kind = 'slow') =>
  ({ round: number, at_us: number * 1e6, kind, step: 4 * number, members, contributors, published_us: 900 });
const digest = (step, more = {}) => ({
  age_ms: 10, incarnation: '1', standing: 'member', round: 1, step, measures: { loss: [step, 1 / (step + 1)] }, disagreement: 0.1, weight: null, waits: false,
  http: null, at_us: step * 1e5, sent_bytes: step * 1000, received_bytes: step * 500,
  links: [{ to: 2, sent_bytes: step * 300, round_trip_us: 80 }], ...more,
});
const told = (nodes, more = {}) => ({ at_us: 10e6, report: { node: 1, events: [] }, nodes, rounds: [], ...more });
const node = (id, its) => ({ node: id, address: 'x', devices: 1, alive: true, digest: its });

test('rates are those of the teller\'s clock, and of one start of it', () => {
  const state = fresh();
  take(state, told([node(1, digest(10))]));
  assert.deepEqual(state.rates, {});
  take(state, told([node(1, digest(20))]));
  assert.deepEqual(state.rates[1], { steps: 10, sent: 10000, received: 5000, links: { 2: 3000 } });
  // The same digest again says nothing new; a restart counts anew.
  take(state, told([node(1, digest(20))]));
  assert.equal(state.rates[1].steps, 10);
  take(state, told([node(1, digest(30, { sent_bytes: 5 }))]));
  assert.equal(state.rates[1].steps, 10);
  take(state, told([node(1, digest(5, { incarnation: '2' }))]));
  take(state, told([node(1, digest(9, { incarnation: '2' }))]));
  assert.equal(state.rates[1].steps, 10);
  take(state, told([{ ...node(1, digest(12, { incarnation: '2' })), alive: false }]));
  assert.deepEqual(state.rates, {}, 'the dead have none');
  take(state, told([node(1, digest(20, { incarnation: '2' }))]));
  take(state, told([]));
  assert.deepEqual(state.rates, {});
});

test('an old digest of a page that was open before is not taken for now', () => {
  const state = take(fresh(), told([node(2, digest(10, { age_ms: 60000 }))]));
  assert.deepEqual(Object.keys(state.curves), []);
  assert.deepEqual(standing(state.told.nodes[0]), ['silent', 'warn']);
});

test('curves go on where the node\'s own begin, without what is no number, and stay short', () => {
  const before = { orders: true, replicas: 1, curves: { loss: [[0, 1], [3, null], [5, 0.5]] } };
  const state = take(fresh(), told([node(1, digest(4))], { before }));
  take(state, told([node(1, digest(8))]));
  take(state, told([node(1, digest(9, { measures: { loss: [9, null] } }))]));
  assert.deepEqual(state.curves.loss[1], [[0, 1], [5, 0.5], [8, 1 / 9]]);
  for (let step = 10; step < 5000; step += 1) take(state, told([node(1, digest(step))]));
  const points = state.curves.loss[1];
  assert(points.length <= POINTS_MAX && points[0][0] === 0 && points.at(-1)[0] > 4990, String(points.length));
});

test('a new stream tells all rounds again, once', () => {
  const state = fresh();
  const many = Array.from({ length: 300 }, (_, number) => round(number, [1], [1]));
  take(state, told([], { before: { curves: {} }, rounds: many }));
  assert.equal(state.rounds.length, ROUNDS_MAX);
  take(state, told([], { before: { curves: {} }, rounds: many.slice(0, 3) }));
  assert.equal(state.rounds.length, 3);
});

test('what a node was in a round', () => {
  const rounds = [round(0, [1, 2, 3], [1], 'bootstrap'), round(1, [1, 2], [1, 2, 3]), round(2, [1, 2, 4], [1]), round(3, [1, 4], [1, 4])];
  const parts = (id) => rounds.map((_, index) => part(rounds, index, id));
  assert.deepEqual(parts(1), ['contributed', 'contributed', 'contributed', 'contributed']);
  assert.deepEqual(parts(2), ['joined', 'contributed', 'late', 'gone']);
  assert.deepEqual(parts(3), ['joined', 'gone', null, null]);
  assert.deepEqual(parts(4), [null, null, 'joined', 'contributed']);
  const state = take(fresh(), told([node(7, null)], { rounds }));
  assert.deepEqual(everybody(state), [1, 2, 3, 4, 7]);
  assert.equal(roundRate(state), 0.3, 'until now');
  assert.equal(roundRate({ ...state, told: { at_us: 100e6 } }), 0, 'none is decided');
});

test('one thing that many tell of is shown once', () => {
  const events = [{ at_us: 1e6, node: 2, what: 'a' }, { at_us: 2e6, node: 1, what: 'a' }, { at_us: 3e6, node: 1, what: 'b' }, { at_us: 60e6, node: 1, what: 'a' }];
  assert.deepEqual(happened(events).map(({ what, nodes }) => [what, nodes]), [['a', [1]], ['b', [1]], ['a', [1, 2]]]);
});

test('another run on the same page begins anew, and names mean nothing to the language', () => {
  const first = { before: { curves: {} }, report: { node: 1, lineage: 'a', events: [] } };
  const state = take(fresh(), told([node(1, digest(500)), node(2, digest(500, { measures: { __proto__: null, ['__proto__']: [1, 2], constructor: [500, 3] } }))], first));
  assert.deepEqual(state.curves.constructor, { 2: [[500, 3]] });
  assert.equal({}.polluted, undefined);
  take(state, told([node(2, digest(3))], { ...first, report: { node: 1, lineage: 'b', events: [] } }));
  assert.deepEqual(state.curves.loss, { 2: [[3, 0.25]] });
});

test('a measure stands at its own step', () => {
  const state = fresh();
  const told_at = (step, own) => take(state, told([node(1, digest(step, { measures: { accuracy: [own, 0.5] } }))]));
  told_at(10, 7);
  told_at(20, 7);
  told_at(30, 27);
  assert.deepEqual(state.curves.accuracy[1], [[7, 0.5], [27, 0.5]]);
});

test('how a node stands, and the mean of those that live', () => {
  const nodes = [node(1, digest(1)), { ...node(2, digest(1)), alive: false }, node(3, null), node(4, digest(3, { waits: true })), node(5, digest(1, { standing: 'leaving' }))];
  const standings = (stragglers) => nodes.map((one) => standing(one, { stragglers })[0]);
  assert.deepEqual(standings([]), ['member', 'dead', 'no answer', 'waits', 'leaving']);
  const late = { node: 1, missed: 4, step: 12, ms: 34200, waited_for: false };
  assert.deepEqual(standings([late]), ['late', 'dead', 'no answer', 'waits', 'leaving']);
  assert.equal(standing(nodes[0], { stragglers: [late] })[2], 'missed 4 rounds in 34 s, has not finished step 12; rounds do not wait for it');
  assert.equal(mean(take(fresh(), told(nodes)), 'loss'), (0.5 + 0.25 + 0.5) / 3);
  assert.equal(mean(take(fresh(), told(nodes)), 'none'), null);
});

test('settings are shown as they are in force, and what changed', () => {
  const settings = [{ key: 'tau', value: '96', configured: '48' }, { key: 'frequency', value: '3', configured: '3' }];
  assert.equal(inForce(settings), 'tau = 96 (started with 48), frequency = 3');
  assert.equal(inForce([]), '');
});
