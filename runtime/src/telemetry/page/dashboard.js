// The page: listens to its node's stream of events and shows what it tells; carries orders back, with the token.

import { everybody, fresh, happened, inForce, mean, measure, part, roundRate, ROUNDS_MAX, standing, take } from './state.js';
import * as draw from './draw.js';

/** Without a message for so long, the node counts as gone. */
const SILENT_MS = 5000;
/** How long a button waits for its second press. */
const ASKS_MS = 3000;

/** How long the answer to an order stays. */
const SAID_MS = 15000;

/** Links that a node tells of others, at most. */
const LINKS_MAX = 16;
/** From so many nodes on, matrices are drawn every so many messages only. */
const [MANY, SELDOM] = [64, 10];

const state = fresh();
let saidUntil = null;
const at = (id) => document.getElementById(id);
let heardAt = performance.now();
let under = new Map();

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
}

function rate(bytes) {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return '–';
  const unit = ['B', 'kB', 'MB', 'GB'].findIndex((_, index) => bytes < 1000 ** (index + 1) || index === 3);
  return `${(bytes / 1000 ** unit).toFixed(unit ? 1 : 0)} ${['B', 'kB', 'MB', 'GB'][unit]}/s`;
}

// Orders

function token() {
  return sessionStorage.getItem('token');
}

function adoptToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (!given) return;
  sessionStorage.setItem('token', given);
  history.replaceState(null, '', location.pathname);
}

async function order(path) {
  let said;
  try {
    const answer = await fetch(path, { method: 'POST', headers: { Authorization: `Bearer ${token()}` } });
    said = (await answer.text()).trim();
    if (answer.status === 401) {
      sessionStorage.removeItem('token');
      said = 'the token is wrong: give it again';
    }
  } catch (error) {
    said = `the node does not answer (${error.message})`;
  }
  at('said').textContent = said;
  at('said').hidden = false;
  clearTimeout(saidUntil);
  saidUntil = setTimeout(() => (at('said').hidden = true), SAID_MS);
  show();
}

/** A button that wants a second press. */
function asking(button, label, act) {
  button.textContent = label;
  let asks = null;
  const rest = () => {
    clearTimeout(asks);
    asks = null;
    button.textContent = label;
    button.classList.remove('asks');
  };
  button.addEventListener('click', () => {
    if (asks !== null) {
      rest();
      act();
      return;
    }
    button.textContent = `${label}?`;
    button.classList.add('asks');
    asks = setTimeout(rest, ASKS_MS);
  });
  return button;
}

at('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem('token', at('token').value.trim());
  at('token').value = '';
  show();
});

let [scaleAsks, scaleTo] = [null, null];
at('scale').addEventListener('input', () => (at('scale').dataset.touched = 'yes'));
at('scale-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const button = at('scale-button');
  const rest = () => {
    clearTimeout(scaleAsks);
    scaleAsks = null;
    button.textContent = 'scale';
    button.classList.remove('asks');
  };
  if (scaleAsks === null) {
    scaleTo = at('scale').value;
    button.textContent = `to ${scaleTo}?`;
    button.classList.add('asks');
    scaleAsks = setTimeout(rest, ASKS_MS);
    return;
  }
  rest();
  delete at('scale').dataset.touched;
  order(`scale?nodes=${encodeURIComponent(scaleTo)}`);
});

// What is shown

function tile(value, what, isBad = false) {
  return element('div', { className: isBad ? 'tile bad' : 'tile' }, element('b', { textContent: value }), element('span', { textContent: what }));
}

function showTiles() {
  const { report, nodes } = state.told;
  const alive = nodes.filter((node) => node.alive).length;
  const rates = Object.values(state.rates);
  const total = (key) => (rates.length ? rates.reduce((sum, one) => sum + one[key], 0) : null);
  const measures = [...new Set(nodes.flatMap((node) => Object.keys(node.digest?.measures ?? {})))].sort(lossFirst);
  at('tiles').replaceChildren(
    tile(number(report.round), 'next round'),
    tile(number(report.step), 'inner step'),
    tile(number(roundRate(state)), 'rounds/s'),
    tile(`${alive} of ${nodes.length}`, 'members alive', alive < nodes.length),
    tile(`${report.last_round.contributors} of ${report.last_round.members}`, 'contributed last'),
    ...measures.map((name) => tile(number(mean(state, name), 4), `${name}, mean`)),
    tile(number(report.disagreement), 'disagreement'),
    tile(`${(report.last_round.published_us / 1000).toFixed(1)} ms`, 'to decide'),
    tile(rate(total('sent')), 'sent by all'),
    tile(number(report.momentum_lost), 'momentum lost', report.momentum_lost > 0),
  );
  at('settings').textContent = inForce(report.settings ?? []);
}

function lossFirst(one, other) {
  return (other === 'loss') - (one === 'loss') || one.localeCompare(other);
}

function showCharts() {
  const names = Object.keys(state.curves).sort((one, other) => (one === 'disagreement') - (other === 'disagreement') || lossFirst(one, other));
  const charts = at('charts');
  for (const name of names) {
    if (charts.querySelector(`[data-name="${CSS.escape(name)}"]`)) continue;
    const canvas = element('canvas');
    canvas.dataset.name = name;
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', `${name} over inner steps, a line for each node`);
    charts.append(element('div', { className: 'chart' }, element('h2', { textContent: name }), canvas));
  }
  charts.hidden = names.length === 0;
  for (const canvas of charts.querySelectorAll('canvas')) {
    under.set(canvas, draw.curves(canvas, state.curves[canvas.dataset.name]));
  }
}

function nodeRow(node, own, mayDrain) {
  const row = element('tr');
  row.dataset.node = node.node;
  const swatch = element('span', { className: 'swatch' });
  swatch.style.background = draw.hue(node.node);
  row.append(element('td', {}, swatch, `node ${node.node}`));
  for (const kind of ['', '', 'number', 'number', 'number', 'number', 'number', 'number', 'number', 'number']) {
    row.append(element('td', { className: kind }));
  }
  const last = element('td');
  if (mayDrain) last.append(asking(element('button', { type: 'button' }), 'drain', () => order(`drain?node=${node.node}`)));
  row.append(last);
  if (node.node === own) row.firstChild.append(element('small', { textContent: 'this page' }));
  return row;
}

function showNodes() {
  const { nodes, report } = state.told;
  const mayDrain = Boolean(state.before?.orders && token());
  const body = at('nodes').tBodies[0];
  // Rows stay as long as their nodes do: a button must not vanish between two presses.
  const key = nodes.map((node) => node.node).join() + mayDrain;
  if (body.dataset.key !== key) {
    body.dataset.key = key;
    body.replaceChildren(...nodes.map((node) => nodeRow(node, report.node, mayDrain)));
  }
  nodes.forEach((node, index) => {
    const [cells, digest, rates] = [body.rows[index].cells, node.digest, state.rates[node.node]];
    const [word, kind, title = ''] = standing(node, report);
    cells[1].replaceChildren(element('span', { className: `badge ${kind}`, textContent: word, title }));
    const link = node.node === report.node ? null : pageOf(node, node.address);
    if (cells[2].textContent !== node.address || cells[2].firstElementChild?.href !== link?.href) cells[2].replaceChildren(link ?? node.address);
    const texts = [node.devices, digest?.step ?? '–', number(rates?.steps), number(measure(node, 'loss'), 4), number(digest?.disagreement),
      number(digest?.weight), rate(rates?.sent), rate(rates?.received)];
    texts.forEach((text, column) => (cells[3 + column].textContent = text));
  });
}

const hostOf = (address) => address.slice(0, address.lastIndexOf(':'));
const isLoopback = (host) => host.startsWith('127.') || host === '[::1]';

/** A link to a node's page, if this browser reaches it: a loopback address is one of the machine that this page's node runs on. */
function pageOf(node, text) {
  const http = node.digest?.http;
  const own = state.told.nodes.find((other) => other.node === state.told.report.node);
  const here = own && hostOf(own.address) === hostOf(node.address);
  if (!http) return null;
  // A node may name any address as its page: only its own host is believed. The token stays with this page.
  const its = hostOf(http) === hostOf(node.address) || (isLoopback(hostOf(http)) && here);
  if (!its) return null;
  return element('a', { href: `http://${http}/`, textContent: text, title: 'its page', rel: 'noreferrer' });
}

function showMatrices() {
  const { nodes } = state.told;
  const ids = nodes.map((node) => node.node);
  const going = (from, to) => state.rates[from]?.links[to];
  const trip = (from, to) => nodes.find((node) => node.node === from)?.digest?.links.find((link) => link.to === to)?.round_trip_us;
  const tell = (from, to) => {
    const took = trip(from, to);
    return `node ${from} → node ${to}: ${rate(going(from, to))}${took ? `, round trip ${(took / 1000).toFixed(2)} ms` : ''}`;
  };
  under.set(at('links'), draw.matrix(at('links'), ids, going, tell));
  const told = ids.length > LINKS_MAX + 1 ? `; of each node its ${LINKS_MAX} busiest` : '';
  at('links-now').textContent = ids.length > 1 ? `row to column, the busiest ${rate(draw.strongest(ids, going))}${told}` : 'one node has none';
  if (!state.shards) return;
  under.set(at('shards'), draw.shards(at('shards'), ids, state.shards.holders));
  const replicas = state.shards.holders.reduce((most, holders) => Math.max(most, holders.length - 1), 0);
  at('shards-now').textContent = `${state.shards.elements} values in ${state.shards.holders.length} shards, ${replicas} replica(s) of each`;
}

function showTimeline() {
  const [rounds, ids] = [state.rounds, everybody(state)];
  under.set(at('timeline'), draw.timeline(at('timeline'), rounds, ids, Math.min(ROUNDS_MAX, Math.max(60, rounds.length))));
  const last = rounds[rounds.length - 1];
  const late = last ? ids.filter((id) => part(rounds, rounds.length - 1, id) === 'late') : [];
  at('timeline-now').textContent = last ? `round ${last.round}: ${late.length ? `without ${late.map((id) => `node ${id}`).join(', ')}` : 'everybody contributed'}` : 'no round yet';
}

function showEvents() {
  const list = at('events');
  const key = String(state.eventsTold);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const time = (event) => new Date(event.at_us / 1000).toLocaleTimeString([], { hour12: false });
  const tellers = ({ nodes }) => (nodes.length > 4 ? `${nodes.length} nodes tell` : nodes.length > 1 ? `nodes ${nodes.join(', ')} tell` : `node ${nodes[0]} tells`);
  const item = (event) => element('li', {}, element('time', { textContent: time(event) }), element('span', { className: 'who', textContent: tellers(event) }), element('span', { textContent: event.what }));
  const items = happened(state.events).map(item);
  list.replaceChildren(...(items.length ? items : [element('li', { className: 'empty', textContent: 'nothing yet' })]));
}

function showHead() {
  const { report } = state.told;
  at('where').textContent = `node ${report.node} of history ${report.lineage.slice(0, 8)}, epoch ${report.epoch}`;
  document.title = `slowmo · round ${report.round}`;
  const orders = Boolean(state.before?.orders);
  at('token-form').hidden = !orders || Boolean(token());
  at('scale-form').hidden = !orders || !token() || state.told.launched === null;
  const scale = at('scale');
  if (document.activeElement !== scale && !scale.dataset.touched) scale.value = state.told.launched ?? '';
}

function showPulse() {
  const silent = performance.now() - heardAt > SILENT_MS;
  const report = state.told?.report;
  const word = !state.told ? 'connecting' : silent ? 'no answer' : report.standing;
  at('pulse').textContent = word;
  at('pulse').className = `badge ${silent ? 'bad' : word === 'member' ? 'good' : 'warn'}`;
  const banner = at('banner');
  const others = (state.told?.nodes ?? []).filter((node) => node.node !== report.node && node.alive && pageOf(node, ''));
  const why = silent && state.told ? 'silent' : report?.waiting_for ? `waits${report.waiting_for}` : '';
  banner.hidden = why === '';
  if (banner.dataset.why === why) return;
  banner.dataset.why = why;
  if (why === 'silent') {
    banner.replaceChildren(`Node ${report.node}, which serves this page, does not answer: it has left, or was lost. What is shown is what it told last. `);
    others.slice(0, 4).forEach((node) => banner.append(pageOf(node, `Go on at node ${node.node}`), ' '));
  } else {
    banner.textContent = report?.waiting_for ? `No round is decided now: ${report.waiting_for}` : '';
  }
}

let shown = 0;

function show() {
  showPulse();
  // A page that nobody sees is not drawn.
  if (!state.told || document.hidden) return;
  showHead();
  showTiles();
  showTimeline();
  showCharts();
  showNodes();
  if (state.told.nodes.length < MANY || shown % SELDOM === 0) showMatrices();
  showEvents();
  shown += 1;
}

// What comes

function listen() {
  const stream = new EventSource('stream');
  stream.onmessage = (message) => {
    heardAt = performance.now();
    take(state, JSON.parse(message.data));
    show();
  };
  // The browser tries again by itself, but for answers that are no stream: too many pages, or too many requests.
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, SILENT_MS);
  };
}

const tip = at('tip');
document.addEventListener('mousemove', (event) => {
  const find = event.target instanceof HTMLCanvasElement ? under.get(event.target) : null;
  const text = find?.(event.offsetX, event.offsetY) ?? null;
  tip.hidden = text === null;
  if (text === null) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
});
window.addEventListener('resize', show);
document.addEventListener('visibilitychange', show);
window.addEventListener('hashchange', () => {
  adoptToken();
  show();
});
setInterval(showPulse, 1000);
adoptToken();
listen();
