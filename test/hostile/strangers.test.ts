// Strangers at every listener: other users, no token, a wrong one, a replay, garbage, half-open connections, a flood.
// Nobody gets in, the process lives, and those who belong are served meanwhile. WEFTLINE_TEST_FLOOD: how many at once (300).
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { encodeFrame } from '#lib/meeting/frames.js';
import { skipWithout } from '../local/support/requirements.ts';
import { usageOf } from '../support/process-usage.ts';
import { Random } from './fuzz/random.ts';
import { Caller, Host, OTHER_USER } from './strangers/processes.ts';
import { beyondRefusal, flood, Recorder, visit } from './strangers/raw-caller.ts';
import { settings, type Target } from './strangers/targets.ts';
import { until } from '../support/until.ts';

const FLOOD = Number(process.env['WEFTLINE_TEST_FLOOD'] ?? 300);
const GREETING_MS = settings.greetingMs as number;
/** A host that is flooded on a busy machine hangs up a little later. */
const WAIT_MS = GREETING_MS + 60_000;
/**
 * What a host may hold beyond the strangers' places: sockets that are being closed, and the honest callers that are served
 * before and meanwhile.
 */
const SLACK = 56;
const secret = randomBytes(32).toString('hex');
let attempts = 0;

async function withKit(token: string, run: (host: Host, caller: Caller) => Promise<void>): Promise<void> {
  using host = await Host.start(token);
  using caller = (await Caller.start()) as Caller;
  await run(host, caller);
  assert.ok(host.isAlive, 'the host ended');
  for (const target of host.targets) await assertServed(caller, target, token);
}

/** Returns how long it took, in milliseconds. */
async function assertServed(caller: Caller, target: Target, token: string): Promise<number> {
  const outcome = await caller.attempt({ target, token, number: ++attempts });
  assert.equal(outcome.code, 'reached', `${target.kind}: ${outcome.message}`);
  return outcome.ms;
}

async function assertRefused(caller: Caller, target: Target, token: string): Promise<void> {
  const outcome = await caller.attempt({ target, token, number: ++attempts });
  assert.equal(outcome.code, 'WL_UNAUTHORIZED', `${target.kind}: ${outcome.message}`);
}

test('with a token: callers with none or another one stay out', async (context) => {
  await withKit(secret, async (host, caller) => {
    for (const target of host.targets) {
      await context.test(target.kind, async () => {
        await assertServed(caller, target, secret);
        await assertRefused(caller, target, 'a guess');
        await assertRefused(caller, target, '');
      });
    }
  });
});

/** Undefined if another user can run this code. */
async function whyNoOtherUser(): Promise<string | undefined> {
  if (process.getuid?.() !== 0) return 'needs root, to run a process as another user';
  using other = await Caller.start(OTHER_USER);
  return other === undefined ? `user ${OTHER_USER} cannot read this folder` : undefined;
}

const skip = skipWithout('other-user', await whyNoOtherUser());

test('without a token: another user stays out, and so do callers with a token', { skip }, async (context) => {
  using other = (await Caller.start(OTHER_USER)) as Caller;
  await withKit('', async (host, caller) => {
    for (const target of host.targets) {
      await context.test(target.kind, async () => {
        await assertServed(caller, target, '');
        await assertRefused(other, target, '');
        await assertRefused(other, target, 'a guess');
        await assertRefused(caller, target, 'a guess');
      });
    }
  });
});

test('raw strangers at every listener', { concurrency: true }, async (context) => {
  await withKit(secret, async (host, caller) => {
    const pid = host.process.pid as number;
    const { targets } = host;
    for (const target of targets) await context.test(`${target.kind}: a replay`, () => replay(caller, target));
    // At the same time: what they do is to wait until the host hangs up.
    await Promise.all(
      targets.flatMap((target) => [
        context.test(`${target.kind}: garbage`, () => sendGarbage(target)),
        context.test(`${target.kind}: byte by byte`, () => crawl(target)),
      ]),
    );
    for (const target of targets) {
      await context.test(`${target.kind}: a flood of ${FLOOD}`, (inner) => floodOf(inner, { caller, target, pid }));
    }
  });
});

/** What an honest caller said proves nothing a second time. */
async function replay(caller: Caller, target: Target): Promise<void> {
  using recorder = await Recorder.start(target.port);
  await assertServed(caller, { ...target, port: recorder.port }, secret);
  const said = Buffer.concat(recorder.said);
  assert.ok(said.length > 100, 'nothing was recorded');
  for (const pieces of [[said], recorder.said]) {
    const reply = await visit(target.port, pieces, { waitMs: WAIT_MS, gapMs: 5 });
    assert.deepEqual(beyondRefusal(reply), []);
    assert.ok(reply.wasClosed);
  }
}

async function sendGarbage({ port }: Target): Promise<void> {
  const random = new Random(port);
  const huge = Buffer.alloc(8);
  huge.writeUInt32LE(0x7fff_ffff, 0);
  const frames = [
    {},
    { refused: 'junk' },
    { refused: { code: 5, message: {}, details: 'x', cause: [] } },
    { goodbye: true },
    { version: 99, protocol: 'x'.repeat(3000) },
    { protocol: '\u001b[2J', version: {}, nonce: [], proof: null, credential: 'user' },
    { proof: { toString: 'x' }, nonce: 'ab'.repeat(32), rank: 1e308, size: -1 },
  ].map((header) => Buffer.concat(encodeFrame(header)));
  const pieces = [
    Buffer.from('GET / HTTP/1.1\r\nHost: host\r\n\r\n'),
    Buffer.from('16030100c8010000c40303', 'hex'),
    huge,
    ...frames,
    Buffer.concat([...frames, ...frames]),
    ...Array.from({ length: 12 }, () => Buffer.from(random.bytes(1 + random.below(500)))),
  ];
  const replies = await Promise.all(
    // An end, so that what waits for more hears that there is none.
    pieces.map((piece) => visit(port, [piece], { waitMs: WAIT_MS })),
  );
  for (const reply of replies) {
    assert.deepEqual(beyondRefusal(reply), []);
    assert.ok(reply.wasClosed);
  }
}

/** Slower than anybody who means it. */
async function crawl({ port }: Target): Promise<void> {
  const frame = Buffer.concat(encodeFrame({ protocol: 'weftline', version: 1, nonce: 'ab'.repeat(32), proof: '' }));
  const pieces = Array.from(frame, (byte) => Buffer.of(byte));
  const replies = await Promise.all(
    Array.from({ length: 8 }, () => visit(port, pieces, { waitMs: WAIT_MS, gapMs: GREETING_MS / 20 })),
  );
  for (const reply of replies) {
    assert.deepEqual(beyondRefusal(reply), []);
    assert.ok(reply.wasClosed, 'a caller may take as long as it likes');
  }
}

interface Flooded {
  readonly caller: Caller;
  readonly target: Target;
  readonly pid: number;
}

async function floodOf(context: TestContext, { caller, target, pid }: Flooded): Promise<void> {
  const usual = await assertServed(caller, target, secret);
  const before = usageOf(pid).descriptors;
  let most = 0;
  const watch = setInterval(() => (most = Math.max(most, usageOf(pid).descriptors)), 5);
  const sockets = await flood(target.port, FLOOD);
  try {
    const flooded = await assertServed(caller, target, secret);
    context.diagnostic(`served within ${flooded.toFixed(0)} ms, ${usual.toFixed(0)} ms without a flood`);
  } finally {
    clearInterval(watch);
    for (const socket of sockets) socket.destroy();
  }
  assert.ok(
    most >= before + (settings.maxStrangers as number) / 2,
    `the flood was none: ${most} descriptors, ${before} before`,
  );
  const allowed = before + (settings.maxStrangers as number) + SLACK;
  assert.ok(most <= allowed, `the host held ${most} descriptors, ${before} before, at most ${allowed} are allowed`);
  await until(() => usageOf(pid).descriptors <= before + 2, `as few descriptors as the ${before} before`, WAIT_MS);
}
