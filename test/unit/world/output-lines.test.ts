import assert from 'node:assert/strict';
import { PassThrough, Readable } from 'node:stream';
import test from 'node:test';
import { eachLine, LineWriter } from '#lib/world/rank-process.js';

async function linesOf(chunks: readonly string[]): Promise<string[]> {
  const lines: string[] = [];
  await eachLine(Readable.from(chunks.map((chunk) => Buffer.from(chunk))), (line) => void lines.push(String(line)));
  return lines;
}

test('eachLine() joins pieces, keeps empty lines and the unfinished last one', async () => {
  assert.deepEqual(await linesOf(['a', 'b\nc', '\n\n', 'd\ne']), ['ab', 'c', '', 'd', 'e']);
  assert.deepEqual(await linesOf([]), []);
  assert.deepEqual(await linesOf(['\n']), ['']);
});

test('eachLine() cuts a line that does not end', async () => {
  const lines = await linesOf(Array.from({ length: 40 }, () => 'x'.repeat(65_536)));
  assert.ok(lines.length > 1);
  assert.equal(lines.join('').length, 40 * 65_536);
});

test('LineWriter waits for a slow reader and survives one that goes away', async () => {
  const slow = new PassThrough({ highWaterMark: 16 });
  const writer = new LineWriter(slow);
  const writes = Array.from({ length: 20 }, (_, n) => writer.write(`[${n}] `, Buffer.from('line')));
  const got: string[] = [];
  slow.on('data', (chunk) => got.push(String(chunk)));
  await Promise.all(writes);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(got.join('').split('\n').length, 21);
  assert.ok(got.join('').startsWith('[0] line\n'));
  slow.destroy(new Error('EPIPE'));
  await new Promise((resolve) => setImmediate(resolve));
  await writer.write('', Buffer.from('dropped'));
  writer[Symbol.dispose]();
});
