// Draws on canvases: curves, the timeline, matrices. Each takes what to draw and answers what lies under a point.

import { part } from './state.js';

const HUES = ['#3b82d6', '#e08a1e', '#2f9e62', '#c2518f', '#8a63d2', '#c9a20a', '#1fa3a8', '#d2453c', '#6b7f2a', '#7a6a5a'];

/** One colour for each node, the same everywhere. */
export function hue(id) {
  return HUES[(id - 1 + HUES.length) % HUES.length] ?? HUES[0];
}

/** The colours of the look that the system prefers; read once a drawing, as reading them costs. */
function colours() {
  const look = getComputedStyle(document.documentElement);
  const names = ['contributed', 'replica', 'late', 'joined', 'gone', 'none', 'line', 'faint'];
  return Object.fromEntries(names.map((name) => [name, look.getPropertyValue(`--${name}`).trim()]));
}

/** Makes a canvas as sharp as the screen; its context and its width, in the page's units. */
function prepare(canvas, height) {
  const [width, scale] = [canvas.clientWidth, window.devicePixelRatio || 1];
  canvas.style.height = `${height}px`;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return [context, width];
}

const LABEL = 54;
/** Most lines behind curves. */
const LINES_MAX = 8;

function rowHeight(rows) {
  return Math.max(4, Math.min(18, Math.floor(520 / Math.max(rows, 1))));
}

function rowLabels(context, look, ids, height, top = 0) {
  context.fillStyle = look.faint;
  context.textAlign = 'left';
  const every = Math.ceil(12 / height);
  ids.forEach((id, row) => {
    if (row % every === 0) context.fillText(`node ${id}`, 0, top + row * height + height / 2);
  });
}

/** Nodes by rounds. */
export function timeline(canvas, rounds, ids, slots) {
  const height = rowHeight(ids.length);
  const [context, width] = prepare(canvas, ids.length * height + 18);
  const look = colours();
  const step = (width - LABEL) / slots;
  const left = width - rounds.length * step;
  rowLabels(context, look, ids, height);
  rounds.forEach((round, index) => {
    const x = left + index * step;
    ids.forEach((id, row) => {
      const what = part(rounds, index, id);
      context.fillStyle = look[what ?? 'none'];
      context.fillRect(x, row * height + 1, Math.max(step - (step > 3 ? 1 : 0), 0.5), height - 2);
    });
  });
  context.fillStyle = look.faint;
  const every = Math.max(1, Math.round(70 / step));
  rounds.forEach((round, index) => {
    if (round.round % every !== 0) return;
    const x = left + index * step;
    context.textAlign = x > width - 20 ? 'right' : 'left';
    context.fillText(String(round.round), Math.min(x, width), ids.length * height + 10);
  });
  return (x, y) => {
    const [index, row] = [Math.floor((x - left) / step), Math.floor(y / height)];
    const [round, id] = [rounds[index], ids[row]];
    if (!round || id === undefined) return null;
    const was = { contributed: 'contributed', late: 'did not contribute', joined: 'joined', gone: 'left or lost' };
    const what = was[part(rounds, index, id)] ?? 'no member';
    const many = `${round.contributors.length} of ${round.members.length} contributed`;
    return `round ${round.round} (${round.kind}) · node ${id}: ${what}\nstep ${round.step} · ${many} · decided ${(round.published_us / 1000).toFixed(1)} ms after the last contribution`;
  };
}

function nice(span) {
  const size = 10 ** Math.floor(Math.log10(span));
  return [1, 2, 5, 10].map((factor) => factor * size).find((unit) => span / unit <= 4) ?? size * 10;
}

function told(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
}

/** Whether values are best compared by their ratios: they span decades. Zeros, which have no logarithm, are few then and left out. */
function spansDecades(lines) {
  const values = lines.flatMap(([, points]) => points.map(([, value]) => value));
  const positive = values.filter((value) => value > 0);
  const [low, high] = positive.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, 0]);
  return values.every((value) => value >= 0) && positive.length > 0.9 * values.length && high > 100 * low;
}

/** Curves over inner steps, one for each node. */
export function curves(canvas, byNode) {
  const height = 170;
  const [context, width] = prepare(canvas, height);
  const look = colours();
  let lines = Object.entries(byNode);
  const isLogarithmic = spansDecades(lines);
  if (isLogarithmic) lines = lines.map(([id, points]) => [id, points.filter(([, value]) => value > 0)]);
  lines = lines.filter(([, points]) => points.length > 0);
  const scaled = isLogarithmic ? (value) => Math.log10(value) : (value) => value;
  const back = isLogarithmic ? (value) => 10 ** value : (value) => value;
  let [low, high, first, last] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [, points] of lines) {
    for (const [step, value] of points) {
      [low, high] = [Math.min(low, scaled(value)), Math.max(high, scaled(value))];
      [first, last] = [Math.min(first, step), Math.max(last, step)];
    }
  }
  if (!lines.length) return () => null;
  // Curves that are flat, or as good as flat to a number's precision, get some room.
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= size * 1e-9) [low, high] = [low - (size || 1) * 0.05, high + (size || 1) * 0.05];
  const [left, right, top, bottom] = [46, width - 6, 6, height - 18];
  const x = (step) => left + ((step - first) / Math.max(last - first, 1)) * (right - left);
  const y = (value) => bottom - ((scaled(value) - low) / (high - low)) * (bottom - top);
  context.strokeStyle = look.line;
  context.fillStyle = look.faint;
  context.textAlign = 'right';
  const unit = isLogarithmic ? Math.max(1, Math.round((high - low) / 4)) : nice(high - low);
  const lowest = Math.ceil(low / unit);
  for (let line = 0; line < LINES_MAX && (lowest + line) * unit <= high; line += 1) {
    const at = (lowest + line) * unit;
    const level = bottom - ((at - low) / (high - low)) * (bottom - top);
    context.beginPath();
    context.moveTo(left, level);
    context.lineTo(right, level);
    context.stroke();
    context.fillText(told(back(at)), left - 5, level);
  }
  context.textAlign = 'left';
  context.fillText(`step ${first}`, left, height - 7);
  context.textAlign = 'right';
  context.fillText(String(last), right, height - 7);
  context.lineWidth = 1.3;
  for (const [id, points] of lines) {
    context.strokeStyle = hue(Number(id));
    context.beginPath();
    points.forEach(([step, value], index) => context[index ? 'lineTo' : 'moveTo'](x(step), y(value)));
    if (points.length === 1) context.arc(x(points[0][0]), y(points[0][1]), 1.5, 0, 7);
    context.stroke();
  }
  return (px) => {
    if (px < left) return null;
    const step = first + ((px - left) / (right - left)) * (last - first);
    const nearest = (points) => points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
    return lines.slice(0, 12).map(([id, points]) => `node ${id} at ${nearest(points)[0]}: ${told(nearest(points)[1])}`).join('\n');
  };
}

/** The largest value between any two. */
export function strongest(ids, value) {
  let most = 0;
  for (const from of ids) for (const to of ids) most = Math.max(most, value(from, to) ?? 0);
  return most;
}

/** Rows by columns of nodes, each cell as strong as its value. */
export function matrix(canvas, ids, value, tell) {
  const height = rowHeight(ids.length);
  const top = 16;
  const [context, width] = prepare(canvas, ids.length * height + top);
  const look = colours();
  const cell = Math.min((width - LABEL) / Math.max(ids.length, 1), 64);
  const most = strongest(ids, value) || 1;
  rowLabels(context, look, ids, height, top);
  context.textAlign = 'center';
  const every = Math.ceil(18 / cell);
  ids.forEach((id, column) => {
    if (column % every === 0) context.fillText(String(id), LABEL + column * cell + cell / 2, 7);
  });
  ids.forEach((from, row) => ids.forEach((to, column) => {
    const strength = (value(from, to) ?? 0) / most;
    const [x, y] = [LABEL + column * cell, top + row * height];
    context.globalAlpha = 1;
    context.fillStyle = look.none;
    if (from !== to) context.fillRect(x + 0.5, y + 0.5, cell - 1, height - 1);
    context.globalAlpha = strength > 0 ? 0.12 + 0.88 * strength : 0;
    context.fillStyle = look.contributed;
    if (from !== to) context.fillRect(x + 0.5, y + 0.5, cell - 1, height - 1);
  }));
  context.globalAlpha = 1;
  return (x, y) => {
    const [from, to] = [ids[Math.floor((y - top) / height)], ids[Math.floor((x - LABEL) / cell)]];
    return from === undefined || to === undefined || from === to || y < top ? null : tell(from, to);
  };
}

/** Shards by their holders. */
export function shards(canvas, ids, holders) {
  const height = rowHeight(ids.length);
  const [context, width] = prepare(canvas, ids.length * height + 18);
  const look = colours();
  const cell = (width - LABEL) / Math.max(holders.length, 1);
  rowLabels(context, look, ids, height);
  ids.forEach((id, row) => {
    holders.forEach((nodes, shard) => {
      const rank = nodes.indexOf(id);
      context.fillStyle = rank === 0 ? look.contributed : rank > 0 ? look.replica : look.none;
      context.fillRect(LABEL + shard * cell, row * height + 1, Math.max(cell - (cell > 4 ? 1 : 0), 0.5), height - 2);
    });
  });
  context.fillStyle = look.faint;
  context.textAlign = 'left';
  context.fillText('shard 0', LABEL, ids.length * height + 10);
  context.textAlign = 'right';
  context.fillText(String(holders.length - 1), width, ids.length * height + 10);
  return (x) => {
    const shard = Math.floor((x - LABEL) / cell);
    const nodes = holders[shard];
    if (!nodes || x < LABEL) return null;
    const replicas = nodes.length > 1 ? `, replicas on ${nodes.slice(1).join(', ')}` : ', no replica';
    return `shard ${shard}: node ${nodes[0]} owns it${replicas}`;
  };
}
