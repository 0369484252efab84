import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { P2pBenchReport } from '#lib/programs/bench/p2p/p2p-bench.js';
import { freePort } from '../support/free-port.ts';
import { sampled } from '../support/extent.ts';

const cli = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

async function bench(role: string, options: readonly string[]): Promise<string[]> {
  const { code, text } = await run(role, options, process.env);
  assert.equal(code, 0, text);
  return text.trimEnd().split('\n');
}

async function run(
  role: string,
  options: readonly string[],
  env: NodeJS.ProcessEnv,
): Promise<{ readonly code: number; readonly text: string }> {
  const child = spawn(process.execPath, [cli, 'bench', 'p2p', '--role', role, ...options], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env,
  });
  let text = '';
  child.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (text += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number];
  return { code, text };
}

const sizeLine = (role: string, size: string): RegExp =>
  new RegExp(`^\\[${role}\\] ${size.padStart(8)} : [ \\d.]{6,} Gbps \\| [ \\d.]{6,} GB/s$`);

for (const [backend, mode] of sampled(
  [
    ['multipath', 'read'],
    ['local', 'send'],
    ['local', 'write'],
  ] as const,
  2,
)) {
  test(`bench p2p --backend ${backend} --mode ${mode} prints the lines of both sides and ends by itself`, async () => {
    const folder = mkdtempSync(`${tmpdir()}/weftline-p2p-`);
    const json = `${folder}/result.json`;
    const common = ['--port', String(await freePort()), '--backend', backend, '--mode', mode, '--iters', '20'];
    const client = [
      '--sizes',
      '256,65536',
      '--inflight',
      '2',
      '--blocks',
      '4096,8192',
      '--pings',
      '10',
      '--descriptors',
      '50000',
      '--json',
      json,
    ];
    const [server, lines] = await Promise.all([bench('server', common), bench('client', [...common, ...client])]);
    assert.match(server[0] ?? '', /P2P Benchmark — role: server$/);
    assert.ok(server.includes('[Server] Waiting for connection …'));
    assert.ok(server.some((line) => /^\[Server\] Connected to 127\.0\.0\.1 \(GPU 0\) conn_id=0$/.test(line)));
    // A server prints what it has measured itself.
    const ownLine =
      mode === 'send'
        ? sizeLine('Server', '64.0 KB')
        : /^\[Server\]  64\.0 KB : 20 messages, moved and measured by the client$/;
    assert.ok(
      server.some((line) => ownLine.test(line)),
      server.join('\n'),
    );
    for (const text of [server, lines]) {
      assert.ok(text.includes('Message sizes: 256 B, 64.0 KB'));
      assert.ok(text.includes(`Device: cpu | Local GPU idx: 0 | Iterations: 20 | Mode: ${mode}`));
      assert.ok(!text.some((line) => line.includes('CPUs: 4')));
    }
    assert.equal(server.at(-1), '[Server] Benchmark complete');
    assert.ok(lines.includes('[Client] Connected to 127.0.0.1 conn_id=0'));
    assert.ok(lines.some((line) => line.startsWith(`Path: ${backend}`)));
    assert.ok(
      lines.some((line) => sizeLine('Client', '256 B').test(line)),
      lines.join('\n'),
    );
    assert.ok(lines.some((line) => /^Block Size \(B\) +Batch Size +B\/W \(GB\/Sec\) +Avg Lat/.test(line)));
    assert.equal(lines.at(-1), '[Client] Benchmark complete');
    const report = JSON.parse(readFileSync(json, 'utf8')) as P2pBenchReport;
    rmSync(folder, { recursive: true });
    assert.equal(report.backend, backend);
    assert.deepEqual(
      report.sizes.map(({ bytes, iterations }) => [bytes, iterations]),
      [
        [256, 20],
        [65_536, 20],
      ],
    );
    assert.deepEqual(
      report.blocks?.map(({ blockBytes }) => blockBytes),
      [4096, 8192],
    );
    assert.equal(report.pingMicroseconds?.length, 6);
    assert.deepEqual([report.descriptors?.count, report.descriptors?.parts], [50_000, 50_000]);
    assert.ok(lines.some((line) => /^50000 descriptors in 50000 parts: lists [\d.]+ ms, prepare .* MB$/.test(line)));
  });
}
