// Programs and commands that users bring from other libraries' documents, in the words of docs/guides/names.md.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { freePort } from '../support/free-port.ts';
import { resultOf, runRanks } from './support/run-ranks.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

async function weftline(...words: string[]): Promise<string> {
  const child = spawn(process.execPath, [main, ...words], { stdio: ['ignore', 'pipe', 'pipe'], timeout: 600_000 });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (text += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number];
  assert.equal(code, 0, text);
  return text;
}

test('the usage example of EPAll2AllLayer, also with local combine: experts drawn at random, some of them twice for a token', async () => {
  const { exitCode, ranks, transcript } = await runRanks(2, new URL('./ranks/translated-layer.js', import.meta.url));
  assert.equal(exitCode, 0, transcript);
  assert.ok(
    ranks.some((rank) => Number(resultOf(rank)) > 0),
    transcript,
  );
});

test('transport_test --server=true, and --perftype=basic --iterations=8 against it', async () => {
  const port = ['--port', String(await freePort())];
  const [server, client] = await Promise.all([
    weftline('bench', 'transport', '--server=true', ...port),
    weftline('bench', 'transport', '--serverip=127.0.0.1', '--perftype=basic', '--iterations=8', ...port),
  ]);
  assert.match(server, /listening at/);
  assert.match(client, /8/);
});

test('benchmark.py --role server and client, --local-gpu-idx 0 --num-cpus 4 --sizes 16384 --iters 1', async () => {
  const shape = ['--local-gpu-idx', '0', '--num-cpus', '4', '--sizes', '16384', '--iters', '1'];
  const options = ['--port', String(await freePort()), ...shape];
  const [server, client] = await Promise.all([
    weftline('bench', 'p2p', '--role', 'server', ...options),
    weftline('bench', 'p2p', '--role', 'client', '--remote-ip', '127.0.0.1', ...options),
  ]);
  for (const [name, text] of [
    ['Server', server],
    ['Client', client],
  ] as const) {
    assert.match(text, new RegExp(`^\\[${name}\\]  16\\.0 KB : `, 'm'));
    assert.match(text, new RegExp(`^\\[${name}\\] Benchmark complete$`, 'm'));
  }
});

test('transport_test --help lists its flags', async () => {
  const text = await weftline('bench', 'transport', '--help');
  for (const flag of ['perftype', 'warmup', 'nflow', 'nmsg', 'nreq', 'msize', 'iterations', 'flush', 'bi']) {
    assert.match(text, new RegExp(`--${flag}\\b`));
  }
});
