// Uses the page as a person does, in a headless Chromium: looks, drains, scales, loses nodes. Arguments: the browser, the command line,
// the job, the page's address, a folder for screenshots or nothing.
'use strict';
const { chromium } = require('playwright-core');
const { execFileSync } = require('node:child_process');
const assert = require('node:assert');

const [executablePath, slowmo, job, address, shots] = process.argv.slice(2);
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];
const WAIT = { timeout: 30000 };
const command = (...words) => execFileSync(slowmo, [...words, '--job', job], { stdio: 'pipe' });
const said = [];

async function look(browser, url, scheme = 'light') {
  const page = await browser.newPage({ viewport: { width: 1300, height: 900 }, colorScheme: scheme });
  page.on('pageerror', (error) => said.push(`error: ${error.message}`));
  page.on('console', (message) => message.type() === 'error' && !message.text().includes('ERR_') && said.push(message.text()));
  page.on('request', (request) => {
    const asked = new URL(request.url());
    if (asked.protocol !== 'data:' && asked.hostname !== '127.0.0.1') said.push(`it asks ${asked.href}`);
  });
  await page.goto(url);
  return page;
}

const members = (page, count) => page.waitForFunction(
  (wanted) => document.querySelectorAll('#nodes tbody .badge.good').length === wanted, count, WAIT);
const event = (page, text) => page.waitForFunction((wanted) => document.getElementById('events').textContent.includes(wanted), text, WAIT);
const round = (page) => page.evaluate(() => Number(document.querySelector('#tiles .tile b').textContent));
const twice = async (button) => { await button.click(); await button.click(); };
// A canvas on which nothing was drawn has one colour.
const colours = (page, id) => page.evaluate((canvas) => {
  const drawn = document.getElementById(canvas);
  const { data } = drawn.getContext('2d').getImageData(0, 0, drawn.width, drawn.height);
  return new Set(new Uint32Array(data.buffer)).size;
}, id);

async function check(browser) {
  let page = await look(browser, address);
  await members(page, 4);
  assert(!page.url().includes('token'), 'the token stays in the address');
  for (const id of ['timeline', 'links', 'shards']) assert((await colours(page, id)) > 2, `nothing is drawn on ${id}`);
  await page.waitForSelector('canvas[data-name="accuracy"]', WAIT);
  for (const name of ['loss', 'accuracy', 'disagreement']) assert(await page.locator(`canvas[data-name="${name}"]`).count(), name);
  const before = await round(page);
  await page.waitForFunction((last) => Number(document.querySelector('#tiles .tile b').textContent) > last + 1, before, WAIT);
  await page.hover('#timeline', { position: { x: 1200, y: 20 } });
  assert.match(await page.textContent('#tip'), /round \d+/);

  command('kill', '4');
  await event(page, 'node 4 is dead');
  await members(page, 3);
  await page.fill('#scale', '5');
  await twice(page.locator('#scale-button'));
  await members(page, 5);
  await twice(page.locator('tr[data-node="2"] button'));
  await page.waitForFunction(() => !document.querySelector('tr[data-node="2"]'), null, WAIT);
  await event(page, 'node 2 left the view');
  await page.waitForTimeout(shots ? 20000 : 0);
  if (shots) await page.screenshot({ path: `${shots}/dashboard-light.png`, fullPage: true });

  const other = await page.locator('tr[data-node="3"] a').getAttribute('href');
  const second = await look(browser, other, 'dark');
  await members(second, 4);
  await second.waitForTimeout(shots ? 15000 : 0);
  if (shots) await second.screenshot({ path: `${shots}/dashboard-dark.png`, fullPage: true });
  await second.close();

  const stranger = await look(browser, address.split('#')[0]);
  await members(stranger, 4);
  assert.equal(await stranger.locator('#nodes button').count(), 0, 'a page without the token offers orders');
  await stranger.fill('#token', 'a token that is not the one');
  await stranger.click('#token-form button');
  await twice(stranger.locator('tr[data-node="3"] button'));
  await stranger.waitForFunction(() => document.getElementById('said').textContent.includes('token is wrong'), null, WAIT);
  said.splice(0, said.length, ...said.filter((text) => !text.includes('401')));
  await stranger.close();

  command('kill', '1');
  await page.waitForSelector('#banner a', WAIT);
  const next = await page.locator('#banner a').first().getAttribute('href');
  page = await look(browser, next);
  await members(page, 3);
}

(async () => {
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  try {
    await check(browser);
  } finally {
    await browser.close();
  }
  assert.deepEqual(said, []);
})().catch((error) => {
  console.error(error, said);
  process.exit(1);
});
