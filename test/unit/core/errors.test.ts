import assert from 'node:assert/strict';
import { once } from 'node:events';
import test from 'node:test';
import { inspect } from 'node:util';
import { Worker } from 'node:worker_threads';
import { errorCodes, WeftlineError } from 'weftline';
import type * as errorsModule from '#lib/core/errors.js';
import { invalidArgument } from '#lib/core/errors.js';
import { printable, quote, quoteList } from '#lib/core/quote.js';
import { decodeError, encodeError, type EncodedError } from '#lib/core/errors.js';

const moduleUrl = import.meta.resolve('#lib/core/errors.js');

function viaJson(error: unknown, rank?: number): WeftlineError {
  return decodeError(JSON.parse(JSON.stringify(encodeError(error, rank))) as EncodedError);
}

test('every code survives JSON with its message and details', () => {
  for (const code of Object.keys(errorCodes) as (keyof typeof errorCodes)[]) {
    const got = viaJson(new WeftlineError(code, `about ${code}`, { details: { bytes: 3, names: ['a'] } }));
    assert.equal(got.code, code);
    assert.equal(got.message, `about ${code}`);
    assert.deepEqual(got.details, { bytes: 3, names: ['a'] });
  }
});

test('encodeError() keeps the rank where the error began, and the stack of the original', () => {
  const first = new WeftlineError('WL_TIMEOUT', 'rank 2 is missing');
  const second = viaJson(first, 1);
  assert.equal(second.rank, 1);
  assert.equal(second.remoteStack, first.stack);
  const third = viaJson(second, 5);
  assert.equal(third.rank, 1);
  assert.equal(third.remoteStack, first.stack);
});

test('a chain of causes survives, foreign errors included', () => {
  const disk = Object.assign(new Error('no space'), { code: 'ENOSPC' });
  const middle = new WeftlineError('WL_SHARED_MEMORY', 'cannot make the window', { cause: disk });
  const got = viaJson(new WeftlineError('WL_PEER_FAILED', 'rank 1 failed', { cause: middle, rank: 1 }));
  const second = got.cause as WeftlineError;
  const third = second.cause as WeftlineError;
  assert.deepEqual([got.code, second.code, third.code], ['WL_PEER_FAILED', 'WL_SHARED_MEMORY', 'WL_INTERNAL']);
  assert.equal(third.message, 'no space');
  assert.equal(third.cause, undefined);
});

test('encodeError() takes anything that was thrown', () => {
  assert.equal(viaJson('a word').message, 'a word');
  assert.equal(viaJson(undefined).message, 'undefined');
  assert.equal(viaJson(Object.create(null)).message, 'object');
  assert.equal(viaJson(new RangeError('far')).code, 'WL_INTERNAL');
  assert.deepEqual(viaJson(new WeftlineError('WL_MEMORY', 'big', { details: { bytes: 12n } })).details, { bytes: 12 });
});

test('a code of a newer peer becomes WL_INTERNAL and stays readable', () => {
  const encoded = { code: 'WL_FROM_THE_FUTURE', message: 'new', details: { a: 1 } } as unknown as EncodedError;
  const got = decodeError(encoded);
  assert.equal(got.code, 'WL_INTERNAL');
  assert.deepEqual(got.details, { a: 1, code: 'WL_FROM_THE_FUTURE' });
  assert.equal(decodeError({ ...encoded, code: 'toString' as EncodedError['code'] }).code, 'WL_INTERNAL');
});

test('an error crosses a worker thread', async () => {
  const source = `
    const { parentPort } = require('node:worker_threads');
    import(${JSON.stringify(moduleUrl)}).then(({ encodeError, WeftlineError }) => {
      const cause = new TypeError('not a row');
      parentPort.postMessage(encodeError(new WeftlineError('WL_CAPACITY', 'too many rows', { details: { rows: 9 }, cause }), 3));
    });`;
  const worker = new Worker(source, { eval: true });
  const [encoded] = (await once(worker, 'message')) as [EncodedError];
  await worker.terminate();
  const got = decodeError(encoded);
  assert.ok(got instanceof WeftlineError);
  assert.deepEqual([got.code, got.rank, got.details['rows']], ['WL_CAPACITY', 3, 9]);
  assert.equal((got.cause as Error).message, 'not a row');
});

test('instanceof holds across two copies of the module, and not for other errors', async () => {
  const copy = (await import(`${moduleUrl}?copy`)) as typeof errorsModule;
  assert.notEqual(copy.WeftlineError, WeftlineError);
  const foreign = new copy.WeftlineError('WL_CLOSED', 'closed', { rank: 4 });
  assert.ok(foreign instanceof WeftlineError);
  assert.ok(new WeftlineError('WL_CLOSED', 'closed') instanceof copy.WeftlineError);
  assert.equal(encodeError(foreign).code, 'WL_CLOSED');
  for (const other of [new Error('x'), null, undefined, 'WeftlineError', { code: 'WL_CLOSED' }]) {
    assert.equal((other as unknown) instanceof WeftlineError, false);
  }
});

test('instanceof of a subclass accepts only the subclass', () => {
  class PeerError extends WeftlineError {}
  const peer = new PeerError('WL_PEER_LOST', 'rank 1 ended');
  assert.ok(peer instanceof PeerError && peer instanceof WeftlineError);
  assert.equal((new WeftlineError('WL_CLOSED', 'closed') as unknown) instanceof PeerError, false);
});

test('encodeError() never throws: circular causes end, circular details become words', () => {
  const first = new Error('first');
  const second = new Error('second', { cause: first });
  first.cause = second;
  const circular: Record<string, unknown> = { bytes: 4 };
  circular['self'] = circular;
  let depth = 0;
  for (let at: EncodedError | undefined = encodeError(second); at !== undefined; at = at.cause) depth += 1;
  assert.equal(depth, 9);
  const error = new WeftlineError('WL_MEMORY', 'short', { details: circular });
  assert.deepEqual(viaJson(error).details, { bytes: '4', self: 'Object' });
});

test('details are a frozen copy', () => {
  const details = { bytes: 1 };
  const error = new WeftlineError('WL_MEMORY', 'short', { details });
  details.bytes = 2;
  assert.deepEqual(error.details, { bytes: 1 });
  assert.ok(Object.isFrozen(error.details));
});

function message(value: unknown): string {
  return invalidArgument('topk', value, '1 to 32').message;
}

test('invalidArgument() names the argument, shows the value and says what is allowed', () => {
  assert.equal(message(33), 'Invalid topk: expected 1 to 32, got 33');
  assert.equal(message('a'), 'Invalid topk: expected 1 to 32, got "a"');
  assert.equal(message(7n), 'Invalid topk: expected 1 to 32, got 7n');
  assert.equal(message([1, [2]]), 'Invalid topk: expected 1 to 32, got [1, [2]]');
  assert.equal(message(new Float32Array(2)), 'Invalid topk: expected 1 to 32, got Float32Array');
  assert.equal(message(null), 'Invalid topk: expected 1 to 32, got null');
  assert.equal(message(Object.create(null)), 'Invalid topk: expected 1 to 32, got object');
});

test('invalidArgument() shows long values in part', () => {
  assert.ok(message('x'.repeat(1e6)).length < 300);
  assert.ok(message(Array.from({ length: 1000 }, () => 'x'.repeat(1000))).length < 5000);
  assert.match(message(Array.from({ length: 100 }, (_, index) => index)), /14, 15, … 100 in all\]/);
  const nested: unknown[] = [];
  nested.push(nested);
  assert.match(message(nested), /\[\[\[…\]\]\]/);
});

test('quote() shows any text on one line, escaped and short', () => {
  assert.equal(quote('a "b" \\ c'), '"a \\"b\\" \\\\ c"');
  assert.equal(quote('\u001b[2J\n\u202eevil\u0000'), '"\\u001b[2J\\u000a\\u202eevil\\u0000"');
  assert.equal(quote('é中😀'), '"é中😀"');
  assert.equal(quote('\ud800'), '"\\ud800"');
  assert.equal(quote('x'.repeat(200), 4), '"xxxx…" (200 characters)');
  assert.equal(quote({ a: [1] }), '{"a":[1]}');
  assert.equal(quote(undefined), 'undefined');
  assert.equal(quote(1n), '1');
  assert.equal(printable('plain words'), 'plain words');
  assert.equal(printable('a tag \u{e0041}, a mark \u0600'), 'a tag \\u{e0041}, a mark \\u0600');
  assert.equal(printable('x'.repeat(5000), 600), `${'x'.repeat(600)}… (5000 characters)`);
  assert.equal(quoteList([]), 'none');
  assert.equal(
    quoteList(Array.from({ length: 10 }, (_, index) => `${index}`)),
    '"0", "1", "2", "3", "4", "5", "6", "7", 2 more',
  );
});

test('an error that Node prints has no field without a value', () => {
  const plain = inspect(new WeftlineError('WL_CHECK', 'the sum is wrong'));
  assert.doesNotMatch(plain, /undefined|remoteStack|rank/);
  assert.match(inspect(new WeftlineError('WL_CHECK', 'the sum is wrong', { rank: 3 })), /rank: 3/);
});

test('a value of any kind is shown on one line, also one that fails when it is looked at', () => {
  const failing = {
    get constructor(): never {
      throw new Error('not to be looked at');
    },
  };
  const revoked = Proxy.revocable([], {});
  revoked.revoke();
  const circular = Object.assign(Object.create(null) as object, { bytes: 1n });
  const shown: readonly (readonly [unknown, RegExp])[] = [
    [failing, /got object$/],
    [revoked.proxy, /got object$/],
    [[failing], /got object$/],
    [circular, /got object$/],
    [{ constructor: { name: '\u001b[31mred' } }, /got \\u001b\[31mred$/],
    [Symbol('\u001b[31mred'), /got Symbol\(\\u001b\[31mred\)$/],
    [Object.assign(() => 'x'.repeat(1000), { toString: () => 'y'.repeat(1000) }), /got y{80}… \(1000 characters\)$/],
  ];
  for (const [value, expected] of shown) assert.match(invalidArgument('bytes', value, 'a number').message, expected);
  assert.equal(quote(circular), '[object Object]');
});
