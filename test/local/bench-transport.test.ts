// weftline bench transport as an operator runs it: every pattern between two processes or ranks, and what goes wrong.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { describe } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Transport } from 'weftline/transport';
import { BenchSession } from '#lib/programs/bench/transport/transport-session.js';
import type { TransportBenchReport } from '#lib/programs/bench/transport/transport-bench.js';
import type { RankBenchReport } from '#lib/programs/bench/transport/transport-ranks.js';
import { freePort } from '../support/free-port.ts';
import { until } from '../support/until.ts';
import { sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

interface Ended {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

interface Running {
  readonly ended: Promise<Ended>;
  /** The first line that it prints. */
  readonly firstLine: Promise<string>;
}

function start(words: readonly string[], token = 'bench'): Running {
  const child = spawn(process.execPath, [main, 'bench', 'transport', ...words], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, WEFTLINE_TOKEN: token, NODE_TEST_CONTEXT: undefined },
    timeout: 600_000,
  });
  let stdout = '';
  let stderr = '';
  const firstLine = new Promise<string>((resolve) => {
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk.toString();
      if (stdout.includes('\n')) resolve(stdout.slice(0, stdout.indexOf('\n')));
    });
    child.on('close', () => resolve(stdout));
  });
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  return { firstLine, ended: once(child, 'close').then(([status]) => ({ status: status as number, stdout, stderr })) };
}

/** A server, and a client once it listens. */
async function bench(...words: string[]): Promise<{ readonly client: Ended; readonly server: Ended }> {
  const port = String(await freePort());
  const server = start(['--role', 'server', '--host', '127.0.0.1', '--port', port]);
  assert.match(await server.firstLine, /^listening at 127\.0\.0\.1 port/);
  const client = start(['--role', 'client', '--port', port, ...words]);
  const both = { client: await client.ended, server: await server.ended };
  assert.equal(both.client.status, 0, both.client.stderr);
  assert.equal(both.server.status, 0, both.server.stderr);
  return both;
}

/** What --json wrote. */
async function document<T>(run: (file: string) => Promise<unknown>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-bench-'));
  try {
    const file = join(folder, 'result.json');
    await run(file);
    return JSON.parse(readFileSync(file, 'utf8')) as T;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test('basic checks every word, on both sides, and the server ends by itself', async () => {
  const { client, server } = await bench('--perftype', 'basic', '--iterations', '3');
  assert.equal(client.stdout.match(/Client connected/g)?.length, 1, 'one line for the one connection');
  assert.match(client.stdout, /Client connected to 127\.0\.0\.1 \(4 flows over one connection\)/);
  assert.match(client.stdout, /Client iteration 2 done\n3 messages of 65536 bytes arrived intact\n$/);
  assert.match(server.stdout, /Server iteration 2 done\n$/);
});

test('lat prints quantiles beside a bare ping-pong', async () => {
  const report = await document<TransportBenchReport>(async (file) => {
    const words = ['--perftype', 'lat', '--iterations', '60', '--warmup', '--compare', '1', '--json', file];
    const { client } = await bench(...words);
    assert.match(
      client.stdout,
      /latency: min [\d.]+, P50 [\d.]+, P90 [\d.]+, P99 [\d.]+, P99\.9 [\d.]+, max [\d.]+ µs/,
    );
    assert.match(client.stdout, /ratio of medians/);
  });
  assert.equal(report.workload.msize, 64);
  assert.equal(report.latency?.transport.length, 6);
});

// Some wait for most of their time: others go on beside them.
describe('bench transport', { concurrency: 2 }, () => {
  test('another token is refused on both sides', async () => {
    const port = String(await freePort());
    const server = start(['--role', 'server', '--port', port, '--timeout', '20000'], 'one');
    await server.firstLine;
    const client = await start(['--role', 'client', '--port', port, '--timeout', '120000'], 'other').ended;
    assert.equal(client.status, 1);
    assert.match(client.stderr, /WL_UNAUTHORIZED/);
    const { status, stderr } = await server.ended;
    assert.equal(status, 1);
    assert.match(stderr, /refused: 1, the last one because:.*token/);
  });

  test('tpt moves the requests that it was told to, several messages each, and prints a line per second', async () => {
    const report = await document<TransportBenchReport>(async (file) => {
      const shape = ['--nflow', '3', '--nmsg', '2', '--nreq', '2', '--msize', '100000', '--iterations', '5'];
      await bench('--perftype', 'tpt', ...shape, '--flush=false', '--json', file);
    });
    assert.equal(report.throughput?.messages, 3 * 2 * 5);
    assert.ok((report.throughput?.senderCpuSecondsPerGB ?? 0) > 0);
    const { client, server } = await bench('--perftype', 'tpt', '--seconds', '1.4');
    assert.match(client.stdout, /\(4 flows\) TX Tpt: [\d.]+ Gbps\(\d+\), RX Tpt: 0\.00 Gbps\(0\)/);
    assert.match(server.stdout, /\(4 flows\) TX Tpt: 0\.00 Gbps\(0\), RX Tpt: [\d.]+ Gbps\(\d+\)/);
  });

  test('bi sends both ways, as does tpt with --bi', async () => {
    const both = [
      ['--perftype', 'bi'],
      ['--perftype', 'tpt', '--bi'],
    ];
    for (const words of sampled(both, 1)) {
      const { client } = await bench(...words, '--iterations', '4', '--msize', '200000');
      assert.match(client.stdout, /goodput: [\d.]+ Gbps, back [\d.]+ Gbps \(16 messages of 200000 bytes\)/);
    }
  });

  test('incast and permutation over ranks of this machine', async () => {
    for (const perftype of sampled(['incast', 'permutation'] as const, 1)) {
      const report = await document<RankBenchReport>(async (file) => {
        const words = [
          '--perftype',
          perftype,
          '--ranks',
          '3',
          '--iterations',
          '3',
          '--msize',
          '300000',
          '--json',
          file,
        ];
        const { status, stdout, stderr } = await start(words).ended;
        assert.equal(status, 0, stderr);
        assert.match(stdout, /all ranks: [\d.]+ Gbps arrived/);
      });
      const senders = perftype === 'incast' ? 2 : 3;
      assert.equal(report.ranks.filter(({ messages }) => messages === 12).length, senders);
      for (const { rank, sendsTo } of report.ranks) assert.ok(!sendsTo.includes(rank));
    }
  });

  test('what goes wrong is said with its cause, and the exit code is not 0', async () => {
    const taken = createServer().listen(0, '127.0.0.1');
    await once(taken, 'listening');
    const { port } = taken.address() as AddressInfo;
    const [nobody, busy, unknown, lonely] = await Promise.all([
      start(['--role', 'client', '--port', '1', '--timeout', '3000']).ended,
      start(['--role', 'server', '--host', '127.0.0.1', '--port', String(port)]).ended,
      start(['--role', 'client', '--peer-ip', 'no-such-host.invalid']).ended,
      start(['--role', 'server', '--port', String(await freePort()), '--timeout', '3000']).ended,
    ]);
    taken.close();
    for (const { status, stderr } of [nobody, busy, unknown, lonely]) {
      assert.equal(status, 1);
      // An operator's mistake is no defect: no stack.
      assert.doesNotMatch(stderr, /\n {4}at /);
    }
    assert.match(nobody.stderr, /WL_TIMEOUT: No transport answered at 127\.0\.0\.1 port 1 within 3000 ms/);
    assert.match(busy.stderr, /Cannot listen at 127\.0\.0\.1 port \d+: another process has this port/);
    assert.match(unknown.stderr, /no-such-host\.invalid/);
    assert.match(lonely.stderr, /WL_TIMEOUT: Nobody connected to port \d+ within 3000 ms/);
  });

  test('--flush is refused by name: nothing here writes into memory of a GPU', async () => {
    const roles = [
      ['--role', 'server'],
      ['--role', 'client', '--port', '9'],
      ['--perftype', 'incast'],
    ];
    for (const role of sampled(roles, 1)) {
      const { status, stderr } = await start([...role, '--flush']).ended;
      assert.notEqual(status, 0);
      assert.match(
        stderr,
        /--flush: expected false, or no --flush: .* into memory of a GPU.*, and every --perftype here moves memory of hosts/,
      );
    }
  });

  test('the last word of a side that has closed since is heard all the same, however late', async () => {
    await using server = await Transport.create({ name: 'server' });
    await using client = await Transport.create({ name: 'client' });
    using listener = await server.listen({ host: '127.0.0.1', port: 0 });
    const connecting = client.connect({ host: '127.0.0.1', port: listener.port });
    const accepted = await listener.accept();
    const here = await BenchSession.open(server, accepted);
    const there = await BenchSession.open(client, await connecting);
    await there.say({ phase: 'end' });
    await client.close();
    await until(() => accepted.error !== undefined, 'the end of the connection');
    assert.deepEqual(await here.hear(), { phase: 'end' });
    await assert.rejects(here.hear(), { code: 'WL_CLOSED' });
  });
});
