import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { KvBenchReport } from '#lib/programs/bench/kv/kv-bench.js';
import { sampled } from '../support/extent.ts';
import { freePort } from '../support/free-port.ts';

const cli = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

async function bench(...options: readonly string[]) {
  const child = spawn(process.execPath, [cli, 'bench', 'kv', ...options], { stdio: ['ignore', 'pipe', 'pipe'] });
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (text: Buffer) => (stdout += text.toString()));
  child.stderr.on('data', (text: Buffer) => (stderr += text.toString()));
  const [status] = (await once(child, 'close')) as [number | null];
  return { status, stdout, stderr };
}

for (const backend of sampled(['multipath', 'local'] as const, 2)) {
  test(`bench kv moves pages by ${backend} in turn with bulk, and checks each`, async () => {
    const common = ['--port', String(await freePort()), '--backend', backend];
    const shape = [
      '--tokens',
      '256',
      '--page-tokens',
      '16,64',
      '--requests',
      '2',
      '--iterations',
      '3',
      '--warmup',
      '1',
    ];
    const [server, client] = await Promise.all([
      bench('--role', 'server', ...common),
      bench('--role', 'client', ...common, ...shape, '--json', '-'),
    ]);
    assert.equal(server.status, 0, server.stderr);
    assert.equal(client.status, 0, client.stderr);
    assert.match(client.stderr, new RegExp(`^waiting for the server at 127\\.0\\.0\\.1 port ${common[1]}$`, 'm'));
    assert.match(client.stderr, /^read, 256 tokens in pages of 16: [\d.]+ GB\/s$/m);
    const report = JSON.parse(client.stdout) as KvBenchReport;
    assert.deepEqual([report.schema, report.backend], ['weftline.bench.kv/1', backend]);
    assert.deepEqual(
      report.results.map(({ op, pageTokens, ranges, isVerified }) => [op, pageTokens, ranges, isVerified]),
      [
        ['read', 16, 2 * (30 * 16 * 2 + 31 * 2 + 61 * 8), true],
        ['write', 16, 2 * (30 * 16 * 2 + 31 * 2 + 61 * 8), true],
        ['read', 64, 2 * (30 * 4 * 2 + 31 * 2 + 61 * 2), true],
        ['write', 64, 2 * (30 * 4 * 2 + 31 * 2 + 61 * 2), true],
      ],
    );
    for (const { microseconds, ratio, bulk } of report.results) {
      assert.deepEqual([microseconds.count, ratio.count, bulk.microseconds.count], [3, 3, 3]);
    }
  });
}

test('bench kv refuses more pages than a transfer moves', async () => {
  const { status, stderr } = await bench(
    '--role',
    'client',
    '--tokens',
    '131072',
    '--page-tokens',
    '1',
    '--timeout',
    '200',
  );
  assert.equal(status, 2);
  assert.match(stderr, /Invalid --tokens: expected fewer: 2005632 pages of a request are above 1048576, got 131072/);
});

test('bench kv refuses pools that no memory holds, and tells the server', async () => {
  const port = String(await freePort());
  const [server, client] = await Promise.all([
    bench('--role', 'server', '--port', port),
    bench('--role', 'client', '--port', port, '--tokens', '1M', '--requests', '64'),
  ]);
  assert.equal(client.status, 2);
  assert.match(client.stderr, /Invalid --tokens: expected fewer: pools of \d+ bytes are above/);
  assert.notEqual(server.status, 0);
  assert.match(server.stderr, /pools of/);
});

test('the client of a bench that finds no server says what it waited for, and until when', async () => {
  const port = String(await freePort());
  const { status, stdout, stderr } = await bench('--role', 'client', '--port', port, '--timeout', '200');
  assert.equal(status, 1);
  assert.match(stdout, new RegExp(`^waiting for the server at 127\\.0\\.0\\.1 port ${port}$`, 'm'));
  assert.match(
    stderr,
    new RegExp(`WL_TIMEOUT: No bench server answered at 127\\.0\\.0\\.1 port ${port} within 200 ms`),
  );
});
