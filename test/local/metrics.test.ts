// Metrics of a job: each rank serves its own, `weftline stats` asks all of them through the store.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { freePorts } from '../support/free-port.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const script = fileURLToPath(new URL('./ranks/metrics-rank.js', import.meta.url));

function weftline(words: readonly string[], metrics: string) {
  const env = { ...process.env, WEFTLINE_DEVICE: 'cpu', WEFTLINE_METRICS: metrics, NODE_TEST_CONTEXT: undefined };
  return spawnSync(process.execPath, [main, ...words], { encoding: 'utf8', timeout: 600_000, env });
}

test('ranks serve their metrics on neighbouring ports, and stats has them of all that answer', async () => {
  const port = await freePorts(2);
  const { status, stdout, stderr } = weftline(['run', '-n', '2', script, String(port)], `127.0.0.1:${port}`);
  assert.equal(status, 0, stderr);
  const lines = stdout.split('\n').flatMap((line) => /^\[\d\] (\{.*)$/.exec(line)?.[1] ?? []);
  const [first, second, refused, json, inspector, prometheus] = lines.map((line) => JSON.parse(line));
  for (const [rank, { type, text }] of [first, second].entries()) {
    assert.match(type, /^text\/plain; version=0\.0\.4/);
    const labels = `hostname="[^"]+",pid="\\d+",rank="${rank}",local_rank="${rank}",job_id="\\w+"`;
    for (const line of [
      `weftline_ep_step_seconds_count\\{${labels},op="dispatch",phase="call",mode="buffer",world="2"\\} 1`,
      `weftline_ep_step_seconds_count\\{${labels},op="combine",phase="rows",mode="buffer",world="2"\\} 1`,
      `weftline_ep_tokens_total\\{${labels},op="dispatch",mode="buffer"\\} 2`,
      `weftline_ep_bytes_total\\{${labels},op="combine",link="host"\\} 128`,
      `weftline_ep_imbalance_ratio\\{${labels},mode="buffer"\\} 1`,
      'weftline_rank_active\\{.*rank="1".*\\} 1',
    ])
      assert.match(text, new RegExp(`^${line}$`, 'm'));
  }
  assert.deepEqual(refused.refusals, [404, 405]);
  assert.match(json.stderr, /no answer within \d+ ms from ranks 1\n/);
  const [job] = (
    JSON.parse(json.stdout) as { jobs: { silent: number[]; ranks: { rank: number; isCollecting: boolean }[] }[] }
  ).jobs;
  assert.deepEqual(job?.silent, [1]);
  assert.deepEqual(
    job?.ranks.map(({ rank, isCollecting }) => [rank, isCollecting]),
    [[0, true]],
  );
  const calls = (inspector.stdout as string)
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line).coll_perf);
  assert.deepEqual(
    calls.map(({ coll, coll_sn: number, coll_msg_size_bytes: bytes }) => [coll, number, bytes]),
    [
      ['EpBuffer.dispatch', 1, 256],
      ['EpBuffer.combine', 2, 256],
    ],
  );
  assert.match(prometheus.stdout, /^weftline_ep_tokens_total\{.*rank="0".*\} 2$/m);
});

test('an address that is none, or is held, is an error that says so', async () => {
  const wrong = weftline(['run', '-n', '1', script], 'nowhere');
  assert.notEqual(wrong.status, 0);
  assert.match(
    wrong.stderr,
    /Invalid setting metrics \(WEFTLINE_METRICS\): expected HOST:PORT, such as 127\.0\.0\.1:9400/,
  );
  const holder = createServer().listen(0, '127.0.0.1');
  await once(holder, 'listening');
  const { port } = holder.address() as { port: number };
  const held = weftline(['run', '-n', '1', script], `127.0.0.1:${port}`);
  holder.close();
  assert.notEqual(held.status, 0);
  assert.match(
    held.stderr,
    /Cannot serve metrics on 127\.0\.0\.1:\d+: .*EADDRINUSE.*each process of a host needs a port/,
  );
  // No host has an address of this range (RFC 5737).
  const foreign = weftline(['run', '-n', '1', script], '203.0.113.7:9400');
  assert.notEqual(foreign.status, 0);
  assert.match(
    foreign.stderr,
    /Cannot serve metrics on 203\.0\.113\.7:9400: .*EADDRNOTAVAIL.*name an address of this host/,
  );
});

test('bytes of rows of layers and of low-latency mode, and rows that were dropped', () => {
  const rank = fileURLToPath(new URL('./ranks/row-bytes.js', import.meta.url));
  const { status, stdout, stderr } = weftline(['run', '-n', '2', rank], '');
  assert.equal(status, 0, stderr);
  const rows = stdout.split('\n').flatMap((line) => /^\[\d\] (\{.*)$/.exec(line)?.[1] ?? []);
  // Rows of 128 bytes: a layer sends one per expert (3 to each rank), the others send one per rank (2).
  for (const text of rows) {
    assert.deepEqual(JSON.parse(text), {
      'dispatch self': (3 + 2) * 128,
      'dispatch host': (3 + 2) * 128,
      'combine self': (2 + 2) * 128,
      'combine host': (2 + 2) * 128,
      drop: 1,
    });
  }
  assert.equal(rows.length, 2);
});
