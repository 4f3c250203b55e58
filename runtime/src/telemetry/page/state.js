// What the page knows: messages of the stream turned into curves, rates and rounds. No page, no clock: the tests run it alone.

/** Rounds that are kept. */
export const ROUNDS_MAX = 240;
/** Points of one curve; a longer one loses every second of them. */
export const POINTS_MAX = 1024;
/** A digest that is older than this says nothing about now. */
export const STALE_MS = 5000;

export function fresh() {
  return { told: null, before: null, lineage: null, rounds: [], curves: named(), last: {}, rates: {}, shards: null, events: [], eventsTold: 0 };
}

/** By names that others choose: no name means anything to the language. */
function named() {
  return Object.create(null);
}

/** Takes one message of the stream. */
export function take(state, told) {
  state.told = told;
  if (told.before) {
    // A new stream tells all rounds again; what was learned of other nodes stays, unless it is another run that is served there now.
    if (state.lineage !== null && state.lineage !== told.report.lineage) Object.assign(state, { curves: named(), last: {}, rates: {}, shards: null });
    state.before = told.before;
    state.lineage = told.report.lineage;
    state.rounds = [];
    for (const [name, points] of Object.entries(told.before.curves)) {
      curve(state, name)[told.report.node] = points.filter(([, value]) => Number.isFinite(value));
    }
  }
  state.rounds = state.rounds.concat(told.rounds).slice(-ROUNDS_MAX);
  if (told.shards) state.shards = told.shards;
  if (told.events) Object.assign(state, { events: told.events, eventsTold: state.eventsTold + 1 });
  for (const node of told.nodes) if (node.digest) note(state, node.node, node.digest);
  forget(state);
  return state;
}

/** Who is dead or says nothing has no rates; who is in no round any more, no curve. */
function forget(state) {
  const speaks = (node) => node.alive && node.digest && node.digest.age_ms <= STALE_MS;
  const speaking = new Set(state.told.nodes.filter(speaks).map((node) => String(node.node)));
  for (const id of Object.keys(state.rates)) if (!speaking.has(id)) delete state.rates[id];
  const known = new Set(everybody(state).map(String));
  for (const byNode of [...Object.values(state.curves), state.last]) for (const id of Object.keys(byNode)) if (!known.has(id)) delete byNode[id];
}

function curve(state, name) {
  return (state.curves[name] ??= {});
}

function note(state, id, digest) {
  // What a node told before this page was open, to another one.
  if (digest.age_ms > STALE_MS) return;
  for (const [name, [step, value]] of Object.entries(digest.measures)) push(curve(state, name), id, step, value);
  const last = state.last[id];
  if (digest.disagreement !== null && digest.disagreement !== last?.disagreement) push(curve(state, 'disagreement'), id, digest.step, digest.disagreement);
  // A node that started again counts anew, and so does one whose clock was set back.
  const goes = last && last.incarnation === digest.incarnation && digest.at_us >= last.at_us;
  if (goes && digest.at_us === last.at_us) return;
  if (goes && digest.sent_bytes >= last.sent_bytes && digest.step >= last.step) state.rates[id] = rates(last, digest);
  state.last[id] = digest;
}

function rates(before, now) {
  const seconds = (now.at_us - before.at_us) / 1e6;
  const links = {};
  for (const link of now.links) {
    const then = before.links.find((other) => other.to === link.to);
    // A connection that was made anew counts anew.
    if (then && link.sent_bytes >= then.sent_bytes) links[link.to] = (link.sent_bytes - then.sent_bytes) / seconds;
  }
  return {
    steps: (now.step - before.step) / seconds,
    sent: (now.sent_bytes - before.sent_bytes) / seconds,
    received: (now.received_bytes - before.received_bytes) / seconds,
    links,
  };
}

function push(curves, id, step, value) {
  const points = (curves[id] ??= []);
  const last = points[points.length - 1];
  if (!Number.isFinite(value) || (last && step <= last[0])) return;
  points.push([step, value]);
  if (points.length > POINTS_MAX) curves[id] = points.filter((_, index) => index % 2 === 0);
}

/** Decided rounds a second, of the last half minute, until now: fewer and fewer where none is decided. */
export function roundRate(state) {
  const now = state.told.at_us;
  const recent = state.rounds.filter((round) => now - round.at_us < 30e6);
  if (recent.length < 2) return state.rounds.length < 2 ? null : 0;
  return (recent.length - 1) / (Math.max(now - recent[0].at_us, 1) / 1e6);
}

/** What a node was in a round: contributed, late, joined, gone, or nothing. */
export function part(rounds, index, id) {
  const round = rounds[index];
  const before = index > 0 ? rounds[index - 1] : null;
  if (round.contributors.includes(id)) return round.members.includes(id) ? 'contributed' : 'gone';
  const joined = round.kind === 'bootstrap' || (before && !before.members.includes(id));
  if (round.members.includes(id)) return joined ? 'joined' : 'late';
  return before && before.members.includes(id) ? 'gone' : null;
}

/** Every node of the kept rounds and of now, ascending. */
export function everybody(state) {
  const ids = new Set(state.told.nodes.map((node) => node.node));
  for (const round of state.rounds) for (const id of round.members) ids.add(id);
  return [...ids].sort((one, other) => one - other);
}

/** What a node is now, in one word, and how good that is. */
export function standing(node, report) {
  if (!node.alive) return ['dead', 'bad'];
  if (!node.digest) return ['no answer', 'warn'];
  if (node.digest.age_ms > STALE_MS) return ['silent', 'warn'];
  const late = report.stragglers.find((straggler) => straggler.node === node.node);
  if (late) {
    const waits = late.waited_for ? 'the next round waits for it' : 'rounds do not wait for it';
    return ['late', 'warn', `missed ${late.missed} rounds in ${Math.round(late.ms / 1000)} s, has not finished step ${late.step}; ${waits}`];
  }
  if (node.digest.standing === 'member') return node.digest.waits ? ['waits', 'warn'] : ['member', 'good'];
  return [node.digest.standing, 'warn'];
}

/** Nodes that tell the same within this time saw one event. */
const SAME_EVENT_US = 10e6;

/** What happened, newest first, each thing once with all who tell of it. */
export function happened(events) {
  const told = [];
  for (const event of events) {
    const same = told.findLast((other) => other.what === event.what && event.at_us - other.at_us < SAME_EVENT_US);
    if (same && !same.nodes.includes(event.node)) same.nodes.push(event.node);
    else told.push({ at_us: event.at_us, what: event.what, nodes: [event.node] });
  }
  told.forEach((event) => event.nodes.sort((one, other) => one - other));
  return told.reverse();
}

/** What a node reported last under a name. */
export function measure(node, name) {
  const told = node.digest && Object.hasOwn(node.digest.measures, name) ? node.digest.measures[name][1] : null;
  return Number.isFinite(told) ? told : null;
}

/** The mean over the living nodes of what they reported last. */
export function mean(state, name) {
  const values = state.told.nodes.filter((node) => node.alive).map((node) => measure(node, name)).filter((value) => value !== null);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

/** The settings that may change while the job runs, with the values in force; what changed is said. */
export function inForce(settings) {
  const said = ({ key, value, configured }) => `${key} = ${value}${value === configured ? '' : ` (started with ${configured})`}`;
  return settings.map(said).join(', ');
}
